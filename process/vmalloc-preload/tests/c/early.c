// The resolver of a function allocates large memory during relocation, before any constructor runs; later calls work as
// usual.
#include "check.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *early;

static int three(void) { return 3; }

static int (*resolve(void))(void) {
    early = malloc(1 << 20);
    return three;
}

int number(void) __attribute__((ifunc("resolve")));

int main(void) {
    CHECK(number() == 3 && early);
    memset(early, 1, 1 << 20);
    char *late = malloc(2 << 20);
    CHECK(late);
    CHECK((early = realloc(early, 3 << 20)));
    free(early);
    free(late);
    pid_t child = fork();
    if (child == 0) {
        free(malloc(1 << 20));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
