// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The calls of the core as text, in a kernel that records: see va_record.h. /proc/va_calls has the text. Written to
 * it, "end" ends the recording, and "fail N" lets each Nth request for memory fail from then on.
 */
#define VA_RECORDER
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/stdarg.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "va_record.h"

/* From before there is memory to allocate. */
#define VA_TEXT_BYTES (128UL << 20)
/* Longer than any line. */
#define VA_LINE_BYTES 128

static DEFINE_MUTEX(va_record_mutex);

/* Under the mutex, but for the owner, which its reader compares with itself. */
static struct task_struct *va_record_owner;
static unsigned int va_record_depth;
/* Calls that have begun and not ended: more than one within a request to reclaim. */
static unsigned int va_record_calls;
static u32 va_record_cpus;
static u64 va_record_start, va_record_end;
static unsigned int va_record_fail_each, va_record_supplies;
static bool va_record_ended;
static size_t va_record_bytes;
static char va_record_text[VA_TEXT_BYTES];

void va_record_lock(void)
{
	if (READ_ONCE(va_record_owner) != current) {
		mutex_lock(&va_record_mutex);
		WRITE_ONCE(va_record_owner, current);
	}
	va_record_depth++;
}

void va_record_unlock(void)
{
	if (!--va_record_depth) {
		WRITE_ONCE(va_record_owner, NULL);
		mutex_unlock(&va_record_mutex);
	}
}

/* A line that does not fit ends the recording, without its last line. */
static void va_vline(const char *format, va_list arguments)
{
	if (va_record_ended)
		return;
	if (VA_TEXT_BYTES - va_record_bytes < VA_LINE_BYTES) {
		va_record_ended = true;
		return;
	}
	va_record_bytes += vscnprintf(va_record_text + va_record_bytes, VA_LINE_BYTES, format, arguments);
	va_record_text[va_record_bytes++] = '\n';
}

static __printf(1, 2) void va_line(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	va_vline(format, arguments);
	va_end(arguments);
}

void va_record_request(const char *format, ...)
{
	va_list arguments;

	if (!va_record_calls)
		return;
	va_start(arguments, format);
	va_vline(format, arguments);
	va_end(arguments);
}

/* The lines of a call are those of its arguments, then those of requests, then that of its result. */
static void va_begin(void)
{
	u32 cpus = num_online_cpus();

	va_record_lock();
	if (!va_record_calls++ && va_record_cpus != cpus) {
		va_record_cpus = cpus;
		va_line("online %x", cpus);
	}
}

static void va_result(u64 result)
{
	va_line("= %llx", result);
	va_record_calls--;
	va_record_unlock();
}

static void va_window(u64 start, u64 end)
{
	if (va_record_start == start && va_record_end == end)
		return;
	va_record_start = start;
	va_record_end = end;
	va_line("window %llx %llx", start, end);
}

u32 va_record_online(void)
{
	return va_record_calls ? va_record_cpus : num_online_cpus();
}

bool va_record_fails(void)
{
	return va_record_calls && va_record_fail_each && !(++va_record_supplies % va_record_fail_each);
}

int va_recorded_init(u64 lowest, u64 start, u64 end, const struct va_range *busy, size_t count)
{
	size_t i;
	int failed;

	va_record_lock();
	va_line("calls 1");
	va_line("possible %x", nr_cpu_ids);
	va_record_unlock();
	va_begin();
	for (i = 0; i < count; i++)
		va_line("busy %llx %llx", busy[i].start, busy[i].end);
	va_line("lowest %llx", lowest);
	va_window(start, end);
	va_line("init");
	failed = va_init(lowest, start, end, busy, count);
	va_result(!failed);
	return failed;
}

struct va_caches *va_recorded_cpu_init(u32 cpu)
{
	struct va_caches *caches;

	va_begin();
	va_line("cpu_init %x", cpu);
	caches = va_cpu_init(cpu);
	va_result(!!caches);
	return caches;
}

u64 va_recorded_take(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record)
{
	u64 at;

	va_begin();
	va_window(start, end);
	va_line("take %x %llx %llx", smp_processor_id(), size, align);
	at = va_take(caches, size, align, start, end, record);
	va_result(at);
	return at;
}

u64 va_recorded_try_alloc(struct va_caches *caches, u64 size, u64 align, u64 start, u64 end, void *record)
{
	u64 at;

	va_begin();
	va_window(start, end);
	va_line("try_alloc %x %llx %llx", smp_processor_id(), size, align);
	at = va_try_alloc(caches, size, align, start, end, record);
	va_result(at);
	return at;
}

u64 va_recorded_alloc(u32 cpu, u64 size, u64 align, u64 start, u64 end, void *record)
{
	u64 at;

	va_begin();
	va_window(start, end);
	va_line("alloc %x %llx %llx", cpu, size, align);
	at = va_alloc(cpu, size, align, start, end, record);
	va_result(at);
	return at;
}

u64 va_recorded_congruent(const struct va_range *offsets_and_sizes, size_t count, u64 align)
{
	size_t i;
	u64 at;

	va_begin();
	for (i = 0; i < count; i++)
		va_line("part %llx %llx", offsets_and_sizes[i].start, offsets_and_sizes[i].end);
	va_line("congruent %llx", align);
	at = va_congruent(offsets_and_sizes, count, align);
	va_result(at);
	return at;
}

int va_recorded_note(u64 at, u64 record)
{
	int failed;

	va_begin();
	va_line("note %llx", at);
	failed = va_note(at, record);
	va_result(!failed);
	return failed;
}

u64 va_recorded_detach(u64 at)
{
	u64 record;

	va_begin();
	va_line("detach %llx", at);
	record = va_detach(at);
	va_result(!!record);
	return record;
}

bool va_recorded_release(struct va_caches *caches, u64 at)
{
	bool released;

	va_begin();
	va_line("release %x %llx", smp_processor_id(), at);
	released = va_release(caches, at);
	va_result(released);
	return released;
}

u64 va_recorded_try_alloc_small(struct va_caches *caches, u64 pages)
{
	u64 at;

	va_begin();
	va_line("try_alloc_small %x %llx", smp_processor_id(), pages);
	at = va_try_alloc_small(caches, pages);
	va_result(at);
	return at;
}

u64 va_recorded_alloc_small(u32 cpu, u64 pages)
{
	u64 at;

	va_begin();
	va_line("alloc_small %x %llx", cpu, pages);
	at = va_alloc_small(cpu, pages);
	va_result(at);
	return at;
}

bool va_recorded_free_small(struct va_caches *caches, u64 at, u64 pages)
{
	bool freed;

	va_begin();
	va_line("free_small %x %llx %llx", smp_processor_id(), at, pages);
	freed = va_free_small(caches, at, pages);
	va_result(freed);
	return freed;
}

u64 va_recorded_drain(void)
{
	u64 areas;

	va_begin();
	va_line("drain");
	areas = va_drain();
	va_result(areas);
	return areas;
}

void va_recorded_unmap_aliases(u64 start, u64 end)
{
	va_begin();
	va_line("unmap_aliases %llx %llx", start, end);
	va_unmap_aliases(start, end);
	va_result(0);
}

u64 va_recorded_purge_all(void)
{
	u64 areas;

	va_begin();
	va_line("purge_all");
	areas = va_purge_all();
	va_result(areas);
	return areas;
}

u64 va_recorded_shrink(void)
{
	u64 areas;

	va_begin();
	va_line("shrink");
	areas = va_shrink();
	va_result(areas);
	return areas;
}

void va_recorded_drain_cpu(u32 cpu)
{
	va_begin();
	va_line("drain_cpu %x", cpu);
	va_drain_cpu(cpu);
	va_result(0);
}

void va_recorded_each_lazy(void (*each)(u8 *with, u64 start, u64 end), u8 *with)
{
	va_record_lock();
	va_each_lazy(each, with);
	va_record_unlock();
}

void va_recorded_counts(struct va_counts *out)
{
	va_record_lock();
	va_counts(out);
	va_record_unlock();
}

u64 va_recorded_idle_pages(void)
{
	u64 pages;

	va_record_lock();
	pages = va_idle_pages();
	va_record_unlock();
	return pages;
}

int va_recorded_validate(void)
{
	int invalid;

	va_record_lock();
	invalid = va_validate();
	va_record_unlock();
	return invalid;
}

/* The text grows until it ends, and is not changed. */
static ssize_t va_calls_read(struct file *file, char __user *to, size_t bytes, loff_t *at)
{
	return simple_read_from_buffer(to, bytes, at, va_record_text, READ_ONCE(va_record_bytes));
}

static void va_calls_end(void)
{
	struct va_counts counts = { };

	va_counts(&counts);
	va_line("end %llx %llx %llx %llx %llx %llx %llx", counts.areas, counts.holes, counts.pooled_areas,
		counts.cached_areas, counts.lazy_pages, counts.purges, counts.purged_areas);
	va_record_ended = true;
}

static ssize_t va_calls_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	char text[16] = "";
	unsigned int each;
	ssize_t used = bytes;

	if (bytes >= sizeof(text) || copy_from_user(text, from, bytes))
		return -EFAULT;
	va_record_lock();
	if (sscanf(text, "fail %u", &each) == 1)
		va_record_fail_each = each;
	else if (!strncmp(text, "end", 3))
		va_calls_end();
	else
		used = -EINVAL;
	va_record_unlock();
	return used;
}

static const struct proc_ops va_calls_ops = { .proc_read = va_calls_read, .proc_write = va_calls_write };

static int __init va_record_init(void)
{
	return proc_create("va_calls", 0600, NULL, &va_calls_ops) ? 0 : -ENOMEM;
}
late_initcall(va_record_init);
