//! A space whose areas have pages behind them.
//!
//! # Theory
//! ```text
//!   |<------------------- address range (busy in the space) ------------------->|
//!   |<---------- usable: mapped ---------->|             room to grow     |guard|
//!   |<------ requested ------>|
//! ```
//! Three sizes are kept apart: what was **requested**, what is **usable** (whole pages, mapped), and what the **address range** is. An
//! area grows within its pages without a call to the machine, within its range by mapping more pages, and beyond by a larger range
//! if the one above is free; else its pages are mapped at another range, and nothing is copied. It shrinks by giving up the pages
//! that it does not need, huge ones only whole.
//!
//! **Making** an area: a place for its record is promised, the space gives addresses, the source lends pages in batches, the page
//! table maps them; the record is published last, so nobody finds an area that is half made. Whatever is refused, what was done
//! so far is undone. **Ending** it: the record is taken, of all who try by one; then it is unmapped, its pages are given back, and
//! last its addresses, so that every address that comes to the space is unmapped, and the flush before its reuse covers
//! that (SP2). Nothing in this asks for memory (SP3).
//!
//! Mappings of up to 64 pages by [`vm_map_ram`](MapSpace::vm_map_ram) are cut from blocks ([`va_block`]) and have no record.
//!
//! # Invariants
//! - **MP1 behind** behind an area lie pages from its first byte to its usable size, without a gap, and none in the rest of its range.
//! - **MP2 sizes** 0 < requested <= usable, usable and the guard page fit in the range, and the requested bytes end in the last leaf.
//! - **MP3 owned** a page that the source lent is behind one address, until it is given back, once; a page that a caller brought is
//!   never given back.
//! - **MP4 huge** a huge page begins at a multiple of its size and lies wholly inside one area.
//! - **MP5 recorded** a record is that of a busy area of the same range.
//! - **MP6 fresh** nothing is mapped where CPUs may still translate what was mapped before: what an area unmapped of itself is
//!   flushed before it is mapped again.
//!
//! SP2, SP3 and SP4 are the house's (ARCHITECTURE.md).
//!
//! # Locking
//! ```text
//!   closing: small mappings that are unmapped  >  the locks of blocks and of the space
//!   records: under no other, and none under it
//! ```
//! The machine is asked for the memory of records under `records`, to unmap a small mapping under `closing`, for anything else under
//! no lock. Two calls for one area at a time: one of them finds it, unless both only read.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `__vmalloc_node_range`, `__vmalloc_area_node`, `vfree`, `vrealloc`, `vmap`, `vunmap`, `vm_map_ram`,
//! `vread_iter`); differences: `docs/kernel-map.md`.

mod area;
mod fill;
mod ram;
mod read;
mod resize;
mod validate;
mod vmap;

pub use read::{AreaInfo, Piece};
pub use validate::Stats;

use crate::error::{FreeError, MapError};
use crate::machine::PageTable;
use crate::record::{Entry, Kind, Records};
use va_base::sync::Mutex;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Broken, Machine, Pages, Request, Va, VaRange};
use va_block::{Blocks, Collected, Config};
use va_space::{Area, Purge, Purged, VmapSpace};

/// Locks of small mappings that are unmapped, by address.
const CLOSINGS: usize = 16;
/// Largest mapping that is cut from a block, in pages.
pub const RAM_PAGES_MAX: u64 = va_block::config::ALLOC_PAGES_MAX;

/// Areas with pages behind them, on machine `P`, under the policies `C`, by the page table `T`.
///
/// ```
/// use va_base::VaRange;
/// use va_map::{AreaRequest, MapSpace};
/// use va_sim::{machine::SimMachine, pages::SimPages};
/// use va_space::VmapSpace;
///
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let machine = SimMachine::new(4);
/// let pages = SimPages::new(&machine, 100);
/// let space = VmapSpace::new(window, window, &machine)?;
/// let map = MapSpace::<_, va_block::config::Default, _>::new(space, &machine, &pages)?;
/// let at = map.vmalloc(0, &AreaRequest::new(10_000))?;
/// let info = map.info(at).unwrap();
/// assert_eq!((info.requested_bytes, info.usable_bytes), (10_000, 12_288));
/// assert_eq!(info.range.len_bytes(), 16_384, "a guard page");
/// map.vfree(at)?;
/// assert!(map.vfree(at).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MapSpace<P: Machine + Clone, C: Config, T> {
    // Constant after `new`.
    blocks: Blocks<P, C>,
    machine: P,
    table: T,
    // Under their locks.
    records: Mutex<P::Lock, Records>,
    closing: [Mutex<P::PurgeLock, ()>; CLOSINGS],
    // Atomic, each alone.
    /// Pages behind areas that the source lent.
    lent_pages: AtomicU64,
    /// Pages behind mappings of callers' pages.
    foreign_pages: AtomicU64,
}

impl<P: Machine + Clone, C: Config, T: PageTable> MapSpace<P, C, T> {
    /// Maps areas of `space` by `table`. The machine is asked for a table for each possible CPU.
    ///
    /// # Errors
    /// As [`Blocks::new`].
    pub fn new(space: VmapSpace<P, C::Space>, machine: P, table: T) -> Result<Self, va_block::BlockError> {
        Ok(Self {
            blocks: Blocks::new(space, machine.clone())?,
            machine,
            table,
            records: Mutex::new(Records::default()),
            closing: core::array::from_fn(|_| Mutex::new(())),
            lent_pages: AtomicU64::new(0),
            foreign_pages: AtomicU64::new(0),
        })
    }

    /// The page table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The addresses.
    pub fn extent(&self) -> VaRange {
        self.space().extent()
    }

    /// Has what was freed flushed, so that its addresses can be given out again; see [`VmapSpace::purge`]. Small mappings with it.
    ///
    /// # Locks
    /// Those of a purge, one after the other.
    pub fn unmap_aliases(&self) -> Collected {
        self.blocks.unmap_aliases()
    }

    /// Gives blocks back in which nothing lives, and has everything flushed and its addresses merged.
    ///
    /// # Locks
    /// As [`unmap_aliases`](Self::unmap_aliases).
    pub fn purge(&self) -> Purged {
        self.blocks.shrink();
        self.space().purge(Purge::Full)
    }

    pub(super) fn space(&self) -> &VmapSpace<P, C::Space> {
        self.blocks.space()
    }

    /// Promises a record.
    fn promise(&self) -> Result<(), MapError> {
        self.records.lock().promise(&self.machine).map_err(|records| MapError::NoRecords { records })
    }

    /// Takes a promised record's place for a range; on an error the promise is forgiven.
    fn begin(&self, cpu: u32, request: &Request) -> Result<Area, MapError> {
        self.promise()?;
        self.space().alloc(cpu, request).map_err(|error| {
            self.records.lock().forgive();
            error.into()
        })
    }

    /// Gives the addresses of an area back that has no record, and forgives the promise of one.
    fn abandon(&self, area: Area) {
        let range = area.range();
        if self.space().free(area).is_err() {
            self.broken("MP5", range);
        }
        self.records.lock().forgive();
    }

    /// Tells everybody of an area whose record was promised.
    fn publish(&self, entry: Entry) {
        self.records.lock().add(entry);
    }

    /// Takes the record of the area of one kind that starts at `at`: nobody else finds it from here on. `promised` keeps its place.
    fn claim(&self, at: Va, kind: Kind, promised: bool) -> Result<Entry, FreeError> {
        let mut records = self.records.lock();
        let entry = records.get(at.page_floor()).filter(|entry| entry.start() == at);
        match entry {
            Some(entry) if entry.kind == kind => {
                records.remove(entry.page, promised).ok_or(FreeError::NoArea { at, inside: None })
            }
            Some(entry) => Err(FreeError::WrongKind { area: entry.range(), kind: entry.kind }),
            None => {
                drop(records);
                Err(self.missing(at))
            }
        }
    }

    /// What is to be said of an address where no area starts.
    fn missing(&self, at: Va) -> FreeError {
        let inside = self.record_around(at).map(|entry| entry.range());
        FreeError::NoArea { at, inside }
    }

    /// The record of the area that `at` is inside.
    fn record_around(&self, at: Va) -> Option<Entry> {
        let seen = self.space().find_enclosing(at)?;
        self.record_of(seen.range)
    }

    /// The record of a busy area.
    fn record_of(&self, range: VaRange) -> Option<Entry> {
        self.records.lock().get(range.start().page_floor()).filter(|entry| entry.range() == range)
    }

    /// Gives the addresses of a claimed area back, which is unmapped. Checks MP5.
    fn release(&self, entry: &Entry) {
        match self.space().free_at(entry.start()) {
            Ok(range) if range == entry.range() => {}
            _ => self.broken("MP5", entry.range()),
        }
    }

    /// Counts pages that came or went.
    fn count(&self, kind: Kind, pages: u64, came: bool) {
        let counter = if kind == Kind::Vmalloc { &self.lent_pages } else { &self.foreign_pages };
        if came {
            counter.fetch_add(pages, Ordering::Relaxed);
        } else {
            counter.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Pages of areas of their own, and pages of callers in mappings.
    fn counted(&self) -> (Pages, Pages) {
        let of = |counter: &AtomicU64| Pages::new(counter.load(Ordering::Relaxed));
        (of(&self.lent_pages), of(&self.foreign_pages))
    }

    #[cold]
    fn broken(&self, rule: &'static str, range: VaRange) -> ! {
        let broken = Broken { rule, at: range.start(), want: range.len_bytes(), got: 0 };
        self.machine.bug(format_args!("an area changed under its owner"), Some(broken))
    }
}

impl<P: Machine + Clone, C: Config, T> Drop for MapSpace<P, C, T> {
    fn drop(&mut self) {
        self.records.lock().end(&self.machine);
    }
}
