// Difficult forks: from a signal handler that interrupts malloc, during a flush of all streams while another thread
// reads a line, and after a burst of large allocations. The argument selects one. An alarm ends a program that hangs.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int forked, failed;
static pthread_t worker;

static void on_signal(int number) {
    (void)number;
    if (!pthread_equal(pthread_self(), worker))
        return;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    failed |= waitpid(child, &status, 0) != child || status != 0;
    forked++;
}

static void *churn(void *unused) {
    static char *volatile pieces[16];
    unsigned state = 1;
    for (long round = 0; round < 3000000 && forked < 80; round++) {
        state = state * 1103515245 + 12345;
        unsigned at = state >> 16 & 15;
        free(pieces[at]);
        size_t bytes = 131072 + (state >> 8) % 700000;
        pieces[at] = malloc(bytes);
        pieces[at][bytes - 1] = 1;
    }
    for (int at = 0; at < 16; at++)
        free(pieces[at]);
    return unused;
}

static void *sleeps(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    for (;;)
        pause();
    return unused;
}

static void in_handler(int threads) {
    worker = pthread_self();
    pthread_t other;
    if (threads)
        CHECK(pthread_create(&other, 0, sleeps, 0) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGVTALRM, &action, 0) == 0);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_VIRTUAL, &often, 0) == 0);
    churn(0);
    CHECK(setitimer(ITIMER_VIRTUAL, &never, 0) == 0);
    CHECK(forked > 0 && !failed);
}

static atomic_int stop;
static char name[] = "/tmp/forks-XXXXXX";

static void *reads(void *unused) {
    FILE *file = fopen(name, "r");
    CHECK(file);
    while (!stop) {
        char *line = 0;
        size_t bytes = 0;
        rewind(file);
        CHECK(getline(&line, &bytes, file) > 300000);
        free(line);
    }
    fclose(file);
    return unused;
}

static void *flushes(void *unused) {
    while (!stop) {
        fflush(0);
        usleep(50);
    }
    return unused;
}

static void with_streams(void) {
    int made = mkstemp(name);
    CHECK(made >= 0);
    FILE *file = fdopen(made, "w");
    for (int at = 0; at < 400000; at++)
        fputc('x', file);
    fputc('\n', file);
    fclose(file);
    pthread_t threads[4];
    for (int at = 0; at < 4; at++)
        CHECK(pthread_create(&threads[at], 0, at ? reads : flushes, 0) == 0);
    for (int at = 0; at < 25; at++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            // Calls that are allowed in a child after libc's handlers ran.
            fflush(0);
            free(malloc(500000));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    for (int at = 0; at < 4; at++)
        pthread_join(threads[at], 0);
    unlink(name);
}

static long resident_kib(void) {
    long all, here;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &all, &here) == 2);
    fclose(file);
    return here * 4;
}

static void on_exit_signal(int number) {
    (void)number;
    exit(0);
}

// Children that a handler ends during a call.
static void exit_in_handler(void) {
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct itimerval soon = {{0, 0}, {0, 2000 + 700 * round}};
            signal(SIGALRM, on_exit_signal);
            setitimer(ITIMER_REAL, &soon, 0);
            for (;;)
                churn(0);
        }
        int status = 1;
        for (int turn = 0; turn < 4000 && waitpid(child, &status, WNOHANG) == 0; turn++)
            usleep(2000);
        if (status != 0) {
            kill(child, SIGKILL);
            CHECK(!"a child ended");
        }
    }
}

static void after_burst(void) {
    long before = resident_kib();
    char *pieces[64];
    for (int at = 0; at < 64; at++) {
        pieces[at] = malloc(1 << 20);
        CHECK(pieces[at]);
        memset(pieces[at], 1, 1 << 20);
    }
    for (int at = 0; at < 64; at++)
        free(pieces[at]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(resident_kib() <= before + 8192);
        // The allocator works in the child, and calloc returns zeros.
        for (int at = 0; at < 64; at++) {
            pieces[at] = at % 2 ? malloc(1 << 20) : calloc(1, 1 << 20);
            for (int byte = 0; at % 2 == 0 && byte < 1 << 20; byte++)
                CHECK(pieces[at][byte] == 0);
            memset(pieces[at], 3, 1 << 20);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // The parent's cache is unchanged.
    struct rusage start, end;
    getrusage(RUSAGE_SELF, &start);
    for (int at = 0; at < 64; at++)
        memset(pieces[at] = malloc(1 << 20), 2, 1 << 20);
    getrusage(RUSAGE_SELF, &end);
    const char *conf = getenv("VMALLOC_CONF");
    if (getenv("LD_PRELOAD") && !(conf && *conf))
        CHECK(end.ru_minflt - start.ru_minflt < 2048);
}

int main(int count, char **words) {
    CHECK(count == 2);
    alarm(40);
    switch (words[1][0]) {
    case 'h': in_handler(0); break;
    case 't': in_handler(1); break;
    case 's': with_streams(); break;
    case 'e': exit_in_handler(); break;
    default: after_burst();
    }
    return 0;
}
