/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions of mm/vmalloc.c that decide addresses, over the core. Included there in place of those that the script
 * takes out, and so in the reach of that file's own names.
 *
 * A record (`struct vmap_area`) is stored with its area as a number, and found by it: there is no tree of busy areas.
 * It lies behind its vm_struct, or, for vm_map_ram, alone. From find_unlink_vmap_area on it belongs to its finder.
 *
 * Readers of records (vread, vmallocinfo) hold va_readers_lock for reading and are counted. A thread that detaches a
 * record while there are readers waits for them, once; without a reader that costs a load. The count is raised before a reader
 * looks a record up, and read after a record is detached, both by atomic operations that order: so either the reader
 * does not find the record, or its owner sees the reader. A reader has preemption off, so it is never waited for while it
 * does not run. A small mapping has no record: there the entries of the page table are what a reader finds. Its free
 * waits after these are cleared, since its pages are used for something else as soon as it returns. A flush waits, too,
 * so that the addresses of a block are not used again while it is read.
 */
#include <linux/cpuhotplug.h>
#include <linux/kmemleak.h>
#include <linux/spinlock.h>
#include "va_record.h"

/* A spin lock of the core is held with preemption off, and pages are requested meanwhile. */
#ifdef CONFIG_PREEMPT_RT
#error "va: a kernel with PREEMPT_RT is not supported"
#endif
/* The object is compiled without them. */
#if defined(CONFIG_MITIGATION_RETPOLINE) || defined(CONFIG_MITIGATION_RETHUNK) || defined(CONFIG_MITIGATION_SLS) || \
	defined(CONFIG_CFI_CLANG)
#error "va: retpolines, return thunks, traps behind returns and kCFI are not supported"
#endif
/* What the core writes would count as never written. */
#ifdef CONFIG_KMSAN
#error "va: a kernel with KMSAN is not supported"
#endif
#ifndef CONFIG_SMP
#error "va: a kernel for one CPU is not supported"
#endif

struct va_record {
	struct vm_struct vm;
	struct vmap_area va;
};

static DEFINE_RWLOCK(va_readers_lock);
static atomic_t va_readers = ATOMIC_INIT(0);

/* What each CPU has at hand, for the thread that runs there with preemption off. Null before vmalloc_init. */
static DEFINE_PER_CPU(struct va_caches *, va_caches);

static void *vb_alloc(unsigned long size, gfp_t gfp_mask);
static void vb_free(unsigned long addr, unsigned long size);
static size_t aligned_vread_iter(struct iov_iter *iter, const char *addr, size_t count);
static void free_vmap_area(struct vmap_area *va);
static struct vmap_area *va_block_record(unsigned long addr);

/* Counts a reader, which holds the lock. */
static void va_readers_count(void)
{
	atomic_inc(&va_readers);
	smp_mb__after_atomic();
}

static void va_readers_enter(void)
{
	read_lock(&va_readers_lock);
	va_readers_count();
}

static void va_readers_leave(void)
{
	atomic_dec(&va_readers);
	read_unlock(&va_readers_lock);
}

/* After a barrier behind the change of what readers find: a record that was detached, or an entry of a page table. */
static void va_readers_wait(void)
{
	if (unlikely(atomic_read(&va_readers))) {
		write_lock(&va_readers_lock);
		write_unlock(&va_readers_lock);
	}
}

static struct vmap_area *va_record_of(u64 note)
{
	return (struct vmap_area *)(unsigned long)note;
}

static_assert(offsetof(struct vmap_area, va_start) == 0 && offsetof(struct vmap_area, va_end) == sizeof(u64));

/* Takes an area: one that this CPU has at hand, else from what is available, else with all that may sleep. */
static u64 va_find_room(unsigned long size, unsigned long align, unsigned long start, unsigned long end,
			struct vmap_area *va, gfp_t gfp_mask)
{
	unsigned int nth = 0;
	struct va_caches *caches;
	u64 at;

	va_record_lock();
	preempt_disable();
	caches = __this_cpu_read(va_caches);
	at = va_take(caches, size, align, start, end, va);
	if (unlikely(at < VA_FAILURES))
		at = va_try_alloc(caches, size, align, start, end, va);
	preempt_enable();
	va_record_unlock();
	if (likely(at >= VA_FAILURES))
		return at;
	do
		at = va_alloc(raw_smp_processor_id(), size, align, start, end, va);
	while (at == VA_NO_MEMORY && va_os_supply(nth++, gfp_mask));
	return at;
}

/* The record and its fields that are no references: the area is found by a number that kmemleak does not read. */
static void va_record_known(struct va_record *record, gfp_t gfp_mask)
{
	kmemleak_not_leak(record);
	kmemleak_scan_area(&record->vm, sizeof(record->vm), gfp_mask);
}

/* The error for a request that found no area. Apart, so that one that finds an area is not checked twice. */
static noinline int va_no_area(u64 failure, unsigned long size, unsigned long align, unsigned long vstart,
			       unsigned long vend, gfp_t gfp_mask)
{
	if (!size || offset_in_page(size) || !is_power_of_2(align))
		return -EINVAL;
	trace_alloc_vmap_area(vend, size, align, vstart, vend, true);
	if (failure == VA_NO_MEMORY)
		return -ENOMEM;
	if (!(gfp_mask & __GFP_NOWARN) && printk_ratelimit())
		pr_warn("vmalloc: no %lu bytes of addresses between %#lx and %#lx\n", size, vstart, vend);
	return -EBUSY;
}

/* Frees an area that is detached or was never noted. Its addresses are used again after a flush. */
static void va_put(unsigned long at)
{
	bool released;

	va_record_lock();
	preempt_disable();
	released = va_release(__this_cpu_read(va_caches), at);
	preempt_enable();
	va_record_unlock();
	WARN_ONCE(!released, "va: nothing is detached at %#lx\n", at);
}

static struct vmap_area *alloc_vmap_area(unsigned long size, unsigned long align, unsigned long vstart,
					 unsigned long vend, int node, gfp_t gfp_mask, unsigned long va_flags,
					 struct vm_struct *vm)
{
	struct vmap_area *va;
	u64 at;
	int error;

	if (unlikely(!vmap_initialized))
		return ERR_PTR(-EBUSY);
	might_sleep();
	gfp_mask &= GFP_RECLAIM_MASK;
	if (vm) {
		va = &container_of(vm, struct va_record, vm)->va;
		va_record_known(container_of(vm, struct va_record, vm), gfp_mask);
	} else {
		va = kmem_cache_alloc_node(vmap_area_cachep, gfp_mask, node);
		if (unlikely(!va))
			return ERR_PTR(-ENOMEM);
		kmemleak_not_leak(va);
	}

	/* A reader that finds the record before it is complete skips it: no flags, no vm_struct. */
	va->flags = va_flags;
	va->vm = NULL;
	at = va_find_room(size, align, vstart, vend, va, gfp_mask);
	if (unlikely(at < VA_FAILURES)) {
		error = va_no_area(at, size, align, vstart, vend, gfp_mask);
		if (!vm)
			kmem_cache_free(vmap_area_cachep, va);
		return ERR_PTR(error);
	}
	trace_alloc_vmap_area(at, size, align, vstart, vend, false);

	if (vm) {
		vm->addr = (void *)va->va_start;
		vm->size = size;
		smp_store_release(&va->vm, vm);
	}
	if (unlikely(kasan_populate_vmalloc(at, size, gfp_mask))) {
		free_vmap_area(va);
		return ERR_PTR(-ENOMEM);
	}
	return va;
}

static u64 va_found(unsigned long addr)
{
	u64 found = 0;

	if (likely(vmap_initialized)) {
		rcu_read_lock();
		found = va_find(addr);
		rcu_read_unlock();
	}
	return found;
}

struct vmap_area *find_vmap_area(unsigned long addr)
{
	struct vmap_area *va = va_record_of(va_found(addr));

	return likely(va || !vmap_initialized) ? va : va_block_record(addr);
}

static struct vmap_area *find_unlink_vmap_area(unsigned long addr)
{
	struct vmap_area *va;

	va_record_lock();
	rcu_read_lock();
	va = va_record_of(va_detach(addr));
	rcu_read_unlock();
	va_record_unlock();
	/* The detach is an atomic operation. */
	smp_mb__after_atomic();
	va_readers_wait();
	return va;
}

static void free_vmap_area_noflush(struct vmap_area *va)
{
	unsigned long at = va->va_start;

	/* A record of a vm_struct is freed with it, by its owner. */
	if (!va->vm)
		kmem_cache_free(vmap_area_cachep, va);
	if (trace_free_vmap_area_noflush_enabled())
		trace_free_vmap_area_noflush(at, va_lazy_pages(), va_lazy_max());
	va_put(at);
}

static void free_vmap_area(struct vmap_area *va)
{
	BUG_ON(find_unlink_vmap_area(va->va_start) != va);
	free_vmap_area_noflush(va);
}

/*
 * For vread_iter: the lowest area that ends above an address, or a block, which has no record. Its addresses are of no
 * other area until va_readers_leave, and the result says no more than that there is one.
 */
static struct vmap_node {
	char unused;
} va_reading;

static struct vmap_node *find_vmap_area_exceed_addr_lock(unsigned long addr, struct vmap_area **va,
							 struct vmap_area *block);

/* Pages that are not mapped read as zeros. */
static size_t vmap_ram_vread_iter(struct iov_iter *iter, const char *addr, size_t count, unsigned long flags)
{
	return aligned_vread_iter(iter, addr, count);
}

/* Purges */

/* What was freed, of blocks too, and the range are covered by one flush. */
static void _vm_unmap_aliases(unsigned long start, unsigned long end, int flush)
{
	struct va_counts before = { }, after = { };
	bool traced = trace_purge_vmap_area_lazy_enabled();

	if (unlikely(!vmap_initialized))
		return;
	might_sleep();
	if (traced)
		va_counts(&before);
	va_unmap_aliases(start, max(start, end));
	if (traced) {
		va_counts(&after);
		trace_purge_vmap_area_lazy(start, end, after.purged_areas - before.purged_areas);
	}
}

static void drain_vmap_area_work(struct work_struct *work)
{
	va_drain();
}

static DECLARE_WORK(va_drain_work, drain_vmap_area_work);

/*
 * Of a high priority, so that it runs at once: until then no freed area can be allocated again, and others are searched
 * in the index.
 */
static struct workqueue_struct *va_drain_wq;

static int __init va_drain_init(void)
{
	WRITE_ONCE(va_drain_wq, alloc_workqueue("vmap_drain", WQ_UNBOUND | WQ_HIGHPRI, 0));
	return 0;
}
core_initcall(va_drain_init);

void va_os_wake(void)
{
	va_record_request("+wake");
	queue_work(READ_ONCE(va_drain_wq) ?: system_unbound_wq, &va_drain_work);
}

void va_os_flush(u64 start, u64 end)
{
	va_record_request("+flush %llx %llx", start, end);
	smp_mb();
	va_readers_wait();
	flush_tlb_kernel_range(start, end);
}

/* With the KASAN feature of the core alone: the shadow goes with its area, and one flush follows for all of a call. */
void va_os_settled(u64 start, u64 end, bool flush)
{
	if (is_vmalloc_or_module_addr((void *)(unsigned long)start))
		kasan_release_vmalloc(start, end, start, end,
				      flush ? KASAN_VMALLOC_TLB_FLUSH : KASAN_VMALLOC_PAGE_RANGE);
}

u64 va_os_reclaim(void)
{
	unsigned long freed = 0;

	va_record_request("+reclaim");
	blocking_notifier_call_chain(&vmap_notify_list, 0, &freed);
	va_record_request("+reclaimed %lx", freed);
	return freed;
}
