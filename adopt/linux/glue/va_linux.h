/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The areas of the core, for C: see adopt/linux/src/abi.rs, which states contexts and results.
 */
#ifndef VA_LINUX_H
#define VA_LINUX_H

#include <linux/types.h>

struct va_range {
	u64 start, end;
};

/* Results of an alloc that are no address. */
enum va_failure {
	VA_NO_SPACE = 0,
	VA_NO_MEMORY = 1,
	VA_BAD_REQUEST = 2,
	VA_TRY_AGAIN = 3,
	VA_FAILURES = 4,
};

/* What va_find_above returns for an area that is a block of small mappings, which has no record. */
#define VA_A_BLOCK 1

struct va_counts {
	u64 areas, holes, pooled_areas, cached_areas, lazy_pages, purges, purged_areas;
};

int va_init(u64 lowest, u64 start, u64 end, const struct va_range *busy, size_t count);

/* CPUs from this number on have nothing at hand: CPUS_MAX of adopt/linux/src/abi.rs. */
#define VA_CPUS_MAX 512

/* What a CPU has at hand. Null on a CPU that has none. */
struct va_caches;
struct va_caches *va_cpu_init(u32 cpu);

/* On the CPU of the caches, with preemption off. */
u64 va_take(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record);
u64 va_try_alloc(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record);
bool va_release(struct va_caches *caches, u64 at);
u64 va_try_alloc_small(struct va_caches *caches, u64 pages);
bool va_free_small(struct va_caches *caches, u64 at, u64 pages);

/* May sleep. */
u64 va_alloc(u32 cpu, u64 size, u64 align, u64 start, u64 end, void *record);
u64 va_alloc_small(u32 cpu, u64 pages);
u64 va_congruent(const struct va_range *offsets_and_sizes, size_t count, u64 align);
u64 va_drain(void);
void va_unmap_aliases(u64 start, u64 end);
u64 va_purge_all(void);
u64 va_shrink(void);
void va_drain_cpu(u32 cpu);
void va_each_lazy(void (*each)(u8 *with, u64 start, u64 end), u8 *with);

/* In a section of RCU: a lookup reads memory that a shrinker may return meanwhile. */
u64 va_find(u64 at);
u64 va_find_above(u64 at, struct va_range *area);
u64 va_detach(u64 at);

/*
 * Anywhere. A record is an address that its area was noted with. Its first two words are the start and the end of the
 * area: an alloc writes them before the area is found.
 */
int va_note(u64 at, u64 record);
u64 va_lazy_pages(void);
u64 va_lazy_max(void);
u64 va_idle_pages(void);
void va_counts(struct va_counts *out);
int va_validate(void);
/* With the KASAN feature of the core alone. */
void va_plant(u8 *at);

/* What the core calls. See adopt/linux/src/os.rs. */
void va_os_lock(u32 lock[2]);
bool va_os_trylock(u32 lock[2]);
void va_os_unlock(u32 lock[2]);
void va_os_locking(u32 class);
void va_os_preempt_off(void);
void va_os_preempt_on(void);
void va_os_mutex_lock(const void *key);
bool va_os_mutex_trylock(const void *key);
void va_os_mutex_unlock(const void *key);
void *va_os_pages(size_t bytes, bool zeroed);
void va_os_pages_free(void *at, size_t bytes);
void va_os_pages_retire(void *at, size_t bytes);
void va_os_flush(u64 start, u64 end);
void va_os_settled(u64 start, u64 end, bool flush);
void va_os_wake(void);
u64 va_os_reclaim(void);
u32 va_os_cpus_possible(void);
u32 va_os_cpus_online(void);
u32 va_os_cpu(void);
void va_os_bug(const u8 *file, size_t len, u32 line);

/* Bytes of the core's tables and records. */
long va_os_meta_bytes(void);

/* Before attempt `nth`, from 0, to repeat a call of the core that failed with VA_NO_MEMORY. The flags are of GFP_RECLAIM_MASK. */
bool va_os_supply(unsigned int nth, gfp_t gfp_mask);

#endif
