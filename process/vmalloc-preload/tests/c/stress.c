/* A random program of malloc, calloc, realloc, memalign, free, short-lived threads, and forks: stress SEED
 * MILLISECONDS KIND.
 *
 * Every allocation contains its size, and a byte that depends on the size at its end and on every page, so that
 * overlapping allocations of different sizes are detected. At the end everything is freed and trimmed, and the resident
 * memory must be about what it was. The same seed starts the same programs; the system schedules the threads.
 *
 * KIND is one of these. All of them hold without the preload, too.
 *   plain     no further conditions.
 *   limits    RLIMIT_AS is set while threads run, and lowered later. From then on an allocation may fail. After
 *             everything is freed, an amount must be available that the C library's malloc provides.
 *   stacks    Every thread has the smallest stack that pthread_create accepts. Threads fork on it. A timer interrupts
 *             them, and its handler runs on an alternate stack.
 *   seccomp   A filter kills the process at a system call that neither glibc's malloc nor this program needs. With
 *             half of the seeds it is installed for all threads while they run.
 *   forks     Several threads fork at once, their children fork twice more, and programs are started.
 *   handlers  A program that `forks` starts: it has one thread, and the handler of a signal forks.
 */
#include "stress.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* Threads at a time. Of `forks`: processes at a time, threads that fork, and generations of children. */
enum { THREADS = 4, PROCESSES = 16, FORKERS = 3, GENERATIONS = 3 };

static pthread_attr_t attributes;
/* The file of sizes of this process. */
static int statm;
/* The first limit of addresses in bytes. */
static const rlim_t MOST = 400 * MIB;

/* Returns false if the limit is the reason that there is no process. */
static int is_forked(pid_t pid) {
    if (pid < 0) {
        CHECK(kind == LIMITS && (errno == ENOMEM || errno == EAGAIN));
        count(&counts->failed);
        return 0;
    }
    count(&counts->forks);
    return 1;
}

static void await(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Starts this program by vfork or posix_spawn. */
static pid_t start(uint64_t seed) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    char *words[] = {"/proc/self/exe", text, "30", "handlers", NULL};
    if (seed % 2 == 0) {
        pid_t pid;
        CHECK(posix_spawn(&pid, words[0], NULL, NULL, words, environ) == 0);
        return pid;
    }
    pid_t pid = vfork();
    if (pid == 0) {
        execve(words[0], words, environ);
        _exit(127);
    }
    return pid;
}

static void fork_some(uint64_t *state, int generation);

static void descendant(uint64_t seed, int generation) {
    /* An alarm ends a deadlock. */
    alarm(120);
    uint64_t state = seed | 1;
    unsigned char *own[OWN] = {NULL};
    for (uint64_t more = 20 + next(&state) % 100; more > 0 && !late(); more--) {
        step(&state, own);
    }
    if (generation < GENERATIONS) {
        fork_some(&state, generation + 1);
    }
    leave(own);
    empty();
    _exit(0);
}

static void fork_some(uint64_t *state, int generation) {
    pid_t children[2];
    int begun = 0;
    while (begun < 2) {
        if (atomic_fetch_add(&counts->processes, 1) >= PROCESSES) {
            atomic_fetch_sub(&counts->processes, 1);
            break;
        }
        uint64_t seed = next(state);
        pid_t pid = seed % 16 < 2 ? start(seed / 16) : fork();
        if (pid == 0) {
            descendant(seed, generation);
        }
        CHECK(is_forked(pid));
        children[begun++] = pid;
    }
    while (begun > 0) {
        await(children[--begun]);
        atomic_fetch_sub(&counts->processes, 1);
    }
}

static void *forker(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u | 1;
    for (uint64_t more = 1 + next(&state) % 8; more > 0 && !late(); more--) {
        fork_some(&state, 1);
    }
    return NULL;
}

static void on_tick(int number) {
    (void)number;
    /* Some of the alternate stack. It calls nothing of malloc. */
    volatile char bytes[256];
    for (size_t at = 0; at < sizeof bytes; at++) {
        bytes[at] = 1;
    }
    count(&counts->signals);
}

/* Installs a handler for the timer of CPU time. Only threads that unblock the signal run it. */
static void tick(void (*handler)(int), int flags, long microseconds) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | flags};
    CHECK(sigaction(SIGVTALRM, &action, NULL) == 0);
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_VIRTUAL, &often, NULL) == 0);
}

static void mask_ticks(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGVTALRM);
    CHECK(pthread_sigmask(how, &set, NULL) == 0);
}

/* Gives the thread its alternate stack, or removes it. */
static void alternate(stack_t *stack, int has) {
    if (has) {
        stack->ss_size = (size_t)sysconf(_SC_MINSIGSTKSZ) + 1024;
        stack->ss_sp = mmap(NULL, stack->ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack->ss_sp != MAP_FAILED && sigaltstack(stack, NULL) == 0);
        mask_ticks(SIG_UNBLOCK);
        return;
    }
    mask_ticks(SIG_BLOCK);
    stack->ss_flags = SS_DISABLE;
    CHECK(sigaltstack(stack, NULL) == 0 && munmap(stack->ss_sp, stack->ss_size) == 0);
}

static void *thread(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u | 1;
    unsigned char *own[OWN] = {NULL};
    stack_t stack = {0};
    if (kind == STACKS) {
        alternate(&stack, 1);
    }
    unsigned rounds = 200 + (unsigned)(next(&state) % 3000);
    for (unsigned round = 0; round < rounds && !late(); round++) {
        step(&state, own);
        if (kind == STACKS && next(&state) % 512 == 0) {
            pid_t pid = fork();
            if (pid == 0) {
                leave(own);
                descendant(state, GENERATIONS);
            }
            CHECK(is_forked(pid));
            await(pid);
        }
    }
    leave(own);
    if (kind == STACKS) {
        alternate(&stack, 0);
    }
    return NULL;
}

/* Returns false if the limit is the reason that there is no thread. */
static int begin(pthread_t *to, void *(*work)(void *), uint64_t seed) {
    int error = pthread_create(to, &attributes, work, (void *)(uintptr_t)seed);
    if (error != 0) {
        CHECK(kind == LIMITS && error == EAGAIN);
        count(&counts->failed);
        return 0;
    }
    count(&counts->threads);
    return 1;
}

static void child(uint64_t seed) {
    /* An alarm ends a deadlock. */
    alarm(120);
    thread((void *)(uintptr_t)seed);
    pthread_t extra;
    if (begin(&extra, thread, seed + 1)) {
        CHECK(pthread_join(extra, NULL) == 0);
    }
    empty();
    _exit(0);
}

/* The end of the program that `forks` starts. Its child goes on with the call that the signal interrupted. */
static volatile sig_atomic_t is_child, forks_left = 6;

static void on_fork_tick(int number) {
    (void)number;
    int error = errno, status;
    if (is_child || forks_left == 0) {
        return;
    }
    forks_left--;
    pid_t pid = fork();
    if (pid == 0) {
        is_child = 1;
        alarm(60);
    } else if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        static const char text[] = "stress.c: a child of a handler failed\n";
        _exit(write(2, text, sizeof text - 1) == 0 ? 2 : 1);
    }
    errno = error;
}

static void handlers(uint64_t seed) {
    tick(on_fork_tick, 0, 500);
    uint64_t state = seed | 1;
    unsigned char *own[OWN] = {NULL};
    int more = 50;
    while (is_child ? more-- > 0 : !late() && forks_left > 0) {
        step(&state, own);
    }
    leave(own);
    empty();
    _exit(0);
}

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter rules[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    /* glibc's malloc, and its threads and forks. */
    ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(brk), ALLOW(mprotect), ALLOW(madvise), ALLOW(futex),
    ALLOW(getrandom), ALLOW(sched_getaffinity), ALLOW(clone), ALLOW(clone3), ALLOW(set_robust_list), ALLOW(rseq),
    ALLOW(rt_sigprocmask), ALLOW(exit), ALLOW(exit_group),
    /* This program. */
    ALLOW(wait4), ALLOW(write), ALLOW(pread64), ALLOW(clock_gettime),
#ifdef SYS_alarm
    ALLOW(alarm),
#else
    ALLOW(setitimer),
#endif
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

/* Confines all threads, or this thread and those that it creates. */
static void confine(int all) {
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (all) {
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    } else {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
}

/* Returns the quarters of the time that are over. */
static long quarters(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long all = (deadline.tv_sec - began.tv_sec) * 1000 + (deadline.tv_nsec - began.tv_nsec) / 1000000;
    return ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000) * 4 / all;
}

static void limit_addresses(rlim_t bytes, rlim_t most) {
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, most}) == 0);
}

/* Reads two sizes of this process in KiB: all addresses, and resident memory. */
static void read_sizes(long *all, long *resident) {
    char text[128] = {0};
    CHECK(pread(statm, text, sizeof text - 1, 0) > 0 && sscanf(text, "%ld %ld", all, resident) == 2);
    *all *= 4;
    *resident *= 4;
}

static void sleep_until_quarter(long quarter) {
    while (quarters() < quarter) {
        usleep(1000);
    }
}

/* Changes the limits while the other threads run. */
static void *changer(void *odd) {
    sleep_until_quarter(1);
    limit_addresses(MOST, MOST);
    sleep_until_quarter(2);
    long all, resident;
    read_sizes(&all, &resident);
    /* Half of what the process uses, and larger requests, so that some fail. An arena of glibc's takes 64 MiB. */
    rlim_t less = (rlim_t)resident * 512 + (odd != NULL ? 80 : 16) * MIB;
    limit_addresses(less < MOST ? less : MOST, MOST);
    largest = 32 * MIB;
    return NULL;
}

/* Allocates and frees memory that the C library's malloc provides after everything was freed: half of it in pieces of
 * 1 MiB, half of it in small ones, for which the preload leaves addresses to the C library. */
static void provide(int mib) {
    static char *pieces[64];
    char *list = NULL;
    for (int at = 0; at < mib / 2; at++) {
        CHECK((pieces[at] = malloc(MIB)) != NULL);
        memset(pieces[at], 1, MIB);
    }
    for (int at = 0; at < mib / 2 * 1024; at++) {
        char *small = malloc(1000);
        CHECK(small != NULL);
        memcpy(small, &list, sizeof list);
        list = small;
    }
    for (int at = 0; at < mib / 2; at++) {
        free(pieces[at]);
    }
    while (list != NULL) {
        char *small = list;
        memcpy(&list, small, sizeof list);
        free(small);
    }
    malloc_trim(0);
}

/* Checks that memory is available again, under the last limit and under the first. */
static void provide_all(void) {
    provide(8);
    limit_addresses(MOST, MOST);
    provide(64);
    char *one = malloc(48 * MIB);
    CHECK(one != NULL);
    memset(one, 1, 48 * MIB);
    free(one);
}

/* Makes glibc read what its arenas ask the system once, before a filter forbids it. */
static void *shrink(void *unused) {
    char *pieces[200];
    for (int at = 0; at < 200; at++) {
        CHECK((pieces[at] = malloc(3000)) != NULL);
    }
    for (int at = 0; at < 200; at++) {
        free(pieces[at]);
    }
    return unused;
}

/* Chooses the stacks of threads, and runs the first. */
static void choose_stacks(void) {
    pthread_t first;
    CHECK(pthread_attr_init(&attributes) == 0);
    if (kind == LIMITS) {
        CHECK(pthread_attr_setstacksize(&attributes, 256 << 10) == 0);
    }
    /* The smallest has room for the thread-local data of the C library and little else. */
    for (size_t bytes = 16384; kind == STACKS; bytes += 4096) {
        CHECK(bytes <= 256 << 10);
        if (pthread_attr_setstacksize(&attributes, bytes) == 0 &&
            pthread_create(&first, &attributes, shrink, NULL) == 0) {
            CHECK(pthread_join(first, NULL) == 0);
            return;
        }
    }
    CHECK(pthread_create(&first, &attributes, shrink, NULL) == 0 && pthread_join(first, NULL) == 0);
}

/* Runs the threads, and processes beside them, until the time is over. */
static void run(uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u | 1;
    int confines_all = kind == SECCOMP && next(&state) % 2 == 0;
    pthread_t limiter;
    if (kind == LIMITS) {
        CHECK(pthread_create(&limiter, NULL, changer, seed % 2 ? &limiter : NULL) == 0);
    } else if (kind == SECCOMP) {
        unsigned char *own[OWN] = {NULL};
        for (int more = 200; more > 0; more--) {
            step(&state, own);
        }
        leave(own);
        if (!confines_all) {
            confine(0);
        }
    }
    while (!late()) {
        pthread_t threads[THREADS + FORKERS];
        int begun = 0;
        for (int at = 0; at < THREADS; at++) {
            begun += begin(&threads[begun], thread, next(&state));
        }
        if (confines_all) {
            usleep((useconds_t)(next(&state) % 16384));
            confine(1);
            confines_all = 0;
        }
        for (int at = 0; kind == FORKS && at < FORKERS; at++) {
            begun += begin(&threads[begun], forker, next(&state));
        }
        for (uint64_t more = next(&state) % 4; more > 0; more--) {
            pid_t pid = fork();
            if (pid == 0) {
                child(next(&state));
            }
            if (is_forked(pid)) {
                await(pid);
            }
            next(&state);
        }
        while (begun > 0) {
            CHECK(pthread_join(threads[--begun], NULL) == 0);
        }
    }
    if (kind == LIMITS) {
        CHECK(pthread_join(limiter, NULL) == 0);
    }
}

int main(int argc, char **words) {
    CHECK(argc == 4);
    uint64_t seed = strtoull(words[1], NULL, 0);
    long milliseconds = strtol(words[2], NULL, 10);
    CHECK(milliseconds > 0);
    while (strcmp(words[3], kinds[kind]) != 0) {
        CHECK(++kind < KINDS);
    }
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(counts != MAP_FAILED);
    clock_gettime(CLOCK_MONOTONIC, &began);
    deadline = began;
    deadline.tv_sec += milliseconds / 1000;
    deadline.tv_nsec += milliseconds % 1000 * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_nsec -= 1000000000;
        deadline.tv_sec++;
    }
    alarm((unsigned)(milliseconds / 1000) + 300);
    if (kind == HANDLERS) {
        handlers(seed);
    }
    if (kind == LIMITS) {
        /* What glibc serves then must leave addresses and resident memory to others again. */
        CHECK(mallopt(M_ARENA_MAX, 1 + (int)(seed % 2)) == 1 && mallopt(M_TRIM_THRESHOLD, 128 << 10) == 1);
    }
    choose_stacks();
    if (kind == STACKS) {
        mask_ticks(SIG_BLOCK);
        tick(on_tick, SA_ONSTACK, 500);
    }
    statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    CHECK(statm >= 0);
    /* Initializes the allocator and libc's arenas. */
    free(malloc(5000000));
    malloc_trim(0);
    long all, before, after;
    read_sizes(&all, &before);
    run(seed);
    empty();
    malloc_trim(0);
    read_sizes(&all, &after);
    if (kind == LIMITS) {
        provide_all();
    }
    /* Few operations on a busy machine may take less user time than a tick of the timer. */
    CHECK(kind != STACKS || atomic_load(&counts->operations) < 10000 || atomic_load(&counts->signals) > 0);
    /* Without stdio's file, which asks the system for its kind. */
    char text[200];
    int length = snprintf(text, sizeof text,
                          "operations %lu threads %lu forks %lu failed %lu resident before %ld after %ld KiB\n",
                          atomic_load(&counts->operations), atomic_load(&counts->threads), atomic_load(&counts->forks),
                          atomic_load(&counts->failed), before, after);
    CHECK(write(1, text, (size_t)length) == length);
    /* The stacks of threads, libc's arenas, the allocator's records. The hardened profile draws random addresses and
       keeps the tags of each, some 20 KiB an area, so its records grow with the areas ever allocated. Without the
       preload (no VMALLOC_CONF) libc's arenas have the large allocations, and libc decides what stays resident. */
    const char *conf = getenv("VMALLOC_CONF");
    if (conf != NULL && strstr(conf, "hardened") == NULL) {
        /* Under a limit, addresses that are released are not used again, and the words of their pages stay: 2 MiB
           for each GiB. */
        CHECK(after - before < (kind == LIMITS ? 48 : 16) << 10);
    }
    return 0;
}
