/* A process that is the first of a namespace of processes, and its child, the first of another: both have number 1.
   The frames are the parent's. Ends with 77 if the system denies namespaces. */
#include "check.h"
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmalloc.h>

static void in_child(void (*run)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(getpid() == 1);
        run();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static struct vm_frames frames;
static volatile char *view;

static void inner(void) {
    struct vm_frames own = {0, 0};
    errno = 0;
    CHECK(vm_alloc_frames(&own, 1) == -1 && errno == EPERM);
    errno = 0;
    CHECK(vmap(&frames.first, 1, PROT_READ) == NULL && errno == EPERM);
    vunmap((const void *)view);
    vm_free_frames(&frames);
    CHECK(view[0] == 1);
}

static void outer(void) {
    CHECK(vm_alloc_frames(&frames, 1) == 0);
    view = vmap(&frames.first, 1, PROT_READ | PROT_WRITE);
    CHECK(view != NULL);
    view[0] = 1;
    CHECK(unshare(CLONE_NEWPID) == 0);
    in_child(inner);
    CHECK(view[0] == 1);
}

int main(void) {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        return 77;
    }
    in_child(outer);
    return 0;
}
