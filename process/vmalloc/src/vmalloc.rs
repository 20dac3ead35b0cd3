//! The public types: an allocator as a value, and the allocator of the process.

mod stats;

use crate::options::{Options, Profile};

use crate::error::{AllocError, CreateError, FreeError, ResizeError};
use crate::hardened::{self, Fault};
use crate::heap::{Fill, Heap, Owned, Plan};
use crate::tagged::{Caller, Tagged};
use core::alloc::Layout;
use core::fmt;
use core::panic::Location;
use core::ptr::NonNull;
use vmalloc_os::os::{Linux, abort_with};
use vmalloc_os::{Published, fork};

/// An allocator of large memory: whole pages, cached between uses, reused without system calls.
///
/// An area is whole pages, aligned to a page at least. Without huge pages, one of 64 KiB or more is a multiple of 16 KiB.
/// It may be freed from any thread. Areas that are still live when
/// the allocator is dropped are unmapped.
///
/// ```
/// use std::alloc::Layout;
/// use vmalloc::Vmalloc;
///
/// let memory = Vmalloc::new(vmalloc::Options::default())?;
/// let area = memory.alloc(Layout::from_size_align(300_000, 1 << 16)?)?;
/// assert_eq!(memory.usable_bytes(area)?, 74 * 4096);
/// // SAFETY: no reference to it exists any more.
/// unsafe { memory.free(area) }?;
/// // SAFETY: as before; a second free is an error that changes nothing.
/// assert!(unsafe { memory.free(area) }.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Vmalloc {
    kind: Kind,
}

/// The allocator by profile, with or without caller tags. One branch selects the ordinary one.
enum Kind {
    Ordinary(Owned<Linux>),
    Hardened(hardened::Owned<Linux>),
    Tagged(Tagged),
}

/// The allocator without the tags.
enum Part<'a> {
    Ordinary(&'a Heap<Linux>),
    Hardened(&'a hardened::Owned<Linux>),
}

/// Reports a misuse that the hardened profile detected, and stops the process.
#[cold]
fn stop(fault: &Fault) -> ! {
    abort_with(format_args!("{fault}"))
}

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// The allocator of the process, made on first use and never dropped. Protocol PR-PUBLISH.
static GLOBAL: Published<Vmalloc> = Published::new();

impl Vmalloc {
    /// Makes an allocator.
    ///
    /// # Errors
    /// [`CreateError`], if the process may not have the address space, or a system call fails.
    pub fn new(options: Options) -> Result<Self, CreateError> {
        let Options { arena_bytes_max, cache_bytes_max, profile, caller_tags, .. } = options;
        let kind = match profile {
            Profile::Ordinary => {
                let heap = Owned::new(Linux::new(), Plan::new(&options))?;
                if caller_tags { Kind::Tagged(Tagged::new(heap)?) } else { Kind::Ordinary(heap) }
            }
            Profile::Hardened(hardened) => {
                let plan = hardened::Plan::new(arena_bytes_max, cache_bytes_max, hardened);
                Kind::Hardened(hardened::Owned::new(Linux::new(), plan)?)
            }
        };
        Ok(Self { kind })
    }

    /// Returns the allocator of the process, which the first call makes with default options.
    ///
    /// # Errors
    /// As [`new`](Self::new); the next call tries again.
    #[inline(always)]
    pub fn global() -> Result<&'static Self, CreateError> {
        match Self::try_global() {
            Some(global) => Ok(global),
            None => make_global(Options::default()),
        }
    }

    /// Returns the allocator of the process, made with `options` unless it exists. The first caller decides, so call it
    /// at the start of `main`. With [`LargeAlloc`](crate::LargeAlloc) as global allocator, an earlier allocation may be
    /// the first call.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn global_with(options: Options) -> Result<&'static Self, CreateError> {
        match Self::try_global() {
            Some(global) => Ok(global),
            None => make_global(options),
        }
    }

    /// Returns the allocator of the process, if it was made before.
    #[inline(always)]
    pub fn try_global() -> Option<&'static Self> {
        // SAFETY: an allocator that is never dropped.
        GLOBAL.get().map(|global| unsafe { global.as_ref() })
    }

    /// Allocates an area of at least `layout.size()` bytes with arbitrary contents.
    ///
    /// Cost: about ten nanoseconds if an area of that many pages was freed on this CPU before. Otherwise O(log n): the
    /// lowest dirty pages that fit are cut, or fresh ones are allocated.
    ///
    /// # Errors
    /// [`AllocError`]. [`AllocError::NoSpace`] and [`AllocError::CallFailed`] come after the release of all cached memory,
    /// unless that cannot help.
    /// # Locks
    /// One of its CPU, or that of the allocator.
    #[track_caller]
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        match &self.kind {
            Kind::Ordinary(heap) => heap.alloc(layout, Fill::Any),
            Kind::Hardened(hard) => hard.alloc(layout),
            Kind::Tagged(tagged) => alloc_for(tagged, layout, Fill::Any, Caller::Place(Location::caller())),
        }
    }

    /// Does the same for a caller that `tag` names in [`vmallocinfo`](Self::vmallocinfo), if callers are recorded
    /// ([`Options::caller_tags`]). 256 texts are distinguished.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_tagged(&self, layout: Layout, tag: &'static str) -> Result<NonNull<u8>, AllocError> {
        match &self.kind {
            Kind::Tagged(tagged) => alloc_for(tagged, layout, Fill::Any, Caller::Text(tag)),
            _ => self.alloc(layout),
        }
    }

    /// Does the same, with zeroed bytes. Memory that is fresh from the system is not written to.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    pub fn alloc_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        match &self.kind {
            Kind::Ordinary(heap) => heap.alloc(layout, Fill::Zero),
            Kind::Hardened(hard) => hard.alloc(layout),
            Kind::Tagged(tagged) => alloc_for(tagged, layout, Fill::Zero, Caller::Place(Location::caller())),
        }
    }

    /// Does the same, at a multiple of 2 MiB, so that small areas have huge pages, too. The options must request them
    /// ([`Options::huge_pages`]; with [`HugePages::System`](crate::HugePages::System) the caller does), and the system
    /// must have some.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    pub fn alloc_huge(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        match &self.kind {
            Kind::Ordinary(heap) => heap.alloc_huge(layout, Fill::Any),
            Kind::Hardened(hard) => {
                let whole = layout.align_to(HUGE_BYTES).map_err(|_| AllocError::NoSpace {
                    requested_bytes: layout.size(),
                    align_bytes: HUGE_BYTES,
                    largest_bytes: hard.stats().arena_bytes,
                })?;
                hard.alloc(whole)
            }
            Kind::Tagged(tagged) => {
                let caller = Caller::Place(Location::caller());
                tagged.alloc_huge(layout, Fill::Any).inspect(|&area| tagged.note(area, caller))
            }
        }
    }

    /// Frees an area.
    ///
    /// Cost: as an alloc; O(1) if no area begins there.
    ///
    /// # Errors
    /// [`FreeError`] if no live area begins there. Nothing changes then.
    /// # Safety
    /// If an area begins at `area`, it is the caller's, and no reference to it is used any more.
    pub unsafe fn free(&self, area: NonNull<u8>) -> Result<(), FreeError> {
        match &self.kind {
            // SAFETY: this function's contract.
            Kind::Ordinary(heap) => unsafe { heap.free(area.addr().get()) },
            Kind::Hardened(hard) => {
                // SAFETY: as before.
                let freed = unsafe { hard.free(area.addr().get()) };
                freed.map_err(|fault| stop(&fault))
            }
            // SAFETY: as before.
            Kind::Tagged(tagged) => unsafe { tagged.free(area.addr().get()) },
        }
    }

    /// Resizes an area to at least `layout.size()` bytes, aligns it, and returns its address. It stays in place if the
    /// addresses above are free. Otherwise its pages move, or its bytes are copied.
    ///
    /// The area may shrink, too; [`shrink`](Self::shrink) does the same.
    ///
    /// # Errors
    /// [`ResizeError`]. The area is unchanged then.
    /// # Safety
    /// If an area begins at `area`, it is the caller's. No reference to it is used during the call. If the returned
    /// address is another one, no reference to the old one is used afterwards.
    #[track_caller]
    pub unsafe fn grow(&self, area: NonNull<u8>, layout: Layout) -> Result<NonNull<u8>, ResizeError> {
        // SAFETY: this function's contract.
        unsafe { self.resize(area, layout, Fill::Any) }
    }

    /// Does the same as [`grow`](Self::grow), and zeroes all bytes beyond the size that was requested before.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    /// # Safety
    /// As [`grow`](Self::grow).
    #[track_caller]
    pub unsafe fn grow_zeroed(&self, area: NonNull<u8>, layout: Layout) -> Result<NonNull<u8>, ResizeError> {
        // SAFETY: this function's contract.
        unsafe { self.resize(area, layout, Fill::Zero) }
    }

    /// Frees the pages of an area beyond `layout.size()`. It stays in place unless `layout` has another alignment.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    /// # Safety
    /// As [`grow`](Self::grow).
    #[track_caller]
    pub unsafe fn shrink(&self, area: NonNull<u8>, layout: Layout) -> Result<NonNull<u8>, ResizeError> {
        // SAFETY: this function's contract.
        unsafe { self.resize(area, layout, Fill::Any) }
    }

    /// Resizes an area, in either profile.
    ///
    /// # Safety
    /// As [`grow`](Self::grow).
    #[track_caller]
    unsafe fn resize(
        &self,
        area: NonNull<u8>,
        layout: Layout,
        fill: Fill,
    ) -> Result<NonNull<u8>, ResizeError> {
        match &self.kind {
            // SAFETY: this function's contract.
            Kind::Ordinary(heap) => unsafe { heap.resize(area.addr().get(), layout, fill) },
            Kind::Hardened(hard) => {
                // SAFETY: as before.
                let resized = unsafe { hard.resize(area.addr().get(), layout) };
                resized.unwrap_or_else(|fault| stop(&fault))
            }
            Kind::Tagged(tagged) => {
                let caller = Caller::Place(Location::caller());
                // SAFETY: as before.
                let resized = unsafe { tagged.resize(area.addr().get(), layout, fill) };
                resized.inspect(|&area| tagged.note(area, caller))
            }
        }
    }

    /// Returns the allocator, for operations that do not use the tags.
    fn part(&self) -> Part<'_> {
        match &self.kind {
            Kind::Ordinary(heap) => Part::Ordinary(heap),
            Kind::Hardened(hard) => Part::Hardened(hard),
            Kind::Tagged(tagged) => Part::Ordinary(tagged),
        }
    }

    /// Returns a diagnosis of an address in a hardened arena that could not be touched: it was freed, or lies beside an
    /// area. For a handler of that signal. `None` if it is outside the arena, or in the ordinary profile.
    ///
    /// O(1), under a lock that is never held while the memory of an area is touched. So a handler may call it for a
    /// fault that the system reports, not for a signal that a process sent. Allocates nothing.
    #[must_use]
    pub fn explain_fault(&self, address: *const u8) -> Option<impl fmt::Display> {
        let Part::Hardened(hard) = self.part() else { return None };
        self.contains(address).then(|| {
            let address = address.addr();
            Fault::Touched { address, known: hard.diagnosis(address) }
        })
    }

    /// Returns the size of the live area that begins at `area`: its whole pages in bytes, all of which can be used.
    /// O(1), no lock; in the hardened profile its own.
    ///
    /// # Errors
    /// [`FreeError`] if no live area begins there.
    pub fn usable_bytes(&self, area: NonNull<u8>) -> Result<usize, FreeError> {
        match self.part() {
            Part::Ordinary(heap) => Ok(heap.live(area.addr().get())?.usable_bytes()),
            Part::Hardened(hard) => Ok(hard.live(area.addr().get())?.requested_bytes()),
        }
    }

    /// Returns the number of bytes that were requested. O(1), no lock; in the hardened profile its own.
    ///
    /// # Errors
    /// As [`usable_bytes`](Self::usable_bytes).
    pub fn requested_bytes(&self, area: NonNull<u8>) -> Result<usize, FreeError> {
        match self.part() {
            Part::Ordinary(heap) => Ok(heap.live(area.addr().get())?.requested_bytes()),
            Part::Hardened(hard) => Ok(hard.live(area.addr().get())?.requested_bytes()),
        }
    }

    /// Returns the addresses that areas can have: all of the arena, in bytes. With it a caller can classify pointers
    /// faster than with [`contains`](Self::contains). O(1), no lock; it never changes.
    #[must_use]
    pub fn addresses(&self) -> core::ops::Range<usize> {
        let arena = match self.part() {
            Part::Ordinary(heap) => heap.arena(),
            Part::Hardened(hard) => hard.arena(),
        };
        arena.start().get() as usize..arena.end().get() as usize
    }

    /// Returns true if an address is in the part of the arena where areas have been, whether or not one is live there
    /// (`is_vmalloc_addr`). O(1), no lock.
    #[inline(always)]
    #[must_use]
    pub fn contains(&self, address: *const u8) -> bool {
        match &self.kind {
            Kind::Ordinary(heap) => heap.contains(address.addr()),
            Kind::Hardened(hard) => hard.contains(address.addr()),
            Kind::Tagged(tagged) => tagged.contains(address.addr()),
        }
    }

    /// Copies the contents of live areas at an address, even while other threads free them: it never faults. Bytes
    /// outside live areas are zeros. Returns how many bytes were read.
    ///
    /// Cost: the bytes, and a word for each page between the first byte and the start of the area around it.
    pub fn vread(&self, address: *const u8, to: &mut [u8]) -> usize {
        match self.part() {
            Part::Ordinary(heap) => heap.vread(address.addr(), to),
            Part::Hardened(hard) => hard.vread(address.addr(), to),
        }
    }

    /// Releases unused address space, for a process whose address space becomes short or is locked. Cached memory is
    /// released with it. Released addresses are never allocated again; other mappings may use them. Returns `false` if
    /// there was nothing to release. The first call of the hardened profile leaves a sixteenth of `RLIMIT_AS`, in which
    /// areas are placed from then on. The next call releases that and the quarantine.
    ///
    /// Cost: a trim, and a system call for each range. Locks: those of a trim, and of each zone meanwhile.
    pub fn release_addresses(&self) -> bool {
        match self.part() {
            Part::Ordinary(heap) => heap.release_addresses(),
            Part::Hardened(hard) => hard.release_addresses(),
        }
    }

    /// Releases all cached memory, as [`trim`](Self::trim), and makes its addresses inaccessible until they are
    /// allocated again: `RLIMIT_DATA` counts writable addresses even without pages. Returns how many bytes may have
    /// been accessible.
    ///
    /// Cost: a system call for each range, and afterwards one for each allocation that no magazine serves. Locks: those
    /// of a trim, and of each zone meanwhile.
    pub fn shut(&self) -> usize {
        match self.part() {
            Part::Ordinary(heap) => heap.shut() as usize * crate::PAGE_BYTES,
            Part::Hardened(hard) => hard.shut() as usize * crate::PAGE_BYTES,
        }
    }

    /// Records that the program changes the mappings of `bytes` bytes from `start` on: protects or locks them,
    /// withholds them from forks, or the like (`mprotect`, `mlock`, `madvise`, `mbind`). When areas that they touch are
    /// freed, fresh pages are mapped over these, so that no later owner inherits the change. Without this call, a
    /// program that changes an area must undo the change before the free. Pages by which an area grows, or to which it
    /// moves, inherit only its memory policy, if one policy covers it. The hardened profile reads no canary of such an
    /// area.
    ///
    /// Cost: eight bytes read for each page between the start of the area around `start` and the end; in the hardened
    /// profile O(log n) an area. Locks: none; in the hardened profile its own. There a call in a signal handler that
    /// interrupted another call has no effect.
    pub fn renew_at_free(&self, start: *const u8, bytes: usize) {
        match self.part() {
            Part::Ordinary(heap) => heap.renew_at_free(start.addr(), bytes),
            Part::Hardened(hard) => hard.renew_at_free(start.addr(), bytes),
        }
    }

    /// Releases all cached memory to the system, page by page where a block is partly in use. Returns how many bytes
    /// were released.
    pub fn trim(&self) -> usize {
        let before = self.stats().purged_bytes;
        match self.part() {
            Part::Ordinary(heap) => heap.trim(),
            Part::Hardened(hard) => _ = hard.trim(),
        }
        (self.stats().purged_bytes - before) as usize
    }

    /// Does a part of the decay that is due ([`Options::decay`]), as calls that allocate or free do. For programs that
    /// make no other call for a while: it releases up to 8 MiB a call. It does nothing in the hardened profile, which
    /// caches little, or while the calling thread is inside another call, as a signal handler may be.
    ///
    /// Cost: a reading of the coarse clock, if nothing is due. Locks: as [`free`](Self::free).
    pub fn decay(&self) {
        if let Part::Ordinary(heap) = self.part() {
            heap.pass_time_anywhere();
        }
    }

    /// Lists every area in address order, a line each, in the format of `/proc/vmallocinfo`. A line has the range,
    /// bytes, and the caller if that is recorded ([`Options::caller_tags`]). Then come pages and `vmalloc` for a live
    /// area, `unpurged vm_area` for a cached one, `quarantined vm_area` for a freed one of the hardened profile. The
    /// range is what the area occupies, with its guard page if it has one.
    ///
    /// Areas that are allocated or freed during the call may be listed or not.
    #[must_use]
    pub fn vmallocinfo(&self) -> impl fmt::Display + '_ {
        struct Info<'a>(&'a Vmalloc);
        impl fmt::Display for Info<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0.kind {
                    Kind::Ordinary(heap) => heap.write_info(f),
                    Kind::Hardened(hard) => hard.write_info(f),
                    Kind::Tagged(tagged) => tagged.write_info(f),
                }
            }
        }
        Info(self)
    }
}

impl fmt::Debug for Vmalloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vmalloc").field(&self.stats()).finish()
    }
}

/// Allocates an area and records its caller.
#[cold]
fn alloc_for(tagged: &Tagged, layout: Layout, fill: Fill, caller: Caller) -> Result<NonNull<u8>, AllocError> {
    tagged.alloc(layout, fill).inspect(|&area| tagged.note(area, caller))
}

#[cold]
fn make_global(options: Options) -> Result<&'static Vmalloc, CreateError> {
    // Before the lock: a fork during the registration must not leave it locked in the child.
    fork::prepare_for_forks();
    let _alone = fork::MAKING.lock();
    if let Some(global) = Vmalloc::try_global() {
        return Ok(global);
    }
    let global = Vmalloc::new(options)?;
    let place = match &global.kind {
        Kind::Ordinary(heap) => heap.alloc_place::<Vmalloc>(),
        Kind::Hardened(hard) => hard.alloc_place(),
        Kind::Tagged(tagged) => tagged.alloc_place(),
    }
    .ok_or(CreateError::NoRecords)?;
    // SAFETY: allocated for an allocator; this one lives in its own records and is never dropped.
    unsafe { place.write(global) };
    let global = GLOBAL.publish(place).map_or_else(|other| other, |()| place);
    // SAFETY: written just above, and never dropped.
    Ok(unsafe { global.as_ref() })
}
