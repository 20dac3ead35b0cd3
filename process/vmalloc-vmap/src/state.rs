//! The state of mappings: the map, the numbers of frames, and the table below both.

use super::error::VmapError;
use super::machine::MapMachine;
use super::os::{MapOs, VmapCall};
use super::table::{Table, WRITE};
use crate::PAGE_BYTES;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::panic::Location;
use core::ptr::{NonNull, with_exposed_provenance};
use va_base::{AllocError, Meta, Request, Va, VaRange};
use va_map::{Kind, MapError, MapSpace, PageList, PageTableError, Piece};
use va_tree::{BTreeIndex, FreeIndex, InPlace};
use vmalloc_os::fork::{Process, prepare_for_forks};
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::{Linux as Sys, Os, abort_with};
use vmalloc_os::records::Host;
use vmalloc_os::vread::peek;

/// The sizes of the address range that are tried, the largest first. Miri takes time for each page of it.
pub(super) const LADDER: [usize; 5] =
    if cfg!(miri) { [16 << 20; 5] } else { [16 << 30, 4 << 30, 1 << 30, 256 << 20, 16 << 20] };
/// The number of possible frames: a terabyte.
pub(super) const NUMBERS: u64 = (1 << 40) / PAGE_BYTES as u64;
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
            Self::ReadWrite => WRITE,
        }
    }
}

/// A list of frame numbers.
pub(super) struct List<F> {
    pub(super) count: usize,
    pub(super) number: F,
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
pub(super) struct Numbers<V: MapOs> {
    pub(super) free: BTreeIndex<MapMachine<V>>,
    pub(super) file_pages: u64,
}

type Map<V> = MapSpace<MapMachine<V>, Meta<&'static Table<V>>>;

/// A value in the records of mappings. It is made there, as a constant: a map would be much of a small stack.
pub(super) struct Placed<T>(NonNull<T>);

// SAFETY: it owns its value.
unsafe impl<T: Send> Send for Placed<T> {}
// SAFETY: it shares its value as a reference does.
unsafe impl<T: Sync> Sync for Placed<T> {}

impl<T> Placed<T> {
    /// Owns the value of a place.
    ///
    /// # Safety
    /// The value was written there, the place is valid until this is dropped, and nothing else refers to it.
    unsafe fn new(place: NonNull<T>) -> Self {
        Self(place)
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the contract of `new`.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Placed<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the contract of `new`.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Placed<T> {
    fn drop(&mut self) {
        // SAFETY: the contract of `new`; it is not used any more.
        unsafe { self.0.drop_in_place() };
    }
}

/// The state of mappings, over any system. Fields are dropped in this order.
pub(super) struct Core<V: MapOs> {
    pub(super) map: Placed<Map<V>>,
    pub(super) numbers: Placed<Mutex<Numbers<V>>>,
    process: Process,
    pub(super) base: Base<V>,
}

/// The system and the table, which the other fields use.
pub(super) struct Base<V: MapOs>(pub(super) MapMachine<V>);

impl<V: MapOs> Base<V> {
    fn new(os: V, most: usize) -> Result<Self, VmapError> {
        let failed = |(call, errno)| VmapError::CallFailed { call, errno };
        let host = Host::open(Sys::new()).map_err(|_| VmapError::NoRecords)?;
        let place = host.alloc_place::<Table<V>>();
        let limit = host.os().mappings_max() / 4;
        // A quarter of the process's addresses, where these are limited: the rest is for others.
        let share = host.os().address_limit().map_or(usize::MAX, |limit| limit / 4);
        let most = most.min(share.max(LADDER[LADDER.len() - 1]));
        let table = Table::new(os, &LADDER, most, limit).map_err(failed);
        match (place, table) {
            (Some(place), Ok(table)) => {
                // SAFETY: allocated above for a table.
                unsafe { place.write(table) };
                // SAFETY: written above; it is valid until the home is closed.
                let table = Meta::new(unsafe { place.as_ref() });
                Ok(Self(MapMachine { host, table }))
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
    /// Reserves a range of at most `most` bytes. Stack: less than 8 KiB in release builds.
    pub(super) fn new(os: V, most: usize) -> Result<Self, VmapError> {
        // Before the number of forks is read, which the handlers count.
        prepare_for_forks();
        let base = Base::new(os, most)?;
        let machine = base.0;
        let place = machine.host.alloc_place::<Map<V>>().ok_or(VmapError::NoRecords)?;
        // SAFETY: allocated for a map.
        unsafe { place.write(va_base::constant!(MapSpace::empty())) };
        // SAFETY: written above. The records are closed when `base` is dropped, which is after the map.
        let mut map = unsafe { Placed::new(place) };
        let window = machine.table.extent();
        map.init(window, machine, machine.table, &[]).map_err(|_| VmapError::NoRecords)?;
        let place = machine.host.alloc_place::<Mutex<Numbers<V>>>().ok_or(VmapError::NoRecords)?;
        // SAFETY: allocated for the numbers.
        unsafe { place.write(const { Mutex::new(Numbers { free: InPlace::EMPTY, file_pages: 0 }) }) };
        // SAFETY: as the map.
        let mut numbers = unsafe { Placed::new(place) };
        let all = VaRange::from_pages(1, 1 + NUMBERS).unwrap_or_default();
        InPlace::init(&mut numbers.get_mut().free, all, all, machine).map_err(|_| VmapError::NoRecords)?;
        Ok(Self { map, numbers, process: Process::current(), base })
    }

    pub(super) fn table(&self) -> &'static Table<V> {
        self.base.0.table.take()
    }

    /// Returns a number that no other live `Core` has.
    pub(super) fn home(&self) -> usize {
        (&raw const **self.base.0.table).addr()
    }

    /// Checks that this process created the mappings.
    pub(super) fn own(&self) -> Result<(), VmapError> {
        if Process::current() == self.process { Ok(()) } else { Err(VmapError::OtherProcess) }
    }

    pub(super) fn cpu(&self) -> u32 {
        self.base.0.host.os().cpu() as u32
    }

    pub(super) fn take_frames(&self, count: u64) -> Result<u64, VmapError> {
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

    pub(super) fn free_frames(&self, first: u64, count: u64) {
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

    pub(super) fn vmap(
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

    pub(super) fn vm_map_ram(&self, list: &impl PageList, access: Protection) -> Result<usize, VmapError> {
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

    pub(super) fn unmap(&self, at: usize, pages: usize, small: bool) {
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

    pub(super) fn vread(&self, address: usize, to: &mut [u8]) -> usize {
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

    pub(super) fn write_info(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

fn free_numbers<V: MapOs>(free: &mut BTreeIndex<MapMachine<V>>, first: u64, end: u64) {
    let range = VaRange::from_pages(first, end).unwrap_or_default();
    if let Err(error) = free.free(range) {
        abort_with(format_args!("frames {first} to {end} were not out: {error}"));
    }
}
