/* One of rpmalloc's tests, by name. Those of its size classes, its leak report and its heaps are left out. */
#define NO_MAIN 1
#include "main.c"

int main(int count, char **words) {
    static const struct {
        const char *name;
        int (*run)(void);
    } tests[] = {
        {"realloc", test_realloc},   {"superalign", test_superalign}, {"crossthread", test_crossthread},
        {"threaded", test_threaded}, {"threadspam", test_threadspam},
    };
    test_initialize();
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++)
        if (count == 2 && strcmp(words[1], tests[at].name) == 0)
            return tests[at].run() == 0 && !test_failed ? 0 : 1;
    return 2;
}
