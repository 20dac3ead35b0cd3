// Threads use large memory while the first thread installs a filter for all of them (SECCOMP_FILTER_FLAG_TSYNC), which
// kills the process for a system call that glibc's malloc does not make. Each of several processes does so once. The
// first argument is their number. The second is "threads", or "first": then the process has one thread, whose first
// large free comes just before the filter, and may have started another.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 3 };

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter rules[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(brk), ALLOW(mprotect), ALLOW(madvise), ALLOW(futex),
    ALLOW(getrandom), ALLOW(exit_group), ALLOW(clock_gettime), ALLOW(clock_nanosleep),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

static atomic_int ready;

static void *churn(void *trims) {
    for (int round = 0;; round++) {
        char *one = calloc(1, 300000);
        for (size_t bytes = 1 << 20; bytes <= 8 << 20; bytes *= 2) {
            one = realloc(one, bytes);
            CHECK(one);
            for (size_t at = 0; at < bytes; at += 4096)
                one[at] = 1;
        }
        free(one);
        if (trims && round % 16 == 0)
            malloc_trim(0);
        if (round == ROUNDS)
            atomic_fetch_add(&ready, 1);
    }
}

static void start_threads(int process) {
    pthread_t thread;
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_create(&thread, 0, churn, at == 0 ? &ready : 0) == 0);
    while (atomic_load(&ready) < THREADS)
        usleep(1000);
    usleep(process % 8 * 1000);
}

static void free_first(void) {
    char *one = malloc(64 << 20);
    CHECK(one);
    memset(one, 1, 64 << 20);
    free(one);
}

static void confine(int process, int is_first) {
    if (is_first)
        free_first();
    else
        start_threads(process);
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    usleep(30000);
    _exit(0);
}

int main(int count, char **words) {
    CHECK(count == 3);
    for (int process = atoi(words[1]); process > 0; process--) {
        pid_t pid = fork();
        if (pid == 0)
            confine(process, strcmp(words[2], "first") == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(status == 0);
    }
    return 0;
}
