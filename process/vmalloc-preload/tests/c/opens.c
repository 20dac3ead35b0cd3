/* Libraries that are loaded and closed, also with RTLD_DEEPBIND, which looks symbols up in the library itself first;
 * and glibc's own names. */
#include "check.h"

#include <dlfcn.h>
#include <malloc.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

typedef void *allocate(size_t);
typedef void release(void *);

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

int main(int count, char **names) {
    CHECK(count == 2);
    static const int modes[] = {RTLD_NOW, RTLD_NOW | RTLD_GLOBAL, RTLD_LAZY | RTLD_DEEPBIND};
    for (int round = 0; round < 6; round++) {
        int mode = modes[round % 3];
        void *library = dlopen(names[1], mode);
        CHECK(library != NULL);
        void *found = symbol(library, "plugin_allocate");
        allocate *give;
        memcpy(&give, &found, sizeof give);
        found = symbol(library, "plugin_free");
        release *take;
        memcpy(&take, &found, sizeof take);
        static const size_t sizes[] = {10, 100000, 200000, 3000000};
        for (int at = 0; at < 4; at++) {
            /* Its memory is freed here, by either allocator. */
            void *memory = give(sizes[at]);
            CHECK(memory != NULL && malloc_usable_size(memory) >= sizes[at]);
            memset(memory, 1, sizes[at]);
            free(memory);
            memory = realloc(give(sizes[at]), sizes[at] * 2);
            CHECK(memory != NULL);
            free(memory);
            /* The reverse, unless it calls the C library's functions. */
            if ((mode & RTLD_DEEPBIND) == 0) {
                take(malloc(sizes[at]));
            }
        }
        CHECK(dlclose(library) == 0);
    }
    for (size_t size = 100; size < 1000000; size *= 10) {
        __libc_free(malloc(size));
        free(__libc_malloc(size));
        __libc_free(realloc(__libc_calloc(1, size), size * 3));
        free(__libc_realloc(memalign(64, size), size * 3));
        __libc_free(__libc_memalign(4096, size));
    }
    return 0;
}
