/* A thread that was cancelled makes calls, each kind in a process of its own. No call ends it: none is a cancellation
   point. Nor does one prevent the end of the program after a mistake. */
#include "kinds.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int returned;

static void twice(void) {
    void *area = vmalloc(1 << 20);
    vfree(area);
    vfree(area);
}

static void *cancelled(void *part) {
    void (*const *call)(void) = part;
    CHECK(pthread_cancel(pthread_self()) == 0);
    (*call)();
    returned = 1;
    pthread_testcancel();
    return NULL;
}

static void run(void (*part)(void)) {
    pthread_t thread;
    void *answer;
    CHECK(pthread_create(&thread, NULL, cancelled, &part) == 0 && pthread_join(thread, &answer) == 0);
    CHECK(returned && answer == PTHREAD_CANCELED);
    /* No lock was left held. */
    alarm(60);
    areas();
    objects();
    frames();
    pid_t child = fork();
    if (child == 0) {
        areas();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    void (*const parts[])(void) = {areas, objects, frames, twice};
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (parts[at] == twice) {
                close(STDERR_FILENO);
            }
            run(parts[at]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(parts[at] == twice ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT : status == 0);
    }
    return 0;
}
