/* One mistake with a large allocation, chosen by name: the program must end by abort, and report the address. */
#include "check.h"

#include <malloc.h>
#include <signal.h>
#include <string.h>

/* Functions of C23, which common C libraries lack. */
void free_sized(void *, size_t) __attribute__((weak));
void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));

static void *volatile held;

static int sized(const char *name) {
    held = aligned_alloc(8192, 1000000);
    fprintf(stderr, "%zx\n", (size_t)held);
    if (strcmp(name, "sized right") == 0) {
        free_aligned_sized(held, 8192, 1000000);
        held = realloc(calloc(1000, 1000), 1500000);
        free_sized(realloc(held, 1400000), 1400000);
        free_sized(malloc(10), 10);
        free_sized(NULL, 3);
    } else if (strcmp(name, "sized wrong") == 0) {
        free_sized(held, 1000001);
    } else if (strcmp(name, "sized odd") == 0) {
        free_aligned_sized(held, 24, 1000000);
    } else {
        free_aligned_sized(held, 1 << 30, 1000000);
    }
    return 0;
}

int main(int count, char **names) {
    CHECK(count == 2);
    const char *name = names[1];
    if (strncmp(name, "sized", 5) == 0) {
        return sized(name);
    }
    held = malloc(1000000);
    void *at = strcmp(name, "inside") == 0 ? (char *)held + 64 : held;
    /* Not through buffered stdio, whose memory is not part of this test. */
    fprintf(stderr, "%zx\n", (size_t)at);
    if (strcmp(name, "none") != 0 && at == held) {
        free(held);
    }
    held = at;
    if (strcmp(name, "use") == 0) {
        *(volatile char *)held = 1;
        return 0;
    }
    if (strcmp(name, "read") == 0) {
        return *(volatile char *)held;
    }
    if (strcmp(name, "under") == 0) {
        /* Farther than the start of its first page. */
        held = malloc(1000000);
        fprintf(stderr, "%zx\n", (size_t)held - 5000);
        ((volatile char *)held)[-5000] = 1;
        return 0;
    }
    if (strcmp(name, "raise") == 0) {
        raise(SIGSEGV);
        return 0;
    }
    if (strcmp(name, "null") == 0) {
        held = NULL;
        *(volatile char *)held = 1;
    }
    if (strcmp(name, "over") == 0) {
        held = malloc(1000000);
        fprintf(stderr, "%zx\n", (size_t)held + malloc_usable_size(held));
        ((volatile char *)held)[malloc_usable_size(held)] = 1;
        return 0;
    }
    if (strcmp(name, "realloc") == 0) {
        held = realloc(held, 2000000);
    } else if (strcmp(name, "usable") == 0) {
        return malloc_usable_size(held) == 1;
    } else {
        free(held);
    }
    return 0;
}
