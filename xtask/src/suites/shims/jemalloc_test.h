/* Stands in for the header that jemalloc's configure makes, so that its tests of the C interface call the C library's
   functions. The private control interface says yes to everything, and that sizes end where C's pointers do. */
#pragma once
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE_T_MAX SIZE_MAX
#define LG_SIZEOF_PTR 3
#define BUFERROR_BUF 64
#define TEST_MALLOC_SIZE malloc_usable_size
#define JEMALLOC_FORMAT_PRINTF(format, first)
#define JEMALLOC_DIAGNOSTIC_PUSH
#define JEMALLOC_DIAGNOSTIC_POP
#define JEMALLOC_DIAGNOSTIC_IGNORE_ALLOC_SIZE_LARGER_THAN
#define malloc_snprintf snprintf
#define malloc_printf(...) fprintf(stderr, __VA_ARGS__)
#define malloc_cprintf(write, with, ...) fprintf(stderr, __VA_ARGS__)
#define malloc_vcprintf(write, with, format, list) vfprintf(stderr, format, list)
#define not_reached() abort()
#define unreachable() abort()
#undef assert
#define assert(holds) ((holds) ? (void)0 : (fprintf(stderr, "not so: %s\n", #holds), abort()))

static void (*test_hooks_libc_hook)(void);
static void (*test_hooks_arena_new_hook)(void);

static inline size_t nallocx(size_t size, int flags) {
    (void)flags;
    return size;
}
static inline void set_errno(int to) {
    errno = to;
}
static inline int get_errno(void) {
    return errno;
}
static inline int buferror(int error, char *text, size_t size) {
    return snprintf(text, size, "error %d", error) < 0;
}
static inline int mallctl(const char *name, void *old, size_t *size, void *value, size_t value_size) {
    (void)name, (void)value, (void)value_size;
    if (old != NULL)
        memset(old, 1, *size);
    return 0;
}
static inline int mallctlnametomib(const char *name, size_t *mib, size_t *length) {
    (void)name;
    memset(mib, 0, *length * sizeof *mib);
    return 0;
}
static inline int mallctlbymib(const size_t *mib, size_t length, void *old, size_t *size, void *value, size_t value_size) {
    (void)mib, (void)length, (void)size, (void)value, (void)value_size;
    *(size_t *)old = PTRDIFF_MAX;
    return 0;
}

#ifdef __cplusplus
extern "C" {
#endif
#include "test/test.h"
#ifdef __cplusplus
}
#endif
