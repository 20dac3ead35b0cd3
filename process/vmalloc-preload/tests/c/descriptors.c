// Descriptors belong to the program: it reuses one of the lowest three that it closes at the next open, and its own
// userfaultfd works with any memory, also with moved pages.
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *grown(void) {
    size_t bytes = 8 << 20;
    char *piece = malloc(bytes), *wall = malloc(bytes);
    CHECK(piece && wall);
    memset(piece, 1, bytes);
    memset(wall, 1, bytes);
    piece = realloc(piece, 3 * bytes);
    CHECK(piece && piece[0] == 1 && piece[bytes - 1] == 1);
    return piece;
}

int main(void) {
    close(0);
    grown();
    int file = open("/dev/null", O_RDONLY);
    CHECK(file == 0);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    int mine = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (mine < 0)
        return 0;
    struct uffdio_api api = {UFFD_API, 0, 0};
    CHECK(ioctl(mine, UFFDIO_API, &api) == 0);
    void *piece;
    CHECK(posix_memalign(&piece, 4096, 16 << 20) == 0);
    struct uffdio_register range = {{(unsigned long)piece, 16 << 20}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(ioctl(mine, UFFDIO_REGISTER, &range) == 0);
    CHECK(ioctl(mine, UFFDIO_UNREGISTER, &range.range) == 0);
    free(piece);
    grown();
    return 0;
}
