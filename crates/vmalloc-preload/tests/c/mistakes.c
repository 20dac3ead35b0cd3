/* One mistake with a large piece, chosen by name: the program has to end by abort, and to say which address it was. */
#include "check.h"

#include <malloc.h>
#include <signal.h>
#include <string.h>

static void *volatile held;

int main(int count, char **names) {
    CHECK(count == 2);
    const char *name = names[1];
    held = malloc(1000000);
    void *at = strcmp(name, "inside") == 0 ? (char *)held + 64 : held;
    /* Not through stdio: its buffer is none of this test's memory. */
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
        /* More than what is in front of it on its first page. */
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
