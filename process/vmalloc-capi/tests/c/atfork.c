/* The handlers of pthread_atfork of a program that has not allocated yet: one takes a lock under which another thread
 * allocates and opens streams, and one frees memory in the child. */
#include "check.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmalloc.h>

enum { FORKS = 200, CACHED = 1 << 20 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *cache;

static void lock(void) { CHECK(pthread_mutex_lock(&mutex) == 0); }

static void unlock(void) { CHECK(pthread_mutex_unlock(&mutex) == 0); }

static void drop_in_child(void) {
    vfree(cache);
    cache = vmalloc(CACHED);
    CHECK(cache != NULL);
    unlock();
}

static void *work(void *unused) {
    void *table = NULL;
    for (unsigned random = 1;;) {
        random = random * 1664525 + 1013904223;
        lock();
        if (random >> 30 != 0) {
            table = vrealloc(table, 100000 + (random >> 8) % 5000000);
            CHECK(table != NULL);
        } else {
            vfree(table);
            table = NULL;
        }
        FILE *file = fopen("/dev/null", "r");
        CHECK(file != NULL && fclose(file) == 0);
        unlock();
    }
    return unused;
}

int main(void) {
    alarm(60);
    CHECK(pthread_atfork(lock, unlock, drop_in_child) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    cache = vmalloc(CACHED);
    CHECK(cache != NULL);
    memset(cache, 1, CACHED);
    for (int at = 0; at < FORKS; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    _exit(0);
}
