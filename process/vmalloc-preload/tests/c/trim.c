// Every other area of one size is freed: after a trim hardly any of their pages are resident.
#include "resident.h"
#include <malloc.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, ALL = 100 * MIB };

int main(void) {
    // So that the C library itself unmaps each one.
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    free(malloc(MIB));
    static char *pieces[ALL / 150000 + 1];
    for (size_t bytes = 150000; bytes < 10 * MIB; bytes *= 3) {
        long before = resident();
        int count = ALL / bytes;
        for (int at = 0; at < count; at++) {
            CHECK((pieces[at] = malloc(bytes)));
            memset(pieces[at], 1, bytes);
        }
        for (int at = 0; at < count; at += 2)
            free(pieces[at]);
        malloc_trim(0);
        long live = count / 2 * (long)bytes;
        CHECK(resident() - before < live + live / 50 + 2 * MIB);
        for (int at = 1; at < count; at += 2)
            free(pieces[at]);
        malloc_trim(0);
    }
    return 0;
}
