//! One block: its pages are allocated, freed, and reused after a flush.
//!
//! # Theory
//! ```text
//!   |--mapping--|-gone-|--mapping--|......open run......|-gone-|--free--|
//!                                  ^ cursor             ^ limit
//! ```
//! Pages are allocated from the front of the **open run** by moving a cursor, without a search. When it is too short
//! for a request it is closed, and the lowest free run that is long enough is opened. It is closed as well when the
//! block is measured after pages came free. A fresh block is one run, so there the cursor is Linux's bump pointer.
//!
//! A block's record belongs to its address for good. It stays in the lookup; when the block is released to the space,
//! only the record's contents end. So a lookup without a lock never returns a record that was reused for another
//! address.
//!
//! # Invariants
//! - **VB1 whole** free pages, the open run, live mappings and freed mappings make up the block, each page once.
//! - **VB2 marked** each head has its tail before the next head; no tail is without a head.
//! - **VB3 flushed** a mapping that a flush covers was freed, and a freed mapping has a head.
//! - **VB4 dead** the count of dead pages, where there is one, is that of the freed mappings.
//!
//! # Locking
//! The **owner** writes marks, free bits and the run. It is the caller that holds the queue lock of the block's CPU, or
//! the lane that has the block. To free a mapping takes no lock, and neither does reading.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `struct vmap_block`, `vb_alloc`, `vb_free`). There the lock of the block is taken once
//! to allocate and twice to free, and the caller's count is not checked.

mod place;
mod reuse;

pub(crate) use place::{FlushState, List, Place};
pub(crate) use reuse::{Hull, ones};

use crate::link::Link;
use crate::strip::{Gone, STRIP_PAGES, Strip};
use va_base::Table;
use va_base::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

#[cfg(not(loom))]
pub(crate) const STRIPS: usize = 32;
#[cfg(loom)]
pub(crate) const STRIPS: usize = 2;
/// Pages of the largest block.
pub(crate) const PAGES_MAX: u32 = STRIPS as u32 * STRIP_PAGES;

/// No block.
pub(crate) const NIL: u32 = u32::MAX;

/// The record of a block.
#[repr(align(64))]
pub(crate) struct Block {
    // Owner.
    /// The open run begins here. Protocol PR-LOCK.
    cursor: AtomicU32,
    /// The open run ends here. Protocol PR-LOCK.
    limit: AtomicU32,
    /// Upper bound of the free runs other than the open one. Protocol PR-LOCK.
    fit: AtomicU32,
    /// `fit` may be too high: a run of that length was opened since it was measured. Protocol PR-LOCK.
    is_rough: AtomicBool,
    // Under the queue lock.
    /// A [`Place`]. Protocol PR-PLACE.
    place: AtomicU32,
    /// A [`FlushState`]. Protocol PR-PLACE.
    flush_state: AtomicU32,
    /// The CPU whose queue has the block. Protocol PR-LOCK.
    cpu: AtomicU32,
    /// The list of the queue that an open block is in. Protocol PR-LOCK.
    class: AtomicU32,
    /// The key by which the block holds its area of the space, while it is present. Protocol PR-LOCK.
    key: AtomicU32,
    // Constant once the record is in the lookup.
    /// Its number, written before the record is found. Protocol PR-REF.
    index: AtomicU32,
    // Under the lock of the collection.
    /// A [`List`]. Protocol PR-LOCK.
    list: AtomicU32,
    // Under the locks of the two kinds of list.
    links: [Link; 2],
    // Atomic: written by each free.
    strips: [Strip; STRIPS],
    /// Something was freed here since the block was last examined. Changed under the queue lock. Protocol PR-TOUCH.
    touched: AtomicBool,
    /// The next block of the stack of touched blocks, or of those that the collection took from it. Protocol PR-TOUCH.
    pub(crate) touched_next: AtomicU32,
    /// Dead pages; counted only where a block is freed with its last mapping. Protocol PR-DEAD.
    dead: AtomicU32,
    /// Freed mappings that are not noted, and that a flush covers which has begun. Under the queue lock, and that of the
    /// collection. Protocol PR-LOCK.
    covered: AtomicU16,
}

impl Table for Block {
    va_base::empty_table! {
        Self {
            cursor: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            fit: AtomicU32::new(0),
            is_rough: AtomicBool::new(false),
            place: AtomicU32::new(Place::Absent as u32),
            flush_state: AtomicU32::new(FlushState::None as u32),
            cpu: AtomicU32::new(0),
            class: AtomicU32::new(0),
            key: AtomicU32::new(0),
            index: AtomicU32::new(0),
            list: AtomicU32::new(List::None as u32),
            links: va_base::array_of![Link::new(); 2],
            strips: va_base::array_of![Strip::new(); STRIPS],
            touched: AtomicBool::new(false),
            touched_next: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            covered: AtomicU16::new(0),
        }
    }
}

/// The reason why nothing was freed at a page of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WrongFree {
    /// No mapping starts at that page.
    NoHead,
    /// A live mapping of this many pages starts there.
    Size(u32),
    /// A mapping of this many pages started there and was freed.
    Twice(u32),
}

/// Splits a page of a block into its strip and the bit there.
#[inline(always)]
fn place_of(page: u32) -> (usize, u32) {
    // The remainder never changes a page of a block; it shows the compiler that the index is in bounds.
    ((page / STRIP_PAGES) as usize % STRIPS, page % STRIP_PAGES)
}

/// Returns the bits of a strip between pages `start` and `end` of the block, for strip `at`.
fn bits_between(at: usize, start: u32, end: u32) -> u32 {
    let first = at as u32 * STRIP_PAGES;
    let (low, high) = (start.max(first) - first, end.min(first + STRIP_PAGES).saturating_sub(first));
    if low >= high {
        return 0;
    }
    (u32::MAX >> (STRIP_PAGES - (high - low))) << low
}

impl Block {
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Sets the index, before the record is put into the lookup.
    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self) -> Place {
        match self.place.load(Ordering::Acquire) {
            1 => Place::Open,
            2 => Place::Full,
            3 => Place::Laned,
            _ => Place::Absent,
        }
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place as u32, Ordering::Release);
    }

    pub(crate) fn flush_state(&self) -> FlushState {
        // Acquire pairs with the release in `set_flush_state`, by the lane that recycled or the collection that
        // completed.
        match self.flush_state.load(Ordering::Acquire) {
            1 => FlushState::Begun,
            2 => FlushState::Completed,
            _ => FlushState::None,
        }
    }

    pub(crate) fn set_flush_state(&self, flush_state: FlushState) {
        self.flush_state.store(flush_state as u32, Ordering::Release);
    }

    pub(crate) fn list(&self) -> List {
        match self.list.load(Ordering::Relaxed) {
            1 => List::Pending,
            2 => List::InFlight,
            _ => List::None,
        }
    }

    pub(crate) fn set_list(&self, list: List) {
        self.list.store(list as u32, Ordering::Relaxed);
    }

    pub(crate) fn class(&self) -> u32 {
        self.class.load(Ordering::Relaxed)
    }

    pub(crate) fn set_class(&self, class: u32) {
        self.class.store(class, Ordering::Relaxed);
    }

    pub(crate) fn link(&self, kind: usize) -> &Link {
        // There are two kinds; the remainder shows the compiler that the index is in bounds.
        &self.links[kind % 2]
    }

    /// Returns an upper bound of the contiguous pages that can be allocated.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        let open = self.limit.load(Ordering::Relaxed) - self.cursor.load(Ordering::Relaxed);
        open.max(self.fit.load(Ordering::Relaxed))
    }

    /// Begins a block of `pages` pages, all in the open run, for `cpu`. No mapping is live. The caller holds the area by
    /// `key`, so no other thread begins the block.
    pub(crate) fn begin(&self, cpu: u32, pages: u32, key: u32) {
        self.key.store(key, Ordering::Relaxed);
        self.cpu.store(cpu, Ordering::Relaxed);
        self.cursor.store(0, Ordering::Relaxed);
        self.limit.store(pages, Ordering::Relaxed);
        self.set_fit(0);
        self.dead.store(0, Ordering::Relaxed);
    }

    /// Returns the key by which the block holds its area, for the caller that ended it.
    pub(crate) fn key(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    /// Ends the block: no mapping is recorded any more. Owner only; no mapping is live.
    pub(crate) fn end(&self) {
        for strip in &self.strips {
            strip.unmark(u32::MAX, u32::MAX);
            strip.forget_all();
            strip.set_free(0);
            strip.set_flushed(0);
        }
        self.cursor.store(0, Ordering::Relaxed);
        self.limit.store(0, Ordering::Relaxed);
        self.set_fit(0);
        self.set_flush_state(FlushState::None);
        self.set_place(Place::Absent);
    }

    /// Allocates `pages` pages of the open run and uses up `consumed` of it. Owner only.
    #[inline(always)]
    pub(crate) fn carve(&self, pages: u32, consumed: u32) -> Option<u32> {
        let at = self.cursor.load(Ordering::Relaxed);
        let end = at + consumed;
        if end > self.limit.load(Ordering::Relaxed) {
            return None;
        }
        self.cursor.store(end, Ordering::Relaxed);
        let last = at + pages - 1;
        if at ^ last < STRIP_PAGES {
            let (strip, head) = place_of(at);
            self.strips[strip].mark(1 << head, 1 << (last % STRIP_PAGES));
        } else {
            self.mark_across(at, last);
        }
        Some(at)
    }

    fn mark_across(&self, head: u32, tail: u32) {
        let ((first, head), (last, tail)) = (place_of(head), place_of(tail));
        // The tail first: a thread that sees the head sees the tail.
        self.strips[last].mark(0, 1 << tail);
        self.strips[first].mark(1 << head, 0);
    }

    /// Allocates as [`carve`](Self::carve) does, and opens another run if need be. Owner only. `pages` of
    /// `block_pages`.
    pub(crate) fn carve_anywhere(&self, pages: u32, consumed: u32, block_pages: u32) -> Option<u32> {
        let done = self.carve(pages, consumed);
        if done.is_some() || self.fit.load(Ordering::Relaxed) < consumed {
            return done;
        }
        if self.open_run(consumed, block_pages) { self.carve(pages, consumed) } else { None }
    }

    /// Opens the lowest free run of at least `want` pages; without one, leaves none open. Cost: O(strips and runs).
    fn open_run(&self, want: u32, block_pages: u32) -> bool {
        self.close_run();
        let mut longest = 0;
        for (start, end) in self.free_runs(block_pages) {
            if end - start >= want {
                self.set_free_between(start, end, false);
                self.cursor.store(start, Ordering::Relaxed);
                self.limit.store(end, Ordering::Relaxed);
                if end - start >= self.fit.load(Ordering::Relaxed) {
                    self.is_rough.store(true, Ordering::Relaxed);
                }
                return true;
            }
            longest = longest.max(end - start);
        }
        self.set_fit(longest);
        false
    }

    /// Returns the free runs except the open one, lowest first.
    fn free_runs(&self, block_pages: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            let start = self.next_free(at, block_pages, true)?;
            at = self.next_free(start, block_pages, false).unwrap_or(block_pages);
            Some((start, at))
        })
    }

    fn set_fit(&self, fit: u32) {
        self.fit.store(fit, Ordering::Relaxed);
        self.is_rough.store(false, Ordering::Relaxed);
    }

    /// Sets the bound of free runs after pages came free. Owner only.
    fn loosen_fit(&self) {
        self.fit.store(PAGES_MAX, Ordering::Relaxed);
        self.is_rough.store(true, Ordering::Relaxed);
    }

    /// Makes [`room`](Self::room) exact. Owner only. Cost: O(strips and runs), or O(1) if it is exact already.
    pub(crate) fn measure(&self, block_pages: u32) {
        if self.is_rough.load(Ordering::Relaxed) {
            // Pages beside the open run may be free by now: then they are one run with it.
            self.close_run();
            self.set_fit(self.free_runs(block_pages).map(|(start, end)| end - start).max().unwrap_or(0));
        }
    }

    /// Makes the open run a free one, one with the free pages beside it.
    fn close_run(&self) {
        let (start, end) = (self.cursor.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed));
        self.set_free_between(start, end, true);
        self.cursor.store(0, Ordering::Relaxed);
        self.limit.store(0, Ordering::Relaxed);
    }

    fn set_free_between(&self, start: u32, end: u32, free: bool) {
        let (mut at, end) = (start, end.min(PAGES_MAX));
        while at < end {
            let (index, _) = place_of(at);
            let (strip, bits) = (&self.strips[index], bits_between(index, at, end));
            strip.set_free(if free { strip.free() | bits } else { strip.free() & !bits });
            at = (at / STRIP_PAGES + 1) * STRIP_PAGES;
        }
    }

    /// Returns the lowest page at or above `from` whose free bit is `free`.
    fn next_free(&self, from: u32, block_pages: u32, free: bool) -> Option<u32> {
        let mut at = from;
        while at < block_pages {
            let (index, bit) = place_of(at);
            let word = self.strips[index].free();
            let left = (if free { word } else { !word }) >> bit;
            if left != 0 {
                let found = at + left.trailing_zeros();
                return (found < block_pages).then_some(found);
            }
            at += STRIP_PAGES - bit;
        }
        None
    }

    /// Returns the pages from `head` to the first tail at or above it; `None` if a mapping cannot reach that far.
    #[inline(always)]
    fn size_from(&self, head: u32) -> Option<u32> {
        let (first, bit) = place_of(head);
        let tails = self.strips[first].marks().tails() >> bit;
        if tails != 0 { Some(tails.trailing_zeros() + 1) } else { self.size_across(first, bit) }
    }

    fn size_across(&self, first: usize, bit: u32) -> Option<u32> {
        let mut before = STRIP_PAGES - bit;
        // A mapping has at most two strips' pages, so it ends at most two strips later.
        for strip in self.strips.get(first + 1..)?.iter().take(2) {
            let tails = strip.marks().tails();
            if tails != 0 {
                return Some(before + tails.trailing_zeros() + 1);
            }
            before += STRIP_PAGES;
        }
        None
    }

    /// Frees the mapping of `pages` pages that starts at page `at`. Of two callers that try, one gets an error.
    #[inline(always)]
    pub(crate) fn free(&self, at: u32, pages: u64) -> Result<(), WrongFree> {
        let (index, bit) = place_of(at);
        let strip = &self.strips[index];
        loop {
            // First: the exchange below fails if anything was recycled after this read.
            let gone = strip.gone();
            if let Err(wrong) = self.check(strip, gone, at, bit, pages) {
                // If the word changed, the marks may be of two mappings, one after the other.
                if strip.gone() == gone {
                    return Err(wrong);
                }
            } else if strip.mark_freed(gone, bit) {
                return Ok(());
            }
        }
    }

    /// Frees a mapping as [`free`](Self::free) does, if it is in one strip; else changes nothing and returns false, as for
    /// a mistake of the caller.
    #[inline(always)]
    pub(crate) fn free_in_strip(&self, at: u32, pages: u64) -> bool {
        let (index, bit) = place_of(at);
        let strip = &self.strips[index];
        // First, as in `free`.
        let gone = strip.gone();
        !gone.has(bit) && strip.marks().are_of(bit, pages) && strip.mark_freed(gone, bit)
    }

    #[inline(always)]
    fn check(&self, strip: &Strip, gone: Gone, at: u32, bit: u32, pages: u64) -> Result<(), WrongFree> {
        if !strip.marks().has_head(bit) {
            return Err(WrongFree::NoHead);
        }
        let Some(size) = self.size_from(at) else { return Err(WrongFree::NoHead) };
        if gone.has(bit) {
            return Err(WrongFree::Twice(size));
        }
        if u64::from(size) == pages { Ok(()) } else { Err(WrongFree::Size(size)) }
    }

    /// Returns whether the block is on the stack of touched blocks, or with the collection that took it from there and
    /// will examine it after this call.
    #[inline(always)]
    pub(crate) fn is_touched(&self) -> bool {
        // SeqCst: see `Strip::mark_freed`.
        self.touched.load(Ordering::SeqCst)
    }

    /// Sets the flag after the block was pushed, clears it before a collection reads what was freed. Queue lock.
    pub(crate) fn set_touched(&self, touched: bool) {
        self.touched.store(touched, Ordering::SeqCst);
    }

    /// Counts dead pages; returns how many there are.
    pub(crate) fn count_dead(&self, pages: u32) -> u32 {
        // AcqRel: the caller that counts the last page sees all that earlier callers did.
        self.dead.fetch_add(pages, Ordering::AcqRel) + pages
    }

    pub(crate) fn dead_counted(&self) -> u32 {
        self.dead.load(Ordering::Acquire)
    }

    /// Returns the live mapping around page `at`: its first page and its size. No lock.
    pub(crate) fn living_around(&self, at: u32) -> Option<(u32, u32)> {
        let head = self.head_upto(at)?;
        let (index, bit) = place_of(head);
        let strip = &self.strips[index];
        loop {
            let gone = strip.gone();
            if gone.has(bit) || !strip.marks().has_head(bit) {
                return None;
            }
            let size = self.size_from(head)?;
            // Unchanged, so head and tail are of one mapping.
            if strip.gone() == gone {
                return (at - head < size).then_some((head, size));
            }
        }
    }

    /// Returns the highest head at or below page `at`, if a mapping from there could reach it.
    fn head_upto(&self, at: u32) -> Option<u32> {
        let (index, bit) = place_of(at);
        let upto = |index: usize, mask: u32| {
            let heads = self.strips[index].marks().heads() & mask;
            (heads != 0).then(|| index as u32 * STRIP_PAGES + heads.ilog2())
        };
        upto(index, u32::MAX >> (STRIP_PAGES - 1 - bit))
            .or_else(|| (index.saturating_sub(2)..index).rev().find_map(|index| upto(index, u32::MAX)))
    }

    /// Returns the free pages, including those of the open run. Exact for the owner.
    pub(crate) fn free_pages(&self) -> u32 {
        // Other threads may read cursor and limit of different runs.
        let open = self.limit.load(Ordering::Relaxed).saturating_sub(self.cursor.load(Ordering::Relaxed));
        // Of a used-up block most strips have none, and a kernel is compiled without instructions that count bits.
        let free = self.strips.iter().map(Strip::free).filter(|&free| free != 0);
        open + free.map(u32::count_ones).sum::<u32>()
    }

    /// Returns the open run.
    pub(crate) fn run(&self) -> (u32, u32) {
        (self.cursor.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed))
    }

    pub(crate) fn strips(&self) -> &[Strip; STRIPS] {
        &self.strips
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::{Config, Linux64, Standard};
    use std::boxed::Box;
    use std::vec::Vec;

    fn fresh(pages: u32) -> Box<Block> {
        let block = Box::new(Block::empty());
        block.begin(0, pages, 0);
        block
    }

    /// Returns a block in which mappings of these sizes are adjacent, and their first pages.
    pub(super) fn filled(sizes: &[u32]) -> (Box<Block>, Vec<u32>) {
        let block = fresh(PAGES_MAX);
        let at = sizes.iter().map(|&size| block.carve(size, size).expect("it fits")).collect();
        (block, at)
    }

    #[test]
    fn a_count_is_checked_across_strips() {
        let (block, at) = filled(&[20, 1, 43, 64, 5, 31, 33]);
        for (&at, size) in at.iter().zip([20, 1, 43, 64, 5, 31, 33]) {
            for wrong in [0, size - 1, size + 1, size + (1 << 32), u64::MAX] {
                assert_eq!(block.free(at, wrong), Err(WrongFree::Size(size as u32)), "{at}: {wrong}");
            }
            for inside in at + 1..at + size as u32 {
                assert_eq!(block.free(inside, 1), Err(WrongFree::NoHead));
                assert_eq!(block.living_around(inside), Some((at, size as u32)));
            }
            assert_eq!(block.free(at, size), Ok(()));
            assert_eq!(block.free(at, size), Err(WrongFree::Twice(size as u32)));
            assert_eq!(block.living_around(at), None);
        }
        assert!(block.is_dead() && !block.is_empty());
        let mut hull = Hull::EMPTY;
        block.note_flushed(&mut hull);
        assert_eq!(hull, Hull { low: 0, high: 197 });
        assert_eq!(
            (block.recycle::<Standard>(), block.is_empty(), block.free_pages()),
            (197, true, PAGES_MAX)
        );
    }

    #[test]
    fn o7_pages_consumed_by_order() {
        for (pages, consumed) in [(1, 1), (2, 2), (3, 4), (5, 8), (33, 64)] {
            let block = fresh(1024);
            assert_eq!(block.carve(pages, Linux64::consumed(pages)), Some(0));
            assert_eq!(1024 - block.free_pages(), consumed);
        }
    }

    #[test]
    fn an_ended_block_knows_nothing() {
        let (block, at) = filled(&[3, 40]);
        for (at, size) in at.iter().zip([3, 40]) {
            block.free(*at, size).unwrap();
        }
        block.end();
        assert_eq!(block.free(at[1], 40), Err(WrongFree::NoHead));
        block.begin(0, 128, 0);
        assert_eq!((block.carve(64, 64), block.carve(65, 65), block.free_pages()), (Some(0), None, 64));
    }
}
