/* A program that loads a library, and with -DLIBRARY that library: its constructor, under the loader's lock, waits for a
 * thread that makes the first allocations of the process. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#include <vmalloc.h>

static void *allocate(void *unused) {
    void *area = vmalloc(1 << 20);
    void *object = alloc_percpu(8, 8);
    CHECK(area != NULL && object != NULL);
    free_percpu(object);
    vfree(area);
    return unused;
}

#ifdef LIBRARY
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}
#else
int main(int count, char **names) {
    CHECK(count == 2);
    alarm(60);
    CHECK(dlopen(names[1], RTLD_NOW) != NULL);
    allocate(NULL);
    return 0;
}
#endif
