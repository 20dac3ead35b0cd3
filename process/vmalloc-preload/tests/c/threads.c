/* Threads that free other threads' memory, short-lived threads, concurrent forks, and fork handlers that allocate and
 * free large memory. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, SLOTS = 64, ROUNDS = 4000, FORKS = 20 };

static _Atomic(unsigned char *) slots[SLOTS];

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void work(unsigned seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        unsigned kind = next(&seed) % 16;
        size_t size = 16 + next(&seed) % (kind == 0 ? 3000000 : kind < 8 ? 300000 : 1000);
        unsigned char *memory = kind % 3 == 0 ? calloc(1, size) : malloc(size);
        CHECK(memory != NULL);
        if (kind % 5 == 0) {
            size += next(&seed) % 500000;
            memory = realloc(memory, size);
            CHECK(memory != NULL);
        }
        /* Both ends must match, or another caller has written there. */
        memcpy(memory, &size, sizeof size);
        memory[size - 1] = 0x77;
        memory = atomic_exchange(&slots[next(&seed) % SLOTS], memory);
        if (memory != NULL) {
            memcpy(&size, memory, sizeof size);
            CHECK(size >= 16 && memory[size - 1] == 0x77);
            free(memory);
        }
    }
}

static void *thread(void *seed) {
    work((unsigned)(size_t)seed, ROUNDS);
    return NULL;
}

static void *short_lived(void *seed) {
    work((unsigned)(size_t)seed, 10);
    return NULL;
}

/* A thread that ends at its next cancellation point: no call of malloc is one, even if it releases much memory. */
static void *cancelled(void *value) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (int at = 0; at < 3; at++) {
        void *memory = realloc(malloc((size_t)96 << 20), (size_t)120 << 20);
        CHECK(memory != NULL);
        free(memory);
    }
    return value;
}

static void *volatile in_handler;

static void handler(void) {
    free(in_handler);
    in_handler = malloc(400000);
    CHECK(in_handler != NULL);
}

/* Before the first large allocation: the program's handlers must not run before the library's because of that. */
__attribute__((constructor)) static void early(void) {
    CHECK(pthread_atfork(handler, handler, handler) == 0);
}

int main(void) {
    /* An alarm ends a deadlock. */
    alarm(300);
    pthread_t threads[THREADS];
    void *value;
    CHECK(pthread_create(&threads[0], NULL, cancelled, &value) == 0);
    CHECK(pthread_join(threads[0], &value) == 0 && value == &value);
    for (size_t at = 0; at < THREADS; at++) {
        CHECK(pthread_create(&threads[at], NULL, thread, (void *)(at + 1)) == 0);
    }
    for (int at = 0; at < FORKS; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(120);
            work(1000u + (unsigned)at, 100);
            /* A child of a child. */
            pid_t grandchild = fork();
            if (grandchild == 0) {
                work(2000u + (unsigned)at, 10);
                _exit(0);
            }
            int status;
            CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        pthread_t extra;
        CHECK(pthread_create(&extra, NULL, short_lived, (void *)(size_t)(at + 100)) == 0);
        CHECK(pthread_join(extra, NULL) == 0);
    }
    for (size_t at = 0; at < THREADS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    for (int at = 0; at < SLOTS; at++) {
        free(atomic_exchange(&slots[at], NULL));
    }
    return 0;
}
