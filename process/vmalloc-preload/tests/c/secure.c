/* Linked to the library itself: prints whether the system treats it as a set-user-ID program (AT_SECURE). */
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
