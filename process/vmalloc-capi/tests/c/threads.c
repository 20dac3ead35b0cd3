/* Threads that free other threads' areas, and concurrent forks. */
#include "check.h"
#include "vmalloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, SLOTS = 32, ROUNDS = 3000, FORKS = 20 };

static _Atomic(unsigned char *) slots[SLOTS];

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void work(unsigned seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        size_t size = 1 + next(&seed) % (next(&seed) % 8 == 0 ? 2000000 : 100000);
        unsigned char *area = kvmalloc(size < 16 ? 16 : size);
        CHECK(area != NULL);
        /* Both ends must match, or another caller has written there. */
        size_t end = size < 16 ? 15 : size - 1;
        memcpy(area, &end, sizeof end);
        area[end] = 0x77;
        area = atomic_exchange(&slots[next(&seed) % SLOTS], area);
        if (area != NULL) {
            memcpy(&end, area, sizeof end);
            CHECK(end >= 15 && area[end] == 0x77);
            kvfree(area);
        }
    }
}

static void *thread(void *seed) {
    work((unsigned)(size_t)seed, ROUNDS);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (size_t at = 0; at < THREADS; at++) {
        CHECK(pthread_create(&threads[at], NULL, thread, (void *)(at + 1)) == 0);
    }
    for (int at = 0; at < FORKS; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(120);
            work(1000u + (unsigned)at, 100);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (size_t at = 0; at < THREADS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    for (int at = 0; at < SLOTS; at++) {
        kvfree(atomic_exchange(&slots[at], NULL));
    }
    struct vmalloc_counts counts;
    CHECK(vmalloc_stats(&counts, sizeof counts) == 0 && counts.live_bytes == 0);
    return 0;
}
