/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The second half of va_glue.h, included at the end of mm/vmalloc.c: what needs the types of its blocks, and the
 * files, per-CPU areas and the start.
 */

static u64 va_above(u64 addr, struct va_range *area)
{
	u64 found;

	rcu_read_lock();
	found = va_find_above(addr, area);
	rcu_read_unlock();
	return found;
}

/* Small mappings: vm_map_ram. The pages are mapped by its caller, and unmapped here. */

/*
 * Shadow for a whole block: an overrun of a mapping reads that of the pages behind it. What has some keeps it, until the
 * block is freed.
 */
static int va_block_shadow(u64 at, gfp_t gfp_mask)
{
	struct va_range block;

	if (!IS_ENABLED(CONFIG_KASAN_VMALLOC) || va_above(at, &block) != VA_A_BLOCK)
		return 0;
	return kasan_populate_vmalloc(block.start, block.end - block.start, gfp_mask);
}

static void *vb_alloc(unsigned long size, gfp_t gfp_mask)
{
	unsigned int nth = 0;
	u64 at;

	va_record_lock();
	preempt_disable();
	at = va_try_alloc_small(__this_cpu_read(va_caches), size >> PAGE_SHIFT);
	preempt_enable();
	va_record_unlock();
	if (unlikely(at < VA_FAILURES)) {
		do
			at = va_alloc_small(raw_smp_processor_id(), size >> PAGE_SHIFT);
		while (at == VA_NO_MEMORY && va_os_supply(nth++, gfp_mask & GFP_RECLAIM_MASK));
		if (at < VA_FAILURES)
			return ERR_PTR(at == VA_NO_MEMORY ? -ENOMEM : -EBUSY);
	}
	if (unlikely(va_block_shadow(at, gfp_mask))) {
		vb_free(at, size);
		return ERR_PTR(-ENOMEM);
	}
	return (void *)(unsigned long)at;
}

static void vb_free(unsigned long addr, unsigned long size)
{
	bool freed;

	flush_cache_vunmap(addr, addr + size);
	vunmap_range_noflush(addr, addr + size);
	if (debug_pagealloc_enabled_static())
		flush_tlb_kernel_range(addr, addr + size);
	smp_mb();
	va_readers_wait();
	va_record_lock();
	preempt_disable();
	freed = va_free_small(__this_cpu_read(va_caches), addr, size >> PAGE_SHIFT);
	preempt_enable();
	va_record_unlock();
	WARN_ONCE(!freed, "va: no mapping of %lu bytes at %#lx\n", size, addr);
}

/* Readers */

/* Records of blocks, by place: what they say depends on nothing else. Made when one is asked for, and kept. */
static DEFINE_XARRAY(va_block_records);

/* For the checks of copies to and from programs. Without memory the answer is one that permits each copy. */
static noinline struct vmap_area *va_block_record(unsigned long addr)
{
	static struct vmap_area anywhere = { .va_end = ULONG_MAX, .flags = VMAP_RAM | VMAP_BLOCK };
	struct vmap_area *va, *other;
	struct va_range block;
	unsigned long nth;

	if (va_above(addr, &block) != VA_A_BLOCK || block.start > addr)
		return NULL;
	nth = block.start / (block.end - block.start);
	va = xa_load(&va_block_records, nth);
	if (va)
		return va;
	va = kmem_cache_zalloc(vmap_area_cachep, GFP_ATOMIC | __GFP_NOWARN);
	if (!va)
		return &anywhere;
	va->va_start = block.start;
	va->va_end = block.end;
	va->flags = VMAP_RAM | VMAP_BLOCK;
	other = xa_cmpxchg(&va_block_records, nth, NULL, va, GFP_ATOMIC | __GFP_NOWARN);
	if (!other)
		return va;
	kmem_cache_free(vmap_area_cachep, va);
	return xa_is_err(other) ? &anywhere : other;
}

static struct vmap_node *find_vmap_area_exceed_addr_lock(unsigned long addr, struct vmap_area **va,
							 struct vmap_area *block)
{
	struct va_range area;
	u64 found;

	va_readers_enter();
	found = va_above(addr, &area);
	if (found == VA_A_BLOCK) {
		*block = (struct vmap_area){ .va_start = area.start, .va_end = area.end,
					     .flags = VMAP_RAM | VMAP_BLOCK };
		*va = block;
		return &va_reading;
	}
	*va = va_record_of(found);
	if (*va)
		return &va_reading;
	va_readers_leave();
	return NULL;
}

#ifdef CONFIG_SMP
struct vm_struct **pcpu_get_vm_areas(const unsigned long *offsets, const size_t *sizes, int nr_vms, size_t align)
{
	struct vm_struct **vms = kcalloc(nr_vms, sizeof(*vms), GFP_KERNEL);
	struct va_range *pairs = kcalloc(nr_vms, sizeof(*pairs), GFP_KERNEL);
	unsigned int nth = 0;
	int i, noted = 0;
	u64 base;

	if (!vms || !pairs)
		goto fail;
	for (i = 0; i < nr_vms; i++) {
		struct va_record *record = kzalloc(sizeof(*record), GFP_KERNEL);

		if (!record)
			goto fail;
		va_record_known(record, GFP_KERNEL);
		vms[i] = &record->vm;
		pairs[i] = (struct va_range){ offsets[i], sizes[i] };
	}
	do
		base = va_congruent(pairs, nr_vms, align);
	while (base == VA_NO_MEMORY && va_os_supply(nth++, GFP_KERNEL));
	if (base < VA_FAILURES)
		goto fail;
	for (; noted < nr_vms; noted++) {
		struct vmap_area *va = &container_of(vms[noted], struct va_record, vm)->va;

		va->va_start = base + offsets[noted];
		va->va_end = va->va_start + sizes[noted];
		setup_vmalloc_vm(vms[noted], va, VM_ALLOC, pcpu_get_vm_areas);
		BUG_ON(va_note(va->va_start, (unsigned long)va));
	}
	for (i = 0; i < nr_vms; i++)
		if (kasan_populate_vmalloc((unsigned long)vms[i]->addr, sizes[i], GFP_KERNEL))
			goto fail;
	kasan_unpoison_vmap_areas(vms, nr_vms, KASAN_VMALLOC_PROT_NORMAL);
	kfree(pairs);
	return vms;
fail:
	for (i = 0; vms && i < nr_vms; i++) {
		if (i < noted)
			free_vmap_area(&container_of(vms[i], struct va_record, vm)->va);
		kfree(vms[i]);
	}
	kfree(pairs);
	kfree(vms);
	return NULL;
}
#endif

#ifdef CONFIG_PRINTK
bool vmalloc_dump_obj(void *object)
{
	struct vmap_area *va;
	struct vm_struct vm = { };

	/* In any context, so it never waits for a thread that waits for readers. */
	if (!read_trylock(&va_readers_lock))
		return false;
	va_readers_count();
	va = va_record_of(va_found(PAGE_ALIGN((unsigned long)object)));
	if (va && va->vm)
		vm = *va->vm;
	va_readers_leave();
	if (!vm.addr)
		return false;
	pr_cont(" %u-page vmalloc region starting at %#lx allocated at %pS\n", vm.nr_pages, (unsigned long)vm.addr,
		vm.caller);
	return true;
}
#endif

#ifdef CONFIG_PROC_FS
static void va_show_range(struct seq_file *m, u64 start, u64 end, const char *what)
{
	seq_printf(m, "0x%pK-0x%pK %7ld %s\n", (void *)(unsigned long)start, (void *)(unsigned long)end,
		   (unsigned long)(end - start), what);
}

static void va_show_record(struct seq_file *m, const struct vmap_area *va, unsigned int *counters)
{
	static const struct {
		unsigned long flag;
		const char *name;
	} names[] = {
		{ VM_IOREMAP, "ioremap" }, { VM_SPARSE, "sparse" }, { VM_ALLOC, "vmalloc" },
		{ VM_MAP, "vmap" }, { VM_USERMAP, "user" }, { VM_DMA_COHERENT, "dma-coherent" },
	};
	struct vm_struct *vm = va->vm;
	int i;

	if (!vm) {
		if (va->flags & VMAP_RAM)
			va_show_range(m, va->va_start, va->va_end, "vm_map_ram");
		return;
	}
	if (vm->flags & VM_UNINITIALIZED)
		return;
	/* Pairs with the barrier in clear_vm_uninitialized_flag. */
	smp_rmb();
	seq_printf(m, "0x%pK-0x%pK %7ld", vm->addr, vm->addr + vm->size, vm->size);
	if (vm->caller)
		seq_printf(m, " %pS", vm->caller);
	if (vm->nr_pages)
		seq_printf(m, " pages=%d", vm->nr_pages);
	if (vm->phys_addr)
		seq_printf(m, " phys=%pa", &vm->phys_addr);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		if (vm->flags & names[i].flag)
			seq_printf(m, " %s", names[i].name);
	if (is_vmalloc_addr(vm->pages))
		seq_puts(m, " vpages");
	if (IS_ENABLED(CONFIG_NUMA))
		show_numa_info(m, vm, counters);
	seq_putc(m, '\n');
}

static void va_show_lazy(u8 *m, u64 start, u64 end)
{
	va_show_range((struct seq_file *)m, start, end, "unpurged vm_area");
}

static int vmalloc_info_show(struct seq_file *m, void *unused)
{
	unsigned int *counters = NULL;
	struct va_range area = { };
	u64 found;

	if (IS_ENABLED(CONFIG_NUMA))
		counters = kmalloc_array(nr_node_ids, sizeof(*counters), GFP_KERNEL);
	va_readers_enter();
	while ((found = va_above(area.end, &area))) {
		if (found == VA_A_BLOCK)
			va_show_range(m, area.start, area.end, "vm_map_ram");
		else
			va_show_record(m, va_record_of(found), counters);
		/* A free of an area waits for this reader, so it may go on now and then. */
		va_readers_leave();
		cond_resched();
		va_readers_enter();
	}
	va_readers_leave();
	va_each_lazy(va_show_lazy, (u8 *)m);
	kfree(counters);
	return 0;
}

static int __init proc_vmalloc_init(void)
{
	proc_create_single("vmallocinfo", 0400, NULL, vmalloc_info_show);
	return 0;
}
module_init(proc_vmalloc_init);
#endif

/* The start */

/* The bytes of tables and records that the last shrink left: what came since then may be free. */
static long va_shrunk_bytes;

static unsigned long va_shrink_count(struct shrinker *shrinker, struct shrink_control *control)
{
	long bytes = va_os_meta_bytes(), left = min(READ_ONCE(va_shrunk_bytes), bytes);

	/* Some of it returns after a while. */
	WRITE_ONCE(va_shrunk_bytes, left);
	/* As if each area had 64 pages, since Linux counts areas: addresses alone are no memory that a light reclaim needs. */
	return DIV_ROUND_UP(va_idle_pages(), 64) + ((bytes - left) >> PAGE_SHIFT) ?: SHRINK_EMPTY;
}

static unsigned long va_shrink_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	va_shrink();
	WRITE_ONCE(va_shrunk_bytes, va_os_meta_bytes());
	return SHRINK_STOP;
}

/* Before a CPU runs for the first time. Without caches it uses the pools of the nodes. */
static int va_cpu_prepare(unsigned int cpu)
{
	struct va_caches **caches = per_cpu_ptr(&va_caches, cpu);
	unsigned int nth = 0;

	if (*caches)
		return 0;
	do
		*caches = va_cpu_init(cpu);
	while (!*caches && cpu < VA_CPUS_MAX && va_os_supply(nth++, GFP_KERNEL));
	if (!*caches)
		pr_warn_once("vmalloc: CPU %u has no caches\n", cpu);
	return 0;
}

static int va_cpu_dead(unsigned int cpu)
{
	va_drain_cpu(cpu);
	return 0;
}

/* Before the other CPUs run. */
static int __init va_cpus_init(void)
{
	return cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "mm/va:prepare", va_cpu_prepare, va_cpu_dead) < 0 ?
		       -ENOMEM : 0;
}
early_initcall(va_cpus_init);

static int __init va_shrinker_init(void)
{
	struct shrinker *shrinker = shrinker_alloc(0, "vmap-node");

	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = va_shrink_count;
	shrinker->scan_objects = va_shrink_scan;
	shrinker_register(shrinker);
	return 0;
}
core_initcall(va_shrinker_init);

void __init vmalloc_init(void)
{
	static struct va_range busy[32] __initdata;
	/* x86-64 requests no area below, so no search passes a hole there. */
	u64 lowest = VMALLOC_START;
	struct vm_struct *vm;
	size_t count = 0;
	int cpu;

	vmap_area_cachep = KMEM_CACHE(vmap_area, SLAB_PANIC);
	for_each_possible_cpu(cpu) {
		struct vfree_deferred *deferred = &per_cpu(vfree_deferred, cpu);

		init_llist_head(&deferred->list);
		INIT_WORK(&deferred->wq, delayed_vfree_work);
	}
	for (vm = vmlist; vm; vm = vm->next) {
		BUG_ON(count == ARRAY_SIZE(busy));
		lowest = min_t(u64, lowest, (unsigned long)vm->addr);
		busy[count++] = (struct va_range){ (unsigned long)vm->addr, (unsigned long)vm->addr + vm->size };
	}
#ifdef MODULES_VADDR
	lowest = min_t(u64, lowest, MODULES_VADDR);
#endif
	BUG_ON(va_init(lowest, VMALLOC_START, VMALLOC_END, busy, count));
	for (vm = vmlist; vm; vm = vm->next) {
		struct vmap_area *va = kmem_cache_zalloc(vmap_area_cachep, GFP_NOWAIT);

		if (WARN_ON(!va))
			continue;
		kmemleak_not_leak(va);
		va->va_start = (unsigned long)vm->addr;
		va->va_end = va->va_start + vm->size;
		va->vm = vm;
		WARN_ON(va_note(va->va_start, (unsigned long)va));
	}
	va_cpu_prepare(smp_processor_id());
	vmap_initialized = true;
}
