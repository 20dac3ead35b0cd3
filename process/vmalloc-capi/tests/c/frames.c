/* Frames, mapped contiguously, twice, read-only, for a short time; and calls that fail. */
#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmalloc.h>

enum { PAGE = 4096 };

static void a_ring_whose_end_is_its_beginning(void) {
    struct vm_frames frames;
    CHECK(vm_alloc_frames(&frames, 2) == 0 && frames.count == 2);
    uint64_t list[4] = {frames.first, frames.first + 1, frames.first, frames.first + 1};
    errno = EBADF;
    char *ring = vmap(list, 4, PROT_READ | PROT_WRITE);
    CHECK(ring != NULL && (uintptr_t)ring % PAGE == 0 && errno == EBADF);
    for (int at = 0; at < 4 * PAGE; at++) {
        CHECK(ring[at] == 0);
    }
    memcpy(ring + 2 * PAGE - 3, "around", 6);
    CHECK(memcmp(ring, "und", 3) == 0);
    /* In reverse order, read-only. */
    uint64_t back[2] = {frames.first + 1, frames.first};
    const char *other = vmap(back, 2, PROT_READ);
    CHECK(other != NULL && memcmp(other + PAGE, "und", 3) == 0 && memcmp(other + PAGE - 3, "aro", 3) == 0);
    static char text[100000];
    CHECK(vmallocinfo(text, sizeof text) > 0 && strstr(text, "pages=4 vmap") != NULL);
    vunmap(other);
    vunmap(ring);
    CHECK(errno == EBADF);
    vm_free_frames(&frames);
    CHECK(frames.count == 0);
    vm_free_frames(&frames);
    vm_free_frames(NULL);
    vunmap(NULL);
    vm_unmap_ram(NULL, 3);
}

static void short_mappings_of_every_size(void) {
    struct vm_frames frames;
    CHECK(vm_alloc_frames(&frames, 100) == 0);
    uint64_t list[100];
    for (uint64_t at = 0; at < 100; at++) {
        list[at] = frames.first + 99 - at;
    }
    for (size_t count = 1; count <= 100; count += 9) {
        for (int round = 0; round < 20; round++) {
            unsigned char *memory = vm_map_ram(list, count, PROT_READ | PROT_WRITE);
            CHECK(memory != NULL);
            memset(memory, (int)count, count * PAGE);
            CHECK(memory[count * PAGE - 1] == count);
            vm_unmap_ram(memory, count);
        }
    }
    vm_free_frames(&frames);
}

static void errors_have_reasons_and_change_nothing(void) {
    struct vm_frames frames;
    CHECK(vm_alloc_frames(&frames, 1) == 0);
    uint64_t bad[3] = {0, UINT64_MAX, frames.first + 1000000};
    errno = 0;
    CHECK(vm_alloc_frames(NULL, 1) == -1 && errno == EINVAL);
    struct vm_frames none = {7, 7};
    errno = 0;
    CHECK(vm_alloc_frames(&none, 0) == -1 && errno == EINVAL && none.first == 7);
    errno = 0;
    CHECK(vm_alloc_frames(&none, SIZE_MAX) == -1 && errno == ENOMEM && none.first == 7);
    static const int protections[] = {0, PROT_WRITE, PROT_READ | PROT_EXEC, -1};
    for (int at = 0; at < 4; at++) {
        errno = 0;
        CHECK(vmap(&frames.first, 1, protections[at]) == NULL && errno == EINVAL);
        errno = 0;
        CHECK(vm_map_ram(&frames.first, 1, protections[at]) == NULL && errno == EINVAL);
    }
    for (int at = 0; at < 3; at++) {
        errno = 0;
        CHECK(vmap(&bad[at], 1, PROT_READ) == NULL && errno == EINVAL);
        errno = 0;
        CHECK(vm_map_ram(&bad[at], 1, PROT_READ) == NULL && errno == EINVAL);
    }
    errno = 0;
    CHECK(vmap(NULL, 1, PROT_READ) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(vmap(&frames.first, 0, PROT_READ) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(vm_map_ram(&frames.first, SIZE_MAX, PROT_READ) == NULL && errno == EINVAL);
    vm_free_frames(&frames);
}

static void a_child_shares_what_was_mapped(void) {
    struct vm_frames frames;
    CHECK(vm_alloc_frames(&frames, 1) == 0);
    volatile char *view = vmap(&frames.first, 1, PROT_READ | PROT_WRITE);
    CHECK(view != NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct vm_frames own;
        view[5] = 9;
        errno = 0;
        CHECK(vmap(&frames.first, 1, PROT_READ) == NULL && errno == EPERM);
        errno = 0;
        CHECK(vm_alloc_frames(&own, 1) == -1 && errno == EPERM);
        vunmap((const void *)view);
        vm_free_frames(&frames);
        CHECK(view[5] == 9);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(view[5] == 9);
    vunmap((const void *)view);
    vm_free_frames(&frames);
}

/* A daemon closes all descriptors, and opens files of its own by their numbers. */
static void a_file_of_others_is_left_alone(void) {
    struct vm_frames some, more;
    CHECK(vm_alloc_frames(&some, 3) == 0);
    char *view = vmap(&some.first, 1, PROT_READ | PROT_WRITE);
    CHECK(view != NULL);
    view[0] = 7;
    FILE *own = tmpfile();
    CHECK(own != NULL);
    char page[PAGE];
    memset(page, 'D', PAGE);
    CHECK(write(fileno(own), page, PAGE) == PAGE);
    int end = fileno(own) + 1;
    while (end < 1024 && dup2(fileno(own), end) == end) {
        end++;
    }
    errno = 0;
    CHECK(vmap(&some.first, 1, PROT_READ) == NULL && errno == EBADF);
    errno = 0;
    CHECK(vm_alloc_frames(&more, 1000) == -1 && errno == EBADF);
    CHECK(view[0] == 7);
    vunmap(view);
    vm_free_frames(&some);
    for (int number = fileno(own) + 1; number < end; number++) {
        CHECK(lseek(number, 0, SEEK_END) == PAGE && close(number) == 0);
    }
    CHECK(pread(fileno(own), page, PAGE, 0) == PAGE && page[0] == 'D' && page[PAGE - 1] == 'D');
    /* Nor do calls open it again. */
    errno = 0;
    CHECK(vm_alloc_frames(&more, 1000) == -1 && errno == EBADF);
    CHECK(fclose(own) == 0);
}

int main(int count, char **names) {
    if (count > 1) {
        /* A mistake, chosen by name: the program must end by abort. */
        struct vm_frames frames;
        CHECK(vm_alloc_frames(&frames, 2) == 0);
        uint64_t list[2] = {frames.first, frames.first + 1};
        char *view = vmap(list, 2, PROT_READ), *small = vm_map_ram(list, 2, PROT_READ);
        CHECK(view != NULL && small != NULL);
        if (strcmp(names[1], "frames") == 0) {
            struct vm_frames again = frames;
            vunmap(view);
            vm_unmap_ram(small, 2);
            vm_free_frames(&frames);
            printf("%zx\n", (size_t)&again);
            fflush(stdout);
            vm_free_frames(&again);
            return 0;
        }
        if (strcmp(names[1], "overflow") == 0) {
            struct vm_frames last = {UINT64_MAX, 1};
            printf("%zx\n", (size_t)&last);
            fflush(stdout);
            vm_free_frames(&last);
            return 0;
        }
        const void *at = strcmp(names[1], "twice") == 0 ? view : strcmp(names[1], "inside") == 0 ? view + PAGE : small;
        if (strcmp(names[1], "twice") == 0) {
            vunmap(view);
        }
        printf("%zx\n", (size_t)at);
        fflush(stdout);
        if (strcmp(names[1], "count") == 0) {
            vm_unmap_ram(at, 1);
        } else {
            vunmap(at);
        }
        return 0;
    }
    int next = dup(STDOUT_FILENO);
    CHECK(next >= 0 && close(next) == 0);
    a_ring_whose_end_is_its_beginning();
    /* The descriptor of the memory file is not the number that a program expects of its next. */
    CHECK(dup(STDOUT_FILENO) == next && close(next) == 0);
    short_mappings_of_every_size();
    errors_have_reasons_and_change_nothing();
    a_child_shares_what_was_mapped();
    /* The last, since no frames can be mapped after it. */
    a_file_of_others_is_left_alone();
    return 0;
}
