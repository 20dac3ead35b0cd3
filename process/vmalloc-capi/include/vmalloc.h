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
 * Handlers of pthread_atfork that were registered before this library was loaded (as by dlopen) must not call it,
 * nor take a lock under which other threads do, or open or close streams.
 *
 * That thread takes no signal, and remains: a program ends by exit, not by pthread_exit of its last thread.
 * mprotect, mlock, madvise and the like are undone before the area is freed: the pages are given out again.
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

/* Made by `cargo xtask header` from abi.rs, frames.rs, percpu.rs and percpu_ref.rs of process/vmalloc-capi/src: change those, not this. */

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
 * Begin with one atomic count, until percpu_ref_switch_to_percpu.
 */
#define PERCPU_REF_INIT_ATOMIC 1

/**
 * Begin dead, with no reference, as after the last put.
 */
#define PERCPU_REF_INIT_DEAD 2

/**
 * For source compatibility: percpu_ref_reinit is always possible.
 */
#define PERCPU_REF_ALLOW_REINIT 4

/**
 * Statistics of the memory, in bytes unless a field says otherwise. The numbers are not of one moment.
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
 * Page frames with the numbers first, first + 1, ... first + count - 1. They are zeros at first, and get memory when
 * they are written to.
 */
struct vm_frames {
    /**
     * Number of the first frame.
     */
    uint64_t first;
    /**
     * Number of frames.
     */
    uint64_t count;
};

/**
 * A signed counter: one word until threads contend for it, then a delta on each CPU. percpu_counter_init initialises
 * its memory, regardless of the contents, and percpu_counter_destroy ends it. Between the two it must not be copied or
 * moved.
 */
struct percpu_counter {
    /**
     * Private.
     */
    uint64_t held[2];
};

/**
 * A reference count for frequent gets and puts: a count on each CPU until it is killed. percpu_ref_init initialises
 * its memory, regardless of the contents, and percpu_ref_exit ends it. Between the two it must not be copied or moved.
 */
struct percpu_ref {
    /**
     * Private.
     */
    uint64_t held[16];
};

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allocates an area of at least `size` bytes, with any contents: whole pages, aligned to a page.
 *
 * NULL with errno EINVAL if `size` is 0, ENOMEM if there is no memory or address space for it.
 */
void *vmalloc(size_t size);

/**
 * Allocates an area of at least `size` bytes, the first `size` of which are 0. Pages fresh from the system are not
 * written to.
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
 * Allocates an area that huge pages can back: aligned to 2 MiB if it has as many bytes. The system decides whether
 * they do (/sys/kernel/mm/transparent_hugepage/enabled).
 *
 * NULL as vmalloc.
 */
void *vmalloc_huge(size_t size);

/**
 * Resizes the area at `area` to at least `size` bytes and returns its address. If the address is different, the bytes
 * up to the smaller size were moved there. Further bytes have any value.
 *
 * vrealloc(NULL, size) is vmalloc(size). vrealloc(area, 0) frees the area and returns NULL. NULL as vmalloc if there
 * is no memory: the area is unchanged.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no
 * thread uses meanwhile.
 */
void *vrealloc(void *area, size_t size);

/**
 * Frees an area. NULL is ignored.
 *
 * The caller promises:
 * `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no thread uses any
 * more.
 */
void vfree(const void *area);

/**
 * Allocates at least `size` bytes: from malloc if they are less than 64 KiB, else an area as of vmalloc. If no area
 * can be allocated, they are from malloc, too. The alignment is that of malloc. A size of 0 is passed to malloc.
 *
 * NULL with errno ENOMEM if neither has memory.
 */
void *kvmalloc(size_t size);

/**
 * Allocates as kvmalloc does, with all bytes 0.
 */
void *kvzalloc(size_t size);

/**
 * Resizes memory of the kv functions and returns its address. The memory may move between malloc and an area.
 *
 * kvrealloc(NULL, size) is kvmalloc(size). kvrealloc(memory, 0) frees and returns NULL. NULL with errno ENOMEM if
 * there is no memory: the old memory is unchanged.
 *
 * The caller promises:
 * `memory` is NULL or of kvmalloc, kvzalloc or kvrealloc, and no other thread uses it meanwhile.
 */
void *kvrealloc(void *memory, size_t size);

/**
 * Frees memory of the kv functions, or an area. NULL is ignored.
 *
 * An address outside the arena is passed to free.
 *
 * The caller promises:
 * `memory` is NULL or of kvmalloc, kvzalloc, kvrealloc, or an area, and no thread uses it any more.
 */
void kvfree(const void *memory);

/**
 * Returns true if an address is in the part of the arena where areas have been, whether or not one is live there.
 * O(1), takes no lock.
 */
bool is_vmalloc_addr(const void *address);

/**
 * Returns the usable bytes of the area at `area`: its whole pages. 0 for NULL. O(1), takes no lock.
 *
 * Memory of the kv functions may be malloc's: check it by is_vmalloc_addr.
 */
size_t vmalloc_usable_size(const void *area);

/**
 * Releases all cached memory to the system. Returns the number of bytes released.
 */
size_t vmalloc_trim(void);

/**
 * Writes the counts to `counts`, all 0 before the first allocation. `size` is sizeof(struct vmalloc_counts). A program
 * that was built with a shorter struct gets the first bytes. Fields of a longer struct that this library lacks are 0.
 *
 * Returns 0, or -1 with errno EINVAL if `counts` is NULL.
 *
 * The caller promises:
 * `counts` is NULL or points to `size` bytes to write to, aligned for such a struct.
 */
int vmalloc_stats(struct vmalloc_counts *counts, size_t size);

/**
 * Writes a line for every area in address order, and then for every mapping of vmap, in the format of
 * /proc/vmallocinfo. As snprintf does, it writes at most `size` bytes with the 0 at the end, which is always there
 * unless `size` is 0. Returns the number of bytes of all lines, without the 0 byte. If that is not less than `size`,
 * the output is truncated.
 *
 * The caller promises:
 * `text` points to `size` bytes to write to; it may be NULL if `size` is 0.
 */
size_t vmallocinfo(char *text, size_t size);

/**
 * Returns the version of this library, such as "0.1.0".
 */
const char *vmalloc_version(void);

/**
 * Allocates `count` page frames of 4096 bytes, which vmap can map, and writes their numbers to `frames`.
 *
 * All frames are in one memory file, whose descriptor, a high number, stays open: a program that closes all
 * descriptors must do so before its first call.
 *
 * 0, or -1 with errno EINVAL if `count` is 0 or `frames` NULL, ENOMEM if there is no memory, EPERM in the child of a
 * fork. EBADF if the memory file has to grow, and was closed.
 *
 * The caller promises:
 * `frames` is NULL or points to such a struct.
 */
int vm_alloc_frames(struct vm_frames *frames, size_t count);

/**
 * Frees frames, and sets the struct to no frames. NULL and a struct of no frames are ignored. In the child of a fork
 * the frames belong to the parent, and stay allocated.
 *
 * The caller promises:
 * `frames` is NULL or was written by vm_alloc_frames, and the frames are not mapped any more.
 */
void vm_free_frames(struct vm_frames *frames);

/**
 * Maps frames by their numbers contiguously, with a guard page after the last. A frame is mapped as often as it is in
 * the list. `protection` is PROT_READ or PROT_READ | PROT_WRITE of <sys/mman.h>.
 *
 * NULL with errno EINVAL if the list is empty or has a number of no frame, or for another protection. ENOMEM if there
 * is no address space or there are too many mappings. EPERM in the child of a fork, which can still read and write
 * older mappings. EBADF if the memory file of the frames was closed.
 *
 * The caller promises:
 * `frames` points to `count` numbers of frames of vm_alloc_frames, which are not freed before the mapping is unmapped.
 */
void *vmap(const uint64_t *frames, size_t count, int protection);

/**
 * Maps frames for a short time, as vmap does: up to 64 in a block of the CPU, without a guard page.
 *
 * NULL as vmap.
 *
 * The caller promises:
 * As vmap.
 */
void *vm_map_ram(const uint64_t *frames, size_t count, int protection);

/**
 * Unmaps a mapping of vmap. NULL is ignored.
 *
 * The caller promises:
 * `mapping` is NULL or of vmap, and no thread uses it any more.
 */
void vunmap(const void *mapping);

/**
 * Unmaps a mapping of vm_map_ram of `count` frames. NULL is ignored.
 *
 * The caller promises:
 * `mapping` is NULL or of vm_map_ram with as many frames, and no thread uses it any more.
 */
void vm_unmap_ram(const void *mapping, size_t count);

/**
 * Allocates `size` bytes, zeros, in each unit. There is one unit for each possible CPU. The size is at most 32 KiB;
 * the object is aligned to `align`, a power of two up to 4096. Returns the address of the copy of unit 0, which
 * this_cpu_* and per_cpu_ptr take, as well as the address of any member of it.
 *
 * NULL with errno EINVAL for another size or alignment, ENOMEM if there is no memory.
 */
void *alloc_percpu(size_t size, size_t align);

/**
 * Frees an object of alloc_percpu, with all its copies. NULL is ignored.
 *
 * The caller promises:
 * `object` is NULL or of alloc_percpu, and no thread uses it any more.
 */
void free_percpu(void *object);

/**
 * Returns the number of units. The last one is for threads without a number of their own.
 *
 * 0 with errno ENOMEM if there is no memory for them.
 */
unsigned int percpu_units(void);

/**
 * Returns the copy of an object, or of a member of it, in a unit.
 *
 * NULL with errno EINVAL if there is no such unit.
 *
 * The caller promises:
 * `inside` points into an object of alloc_percpu. Numbers that this_cpu_* changes may be read there, but not written.
 */
void *per_cpu_ptr(const void *inside, unsigned int unit);

/**
 * Adds to the 8 bytes at `word` in the unit of the CPU, wrapping and indivisibly, by a restartable sequence if
 * available. The macro this_cpu_add() takes pointers to numbers of any size; so do this_cpu_sub(), this_cpu_inc(),
 * this_cpu_dec().
 *
 * The caller promises:
 * `word` points into an object of alloc_percpu, to a multiple of 8.
 */
void this_cpu_add_8(uint64_t *word, uint64_t amount);

/**
 * Adds as this_cpu_add_8 does, to 4 bytes.
 *
 * The caller promises:
 * As this_cpu_add_8, to a multiple of 4.
 */
void this_cpu_add_4(uint32_t *word, uint32_t amount);

/**
 * Adds as this_cpu_add_8 does, to 2 bytes.
 *
 * The caller promises:
 * As this_cpu_add_8, to a multiple of 2.
 */
void this_cpu_add_2(uint16_t *word, uint16_t amount);

/**
 * Adds as this_cpu_add_8 does, to 1 byte.
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
 * Stores `value` in the 8 bytes at `word` in the unit of the CPU. Returns the previous value.
 *
 * The caller promises:
 * As this_cpu_add_8.
 */
uint64_t this_cpu_xchg_8(uint64_t *word, uint64_t value);

/**
 * Stores `value` as this_cpu_xchg_8 does, if the previous value is `old`. Returns the previous value.
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
 * Initialises a counter with `amount`. It allocates nothing, unless it is the first use of per-CPU memory.
 *
 * 0, or -1 with errno EINVAL if `counter` is NULL, ENOMEM if there is no memory.
 *
 * The caller promises:
 * `counter` is NULL or points to such a struct that is not an initialised counter.
 */
int percpu_counter_init(struct percpu_counter *counter, int64_t amount);

/**
 * Destroys a counter. NULL is ignored.
 *
 * The caller promises:
 * `counter` is NULL or a counter that no thread uses any more.
 */
void percpu_counter_destroy(struct percpu_counter *counter);

/**
 * Gives a counter a delta on each CPU, if it is one word. The functions that add do so after contention, and go on
 * with one word if there is no memory.
 *
 * 0, or -1 with errno ENOMEM if there is no memory.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int percpu_counter_promote(struct percpu_counter *counter);

/**
 * Returns true if a counter has a delta on each CPU, and false if it is one word.
 *
 * The caller promises:
 * `counter` is a counter.
 */
bool percpu_counter_is_percpu(const struct percpu_counter *counter);

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
 * Adds 1 to a counter.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_inc(struct percpu_counter *counter);

/**
 * Subtracts 1 from a counter.
 *
 * The caller promises:
 * `counter` is a counter.
 */
void percpu_counter_dec(struct percpu_counter *counter);

/**
 * Adds to a counter unless the sum would exceed `limit`: rise above it by a positive amount, or fall below it by a
 * negative one. Returns true if it added.
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
 * Returns an approximate value, by one load, without the deltas of the CPUs.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_read(const struct percpu_counter *counter);

/**
 * Returns the value of percpu_counter_read, or 0 if it is negative.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_read_positive(const struct percpu_counter *counter);

/**
 * Returns the exact sum of all earlier additions.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int64_t percpu_counter_sum(const struct percpu_counter *counter);

/**
 * Returns -1, 0 or 1 if the sum is less than `other`, equal or greater.
 *
 * The caller promises:
 * `counter` is a counter.
 */
int percpu_counter_compare(const struct percpu_counter *counter, int64_t other);

/**
 * Initialises a count with a first reference, which percpu_ref_kill puts. `release` is called with `count` when the
 * last reference is put; it may call percpu_ref_exit and free the memory. `flags` are PERCPU_REF_INIT_ATOMIC,
 * PERCPU_REF_INIT_DEAD and PERCPU_REF_ALLOW_REINIT, or 0.
 *
 * 0, or -1 with errno EINVAL if `count` or `release` is NULL or there is another flag, ENOMEM if there is no memory.
 *
 * The caller promises:
 * `count` is NULL or points to such a struct that is not an initialised count. `release` may be called in any thread
 * that puts a reference.
 */
int percpu_ref_init(struct percpu_ref *count, void (*release)(struct percpu_ref *count), unsigned int flags);

/**
 * Ends a count, in any state. NULL is ignored.
 *
 * The caller promises:
 * `count` is NULL or a count that no thread uses any more.
 */
void percpu_ref_exit(struct percpu_ref *count);

/**
 * Gets a reference. The caller holds one, or knows that the first one is not put yet.
 *
 * The caller promises:
 * `count` is a count.
 */
void percpu_ref_get(struct percpu_ref *count);

/**
 * Gets several references.
 *
 * The caller promises:
 * `count` is a count.
 */
void percpu_ref_get_many(struct percpu_ref *count, unsigned int references);

/**
 * Gets a reference unless the count is 0. Returns true if it did. It may succeed with a dead count.
 *
 * The caller promises:
 * `count` is a count.
 */
bool percpu_ref_tryget(struct percpu_ref *count);

/**
 * Gets several references unless the count is 0. Returns true if it did.
 *
 * The caller promises:
 * `count` is a count.
 */
bool percpu_ref_tryget_many(struct percpu_ref *count, unsigned int references);

/**
 * Gets a reference unless the count is dead. Returns true if it did.
 *
 * The caller promises:
 * `count` is a count.
 */
bool percpu_ref_tryget_live(struct percpu_ref *count);

/**
 * Puts a reference that the caller holds. If it was the last one, calls the function that percpu_ref_init was given.
 *
 * The caller promises:
 * `count` is a count.
 */
void percpu_ref_put(struct percpu_ref *count);

/**
 * Puts several references.
 *
 * The caller promises:
 * `count` is a count.
 */
void percpu_ref_put_many(struct percpu_ref *count, unsigned int references);

/**
 * Kills a count: puts its first reference, and percpu_ref_tryget_live fails from now on in all threads.
 *
 * 0, or -1 with errno EALREADY if it is dead, EPERM if the system denies what ends the counts of the CPUs.
 *
 * The caller promises:
 * `count` is a count.
 */
int percpu_ref_kill(struct percpu_ref *count);

/**
 * Kills a count as percpu_ref_kill does, and calls `confirm` once percpu_ref_tryget_live fails in all threads, before
 * the first reference is put. `confirm` may be NULL.
 *
 * As percpu_ref_kill.
 *
 * The caller promises:
 * `count` is a count, and `confirm` NULL or a function that leaves it initialised.
 */
int percpu_ref_kill_and_confirm(struct percpu_ref *count, void (*confirm)(struct percpu_ref *count));

/**
 * Makes a dead count live again, with a first reference, after all references were put.
 *
 * 0, or -1 with errno EINVAL if it is not dead, EBUSY if references remain.
 *
 * The caller promises:
 * `count` is a count.
 */
int percpu_ref_reinit(struct percpu_ref *count);

/**
 * Makes a dead count live again, with a first reference, even if others remain.
 *
 * 0, or -1 with errno EINVAL if it is not dead.
 *
 * The caller promises:
 * `count` is a count.
 */
int percpu_ref_resurrect(struct percpu_ref *count);

/**
 * Switches to one atomic count, until percpu_ref_switch_to_percpu, also across a kill and reinit. It has done so when
 * it returns.
 *
 * 0, or -1 with errno EPERM if the system denies what ends the counts of the CPUs.
 *
 * The caller promises:
 * `count` is a count.
 */
int percpu_ref_switch_to_atomic(struct percpu_ref *count);

/**
 * Switches to counts on each CPU, if the system supports it. A dead count does so when it is live again.
 *
 * The caller promises:
 * `count` is a count.
 */
void percpu_ref_switch_to_percpu(struct percpu_ref *count);

/**
 * Returns true if a count was killed.
 *
 * The caller promises:
 * `count` is a count.
 */
bool percpu_ref_is_dying(const struct percpu_ref *count);

/**
 * Returns true if a count is 0, and false while the CPUs count.
 *
 * The caller promises:
 * `count` is a count.
 */
bool percpu_ref_is_zero(const struct percpu_ref *count);

#ifdef __cplusplus
}
#endif

#endif  /* VMALLOC_H */
