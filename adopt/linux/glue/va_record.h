/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * In a kernel that records (VA_RECORD): every call of the core that changes its state, and every request that the core
 * makes meanwhile, in the order in which they happen. One mutex is held for the length of a call, so that the order is
 * total on any number of CPUs. docs/formats.md describes the text, which `vmlab replay --calls` replays.
 *
 * In other kernels none of this is compiled: the functions of the glue call the core directly.
 */
#ifndef VA_RECORD_H
#define VA_RECORD_H

#include "va_linux.h"

#ifdef VA_RECORD
/* From before preemption is off for a call, or a section of RCU begins, until after it. The holder may take it again. */
void va_record_lock(void);
void va_record_unlock(void);
/* A request of the core, within a call. */
__printf(1, 2) void va_record_request(const char *format, ...);
/* The CPUs that are online, as the core sees them during a call. */
u32 va_record_online(void);
/* True if the memory that the core requests is to fail, by /proc/va_calls. */
bool va_record_fails(void);

int va_recorded_init(u64 lowest, u64 start, u64 end, const struct va_range *busy, size_t count);
struct va_caches *va_recorded_cpu_init(u32 cpu);
u64 va_recorded_take(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record);
u64 va_recorded_try_alloc(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record);
bool va_recorded_release(struct va_caches *caches, u64 at);
u64 va_recorded_try_alloc_small(struct va_caches *caches, u64 pages);
bool va_recorded_free_small(struct va_caches *caches, u64 at, u64 pages);
u64 va_recorded_alloc(u32 cpu, u64 size, u64 align, u64 start, u64 end, void *record);
u64 va_recorded_alloc_small(u32 cpu, u64 pages);
u64 va_recorded_congruent(const struct va_range *offsets_and_sizes, size_t count, u64 align);
u64 va_recorded_drain(void);
void va_recorded_unmap_aliases(u64 start, u64 end);
u64 va_recorded_purge_all(void);
u64 va_recorded_shrink(void);
void va_recorded_drain_cpu(u32 cpu);
int va_recorded_note(u64 at, u64 record);
u64 va_recorded_detach(u64 at);
/* These change nothing and are not recorded, but take locks that another call would only try. */
void va_recorded_each_lazy(void (*each)(u8 *with, u64 start, u64 end), u8 *with);
void va_recorded_counts(struct va_counts *out);
u64 va_recorded_idle_pages(void);
int va_recorded_validate(void);

#ifndef VA_RECORDER
#define va_init(...) va_recorded_init(__VA_ARGS__)
#define va_cpu_init(...) va_recorded_cpu_init(__VA_ARGS__)
#define va_take(...) va_recorded_take(__VA_ARGS__)
#define va_try_alloc(...) va_recorded_try_alloc(__VA_ARGS__)
#define va_release(...) va_recorded_release(__VA_ARGS__)
#define va_try_alloc_small(...) va_recorded_try_alloc_small(__VA_ARGS__)
#define va_free_small(...) va_recorded_free_small(__VA_ARGS__)
#define va_alloc(...) va_recorded_alloc(__VA_ARGS__)
#define va_alloc_small(...) va_recorded_alloc_small(__VA_ARGS__)
#define va_congruent(...) va_recorded_congruent(__VA_ARGS__)
#define va_drain(...) va_recorded_drain(__VA_ARGS__)
#define va_unmap_aliases(...) va_recorded_unmap_aliases(__VA_ARGS__)
#define va_purge_all(...) va_recorded_purge_all(__VA_ARGS__)
#define va_shrink(...) va_recorded_shrink(__VA_ARGS__)
#define va_drain_cpu(...) va_recorded_drain_cpu(__VA_ARGS__)
#define va_note(...) va_recorded_note(__VA_ARGS__)
#define va_detach(...) va_recorded_detach(__VA_ARGS__)
#define va_each_lazy(...) va_recorded_each_lazy(__VA_ARGS__)
#define va_counts(...) va_recorded_counts(__VA_ARGS__)
#define va_idle_pages(...) va_recorded_idle_pages(__VA_ARGS__)
#define va_validate(...) va_recorded_validate(__VA_ARGS__)
#endif
#else
#define va_record_lock() do { } while (0)
#define va_record_unlock() do { } while (0)
#define va_record_request(...) do { } while (0)
#define va_record_online() num_online_cpus()
#define va_record_fails() false
#endif
#endif
