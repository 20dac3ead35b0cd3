/* Calls each function of wraps.c, with small sizes and large ones. */
#include "check.h"
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static void use(void *memory, size_t align, size_t size) {
    CHECK(memory != NULL && (size_t)memory % align == 0);
    memset(memory, 1, size);
    free(memory);
}

int main(void) {
    for (size_t size = 100; size < 1 << 24; size *= 100) {
        use(malloc(size), 16, size);
        use(calloc(3, size), 16, 3 * size);
        use(realloc(malloc(size), 2 * size), 16, 2 * size);
        use(memalign(256, size), 256, size);
        use(valloc(size), 4096, size);
        use(pvalloc(size), 4096, size);
        use(reallocarray(NULL, 2, size), 16, 2 * size);
    }
    return 0;
}
