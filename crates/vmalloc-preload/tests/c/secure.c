/* Linked to the library itself: prints if it is a set-user-ID program to the system (AT_SECURE). */
#include "check.h"

#include <string.h>
#include <sys/auxv.h>

int main(void) {
    char *volatile memory = malloc(1000000);
    CHECK(memory != NULL);
    memset(memory, 1, 1000000);
    free(memory);
    printf("%lu\n", getauxval(AT_SECURE));
    return 0;
}
