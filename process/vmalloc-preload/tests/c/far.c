// Unallocated addresses are inaccessible: far from an area, at former areas, and at addresses that never had one. With
// an argument: the cost of a fork after many areas were allocated and freed.
#include "check.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static long table_kbytes(void) {
    char line[256];
    long kbytes = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmPTE: %ld", &kbytes) == 1)
            break;
    fclose(status);
    return kbytes;
}

static void churn(void) {
    static char *kept[1009];
    unsigned seed = 1;
    for (int pair = 0; pair < 16000; pair++) {
        int at = rand_r(&seed) % 1009;
        free(kept[at]);
        CHECK((kept[at] = malloc(1 + rand_r(&seed) % 70000)));
        kept[at][0] = 1;
    }
}

// Returns 1 if a child that writes to `count` addresses faults.
static int faults(char *from, long step, int count) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        for (int at = 0; at < count; at++)
            *(volatile char *)(from + at * step) = 0x55;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

// A process that aborts leaves a core file of its memory, not of the whole window.
static void core(void) {
    struct rlimit most = {1l << 30, 1l << 30};
    if (setrlimit(RLIMIT_CORE, &most))
        return;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(calloc(1, 1 << 20));
        abort();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    char name[64];
    struct stat file;
    snprintf(name, sizeof name, "core.%d", child);
    if (stat("core", &file) == 0 || stat(name, &file) == 0) {
        fprintf(stderr, "core: %ld bytes\n", (long)file.st_size);
        CHECK(file.st_size < 1 << 28);
    }
}

int main(int count, char **words) {
    if (count > 1 && words[1][0] == 'c') {
        core();
        return 0;
    }
    if (count > 1) {
        // Without guards in the kernel, an area costs mappings, of which the limit is too low here.
        char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(page != MAP_FAILED);
        if (madvise(page, 4096, 102))
            return 0;
        long before = table_kbytes();
        churn();
        long grown = table_kbytes() - before;
        fprintf(stderr, "tables of pages: %ld kB more\n", grown);
        CHECK(grown < 3000);
        return 0;
    }
    char *area = calloc(1, 1 << 20);
    CHECK(area);
    // Each of these addresses is far from the area and from the others.
    for (long far = 4l << 20; far < 2l << 30; far += 77 << 20)
        CHECK(faults(area + far, 1, 1));
    CHECK(!faults(area, 4096, 256));
    free(area);
    CHECK(faults(area, 1, 1));
    return 0;
}
