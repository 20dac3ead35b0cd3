/* A process whose addresses are limited, each part in a child of its own. */
#include "check.h"
#include <errno.h>
#include <string.h>
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

int main(void) {
    void (*const parts[])(void) = {frames, grow};
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
