//! Granules: the units in which the window becomes readable and writable.
//!
//! # Theory
//! ```text
//!   |       table, 2 MiB        |          |                           |          |
//!   |..[=]..[==]| closed |.[=]..|  closed  |..[====|========|====].....|  closed  |      . no access, by a marker
//!      a small areas      b                     c  a large area
//! ```
//! If areas were scattered over the whole window, each would need a page table of its own, and so would each address of
//! a former area. A fork copies all of these tables. So the window starts closed (`PROT_NONE`, no tables), and a
//! **granule** is opened when the first room needs it. It is made accessible, and everything but the room gets markers,
//! so that only open rooms are accessible. When its last room closes, fresh pages without access are mapped over the
//! granule, including areas in quarantine there. With the last granule of a table the whole table's range is mapped,
//! which frees the table.
//!
//! Small rooms are placed in up to [`BUNDLES_MAX`] **bundles** of granules: whole tables at random addresses of the
//! window. A full bundle is replaced by another one: one without room for an area for which eight others had none. So
//! rooms that are allocated together are close together, and an address reveals only that the next one is in one of that
//! many bundles. A room that is large relative to a table is drawn from the whole window. The granules that it occupies
//! alone are closed as a whole.
//!
//! Each boundary between open and closed granules (an **edge**) is a boundary between two mappings. The more edges
//! there are, the more tables a bundle has. At `edges_max` no opening or closing adds an edge if that can be avoided.
//!
//! # Invariants
//! - **HG1 counted** an open granule counts the rooms in it, each opened once; a closed one has none.
//! - **HG2 used** a granule counts its pages that the space has allocated.
//! - **HG3 edges** the count of edges is that of the boundaries between open and closed granules.
//!
//! # Locking
//! Everything here runs under the lock of the allocator. The system calls made here are for granules that contain only
//! markers.

use super::places::{NoPlace, Places};
use super::secret::Draw;
use super::window::{Room, Window};
use crate::PAGE_BYTES;
use core::ops::Range;
use va_base::VaRange;
use vmalloc_os::os::{Call, Errno, Os, Span};

/// Pages that one page table maps: those of a huge page.
const TABLE_PAGES: u64 = (2 << 20) / PAGE_BYTES as u64;
/// Granules of a table.
pub(super) const TABLE: u64 = 64;
/// Pages of a granule.
pub(super) const GRANULE_PAGES: u64 = TABLE_PAGES / TABLE;
/// Pages of a room that is large relative to a table: the granules that it occupies alone are closed as a whole.
const LARGE_PAGES: u64 = TABLE_PAGES / SHARE;
/// The least number of adjacent idle granules that are closed although their neighbours are open. At a fork, copying
/// two more mappings costs as much as copying 44 markers.
const HOLE: u64 = 7;
/// The most bundles at a time. The more there are, the less an address reveals about the next one, and the more tables
/// there are.
const BUNDLES_MAX: usize = 16;
/// All bundles have at most this fraction (one in 32) of the window, so that most of a small window can still be drawn.
const PART: u64 = 32;
/// Draws of a bundle before the whole window is used.
const TRIES: u32 = 32;
/// Bundles without room for an area that are drawn before one is left. They have room for smaller ones.
const PATIENCE: u32 = 8;
/// Draws in a bundle before its next hole is taken, so that bundles are filled and few are partly used.
const TRIES_INSIDE: u32 = 4;
/// A bundle is left when its pages were allocated this many times, regardless of frees.
const TURNS: u64 = 2;
/// The number of bundle sizes: each is twice the one before, from a table on.
const LEVELS: u64 = 8;
/// A room has at most this fraction (a quarter) of its bundle.
const SHARE: u64 = 4;

const OPEN: u16 = 1 << 15;
/// The granule is in a bundle in which rooms are placed.
const ACTIVE: u16 = 1 << 14;
/// Released: others may have its addresses.
const RELEASED: u16 = 1 << 13;
const USED_AT: u32 = 6;
const ROOMS: u16 = (1 << USED_AT) - 1;

// A room has at least a page, and its walls are not shared with other rooms.
const _: () = assert!(GRANULE_PAGES < ROOMS as u64 && GRANULE_PAGES << USED_AT < RELEASED as u64);

/// The state of a granule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Granule(u16);

impl Granule {
    pub(super) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    pub(super) const fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    pub(super) const fn is_active(self) -> bool {
        self.0 & ACTIVE != 0
    }

    /// Returns the number of open rooms in the granule.
    pub(super) const fn rooms(self) -> u64 {
        (self.0 & ROOMS) as u64
    }

    /// Returns the pages of the granule that the space has allocated, walls included.
    pub(super) const fn used(self) -> u64 {
        ((self.0 & (RELEASED - 1)) >> USED_AT) as u64
    }

    /// Returns true if others may have its addresses.
    pub(super) const fn is_released(self) -> bool {
        self.0 & RELEASED != 0
    }

    /// The same granule, whose addresses others may have from now on.
    pub(super) const fn released(self) -> Self {
        Self(self.0 | RELEASED)
    }

    /// Returns true if the granule is open without need: in no bundle and without a room.
    const fn is_idle(self) -> bool {
        self.is_open() && !self.is_active() && self.rooms() == 0
    }
}

/// Granules in which small rooms are placed.
#[derive(Clone, Copy, Debug)]
struct Bundle {
    first: u64,
    /// 0 if there is no bundle.
    count: u64,
    /// Pages that were ever allocated in it, walls included.
    drawn: u64,
}

/// The state of the granules that a room enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// No markers are in the room: all of its granules were closed.
    Fresh,
    /// Markers are in some granules of the room.
    Marked,
}

/// The extent to which a room was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// All of it.
    Whole {
        /// The room is inaccessible. If not, it is zeros.
        shut: bool,
    },
    /// Only the granules that the room occupies alone.
    Inner,
}

/// The bundles and the count of edges.
pub(super) struct Granules {
    bundles: [Bundle; BUNDLES_MAX],
    edges: u64,
    edges_max: u64,
}

impl Granules {
    /// Makes a state in which nothing is open, with at most `edges_max` edges where that can be ensured.
    pub(super) const fn new(edges_max: u64) -> Self {
        Self { bundles: [Bundle { first: 0, count: 0, drawn: 0 }; BUNDLES_MAX], edges: 0, edges_max }
    }

    /// Returns true if more edges are to be avoided.
    pub(super) fn is_crowded(&self) -> bool {
        self.edges >= self.edges_max
    }

    /// Allocates a small room in a bundle. Returns `None` if the room is not small, or no bundle has room.
    pub(super) fn take<O: Os>(
        &mut self,
        window: &Window<O>,
        places: &mut Places<O>,
        draw: &mut Draw,
        pages: u64,
        align: u64,
    ) -> Option<Result<u64, NoPlace>> {
        let level = (self.edges * LEVELS / self.edges_max.max(1)).min(LEVELS - 1);
        let mut count = TABLE << level;
        // A small window has no room for a large bundle.
        while count > TABLE && count > window.granules() {
            count /= 2;
        }
        if !fits(count, pages, align) {
            return None;
        }
        let bundles = (window.granules() / TABLE / PART).clamp(1, BUNDLES_MAX as u64);
        let mut has_failed = false;
        for nth in 0..TRIES {
            let slot = draw.below(bundles) as usize;
            let Bundle { count: has, drawn, .. } = self.bundles[slot];
            if drawn >= has * GRANULE_PAGES * TURNS || !fits(has, pages, align) {
                if has_failed {
                    continue;
                }
                self.leave_bundle(window, slot);
                // If no new bundle is found, only the existing ones are tried further: a search that fails is slow.
                let Some(first) = self.new_bundle(window, draw, count) else {
                    has_failed = true;
                    continue;
                };
                (first..first + count).for_each(|at| self.change(window, at, |word| word | ACTIVE));
                self.bundles[slot] = Bundle { first, count, drawn: 0 };
            }
            let Bundle { first, count, .. } = self.bundles[slot];
            let first = window.first() + first * GRANULE_PAGES;
            match places.take(draw, [first, first + count * GRANULE_PAGES], pages, align, TRIES_INSIDE) {
                Ok(page) => {
                    self.bundles[slot].drawn += pages + 2;
                    return Some(Ok(page));
                }
                // Others may have room for it, and this one for a smaller room.
                Err(NoPlace::Full { .. }) if nth < PATIENCE => {}
                Err(NoPlace::Full { .. }) => _ = self.leave_bundle(window, slot),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// Draws and opens `count` granules for a new bundle, and returns the first. Open granules with few used pages are
    /// also suitable.
    fn new_bundle<O: Os>(&mut self, window: &Window<O>, draw: &mut Draw, count: u64) -> Option<u64> {
        let places = window.granules() / count;
        for _ in 0..TRIES {
            let first = draw.below(places.max(1)) * count;
            let all = first..(first + count).min(window.granules());
            let word = |at| window.granule(at);
            let used = || all.clone().map(|at| word(at).used()).sum::<u64>();
            if all.clone().all(|at| word(at).is_open() && !word(at).is_active())
                && used() * SHARE <= count * GRANULE_PAGES
            {
                return Some(first);
            }
            if self.is_crowded()
                || all.clone().any(|at| word(at).is_open())
                || used() * 2 > count * GRANULE_PAGES
            {
                continue;
            }
            if self.open(window, all.clone(), None).is_ok() {
                return Some(first);
            }
            self.settle(window, all, u64::MAX);
            return None;
        }
        None
    }

    /// Ends placement in a bundle. Returns the number of its pages that were closed.
    fn leave_bundle<O: Os>(&mut self, window: &Window<O>, slot: usize) -> u64 {
        let Bundle { first, count, .. } = self.bundles[slot];
        self.bundles[slot].count = 0;
        (first..first + count).for_each(|at| self.change(window, at, |word| word & !ACTIVE));
        self.settle(window, first..first + count, self.edges_max)
    }

    /// Leaves all bundles, so that those without rooms close. Returns the number of pages that were closed.
    pub(super) fn rest<O: Os>(&mut self, window: &Window<O>) -> u64 {
        (0..BUNDLES_MAX).map(|slot| self.leave_bundle(window, slot)).sum()
    }

    /// Adds a room to its granules, and opens the closed ones. On an error nothing has changed.
    pub(super) fn enter<O: Os>(&mut self, window: &Window<O>, room: &Room) -> Result<Entry, (Call, Errno)> {
        let all = touched(window, room.all());
        let mut entry = Entry::Fresh;
        let mut at = all.start;
        while at < all.end {
            let stop = run(at, all.end, |at| !window.granule(at).is_open());
            if stop == at {
                entry = Entry::Marked;
                at += 1;
                continue;
            }
            if let Err(error) = self.open(window, at..stop, Some(room)) {
                // The room's pages have no markers, so the granules that were opened must be closed.
                self.settle(window, all, u64::MAX);
                return Err(error);
            }
            at = stop;
        }
        all.for_each(|at| self.change(window, at, |word| word + 1));
        Ok(entry)
    }

    /// Removes a room from its granules, of which some may be closed already, and closes idle ones. Returns true if the
    /// room is inaccessible.
    pub(super) fn leave<O: Os>(&mut self, window: &Window<O>, room: &mut Room, closed: Closed) -> bool {
        let all = touched(window, room.all());
        all.clone().for_each(|at| self.change(window, at, |word| word - 1));
        let (own, shut) = match closed {
            Closed::Whole { shut } => (0..0, shut),
            Closed::Inner => (inner(window, room), true),
        };
        own.clone().for_each(|at| self.turn(window, at..at + 1, false));
        for slot in 0..BUNDLES_MAX {
            let Bundle { first, count, .. } = self.bundles[slot];
            // A bundle ends with the first of its granules that closes.
            if first < own.end && own.start < first + count {
                self.leave_bundle(window, slot);
            }
        }
        let _closed = self.settle(window, all.clone(), self.edges_max);
        if own.is_empty() {
            return shut;
        }
        if all == own {
            // Page tables whose granules are all closed now are freed.
            let _as_before = window.close_granules(&whole_tables(window, own));
            return true;
        }
        // Granules that are shared with other rooms get markers.
        let [front, back] = edges(window, room);
        let front = !window.is_open(all.start) || window.mark(front);
        let back = !window.is_open(all.end - 1) || window.mark(back);
        front && back
    }

    /// Counts pages that the space has allocated.
    pub(super) fn count_used<O: Os>(&mut self, window: &Window<O>, range: VaRange) {
        self.count(window, range, |word, pages| word + (pages << USED_AT));
    }

    /// Counts pages that the space has freed.
    pub(super) fn count_freed<O: Os>(&mut self, window: &Window<O>, range: VaRange) {
        self.count(window, range, |word, pages| word - (pages << USED_AT));
    }

    fn count<O: Os>(&mut self, window: &Window<O>, range: VaRange, change: impl Fn(u16, u16) -> u16) {
        let (from, end) = range.whole_pages();
        let (from, end) = (from - window.first(), end - window.first());
        for at in from / GRANULE_PAGES..end.div_ceil(GRANULE_PAGES) {
            let own = from.max(at * GRANULE_PAGES)..end.min((at + 1) * GRANULE_PAGES);
            self.change(window, at, |word| change(word, (own.end - own.start) as u16));
        }
    }

    /// Opens closed granules, and puts markers outside the room. On an error some granules are open.
    fn open<O: Os>(
        &mut self,
        window: &Window<O>,
        all: Range<u64>,
        room: Option<&Room>,
    ) -> Result<(), (Call, Errno)> {
        window.open_granules(&all).map_err(|errno| (Call::Commit, errno))?;
        self.turn(window, all.clone(), true);
        window.mark_granules(&all, room).map_err(|errno| (Call::Guard, errno))
    }

    /// Closes the idle granules in all tables that contain some of these granules. It closes only those that add no
    /// edge, or that leave at most `edges_max` edges.
    fn settle<O: Os>(&mut self, window: &Window<O>, some: Range<u64>, edges_max: u64) -> u64 {
        let mut closed = 0;
        let end = some.end.next_multiple_of(TABLE);
        let mut at = some.start / TABLE * TABLE;
        while at < end {
            let stop = run(at, end, |at| window.granule(at).is_idle());
            if stop == at {
                at += 1;
                continue;
            }
            let splits = window.is_open(at.wrapping_sub(1)) && window.is_open(stop);
            let pays = !splits || (stop - at >= HOLE && self.edges < edges_max);
            if (pays || edges_max == u64::MAX) && window.close_granules(&whole_tables(window, at..stop)) {
                self.turn(window, at..stop, false);
                closed += (stop - at) * GRANULE_PAGES;
            }
            at = stop;
        }
        closed
    }

    /// Switches granules from closed to open, or from open to closed. Maintains HG3.
    fn turn<O: Os>(&mut self, window: &Window<O>, all: Range<u64>, open: bool) {
        for at in all {
            for beside in [at.wrapping_sub(1), at + 1] {
                if window.is_open(beside) == open { self.edges -= 1 } else { self.edges += 1 }
            }
            self.change(window, at, |word| if open { word | OPEN } else { word & !OPEN });
        }
        window.set_crowded(self.is_crowded());
    }

    fn change<O: Os>(&mut self, window: &Window<O>, at: u64, change: impl FnOnce(u16) -> u16) {
        window.set_granule(at, Granule(change(window.granule(at).0)));
    }

    /// Checks HG1 to HG3 with a walk, for open rooms and ranges that the space has allocated. The error has the
    /// violated rule and its granule.
    #[cfg(test)]
    pub(super) fn check<O: Os>(
        &self,
        window: &Window<O>,
        open: &[Range<u64>],
        given: &[VaRange],
    ) -> Result<(), (&'static str, u64)> {
        let all = window.granules() as usize;
        let (mut rooms, mut used) = (vec![0; all], vec![0; all]);
        for room in open {
            touched(window, room.clone()).for_each(|at| rooms[at as usize] += 1);
        }
        for range in given {
            let (from, end) = range.whole_pages();
            (from..end).for_each(|page| used[((page - window.first()) / GRANULE_PAGES) as usize] += 1);
        }
        let mut edges = 0;
        for at in 0..all as u64 {
            let word = window.granule(at);
            let active = |bundle: &Bundle| (bundle.first..bundle.first + bundle.count).contains(&at);
            let rooms = rooms[at as usize];
            if word.rooms() != rooms || (rooms > 0 && !word.is_open()) {
                return Err(("HG1", at));
            }
            if word.is_active() != self.bundles.iter().any(active) || (word.is_active() && !word.is_open()) {
                return Err(("HG1", at));
            }
            if word.used() != used[at as usize] {
                return Err(("HG2", at));
            }
            edges += u64::from(word.is_open() != window.is_open(at.wrapping_sub(1)));
        }
        edges += u64::from(window.is_open(all as u64 - 1));
        if edges == self.edges { Ok(()) } else { Err(("HG3", edges)) }
    }
}

/// Returns the granules that contain these pages, counted from the first of the window.
fn touched<O: Os>(window: &Window<O>, pages: Range<u64>) -> Range<u64> {
    let first = window.first();
    (pages.start - first) / GRANULE_PAGES..(pages.end - first).div_ceil(GRANULE_PAGES)
}

/// Returns the first page from `page` on with which a granule begins.
pub(super) fn next_start<O: Os>(window: &Window<O>, page: u64) -> u64 {
    window.first() + (page - window.first()).next_multiple_of(GRANULE_PAGES)
}

/// Returns the granules that a large room occupies alone. For a small room it returns none, since markers are better
/// there.
pub(super) fn inner<O: Os>(window: &Window<O>, room: &Room) -> Range<u64> {
    let Range { start, end } = room.all();
    let start = (start - window.first()).div_ceil(GRANULE_PAGES);
    if room.pages() < LARGE_PAGES {
        return start..start;
    }
    start..((end - window.first()) / GRANULE_PAGES).max(start)
}

/// Returns the pages of a large room before and after its [`inner`] granules.
fn edges<O: Os>(window: &Window<O>, room: &Room) -> [Span; 2] {
    let Span { at, bytes } = room.span();
    let inner = window.granules_span(&inner(window, room));
    let behind = inner.at + inner.bytes;
    [Span { at, bytes: inner.at - at }, Span { at: behind, bytes: at + bytes - behind }]
}

/// Returns true if a room is small relative to a bundle of that many granules.
fn fits(count: u64, pages: u64, align: u64) -> bool {
    (pages + 2).max(align) * SHARE <= count * GRANULE_PAGES
}

/// Extends granules that are to be closed by adjacent closed ones, up to whole tables, so that these are freed. None of
/// them is released: others may have mapped pages there.
fn whole_tables<O: Os>(window: &Window<O>, all: Range<u64>) -> Range<u64> {
    let (first, end) = (all.start / TABLE * TABLE, all.end.next_multiple_of(TABLE));
    let closed =
        |mut some: Range<u64>| !some.any(|at| window.is_open(at) || window.granule(at).is_released());
    let start = if closed(first..all.start) { first } else { all.start };
    start..if closed(all.end..end) { end } else { all.end }
}

/// Returns the end of the granules from `at` on, and before `end`, for which `is` is true.
fn run(at: u64, end: u64, is: impl Fn(u64) -> bool) -> u64 {
    (at..end).find(|&at| !is(at)).unwrap_or(end)
}
