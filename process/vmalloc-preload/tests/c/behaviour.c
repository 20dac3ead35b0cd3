/* The required behaviour of every malloc, for small and large sizes. It also runs without the preload: if the C library
 * does not pass, the test is wrong. */
#include "check.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <string.h>

/* Volatile pointers, so that no compiler optimizes calls of malloc. */
static void *(*volatile do_malloc)(size_t) = malloc;
static void *(*volatile do_calloc)(size_t, size_t) = calloc;
static void *(*volatile do_realloc)(void *, size_t) = realloc;
static void *(*volatile do_reallocarray)(void *, size_t, size_t) = reallocarray;
static void (*volatile do_free)(void *) = free;

static const size_t interesting[] = {0,      1,      15,     16,      17,      4095,    4096,       4097,       65536,
                                     131071, 131072, 131073, 1 << 20, 5000000, 1 << 23, 0x7fffff, 0x800001};
enum { COUNT = sizeof interesting / sizeof *interesting };

static int all(const unsigned char *bytes, size_t count, unsigned char want) {
    for (size_t at = 0; at < count; at++) {
        if (bytes[at] != want) {
            return 0;
        }
    }
    return 1;
}

static void every_size_is_aligned_and_usable(void) {
    for (int at = 0; at < COUNT; at++) {
        size_t size = interesting[at];
        errno = EBADF;
        unsigned char *memory = do_malloc(size);
        CHECK(memory != NULL && (uintptr_t)memory % 16 == 0);
        size_t usable = malloc_usable_size(memory);
        CHECK(usable >= size);
        memset(memory, 0xa5, usable);
        unsigned char *other = do_malloc(size);
        CHECK(other != NULL && other != memory);
        memset(other, 0x5a, malloc_usable_size(other));
        CHECK(all(memory, usable, 0xa5));
        do_free(other);
        do_free(memory);
        CHECK(errno == EBADF);
        unsigned char *zeros = do_calloc(size, 1);
        CHECK(zeros != NULL && all(zeros, size, 0));
        do_free(zeros);
    }
    for (size_t size = 1; size < 300000; size += 997) {
        void *memory = do_malloc(size);
        CHECK(memory != NULL && (uintptr_t)memory % 16 == 0 && malloc_usable_size(memory) >= size);
        do_free(memory);
    }
    do_free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
}

static void absurd_sizes_fail_with_enomem(void) {
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, PTRDIFF_MAX};
    unsigned char *small = do_malloc(100), *large = do_malloc(300000);
    CHECK(small != NULL && large != NULL);
    memset(small, 1, 100);
    memset(large, 2, 300000);
    for (size_t at = 0; at < sizeof absurd / sizeof *absurd; at++) {
        size_t size = absurd[at];
        void *memory = small;
        errno = 0;
        CHECK(do_malloc(size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_calloc(1, size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_realloc(small, size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_realloc(large, size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_realloc(NULL, size) == NULL && errno == ENOMEM);
        CHECK(posix_memalign(&memory, 64, size) == ENOMEM && memory == small);
        errno = 0;
        CHECK(memalign(4096, size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(aligned_alloc(4096, size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(valloc(size) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(pvalloc(size) == NULL && errno == ENOMEM);
    }
    /* Products that overflow. */
    static const size_t halves[][2] = {{SIZE_MAX, 2}, {SIZE_MAX / 2 + 1, 2}, {(size_t)1 << 32, (size_t)1 << 32}};
    for (size_t at = 0; at < sizeof halves / sizeof *halves; at++) {
        errno = 0;
        CHECK(do_calloc(halves[at][0], halves[at][1]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_calloc(halves[at][1], halves[at][0]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_reallocarray(large, halves[at][0], halves[at][1]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(do_reallocarray(small, halves[at][0], halves[at][1]) == NULL && errno == ENOMEM);
    }
    CHECK(all(small, 100, 1) && all(large, 300000, 2));
    do_free(small);
    do_free(large);
}

static void realloc_keeps_bytes_between_every_two_sizes(void) {
    for (int from = 0; from < COUNT; from++) {
        for (int to = 1; to < COUNT; to++) {
            size_t least = interesting[from] < interesting[to] ? interesting[from] : interesting[to];
            unsigned char *memory = do_malloc(interesting[from]);
            CHECK(memory != NULL);
            /* A caller may use all of the usable size. */
            size_t usable = malloc_usable_size(memory);
            size_t kept = usable < interesting[to] ? usable : interesting[to];
            memset(memory, 0x3c, usable);
            memory = do_realloc(memory, interesting[to]);
            CHECK(memory != NULL && (uintptr_t)memory % 16 == 0 && malloc_usable_size(memory) >= interesting[to]);
            CHECK(kept >= least && all(memory, kept, 0x3c));
            memset(memory, 0, interesting[to]);
            do_free(memory);
        }
        /* To a size of 0. */
        unsigned char *memory = do_malloc(interesting[from]);
        CHECK(memory != NULL && do_realloc(memory, 0) == NULL);
    }
    unsigned char *memory = do_realloc(NULL, 300000);
    CHECK(memory != NULL);
    memory = do_reallocarray(memory, 1000, 1000);
    CHECK(memory != NULL && malloc_usable_size(memory) >= 1000000);
    do_free(memory);
}

static void a_step_at_a_time(void) {
    unsigned char *memory = NULL;
    size_t held = 0;
    for (size_t size = 1; size < (size_t)20 << 20; size += size / 3 + 1000) {
        memory = do_realloc(memory, size);
        CHECK(memory != NULL && (held == 0 || (memory[0] == 9 && memory[held - 1] == 9)));
        memset(memory, 9, size);
        held = size;
    }
    for (size_t size = held; size > 10; size -= size / 5 + 1) {
        memory = do_realloc(memory, size);
        CHECK(memory != NULL && memory[0] == 9 && memory[size - 1] == 9);
    }
    do_free(memory);
}

static void alignments(void) {
    for (size_t align = 8; align <= (size_t)4 << 20; align *= 2) {
        for (int at = 0; at < COUNT - 3; at++) {
            void *memory = NULL;
            size_t size = interesting[at];
            CHECK(posix_memalign(&memory, align, size) == 0 && memory != NULL && (uintptr_t)memory % align == 0);
            memset(memory, 1, malloc_usable_size(memory));
            do_free(memory);
            memory = memalign(align, size);
            CHECK(memory != NULL && (uintptr_t)memory % align == 0 && malloc_usable_size(memory) >= size);
            /* Aligned memory may be resized, after which it may have another alignment. */
            memset(memory, 0x44, size);
            memory = do_realloc(memory, size + 70000);
            CHECK(memory != NULL && all(memory, size, 0x44));
            do_free(memory);
            memory = aligned_alloc(align, size);
            CHECK(memory != NULL && (uintptr_t)memory % align == 0);
            do_free(memory);
        }
    }
    for (size_t align = 8; align <= 16; align *= 2) {
        /* Of a size that is no multiple of 16: what ends where its last page ends is aligned for any object, too. */
        void *memory = aligned_alloc(align, 200008);
        CHECK(memory != NULL && (uintptr_t)memory % 16 == 0);
        do_free(memory);
    }
    void *memory = &memory;
    static const size_t odd[] = {0, 1, 2, 4, 3, 24, 4095, SIZE_MAX};
    for (size_t at = 0; at < sizeof odd / sizeof *odd; at++) {
        CHECK(posix_memalign(&memory, odd[at], 100) == EINVAL);
        CHECK(posix_memalign(&memory, odd[at], 1 << 20) == EINVAL && memory == &memory);
    }
    for (int at = 0; at < COUNT; at++) {
        memory = valloc(interesting[at]);
        CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
        do_free(memory);
        memory = pvalloc(interesting[at]);
        CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
        CHECK(malloc_usable_size(memory) >= (interesting[at] + 4095) / 4096 * 4096);
        do_free(memory);
    }
}

static long resident_pages(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    long size, resident;
    CHECK(fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident;
}

static void memory_goes_back_after_trim(void) {
    malloc_trim(0);
    long before = resident_pages();
    void *pieces[20];
    for (int at = 0; at < 20; at++) {
        pieces[at] = do_malloc((size_t)1 << 20);
        CHECK(pieces[at] != NULL);
        memset(pieces[at], 1, (size_t)1 << 20);
    }
    CHECK(resident_pages() - before > 20 * 256 / 2);
    for (int at = 0; at < 20; at++) {
        do_free(pieces[at]);
    }
    malloc_trim(0);
    CHECK(resident_pages() - before < 20 * 256 / 4);
}

int main(void) {
    every_size_is_aligned_and_usable();
    absurd_sizes_fail_with_enomem();
    realloc_keeps_bytes_between_every_two_sizes();
    a_step_at_a_time();
    alignments();
    memory_goes_back_after_trim();
    return 0;
}
