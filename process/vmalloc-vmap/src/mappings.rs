//! The public type of mappings: the source of frames, and the address range in which they are mapped.

use super::error::VmapError;
use super::frames::{Frame, Frames};
use super::linux::Linux;
use super::mapping::Mapping;
use super::state::{Core, List, NUMBERS, Protection};
use crate::PAGE_BYTES;
use core::fmt;
use core::panic::Location;
use va_base::Pages;
use va_tree::FreeIndex;
use vmalloc_os::Published;

/// The source of frames, and the address range in which they are mapped.
pub struct Mappings(pub(super) Core<Linux>);

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

/// The global mappings of the process, null until the first use. They are never dropped. Protocol PR-PUBLISH.
pub(super) static GLOBAL: Published<Mappings> = Published::new();

impl Mappings {
    /// Reserves an address range of at most `range_bytes_max` bytes: 16 GiB, 4 GiB, 1 GiB, 256 MiB or 16 MiB. Where the
    /// addresses of the process are limited, it has at most a quarter of them, or 16 MiB.
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
        Self::try_global().map_or_else(Self::make_global, Ok)
    }

    /// Creates the global mappings without a lock, which a fork could leave held. If two threads do so at a time, one
    /// of them drops its own.
    #[cold]
    fn make_global() -> Result<&'static Self, VmapError> {
        let made = Self::new(usize::MAX)?;
        let place = made.0.base.0.host.alloc_place::<Self>().ok_or(VmapError::NoRecords)?;
        // SAFETY: allocated for mappings; they are in their own records.
        unsafe { place.write(made) };
        if let Err(other) = GLOBAL.publish(place) {
            // SAFETY: written above, and not shared; read before its records are released.
            drop(unsafe { place.read() });
            // SAFETY: never dropped.
            return Ok(unsafe { other.as_ref() });
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
