/* Marks the rseq area of each thread as that of CPU 0, for programs that run under valgrind.

   valgrind runs one thread at a time and knows no restartable sequences: libc's registration fails, and programs take the
   ways for systems without them. Nothing interrupts a section there, so its instructions can be counted as they are once
   the area says that it is registered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* libc's distance from the thread pointer; its size is 0 where the registration failed, so this one goes before it. */
extern const ptrdiff_t __rseq_offset;
const unsigned int __rseq_size = 32;

/* What cpu_id says of an area whose registration failed. */
#define FAILED (-2)

static void mark(int32_t cpu) {
    char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
    *(volatile uint32_t *)area = 0;      /* cpu_id_start */
    *(volatile int32_t *)(area + 4) = cpu; /* cpu_id */
}

struct start {
    void *(*run)(void *);
    void *with;
};

static void *begin(void *argument) {
    struct start start = *(struct start *)argument;
    free(argument);
    mark(0);
    return start.run(start.with);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with) {
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    struct start *start = malloc(sizeof *start);
    if (!start) return 11;
    start->run = run;
    start->with = with;
    /* A thread registers its area if its maker's says that it is registered. */
    mark(FAILED);
    int error = next(thread, attributes, begin, start);
    mark(0);
    return error;
}

__attribute__((constructor)) static void first(void) { mark(0); }
