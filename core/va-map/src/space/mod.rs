//! A space whose areas have pages.
//!
//! # Theory
//! ```text
//!   |<------------------- address range (busy in the space) ------------------->|
//!   |<---------- usable: mapped ---------->|             room to grow     |guard|
//!   |<------ requested ------>|
//! ```
//! Three sizes are separate: the **requested** bytes, the **usable** ones (whole pages, mapped), and the **address
//! range**. An area grows within its pages without a call to the machine, and within its range by mapping more pages.
//! Beyond its range it grows by a larger range if the one above is free. Else its pages are mapped at another range,
//! and nothing is copied. It shrinks by freeing the pages that it does not need, those of a large entry only together.
//!
//! **Alloc:** room for the record is reserved, the space allocates addresses, the source allocates
//! pages in batches, and the page table maps them. The record is added last, so that lookups find no
//! incomplete area. If a step fails, the steps before it are undone.
//!
//! **Free:** the record is taken, by one of all callers that try. Then the area is unmapped, its pages are freed to the
//! source, and last its addresses to the space. So every address that is freed to the space is unmapped, and the flush
//! before its reuse covers that (SP2). None of this requests memory (SP3).
//!
//! **In an interrupt** an area is freed by [`vfree_atomic`](MapSpace::vfree_atomic), which marks its record, under one
//! lock and without memory. A worker frees it by [`run_deferred`](MapSpace::run_deferred). Until then lookups and reads
//! find it, but no call can take it.
//!
//! Mappings of up to 64 pages by [`vm_map_ram`](MapSpace::vm_map_ram) are cut from blocks ([`va_block`]) and have no
//! record.
//!
//! # Invariants
//! - **MP1 behind** an area has pages from its first byte to its usable size, without a gap, and none in the rest of
//!   its range.
//! - **MP2 sizes** 0 < requested <= usable, usable and the guard page fit in the range, and the requested bytes end in
//!   the last leaf.
//! - **MP3 owned** a page that the source allocated is at one address, until it is freed, once; a page of a caller is
//!   never freed.
//! - **MP4 whole** an entry and its first page begin at multiples of its size, and it is wholly inside one area.
//! - **MP5 recorded** a record is that of a busy area of the same range.
//! - **MP6 fresh** nothing is mapped where CPUs may still translate an earlier mapping: addresses that an area unmapped
//!   itself are flushed before they are mapped again.
//! - **MP7 reset** the pages of an area whose permissions are reset are freed after a flush that covers all their
//!   addresses, and with the access of free pages.
//!
//! SP2, SP3 and SP4 are the workspace's (ARCHITECTURE.md).
//!
//! # Locking
//! ```text
//!   closing: small mappings that are unmapped; under no other, and none under it
//!   records: under no other, and none under it
//! ```
//! The page table is called for a small mapping that is unmapped under `closing`; all other calls of the machine are
//! made under no lock of the map. Of two concurrent calls for one area one finds it, unless both only read.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `__vmalloc_node_range`, `__vmalloc_area_node`, `vfree`, `vrealloc`, `vmap`, `vunmap`,
//! `vm_map_ram`, `vread_iter`); differences: `docs/kernel-map.md`.

mod area;
#[cfg(test)]
#[cfg(not(loom))]
mod broken;
mod fill;
mod ram;
mod read;
mod resize;
mod validate;
mod vmap;

pub use read::{AreaInfo, Piece};
pub use validate::Stats;

use crate::error::{FreeError, MapError};
use crate::ladder;
use crate::machine::PageTable;
use crate::record::{Entry, Kind, Memory, NotTaken, Records, Wanted};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard};
use va_base::{Align, Context, InvariantViolation, Late, LockClass, Machine, Pages, Request, Va, VaRange};
use va_block::config::Standard;
use va_block::{BlockError, Blocks, Collected, Config};
use va_space::{Area, Purge, Purged, Release, VmapSpace};

/// Locks of small mappings that are unmapped, by address.
const CLOSINGS: usize = 16;
/// Largest mapping that is cut from a block, in pages.
pub const RAM_PAGES_MAX: u64 = va_block::config::ALLOC_PAGES_MAX;

/// Areas with pages, on machine `P`, under the policies `C`, by the page table `T`.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Mutex;
/// use va_base::{HeapMachine, Va, VaRange};
/// use va_map::{AreaRequest, Entries, Leaf, MapSpace, PageRequest, PageSource, PageTable, Run, Stopped};
/// use va_space::VmapSpace;
///
/// /// The page that is mapped at each address, and the free pages.
/// struct Pages {
///     mapped: Mutex<BTreeMap<u64, u64>>,
///     free: Mutex<Vec<u64>>,
/// }
///
/// impl PageTable for Pages {
///     const LEAF_SIZES: &'static [u32] = &[0];
///
///     fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
///         let pages = (0..run.pages).map(|nth| (at.page_floor() + nth, run.first + nth));
///         self.mapped.lock().unwrap().extend(pages);
///         Ok(())
///     }
///
///     fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
///         let (first, end) = range.whole_pages();
///         for at in first..end {
///             let page = self.mapped.lock().unwrap().remove(&at);
///             page.map(|first| gone(Leaf { first, pages_log2: 0 }));
///         }
///     }
///
///     fn leaf(&self, at: Va) -> Option<Leaf> {
///         self.mapped.lock().unwrap().get(&at.page_floor()).map(|&first| Leaf { first, pages_log2: 0 })
///     }
/// }
///
/// impl PageSource for Pages {
///     fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
///         let free = std::iter::from_fn(|| self.free.lock().unwrap().pop());
///         frames.iter_mut().zip(free).map(|(frame, page)| *frame = page).count()
///     }
///
///     fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
///         None
///     }
///
///     fn free(&self, run: Run) {
///         self.free.lock().unwrap().extend(run.first..run.first + run.pages);
///     }
///
///     fn clear(&self, _page: u64, _from: u64, _to: u64) {}
/// }
///
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(4); // feature `alloc`, for tests
/// let pages = Pages { mapped: Mutex::default(), free: Mutex::new((0..100).collect()) };
/// let space = VmapSpace::new(window, window, &machine)?;
/// let map = MapSpace::<_, _>::new(space, &machine, &pages)?;
/// let at = map.vmalloc(0, &AreaRequest::new(10_000))?;
/// let info = map.info(at).unwrap();
/// assert_eq!((info.requested_bytes, info.usable_bytes), (10_000, 12_288));
/// assert_eq!(info.range.len_bytes(), 16_384, "a guard page");
/// map.vfree(at)?;
/// assert!(map.vfree(at).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MapSpace<P: Machine + Clone, T, C: Config = Standard> {
    // Constant after `init`.
    blocks: Blocks<P, C>,
    machine: Late<P>,
    table: Option<T>,
    // Under their locks.
    records: Mutex<P::Lock, Records>,
    closing: [Mutex<P::PurgeLock, ()>; CLOSINGS],
    // Atomic, each alone.
    /// Pages of areas that the source allocated. A counter.
    allocated_pages: AtomicU64,
    /// Pages of callers in mappings. A counter.
    foreign_pages: AtomicU64,
}

impl<P: Machine + Clone, T, C: Config> core::fmt::Debug for MapSpace<P, T, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MapSpace").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Creates a map over areas of `space` and the page table `table`. The machine allocates a table for each possible
    /// CPU.
    ///
    /// Stack: up to 64 KiB in release builds, since the values are moved; [`init`](Self::init) takes less than 4 KiB.
    ///
    /// # Errors
    /// The errors of [`Blocks::new`].
    pub fn new(space: VmapSpace<P, C::Space>, machine: P, table: T) -> Result<Self, BlockError> {
        let mut map = va_base::constant!(Self::empty());
        map.blocks = Blocks::new(space, machine.clone())?;
        (map.machine, map.table) = (Late::new(machine), Some(table));
        Ok(map)
    }

    va_base::const_fn! {
        /// Creates a map without a space, a machine and a page table: a constant, for a `static` or for memory of the
        /// caller. [`init`](Self::init) supplies all three.
        ///
        /// Before that nothing fits, and no area is found. A caller with little stack writes the value in place as a
        /// constant, `const { MapSpace::empty() }`.
        pub fn empty() -> Self {
            const { assert!(ladder::is_ladder(T::LEAF_SIZES), "LEAF_SIZES begins with 0 and ascends") }
            Self {
                blocks: Blocks::empty(),
                machine: Late::NONE,
                table: None,
                records: Mutex::new(Records::new()),
                closing: va_base::array_of![Mutex::new(()); CLOSINGS],
                allocated_pages: AtomicU64::new(0),
                foreign_pages: AtomicU64::new(0),
            }
        }
    }

    /// Supplies an [`empty`](Self::empty) map with a machine, a page table and, in place, a space over the whole pages
    /// of `extent`, of which `busy` is allocated already; see [`Blocks::init`]. Stack: less than 4 KiB in release
    /// builds.
    ///
    /// # Errors
    /// The errors of [`Blocks::init`], after which the map is empty again and another call may succeed.
    pub fn init(
        &mut self,
        extent: VaRange,
        machine: P,
        table: T,
        busy: &[VaRange],
    ) -> Result<(), BlockError> {
        self.blocks.init(extent, machine.clone(), busy)?;
        (self.machine, self.table) = (Late::new(machine), Some(table));
        Ok(())
    }

    /// Returns the page table, if there is one yet.
    pub fn table(&self) -> Option<&T> {
        self.table.as_ref()
    }

    /// Returns the page table of a map that has areas.
    #[inline]
    fn pages(&self) -> &T {
        match &self.table {
            Some(table) => table,
            None => self.machine.bug(format_args!("an area of a map that has no page table"), None),
        }
    }

    /// Returns the addresses.
    pub fn extent(&self) -> VaRange {
        self.space().extent()
    }

    /// Flushes all freed addresses, so that they can be allocated again, including those of small mappings; see
    /// [`VmapSpace::purge`].
    ///
    /// # Locks
    /// Those of a purge, one after the other.
    pub fn unmap_aliases(&self) -> Collected {
        self.blocks.unmap_aliases()
    }

    /// Releases blocks without live mappings, flushes everything and merges the addresses.
    ///
    /// # Locks
    /// Those of [`unmap_aliases`](Self::unmap_aliases).
    pub fn purge(&self) -> Purged {
        self.blocks.shrink();
        self.space().purge(Purge::Full)
    }

    /// Frees the memory of records that no area needs, and returns the number of slabs of at most a page, for a
    /// shrinker. Removals of records free most of it already.
    ///
    /// # Locks
    /// `records`, again for each slab.
    /// Cost: O(areas that there were), a few instructions each; the lock is held for one slab at a time.
    pub fn shrink(&self) -> u64 {
        let mut pieces = 0;
        loop {
            let mut records = self.records();
            let more = records.compact();
            let excess = records.excess(false);
            drop(records);
            let freed = excess.free(&self.machine);
            pieces += freed;
            if freed == 0 && !more {
                return pieces;
            }
        }
    }

    pub(super) fn space(&self) -> &VmapSpace<P, C::Space> {
        self.blocks.space()
    }

    /// Returns the records, under their lock.
    #[track_caller]
    pub(super) fn records(&self) -> MutexGuard<'_, P::Lock, Records> {
        self.machine.locking(LockClass::Records);
        self.records.lock()
    }

    /// Reserves room for a record. Memory for it is allocated with no lock held.
    fn reserve(&self) -> Result<(), MapError> {
        let mut memory = Memory::default();
        loop {
            let mut records = self.records();
            let unused = records.supply(memory);
            let reserved = records.reserve();
            drop(records);
            // Supplied by another caller at the same time.
            unused.free(&self.machine);
            let Err(missing) = reserved else { return Ok(()) };
            memory = missing.alloc(&self.machine).ok_or(MapError::NoRecords { records: 1 })?;
        }
    }

    /// Allocates addresses and room for the record of the area; on an error neither.
    fn begin(&self, cpu: u32, request: &Request) -> Result<Area, MapError> {
        self.reserve()?;
        self.space().alloc(cpu, request).map_err(|error| {
            self.records().cancel();
            error.into()
        })
    }

    /// Does the same at a multiple of the size of an entry of rung `top`, or of the largest smaller one for which there
    /// is room. (Linux also makes one more attempt.)
    fn begin_aligned(&self, cpu: u32, wanted: Request, top: usize) -> Result<Area, MapError> {
        for rung in (1..=top).rev() {
            let align = ladder::align(T::LEAF_SIZES, rung);
            if align <= wanted.align() {
                break;
            }
            match self.begin(cpu, &wanted.aligned(align)) {
                Err(MapError::Space(_)) => {}
                done => return done,
            }
        }
        self.begin(cpu, &wanted)
    }

    /// Frees the addresses of an area without a record, and drops the reservation of one.
    fn cancel_area(&self, area: Area) {
        let range = area.range();
        if self.space().free(area).is_err() {
            self.broken("MP5", range);
        }
        self.records().cancel();
    }

    /// Adds the record that was reserved: from here on lookups find the area.
    fn publish(&self, entry: Entry) {
        self.records().add(entry);
    }

    /// Takes the record of the area that starts at `at`, if it is the wanted one: no other caller finds it from here on.
    /// With `reserved`, its room remains reserved. All is checked and taken under one hold of `records`, and an area is
    /// freed only by the caller that took its record.
    fn claim(&self, at: Va, wanted: impl Into<Wanted>, reserved: bool) -> Result<Entry, FreeError> {
        let mut records = self.records();
        let taken = match at.is_aligned(Align::PAGE) {
            true => records.take(at.page_floor(), wanted, reserved),
            false => Err(NotTaken::None),
        };
        let excess = if taken.is_ok() { records.excess(true) } else { Memory::default() };
        drop(records);
        excess.free(&self.machine);
        taken.map_err(|why| self.not_taken(at, why))
    }

    /// Returns the error of a call for an area that it may not take.
    fn not_taken(&self, at: Va, why: NotTaken) -> FreeError {
        match why {
            NotTaken::None => self.missing(at),
            NotTaken::Other(entry) => FreeError::WrongKind { area: entry.range(), kind: entry.kind },
            NotTaken::Deferred(entry) => FreeError::Deferred { area: entry.range() },
            NotTaken::Count(entry, pages) => {
                FreeError::WrongCount { at, pages, mapped: Pages::new(entry.mapped) }
            }
        }
    }

    /// Returns the error for an address where no area starts.
    fn missing(&self, at: Va) -> FreeError {
        let inside = self.record_around(at).map(|entry| entry.range());
        FreeError::NoArea { at, inside }
    }

    /// Returns the record of the area that `at` is inside.
    fn record_around(&self, at: Va) -> Option<Entry> {
        let seen = self.space().find_enclosing(at)?;
        self.record_of(seen.range)
    }

    /// Returns the record of a busy area.
    fn record_of(&self, range: VaRange) -> Option<Entry> {
        self.records().get(range.start().page_floor()).filter(|entry| entry.range() == range)
    }

    /// Frees the addresses of a claimed, unmapped area. Checks MP5.
    fn release(&self, entry: &Entry) {
        let named = Release::Sized(entry.start(), Pages::new(entry.pages));
        if self.space().free_as(named, Context::Sleeping).is_err() {
            self.broken("MP5", entry.range());
        }
    }

    /// Counts pages that were added or removed.
    fn count(&self, kind: Kind, pages: u64, came: bool) {
        let counter = if kind == Kind::Vmalloc { &self.allocated_pages } else { &self.foreign_pages };
        if came {
            counter.fetch_add(pages, Ordering::Relaxed);
        } else {
            counter.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Returns the pages of areas of their own, and pages of callers in mappings.
    fn counted(&self) -> (Pages, Pages) {
        let of = |counter: &AtomicU64| Pages::new(counter.load(Ordering::Relaxed));
        (of(&self.allocated_pages), of(&self.foreign_pages))
    }

    #[cold]
    fn broken(&self, rule: &'static str, range: VaRange) -> ! {
        let broken = InvariantViolation { rule, at: range.start(), expected: range.len_bytes(), actual: 0 };
        self.machine.bug(format_args!("an area changed under its owner"), Some(broken))
    }
}

impl<P: Machine + Clone, T, C: Config> Drop for MapSpace<P, T, C> {
    /// Frees the memory of the records. Areas, including those whose free is deferred, remain mapped: no caller has the
    /// map any more.
    fn drop(&mut self) {
        self.records.lock().end(&self.machine);
    }
}
