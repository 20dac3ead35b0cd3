// Limits apply to used memory: a process that limits its addresses late, runs under a limit, or locks all of its
// memory, can allocate as much as with the C library's malloc alone. Allocations beyond the system's memory fail. The
// argument selects a case.
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

static void limit(int what, rlim_t bytes) {
    struct rlimit to = {bytes, bytes};
    CHECK(setrlimit(what, &to) == 0);
}

static void small(int mib) {
    for (int at = 0; at < mib * 1024; at++) {
        errno = EBADF;
        char *piece = malloc(1000);
        // An attempt that failed before addresses were released is not the caller's.
        CHECK(piece && errno == EBADF);
        piece[0] = 1;
    }
}

// 600 MiB come, and all but every fourth MiB goes, or all.
static void burst(int keeps) {
    static char *pieces[600];
    for (int at = 0; at < 600; at++)
        CHECK((pieces[at] = malloc(1 << 20)));
    for (int at = 0; at < 600; at++)
        if (!keeps || at % 4)
            free(pieces[at]);
}

int main(int count, char **words) {
    CHECK(count == 2);
    switch (words[1][0]) {
    case 'l': // late
        free(malloc(1 << 20));
        // An invalid pointer is an error, and is not dereferenced.
        CHECK(setrlimit(RLIMIT_CORE, (void *)8) == -1 && errno == EFAULT);
        CHECK(setrlimit(RLIMIT_AS, (void *)8) == -1 && errno == EFAULT);
        limit(RLIMIT_AS, 600 << 20);
        small(400);
        free(malloc(50 << 20));
        break;
    case 'x': { // exceeded: a limit below what the process has at that time
        char *pieces[64];
        for (int at = 0; at < 64; at++) {
            CHECK((pieces[at] = malloc(1 << 20)));
            pieces[at][0] = 1;
        }
        limit(RLIMIT_AS, 48 << 20);
        for (int at = 0; at < 64; at++)
            free(pieces[at]);
        small(16);
        break;
    }
    case 'd': { // data, which 800 MiB were for a while
        char *pieces[100];
        limit(RLIMIT_DATA, 1100 << 20);
        for (int at = 0; at < 100; at++) {
            CHECK((pieces[at] = malloc(8 << 20)));
            memset(pieces[at], 1, 8 << 20);
        }
        for (int at = 0; at < 100; at++)
            free(pieces[at]);
        small(700);
        // There is room for large allocations, too.
        for (int at = 0; at < 10; at++) {
            CHECK((pieces[at] = malloc(8 << 20)));
            memset(pieces[at], 1, 8 << 20);
        }
        break;
    }
    case 'e': // early: this program again, under the limit
        limit(RLIMIT_AS, 1 << 30);
        execl(words[0], words[0], "under", (char *)0);
        return 1;
    case 'u':
        free(malloc(1 << 20));
        small(800);
        break;
    case 'h': // holes between pieces
    case 'a': // one aligned piece after many others
        limit(RLIMIT_AS, 1 << 30);
        words[1][0] -= 'a' - 'A';
        execl(words[0], words[0], words[1], (char *)0);
        return 1;
    case 'H':
        burst(1);
        small(800);
        break;
    case 'A': {
        void *piece;
        burst(0);
        CHECK((piece = aligned_alloc(64, 900 << 20)));
        free(piece);
        CHECK((piece = memalign(128, 900 << 20)));
        free(piece);
        CHECK(posix_memalign(&piece, 256, 900 << 20) == 0);
        break;
    }
    case 'g': // gaps: for a small piece the C library maps as much as its alignment
        free(malloc(1 << 20));
        limit(RLIMIT_AS, 600 << 20);
        for (int round = 0; round < 3; round++) {
            void *pieces[50], *piece;
            for (int at = 0; at < 50; at++) {
                CHECK((pieces[at] = malloc(8 << 20)));
                memset(pieces[at], 1, 8 << 20);
            }
            for (int at = 0; at < 50; at++)
                free(pieces[at]);
            if (round == 0)
                CHECK(posix_memalign(&piece, 256 << 20, 1000) == 0);
            else
                CHECK((piece = round == 1 ? memalign(256 << 20, 1000) : aligned_alloc(256 << 20, 1000)));
            free(piece);
            malloc_trim(0);
        }
        break;
    case 'n': { // the number of the call
        free(malloc(1 << 20));
        struct rlimit to = {600 << 20, 600 << 20};
        CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, &to, 0) == 0);
        small(400);
        break;
    }
    case 'b': // a big piece under the limit
        limit(RLIMIT_AS, 4ul << 30);
        execl(words[0], words[0], "piece", (char *)0);
        return 1;
    case 'p': {
        free(malloc(1 << 20));
        char *piece = malloc(3500ul << 20);
        CHECK(piece);
        free(piece);
        break;
    }
    case 'm': // locked, without the right to lock more than a limit
        // Or a lower limit, if that is the maximum.
        setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){256 << 20, 256 << 20});
        if (setgid(65534) || setuid(65534))
            return 0;
        free(malloc(1 << 20));
        errno = EBADF;
        CHECK(mlockall(MCL_CURRENT) == 0 && errno == EBADF);
        free(malloc(3 << 20));
        break;
    case 'v': { // a child that uses this memory limits itself, not this process
        free(malloc(1 << 20));
        pid_t child = vfork();
        if (child == 0) {
            struct rlimit to = {64 << 20, 64 << 20};
            _exit(setrlimit(RLIMIT_AS, &to));
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        for (int at = 0; at < 100; at++)
            CHECK(malloc(8 << 20));
        break;
    }
    case 'i': // what can never be there costs nothing of what can
        CHECK(!malloc((size_t)1 << 62));
        for (int at = 0; at < 100; at++) {
            char *piece = malloc(8 << 20);
            CHECK(piece);
            piece[0] = 1;
        }
        break;
    default: { // more than the machine has
        struct sysinfo all;
        CHECK(sysinfo(&all) == 0);
        free(malloc(1 << 20));
        CHECK(!malloc((all.totalram + all.totalswap) * all.mem_unit + (1ul << 30)));
        break;
    }
    }
    return 0;
}
