/* Loaded and closed by opens.c: allocates in its constructor and leaves memory allocated. */
#include <stdlib.h>
#include <string.h>

static void *held;

__attribute__((constructor)) static void begin(void) {
    held = malloc(500000);
    memset(held, 1, 500000);
}

__attribute__((destructor)) static void end(void) {
    free(held);
}

void *plugin_allocate(size_t size) {
    return malloc(size);
}

void plugin_free(void *memory) {
    free(memory);
}
