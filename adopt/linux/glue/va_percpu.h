/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Per-CPU memory of the core, for C: see adopt/linux/src/percpu.rs, which states contexts and results. Included in
 * mm/percpu.c, and so in the reach of that file's own names.
 */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

/* A chunk: where its bits and hints are. */
struct va_percpu_chunk {
	unsigned long *map;
	const unsigned long *populated;
	struct pcpu_block_md *blocks, *head;
	u32 pages;
};

/* The bits that an object got: the first, or -1; and the pages that are no longer wholly free. */
struct va_percpu_taken {
	s32 at;
	u32 pages;
};

/* With pcpu_lock, or before the chunk is used. */
void va_percpu_reset(const struct va_percpu_chunk *chunk);
s32 va_percpu_find(const struct va_percpu_chunk *chunk, u32 bits, u32 align, bool populated);
struct va_percpu_taken va_percpu_take(const struct va_percpu_chunk *chunk, u32 bits, u32 align, u32 from);
u32 va_percpu_take_at(const struct va_percpu_chunk *chunk, u32 at, u32 bits);
u32 va_percpu_free(const struct va_percpu_chunk *chunk, u32 at, u32 bits);
int va_percpu_validate(const struct va_percpu_chunk *chunk);

/* A block is a page, and va_percpu::scan::Hints in memory. The rest of percpu.c, and tools, read some of its fields. */
static_assert(BITS_PER_LONG == 64 && PCPU_MIN_ALLOC_SIZE == 4 && PCPU_BITMAP_BLOCK_SIZE == PAGE_SIZE);
static_assert(sizeof(struct pcpu_block_md) == 8 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, scan_hint) == 0 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, scan_hint_start) == 1 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, contig_hint) == 2 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, contig_hint_start) == 3 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, left_free) == 4 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, right_free) == 5 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, first_free) == 6 * sizeof(u32));
static_assert(offsetof(struct pcpu_block_md, nr_bits) == 7 * sizeof(u32));

static struct va_percpu_chunk va_percpu_chunk(struct pcpu_chunk *chunk)
{
	return (struct va_percpu_chunk){
		.map = chunk->alloc_map,
		.populated = chunk->populated,
		.blocks = chunk->md_blocks,
		.head = &chunk->chunk_md,
		.pages = chunk->nr_pages,
	};
}

/* Results that were compared with those of Linux's own code, and those that differed: see va_percpu_both.h. */
static unsigned long __maybe_unused va_percpu_compared, va_percpu_differ;

#ifdef CONFIG_PROC_FS
/* Compares the hints of every chunk with its bits. */
static int va_percpu_show(struct seq_file *m, void *unused)
{
	unsigned long chunks = 0, wrong = 0, unchecked = 0, flags;
	struct pcpu_chunk *chunk;
	int slot;

	spin_lock_irqsave(&pcpu_lock, flags);
	for (slot = 0; slot < pcpu_nr_slots; slot++)
		list_for_each_entry(chunk, &pcpu_chunk_lists[slot], list) {
			struct va_percpu_chunk view = va_percpu_chunk(chunk);
			int invalid = va_percpu_validate(&view);

			chunks++;
			wrong += invalid < 0;
			unchecked += invalid > 0;
		}
	spin_unlock_irqrestore(&pcpu_lock, flags);
	seq_printf(m, "chunks %lu\ncompared %lu\ndiffer %lu\n", chunks, va_percpu_compared, va_percpu_differ);
	if (!unchecked)
		seq_printf(m, "valid %d\n", !wrong);
	return 0;
}

static int __init va_percpu_proc_init(void)
{
	proc_create_single("va_percpu", 0400, NULL, va_percpu_show);
	return 0;
}
late_initcall(va_percpu_proc_init);
#endif
