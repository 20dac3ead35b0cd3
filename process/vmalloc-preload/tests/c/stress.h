/* Random operations of malloc, whose results are checked: the work of the threads and processes of stress.c. */
#ifndef STRESS_H
#define STRESS_H

#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 96, OWN = 24, TAIL = 16, MIB = 1 << 20 };

enum kind { PLAIN, LIMITS, STACKS, SECCOMP, FORKS, HANDLERS, KINDS };
static const char *const kinds[KINDS] = {"plain", "limits", "stacks", "seccomp", "forks", "handlers"};
static enum kind kind;

static _Atomic(unsigned char *) slots[SLOTS];
static struct timespec began, deadline;
static atomic_size_t largest = 8 * MIB;

/* Counts of all processes, in shared memory. */
static struct {
    atomic_ulong operations, threads, forks, failed, signals;
    atomic_int processes;
} *counts;

static void count(atomic_ulong *number) {
    atomic_fetch_add_explicit(number, 1, memory_order_relaxed);
}

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
        case 0: return 32 + next(state) % largest;
        case 1: case 2: return 32 + next(state) % (1 << 20);
        case 3: case 4: case 5: case 6: return 100000 + next(state) % 100000;
        case 7: case 8: return 4096 * (1 + next(state) % 64);
        default: return 32 + next(state) % 5000;
    }
}

/* A request may fail only where memory is limited, and with this error. */
static void fail(int error) {
    CHECK(kind == LIMITS && error == ENOMEM);
    count(&counts->failed);
}

/* Returns NULL if the request fails. */
static unsigned char *give(uint64_t *state) {
    size_t size = random_size(state), align = 16;
    void *place = NULL;
    int error = 0;
    switch (next(state) % 4) {
        case 0:
            place = calloc(1, size);
            error = errno;
            if (place != NULL) {
                const unsigned char *zeros = place;
                CHECK(zeros[0] == 0 && zeros[size / 2] == 0 && zeros[size - 1] == 0);
            }
            break;
        case 1:
            align <<= next(state) % 12;
            error = posix_memalign(&place, align, size);
            CHECK((error == 0) == (place != NULL));
            break;
        default: place = malloc(size); error = errno;
    }
    if (place == NULL) {
        fail(error);
        return NULL;
    }
    unsigned char *memory = place;
    CHECK((uintptr_t)memory % align == 0);
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
                if (memory == NULL) {
                    fail(errno);
                    verify(*place);
                    break;
                }
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
    count(&counts->operations);
}

static void leave(unsigned char **own) {
    for (int at = 0; at < OWN; at++) {
        if (own[at] != NULL) {
            verify(own[at]);
            free(own[at]);
        }
    }
}

/* Frees everything that all threads share. */
static void empty(void) {
    for (int at = 0; at < SLOTS; at++) {
        unsigned char *memory = atomic_exchange(&slots[at], NULL);
        if (memory != NULL) {
            verify(memory);
            free(memory);
        }
    }
}

#endif
