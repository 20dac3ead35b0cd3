/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions of mm/percpu.c that decide which bytes of a chunk an object gets, over the core. Included there in
 * place of those that the script takes out. The kernel marks where objects begin and end, and counts free bytes and
 * pages.
 */
#include "va_percpu.h"

static void pcpu_init_md_blocks(struct pcpu_chunk *chunk)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);

	va_percpu_reset(&view);
}

/* What the first chunk hides of its first and last page: bits that are no object's. */
static void pcpu_block_update_hint_alloc(struct pcpu_chunk *chunk, int bit_off, int bits)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);

	pcpu_update_empty_pages(chunk, -(int)va_percpu_take_at(&view, bit_off, bits));
}

static int pcpu_find_block_fit(struct pcpu_chunk *chunk, int alloc_bits, size_t align, bool pop_only)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);

	return va_percpu_find(&view, alloc_bits, align, pop_only);
}

static int pcpu_alloc_area(struct pcpu_chunk *chunk, int alloc_bits, size_t align, int start)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);
	int slot = pcpu_chunk_slot(chunk);
	struct va_percpu_taken taken;

	lockdep_assert_held(&pcpu_lock);
	taken = va_percpu_take(&view, alloc_bits, align, start);
	if (taken.at < 0)
		return -1;
	__set_bit(taken.at, chunk->bound_map);
	bitmap_clear(chunk->bound_map, taken.at + 1, alloc_bits - 1);
	__set_bit(taken.at + alloc_bits, chunk->bound_map);
	chunk->free_bytes -= alloc_bits * PCPU_MIN_ALLOC_SIZE;
	if (taken.pages)
		pcpu_update_empty_pages(chunk, -(int)taken.pages);
	pcpu_chunk_relocate(chunk, slot);
	return taken.at * PCPU_MIN_ALLOC_SIZE;
}

static int pcpu_free_area(struct pcpu_chunk *chunk, int off)
{
	struct va_percpu_chunk view = va_percpu_chunk(chunk);
	int slot = pcpu_chunk_slot(chunk), at = off / PCPU_MIN_ALLOC_SIZE, bits, pages;

	lockdep_assert_held(&pcpu_lock);
	pcpu_stats_area_dealloc(chunk);
	bits = find_next_bit(chunk->bound_map, pcpu_chunk_map_bits(chunk), at + 1) - at;
	pages = va_percpu_free(&view, at, bits);
	chunk->free_bytes += bits * PCPU_MIN_ALLOC_SIZE;
	if (pages)
		pcpu_update_empty_pages(chunk, pages);
	pcpu_chunk_relocate(chunk, slot);
	return bits * PCPU_MIN_ALLOC_SIZE;
}
