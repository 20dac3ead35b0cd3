/* Areas from C: sizes, alignments, zeros, growth, and failures with their errno. */
#include "check.h"
#include "vmalloc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

static int all(const unsigned char *bytes, size_t count, unsigned char want) {
    for (size_t at = 0; at < count; at++) {
        if (bytes[at] != want) {
            return 0;
        }
    }
    return 1;
}

static void sizes(void) {
    for (size_t size = 1; size <= (size_t)3 << 20; size = size * 3 / 2 + 1) {
        errno = EBADF;
        unsigned char *area = vmalloc(size);
        CHECK(area != NULL && errno == EBADF);
        CHECK((uintptr_t)area % 4096 == 0);
        size_t usable = vmalloc_usable_size(area);
        CHECK(usable >= size && usable < size + 4096 && usable % 4096 == 0);
        memset(area, 0xa5, usable);
        CHECK(is_vmalloc_addr(area) && is_vmalloc_addr(area + size - 1));
        vfree(area);
        CHECK(errno == EBADF);
        /* The previous contents must not be visible. */
        unsigned char *zeros = vzalloc(size);
        CHECK(zeros != NULL && all(zeros, size, 0));
        vfree(zeros);
    }
    CHECK(!is_vmalloc_addr(NULL) && !is_vmalloc_addr(&errno));
}

static void alignments(void) {
    for (size_t align = 1; align <= (size_t)64 << 20; align *= 2) {
        void *area = vmalloc_aligned(5000, align);
        CHECK(area != NULL && (uintptr_t)area % align == 0);
        vfree(area);
    }
    errno = 0;
    CHECK(vmalloc_aligned(5000, 3) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(vmalloc_aligned(5000, 0) == NULL && errno == EINVAL);
    void *huge = vmalloc_huge((size_t)5 << 20);
    CHECK(huge != NULL && (uintptr_t)huge % ((size_t)2 << 20) == 0);
    vfree(huge);
    void *not_huge = vmalloc_huge(100);
    CHECK(not_huge != NULL && vmalloc_usable_size(not_huge) == 4096);
    vfree(not_huge);
}

static void failures(void) {
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 46};
    unsigned char *area = vmalloc(10000);
    CHECK(area != NULL);
    memset(area, 7, 10000);
    for (size_t at = 0; at < sizeof absurd / sizeof *absurd; at++) {
        errno = 0;
        CHECK(vmalloc(absurd[at]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(vzalloc(absurd[at]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(vmalloc_aligned(absurd[at], 1 << 20) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(vrealloc(area, absurd[at]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(kvmalloc(absurd[at]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(kvzalloc(absurd[at]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(kvrealloc(area, absurd[at]) == NULL && errno == ENOMEM);
    }
    /* The area is unchanged. */
    CHECK(all(area, 10000, 7));
    vfree(area);
    errno = 0;
    CHECK(vmalloc(0) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(vzalloc(0) == NULL && errno == EINVAL);
    vfree(NULL);
    CHECK(vmalloc_usable_size(NULL) == 0);
}

static void growing(void) {
    size_t held = 0;
    unsigned char *area = NULL;
    for (size_t size = 100; size < (size_t)8 << 20; size = size * 5 / 3) {
        area = vrealloc(area, size);
        CHECK(area != NULL && all(area, held, 0x5c));
        memset(area, 0x5c, size);
        held = size;
        /* Blocks the growth in place every other time. */
        void *other = vmalloc(size);
        CHECK(other != NULL);
        vfree(other);
    }
    for (size_t size = held; size > 1; size = size * 2 / 3) {
        area = vrealloc(area, size);
        CHECK(area != NULL && all(area, size, 0x5c));
    }
    errno = EBADF;
    CHECK(vrealloc(area, 0) == NULL && errno == EBADF);
}

static void kv(void) {
    /* Sizes on both sides of the threshold, and across it in both directions, with all bytes written. */
    static const size_t steps[] = {1, 100, 65535, 65536, 40000, 32768, 100, 1 << 20, 65535, 20000, 1 << 22, 5};
    unsigned char *memory = kvzalloc(64);
    CHECK(memory != NULL && all(memory, 64, 0));
    size_t held = 64;
    for (size_t at = 0; at < sizeof steps / sizeof *steps; at++) {
        memset(memory, 0x33, held);
        memory = kvrealloc(memory, steps[at]);
        CHECK(memory != NULL);
        size_t both = held < steps[at] ? held : steps[at];
        CHECK(all(memory, both, 0x33));
        held = steps[at];
    }
    CHECK(!is_vmalloc_addr(memory));
    kvfree(memory);
    void *large = kvmalloc(65536);
    CHECK(large != NULL && is_vmalloc_addr(large));
    kvfree(large);
    void *small = kvmalloc(65535);
    CHECK(small != NULL && !is_vmalloc_addr(small));
    kvfree(small);
    unsigned char *zeros = kvzalloc(1 << 20);
    CHECK(zeros != NULL && all(zeros, 1 << 20, 0));
    CHECK(kvrealloc(zeros, 0) == NULL);
    void *area = vmalloc(100);
    kvfree(area);
    kvfree(NULL);
    void *empty = kvmalloc(0);
    kvfree(empty);
}

static void counts(void) {
    struct vmalloc_counts before, now;
    CHECK(vmalloc_stats(&before, sizeof before) == 0);
    void *area = vmalloc(300000);
    CHECK(area != NULL);
    memset(area, 1, 300000);
    CHECK(vmalloc_stats(&now, sizeof now) == 0);
    CHECK(now.live_bytes == before.live_bytes + 74 * 4096 && now.arena_bytes >= (size_t)32 << 20);
    /* Programs that were built with a shorter and with a longer struct. */
    unsigned char room[sizeof now + 64];
    memset(room, 0xff, sizeof room);
    CHECK(vmalloc_stats((struct vmalloc_counts *)(void *)room, 16) == 0);
    CHECK(all(room + 16, sizeof room - 16, 0xff) && !all(room, 16, 0xff));
    CHECK(vmalloc_stats((struct vmalloc_counts *)(void *)room, sizeof room) == 0);
    CHECK(all(room + sizeof now, 64, 0));
    errno = 0;
    CHECK(vmalloc_stats(NULL, sizeof now) == -1 && errno == EINVAL);

    size_t bytes = vmallocinfo(NULL, 0);
    CHECK(bytes > 0);
    char *text = malloc(bytes + 4096);
    CHECK(text != NULL);
    CHECK(vmallocinfo(text, bytes + 4096) == bytes && strlen(text) == bytes);
    char line[64];
    snprintf(line, sizeof line, "%#018zx-%#018zx", (size_t)area, (size_t)area + 74 * 4096);
    char *found = strstr(text, line);
    CHECK(found != NULL && strstr(found, " pages=74 vmalloc\n") != NULL);
    /* Truncated and terminated, with nothing written after the end. */
    memset(text, 'x', bytes);
    CHECK(vmallocinfo(text, 20) == bytes && strlen(text) == 19 && text[20] == 'x');
    CHECK(vmallocinfo(text, 1) == bytes && text[0] == 0);
    free(text);

    vfree(area);
    CHECK(vmalloc_trim() >= 74 * 4096);
    CHECK(vmalloc_stats(&now, sizeof now) == 0);
    CHECK(now.live_bytes == before.live_bytes && now.cached_bytes == 0 && now.dirty_bytes == 0);
    CHECK(now.purged_bytes >= before.purged_bytes + 74 * 4096);
}

/* With an argument, without absurd sizes: valgrind reports those that reach malloc. */
int main(int count, char **names) {
    (void)names;
    struct vmalloc_counts none;
    CHECK(vmalloc_stats(&none, sizeof none) == 0 && none.arena_bytes == 0);
    CHECK(vmallocinfo(NULL, 0) == 0 && vmalloc_trim() == 0);
    sizes();
    alignments();
    if (count == 1) {
        failures();
    }
    growing();
    kv();
    counts();
    CHECK(strchr(vmalloc_version(), '.') != NULL);
    return 0;
}
