/* The resident memory of a process, for tests of what is released. */
#ifndef RESIDENT_H
#define RESIDENT_H

#include "check.h"
#include <unistd.h>

/* Returns the resident bytes of this process. */
static long resident(void) {
    long all, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &all, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

#endif
