// A program frees a burst of large memory, and then allocates small memory alone: its cache decays.
#include "resident.h"
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, PIECES = 24 };

int main(void) {
    long before = resident();
    char *pieces[PIECES];
    for (int at = 0; at < PIECES; at++) {
        CHECK((pieces[at] = malloc(4 * MIB)));
        memset(pieces[at], 1, 4 * MIB);
    }
    for (int at = 0; at < PIECES; at++)
        free(pieces[at]);
    // Far more time than the decay, which the test sets, and more calls than release all of it in slices.
    for (int turn = 0; turn < 200; turn++) {
        usleep(2000);
        for (int at = 0; at < 2000; at++) {
            char *volatile piece = malloc(100);
            CHECK(piece);
            free(piece);
        }
    }
    CHECK(resident() - before < 4 * MIB);
    return 0;
}
