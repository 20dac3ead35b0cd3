/*
 * libvmalloc: large memory for a program, kept resident between uses and given out without system calls.
 *
 * Link with -lvmalloc, or with what pkg-config says of "vmalloc". See vmalloc(3).
 *
 * Every function may be called from any thread, and in the child of a fork, and never calls malloc for
 * memory of its own, but once when a thread is started that gives back what nobody needs; the kv functions
 * give small sizes to malloc. None may be called from a signal
 * handler but is_vmalloc_addr and vmalloc_usable_size.
 *
 * Functions that allocate return NULL and set errno on failure. A pointer that is not what it should be
 * (freed before, not the beginning of an area, or nobody's) stops the program by abort, with a line on
 * stderr that names it. Freeing keeps errno.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef VMALLOC_H
#define VMALLOC_H

/* Made by `cargo xtask header` from crates/vmalloc-capi/src/abi.rs: change that, not this. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Where the memory is, in bytes unless it says otherwise. Each number was true at a moment of its own.
 */
struct vmalloc_counts {
    /**
     * Address space reserved for areas.
     */
    uint64_t arena_bytes;
    /**
     * Of it, readable and writable.
     */
    uint64_t committed_bytes;
    /**
     * Whole pages of areas that callers have.
     */
    uint64_t live_bytes;
    /**
     * Freed and kept as they were, for the next of that size.
     */
    uint64_t cached_bytes;
    /**
     * Freed and kept, merged with their neighbours.
     */
    uint64_t dirty_bytes;
    /**
     * Mapped for the records of the allocator.
     */
    uint64_t record_bytes;
    /**
     * Given back to the system, ever.
     */
    uint64_t purged_bytes;
    /**
     * Areas handed out again as they were, ever.
     */
    uint64_t cache_hits;
    /**
     * Areas that were copied to grow, ever.
     */
    uint64_t copies;
};

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allocates an area of at least `size` bytes, which hold anything: whole pages, aligned to a page.
 *
 * NULL with errno EINVAL if `size` is 0, ENOMEM if there is no memory or address space for it.
 */
void *vmalloc(size_t size);

/**
 * Allocates an area of at least `size` bytes, all of them 0. Pages fresh from the system are not written to.
 *
 * NULL as vmalloc.
 */
void *vzalloc(size_t size);

/**
 * Allocates an area at a multiple of `align`, a power of two of any size.
 *
 * NULL as vmalloc, and with errno EINVAL if `align` is no power of two.
 */
void *vmalloc_aligned(size_t size, size_t align);

/**
 * Allocates an area that huge pages can back: aligned to 2 MiB if it has as many bytes. Whether they do is the system's choice
 * (/sys/kernel/mm/transparent_hugepage/enabled).
 *
 * NULL as vmalloc.
 */
void *vmalloc_huge(size_t size);

/**
 * Gives the area at `area` at least `size` bytes and returns where it is then: where it was, or elsewhere, its bytes moved there
 * as far as both sizes have them. More bytes hold anything.
 *
 * vrealloc(NULL, size) is vmalloc(size). vrealloc(area, 0) frees the area and returns NULL.
 * NULL as vmalloc if there is no memory: the area is as it was.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that nobody uses meanwhile.
 */
void *vrealloc(void *area, size_t size);

/**
 * Frees an area. NULL is nothing to free.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that nobody uses any more.
 */
void vfree(const void *area);

/**
 * Allocates at least `size` bytes: from malloc if they are less than 64 KiB, else an area as of vmalloc; from malloc, too, if
 * there is no area to be had. Aligned as malloc does. A size of 0 is malloc's to answer.
 *
 * NULL with errno ENOMEM if neither has memory.
 */
void *kvmalloc(size_t size);

/**
 * Allocates as kvmalloc, bytes that are all 0.
 */
void *kvzalloc(size_t size);

/**
 * Gives memory of the kv functions another size, and returns where it is then; it may become an area or malloc's by that.
 *
 * kvrealloc(NULL, size) is kvmalloc(size). kvrealloc(memory, 0) frees and returns NULL.
 * NULL with errno ENOMEM if there is no memory: what was there is as it was.
 *
 * The caller promises:
 * `memory` is NULL or of kvmalloc, kvzalloc or kvrealloc, and nobody uses it meanwhile.
 */
void *kvrealloc(void *memory, size_t size);

/**
 * Frees memory of the kv functions, or an area. NULL is nothing to free.
 *
 * An address outside the arena is taken for one of malloc's.
 *
 * The caller promises:
 * `memory` is NULL or of kvmalloc, kvzalloc, kvrealloc, or an area, and nobody uses it any more.
 */
void kvfree(const void *memory);

/**
 * Tells whether an address is in the arena, whatever is there. O(1), takes no lock.
 */
bool is_vmalloc_addr(const void *address);

/**
 * Bytes of the area at `area` that can be used: its whole pages. 0 for NULL. O(1), takes no lock.
 *
 * Memory of the kv functions may be malloc's: is_vmalloc_addr tells.
 */
size_t vmalloc_usable_size(const void *area);

/**
 * Gives all freed memory that is kept for later back to the system; returns how many bytes that were.
 */
size_t vmalloc_trim(void);

/**
 * Writes the counts to `counts`, all 0 while nothing was ever allocated. `size` is sizeof(struct vmalloc_counts): a program built with
 * an older, shorter one gets as many bytes as it knows of; what this library does not know is 0.
 *
 * 0, or -1 with errno EINVAL if `counts` is NULL.
 *
 * The caller promises:
 * `counts` is NULL or points to `size` bytes to write to, aligned for such a struct.
 */
int vmalloc_stats(struct vmalloc_counts *counts, size_t size);

/**
 * Writes a line for every area in address order, in the format of /proc/vmallocinfo, as snprintf does: at most `size` bytes with the
 * 0 at the end, which is always there unless `size` is 0. Returns how many bytes all lines have, without that 0: if not less
 * than `size`, what was written is not all.
 *
 * The caller promises:
 * `text` points to `size` bytes to write to; it may be NULL if `size` is 0.
 */
size_t vmallocinfo(char *text, size_t size);

/**
 * The version of this library, such as "0.1.0".
 */
const char *vmalloc_version(void);

#ifdef __cplusplus
}
#endif

#endif  /* VMALLOC_H */
