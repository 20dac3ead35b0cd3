// The CPU time of a program's start with each of several preloaded libraries: `startup ROUNDS PROGRAM LIBRARY...`, where
// a library `-` is none. Each round starts the program once with each library, in another order. Prints quartiles in
// microseconds, how much more they are than with the first library, and the page faults of the last round.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double micros(struct timeval time) { return time.tv_sec * 1e6 + time.tv_usec; }

// Starts the program, waits for its end, and returns what it used.
static struct rusage start(char *program, const char *library) {
    char preload[4096];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    char *arguments[] = {program, NULL};
    char *environment[] = {"LANG=C", strcmp(library, "-") ? preload : NULL, NULL};
    struct rusage used;
    pid_t child;
    int status;
    if (posix_spawn(&child, program, NULL, NULL, arguments, environment) || wait4(child, &status, 0, &used) != child) {
        perror(program);
        exit(1);
    }
    return used;
}

int main(int count, char **arguments) {
    int rounds = count > 3 ? atoi(arguments[1]) : 0, libraries = count - 3;
    double *times = rounds > 0 ? calloc((size_t)rounds * libraries, sizeof *times) : NULL;
    long *faults = rounds > 0 ? calloc(libraries, sizeof *faults) : NULL;
    if (!times || !faults) {
        fprintf(stderr, "startup ROUNDS PROGRAM LIBRARY...\n");
        return 2;
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < libraries; i++) {
            int library = (round + i) % libraries;
            struct rusage used = start(arguments[2], arguments[3 + library]);
            times[library * rounds + round] = micros(used.ru_utime) + micros(used.ru_stime);
            faults[library] = used.ru_minflt;
        }
    }
    double first[2] = {0, 0};
    for (int library = 0; library < libraries; library++) {
        double *sorted = times + library * rounds;
        qsort(sorted, rounds, sizeof *sorted, compare);
        double now[2] = {sorted[rounds / 4], sorted[rounds / 2]};
        if (library == 0) {
            memcpy(first, now, sizeof first);
        }
        printf("%-50s quartile %.0f (%+.1f %%) median %.0f (%+.1f %%) faults %ld\n", arguments[3 + library], now[0],
               100 * (now[0] / first[0] - 1), now[1], 100 * (now[1] / first[1] - 1), faults[library]);
    }
    return 0;
}
