// 600 MiB of buffers are freed, then 400 MiB of small objects are allocated: cached memory must leave room for them.
#include "check.h"
#include <string.h>

int main(void) {
    static char *pieces[150];
    for (int at = 0; at < 150; at++) {
        CHECK((pieces[at] = malloc(4 << 20)));
        memset(pieces[at], 1, 4 << 20);
    }
    for (int at = 0; at < 150; at++)
        free(pieces[at]);
    for (int at = 0; at < 400 << 10; at++) {
        char *piece = malloc(1000);
        CHECK(piece);
        piece[0] = piece[999] = 1;
    }
    return 0;
}
