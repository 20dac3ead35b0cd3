/*
 * libvmalloc: large memory for a program, kept resident between uses and reused without system calls.
 *
 * Link with -lvmalloc, or with what pkg-config says of "vmalloc". See vmalloc(3).
 *
 * Every function may be called from any thread, and in the child of a fork, and never calls malloc for
 * memory of its own. The exception is the start of a thread that releases unused cached memory. The kv
 * functions pass small sizes to malloc. In a signal handler, only is_vmalloc_addr and vmalloc_usable_size
 * may be called.
 *
 * Functions that allocate return NULL and set errno on failure. A pointer that is wrong to free, resize or unmap
 * (freed before, not the beginning of an area, or outside all areas) stops the program by abort, with a line on
 * stderr that names it. Of frames that are freed, only that the frames are allocated is checked, not by which
 * caller. Of the numbers that vmap takes, only that such frames can exist is checked. Pointers to per-CPU words
 * are not checked. Functions that free preserve errno.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef VMALLOC_H
#define VMALLOC_H

/* Made by `cargo xtask header` from abi.rs, frames.rs and percpu.rs of crates/vmalloc-capi/src: change those, not this. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* this_cpu_add(pointer, amount): the number at pointer, a member of an object of alloc_percpu, in the unit of the CPU, whatever its
 * size is: 1, 2, 4 or 8 bytes. */
#define this_cpu_add(pointer, amount)                                                                 \
    (sizeof(*(pointer)) == 8   ? this_cpu_add_8((uint64_t *)(void *)(pointer), (uint64_t)(amount))     \
     : sizeof(*(pointer)) == 4 ? this_cpu_add_4((uint32_t *)(void *)(pointer), (uint32_t)(amount))     \
     : sizeof(*(pointer)) == 2 ? this_cpu_add_2((uint16_t *)(void *)(pointer), (uint16_t)(amount))     \
                               : this_cpu_add_1((uint8_t *)(void *)(pointer), (uint8_t)(amount)))
#define this_cpu_sub(pointer, amount) this_cpu_add(pointer, 0 - (uint64_t)(amount))
#define this_cpu_inc(pointer) this_cpu_add(pointer, 1)
#define this_cpu_dec(pointer) this_cpu_sub(pointer, 1)

/**
 * Counts of the memory, in bytes unless a field says otherwise. Each number was true at a moment of its own.
 */
struct vmalloc_counts {
    /**
     * Address space reserved for areas.
     */
    uint64_t arena_bytes;
    /**
     * Bytes of it that are readable and writable.
     */
    uint64_t committed_bytes;
    /**
     * Bytes of live areas, in whole pages.
     */
    uint64_t live_bytes;
    /**
     * Freed bytes that are cached whole, for an allocation of the same size.
     */
    uint64_t cached_bytes;
    /**
     * Freed bytes that are cached, merged with their neighbours.
     */
    uint64_t dirty_bytes;
    /**
     * Bytes mapped for the records of the allocator.
     */
    uint64_t record_bytes;
    /**
     * Bytes released to the system since start.
     */
    uint64_t purged_bytes;
    /**
     * Allocations served from the cache since start.
     */
    uint64_t cache_hits;
    /**
     * Areas that were copied to grow, since start.
     */
    uint64_t copies;
};

/**
 * Page frames, zeros at first: those whose numbers are first, first + 1, ... first + count - 1. They have memory when they are
 * written to.
 */
struct vm_frames {
    /**
     * The number of the first.
     */
    uint64_t first;
    /**
     * Number of frames.
     */
    uint64_t count;
};

/**
 * A signed counter with a delta on each CPU. percpu_counter_init initialises it, whatever its bytes are, and
 * percpu_counter_destroy ends it. Between the two it must not be copied or moved.
 */
struct percpu_counter {
    /**
     * Private.
     */
    uint64_t held[16];
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
 * Resizes the area at `area` to at least `size` bytes and returns its address. If that is another
 * address, the bytes were moved there as far as both sizes have them. Further bytes have any
 * value.
 *
 * vrealloc(NULL, size) is vmalloc(size). vrealloc(area, 0) frees the area and returns NULL.
 * NULL as vmalloc if there is no memory: the area is as it was.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no
 * thread uses meanwhile.
 */
void *vrealloc(void *area, size_t size);

/**
 * Frees an area. NULL is nothing to free.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no thread uses any
 * more.
 */
void vfree(const void *area);

/**
 * Allocates at least `size` bytes: from malloc if they are less than 64 KiB, else an area as of
 * vmalloc. If there is no area to be had, they are from malloc, too. Aligned as malloc does. A
 * size of 0 is malloc's to answer.
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
 * `memory` is NULL or of kvmalloc, kvzalloc or kvrealloc, and no other thread uses it meanwhile.
 */
void *kvrealloc(void *memory, size_t size);

/**
 * Frees memory of the kv functions, or an area. NULL is nothing to free.
 *
 * An address outside the arena is taken for one of malloc's.
 *
 * The caller promises:
 * `memory` is NULL or of kvmalloc, kvzalloc, kvrealloc, or an area, and no thread uses it any more.
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
 * Writes the counts to `counts`, all 0 before the first allocation. `size` is sizeof(struct vmalloc_counts). A program
 * that was built with a shorter struct gets its first bytes. Fields of a longer one that this library does not have
 * are 0.
 *
 * Returns 0, or -1 with errno EINVAL if `counts` is NULL.
 *
 * The caller promises:
 * `counts` is NULL or points to `size` bytes to write to, aligned for such a struct.
 */
int vmalloc_stats(struct vmalloc_counts *counts, size_t size);

/**
 * Writes a line for every area in address order, and then for every mapping of vmap, in the format
 * of /proc/vmallocinfo. As snprintf does, it writes at most `size` bytes with the 0 at the end,
 * which is always there unless `size` is 0. Returns the number of bytes of all lines, without the
 * 0 byte. If that is not less than `size`, what was written is not all.
 *
 * The caller promises:
 * `text` points to `size` bytes to write to; it may be NULL if `size` is 0.
 */
size_t vmallocinfo(char *text, size_t size);

/**
 * The version of this library, such as "0.1.0".
 */
const char *vmalloc_version(void);

/**
 * Allocates `count` page frames of 4096 bytes, which vmap shows wherever it is asked to, and writes their numbers to `frames`.
 *
 * 0, or -1 with errno EINVAL if `count` is 0 or `frames` NULL, ENOMEM if there is no memory, EPERM in the child of a fork.
 *
 * The caller promises:
 * `frames` is NULL or points to such a struct.
 */
int vm_alloc_frames(struct vm_frames *frames, size_t count);

/**
 * Frees frames, and makes the struct one of no frames. NULL and a struct of no frames are ignored. In the child of a
 * fork the frames are the parent's, and stay.
 *
 * The caller promises:
 * `frames` is NULL or what vm_alloc_frames wrote, and the frames are not mapped any more.
 */
void vm_free_frames(struct vm_frames *frames);

/**
 * Maps frames by their numbers contiguously, a frame as often as it is in the list, and a guard page behind the last.
 * `protection` is PROT_READ or PROT_READ | PROT_WRITE of <sys/mman.h>.
 *
 * NULL with errno EINVAL if there is no frame in the list, one that is none, or another
 * protection. ENOMEM if there is no address space or there are too many mappings. EPERM in the
 * child of a fork, which can read and write what was mapped before.
 *
 * The caller promises:
 * `frames` points to `count` numbers of frames of vm_alloc_frames, which are not freed before the mapping was ended.
 */
void *vmap(const uint64_t *frames, size_t count, int protection);

/**
 * Maps frames for a short time, as vmap does: up to 64 by addresses from a block of the CPU, without a guard page.
 *
 * NULL as vmap.
 *
 * The caller promises:
 * As vmap.
 */
void *vm_map_ram(const uint64_t *frames, size_t count, int protection);

/**
 * Ends a mapping of vmap. NULL is nothing to end.
 *
 * The caller promises:
 * `mapping` is NULL or of vmap, and no thread uses it any more.
 */
void vunmap(const void *mapping);

/**
 * Ends a mapping of vm_map_ram of `count` frames. NULL is nothing to end.
 *
 * The caller promises:
 * `mapping` is NULL or of vm_map_ram with as many frames, and no thread uses it any more.
 */
void vm_unmap_ram(const void *mapping, size_t count);

/**
 * Allocates `size` bytes, zeros, in each unit. There is one unit for each possible CPU. The size is at
 * most 32 KiB; the object is aligned to `align`, a power of two up to 4096. Returns the address of the
 * copy of unit 0: this_cpu_* and per_cpu_ptr take it, and the address of any member in it.
 *
 * NULL with errno EINVAL for another size or alignment, ENOMEM if there is no memory.
 */
void *alloc_percpu(size_t size, size_t align);

/**
 * Frees an object of alloc_percpu, with all its copies. NULL is nothing to free.
 *
 * The caller promises:
 * `object` is NULL or of alloc_percpu, and no thread uses it any more.
 */
void free_percpu(void *object);

/**
 * Returns the number of units. The last one is that of threads without a number of their own.
 *
 * 0 with errno ENOMEM if there is no memory for them.
 */
unsigned int percpu_units(void);

/**
 * The copy of a unit of an object, or of a member of it.
 *
 * NULL with errno EINVAL if there is no such unit.
 *
 * The caller promises:
 * `inside` points into an object of alloc_percpu. What this_cpu_* changes may be read there, and is not to be written.
 */
void *per_cpu_ptr(const void *inside, unsigned int unit);

/**
 * Adds to the 8 bytes at `word` in the unit of the CPU, wrapping, wholly or not at all: by a restartable sequence where there
 * are any. this_cpu_add(), a macro, takes pointers to numbers of any size; so do this_cpu_sub(), this_cpu_inc(), this_cpu_dec().
 *
 * The caller promises:
 * `word` points into an object of alloc_percpu, to a multiple of 8.
 */
void this_cpu_add_8(uint64_t *word, uint64_t amount);

/**
 * The same with 4 bytes.
 *
 * The caller promises:
 * As this_cpu_add_8, to a multiple of 4.
 */
void this_cpu_add_4(uint32_t *word, uint32_t amount);

/**
 * The same with 2 bytes.
 *
 * The caller promises:
 * As this_cpu_add_8, to a multiple of 2.
 */
void this_cpu_add_2(uint16_t *word, uint16_t amount);

/**
 * The same with 1 byte.
 *
 * The caller promises:
 * As this_cpu_add_8, to any byte.
 */
void this_cpu_add_1(uint8_t *word, uint8_t amount);

/**
 * Reads the 8 bytes at `word` in the unit of the CPU.
 *
 * The caller promises:
 * As this_cpu_add_8.
 */
uint64_t this_cpu_read_8(uint64_t *word);

/**
 * Puts `value` there; returns what was there.
 *
 * The caller promises:
 * As this_cpu_add_8.
 */
uint64_t this_cpu_xchg_8(uint64_t *word, uint64_t value);

/**
 * Puts `value` there if `old` is there; returns what was there: `old` if it was done.
 *
 * The caller promises:
 * As this_cpu_add_8.
 */
uint64_t this_cpu_cmpxchg_8(uint64_t *word, uint64_t old, uint64_t value);

/**
 * Returns the wrapping sum of the 8 bytes at `word` over all units: exact if no thread changes them meanwhile.
 *
 * The caller promises:
 * As this_cpu_add_8.
 */
uint64_t percpu_sum_8(uint64_t *word);

/**
 * Makes a counter that begins with `amount`.
 *
 * 0, or -1 with errno EINVAL if `counter` is NULL, ENOMEM if there is no memory.
 *
 * The caller promises:
 * `counter` is NULL or points to such a struct that is no counter.
 */
int percpu_counter_init(struct percpu_counter *counter, int64_t amount);

/**
 * Ends a counter. NULL is nothing to end.
 *
 * The caller promises:
 * `counter` is NULL or a counter that no thread uses any more.
 */
void percpu_counter_destroy(struct percpu_counter *counter);

/**
 * Adds to a counter, wrapping.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_add(struct percpu_counter *counter, int64_t amount);

/**
 * Subtracts from a counter, wrapping.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_sub(struct percpu_counter *counter, int64_t amount);

/**
 * Adds 1.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_inc(struct percpu_counter *counter);

/**
 * Subtracts 1.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_dec(struct percpu_counter *counter);

/**
 * Adds if the sum does not pass `limit` then; tells whether it did.
 *
 * The caller promises:
 * `counter` is a counter.
 */
bool percpu_counter_limited_add(struct percpu_counter *counter, int64_t limit, int64_t amount);

/**
 * Sets the counter, while no other thread uses it.
 *
 * The caller promises:
 * `counter` is a counter that no other thread uses meanwhile.
 */
void percpu_counter_set(struct percpu_counter *counter, int64_t amount);

/**
 * Returns an approximate value, by one load: the deltas that the CPUs still hold are missing.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_read(const struct percpu_counter *counter);

/**
 * The same, 0 if it is negative.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_read_positive(const struct percpu_counter *counter);

/**
 * The sum of all that was added before.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_sum(const struct percpu_counter *counter);

/**
 * -1, 0 or 1 as the sum is less than `other`, equal or greater.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int percpu_counter_compare(const struct percpu_counter *counter, int64_t other);

#ifdef __cplusplus
}
#endif

#endif  /* VMALLOC_H */
