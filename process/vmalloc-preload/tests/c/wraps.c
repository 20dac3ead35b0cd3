/* Preloaded before the library, as libc_malloc_debug.so may be: each function calls glibc's own of that name. */
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_valloc(size_t);
extern void *__libc_pvalloc(size_t);
extern void __libc_free(void *);

void *malloc(size_t size) {
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    return __libc_realloc(memory, size);
}

void *memalign(size_t align, size_t size) {
    return __libc_memalign(align, size);
}

void *valloc(size_t size) {
    return __libc_valloc(size);
}

void *pvalloc(size_t size) {
    return __libc_pvalloc(size);
}

void free(void *memory) {
    __libc_free(memory);
}
