// A free undoes a program's changes of its memory: the next owner of the addresses can read and write them, a child
// inherits them, and nothing is locked. The C library's malloc does the same, since it unmaps large memory.
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3 << 20, MANY = 8 };

static void *fresh(size_t bytes) {
    void *area;
    CHECK(posix_memalign(&area, 4096, bytes) == 0);
    memset(area, 1, bytes);
    return area;
}

static long locked_kib(void) {
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmLck: %ld", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

// Allocates memory that must behave as any other.
static void use(void) {
    char *areas[MANY];
    for (int at = 0; at < MANY; at++) {
        CHECK((areas[at] = malloc(SIZE - at * 40000)));
        memset(areas[at], 7, SIZE - at * 40000);
    }
    int status;
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < MANY; at++)
            for (int byte = 0; byte < SIZE - at * 40000; byte += 1000)
                CHECK(areas[at][byte] == 7);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int at = 0; at < MANY; at++)
        free(areas[at]);
}

static void change(int how, char *area, size_t bytes) {
    int done = 0;
    switch (how) {
    case 0: done = mprotect(area, bytes, PROT_READ); break;
    case 1: done = mprotect(area + 8192, 4096, PROT_NONE); break;
    case 2: done = madvise(area, bytes, MADV_DONTFORK); break;
    case 3: done = madvise(area + bytes - 4096, 4096, MADV_WIPEONFORK); break;
    case 4: done = mlock(area, 1 << 16); break;
    case 5: done = syscall(SYS_mlock, area, 1 << 16); break;
    case 6: done = pkey_mprotect(area, bytes, PROT_READ, -1); break;
    case 7: done = madvise(area, 1 << 16, 102); break; // MADV_GUARD_INSTALL: before Linux 6.13 there is none
    }
    CHECK(done == 0 || errno == EINVAL || errno == ENOMEM || errno == EPERM || errno == ENOSYS);
}

// The memory policy of an address, or -1 where the system does not tell.
static int policy(void *at) {
    int mode;
    return syscall(SYS_get_mempolicy, &mode, 0, 0, at, 2 /* MPOL_F_ADDR */) == 0 ? mode : -1;
}

// A policy ends with the free. Until then it is the area's, also where it grows or moves.
static void bind(void) {
    for (int grows = 0; grows < 2; grows++) {
        char *area = fresh(SIZE);
        unsigned long node = 1;
        if (syscall(SYS_mbind, area, SIZE, 2 /* MPOL_BIND */, &node, 64, 0) != 0 || policy(area) != 2) {
            fputs("SKIPPED: mbind fails here\n", stderr);
            return;
        }
        CHECK(policy(area + SIZE - 4096) == 2);
        use();
        CHECK(policy(area) == 2 && policy(area + SIZE - 4096) == 2);
        if (grows) {
            CHECK((area = realloc(area, 4 * SIZE)));
            CHECK(area[5] == 1 && area[SIZE - 1] == 1);
            // The C library's own loses it, since its mapping begins before the area: mremap moves one mapping.
            if (getenv("LD_PRELOAD"))
                for (int page = 0; page < 4 * SIZE; page += 4096)
                    CHECK(policy(area + page) == 2);
        }
        free(area);
        char *areas[MANY];
        for (int at = 0; at < MANY; at++) {
            CHECK((areas[at] = malloc(SIZE)));
            for (int page = 0; page < SIZE; page += 4096)
                CHECK(policy(areas[at] + page) == 0);
        }
        for (int at = 0; at < MANY; at++)
            free(areas[at]);
    }
}

int main(void) {
    bind();
    // So that the C library itself unmaps each one.
    mallopt(M_MMAP_THRESHOLD, 64 << 10);
    long before = locked_kib();
    for (int how = 0; how < 8; how++)
        for (size_t bytes = SIZE; bytes > 100000; bytes /= 4) {
            char *area = fresh(bytes);
            change(how, area, bytes & -4096ul);
            free(area);
            use();
        }
    // Resized first, except for inaccessible memory.
    for (int how = 2; how < 6; how++) {
        char *area = fresh(SIZE);
        change(how, area, SIZE);
        area = realloc(area, SIZE / 2);
        CHECK(area && area[5] == 1);
        area = realloc(area, 4 * SIZE);
        CHECK(area && area[SIZE / 2 - 1] == 1);
        free(area);
        use();
    }
    CHECK(locked_kib() == before);
    return 0;
}
