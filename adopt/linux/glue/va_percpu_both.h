/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For a kernel that has both: Linux's own functions of mm/percpu.c decide, under other names. The core does the same
 * calls on a copy of the chunk. Results, bits and all hints are then compared, byte for byte.
 */
#include "va_percpu.h"

#define VA_PAGES_MAX 512

/* The copy, of one chunk at a time: the caller has pcpu_lock. */
static unsigned long va_percpu_map[VA_PAGES_MAX * PCPU_BITMAP_BLOCK_BITS / BITS_PER_LONG];
static struct pcpu_block_md va_percpu_blocks[VA_PAGES_MAX], va_percpu_head;

#define va_map_bytes(chunk) ((chunk)->nr_pages * PCPU_BITMAP_BLOCK_BITS / BITS_PER_BYTE)
#define va_blocks_bytes(chunk) ((chunk)->nr_pages * sizeof(va_percpu_blocks[0]))

static struct va_percpu_chunk va_percpu_copy(struct pcpu_chunk *chunk)
{
	BUG_ON(chunk->nr_pages > VA_PAGES_MAX);
	memcpy(va_percpu_map, chunk->alloc_map, va_map_bytes(chunk));
	memcpy(va_percpu_blocks, chunk->md_blocks, va_blocks_bytes(chunk));
	va_percpu_head = chunk->chunk_md;
	return (struct va_percpu_chunk){
		.map = va_percpu_map,
		.populated = chunk->populated,
		.blocks = va_percpu_blocks,
		.head = &va_percpu_head,
		.pages = chunk->nr_pages,
	};
}

static void va_percpu_same(bool same, const char *what)
{
	va_percpu_compared++;
	va_percpu_differ += !same;
	WARN_ONCE(!same, "va: %s of per-CPU memory differs from Linux's\n", what);
}

static void va_percpu_same_hints(struct pcpu_chunk *chunk, const char *what)
{
	va_percpu_same(!memcmp(va_percpu_map, chunk->alloc_map, va_map_bytes(chunk)) &&
		       !memcmp(va_percpu_blocks, chunk->md_blocks, va_blocks_bytes(chunk)) &&
		       !memcmp(&va_percpu_head, &chunk->chunk_md, sizeof(va_percpu_head)), what);
}

/* A new chunk, whose memory is all zeros. Nothing refers to it, so the lock is for the copy alone. */
static void pcpu_init_md_blocks(struct pcpu_chunk *chunk)
{
	struct va_percpu_chunk copy;
	unsigned long flags;

	spin_lock_irqsave(&pcpu_lock, flags);
	copy = va_percpu_copy(chunk);
	linux_init_md_blocks(chunk);
	va_percpu_reset(&copy);
	va_percpu_same_hints(chunk, "a new chunk");
	spin_unlock_irqrestore(&pcpu_lock, flags);
}

/* What the first chunk hides, at boot. */
static void __init va_percpu_hide(struct pcpu_chunk *chunk, int bit_off, int bits)
{
	struct va_percpu_chunk copy = va_percpu_copy(chunk);

	pcpu_block_update_hint_alloc(chunk, bit_off, bits);
	va_percpu_take_at(&copy, bit_off, bits);
	va_percpu_same_hints(chunk, "the first chunk");
}

static int pcpu_find_block_fit(struct pcpu_chunk *chunk, int alloc_bits, size_t align, bool pop_only)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);
	int at = linux_find_block_fit(chunk, alloc_bits, align, pop_only);

	va_percpu_same(at == va_percpu_find(&view, alloc_bits, align, pop_only), "a search");
	return at;
}

static int pcpu_alloc_area(struct pcpu_chunk *chunk, int alloc_bits, size_t align, int start)
{
	struct va_percpu_chunk copy = va_percpu_copy(chunk);
	int pages = chunk->nr_empty_pop_pages, off = linux_alloc_area(chunk, alloc_bits, align, start);
	struct va_percpu_taken taken = va_percpu_take(&copy, alloc_bits, align, start);

	va_percpu_same(off == (taken.at < 0 ? -1 : taken.at * PCPU_MIN_ALLOC_SIZE), "an alloc");
	va_percpu_same(pages - chunk->nr_empty_pop_pages == taken.pages, "the pages of an alloc");
	va_percpu_same_hints(chunk, "the hints after an alloc");
	return off;
}

static int pcpu_free_area(struct pcpu_chunk *chunk, int off)
{
	struct va_percpu_chunk copy = va_percpu_copy(chunk);
	int pages = chunk->nr_empty_pop_pages, freed = linux_free_area(chunk, off);
	u32 now_free = va_percpu_free(&copy, off / PCPU_MIN_ALLOC_SIZE, freed / PCPU_MIN_ALLOC_SIZE);

	va_percpu_same(chunk->nr_empty_pop_pages - pages == now_free, "the pages of a free");
	va_percpu_same_hints(chunk, "the hints after a free");
	return freed;
}
