//! Areas that move to other addresses: their pages move where that is cheaper, otherwise their bytes are copied.
//!
//! # Theory
//! ```text
//!   |== live ==|xx foreign xx|    ...   |  clean  |        before
//!   |  clean   |xxxx|         ...       |== live ==|  |    after: the same pages, no byte copied
//! ```
//! | method | cost | effect on mappings and pages |
//! |---|---|---|
//! | pages move (`UFFDIO_MOVE`) | 64 ns a page, 1.2 us a huge page | mappings unchanged |
//! | the mapping moves (`mremap`) | 8 to 23 ns a page | two more mappings, until the area is freed |
//! | copy | 50 to 150 ns a page, and the faults of the new ones | dirty pages at the old addresses |
//!
//! Pages move into clean addresses, which would otherwise fault in pages of their own. The pages by which the area
//! grows come from cold dirty blocks, as for any fresh run (`refill.rs`). Where dirty pages are available for a small
//! area, a copy is cheaper than the faults of the pages by which it grows. A huge page moves as one where both
//! addresses are aligned. The pages of half of one would keep the other half from being huge. So **the last block is
//! copied** where huge pages are wanted, and moves otherwise.
//!
//! A mapping that `mremap` moved is a mapping of its own, and the number of those is limited. So a **moved** area is
//! not cached when it is freed: fresh pages are mapped over it, which merge with the mappings around it. `mremap`
//! serves where pages cannot move: before Linux 6.8, and for pages that a child of a fork shared. An `mremap` that
//! fails for want of memory may leave a hole at its destination. The hole is mapped again at once. If another thread
//! mapped something there first, that range is **retired**: it is never allocated again, and its words record that it
//! is released. After such a failure no mapping moves any more. An `mremap` that failed before it unmapped anything (as
//! at `vm.max_map_count`) looks the same, and retires a range as well: one in the life of a heap. `mincore` reports
//! that something is mapped there, but not which mapping it is.
//!
//! A move that stops part-way is completed by a copy: nothing is lost.
//! # Source
//! Our own; Linux moves page tables for `mremap`, and copies in `vrealloc` (6.12).

use super::carve::Central;
use super::{Fill, Heap};
use crate::PAGE_BYTES;
use crate::arena::{HUGE, HUGE_PAGES, Run, SMALL, address, into_pointer};
use crate::error::ResizeError;
use crate::page_word::Word;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{Align, Request, VaRange};
use vmalloc_os::os::{Errno, Os};

/// Pages from which an area is moved rather than copied to addresses without pages.
const MOVE_PAGES_MIN: u64 = 16;
/// Pages from which a mapping is moved.
const REMAP_PAGES_MIN: u64 = 64;

/// The multiple of its size that an area reserves in addresses once it has grown. It begins at a multiple of that, and
/// so does the next one. Four areas that grow in turn move a third as often as with 1; with 4, hardly less often
/// (`examples/grow.rs`).
const ROOM: u64 = 2;

/// Counts of the areas that ever grew, by method.
pub(super) struct Growth {
    // Atomic, each alone.
    /// Areas that grew in place. A counter.
    pub(super) in_place: AtomicU64,
    /// Areas whose pages moved. A counter.
    pub(super) moved: AtomicU64,
    /// Areas that were copied. A counter.
    pub(super) copied: AtomicU64,
}

impl Growth {
    pub(super) const fn new() -> Self {
        Self { in_place: AtomicU64::new(0), moved: AtomicU64::new(0), copied: AtomicU64::new(0) }
    }
}

impl<O: Os> Heap<O> {
    /// Moves an area to other addresses.
    ///
    /// # Safety
    /// As [`resize`](Self::resize).
    pub(super) unsafe fn relocate(
        &self,
        at: usize,
        word: Word,
        layout: Layout,
        fill: Fill,
    ) -> Result<NonNull<u8>, ResizeError> {
        let size = layout.size();
        let pages = self.run_pages(size);
        let kind = self.arena.kind_for(pages);
        let large = kind == HUGE && word.pages() >= HUGE_PAGES && pages >= word.pages();
        let medium = kind == SMALL
            && self.arena.kind_of((at / PAGE_BYTES) as u64) == SMALL
            && word.pages() >= MOVE_PAGES_MIN
            && pages >= word.pages();
        let fresh = (large || medium) && (self.arena.can_move() || self.can_remap(word, pages));
        let roomy = if fresh { self.carve_with_room(kind, layout, word.pages()) } else { None };
        // The new run, how many of its pages may have contents, and whether its first pages, for the area's own, are
        // clean.
        let (mut to, mut used, clean) = match roomy {
            Some((to, used)) => (to, used, true),
            None => {
                let (to, used) = self.carve(layout, fresh)?;
                (to, used, used == 0)
            }
        };
        // SAFETY: this function's contract.
        let (mut from, word) = match unsafe { self.claim(at) } {
            Ok(claimed) => claimed,
            Err(error) => {
                self.free_unused(to);
                return Err(error.into());
            }
        };
        used = self.move_policy(&from, word, &mut to, used);
        // The bytes that are to be preserved. A caller that queried the usable size may have written all of it.
        let end = word.usable_bytes().min(size);
        let moves = clean && (large || kind != HUGE);
        let moved = if moves { self.move_most(&mut from, &mut to, end) } else { 0 };
        if moves && moved == 0 && self.can_remap(word, pages) {
            match self.arena.remap(&mut from, &mut to) {
                Ok(()) => {
                    self.growth.moved.fetch_add(1, Ordering::Relaxed);
                    self.remapped(from, word, &to, size);
                    self.zero_rest(&mut to, word, size, fill, used);
                    return Ok(into_pointer(to));
                }
                Err((errno, usable)) => {
                    if errno == Errno::NOMEM {
                        self.remaps_off.store(true, Ordering::Relaxed);
                    }
                    if !usable {
                        let mut central = self.zone_of(to.page());
                        central.retire_released(&self.arena, to.range());
                        self.arena.disown(to);
                        drop(central);
                        (to, used) = match self.carve(layout, false) {
                            Ok(other) => other,
                            Err(error) => {
                                self.arena.put(from.page(), word);
                                return Err(error.into());
                            }
                        };
                    }
                }
            }
        }
        let ways = if moved > 0 { &self.growth.moved } else { &self.growth.copied };
        ways.fetch_add(1, Ordering::Relaxed);
        self.arena.copy(&from, &mut to, address(moved), end);
        self.zero_rest(&mut to, word, size, fill, used);
        if word.is_moved() {
            self.free_moved(from, word);
        } else {
            self.wipe(&mut from, address(moved), word.usable_bytes());
            self.free_partly_moved(from, moved);
        }
        Ok(into_pointer(to))
    }

    /// Carves a clean run below free addresses, if there are any: an area that has grown is likely to grow again.
    /// Cached pages are moved to the part by which it grows, and the first `own` pages stay empty. Returns also the end
    /// of the pages that may have contents.
    fn carve_with_room(&self, kind: usize, layout: Layout, own: u64) -> Option<(Run, u64)> {
        let pages = self.run_pages(layout.size());
        let room = (pages * ROOM).checked_next_power_of_two()?;
        let zone = self.home(kind, room);
        if room > self.arena.extent(zone).len_bytes() / PAGE_BYTES as u64 / 16 {
            return None;
        }
        let align = Align::new(layout.align().max(address(room)) as u64)?;
        let request = Request::pages(pages).ok()?.aligned(align);
        self.drain_for(zone);
        let mut central = self.zone(zone);
        let mut fresh = central.take_clean(&self.arena, &request).ok()?;
        // Under the lock, so that the next owner of the lock finds a word at every area (VM1).
        self.arena.put(fresh.page, Word::live(pages, layout.size()));
        let (start, end) = fresh.clean.whole_pages();
        let grown = (start + own).next_multiple_of(central.block_pages).min(end);
        fresh.clean = VaRange::from_pages(grown, end).unwrap_or_default();
        let refilled = if grown < end {
            self.refill(central, &fresh)
        } else {
            central.add_rest(&fresh);
            0
        };
        let used = if refilled > 0 { grown - start + refilled } else { 0 };
        // SAFETY: the run was free in the space, and is not now; it is below the frontier.
        Some((unsafe { Run::claim(fresh.page, pages) }, used))
    }

    /// Returns true if the mapping of an area may move to a run of this many pages. An area that was moved and grew has
    /// two mappings. A kernel from 6.17 on may move the first and fail for the second, and then no caller could know
    /// which pages are at which addresses.
    fn can_remap(&self, word: Word, pages: u64) -> bool {
        word.pages() >= REMAP_PAGES_MIN
            && !word.is_moved()
            && pages >= word.pages()
            && !self.remaps_off.load(Ordering::Relaxed)
            && self.moved.load(Ordering::Relaxed) < self.moved_max
    }

    /// Moves the pages of the first `end` bytes, or as many of them as pays. Returns how many were moved.
    fn move_most(&self, from: &mut Run, to: &mut Run, end: usize) -> u64 {
        let mut pages = (end.div_ceil(PAGE_BYTES) as u64).min(from.pages()).min(to.pages());
        if self.arena.has_huge_pages(self.arena.zone_of(to.page())) {
            pages -= pages % HUGE_PAGES;
        }
        if pages < MOVE_PAGES_MIN || !self.arena.can_move() {
            return 0;
        }
        match self.arena.move_some(from, to, pages) {
            Ok(()) => pages,
            Err((moved, _)) => moved,
        }
    }

    /// Frees a run whose first pages have moved away: whole blocks of these are clean.
    fn free_partly_moved(&self, from: Run, moved: u64) {
        if moved == 0 {
            self.cache(from);
            return;
        }
        let mut central = self.zone_of(from.page());
        let (page, range, before) = (from.page(), from.range(), central.dirty_pages());
        central.add_dirty(from);
        let (_, end) = range.whole_pages();
        let gone = VaRange::from_pages(page, end.min(page + moved)).unwrap_or_default();
        central.make_clean(gone);
        let dirty = central.dirty_pages().saturating_sub(before);
        drop(central);
        self.settle(dirty);
    }

    /// Records an area whose mapping has moved.
    fn remapped(&self, from: Run, word: Word, to: &Run, size: usize) {
        let live = Word::live(to.pages(), size);
        // Another thread may have marked it as changed: then it is recorded as moved and counted already.
        if self.change(to.page(), live, live.moved()) {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
        self.settle(self.free_renewed(from, word));
    }

    /// Zeroes the bytes that are newly requested, in a run to which the pages of an area moved. The run is zeros above
    /// them and above the first `used` pages.
    pub(super) fn zero_rest(&self, to: &mut Run, word: Word, size: usize, fill: Fill, used: u64) {
        if fill == Fill::Zero {
            let end = size.min(word.usable_bytes().max(address(used)));
            self.arena.zero(to, word.requested_bytes(), end);
        }
    }

    /// Frees a run that is a mapping of its own.
    #[cold]
    pub(super) fn free_moved(&self, mut run: Run, word: Word) {
        self.moved.fetch_sub(1, Ordering::Relaxed);
        if self.guards.tail > 0 && !self.unguard(&mut run) {
            return self.retire(&mut self.zone_of(run.page()), run);
        }
        self.settle(self.free_renewed(run, word));
    }

    /// Maps fresh pages over a run. Its whole blocks are clean then, and the rests at its ends dirty. Returns the
    /// number of dirty pages, for [`settle`](Self::settle). Called under no lock; the first word records the size of
    /// the run meanwhile (VM1).
    pub(super) fn free_renewed(&self, mut run: Run, word: Word) -> u64 {
        let range = run.range();
        let renewed = self.arena.renew(&mut run).is_ok();
        let retired = !renewed && word.is_changed();
        if retired {
            // The addresses with the changed mapping are never used again; their pages are released, if the system
            // succeeds.
            let _stay = self.arena.discard(core::slice::from_mut(&mut run));
        } else if !renewed {
            self.wipe(&mut run, 0, range.len_bytes() as usize);
        }
        let mut central = self.zone_of(run.page());
        let before = central.dirty_pages();
        central.failed += u64::from(!renewed);
        if retired {
            self.retire(&mut central, run);
            return 0;
        }
        central.add_dirty(run);
        if renewed {
            central.make_clean(range);
        }
        central.dirty_pages().saturating_sub(before)
    }

    /// Retires a run: it is never allocated again.
    #[cold]
    pub(super) fn retire(&self, central: &mut Central<O>, run: Run) {
        self.arena.put(run.page(), Word::free(run.pages()));
        central.retired += run.pages();
    }
}
