/* Each first call in a thread with the smallest stack, in a process of its own. */
#include "kinds.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void map(void) {
    uint64_t none = 5;
    CHECK(vmap(&none, 1, PROT_READ) == NULL);
}

static void *begin(void *part) {
    void (*const *call)(void) = part;
    (*call)();
    return NULL;
}

int main(void) {
    void (*parts[])(void) = {areas, objects, frames, map};
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_attr_t attributes;
            pthread_t thread;
            CHECK(pthread_attr_init(&attributes) == 0);
            /* What is less than the least of the C library is an error there. */
            CHECK(pthread_attr_setstacksize(&attributes, 16384) == 0 ||
                  pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)) == 0);
            CHECK(pthread_attr_setguardsize(&attributes, 1 << 20) == 0);
            CHECK(pthread_create(&thread, &attributes, begin, &parts[at]) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}
