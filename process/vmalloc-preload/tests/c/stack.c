// All operations of malloc on a thread with the smallest possible stack: the first large allocation of the process,
// misses, purges, growth, forks. The exit status is the number of the failed case.
#include "check.h"
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *first(void *unused) {
    char *piece = malloc(300000);
    CHECK(piece);
    piece[0] = 1;
    piece = realloc(piece, 900000);
    CHECK(piece && piece[0] == 1);
    free(piece);
    return unused;
}

static void *many(void *unused) {
    char *pieces[64] = {0};
    unsigned state = 1;
    for (int round = 0; round < 600; round++) {
        state = state * 1103515245 + 12345;
        unsigned at = state >> 16 & 63;
        free(pieces[at]);
        size_t bytes = 131072 + (state >> 8) % 3000000;
        pieces[at] = round % 3 ? malloc(bytes) : calloc(1, bytes);
        CHECK(pieces[at]);
        pieces[at][bytes - 1] = 1;
        if (round % 5 == 0) {
            pieces[at] = realloc(pieces[at], 200000 + (state >> 3) % 9000000);
            CHECK(pieces[at]);
        }
        if (round % 200 == 0)
            malloc_trim(0);
    }
    for (int at = 0; at < 64; at++)
        free(pieces[at]);
    return unused;
}

static void *forks(void *unused) {
    free(malloc(5000000));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        first(0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return unused;
}

static void on_least_stack(void *(*work)(void *)) {
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 16384) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, &attributes, work, 0) == 0);
    CHECK(pthread_join(thread, 0) == 0);
}

int main(void) {
    void *(*works[])(void *) = {first, many, forks};
    for (int work = 0; work < 3; work++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            on_least_stack(works[work]);
            on_least_stack(many);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status)
            return work + 1;
    }
    return 0;
}
