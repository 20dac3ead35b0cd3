//! Counts, and Linux's text `percpu_stats`.

use super::{Found, PercpuSpace};
use crate::backend::Backend;
use crate::bitmap::{self, BIT_BYTES};
use crate::chunk::{NIL, State};
use crate::config::Config;
use crate::engine::HintEngine;
use crate::offset::Offset;
use crate::store::{FIRST, RESERVED, Store};
use core::fmt;
use va_base::{Machine, PAGE_SIZE, Va};

/// Counts over all chunks. Sizes in bytes of one unit, pages of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Objects allocated.
    pub allocs: u64,
    /// Their bytes in one unit; of an object from a magazine, those of its size there.
    pub bytes: u64,
    /// Objects freed.
    pub frees: u64,
    /// Live objects.
    pub live: u64,
    /// The largest number of live objects, with those that magazines hold.
    pub live_max: u64,
    /// Chunks; the first is one. Those that the balance destroys count until they are gone, as their pages and their
    /// free bytes do.
    pub chunks: u32,
    /// Those of them that the balance destroys: nothing is allocated in them any more.
    pub leaving: u32,
    /// The largest number of chunks.
    pub chunks_max: u32,
    /// Chunks created since the beginning.
    pub chunks_made: u32,
    /// The size of the smallest request, in whole words; the unit before there was one. Objects that a magazine took
    /// count with the size of their class, allocated or not.
    pub size_min: u32,
    /// That of the largest.
    pub size_max: u32,
    /// Spare populated pages.
    pub spare_pages: i64,
    /// Populated pages. Multiplied by the units, they are `Percpu` in `/proc/meminfo`.
    pub populated_pages: u64,
    /// Those of them in chunks; for the first chunk, in its dynamic section.
    pub chunk_pages: u64,
    /// Free bytes of all chunks except the reserved section.
    pub free_bytes: u64,
    /// The longest run of any chunk except the reserved section and those that leave, by the engine's head.
    pub longest_bytes: u32,
    /// Chunks that are isolated.
    pub isolated: u32,
    /// Slabs of small objects, each one object of its chunk.
    pub slabs: u64,
    /// Bytes of their slots that are not in use.
    pub slab_free_bytes: u64,
    /// Bytes of the objects that magazines hold: allocated in chunks, and not live.
    pub cached_bytes: u64,
    /// Allocs in magazines that found no clean object.
    pub cache_misses: u64,
    /// Batches that magazines took from chunks.
    pub cache_refills: u64,
    /// Batches that owners of magazines put back.
    pub cache_flushes: u64,
    /// Bytes of one unit that were zeroed, each time that they were; for an allocated object or for a magazine.
    pub zeroed_bytes: u64,
}

/// Counts of a magazine, or of all magazines that used the same memory one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MagazineStats {
    /// The CPU that it was created for.
    pub cpu: u32,
    /// Bytes of the objects that it holds, of one unit.
    pub cached_bytes: u64,
    /// Objects allocated.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects freed.
    pub frees: u64,
    /// Allocs that found no clean object.
    pub misses: u64,
    /// Batches taken from chunks.
    pub refills: u64,
    /// Batches put back by the owner.
    pub flushes: u64,
    /// Bytes of one unit that were zeroed for it.
    pub zeroed_bytes: u64,
}

/// The kind of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkKind {
    /// The reserved section of the first chunk.
    Reserved,
    /// The dynamic section of the first chunk.
    First,
    /// It is about to be depopulated.
    ToDepopulate,
    /// It was depopulated, and is used before a wholly free one.
    Sidelined,
    /// Any other.
    Normal,
}

/// Counts of a chunk. Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkStats {
    /// Its kind.
    pub kind: ChunkKind,
    /// Live objects, each slab as one.
    pub live: u32,
    /// The largest object that it has ever held.
    pub largest: u32,
    /// Populated pages that are wholly free.
    pub spare_pages: i32,
    /// Populated pages.
    pub populated_pages: u32,
    /// The first free bit.
    pub first_bit: u32,
    /// Free bytes.
    pub free_bytes: u32,
    /// The longest run by the engine's head.
    pub contig_bytes: u32,
    /// Free bytes before the last object.
    pub frag_sum: u32,
    /// The largest of these fragments.
    pub frag_max: u32,
    /// The smallest, the median and the largest live object.
    pub sizes: [u32; 3],
}

impl<C: Config> Store<C> {
    pub(super) fn find(&self, offset: Offset) -> Option<Found> {
        let (row, off) = self.place_of(offset.at(self.geometry.base()).get())?;
        let chunk = self.chunk(row);
        let number = if row == RESERVED { -1 } else { i64::from(chunk.number) };
        Some(Found { chunk: number, base: Va::new(chunk.base), off })
    }

    fn stats(&self) -> Stats {
        let totals = &self.totals;
        let mut stats = Stats {
            allocs: totals.allocs,
            bytes: totals.bytes,
            zeroed_bytes: totals.bytes,
            frees: totals.frees,
            live: totals.live(),
            live_max: totals.live_max,
            chunks: totals.chunks,
            chunks_max: totals.chunks_max,
            chunks_made: totals.made,
            size_min: totals.size_min,
            size_max: totals.size_max,
            spare_pages: totals.spare_pages,
            populated_pages: totals.populated,
            slabs: self.classes.counts().0,
            slab_free_bytes: self.classes.unused_bytes(),
            ..Stats::default()
        };
        for row in self.rows().filter(|&row| row != RESERVED && self.chunk(row).state != State::Unused) {
            let chunk = self.chunk(row);
            stats.free_bytes += u64::from(chunk.free_bits) * u64::from(BIT_BYTES);
            stats.chunk_pages += u64::from(chunk.populated);
            if chunk.is_in_use() {
                stats.longest_bytes = stats.longest_bytes.max(C::Engine::longest(&chunk.head) * BIT_BYTES);
                stats.isolated += u32::from(chunk.isolated);
            } else {
                stats.leaving += 1;
            }
        }
        stats
    }

    fn chunk_stats(&mut self, row: u32) -> ChunkStats {
        let chunk = *self.chunk(row);
        let kind = match row {
            RESERVED => ChunkKind::Reserved,
            FIRST => ChunkKind::First,
            _ if chunk.slot == self.slots.to_depopulate => ChunkKind::ToDepopulate,
            _ if chunk.slot == self.slots.sidelined => ChunkKind::Sidelined,
            _ => ChunkKind::Normal,
        };
        let (view, marks) = self.view(row);
        let start = chunk.hidden_before;
        let end = bitmap::after_last_set(view.map, start, view.bits() - chunk.hidden_after);
        // Sizes of objects, one after the other, and the free bytes between them.
        let each = |of: &mut dyn FnMut(u32, bool)| {
            let mut at = start;
            while at < end {
                let used = bitmap::is_set(view.map, at);
                let next = match used {
                    true => bitmap::next_clear_or_marked(view.map, marks, at + 1, end),
                    false => bitmap::next_set(view.map, at, end),
                };
                of(next - at, used);
                at = next;
            }
        };
        let (mut sum, mut max, mut least, mut most) = (0, 0, u32::MAX, 0);
        each(&mut |bits, used| match used {
            true => (least, most) = (least.min(bits), most.max(bits)),
            false => (sum, max) = (sum + bits, max.max(bits)),
        });
        // The median without a table: the least size that half of the objects do not exceed.
        let (mut low, mut high) = (least.min(most), most);
        while low < high {
            let middle = low.midpoint(high);
            let mut below = 0;
            each(&mut |bits, used| below += u32::from(used && bits <= middle));
            if below > chunk.live.saturating_sub(1) / 2 { high = middle } else { low = middle + 1 }
        }
        ChunkStats {
            kind,
            live: chunk.live,
            largest: chunk.largest_bits * BIT_BYTES,
            spare_pages: chunk.empty,
            populated_pages: chunk.populated,
            first_bit: bitmap::next_clear(view.map, 0, view.bits()),
            free_bytes: chunk.free_bits * BIT_BYTES,
            contig_bytes: C::Engine::longest(&chunk.head) * BIT_BYTES,
            frag_sum: sum * BIT_BYTES,
            frag_max: max * BIT_BYTES,
            sizes: [least.min(most), low, most].map(|bits| bits * BIT_BYTES),
        }
    }
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Returns the counts over all chunks.
    ///
    /// # Locks
    /// `chunks`. Cost: chunks.
    pub fn stats(&self) -> Stats {
        let mut store = self.lock();
        store.settle();
        let mut stats = store.stats();
        drop(store);
        self.each_magazine(&mut |of| {
            stats.allocs += of.allocs;
            stats.bytes += of.bytes;
            stats.frees += of.frees;
            stats.cached_bytes += of.cached_bytes;
            stats.cache_misses += of.misses;
            stats.cache_refills += of.refills;
            stats.cache_flushes += of.flushes;
            stats.zeroed_bytes += of.zeroed_bytes;
        });
        stats.live = stats.allocs.wrapping_sub(stats.frees);
        stats
    }

    /// Calls `each` with the counts of every magazine. While its owner is in a call, they may be of different moments.
    ///
    /// # Locks
    /// None. Cost: magazines.
    pub fn each_magazine(&self, each: &mut dyn FnMut(&MagazineStats)) {
        for cell in self.cells.each() {
            each(&cell.stats());
        }
    }

    /// Calls `each` with the counts of every chunk: the reserved section, then the lists from the fullest on. A chunk that
    /// the balance destroys is in no list.
    ///
    /// # Locks
    /// `chunks`, which is held throughout, so `each` must not call the space. Cost: bits of all chunks.
    pub fn each_chunk(&self, each: &mut dyn FnMut(&ChunkStats)) {
        let mut store = self.lock();
        store.settle();
        if store.has_reserved() {
            each(&store.chunk_stats(RESERVED));
        }
        for slot in 0..=store.slots.to_depopulate {
            let mut row = store.lists.first[slot as usize];
            while row != NIL {
                each(&store.chunk_stats(row));
                row = store.chunk(row).next;
            }
        }
    }

    /// Returns the text that Linux shows in debugfs as `percpu_stats`, letter for letter.
    pub fn stats_text(&self) -> StatsText<'_, P, B, C> {
        StatsText(self)
    }

    /// Returns the bytes that are populated over all units, as in `/proc/meminfo`.
    pub fn populated_bytes(&self) -> u64 {
        self.lock().totals.populated * u64::from(self.geometry().sizes().units) * PAGE_SIZE
    }
}

/// Displays the counts of a space as Linux does.
#[derive(Debug)]
pub struct StatsText<'a, P: Machine, B: Backend, C: Config>(&'a PercpuSpace<P, B, C>);

impl<P: Machine, B: Backend, C: Config> fmt::Display for StatsText<'_, P, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl Into<i64>) -> fmt::Result {
            writeln!(f, "  {name:<20}: {:12}", value.into())
        }
        const RULE: &str = "----------------------------------------";
        let (sizes, stats) = (self.0.geometry().sizes(), self.0.stats());
        writeln!(f, "Percpu Memory Statistics\nAllocation Info:\n{RULE}")?;
        line(f, "unit_size", sizes.unit)?;
        line(f, "static_size", sizes.fixed)?;
        line(f, "reserved_size", sizes.reserved)?;
        line(f, "dyn_size", sizes.dynamic)?;
        line(f, "atom_size", sizes.atom)?;
        line(f, "alloc_size", sizes.alloc)?;
        writeln!(f, "\nGlobal Stats:\n{RULE}")?;
        line(f, "nr_alloc", stats.allocs as i64)?;
        line(f, "nr_dealloc", stats.frees as i64)?;
        line(f, "nr_cur_alloc", stats.live as i64)?;
        line(f, "nr_max_alloc", stats.live_max as i64)?;
        line(f, "nr_chunks", stats.chunks)?;
        line(f, "nr_max_chunks", stats.chunks_max)?;
        line(f, "min_alloc_size", stats.size_min)?;
        line(f, "max_alloc_size", stats.size_max)?;
        line(f, "empty_pop_pages", stats.spare_pages)?;
        writeln!(f, "\nPer Chunk Stats:\n{RULE}")?;
        let mut ended = Ok(());
        self.0.each_chunk(&mut |chunk| {
            if ended.is_ok() {
                ended = show(f, chunk);
            }
        });
        fn show(f: &mut fmt::Formatter<'_>, chunk: &ChunkStats) -> fmt::Result {
            writeln!(
                f,
                "{}",
                match chunk.kind {
                    ChunkKind::Reserved => "Chunk: <- Reserved Chunk",
                    ChunkKind::First => "Chunk: <- First Chunk",
                    ChunkKind::ToDepopulate => "Chunk (to_depopulate)",
                    ChunkKind::Sidelined => "Chunk (sidelined):",
                    ChunkKind::Normal => "Chunk:",
                }
            )?;
            line(f, "nr_alloc", chunk.live)?;
            line(f, "max_alloc_size", chunk.largest)?;
            line(f, "empty_pop_pages", chunk.spare_pages)?;
            line(f, "first_bit", chunk.first_bit)?;
            line(f, "free_bytes", chunk.free_bytes)?;
            line(f, "contig_bytes", chunk.contig_bytes)?;
            line(f, "sum_frag", chunk.frag_sum)?;
            line(f, "max_frag", chunk.frag_max)?;
            line(f, "cur_min_alloc", chunk.sizes[0])?;
            line(f, "cur_med_alloc", chunk.sizes[1])?;
            line(f, "cur_max_alloc", chunk.sizes[2])?;
            writeln!(f)
        }
        ended
    }
}
