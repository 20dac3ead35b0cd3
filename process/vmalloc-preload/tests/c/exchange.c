// Threads exchange areas of random sizes: each replaces one of 128 by a new one, touches its first byte, and frees the old
// one. Prints the CPU time of an operation, and the peak of resident memory. Usage: exchange OPERATIONS THREADS LEAST MOST,
// the sizes in pages.
#include "check.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/resource.h>

enum { SLOTS = 128, THREADS_MAX = 64 };

static void *slots[SLOTS];
static long operations, least, most;

static void *work(void *number) {
    uint64_t state = (uintptr_t)number * 88172645463325252u + 1;
    for (long at = 0; at < operations; at++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t pages = least + (state >> 20) % (most - least);
        char *area = malloc(pages * 4096);
        CHECK(area);
        area[0] = 1;
        free(__atomic_exchange_n(&slots[state % SLOTS], area, __ATOMIC_ACQ_REL));
    }
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 5);
    operations = atol(words[1]);
    least = atol(words[3]);
    most = atol(words[4]);
    long threads = atol(words[2]);
    CHECK(operations > 0 && threads > 0 && threads <= THREADS_MAX && least > 0 && most > least);
    pthread_t all[THREADS_MAX];
    for (long at = 0; at < threads; at++)
        CHECK(pthread_create(&all[at], NULL, work, (void *)(at + 1)) == 0);
    for (long at = 0; at < threads; at++)
        pthread_join(all[at], NULL);
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    double seconds = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("%.0f ns, %ld MiB\n", seconds * 1e9 / (operations * threads), used.ru_maxrss / 1024);
    return 0;
}
