//! Contiguous mappings of chosen page frames.
//!
//! # Theory
//! [`Frames`] are pages of a memory file, without an address. A [`Mapping`] maps some of them contiguously, in any
//! order, a frame any number of times, in the address range of [`Mappings`]. Examples are a ring buffer mapped twice in
//! a row, and a view of scattered pages as one range.
//!
//! ```
//! use vmalloc::{Mappings, Protection};
//!
//! let mappings = Mappings::global()?;
//! let frames = mappings.frames(2)?;
//! let ring = frames.vmap(&[0, 1, 0, 1], Protection::ReadWrite)?;
//! // One write across the end of the ring.
//! ring.write(2 * 4096 - 3, b"around")?;
//! let mut start = [0; 3];
//! ring.read(0, &mut start)?;
//! assert_eq!(&start, b"und");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No mapping outlives its frames:
//!
//! ```compile_fail
//! let frames = vmalloc::Mappings::global().unwrap().frames(1).unwrap();
//! let view = frames.vmap(&[0], vmalloc::Protection::Read);
//! drop(frames);
//! drop(view);
//! ```
//!
//! Addresses come from a space of their own ([`va_map::MapSpace`]), reserved once. A dropped mapping stays mapped, but
//! unreachable, until one system call unmaps many of them; only then are its addresses reused (SP2).
//! [`Mappings::vm_map_ram`] allocates small ranges from blocks of the CPU, without the space.
//!
//! All frames are of one file, so frames of different [`Frames`] may be in one view, and the number of the system's
//! mappings is known exactly. The limit is a quarter of the process's mappings (`vm.max_map_count`); one more is a
//! typed error.
//!
//! **fork**: frames are shared memory. A child sees the existing mappings, which it shares with the parent, and must
//! not make or drop any. A call that tries fails with [`VmapError::OtherProcess`], and a drop in the child has no
//! effect. The child gets no reports either: all counts are 0, no mapping is listed, and [`Mappings::vread`] reads
//! nothing. So it takes no lock, which another thread may have held at the fork. A child makes mappings of its own by
//! [`Mappings::new`].
//!
//! The descriptor of the memory file stays open, and the program must not close it. After a close no frames can be made
//! or mapped, and another file that gets its number would be changed.
//!
//! # Locking
//! ```text
//!   the locks of a space  >  mappings of the table        numbers of frames: under no other
//! ```
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vmap`, `vm_map_ram`); costs and limits of `mmap` for this:
//! `docs/decisions/0016-vmap.md`.

mod error;
mod frames;
mod ground;
mod mapping;
pub(crate) mod os;
mod raw;
#[cfg(test)]
mod shim;
mod table;
#[cfg(test)]
mod tests;

pub use error::VmapError;
pub use frames::{Frame, Frames};
pub use mapping::Mapping;
pub use os::VmapCall;

use crate::PAGE_BYTES;
use core::fmt;
use core::panic::Location;
use core::ptr::{null_mut, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, Ordering};
use ground::Ground;
use os::{Linux, MapOs};
use table::Table;
use va_base::{AllocError, Pages, Request, Va, VaRange};
use va_block::config::Standard as Policies;
use va_map::{Kind, MapError, MapSpace, PageList, PageTableError, Piece};
use va_space::VmapSpace;
use va_tree::{BTreeIndex, FreeIndex};
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::{Linux as Sys, Os, abort_with, process_id};
use vmalloc_os::records::Host;
use vmalloc_os::vread::peek;

/// The sizes of the address range that are tried, the largest first.
const LADDER: [usize; 4] = [16 << 30, 4 << 30, 1 << 30, 256 << 20];
/// The number of possible frames: a terabyte.
const NUMBERS: u64 = (1 << 40) / PAGE_BYTES as u64;
/// The least number of pages by which the file grows.
const FILE_STEP: u64 = 64;

/// The access that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protection {
    /// The mapping may be read.
    Read,
    /// The mapping may be read and written.
    ReadWrite,
}

impl Protection {
    fn bits(self) -> va_map::Protection {
        match self {
            Self::Read => va_map::Protection(0),
            Self::ReadWrite => table::WRITE,
        }
    }
}

/// A list of frame numbers.
struct List<F> {
    count: usize,
    number: F,
}

impl<F: Fn(usize) -> u64> PageList for List<F> {
    fn count(&self) -> u64 {
        self.count as u64
    }

    fn page(&self, place: u64) -> u64 {
        (self.number)(place as usize)
    }
}

/// The free numbers of frames, and the size of the file.
struct Numbers<V: MapOs> {
    free: BTreeIndex<Ground<V>>,
    file_pages: u64,
}

/// The state of mappings, over any system. Fields are dropped in this order.
pub(super) struct Core<V: MapOs> {
    map: MapSpace<Ground<V>, Policies, &'static Table<V>>,
    numbers: Mutex<Numbers<V>>,
    process: u32,
    base: Base<V>,
}

/// The system and the table, which the other fields use.
struct Base<V: MapOs>(Ground<V>);

impl<V: MapOs> Base<V> {
    fn new(os: V, most: usize) -> Result<Self, VmapError> {
        let failed = |(call, errno)| VmapError::CallFailed { call, errno };
        let host = Host::open(Sys::new()).map_err(|_| VmapError::NoRecords)?;
        let place = host.alloc_place::<Table<V>>();
        let limit = host.os().mappings_max() / 4;
        let table = Table::new(os, &LADDER, most, limit).map_err(failed);
        match (place, table) {
            (Some(place), Ok(table)) => {
                // SAFETY: allocated above for a table.
                unsafe { place.write(table) };
                // SAFETY: written above; it is valid until the home is closed.
                let table = unsafe { place.as_ref() };
                Ok(Self(Ground { host, table }))
            }
            (place, table) => {
                if let Ok(table) = &table {
                    // SAFETY: the table is not used yet.
                    unsafe { table.end() };
                }
                // SAFETY: nothing in the records is used.
                unsafe { host.close() };
                Err(table.err().filter(|_| place.is_some()).unwrap_or(VmapError::NoRecords))
            }
        }
    }
}

impl<V: MapOs> Drop for Base<V> {
    fn drop(&mut self) {
        // SAFETY: references to a mapping borrow the `Core`; the map and the numbers were dropped before.
        unsafe { self.0.table.end() };
        let system: *const V = &raw const self.0.table.os;
        // SAFETY: read once; the table is not used any more.
        drop(unsafe { system.read() });
        // SAFETY: the table was the last value in these records.
        unsafe { self.0.host.close() };
    }
}

impl<V: MapOs> Core<V> {
    fn new(os: V, most: usize) -> Result<Self, VmapError> {
        let base = Base::new(os, most)?;
        let ground = base.0;
        let window = ground.table.extent();
        let space = VmapSpace::new(window, window, ground).map_err(|_| VmapError::NoRecords)?;
        let map = MapSpace::new(space, ground, ground.table).map_err(|_| VmapError::NoRecords)?;
        let numbers = VaRange::from_pages(1, 1 + NUMBERS).unwrap_or_default();
        let free = BTreeIndex::new(numbers, numbers, ground).map_err(|_| VmapError::NoRecords)?;
        let numbers = Mutex::new(Numbers { free, file_pages: 0 });
        Ok(Self { map, numbers, process: process_id(), base })
    }

    fn table(&self) -> &'static Table<V> {
        self.base.0.table
    }

    /// Returns a number that no other live `Core` has.
    fn home(&self) -> usize {
        (&raw const *self.base.0.table).addr()
    }

    /// Checks that this process created the mappings.
    fn own(&self) -> Result<(), VmapError> {
        if process_id() == self.process { Ok(()) } else { Err(VmapError::OtherProcess) }
    }

    fn cpu(&self) -> u32 {
        self.base.0.host.os().cpu() as u32
    }

    fn take_frames(&self, count: u64) -> Result<u64, VmapError> {
        self.own()?;
        if count == 0 {
            return Err(VmapError::Nothing);
        }
        let no_space = VmapError::NoSpace { pages: count };
        let request = Request::pages(count).map_err(|_| no_space)?;
        let mut numbers = self.numbers.lock();
        let first = numbers.free.alloc(&request).map_err(|error| match error {
            AllocError::NoMeta { .. } => VmapError::NoRecords,
            _ => no_space,
        })?;
        let (first, end) = (first.page_floor(), first.page_floor() + count);
        if end > numbers.file_pages {
            let pages = end.next_multiple_of(FILE_STEP);
            if let Err(errno) = self.table().os.size(self.table().file, pages * PAGE_BYTES as u64) {
                free_numbers(&mut numbers.free, first, end);
                return Err(VmapError::CallFailed { call: VmapCall::Size, errno });
            }
            numbers.file_pages = pages;
        }
        Ok(first)
    }

    fn free_frames(&self, first: u64, count: u64) {
        // In a child the frames belong to the parent.
        if self.own().is_err() {
            return;
        }
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        let table = self.table();
        // New frames must be zeros, so frames that cannot be released are not reused.
        if table.os.punch(table.file, bytes(first), bytes(count)).is_ok() {
            free_numbers(&mut self.numbers.lock().free, first, first + count);
        }
    }

    fn vmap(
        &self,
        list: &impl PageList,
        access: Protection,
        caller: &'static Location<'static>,
    ) -> Result<usize, VmapError> {
        self.own()?;
        let caller = (&raw const *caller).expose_provenance() as u64;
        let call = || self.map.vmap(self.cpu(), list, access.bits(), caller);
        self.insist(list.count(), call)
    }

    fn vm_map_ram(&self, list: &impl PageList, access: Protection) -> Result<usize, VmapError> {
        self.own()?;
        self.insist(list.count(), || self.map.vm_map_ram(self.cpu(), list, access.bits()))
    }

    /// Calls once more after a flush of all freed mappings, if that may help.
    fn insist(&self, pages: u64, call: impl Fn() -> Result<Va, MapError>) -> Result<usize, VmapError> {
        let done = match call() {
            Err(
                MapError::PageTable { why: PageTableError::Limit { .. } | PageTableError::Other(_), .. }
                | MapError::Space(_)
                | MapError::Block(_),
            ) => {
                self.map.purge();
                call()
            }
            done => done,
        };
        done.map(|at| at.get() as usize).map_err(|error| VmapError::of(error, pages))
    }

    fn unmap(&self, at: usize, pages: usize, small: bool) {
        if self.own().is_err() {
            return;
        }
        let va = Va::new(at as u64);
        let gone = match small {
            true => self.map.vm_unmap_ram(self.cpu(), va, pages as u64),
            false => self.map.vunmap(va),
        };
        if let Err(error) = gone {
            abort_with(format_args!("a mapping of {pages} pages at {at:#x} is gone: {error}"));
        }
        if self.table().is_due() {
            self.map.unmap_aliases();
        }
    }

    fn vread(&self, address: usize, to: &mut [u8]) -> usize {
        to.fill(0);
        if self.own().is_err() {
            return 0;
        }
        let range = VaRange::from_size(Va::new(address as u64), to.len() as u64);
        let (mut at, mut mapped, mut really) = (0, 0, 0);
        self.map.read(range.unwrap_or_default(), |piece| match piece {
            Piece::Page { bytes, .. } => mapped += bytes as usize,
            Piece::Hole { bytes } => {
                really += peek(address + at, &mut to[at..at + mapped]);
                at += mapped + bytes as usize;
                mapped = 0;
            }
        });
        really + peek(address + at, &mut to[at..at + mapped])
    }

    fn write_info(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.own().is_err() {
            return Ok(());
        }
        for area in self.map.areas() {
            let (start, end, bytes) =
                (area.range.start().get(), area.range.end().get(), area.range.len_bytes());
            write!(f, "{start:#018x}-{end:#018x} {bytes:>7}")?;
            // SAFETY: null, or a caller recorded by `vmap`, which is valid as long as the program, or the calling
            // library (`vmallocinfo`).
            let caller =
                unsafe { with_exposed_provenance::<Location<'static>>(area.caller as usize).as_ref() };
            if let Some(caller) = caller {
                write!(f, " {caller}")?;
            }
            if area.kind == Kind::Vmap {
                write!(f, " pages={}", area.usable_bytes / PAGE_BYTES as u64)?;
            }
            writeln!(f, " {}", area.kind)?;
        }
        Ok(())
    }
}

fn free_numbers<V: MapOs>(free: &mut BTreeIndex<Ground<V>>, first: u64, end: u64) {
    let range = VaRange::from_pages(first, end).unwrap_or_default();
    if let Err(error) = free.free(range) {
        abort_with(format_args!("frames {first} to {end} were not out: {error}"));
    }
}

/// The source of frames, and the address range in which they are mapped.
pub struct Mappings(Core<Linux>);

/// Statistics of mappings. The numbers are not of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MappingStats {
    /// The reserved address range, in bytes.
    pub range_bytes: usize,
    /// The mapped bytes. A frame that is mapped several times counts several times.
    pub mapped_bytes: usize,
    /// Bytes of dropped mappings that are not flushed yet.
    pub stale_bytes: usize,
    /// The number of the system's mappings in the range.
    pub system_mappings: u64,
    /// The limit of those mappings.
    pub system_mappings_max: u64,
    /// The number of system calls that unmapped.
    pub flush_calls: u64,
    /// The number of allocated frames.
    pub frames: u64,
}

/// The global mappings of the process, null until the first use. They are never dropped.
static GLOBAL: AtomicPtr<Mappings> = AtomicPtr::new(null_mut());

impl Mappings {
    /// Reserves an address range of at most `range_bytes_max` bytes: 16 GiB, 4 GiB, 1 GiB or 256 MiB.
    ///
    /// # Errors
    /// [`VmapError::CallFailed`], [`VmapError::NoRecords`].
    pub fn new(range_bytes_max: usize) -> Result<Self, VmapError> {
        Core::new(Linux, range_bytes_max).map(Self)
    }

    /// Returns the global mappings of the process, which the first call creates.
    ///
    /// # Errors
    /// As [`new`](Self::new); the next call tries again.
    pub fn global() -> Result<&'static Self, VmapError> {
        // Acquire pairs with the release of the thread that created them.
        let global = GLOBAL.load(Ordering::Acquire);
        // SAFETY: null, or mappings that are never dropped.
        unsafe { global.as_ref() }.map_or_else(Self::make_global, Ok)
    }

    /// Creates the global mappings without a lock, which a fork could leave held. If two threads do so at a time, one
    /// of them drops its own.
    #[cold]
    fn make_global() -> Result<&'static Self, VmapError> {
        let made = Self::new(usize::MAX)?;
        let place = made.0.base.0.host.alloc_place::<Self>().ok_or(VmapError::NoRecords)?;
        // SAFETY: allocated for mappings; they are in their own records.
        unsafe { place.write(made) };
        let stored = GLOBAL.compare_exchange(null_mut(), place.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        if let Err(other) = stored {
            // SAFETY: written above, and not shared; read before its records are released.
            drop(unsafe { place.read() });
            // SAFETY: never dropped.
            return Ok(unsafe { &*other });
        }
        // SAFETY: written above, and never dropped.
        Ok(unsafe { place.as_ref() })
    }

    /// Allocates frames of zeros, which get memory when they are written to.
    ///
    /// # Errors
    /// [`VmapError`].
    pub fn frames(&self, count: usize) -> Result<Frames<'_>, VmapError> {
        Frames::new(&self.0, count)
    }

    /// Maps frames of one or several [`Frames`] contiguously, with a guard page after the last. A frame is mapped as
    /// often as it is in the list.
    ///
    /// Cost: a system call for each run of consecutive frames.
    ///
    /// # Errors
    /// [`VmapError`]. Too many mappings and a lack of address range are reported only after a flush of all dropped
    /// mappings.
    #[track_caller]
    pub fn vmap<'f>(
        &'f self,
        frames: &[Frame<'f>],
        protection: Protection,
    ) -> Result<Mapping<'f>, VmapError> {
        let list = self.list(frames)?;
        let at = self.0.vmap(&list, protection, Location::caller())?;
        Ok(Mapping::of(&self.0, at, frames.len(), protection))
    }

    /// Maps frames as [`vmap`](Self::vmap) does, for a short time: up to 64 frames in a block of the CPU, without a
    /// guard page.
    ///
    /// # Errors
    /// As [`vmap`](Self::vmap).
    pub fn vm_map_ram<'f>(
        &'f self,
        frames: &[Frame<'f>],
        protection: Protection,
    ) -> Result<Mapping<'f>, VmapError> {
        let list = self.list(frames)?;
        let at = self.0.vm_map_ram(&list, protection)?;
        Ok(Mapping::small(&self.0, at, frames.len(), protection))
    }

    fn list<'l>(&self, frames: &'l [Frame<'_>]) -> Result<List<impl Fn(usize) -> u64 + 'l>, VmapError> {
        let home = self.0.home();
        if frames.iter().any(|frame| frame.home != home) {
            return Err(VmapError::OtherMappings);
        }
        Ok(List { count: frames.len(), number: |place: usize| frames[place].number })
    }

    /// Unmaps a mapping of [`vm_map_ram`](Self::vm_map_ram), as dropping it does.
    pub fn vm_unmap_ram(&self, mapping: Mapping<'_>) {
        drop(mapping);
    }

    /// Unmaps all dropped mappings in the system.
    pub fn flush(&self) {
        if self.0.own().is_ok() {
            self.0.map.purge();
        }
    }

    /// Copies bytes from an address, even if another thread unmaps it meanwhile. Unmapped bytes are zeros. Returns the
    /// number of bytes read, which is 0 in a child of a fork.
    pub fn vread(&self, address: *const u8, to: &mut [u8]) -> usize {
        self.0.vread(address.addr(), to)
    }

    /// Returns the statistics, which are all 0 in a child of a fork.
    pub fn stats(&self) -> MappingStats {
        if self.0.own().is_err() {
            return MappingStats::default();
        }
        let (table, map) = (self.0.table().counts(), self.0.map.stats());
        let numbers = self.0.numbers.lock();
        let bytes = |pages: Pages| pages.get() as usize * PAGE_BYTES;
        MappingStats {
            range_bytes: self.0.map.extent().len_bytes() as usize,
            mapped_bytes: bytes(map.foreign_pages),
            stale_bytes: table.stale_pages as usize * PAGE_BYTES,
            system_mappings: table.count,
            system_mappings_max: table.limit,
            flush_calls: table.flush_calls,
            frames: NUMBERS - numbers.free.free_pages().get(),
        }
    }

    /// Returns every mapping in address order, a line each, in the format of `/proc/vmallocinfo`: range with its guard
    /// page, bytes, caller, pages and `vmap`. A block of small mappings has `vm_map_ram` instead. In a child of a fork
    /// it returns no line.
    ///
    /// The caller is a location in the source, whose name is read here. So a library must not be unloaded while
    /// mappings that it made exist.
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        struct Info<'a>(&'a Mappings);
        impl fmt::Display for Info<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.0.write_info(f)
            }
        }
        Info(self)
    }
}

impl fmt::Debug for Mappings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mappings").field(&self.stats()).finish()
    }
}
