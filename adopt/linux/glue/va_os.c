// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The kernel's part of the core's machine: locks, memory, CPUs. What needs mm/vmalloc.c's own names is in va_glue.h.
 */
#include <linux/bug.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/kmemleak.h>
#include <linux/lockdep.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/proc_fs.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include "va_record.h"

/*
 * The first word is the architecture's spin lock, as zeroed memory holds it free. lockdep knows each by its class, of
 * va_base::LockClass: the core names it before it takes a lock. While that is held, the second word has what va_named said.
 */
static_assert(sizeof(arch_spinlock_t) == sizeof(u32));

#ifdef CONFIG_DEBUG_LOCK_ALLOC
#define VA_MAP(nth, name) [nth] = STATIC_LOCKDEP_MAP_INIT("va_" name, &va_maps[nth])
static struct lockdep_map va_maps[] = {
	VA_MAP(0, "pool"), VA_MAP(1, "lazy"), VA_MAP(2, "free"), VA_MAP(3, "purge"), VA_MAP(4, "queue"),
	VA_MAP(5, "lookup"), VA_MAP(6, "collect"), VA_MAP(7, "busy"), VA_MAP(8, "batched"), VA_MAP(9, "owner"),
	VA_MAP(10, "closing"), VA_MAP(11, "records"), VA_MAP(12, "grow"), VA_MAP(13, "chunks"), VA_MAP(14, "other"),
};

/* One more than the class that was named, or 0. */
static DEFINE_PER_CPU(u32, va_class);

void va_os_locking(u32 class)
{
	preempt_disable();
	this_cpu_write(va_class, class + 1);
}

/*
 * Called with preemption off. Returns one more than the class, or 0: a core without the KASAN feature names none, and two
 * of its locks that are held at a time would look like one.
 */
static u32 va_named(void)
{
	u32 class = this_cpu_xchg(va_class, 0);

	if (class)
		preempt_enable();
	return class <= ARRAY_SIZE(va_maps) ? class : 0;
}

#define va_acquired(class, trylock)							\
	do {										\
		if (class)								\
			spin_acquire(&va_maps[(class) - 1], 0, trylock, _RET_IP_);	\
	} while (0)
#define va_released(class)								\
	do {										\
		if (class)								\
			spin_release(&va_maps[(class) - 1], _RET_IP_);			\
	} while (0)
#else
static u32 va_named(void)
{
	return 0;
}

#define va_acquired(class, trylock) do { } while (0)
#define va_released(class) do { } while (0)
#endif

void va_os_lock(u32 lock[2])
{
	u32 class;

	preempt_disable();
	class = va_named();
	va_acquired(class, 0);
	arch_spin_lock((arch_spinlock_t *)lock);
	lock[1] = class;
}

bool va_os_trylock(u32 lock[2])
{
	u32 class;

	preempt_disable();
	class = va_named();
	if (arch_spin_trylock((arch_spinlock_t *)lock)) {
		va_acquired(class, 1);
		lock[1] = class;
		return true;
	}
	preempt_enable();
	return false;
}

void va_os_unlock(u32 lock[2])
{
	va_released(lock[1]);
	arch_spin_unlock((arch_spinlock_t *)lock);
	preempt_enable();
}

void va_os_preempt_off(void)
{
	preempt_disable();
}

void va_os_preempt_on(void)
{
	preempt_enable();
}

/*
 * The mutex of an address. The core has two such locks, which stay where they are: the first use of one takes a mutex for
 * it.
 */
static struct va_mutex {
	const void *key;
	struct mutex mutex;
} va_mutexes[] = {
	{ .mutex = __MUTEX_INITIALIZER(va_mutexes[0].mutex) },
	{ .mutex = __MUTEX_INITIALIZER(va_mutexes[1].mutex) },
};

static struct mutex *va_mutex_of(const void *key)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(va_mutexes); i++) {
		const void *known = READ_ONCE(va_mutexes[i].key) ?: cmpxchg(&va_mutexes[i].key, NULL, key) ?: key;

		if (known == key)
			return &va_mutexes[i].mutex;
	}
	BUG();
}

void va_os_mutex_lock(const void *key)
{
	/* A long purge takes it for each slice. */
	cond_resched();
	mutex_lock(va_mutex_of(key));
}

bool va_os_mutex_trylock(const void *key)
{
	return mutex_trylock(va_mutex_of(key));
}

void va_os_mutex_unlock(const void *key)
{
	mutex_unlock(va_mutex_of(key));
}

/* Pieces of at most so many bytes are objects of the slab allocator if it has any. */
#define VA_SMALL_MAX (PAGE_SIZE / 2)

/* Memory of the core's tables and records. */
static atomic_long_t va_meta_bytes;

long va_os_meta_bytes(void)
{
	return atomic_long_read(&va_meta_bytes);
}

/*
 * Zeroed memory at hand, so that an alloc neither fills it nor waits for the page allocator: a CPU that has no page there
 * fetches a batch, in some 30,000 instructions. Most requests are for a page, or for a table of 64 MiB of addresses.
 * Each piece has the address of the next in its first word. A worker adds more. Like a mempool it is not shrunk.
 *
 * va_os_supply adds what could not be had, for a second attempt. The last entry is for another size.
 */
static struct va_spare {
	size_t bytes;
	unsigned int most, pieces;
	void **first;
} va_spares[] = {
	{ .bytes = PAGE_SIZE, .most = 32 },
	{ .bytes = 3 * PAGE_SIZE, .most = 4 },
	{ },
};
/* Calls that are repeated at most, and pieces that are kept for them. */
#define VA_SUPPLY_ATTEMPTS 8
#define VA_MISSED (&va_spares[ARRAY_SIZE(va_spares) - 1])
static DEFINE_SPINLOCK(va_spare_lock);
/* The bytes of the last request that failed here. */
static size_t va_missed;

/* With the lock. */
static void *va_spare_pop(struct va_spare *spare)
{
	void **at = spare->first;

	if (at) {
		spare->first = *at;
		spare->pieces--;
		*at = NULL;
	}
	return at;
}

static void va_spare_push(struct va_spare *spare, void **at)
{
	*at = spare->first;
	spare->first = at;
	spare->pieces++;
}

static void va_spare_fill(struct work_struct *work)
{
	struct va_spare *spare;

	for (spare = va_spares; spare < VA_MISSED; spare++) {
		while (READ_ONCE(spare->pieces) < spare->most) {
			void **at = alloc_pages_exact(spare->bytes,
						      GFP_KERNEL | __GFP_ZERO | __GFP_NORETRY | __GFP_NOWARN);

			if (!at)
				break;
			spin_lock(&va_spare_lock);
			va_spare_push(spare, at);
			spin_unlock(&va_spare_lock);
		}
	}
}

static DECLARE_WORK(va_spare_work, va_spare_fill);

static int __init va_spare_init(void)
{
	va_spare_fill(NULL);
	return 0;
}
late_initcall(va_spare_init);

static size_t va_spare_bytes(void)
{
	size_t bytes = 0;
	int i;

	for (i = 0; i < ARRAY_SIZE(va_spares); i++)
		bytes += va_spares[i].bytes * READ_ONCE(va_spares[i].pieces);
	return bytes;
}

/* Takes memory at hand, and has more made where half is left. */
static void *va_spare_take(size_t bytes)
{
	struct va_spare *spare;
	bool few = false;
	void *at = NULL;

	spin_lock(&va_spare_lock);
	for (spare = va_spares; !at && spare <= VA_MISSED; spare++) {
		if (bytes != spare->bytes)
			continue;
		at = va_spare_pop(spare);
		few |= spare != VA_MISSED && spare->pieces <= spare->most / 2;
	}
	spin_unlock(&va_spare_lock);
	if (few && system_state == SYSTEM_RUNNING)
		queue_work(system_highpri_wq, &va_spare_work);
	return at;
}

/*
 * Small pieces are objects of the slab allocator, such as the bits of a block: a page for each is five times as much. To
 * kmemleak they are no leaks, since it does not read the tables that refer to them. A power of two is aligned to itself.
 */
static void *va_small(size_t bytes)
{
	void *at = kzalloc(roundup_pow_of_two(bytes), GFP_NOWAIT | __GFP_NOWARN);

	kmemleak_ignore(at);
	return at;
}

static bool va_is_small(const void *at)
{
	return PageSlab(virt_to_head_page(at));
}

/* The memory that a piece takes. */
static size_t va_footprint(const void *at, size_t bytes)
{
	return va_is_small(at) ? roundup_pow_of_two(bytes) : PAGE_ALIGN(bytes);
}

/* Under a spin lock as a rule, and a CPU's preemption off. */
static void *va_pages(size_t bytes, bool zeroed)
{
	void *at = bytes <= VA_SMALL_MAX ? va_small(bytes) : NULL, *page;

	at = at ?: va_spare_take(PAGE_ALIGN(bytes));
	if (at)
		return at;
	/* Not of the reserves: a caller that may sleep has the request repeated, with reclaim. */
	at = alloc_pages_exact(bytes, GFP_NOWAIT | __GFP_NOWARN);
	if (!at)
		WRITE_ONCE(va_missed, PAGE_ALIGN(bytes));
	/* With __GFP_ZERO the pages would be filled, too, by which the request is rounded up and which return at once. */
	if (at && zeroed && !want_init_on_alloc(GFP_NOWAIT))
		for (page = at; page < at + bytes; page += PAGE_SIZE)
			clear_page(page);
	return at;
}

/*
 * After a call that failed for lack of memory: requests what was missing, with reclaim as the caller permits it. Returns
 * whether it is there, and the call may be repeated: it needs a few pieces at most, and takes one at a time.
 */
bool va_os_supply(unsigned int nth, gfp_t gfp_mask)
{
	size_t bytes = READ_ONCE(va_missed) ?: PAGE_SIZE, unused = bytes;
	struct va_spare *spare = va_spares;
	void **at, *old = NULL;

	if (!gfpflags_allow_blocking(gfp_mask) || nth == VA_SUPPLY_ATTEMPTS)
		return false;
	/* A caller that may not fail repeats its request. */
	at = alloc_pages_exact(bytes, (gfp_mask & ~__GFP_NOFAIL) | __GFP_ZERO);
	if (!at)
		return false;
	while (spare < VA_MISSED && spare->bytes != bytes)
		spare++;
	spin_lock(&va_spare_lock);
	if (spare == VA_MISSED && spare->bytes != bytes) {
		unused = spare->bytes;
		old = spare->first;
		*spare = (struct va_spare){ .bytes = bytes };
	}
	if (spare->pieces < spare->most + VA_SUPPLY_ATTEMPTS)
		va_spare_push(spare, at);
	else
		old = at;
	spin_unlock(&va_spare_lock);
	while ((at = old)) {
		old = *at;
		free_pages_exact(at, unused);
	}
	return true;
}

void *va_os_pages(size_t bytes, bool zeroed)
{
	void *at = va_record_fails() ? NULL : va_pages(bytes, zeroed);

	va_record_request("+%s %zx %x", zeroed ? "table" : "pages", bytes, !!at);
	if (at)
		atomic_long_add(va_footprint(at, bytes), &va_meta_bytes);
	return at;
}

static void va_pages_free(void *at, size_t bytes)
{
	atomic_long_sub(va_footprint(at, bytes), &va_meta_bytes);
	if (va_is_small(at))
		kfree(at);
	else
		free_pages_exact(at, bytes);
}

void va_os_pages_free(void *at, size_t bytes)
{
	va_record_request("+free %zx", bytes);
	va_pages_free(at, bytes);
}

static void va_os_retired(struct rcu_head *head)
{
	struct page *page = container_of(head, struct page, rcu_head);
	size_t bytes = page_private(page);

	set_page_private(page, 0);
	va_pages_free(page_address(page), bytes);
}

/* Frees whole pages once no section of RCU is left that has begun by now. */
void va_os_pages_retire(void *at, size_t bytes)
{
	struct page *page = virt_to_page(at);

	va_record_request("+free %zx", bytes);
	set_page_private(page, bytes);
	call_rcu(&page->rcu_head, va_os_retired);
}

u32 va_os_cpus_possible(void)
{
	return nr_cpu_ids;
}

u32 va_os_cpu(void)
{
	return smp_processor_id();
}

u32 va_os_cpus_online(void)
{
	return va_record_online();
}

void va_os_bug(const u8 *file, size_t len, u32 line)
{
	pr_emerg("va: stopped at %.*s:%u\n", (int)len, file, line);
	BUG();
}

#ifdef CONFIG_PROC_FS
static int va_show(struct seq_file *m, void *unused)
{
	struct va_counts counts = { };
	int tries, invalid;

	va_counts(&counts);
	seq_printf(m, "areas %llu\nholes %llu\npooled %llu\ncached %llu\nlazy_pages %llu\npurges %llu\npurged %llu\n",
		   counts.areas, counts.holes, counts.pooled_areas, counts.cached_areas, counts.lazy_pages,
		   counts.purges, counts.purged_areas);
	seq_printf(m, "meta_kb %ld\n",
		   (atomic_long_read(&va_meta_bytes) + (long)va_spare_bytes()) >> 10);
	/* Exact while no other call runs: a purge may be under way. */
	for (tries = 0; (invalid = va_validate()) < 0 && tries < 20; tries++)
		msleep(50);
	if (invalid <= 0)
		seq_printf(m, "valid %d\n", !invalid);
	return 0;
}

#ifdef CONFIG_KASAN
/*
 * Copies from a program into a small mapping, as a driver does, which may then free it as what it is not. Returns the
 * bytes that were copied.
 */
static ssize_t va_plant_copy(const char __user *from, size_t bytes, bool wrong)
{
	struct page *page = alloc_page(GFP_KERNEL);
	void *at = page ? vm_map_ram(&page, 1, NUMA_NO_NODE) : NULL;
	ssize_t copied = -ENOMEM;

	if (at) {
		copied = min(bytes, PAGE_SIZE);
		copied -= copy_from_user(at, from, copied);
		if (wrong)
			vfree(at);
		vm_unmap_ram(at, 1);
	}
	if (page)
		__free_page(page);
	return copied;
}

/*
 * Mistakes for the tools of a debug kernel to find, by their first letter: an overflow and a freed object, which the core
 * writes to, an area that is lost, and a wrong free of a small mapping. And a copy, in which there is none.
 */
static ssize_t va_plant_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	u8 *object;
	char what;

	if (!bytes || get_user(what, from))
		return -EFAULT;
	if (what == 'c' || what == 'w')
		return va_plant_copy(from, bytes, what == 'w');
	if (what == 'l') {
		void *lost = vmalloc(PAGE_SIZE);

		OPTIMIZER_HIDE_VAR(lost);
		return lost ? bytes : -ENOMEM;
	}
	object = kmalloc(64, GFP_KERNEL);
	if (!object)
		return -ENOMEM;
	if (what == 'o')
		va_plant(object + 64);
	kfree(object);
	if (what == 'f')
		va_plant(object);
	return bytes;
}

static const struct proc_ops va_plant_ops = { .proc_write = va_plant_write };
#endif

static int __init va_proc_init(void)
{
	proc_create_single("va_linux", 0400, NULL, va_show);
#ifdef CONFIG_KASAN
	proc_create("va_plant", 0200, NULL, &va_plant_ops);
#endif
	return 0;
}
late_initcall(va_proc_init);
#endif
