// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Areas without pages, on either kernel: `echo "PATTERN THREADS LOOPS" > /proc/va_bench`. A pair is get_vm_area and
 * free_vm_area, or, of a page, vm_map_ram and vm_unmap_ram, or alloc_percpu and free_percpu. Under `-icount shift=0` a
 * nanosecond of the guest is an instruction.
 */
#include <linux/completion.h>
#include <linux/gfp.h>
#include <linux/init.h>
#include <linux/kernel_stat.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#define THREADS_MAX 16

struct pattern {
	const char *name;
	unsigned int pages_most, live;
	unsigned long flags;
	/* Per-CPU memory, in words of 8 bytes in place of pages. */
	bool percpu;
};

/* Sizes are without the guard page. Without flags it is vm_map_ram. */
static const struct pattern patterns[] = {
	{ "one", 1, 1, VM_MAP },
	{ "mixed", 64, 1, VM_MAP },
	{ "live", 1, 4096, VM_MAP },
	{ "live-mixed", 64, 4096, VM_MAP },
	{ "large", 256, 1, VM_MAP },
	{ "aligned", 512, 1, VM_IOREMAP },
	{ "ram", 1, 1, 0 },
	{ "percpu", 1, 1, .percpu = true },
	{ "percpu-live", 32, 4096, .percpu = true },
};

/* One thread, its areas and what it measured in nanoseconds. */
struct run {
	const struct pattern *pattern;
	struct page *page;
	void **live;
	unsigned int loops, failed;
	u32 state;
	u64 all, worst_alloc, worst_free;
	struct completion *begin;
	struct completion done;
};

static u32 draw(u32 *state, u32 below)
{
	*state = *state * 1664525u + 1013904223u;
	return (u64)*state * below >> 32;
}

static unsigned long pages_for(const struct pattern *pattern, u32 *state)
{
	/* Those above 64 are of one size. */
	return pattern->pages_most > 64 ? pattern->pages_most : 1 + draw(state, pattern->pages_most);
}

static void *take(struct run *run, unsigned long pages)
{
	if (run->pattern->percpu)
		return (void __force *)__alloc_percpu(pages * sizeof(u64), sizeof(u64));
	if (!run->pattern->flags)
		return vm_map_ram(&run->page, 1, NUMA_NO_NODE);
	return get_vm_area(pages << PAGE_SHIFT, run->pattern->flags);
}

static void give(struct run *run, void *taken)
{
	if (run->pattern->percpu)
		free_percpu((void __percpu __force *)taken);
	else if (run->pattern->flags)
		free_vm_area(taken);
	else
		vm_unmap_ram(taken, 1);
}

/* Begins and ends a pattern, for a plugin of QEMU that counts by address. */
noinline void va_bench_mark(void);
noinline void va_bench_mark(void)
{
	barrier();
}

/* A number that changes when another thread or an interrupt has run on this CPU. */
static u64 others(void)
{
	unsigned int cpu = raw_smp_processor_id();

	/* The interrupts of devices, and the timer and those of other CPUs. */
	return current->nvcsw + current->nivcsw + kstat_cpu_irqs_sum(cpu) + arch_irq_stat_cpu(cpu);
}

static void pairs(struct run *run)
{
	const struct pattern *pattern = run->pattern;
	unsigned int i;

	/* The first of a live set only fill it. */
	for (i = 0; i < pattern->live + run->loops; i++) {
		void **slot = &run->live[i < pattern->live ? i : draw(&run->state, pattern->live)];
		unsigned long pages = pages_for(pattern, &run->state);
		u64 before = others(), began = ktime_get_ns(), freed, ended;

		if (*slot)
			give(run, *slot);
		freed = ktime_get_ns();
		*slot = take(run, pages);
		ended = ktime_get_ns();
		run->failed += !*slot;
		if (i >= pattern->live) {
			run->all += ended - began;
			/* A call in which others ran, as the worker that purges or the timer, took none of that itself. */
			if (before == others()) {
				run->worst_free = max(run->worst_free, freed - began);
				run->worst_alloc = max(run->worst_alloc, ended - freed);
			}
		}
		if (i % 256 == 0)
			cond_resched();
	}
	for (i = 0; i < pattern->live; i++)
		if (run->live[i])
			give(run, run->live[i]);
}

static int thread(void *data)
{
	struct run *run = data;

	wait_for_completion(run->begin);
	pairs(run);
	complete(&run->done);
	return 0;
}

static int va_bench_run(const struct pattern *pattern, unsigned int threads, unsigned int loops)
{
	DECLARE_COMPLETION_ONSTACK(begin);
	struct run *runs = kcalloc(threads, sizeof(*runs), GFP_KERNEL), sum = { };
	unsigned int i, begun = 0;
	int failed = runs ? 0 : -ENOMEM;

	for (i = 0; !failed && i < threads; i++) {
		struct run *run = &runs[i];
		struct task_struct *task;

		run->pattern = pattern;
		run->loops = loops;
		run->state = 12345 + i;
		run->begin = &begin;
		init_completion(&run->done);
		run->live = kvcalloc(pattern->live, sizeof(*run->live), GFP_KERNEL);
		run->page = alloc_page(GFP_KERNEL);
		if (!run->live || !run->page) {
			failed = -ENOMEM;
		} else if (threads > 1) {
			task = kthread_run(thread, run, "va_bench/%u", i);
			failed = PTR_ERR_OR_ZERO(task);
			begun += !failed;
		}
	}
	va_bench_mark();
	complete_all(&begin);
	if (!failed && threads == 1)
		pairs(runs);
	for (i = 0; i < begun; i++)
		wait_for_completion(&runs[i].done);
	va_bench_mark();
	for (i = 0; runs && i < threads; i++) {
		kvfree(runs[i].live);
		if (runs[i].page)
			__free_page(runs[i].page);
		sum.all += runs[i].all;
		sum.failed += runs[i].failed;
		sum.worst_alloc = max(sum.worst_alloc, runs[i].worst_alloc);
		sum.worst_free = max(sum.worst_free, runs[i].worst_free);
	}
	kfree(runs);
	if (!failed)
		pr_info("va_bench %s: %llu ns a pair, most of an alloc %llu, of a free %llu, %u failed, %u threads\n",
			pattern->name, div_u64(sum.all, threads * loops), sum.worst_alloc, sum.worst_free, sum.failed,
			threads);
	return failed;
}

static ssize_t va_bench_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	char text[64] = { }, name[32];
	unsigned int threads, loops;
	int i, failed;

	if (bytes >= sizeof(text) || copy_from_user(text, from, bytes))
		return -EFAULT;
	if (sscanf(text, "%31s %u %u", name, &threads, &loops) != 3 || !loops || !threads || threads > THREADS_MAX)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(patterns); i++)
		if (!strcmp(name, patterns[i].name)) {
			failed = va_bench_run(&patterns[i], threads, loops);
			return failed ?: bytes;
		}
	return -EINVAL;
}

static const struct proc_ops va_bench_ops = { .proc_write = va_bench_write };

static int __init va_bench_init(void)
{
	return proc_create("va_bench", 0200, NULL, &va_bench_ops) ? 0 : -ENOMEM;
}
late_initcall(va_bench_init);
