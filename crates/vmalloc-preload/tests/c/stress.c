/* A random program of malloc, calloc, realloc, memalign, free, short-lived threads, and forks: stress SEED
 * MILLISECONDS.
 *
 * Every allocation contains its size, and a byte that depends on the size at its end and on every page, so that
 * overlapping allocations of different sizes are detected. At the end everything is freed and trimmed, and the resident
 * memory must be about what it was. The same seed starts the same programs; the system schedules the threads.
 */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 96, THREADS = 4, OWN = 24, TAIL = 16 };

static _Atomic(unsigned char *) slots[SLOTS];
static atomic_ulong operations;
static struct timespec deadline;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int late(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec >= deadline.tv_nsec);
}

static unsigned char mark(size_t size) {
    return (unsigned char)(size * 0x9e37 >> 5);
}

static void sign(unsigned char *memory, size_t size) {
    memcpy(memory, &size, sizeof size);
    memset(memory + size - TAIL, mark(size), TAIL);
    /* One byte a page, so that the pages are resident. */
    for (size_t at = 4096; at + TAIL < size; at += 4096) {
        memory[at] = mark(size);
    }
}

static size_t verify(const unsigned char *memory) {
    size_t size;
    memcpy(&size, memory, sizeof size);
    CHECK(size >= 32 && malloc_usable_size((void *)(uintptr_t)memory) >= size);
    for (int at = 0; at < TAIL; at++) {
        CHECK(memory[size - TAIL + (size_t)at] == mark(size));
    }
    for (size_t at = 4096; at + TAIL < size; at += 4096) {
        CHECK(memory[at] == mark(size));
    }
    return size;
}

static size_t random_size(uint64_t *state) {
    switch (next(state) % 16) {
        case 0: return 32 + next(state) % (8 << 20);
        case 1: case 2: return 32 + next(state) % (1 << 20);
        case 3: case 4: case 5: case 6: return 100000 + next(state) % 100000;
        case 7: case 8: return 4096 * (1 + next(state) % 64);
        default: return 32 + next(state) % 5000;
    }
}

static unsigned char *give(uint64_t *state) {
    size_t size = random_size(state);
    unsigned char *memory;
    switch (next(state) % 4) {
        case 0:
            memory = calloc(1, size);
            CHECK(memory != NULL && memory[0] == 0 && memory[size / 2] == 0 && memory[size - 1] == 0);
            break;
        case 1: {
            size_t align = (size_t)16 << next(state) % 12;
            void *place = NULL;
            CHECK(posix_memalign(&place, align, size) == 0 && (uintptr_t)place % align == 0);
            memory = place;
            break;
        }
        default: memory = malloc(size); CHECK(memory != NULL);
    }
    CHECK((uintptr_t)memory % 16 == 0);
    sign(memory, size);
    return memory;
}

static void step(uint64_t *state, unsigned char **own) {
    unsigned char **place = &own[next(state) % OWN];
    switch (next(state) % 8) {
        case 0: case 1:
            if (*place != NULL) {
                size_t old = verify(*place), size = random_size(state);
                unsigned char *memory = realloc(*place, size);
                CHECK(memory != NULL);
                size_t kept;
                memcpy(&kept, memory, sizeof kept);
                CHECK(kept == old && (size <= old || memory[old - 1] == mark(old)));
                sign(memory, size);
                *place = memory;
                break;
            } /* fall through */
        case 2: case 3: case 4:
            if (*place != NULL) {
                verify(*place);
                free(*place);
            }
            *place = give(state);
            break;
        case 5: {
            /* Another thread frees it. */
            unsigned char *other = atomic_exchange(&slots[next(state) % SLOTS], *place);
            *place = other;
            break;
        }
        case 6:
            if (*place != NULL) {
                verify(*place);
                free(*place);
                *place = NULL;
            }
            break;
        default:
            errno = 0;
            if (next(state) % 64 == 0) {
                CHECK(malloc(PTRDIFF_MAX - next(state) % 9999) == NULL && errno == ENOMEM);
            }
            if (next(state) % 256 == 0) {
                malloc_trim(0);
            }
    }
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
}

static void leave(unsigned char **own) {
    for (int at = 0; at < OWN; at++) {
        if (own[at] != NULL) {
            verify(own[at]);
            free(own[at]);
        }
    }
}

static void *thread(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u | 1;
    unsigned char *own[OWN] = {NULL};
    unsigned rounds = 200 + (unsigned)(next(&state) % 3000);
    for (unsigned round = 0; round < rounds && !late(); round++) {
        step(&state, own);
    }
    leave(own);
    return NULL;
}

static void child(uint64_t seed) {
    /* An alarm ends a deadlock. */
    alarm(120);
    thread((void *)(uintptr_t)seed);
    pthread_t extra;
    CHECK(pthread_create(&extra, NULL, thread, (void *)(uintptr_t)(seed + 1)) == 0);
    CHECK(pthread_join(extra, NULL) == 0);
    for (int at = 0; at < SLOTS; at++) {
        unsigned char *memory = atomic_exchange(&slots[at], NULL);
        if (memory != NULL) {
            verify(memory);
            free(memory);
        }
    }
    _exit(0);
}

static long resident_pages(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    long size, resident;
    CHECK(fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident;
}

int main(int count, char **words) {
    CHECK(count == 3);
    uint64_t seed = strtoull(words[1], NULL, 0), state = seed * 0x9e3779b97f4a7c15u | 1;
    long milliseconds = strtol(words[2], NULL, 10);
    CHECK(milliseconds > 0);
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += milliseconds / 1000;
    deadline.tv_nsec += milliseconds % 1000 * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_nsec -= 1000000000;
        deadline.tv_sec++;
    }
    alarm((unsigned)(milliseconds / 1000) + 300);
    /* Initializes the allocator and libc's arenas. */
    free(malloc(5000000));
    malloc_trim(0);
    long before = resident_pages();
    unsigned long threads_ever = 0, forks = 0;
    while (!late()) {
        pthread_t threads[THREADS];
        for (int at = 0; at < THREADS; at++) {
            CHECK(pthread_create(&threads[at], NULL, thread, (void *)(uintptr_t)next(&state)) == 0);
            threads_ever++;
        }
        for (uint64_t more = next(&state) % 4; more > 0; more--) {
            pid_t pid = fork();
            CHECK(pid >= 0);
            if (pid == 0) {
                child(next(&state));
            }
            int status;
            CHECK(waitpid(pid, &status, 0) == pid && status == 0);
            forks++;
            next(&state);
        }
        for (int at = 0; at < THREADS; at++) {
            CHECK(pthread_join(threads[at], NULL) == 0);
        }
    }
    for (int at = 0; at < SLOTS; at++) {
        unsigned char *memory = atomic_exchange(&slots[at], NULL);
        if (memory != NULL) {
            verify(memory);
            free(memory);
        }
    }
    malloc_trim(0);
    long after = resident_pages();
    printf("operations %lu threads %lu forks %lu resident before %ld after %ld KiB\n", atomic_load(&operations), threads_ever,
           forks, before * 4, after * 4);
    /* The stacks of threads, libc's arenas, the allocator's records. The hardened profile draws random addresses and
       keeps the tags of each, some 20 KiB an area, so its records grow with the areas ever allocated. Without the
       preload (no VMALLOC_CONF) libc's arenas have the large allocations, and libc decides what stays resident. */
    const char *conf = getenv("VMALLOC_CONF");
    if (conf != NULL && strstr(conf, "hardened") == NULL) {
        CHECK(after - before < (16 << 20) / 4096);
    }
    return 0;
}
