// No thread can read another thread's data in freed memory: after a free, a shrink, or a growth that moves.
#include "check.h"
#include <pthread.h>
#include <string.h>

static const char SECRET[16] = "SECRET-KEY-12345";

static void write_all(char *area, size_t bytes) {
    for (size_t at = 0; at + sizeof SECRET <= bytes; at += sizeof SECRET)
        memcpy(area + at, SECRET, sizeof SECRET);
}

static void *keeper(void *nothing) {
    for (int at = 0; at < 40; at++) {
        size_t bytes = 300000 + at * 150000;
        char *area = malloc(bytes);
        CHECK(area);
        write_all(area, bytes);
        if (at % 2)
            CHECK((area = realloc(area, at % 4 == 1 ? bytes / 2 : 3 * bytes)));
        free(area);
    }
    return nothing;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, keeper, 0) == 0 && pthread_join(thread, 0) == 0);
    for (int at = 1; at < 20; at++) {
        size_t bytes = at * 700000;
        char *area = malloc(bytes);
        CHECK(area);
        CHECK(!memmem(area, bytes, SECRET, 10));
    }
    return 0;
}
