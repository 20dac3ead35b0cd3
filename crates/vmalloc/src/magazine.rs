//! The magazine: a cache of freed areas by exact size for each CPU, which serves most allocs and frees.
//!
//! # Theory
//! A program that frees an area mostly requests its size again soon. A magazine caches freed areas as they are: mapped,
//! resident, busy in the space. An alloc searches at most eight areas of one set. It chooses no address and requests no
//! page.
//!
//! ```text
//!   magazine of CPU 3    set(16 pages)   | 16 | 16 |    |    |    |    |    |    |     newest last, taken first
//!                        set(17 pages)   | 17 |401 | 17 |    |    |    |    |    |     sets are shared by hash
//! ```
//! In front of the sets are two places for the items freed last, one for a small item and one for a
//! big one. Each is a word that changes by compare-exchange: a pair in steady use takes no lock.
//! When another item comes, the one that was there goes to its set.
//!
//! A thread may move to another CPU after it read the number: then it uses the other one's magazine, which is as good. Threads
//! that meet at the lock of the sets park.
//!
//! Small items are bounded for each magazine and for all together, big ones for all together. So
//! one of 64 MiB can be cached, and a hundred CPUs do not cache one each. A place has **credit**:
//! pages that it reserved from the budget once and keeps, so that a pair does not touch a line that
//! all CPUs share. The pages of small items, in places and sets, are reserved in steps for the same
//! reason. A caller that finds the budget of big ones used up takes the credit of empty places. An
//! item that finds no room pushes out others, first the oldest of its set. A small one of 64 KiB or
//! more goes itself if the magazine would be large beside the heap. Cached items do not merge, and
//! a caller that asks for other sizes needs more memory.
//!
//! # Invariants
//! - **MZ1 bounded** the sets of a magazine have at most [`SMALL_PAGES_MAX`] pages in small items,
//!   and its place one such item more. The items in all sets, and the credit of all places, are no
//!   more than the budget of their kind. (An item that comes in the very moment in which its place
//!   loses the credit stays until the next one comes.)
//! - **MZ2 counted** the pages that a shelf of sets records are those of its items.
//!
//! # Source
//! Bonwick and Adams, "Magazines and Vmem", 2001; Linux has the pools of `vmap_node` (`mm/vmalloc.c`, 6.9).

mod cpu_set;

pub(crate) use cpu_set::{CPUS_MAX, CpuSet};

use crate::arena::Run;
use crate::lock::{Fork, Mutex};
use crate::records::Zeroed;
use core::sync::atomic::{AtomicU64, Ordering};

const SETS: usize = 64;
const WAYS: usize = 8;
/// Items from this size on are big: 2 MiB.
pub(crate) const BIG_PAGES: u64 = 512;
/// Pages in small items of one magazine: 2 MiB.
pub(crate) const SMALL_PAGES_MAX: u64 = 512;
/// Pages that a magazine takes of the budget of small items at a time: 256 KiB.
const SMALL_STEP: u64 = 64;
/// Pages of it that a magazine keeps and does not need: 1 MiB.
const SMALL_SURPLUS_MAX: u64 = 256;
/// Those from this size on are bounded by the size of the heap: 64 KiB.
const MEDIUM_PAGES: u64 = 16;
/// Runs that are taken from a place between two looks at the clock, and that come to a full place.
const CLOCK_TAKES: u64 = 128;
const CLOCK_PUSHES: u64 = 8;
/// Runs pushed out from which no more are, to make room.
const ROOM_MAX: usize = 14;
/// Runs that one call pushes out at most. Some make room, first for the run that came and then for
/// the one that was in its place. Half of the latter's set may go, whatever their number, and the
/// two themselves.
const OUT_MAX: usize = ROOM_MAX + WAYS / 2 + 2;

/// A freed area: its first page above, its pages below.
type Item = u64;

#[inline(always)]
fn item(run: &Run, first: u64) -> Item {
    (run.page() - first) << 32 | run.pages()
}

#[inline(always)]
const fn pages_of(item: Item) -> u64 {
    item & u32::MAX as u64
}

/// Tells whether an item is that: of so many pages, and so aligned.
#[inline(always)]
const fn fits(item: Item, pages: u64, align: u64, first: u64) -> bool {
    pages_of(item) == pages && (first + (item >> 32)) & (align - 1) == 0
}

#[inline(always)]
fn set_of(pages: u64) -> usize {
    (pages.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SETS.ilog2())) as usize
}

/// The cache of one CPU.
#[repr(align(128))]
pub(crate) struct Magazine {
    // Atomic, each alone.
    /// The small item freed last, and the big one; 0 for none.
    fronts: [AtomicU64; 2],
    /// Pages that each place may have; changed under the lock of the shelf.
    credits: [AtomicU64; 2],
    /// Taken from the places; about, since two threads may count at once.
    hits: [AtomicU64; 2],
    /// Small items that came to a full place; about.
    pushes: AtomicU64,
    // Under its lock.
    shelf: Mutex<Shelf>,
}

struct Shelf {
    lens: [u8; SETS],
    items: [[Item; WAYS]; SETS],
    /// Pages in small items, and in big ones.
    small: u64,
    big: u64,
    /// The credit of the place of small ones.
    place: u64,
    /// Pages of the budget that small items have: those in sets, that credit, and the rest of the last step.
    reserved: u64,
    /// The set that gives way next.
    victim: u8,
    /// Taken from the sets: small items and big ones.
    hits: [u64; 2],
    /// All hits when somebody last looked, when that was, and for how many turns nothing had changed.
    seen: [u64; 2],
    looked: u64,
    quiet: [u64; 2],
}

// SAFETY: a free lock and numbers, all of which may be 0.
unsafe impl Zeroed for Magazine {}

/// The budgets of all magazines together, for small items and big ones.
pub(crate) struct Big {
    max: u64,
    pages: AtomicU64,
    small_max: u64,
    small: AtomicU64,
}

/// A place for pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    SmallSet,
    SmallPlace,
    /// A set or the place: both are counted where all magazines are.
    Big,
}

/// Adds pages to a count, unless that would be more than `max` then.
#[inline]
fn enter(count: &AtomicU64, max: u64, pages: u64) -> bool {
    // Where it is used up, CPUs that ask do not take the line from each other.
    if count.load(Ordering::Relaxed) + pages > max {
        return false;
    }
    let before = count.fetch_add(pages, Ordering::Relaxed);
    if before + pages <= max {
        return true;
    }
    count.fetch_sub(pages, Ordering::Relaxed);
    false
}

impl Big {
    pub(crate) const fn new(max: u64, small_max: u64) -> Self {
        Self { max, pages: AtomicU64::new(0), small_max, small: AtomicU64::new(0) }
    }

    #[inline]
    fn enter_small(&self, pages: u64) -> bool {
        enter(&self.small, self.small_max, pages)
    }

    /// Pages that small items have, or may have without asking.
    pub(crate) fn small_pages(&self) -> u64 {
        self.small.load(Ordering::Relaxed)
    }

    #[inline]
    fn enter(&self, pages: u64) -> bool {
        enter(&self.pages, self.max, pages)
    }

    /// Tells whether as many pages more would be let in now.
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.pages.load(Ordering::Relaxed) + pages <= self.max
    }

    /// Pages that big items have, or may have without asking.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    #[inline]
    fn leave(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// Runs that a magazine has no room for.
pub(crate) struct Out {
    runs: [Item; OUT_MAX],
    len: usize,
    first: u64,
}

impl Out {
    pub(crate) fn new(first: u64) -> Self {
        Self { runs: [0; OUT_MAX], len: 0, first }
    }

    fn push(&mut self, item: Item) {
        if item != 0 {
            self.runs[self.len] = item;
            self.len += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages of all of them.
    pub(crate) fn pages(&self) -> u64 {
        self.runs[..self.len].iter().copied().map(pages_of).sum()
    }

    fn is_full(&self) -> bool {
        self.len == OUT_MAX
    }
}

impl Iterator for Out {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.len = self.len.checked_sub(1)?;
        let item = self.runs[self.len];
        // SAFETY: whoever put it in gave the run away, and nobody takes it out twice (AR2).
        Some(unsafe { Run::claim(self.first + (item >> 32), pages_of(item)) })
    }
}

/// Which items are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kinds {
    Small,
    Big,
    All,
}

impl Kinds {
    fn have(self, item: Item) -> bool {
        match self {
            Self::Small => pages_of(item) < BIG_PAGES,
            Self::Big => pages_of(item) >= BIG_PAGES,
            Self::All => true,
        }
    }
}

/// The contents of a magazine, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    pub(crate) pages: u64,
    pub(crate) items: u64,
    pub(crate) hits: u64,
}

impl Magazine {
    /// Takes a run of exactly these pages whose first page is a multiple of `align` pages. Now and then it
    /// calls `look` first, which may look at the clock: a program that takes what is in the places and
    /// nothing else has time pass so.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        pages: u64,
        align: u64,
        first: u64,
        big: &Big,
        look: impl FnOnce(),
    ) -> Option<Run> {
        let kind = usize::from(pages >= BIG_PAGES);
        let front = &self.fronts[kind];
        let found = front.load(Ordering::Relaxed);
        if !fits(found, pages, align, first) {
            return self.take_shelved(pages, align, first, big);
        }
        // Acquire pairs with the release of `put`: what its owner did comes before. The same item may have come and gone
        // since the load; it is there now, and that is what counts.
        front.compare_exchange(found, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let hits = self.hits[kind].load(Ordering::Relaxed) + 1;
        self.hits[kind].store(hits, Ordering::Relaxed);
        if hits.is_multiple_of(CLOCK_TAKES) {
            look();
        }
        // SAFETY: the place had it, and has it no longer (AR2).
        Some(unsafe { Run::claim(first + (found >> 32), pages) })
    }

    #[inline(never)]
    fn take_shelved(&self, pages: u64, align: u64, first: u64, big: &Big) -> Option<Run> {
        let set = set_of(pages);
        let mut shelf = self.shelf.lock();
        let len = usize::from(shelf.lens[set]);
        let items = &mut shelf.items[set];
        let at = items[..len].iter().rposition(|&item| fits(item, pages, align, first))?;
        let found = items[at];
        items.copy_within(at + 1..len, at);
        shelf.lens[set] -= 1;
        shelf.hits[usize::from(pages >= BIG_PAGES)] += 1;
        shelf.forget(pages, big);
        drop(shelf);
        // SAFETY: the shelf had it, and has it no longer (AR2).
        Some(unsafe { Run::claim(first + (found >> 32), pages) })
    }

    /// Keeps a run if the place for what was freed last is empty.
    #[inline(always)]
    pub(crate) fn put(&self, run: Run, first: u64) -> Result<(), Run> {
        let pages = run.pages();
        let kind = usize::from(pages >= BIG_PAGES);
        let front = &self.fronts[kind];
        if pages > self.credits[kind].load(Ordering::Relaxed) {
            return Err(run);
        }
        // Release pairs with `take`.
        match front.compare_exchange(0, item(&run, first), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(run),
        }
    }

    /// Keeps a run in its place, and what was there in its set; what finds no room is added to `out`. Of 64 KiB or more, small
    /// ones find room while there are less than `medium_max` pages of small ones.
    #[inline(never)]
    pub(crate) fn push(&self, run: Run, medium_max: u64, big: &Big, out: &mut Out) {
        let (new, pages) = (item(&run, out.first), run.pages());
        let mut shelf = self.shelf.lock();
        let (kind, room) = if pages < BIG_PAGES { (0, Room::SmallPlace) } else { (1, Room::Big) };
        let (front, credits) = (&self.fronts[kind], &self.credits[kind]);
        let old = front.swap(0, Ordering::AcqRel);
        let credit = credits.load(Ordering::Relaxed);
        let raised = pages <= credit || {
            // In steps, so that sizes that rise do not come here each.
            let small = credit.max(pages).next_multiple_of(SMALL_STEP / 4);
            let more = if kind == 0 { small } else { pages } - credit;
            let made = shelf.make_room(more, room, big, out);
            if made {
                credits.store(credit + more, Ordering::Relaxed);
            }
            made
        };
        // Another thread may have put one there since.
        if !raised || front.compare_exchange(0, new, Ordering::Release, Ordering::Relaxed).is_err() {
            out.push(new);
        }
        shelf.add(old, medium_max, big, out);
    }

    /// Tells whether somebody who brings a run to a full place looks at the clock: each time if it is big, or
    /// else now and then.
    pub(crate) fn is_time(&self, pages: u64) -> bool {
        let pushes = self.pushes.load(Ordering::Relaxed) + 1;
        self.pushes.store(pushes, Ordering::Relaxed);
        pages >= BIG_PAGES || pushes.is_multiple_of(CLOCK_PUSHES)
    }

    /// Takes back the credit of an empty place; how many pages.
    #[cold]
    pub(crate) fn revoke(&self, big: &Big) -> u64 {
        let _shelf = self.shelf.lock();
        if self.fronts[1].load(Ordering::Relaxed) != 0 {
            return 0;
        }
        let credit = self.credits[1].swap(0, Ordering::Relaxed);
        big.leave(credit);
        credit
    }

    /// Takes out what it has of some kinds, as much as `out` holds.
    #[cold]
    pub(crate) fn drain(&self, kinds: Kinds, big: &Big, out: &mut Out) {
        let mut shelf = self.shelf.lock();
        if kinds != Kinds::Big {
            out.push(self.fronts[0].swap(0, Ordering::Acquire));
            self.credits[0].store(0, Ordering::Relaxed);
            shelf.place = 0;
        }
        if kinds != Kinds::Small {
            out.push(self.fronts[1].swap(0, Ordering::Acquire));
            big.leave(self.credits[1].swap(0, Ordering::Relaxed));
        }
        for set in 0..SETS {
            let mut way = 0;
            while !out.is_full() && way < usize::from(shelf.lens[set]) {
                if kinds.have(shelf.items[set][way]) {
                    out.push(shelf.pop(set, way, big));
                } else {
                    way += 1;
                }
            }
        }
        shelf.refund(big);
    }

    fn hits_of(&self, shelf: &Shelf) -> [u64; 2] {
        [0, 1].map(|kind| shelf.hits[kind] + self.hits[kind].load(Ordering::Relaxed))
    }

    /// The kinds of items that it has and that served nobody for `turns` turns, as far as calls of this saw;
    /// `now` is the turn of the caller.
    #[cold]
    pub(crate) fn unused(&self, turns: u64, now: u64) -> [Option<Kinds>; 2] {
        let mut shelf = self.shelf.lock();
        let hits = self.hits_of(&shelf);
        let passed = now.saturating_sub(core::mem::replace(&mut shelf.looked, now));
        [(0, Kinds::Small), (1, Kinds::Big)].map(|(kind, kinds)| {
            if core::mem::replace(&mut shelf.seen[kind], hits[kind]) != hits[kind] {
                shelf.quiet[kind] = 0;
            } else {
                shelf.quiet[kind] = shelf.quiet[kind].saturating_add(passed);
            }
            (shelf.quiet[kind] >= turns).then(|| {
                shelf.quiet[kind] = 0;
                kinds
            })
        })
    }

    /// Tells whether nobody has its lock.
    pub(crate) fn is_free(&self) -> bool {
        self.shelf.try_lock().is_some()
    }

    /// Tells what it has.
    pub(crate) fn held(&self) -> Held {
        let shelf = self.shelf.lock();
        let fronts = self.fronts.each_ref().map(|front| front.load(Ordering::Relaxed));
        let items: u64 = shelf.lens.iter().map(|&len| u64::from(len)).sum();
        Held {
            pages: shelf.small + shelf.big + fronts.map(pages_of).iter().sum::<u64>(),
            items: items + fronts.iter().filter(|&&item| item != 0).count() as u64,
            hits: self.hits_of(&shelf).iter().sum(),
        }
    }

    /// Pages in big items of its sets, and credit for one.
    #[cfg(test)]
    pub(crate) fn big_pages(&self) -> u64 {
        self.shelf.lock().big + self.credits[1].load(Ordering::Relaxed)
    }

    /// Checks MZ1 and MZ2; what the items have, as (small, big) pages, if they are broken.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), (u64, u64)> {
        let shelf = self.shelf.lock();
        let (mut small, mut large) = (0, 0);
        for (items, &len) in shelf.items.iter().zip(&shelf.lens) {
            for &item in &items[..usize::from(len)] {
                *if pages_of(item) >= BIG_PAGES { &mut large } else { &mut small } += pages_of(item);
            }
        }
        let counted = (small, large) == (shelf.small, shelf.big);
        let front = pages_of(self.fronts[1].load(Ordering::Relaxed));
        let paid = front <= self.credits[1].load(Ordering::Relaxed)
            && shelf.place == self.credits[0].load(Ordering::Relaxed)
            && small + shelf.place <= shelf.reserved;
        if counted && paid && small <= SMALL_PAGES_MAX { Ok(()) } else { Err((small, large)) }
    }

    /// The lock, for a fork.
    pub(crate) fn lock(&self) -> &impl Fork {
        &self.shelf
    }
}

impl Shelf {
    /// Adds an item to its set, if it is one, after making room; or to `out`.
    fn add(&mut self, new: Item, medium_max: u64, big: &Big, out: &mut Out) {
        if new == 0 {
            return;
        }
        let (pages, large) = (pages_of(new), pages_of(new) >= BIG_PAGES);
        if (MEDIUM_PAGES..BIG_PAGES).contains(&pages) && self.small + pages > medium_max {
            return out.push(new);
        }
        let set = set_of(pages);
        if usize::from(self.lens[set]) == WAYS {
            // Half of it, so that a set in turmoil does this once in four frees.
            for _ in 0..WAYS / 2 {
                if let Some(item) = self.pop_oldest(set, big) {
                    out.push(item);
                }
            }
        }
        let room = if large { Room::Big } else { Room::SmallSet };
        if !self.make_room(pages, room, big, out) {
            out.push(new);
            return;
        }
        let len = usize::from(self.lens[set]);
        self.items[set][len] = new;
        self.lens[set] += 1;
        *if large { &mut self.big } else { &mut self.small } += pages;
    }

    /// Tells whether its bound lets these pages in, and counts what all magazines have. Checks MZ1.
    fn has_room(&mut self, pages: u64, room: Room, big: &Big) -> bool {
        match room {
            Room::Big => big.enter(pages),
            Room::SmallSet => self.small + pages <= SMALL_PAGES_MAX && self.reserve(pages, big),
            Room::SmallPlace => {
                let reserved = self.reserve(pages, big);
                self.place += if reserved { pages } else { 0 };
                reserved
            }
        }
    }

    /// Tells whether the budget has as many pages more for small items.
    fn reserve(&mut self, pages: u64, big: &Big) -> bool {
        let missing = (self.small + self.place + pages).saturating_sub(self.reserved);
        let more = [missing.next_multiple_of(SMALL_STEP), missing];
        match more.into_iter().find(|&more| missing == 0 || big.enter_small(more)) {
            Some(more) => {
                self.reserved += more;
                true
            }
            None => false,
        }
    }

    /// Gives back what small items have of the budget and do not need.
    fn refund(&mut self, big: &Big) {
        let needed = self.small + self.place;
        big.small.fetch_sub(self.reserved - needed, Ordering::Relaxed);
        self.reserved = needed;
    }

    /// Pushes items out until there is room. `false` if there cannot be, or if `out` has [`ROOM_MAX`].
    fn make_room(&mut self, pages: u64, room: Room, big: &Big, out: &mut Out) -> bool {
        if self.has_room(pages, room, big) {
            return true;
        }
        let large = room == Room::Big;
        for step in 0..=SETS {
            let victim = (usize::from(self.victim) + step) % SETS;
            while out.len < ROOM_MAX && self.has_kind(victim, large) {
                if let Some(item) = self.pop_oldest(victim, big) {
                    out.push(item);
                }
                // Asked only after something went: the answer is of a line that all CPUs share.
                if self.has_room(pages, room, big) {
                    self.victim = victim as u8;
                    return true;
                }
            }
        }
        false
    }

    /// Tells whether a set has big items, or small ones.
    fn has_kind(&self, set: usize, large: bool) -> bool {
        let items = &self.items[set][..usize::from(self.lens[set])];
        items.iter().any(|&item| (pages_of(item) >= BIG_PAGES) == large)
    }

    /// Counts an item less.
    fn forget(&mut self, pages: u64, big: &Big) {
        if pages >= BIG_PAGES {
            self.big -= pages;
            big.leave(pages);
        } else {
            self.small -= pages;
            if self.reserved - (self.small + self.place) > SMALL_SURPLUS_MAX {
                self.refund(big);
            }
        }
    }

    /// The oldest item of a set.
    fn pop_oldest(&mut self, set: usize, big: &Big) -> Option<Item> {
        (self.lens[set] > 0).then(|| self.pop(set, 0, big))
    }

    /// An item of a set that has it.
    fn pop(&mut self, set: usize, way: usize, big: &Big) -> Item {
        let len = usize::from(self.lens[set]);
        let item = self.items[set][way];
        self.items[set].copy_within(way + 1..len, way);
        self.lens[set] -= 1;
        self.forget(pages_of(item), big);
        item
    }
}

#[cfg(test)]
mod tests;
