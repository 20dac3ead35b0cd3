/* Loaded by loads.c: its constructor, under the loader's lock, waits for a thread that makes the first large allocation. */
#include <pthread.h>
#include <stdlib.h>

static void *allocate(void *unused) {
    free(malloc(1 << 20));
    return unused;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, allocate, NULL) != 0 || pthread_join(thread, NULL) != 0) {
        abort();
    }
}
