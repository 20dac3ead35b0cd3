// A program installs a filter that allows only the system calls of the C library's malloc and kills it for any other.
// Then it uses memory. The argument selects the method: p by prctl, s by syscall, b before any large allocation, a by
// its own assembly.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter rules[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(read), ALLOW(write), ALLOW(exit_group), ALLOW(exit), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(brk),
    ALLOW(mprotect), ALLOW(madvise), ALLOW(futex), ALLOW(getrandom), ALLOW(rt_sigprocmask), ALLOW(wait4), ALLOW(clone),
    ALLOW(set_robust_list), ALLOW(rseq),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

static void confine(char how) {
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (how == 's') {
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    } else if (how == 'a') {
        long answer = SYS_seccomp;
        __asm__ volatile("syscall" : "+a"(answer) : "D"(1L), "S"(0L), "d"(&program) : "rcx", "r11", "memory");
        CHECK(answer == 0);
    } else {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
}

static void use(void) {
    char *pieces[16] = {0};
    unsigned state = 1;
    for (int round = 0; round < 1500; round++) {
        state = state * 1103515245 + 12345;
        unsigned at = state >> 16 & 15;
        free(pieces[at]);
        size_t bytes = 131072 + (state >> 8) % (4 << 20);
        pieces[at] = round % 3 ? malloc(bytes) : calloc(1, bytes);
        CHECK(pieces[at]);
        pieces[at][bytes - 1] = 1;
    }
    char *one = 0, *other = 0;
    for (size_t bytes = 1 << 20; bytes <= 32 << 20; bytes *= 2) {
        one = realloc(one, bytes), other = realloc(other, bytes);
        CHECK(one && other);
        memset(one, 1, bytes), memset(other, 1, bytes);
    }
    malloc_trim(0);
}

int main(int count, char **words) {
    CHECK(count == 2);
    char how = words[1][0];
    if (how != 'b') {
        // Pages are moved before the filter is installed, so that a descriptor for that is open.
        char *one = 0, *other = 0;
        for (size_t bytes = 1 << 20; bytes <= 32 << 20; bytes *= 2)
            one = realloc(one, bytes), other = realloc(other, bytes), memset(one, 1, bytes), memset(other, 1, bytes);
        free(one), free(other);
    }
    confine(how);
    use();
    _exit(0);
}
