/* One mistake, chosen by name: the program must end by abort, and report the address. */
#include "check.h"
#include "vmalloc.h"

#include <string.h>

/* A volatile pointer, so that no compiler warns of the mistake or optimizes by it. */
static void *volatile held;

int main(int count, char **names) {
    CHECK(count == 2);
    held = vmalloc(100000);
    CHECK(held != NULL);
    char *inside = (char *)held + 4096, *area = held;
    static char unknown[64];
    void *at = area;
    const char *name = names[1];
    if (strcmp(name, "twice") == 0 || strcmp(name, "kvtwice") == 0 || strcmp(name, "usable") == 0) {
        vfree(held);
    } else if (strcmp(name, "inside") == 0 || strcmp(name, "realloc") == 0) {
        at = inside;
    } else if (strcmp(name, "unknown") == 0) {
        at = unknown;
    }
    held = at;
    printf("%zx\n", (size_t)at);
    fflush(stdout);
    if (strcmp(name, "kvtwice") == 0) {
        kvfree(held);
    } else if (strcmp(name, "usable") == 0) {
        (void)vmalloc_usable_size(held);
    } else if (strcmp(name, "realloc") == 0) {
        held = vrealloc(held, 5);
    } else {
        vfree(held);
    }
    return 0;
}
