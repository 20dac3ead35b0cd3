//! The heap: the life of an area, and the rules of access to it.
//!
//! # Theory
//! ```text
//!              alloc                                       free
//!   clean  ------------>  live  <=== take / put ===>  magazine of a CPU  ---- pushed out ---->  dirty run
//!     ^   <- pages moved - ^                                                                     |    |
//!     |      there         +------------------------- lowest fit --------------------------------+    |
//!     +---------------------------- purge: pages released, addresses freed in the space --------------+
//! ```
//! **Clean** addresses are free in the space: no pages are behind them, or zeros. **Live** areas are in use by callers.
//! A freed area keeps its pages: unchanged in a **magazine**, or merged with its neighbours in a **dirty run**, to be
//! cut again. To the space all of these are busy. They stay mapped, so no flush is due before they are allocated again.
//! Only a **purge** releases pages, or a **refill** moves them elsewhere (or releases those that do not move). Then the
//! addresses are clean and leave the areas of the space that contained them.
//!
//! Dirty runs are the holes of an index of their own. So the lowest fit is found and neighbours merge in O(log n),
//! without memory (SP3): each area reserved the records for its free when it was carved.
//!
//! There are two **zones**, each with all of that and a lock of its own: one of pages, for areas smaller than 64 KiB,
//! and one of huge pages. Where threads wait for them, CPUs get zones of their own (`nodes.rs`). Clean addresses are
//! allocated and freed in **blocks** of a zone, 64 KiB and 2 MiB: no part of a huge page is faulted in or released. The
//! rest of an area's last block becomes dirty. If a zone is full, the other one serves. With [`HugePages::System`](crate::HugePages::System) the bound between them is 4 MiB.
//!
//! A miss of the dirty runs goes on in this order. The contents of magazines become dirty. The dirty run below the
//! lowest clean blocks that fit becomes part of the area. Cold dirty blocks are moved to the rest of it (`refill.rs`).
//! The pages that are then missing are faulted in. So cached pages serve requests of any shape, also the pages by which
//! a moved area grows (`relocate.rs`).
//!
//! **Decay by demand**: a purge is due when dirty pages and big items of magazines exceed the budget; it goes down to
//! fifteen sixteenths of it. A purge is also due each time sixteen times the budget was freed. It then releases a
//! quarter of the pages that were not reused since the last one. The blocks that have been dirty for the longest time
//! are released first (`cold.rs`). Where memory is short, the budget is less (`look_around`). Only resident pages
//! count, as far as that is known (`measure`). **Decay by time**: `time.rs`, by the program's own calls; `worker.rs`,
//! by a thread.
//!
//! # Invariants
//! - **VM1 tiling** clean ranges of the space, dirty runs and recorded areas tile the part of a
//!   zone below its frontier. A recorded area has its size in the word of its first page; it is
//!   live, in a magazine, in use by a purge or a refill, or retired.
//! - **VM2 first** a word is live only at the first page of a live area, so one word decides whether a free is valid.
//! - **VM3 reserved** the index of dirty runs has reserved records for all runs that can exist once all pages are dirty
//!   or clean (SP3).
//!
//! SP3 and SP4 are invariants of the workspace (ARCHITECTURE.md).
//!
//! # Locking
//! ```text
//!   purge  >  refills  >  { a magazine | hidden runs  >  a zone }  >  chunks of records
//! ```
//! Magazines and zones never nest, except during a fork, which takes all of them in this order. System calls happen
//! under the lock of a zone for four reasons only. They move its frontier, remove access from clean addresses or
//! release them, or allocate records. Fresh pages are mapped under no lock over an area that `mremap` moved. Its word
//! is not live then, and its addresses are in no list. Dirty pages are released under `purge`, and moved, or released
//! instead, under one of `refills`. Items are between a magazine and a zone under one of these locks, so that a request
//! that would fail waits for them. An alloc or a free only tries these locks, and goes on without them. A fork, a trim,
//! and a request that would fail wait for them (`docs/decisions/0036-calls-without-a-lock.md`). The pages of an area
//! that moves are its caller's, under no lock.
//! # Source
//! Our own; its counterpart is Linux's `mm/vmalloc.c` (`__vmalloc_node`, `vfree`), which does not cache pages.

mod carve;
mod changed;
mod cold;
mod guards;
mod hidden;
mod info;
mod nodes;
mod owned;
mod purge;
mod refill;
mod released;
mod relocate;
mod resize;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_cached;
#[cfg(test)]
mod tests_time;
mod time;
mod vread;
mod worker;

pub(crate) use carve::probe;
pub use info::Stats;
pub(crate) use owned::{Owned, Plan};

use crate::FORK_CACHED_MAX;
use crate::PAGE_BYTES;
use crate::arena::{Arena, BATCH, HUGE, HUGE_PAGES, NODES, Run, address, into_pointer};
use crate::error::{AllocError, FreeError};
use crate::magazine::{BIG_PAGES, Big, CpuSet, Magazine, Out};
use crate::page_word::Word;
use carve::Central;
use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use guards::Guards;
use hidden::Hidden;
use lock_api::MutexGuard;
use nodes::Node;
use relocate::Growth;
pub(crate) use time::Time;
use vmalloc_os::Published;
use vmalloc_os::fork::Hold;
use vmalloc_os::lock::{Fork, Futex, Mutex};
use vmalloc_os::os::Os;
use vmalloc_os::records::Host;
pub(crate) use worker::Worker;

/// The divisor of the pages below the frontiers that bounds small items of 64 KiB or more. A magazine caches one only
/// while its small items have at most that many pages. With 32, the bound of a heap of 128 MiB is that of all small
/// items, so it restricts smaller heaps alone.
const MEDIUM_SHARE: u64 = 32;
/// Pages from which the system is asked how many are resident before zeros are written: 64 KiB.
const ASKED_PAGES_MIN: u64 = 16;
/// Refills that may be in progress at a time.
const REFILLS: usize = 8;
/// Magazines of other CPUs that one call visits. CPUs above [`CPUS_MAX`](crate::magazine::CPUS_MAX) share one.
const VISITS: usize = 8;

/// The contents that a new area must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    /// Anything.
    Any,
    /// Zeros.
    Zero,
}

/// One allocator.
// In this order, because the fields that each cached pair reads are on the first two cache lines.
#[repr(C)]
pub(crate) struct Heap<O: Os> {
    // Constant after `new`.
    host: Host<O>,
    magazines: &'static [Magazine],
    /// Bits of a word that send a free to its slow path.
    closer: u64,
    /// The number of sizes in pages, from 64 KiB on, that are rounded up to 16 KiB: those whose areas lie in small pages.
    /// There are a quarter of the sizes then, and areas that are hardly touched touch the same pages again, since nearly
    /// all begin at a multiple of 16 KiB. The pages behind the size are resident only if a previous area touched them;
    /// as parts of huge pages they would always be. With guards no size is rounded: a guard follows the last page.
    rounded: u64,
    guards: Guards,
    arena: Arena<O>,
    /// Dirty pages, and pages in big items of magazines, above which a purge is due.
    cached_max: u64,
    /// The greatest number of moved areas at a time: each is a mapping of its own.
    moved_max: u64,
    // Under their locks; see the lock order above.
    purge: Mutex<()>,
    /// Each is held by a thread that moves cached runs between lists, or by a request that would fail.
    refills: [Refill; REFILLS],
    /// True while a thread waits for all of them, or holds them: no move begins. Written under `purge`.
    /// Protocol PR-HINT.
    refills_closed: AtomicBool,
    hidden: Mutex<Hidden>,
    node_0: Node<O>,
    /// The other nodes, each once a CPU needs it. Protocol PR-PUBLISH.
    nodes: [Published<Node<O>>; NODES - 1],
    // Atomic, each alone.
    worker: Worker,
    time: Time,
    big: Big,
    /// The CPUs whose magazines may have big items.
    with_big: CpuSet,
    /// Areas whose pages are a mapping of their own, or several mappings. Protocol PR-HINT.
    moved: AtomicU64,
    /// The page of the area whose mapping the program changed last; a hint. Protocol PR-HINT.
    changed: AtomicU64,
    /// An `mremap` failed for want of memory or mappings, so no mapping is moved any more. Protocol PR-HINT.
    remaps_off: AtomicBool,
    growth: Growth,
    /// Misses until pages are moved again after a failure. Protocol PR-HINT.
    refill_pause: AtomicU64,
    /// Pages of whole dirty blocks of the other nodes, without those known to be absent; approximate. Protocol PR-HINT.
    noded_dirty: AtomicU64,
    /// A bit for each zone that exists, set once its node is published. Protocol PR-PUBLISH.
    made: AtomicU64,
    /// Set once a node could not be made: no other is tried. Written under `purge`. Protocol PR-LOCK.
    nodes_off: AtomicBool,
    /// A bit for each zone whose lock the fork in progress takes. Protocol PR-FORK.
    forked_zones: AtomicU64,
    /// Pages that were cached when the available memory was last read; approximate. Protocol PR-HINT.
    asked: AtomicU64,
    /// The time of that reading by the coarse clock; `u64::MAX` before the first. Protocol PR-HINT.
    asked_at: AtomicU64,
    /// Pages released since then because the available memory was less than the budget requires; approximate.
    /// Protocol PR-HINT.
    released: AtomicU64,
    /// Pages that may be cached given the available memory: `cached_max`, or fewer. Protocol PR-HINT.
    allowed: AtomicU64,
    /// Pages that became dirty since the last decay by demand; approximate. Protocol PR-HINT.
    freed: AtomicU64,
    /// Pages below the frontiers when a foreign mapping last blocked one, and pages that were cached then.
    /// Protocol PR-HINT.
    blocked_at: AtomicU64,
    /// See `blocked_at`. Protocol PR-HINT.
    blocked_cached: AtomicU64,
}

/// A lock of one thread that moves cached runs. It has its own cache line, since frees that move a run take it, too.
#[repr(align(64))]
struct Refill(Mutex<()>);

/// A zone of the arena.
struct Zone<O: Os> {
    // Under its lock.
    central: Mutex<Central<O>>,
    // Atomic, hint only.
    /// Dirty pages that count to the budget when the lock was last released. Protocol PR-HINT.
    dirty: AtomicU64,
}

/// A zone whose lock is held.
struct Held<'a, O: Os> {
    central: MutexGuard<'a, Futex, Central<O>>,
    heap: &'a Heap<O>,
    zone: usize,
}

impl<O: Os> Deref for Held<'_, O> {
    type Target = Central<O>;

    fn deref(&self) -> &Central<O> {
        &self.central
    }
}

impl<O: Os> DerefMut for Held<'_, O> {
    fn deref_mut(&mut self) -> &mut Central<O> {
        &mut self.central
    }
}

impl<O: Os> Drop for Held<'_, O> {
    fn drop(&mut self) {
        self.heap.publish(self.zone, &mut self.central);
    }
}

impl<O: Os> Heap<O> {
    /// Takes the lock of a zone.
    #[inline(never)]
    fn zone(&self, zone: usize) -> Held<'_, O> {
        Held { central: self.zone_at(zone).central.lock(), heap: self, zone }
    }

    /// Takes the lock of the zone that contains a page.
    fn zone_of(&self, page: u64) -> Held<'_, O> {
        self.zone(self.arena.zone_of(page))
    }

    /// Returns the number of dirty pages that count to the budget, a moment ago.
    fn dirty_hint(&self) -> u64 {
        let zones = self.node_0.zones.iter().map(|zone| &zone.dirty).chain([&self.noded_dirty]);
        zones.map(|pages| pages.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of cached pages a moment ago.
    fn cached_hint(&self) -> u64 {
        self.dirty_hint() + self.big.pages() + self.big.small_pages()
    }

    /// Allocates an area.
    #[inline(always)]
    pub(crate) fn alloc(&self, layout: Layout, fill: Fill) -> Result<NonNull<u8>, AllocError> {
        let size = layout.size();
        if size == 0 {
            return Err(AllocError::ZeroSize);
        }
        let pages = self.run_pages(size);
        let align = (layout.align() / PAGE_BYTES).max(1) as u64;
        let look = || self.pass_time();
        match self.magazine().take(pages, align, self.arena.first(), &self.big, look) {
            Some(run) => Ok(self.alloc_cached(run, size, fill)),
            None => self.alloc_cold(layout, fill),
        }
    }

    /// Allocates a run from a magazine.
    #[inline(always)]
    fn alloc_cached(&self, mut run: Run, size: usize, fill: Fill) -> NonNull<u8> {
        self.arena.put_run(&run, Word::live(run.pages(), size).tailed(self.guards.tail));
        if fill == Fill::Zero {
            let pages = run.pages();
            self.zero_used(&mut run, pages, size);
        }
        into_pointer(run)
    }

    #[cold]
    fn alloc_cold(&self, layout: Layout, fill: Fill) -> Result<NonNull<u8>, AllocError> {
        let (pages, align) = (self.run_pages(layout.size()), (layout.align() / PAGE_BYTES).max(1) as u64);
        // Neither side of a flow reaches the slow part of a free, so the time passes here.
        let (first, look) = (self.arena.first(), || self.pass_time());
        let another = self.magazine().take_from_another(self.magazines, pages, align, first, look);
        if let Some(run) = another {
            return Ok(self.alloc_cached(run, layout.size(), fill));
        }
        let (mut run, used) = self.carve(layout, false)?;
        if fill == Fill::Zero {
            self.zero_used(&mut run, used, layout.size());
        }
        Ok(into_pointer(run))
    }

    /// Zeroes the first `size` bytes of a run, of which only the first `used` pages may have contents.
    fn zero_used(&self, run: &mut Run, used: u64, size: usize) {
        let pages = used.min(size.div_ceil(PAGE_BYTES) as u64);
        // SAFETY: the first pages of the run, to which no other reference exists (AR2).
        let mut part = [unsafe { Run::claim(run.page(), pages) }];
        // Absent pages stay absent: a hash table may be large and hardly used.
        let empty = pages >= ASKED_PAGES_MIN
            && self.arena.is_sparse(&part[0], 2)
            && self.arena.discard(&mut part).is_ok();
        if !empty {
            self.arena.zero(run, 0, size.min(address(used)));
        }
    }

    /// Allocates an area that begins at a huge page.
    pub(crate) fn alloc_huge(&self, layout: Layout, fill: Fill) -> Result<NonNull<u8>, AllocError> {
        let Ok(layout) = layout.align_to(address(HUGE_PAGES)) else {
            return Err(AllocError::NoSpace {
                requested_bytes: layout.size(),
                align_bytes: layout.align(),
                largest_bytes: self.arena.extent(HUGE).len_bytes() as usize,
            });
        };
        let pages = layout.size().div_ceil(PAGE_BYTES) as u64;
        if pages == 0 || pages >= HUGE_PAGES / 2 && self.arena.kind_for(pages) == HUGE {
            return self.alloc(layout, fill);
        }
        let (mut run, used) = self.carve_in(HUGE, layout, false)?;
        if fill == Fill::Zero {
            self.zero_used(&mut run, used, layout.size());
        }
        Ok(into_pointer(run))
    }

    /// Frees the area that begins at an address.
    ///
    /// # Safety
    /// If an area begins there, no reference to it exists any more.
    #[inline(always)]
    pub(crate) unsafe fn free(&self, at: usize) -> Result<(), FreeError> {
        // SAFETY: this function's contract.
        let (run, word) = unsafe { self.claim(at) }?;
        self.free_run(run, word);
        Ok(())
    }

    /// Caches the run of a claimed area, or maps fresh pages over it.
    #[inline(always)]
    pub(super) fn free_run(&self, run: Run, word: Word) {
        if word.bits() & self.closer == 0 { self.cache(run) } else { self.free_special(run, word) }
    }

    #[cold]
    fn free_special(&self, mut run: Run, word: Word) {
        if word.is_moved() {
            return self.free_moved(run, word);
        }
        self.wipe(&mut run, 0, word.usable_bytes());
        self.cache(run);
    }

    /// Returns true if freed memory is zeroed.
    pub(super) fn wipes(&self) -> bool {
        self.closer == Word::closer(true)
    }

    /// Zeroes the bytes `[from, to)` of a freed run, if that is configured; both bounds are at pages.
    pub(super) fn wipe(&self, run: &mut Run, from: usize, to: usize) {
        if self.wipes() && from < to {
            let pages = ((to - from) / PAGE_BYTES) as u64;
            // SAFETY: part of the run, to which no other reference exists (AR2).
            let mut part = unsafe { Run::claim(run.page() + (from / PAGE_BYTES) as u64, pages) };
            self.zero_used(&mut part, pages, to - from);
        }
    }

    /// Caches a freed run where the next request finds it first.
    #[inline(always)]
    fn cache(&self, run: Run) {
        if let Err(run) = self.magazine().put(run, self.arena.first()) {
            self.cache_cold(run);
        }
    }

    #[cold]
    fn cache_cold(&self, run: Run) {
        if self.magazine().is_time(run.pages()) {
            // Before the run is cached: a run that is freed now is not old.
            self.pass_time();
        }
        let mut out = Out::new(self.arena.first());
        let (cpu, is_big) = (self.cpu(), run.pages() >= BIG_PAGES);
        let keeps = !self.is_noded() || self.magazines[cpu].keeps(run.pages());
        let moves = if keeps { self.begin_refill() } else { None };
        if is_big && keeps && !self.big.has_room(run.pages()) {
            // Empty magazines of other CPUs may hold the rest of the budget.
            self.with_big.visit(VISITS, |cpu| _ = self.magazines[cpu].revoke(&self.big));
        }
        let medium_max = self.arena.committed_all() / MEDIUM_SHARE;
        if moves.is_none() {
            // No other item may leave the magazine, or it keeps none.
            out.add(run);
        } else {
            self.magazines[cpu].push(run, medium_max, &self.big, &mut out);
            if is_big {
                self.with_big.add(cpu);
            }
        }
        if out.is_empty() {
            drop(moves);
            self.look_around();
        } else {
            self.add_dirty(out);
            drop(moves);
            self.balance();
        }
        self.poke();
    }

    /// Returns the number of the magazine of the CPU that the caller runs on.
    fn cpu(&self) -> usize {
        self.host.os().cpu() % self.magazines.len()
    }

    /// Returns the magazine of the CPU that the caller runs on.
    #[inline(always)]
    fn magazine(&self) -> &'static Magazine {
        let cpu = self.host.os().cpu();
        match self.magazines.get(cpu) {
            Some(magazine) => magazine,
            None => &self.magazines[cpu % self.magazines.len()],
        }
    }

    /// Takes the live area that begins at an address. If several threads try at a time, one succeeds.
    ///
    /// # Safety
    /// If an area begins there, no reference to it exists any more.
    #[inline(always)]
    unsafe fn claim(&self, at: usize) -> Result<(Run, Word), FreeError> {
        if !at.is_multiple_of(PAGE_BYTES) {
            return Err(self.free_error(at));
        }
        // An address outside the arena has no word.
        let page = (at / PAGE_BYTES) as u64;
        let Some(place) = self.arena.word(page) else { return Err(self.free_error(at)) };
        let word = Word::from_bits(place.load(Ordering::Relaxed));
        if !word.is_live() {
            return Err(self.free_error(at));
        }
        // Checks VM2. Acquire: the accesses of the last owner happen before those to the pages from here on.
        let free = Word::free(word.pages());
        let claimed =
            place.compare_exchange(word.bits(), free.bits(), Ordering::Acquire, Ordering::Relaxed).is_ok();
        let word = if claimed { word } else { self.claim_changed(at, place, word)? };
        // SAFETY: the area was live, and of all threads that claim it this one changed its word (VM2).
        Ok((unsafe { Run::claim(page, word.pages()) }, word))
    }

    /// Takes a live area whose word another thread may have marked as [changed](changed) meanwhile.
    #[cold]
    fn claim_changed(&self, at: usize, place: &AtomicU64, word: Word) -> Result<Word, FreeError> {
        let (word, free) = (word.changed(), Word::free(word.pages()));
        // No other change of a live area's word is made but by its owner.
        match place.compare_exchange(word.bits(), free.bits(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(word),
            Err(_) => Err(self.free_error(at)),
        }
    }

    /// Caches a carved run that is not allocated to a caller; another thread may have marked it as changed.
    #[cold]
    fn free_unused(&self, run: Run) {
        let free = Word::free(run.pages());
        let word = self
            .arena
            .word(run.page())
            .map_or(free.bits(), |place| place.swap(free.bits(), Ordering::Relaxed));
        self.free_run(run, Word::from_bits(word));
    }

    /// Returns the reason why nothing is freed at an address.
    #[cold]
    fn free_error(&self, at: usize) -> FreeError {
        match self.arena.locate(at) {
            None => FreeError::NotOurs { address: at },
            Some((page, 0)) if self.arena.get(page).is_free() => {
                FreeError::AlreadyFree { address: at, bytes: self.arena.get(page).usable_bytes() }
            }
            Some(_) => FreeError::NoArea { address: at },
        }
    }

    /// Returns the word of the live area that begins at an address.
    #[inline]
    pub(crate) fn live(&self, at: usize) -> Result<Word, FreeError> {
        match self.arena.locate(at) {
            Some((page, 0)) if self.arena.get(page).is_live() => Ok(self.arena.get(page)),
            _ => Err(self.free_error(at)),
        }
    }

    /// Returns the system.
    pub(crate) fn os(&self) -> &'static O {
        self.host.os()
    }

    /// Returns the addresses of the arena.
    pub(crate) fn arena(&self) -> va_base::VaRange {
        self.arena.whole()
    }

    /// Returns true if areas may lie at an address of the arena. Addresses above a frontier and released ones may be in
    /// foreign mappings.
    #[inline(always)]
    pub(crate) fn contains(&self, at: usize) -> bool {
        let word = self.arena.locate(at).and_then(|(page, _)| self.arena.word(page));
        word.is_some_and(|word| !Word::from_bits(word.load(Ordering::Relaxed)).is_released())
    }
}

impl<O: Os> Hold for Heap<O> {
    fn is_mine(&self) -> bool {
        self.purge.is_mine()
            || self.refills.iter().any(|refill| refill.0.is_mine())
            || self.hidden.is_mine()
            || self.magazines.iter().any(|magazine| magazine.lock().is_mine())
            || self.zones().any(|zone| self.zone_at(zone).central.is_mine())
            || self.host.is_mine()
    }

    fn prepare(&self) {
        self.hide();
    }

    fn resume(&self) {
        self.show();
    }

    /// Takes every lock, for the time of a fork.
    fn hold(&self, interrupted: bool) {
        self.purge.hold(interrupted);
        if !self.purge.is_left() {
            self.refills_closed.store(true, Ordering::Relaxed);
        }
        self.refills.iter().for_each(|refill| refill.0.hold(interrupted));
        self.magazines.iter().for_each(|magazine| magazine.lock().hold(interrupted));
        // A node is made under `purge`, which an interrupted thread may be unable to take.
        self.forked_zones.store(self.zones().0, Ordering::Relaxed);
        self.forked().for_each(|zone| zone.central.hold(interrupted));
        self.host.hold(interrupted);
    }

    fn forget(&self, _held: bool) {
        // These locks protect no data of the threads that the child lacks; a run that such a thread was moving is lost
        // in the child. Hidden runs are valid at any moment.
        self.purge.free_in_child();
        self.refills.iter().for_each(|refill| refill.0.free_in_child());
        self.hidden.free_in_child();
        self.host.os().forget();
        self.worker.forget();
        self.refill_pause.store(0, Ordering::Relaxed);
    }

    /// Releases the locks, in the parent and in the child.
    unsafe fn release(&self) {
        // SAFETY: all were taken by `hold`, by this function's contract.
        unsafe { self.host.release() };
        for zone in self.forked() {
            // SAFETY: as before.
            unsafe { zone.central.release() };
        }
        for magazine in self.magazines {
            // SAFETY: as before.
            unsafe { magazine.lock().release() };
        }
        for refill in &self.refills {
            // SAFETY: as before.
            unsafe { refill.0.release() };
        }
        if !self.purge.is_left() {
            self.refills_closed.store(false, Ordering::Relaxed);
        }
        // SAFETY: as before.
        unsafe { self.purge.release() };
    }
}
