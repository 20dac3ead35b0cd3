//! The magazine: a cache of freed areas by exact size for each CPU, which serves most allocs and frees.
//!
//! # Theory
//! A program that frees an area mostly requests its size again soon. A magazine caches freed areas unchanged: mapped,
//! resident, busy in the space. An alloc searches at most eight areas of one set. It chooses no address and requests no
//! page.
//!
//! ```text
//!   magazine of CPU 3    set(16 pages)   | 16 | 16 |    |    |    |    |    |    |     newest last, taken first
//!                        set(17 pages)   | 17 |401 | 17 |    |    |    |    |    |     sets are shared by hash
//! ```
//! In front of the sets are two front slots for the items freed last, one for a small item and one for a big one. Each
//! is a word that changes by compare-exchange: a pair in steady use takes no lock. The next freed item replaces the one
//! in the slot, which moves to its set.
//!
//! A thread that only allocates finds its own slot empty. It takes the item from the slot of another CPU, where a
//! thread that only frees has put it. So areas pass from one thread to the other, and neither takes a lock. A miss
//! looks at one other CPU, the one that had an item last.
//!
//! A thread may move to another CPU after it read the CPU number. It then uses the first CPU's magazine, which is
//! equally correct. Threads that contend for the lock of the sets park.
//!
//! Small items are bounded for each magazine and for all together, big ones for all together. So an item of 64 MiB can
//! be cached, but a hundred CPUs do not cache one each. A front slot has a **credit**: pages that it reserved from the
//! budget once, so that a pair does not touch a cache line that all CPUs share. The pages of small items, in slots and
//! sets, are reserved in steps for the same reason. A caller that finds the budget of big items used up takes the
//! credit of empty slots. If there is no room for an item, others are evicted, first the oldest of its set. A small one
//! of 64 KiB or more is itself evicted if the magazine would be large relative to the heap. Cached items do not merge,
//! so requests of other sizes need more memory.
//!
//! # Invariants
//! - **MZ1 bounded** the sets of a magazine have at most [`SMALL_PAGES_MAX`] pages in small items, and its front slot
//!   one more such item. The items in all sets and the credits of all slots are at most the budget of their kind. (An
//!   item put into a slot at the moment at which the slot loses its credit stays until the next put.)
//! - **MZ2 counted** the page counts of a [`Sets`] are those of its items.
//!
//! # Source
//! Bonwick and Adams, "Magazines and Vmem", 2001; Linux has the pools of `vmap_node` (`mm/vmalloc.c`, 6.9).

mod budget;
mod cpu_set;
mod front;
mod out;
mod worth;

pub(crate) use budget::Big;
pub(crate) use cpu_set::{CPUS_MAX, CpuSet};
pub(crate) use front::Front;
pub(crate) use out::Out;

use crate::arena::Run;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use vmalloc_os::lock::{Fork, Mutex};
use vmalloc_os::records::Zeroed;
use worth::Worth;

const SETS: usize = u64::BITS as usize;
const WAYS: usize = 8;
/// Items from this size on are big: 2 MiB.
pub(crate) const BIG_PAGES: u64 = 512;
/// Pages in small items of one magazine: 4 MiB.
pub(crate) const SMALL_PAGES_MAX: u64 = 1024;
/// Pages that a magazine reserves from the budget of small items at a time: 256 KiB.
const SMALL_STEP: u64 = 64;
/// Pages of that budget that a magazine may hold unused: 1 MiB.
const SMALL_SURPLUS_MAX: u64 = 256;
/// Small items from this size on are bounded by the size of the heap: 64 KiB.
const MEDIUM_PAGES: u64 = 16;
/// Takes from a front slot, and pushes to a full slot, between two readings of the clock.
const CLOCK_TAKES: u64 = 128;
const CLOCK_PUSHES: u64 = 8;
/// A wait for a lock of node 0 counts as much as this many requests that found it free.
const WAIT: usize = 16;
/// The count at which waits are frequent.
const WAITS_MAX: usize = 16 * WAIT;
/// The number of evicted runs at which no more are evicted to make room.
const ROOM_MAX: usize = 14;
/// The most runs that one call evicts. Some make room, first for the new run and then for the one that was in the front
/// slot. In addition, half of the latter's set may be evicted, and these two runs themselves.
const OUT_MAX: usize = ROOM_MAX + WAYS / 2 + 2;
/// Calls of [`Magazine::drain`] that empty a full magazine.
pub(crate) const DRAINS: usize = (SETS * WAYS + 2).div_ceil(OUT_MAX);

/// A freed area: its first page in the upper half, its pages in the lower half.
type Item = u64;

#[inline(always)]
fn item(run: &Run, first: u64) -> Item {
    (run.page() - first) << 32 | run.pages()
}

#[inline(always)]
const fn pages_of(item: Item) -> u64 {
    item & u32::MAX as u64
}

/// Returns true if an item has that many pages and that alignment.
#[inline(always)]
const fn fits(item: Item, pages: u64, align: u64, first: u64) -> bool {
    pages_of(item) == pages && (first + (item >> 32)) & (align - 1) == 0
}

#[inline(always)]
fn set_of(pages: u64) -> usize {
    (pages.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SETS.ilog2())) as usize
}

/// The cache of one CPU.
// In this order, because each cached pair reads the first fields.
#[repr(C, align(128))]
pub(crate) struct Magazine {
    // Atomic, independent of each other.
    /// The small item freed last, and the big one; 0 for none.
    fronts: [Front; 2],
    /// The most pages of an item in each front slot; changed under the lock of the sets. Protocol PR-LOCK.
    credits: [AtomicU64; 2],
    /// Items taken from the front slots: approximate, since two threads may count at once. A counter.
    hits: [AtomicU64; 2],
    /// Small items pushed to a full slot: approximate. A counter.
    pushes: AtomicU64,
    /// The CPU whose slot a miss looks at. Protocol PR-HINT.
    source: AtomicUsize,
    /// The node whose zones a miss tries first. Protocol PR-HINT.
    node: AtomicUsize,
    /// Waits for a lock of node 0, of which each is worth [`WAIT`] requests that did not wait. Protocol PR-HINT.
    waits: AtomicUsize,
    // Under its lock.
    sets: Mutex<Sets>,
}

struct Sets {
    /// A bit for each set with an item.
    filled: u64,
    lens: [u8; SETS],
    items: [[Item; WAYS]; SETS],
    /// Pages in small items, and in big ones.
    small: u64,
    big: u64,
    /// The credit of the front slot for small items.
    place: u64,
    /// Pages reserved from the budget of small items: those in sets, that credit, and the rest of the last step.
    reserved: u64,
    /// The set that is evicted from next.
    victim: u8,
    /// Items taken from the sets: small and big ones.
    hits: [u64; 2],
    /// The hits at the last call of `unused`, the turn of that call, and the number of turns without a hit.
    seen: [u64; 2],
    looked: u64,
    quiet: [u64; 2],
    /// Which of small and big items are kept.
    worth: [Worth; 2],
}

// SAFETY: an unlocked lock, numbers and flags, all of which may be 0.
unsafe impl Zeroed for Magazine {}

/// The place in a magazine where pages are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    SmallSet,
    SmallPlace,
    /// A set or the front slot: both are counted in the budget of all magazines.
    Big,
}

/// A selection of items.
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
    /// Takes a run of exactly these pages whose first page is a multiple of `align` pages. Every [`CLOCK_TAKES`] hits
    /// it calls `look`, which may read the clock, so that decay advances even if a program only takes from front slots.
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
        let found = self.fronts[kind].get();
        if !fits(found, pages, align, first) {
            return self.take_shelved(pages, align, first, big);
        }
        self.take_front(kind, found, first, look)
    }

    /// Takes an item that was found in a front slot, if it is still there.
    #[inline(always)]
    fn take_front(&self, kind: usize, found: Item, first: u64, look: impl FnOnce()) -> Option<Run> {
        if !self.fronts[kind].take(found) {
            return None;
        }
        let hits = self.hits[kind].load(Ordering::Relaxed) + 1;
        self.hits[kind].store(hits, Ordering::Relaxed);
        if hits.is_multiple_of(CLOCK_TAKES) {
            look();
        }
        // SAFETY: the front slot owned it, and the exchange removed it (AR2).
        Some(unsafe { Run::claim(first + (found >> 32), pages_of(found)) })
    }

    /// Returns the node whose zones this CPU tries first.
    pub(crate) fn node(&self) -> usize {
        self.node.load(Ordering::Relaxed)
    }

    /// Sets that node.
    pub(crate) fn set_node(&self, node: usize) {
        self.node.store(node, Ordering::Relaxed);
    }

    /// Counts a request that found a lock of node 0 free.
    pub(crate) fn did_not_wait(&self) {
        let waits = self.waits.load(Ordering::Relaxed);
        if waits > 0 {
            self.waits.store(waits - 1, Ordering::Relaxed);
        }
    }

    /// Counts a request that found it held. Returns true, and begins again, if more than one in [`WAIT`] did so lately.
    pub(crate) fn waits_often(&self) -> bool {
        let waits = self.waits.load(Ordering::Relaxed) + WAIT;
        self.waits.store(if waits < WAITS_MAX { waits } else { 0 }, Ordering::Relaxed);
        waits >= WAITS_MAX
    }

    /// Takes such a run from the front slot of another CPU, if the own one is empty: its thread allocates, and a thread
    /// of the other one frees.
    #[cold]
    pub(crate) fn take_from_another(
        &self,
        magazines: &[Self],
        pages: u64,
        align: u64,
        first: u64,
        look: impl FnOnce(),
    ) -> Option<Run> {
        let kind = usize::from(pages >= BIG_PAGES);
        if self.fronts[kind].get() != 0 {
            return None;
        }
        let source = self.source.load(Ordering::Relaxed);
        let other = &magazines[source % magazines.len()];
        let found = other.fronts[kind].get();
        if !fits(found, pages, align, first) {
            self.source.store(source.wrapping_add(1), Ordering::Relaxed);
            return None;
        }
        other.take_front(kind, found, first, look)
    }

    #[inline(never)]
    fn take_shelved(&self, pages: u64, align: u64, first: u64, big: &Big) -> Option<Run> {
        let set = set_of(pages);
        let mut sets = self.sets.lock();
        let len = usize::from(sets.lens[set]);
        let items = &mut sets.items[set];
        let kind = usize::from(pages >= BIG_PAGES);
        let Some(at) = items[..len].iter().rposition(|&item| fits(item, pages, align, first)) else {
            sets.worth[kind].miss(pages);
            return None;
        };
        let found = items[at];
        items.copy_within(at + 1..len, at);
        sets.lower(set);
        sets.hits[kind] += 1;
        sets.forget(pages, big);
        drop(sets);
        // SAFETY: the sets owned it, and it was removed above (AR2).
        Some(unsafe { Run::claim(first + (found >> 32), pages) })
    }

    /// Caches a run in the front slot of its kind, if the slot is empty and its credit suffices.
    #[inline(always)]
    pub(crate) fn put(&self, run: Run, first: u64) -> Result<(), Run> {
        let pages = run.pages();
        let kind = usize::from(pages >= BIG_PAGES);
        let front = &self.fronts[kind];
        if pages > self.credits[kind].load(Ordering::Relaxed) {
            return Err(run);
        }
        if front.put(item(&run, first)) { Ok(()) } else { Err(run) }
    }

    /// Caches a run in its front slot, and moves the slot's previous item to its set. Evicted runs are added to `out`.
    /// Small items of 64 KiB or more are cached only while small items have at most `medium_max` pages.
    #[inline(never)]
    pub(crate) fn push(&self, run: Run, medium_max: u64, big: &Big, out: &mut Out) {
        let (new, pages) = (item(&run, out.first), run.pages());
        let mut sets = self.sets.lock();
        let (kind, room) = if pages < BIG_PAGES { (0, Room::SmallPlace) } else { (1, Room::Big) };
        let (front, credits) = (&self.fronts[kind], &self.credits[kind]);
        let old = front.take_any();
        let credit = credits.load(Ordering::Relaxed);
        let raised = pages <= credit || {
            // In steps, so that rising sizes do not raise the credit each time.
            let small = credit.max(pages).next_multiple_of(SMALL_STEP / 4);
            let more = if kind == 0 { small } else { pages } - credit;
            let made = sets.make_room(more, room, big, out);
            if made {
                credits.store(credit + more, Ordering::Relaxed);
            }
            made
        };
        // Another thread may have put an item there since.
        if !raised || !front.put(new) {
            out.push(new);
        }
        sets.add(old, medium_max, big, out);
    }

    /// Returns true if a push of a run to a full slot is to read the clock: each time for a big run, else every
    /// [`CLOCK_PUSHES`] times.
    pub(crate) fn is_time(&self, pages: u64) -> bool {
        let pushes = self.pushes.load(Ordering::Relaxed) + 1;
        self.pushes.store(pushes, Ordering::Relaxed);
        pages >= BIG_PAGES || pushes.is_multiple_of(CLOCK_PUSHES)
    }

    /// Revokes the credit of the front slot for big items, if it is empty. Returns the credit's pages.
    #[cold]
    pub(crate) fn revoke(&self, big: &Big) -> u64 {
        let _sets = self.sets.lock();
        if self.fronts[1].get() != 0 {
            return 0;
        }
        let credit = self.credits[1].swap(0, Ordering::Relaxed);
        big.leave(credit);
        credit
    }

    /// Moves the items of some kinds to `out`, as many as it has room for.
    #[cold]
    pub(crate) fn drain(&self, kinds: Kinds, big: &Big, out: &mut Out) {
        let mut sets = self.sets.lock();
        if kinds != Kinds::Big {
            out.push(self.fronts[0].take_any());
            self.credits[0].store(0, Ordering::Relaxed);
            sets.place = 0;
        }
        if kinds != Kinds::Small {
            out.push(self.fronts[1].take_any());
            big.leave(self.credits[1].swap(0, Ordering::Relaxed));
        }
        for set in 0..SETS {
            let mut way = 0;
            while !out.is_full() && way < usize::from(sets.lens[set]) {
                if kinds.have(sets.items[set][way]) {
                    out.push(sets.pop(set, way, big));
                } else {
                    way += 1;
                }
            }
        }
        sets.refund(big);
    }

    fn hits_of(&self, sets: &Sets) -> [u64; 2] {
        [0, 1].map(|kind| sets.hits[kind] + self.hits[kind].load(Ordering::Relaxed))
    }

    /// Returns the kinds of items without a hit for `turns` turns, as far as calls of this function observed; `now` is
    /// the turn of the caller.
    #[cold]
    pub(crate) fn unused(&self, turns: u64, now: u64) -> [Option<Kinds>; 2] {
        let mut sets = self.sets.lock();
        let hits = self.hits_of(&sets);
        let passed = now.saturating_sub(core::mem::replace(&mut sets.looked, now));
        [(0, Kinds::Small), (1, Kinds::Big)].map(|(kind, kinds)| {
            if core::mem::replace(&mut sets.seen[kind], hits[kind]) != hits[kind] {
                sets.quiet[kind] = 0;
            } else {
                sets.quiet[kind] = sets.quiet[kind].saturating_add(passed);
            }
            (sets.quiet[kind] >= turns).then(|| {
                sets.quiet[kind] = 0;
                kinds
            })
        })
    }

    /// Returns true if no thread holds the lock.
    pub(crate) fn is_free(&self) -> bool {
        self.sets.try_lock().is_some()
    }

    /// Counts the contents.
    pub(crate) fn held(&self) -> Held {
        let sets = self.sets.lock();
        let fronts = self.fronts.each_ref().map(Front::get);
        let items: u64 = sets.lens.iter().map(|&len| u64::from(len)).sum();
        Held {
            pages: sets.small + sets.big + fronts.map(pages_of).iter().sum::<u64>(),
            items: items + fronts.iter().filter(|&&item| item != 0).count() as u64,
            hits: self.hits_of(&sets).iter().sum(),
        }
    }

    /// Returns the pages in big items of its sets, and credit for one.
    #[cfg(test)]
    pub(crate) fn big_pages(&self) -> u64 {
        self.sets.lock().big + self.credits[1].load(Ordering::Relaxed)
    }

    /// Checks MZ1 and MZ2. If one is violated, the error has the pages of the items, small and big.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), (u64, u64)> {
        let sets = self.sets.lock();
        let (mut small, mut large) = (0, 0);
        for (set, (items, &len)) in sets.items.iter().zip(&sets.lens).enumerate() {
            assert_eq!(sets.filled >> set & 1, u64::from(len > 0), "set {set}");
            for &item in &items[..usize::from(len)] {
                *if pages_of(item) >= BIG_PAGES { &mut large } else { &mut small } += pages_of(item);
            }
        }
        let counted = (small, large) == (sets.small, sets.big);
        let front = pages_of(self.fronts[1].get());
        let paid = front <= self.credits[1].load(Ordering::Relaxed)
            && sets.place == self.credits[0].load(Ordering::Relaxed)
            && small + sets.place <= sets.reserved;
        if counted && paid && small <= SMALL_PAGES_MAX { Ok(()) } else { Err((small, large)) }
    }

    /// Returns the lock, for a fork.
    pub(crate) fn lock(&self) -> &impl Fork {
        &self.sets
    }
}

impl Sets {
    /// Adds an item other than 0 to its set, after making room, or else to `out`.
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
            // Evicts half of the set, so that a set with many frees does this once in four frees.
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
        self.filled |= 1 << set;
        *if large { &mut self.big } else { &mut self.small } += pages;
    }

    /// Returns true if the bound allows these pages, and counts them in the shared budget. Checks MZ1.
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

    /// Reserves that many more pages for small items. Returns `false` if the budget has no room for them.
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

    /// Returns the unused part of the reservation for small items to the budget.
    fn refund(&mut self, big: &Big) {
        let needed = self.small + self.place;
        big.leave_small(self.reserved - needed);
        self.reserved = needed;
    }

    /// Evicts items until there is room. Returns `false` if that cannot succeed, or if `out` has [`ROOM_MAX`] runs.
    fn make_room(&mut self, pages: u64, room: Room, big: &Big, out: &mut Out) -> bool {
        if self.has_room(pages, room, big) {
            return true;
        }
        let large = room == Room::Big;
        let from = u32::from(self.victim);
        let mut sets = self.filled.rotate_right(from);
        while sets != 0 {
            let victim = (from + sets.trailing_zeros()) as usize % SETS;
            sets &= sets - 1;
            while out.len < ROOM_MAX && self.has_kind(victim, large) {
                if let Some(item) = self.pop_oldest(victim, big) {
                    out.push(item);
                }
                // Checked only after an eviction, since it accesses a cache line that all CPUs share.
                if self.has_room(pages, room, big) {
                    self.victim = victim as u8;
                    return true;
                }
            }
        }
        false
    }

    /// Returns true if a set has a big item, or with `large` false a small one.
    fn has_kind(&self, set: usize, large: bool) -> bool {
        let items = &self.items[set][..usize::from(self.lens[set])];
        items.iter().any(|&item| (pages_of(item) >= BIG_PAGES) == large)
    }

    /// Counts an item less in a set.
    fn lower(&mut self, set: usize) {
        self.lens[set] -= 1;
        self.filled &= !(u64::from(self.lens[set] == 0) << set);
    }

    /// Removes an item from the counts.
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

    /// Removes the oldest item of a set, if it has one.
    fn pop_oldest(&mut self, set: usize, big: &Big) -> Option<Item> {
        (self.lens[set] > 0).then(|| self.pop(set, 0, big))
    }

    /// Removes an item of a set.
    fn pop(&mut self, set: usize, way: usize, big: &Big) -> Item {
        let len = usize::from(self.lens[set]);
        let item = self.items[set][way];
        self.items[set].copy_within(way + 1..len, way);
        self.lower(set);
        self.forget(pages_of(item), big);
        item
    }
}

#[cfg(test)]
mod tests;
