/* Stands in for rpmalloc's own header: its tests call the C library's functions. */
#pragma once
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RPMALLOC_GROW_OR_FAIL 1
#define RPMALLOC_NO_PRESERVE 2
#define rpmalloc malloc
#define rpcalloc calloc
#define rprealloc realloc
#define rpfree free
#define rpmalloc_usable_size malloc_usable_size

typedef struct {
    void (*error_callback)(const char *message);
    size_t page_size;
    size_t span_map_count;
} rpmalloc_config_t;

static inline void *rpaligned_alloc(size_t alignment, size_t size) {
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) == 0 ? memory : NULL;
}
static inline void *rpaligned_realloc(void *old, size_t alignment, size_t size, size_t old_size, unsigned flags) {
    if (flags & RPMALLOC_GROW_OR_FAIL)
        return NULL;
    void *memory = rpaligned_alloc(alignment, size);
    size_t held = old_size ? old_size : malloc_usable_size(old);
    if (memory == NULL)
        return NULL;
    if (old != NULL && !(flags & RPMALLOC_NO_PRESERVE))
        memcpy(memory, old, held < size ? held : size);
    free(old);
    return memory;
}
static inline int rpmalloc_initialize(void) {
    return 0;
}
static inline int rpmalloc_initialize_config(const rpmalloc_config_t *config) {
    (void)config;
    return 0;
}
static inline void rpmalloc_finalize(void) {}
static inline void rpmalloc_thread_initialize(void) {}
static inline void rpmalloc_thread_finalize(int release) {
    (void)release;
}
