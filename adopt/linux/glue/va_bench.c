// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Areas without pages, on either kernel: `echo "PATTERN LOOPS" > /proc/va_bench`. A pair is get_vm_area and
 * free_vm_area. Under `-icount shift=0` a nanosecond of the guest is an instruction.
 */
#include <linux/init.h>
#include <linux/ktime.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

struct pattern {
	const char *name;
	unsigned int pages_most, live;
	unsigned long flags;
};

/* Sizes are without the guard page. */
static const struct pattern patterns[] = {
	{ "one", 1, 1, VM_MAP },
	{ "mixed", 64, 1, VM_MAP },
	{ "live", 1, 4096, VM_MAP },
	{ "live-mixed", 64, 4096, VM_MAP },
	{ "large", 256, 1, VM_MAP },
	{ "aligned", 512, 1, VM_IOREMAP },
};

static u32 draw(u32 *state, u32 below)
{
	*state = *state * 1664525u + 1013904223u;
	return (u64)*state * below >> 32;
}

static unsigned long pages_for(const struct pattern *pattern, u32 *state)
{
	/* The last two are of one size. */
	return pattern->pages_most > 64 ? pattern->pages_most : 1 + draw(state, pattern->pages_most);
}

static int va_bench_run(const struct pattern *pattern, unsigned int loops)
{
	struct vm_struct **live = kvcalloc(pattern->live, sizeof(*live), GFP_KERNEL);
	u64 began, worst = 0, all = 0;
	unsigned int i, failed = 0;
	u32 state = 12345;

	if (!live)
		return -ENOMEM;
	/* The first of a live set only fill it. */
	for (i = 0; i < pattern->live + loops; i++) {
		struct vm_struct **slot = &live[i < pattern->live ? i : draw(&state, pattern->live)];
		unsigned long bytes = pages_for(pattern, &state) << PAGE_SHIFT;
		u64 took;

		began = ktime_get_ns();
		if (*slot)
			free_vm_area(*slot);
		*slot = get_vm_area(bytes, pattern->flags);
		took = ktime_get_ns() - began;
		failed += !*slot;
		if (i >= pattern->live) {
			all += took;
			worst = max(worst, took);
		}
		if (i % 256 == 0)
			cond_resched();
	}
	for (i = 0; i < pattern->live; i++)
		if (live[i])
			free_vm_area(live[i]);
	kvfree(live);
	pr_info("va_bench %s: %llu ns a pair, worst %llu, %u failed, %u pairs\n", pattern->name,
		div_u64(all, loops), worst, failed, loops);
	return 0;
}

static ssize_t va_bench_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	char text[64] = { }, name[32];
	unsigned int loops;
	int i, failed;

	if (bytes >= sizeof(text) || copy_from_user(text, from, bytes))
		return -EFAULT;
	if (sscanf(text, "%31s %u", name, &loops) != 2 || !loops)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(patterns); i++)
		if (!strcmp(name, patterns[i].name)) {
			failed = va_bench_run(&patterns[i], loops);
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
