/* A process whose addresses, files or breaks are limited, each part in a child of its own. */
#include "check.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmalloc.h>

enum { MIB = 1 << 20 };

/* Mappings of frames leave most addresses to others. */
static void frames(void) {
    struct vm_frames one;
    CHECK(vm_alloc_frames(&one, 1) == 0);
    void *other = malloc((size_t)300 * MIB);
    CHECK(other != NULL);
    free(other);
    vm_free_frames(&one);
}

/* What an area cannot grow to, malloc may have. */
static void grow(void) {
    unsigned char *memory = kvmalloc((size_t)10 * MIB);
    CHECK(memory != NULL && is_vmalloc_addr(memory));
    memset(memory, 0x5a, (size_t)10 * MIB);
    /* Uses up the areas. */
    while (vmalloc((size_t)10 * MIB) != NULL) {
    }
    errno = EBADF;
    memory = kvrealloc(memory, (size_t)40 * MIB);
    CHECK(memory != NULL && !is_vmalloc_addr(memory) && errno == EBADF);
    for (size_t at = 0; at < (size_t)10 * MIB; at++) {
        CHECK(memory[at] == 0x5a);
    }
    kvfree(memory);
}

/* A file that may not grow is an error, not a signal. */
static void file(void) {
    struct rlimit limit = {MIB, MIB};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct vm_frames some, more = {0, 0};
    CHECK(vm_alloc_frames(&some, 100) == 0);
    errno = 0;
    CHECK(vm_alloc_frames(&more, 200) == -1 && errno == ENOMEM && more.count == 0);
    limit.rlim_cur = 4096;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    /* Frames that the file has are still to be had, and their memory is released and allocated. */
    char *view = vmap(&some.first, 1, PROT_READ | PROT_WRITE);
    CHECK(view != NULL);
    view[0] = 1;
    vunmap(view);
    vm_free_frames(&some);
    CHECK(vm_alloc_frames(&some, 100) == 0);
    errno = 0;
    CHECK(vm_alloc_frames(&more, 200) == -1 && errno == ENOMEM);
    vm_free_frames(&some);
}

/* malloc maps memory where its heap cannot grow: it has failed in one call, and not the caller. */
static void heap(void) {
    char *end = sbrk(0);
    end += (size_t)-(uintptr_t)end % 4096;
    CHECK(mmap(end, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == end);
    for (int at = 0; at < 300; at++) {
        errno = EBADF;
        void *memory = kvmalloc(1000);
        CHECK(memory != NULL && errno == EBADF);
        memory = kvrealloc(memory, 5000);
        CHECK(memory != NULL && errno == EBADF);
        CHECK(kvzalloc(3000) != NULL && errno == EBADF);
    }
    errno = 0;
    CHECK(kvmalloc(SIZE_MAX / 2) == NULL && errno == ENOMEM);
}

int main(void) {
    void (*const parts[])(void) = {frames, grow, file, heap};
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct rlimit limit = {(rlim_t)1200 * MIB, (rlim_t)1200 * MIB};
            CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
            parts[at]();
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}
