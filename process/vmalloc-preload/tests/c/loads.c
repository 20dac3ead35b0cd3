/* Loads the library that its argument names, and allocates nothing large itself. */
#include "check.h"
#include <dlfcn.h>
#include <unistd.h>

int main(int count, char **names) {
    CHECK(count == 2);
    alarm(60);
    CHECK(dlopen(names[1], RTLD_NOW) != NULL);
    return 0;
}
