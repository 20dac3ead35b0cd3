//! The C functions. Each converts pointers and numbers to the types of the crate `vmalloc`, and its result back.
//!
//! The comments of the functions become those of `include/vmalloc.h`, so they address C programmers.

use crate::answer::{KeepErrno, bad_pointer, not_resized, null_with, number_of};
use core::alloc::Layout;
use core::ffi::{c_char, c_int, c_void};
use core::fmt::{self, Write};
use core::ptr::{NonNull, null_mut};
use vmalloc::{AllocError, FreeError, LARGE_BYTES, Mappings, Vmalloc};

/// Bytes of a huge page, which vmalloc_huge aligns to.
const HUGE_BYTES: usize = 2 << 20;

/// Registers the fork handlers when this code is loaded: before those of the program, whose handlers may then free
/// areas, and take locks under which other threads allocate. Handlers that prepare are called in reverse order.
#[cfg(not(miri))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = register;

#[cfg(not(miri))]
extern "C" fn register() {
    vmalloc::prepare_for_forks();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    Any,
    Zero,
}

/// Checks CA1: every function below is `extern "C"`, which no panic can leave.
fn allocate(size: usize, align: usize, fill: Fill) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_with(libc::EINVAL);
    }
    // Larger than `isize::MAX`, the most that a pointer may span.
    let Ok(layout) = Layout::from_size_align(size, align) else { return null_with(libc::ENOMEM) };
    let keep = KeepErrno::new();
    let area = Vmalloc::global().map_err(AllocError::NoAllocator).and_then(|memory| match fill {
        Fill::Any => memory.alloc(layout),
        Fill::Zero => memory.alloc_zeroed(layout),
    });
    drop(keep);
    match area {
        Ok(area) => area.as_ptr().cast(),
        Err(error) => null_with(number_of(&error)),
    }
}

/// Returns the allocator if the address is in its arena, else an error.
fn owner(at: NonNull<u8>) -> Result<&'static Vmalloc, FreeError> {
    let not_ours = FreeError::NotOurs { address: at.addr().get() };
    Vmalloc::try_global().filter(|memory| memory.contains(at.as_ptr())).ok_or(not_ours)
}

/// # Safety
/// If an area begins at `area`, the caller owns it, and no thread uses it any more.
unsafe fn free_area(what: &str, area: NonNull<u8>) {
    let _keep = KeepErrno::new();
    let freed = owner(area).and_then(|memory| {
        // SAFETY: this function's contract.
        unsafe { memory.free(area) }
    });
    if let Err(error) = freed {
        bad_pointer(what, &error);
    }
}

/// Allocates an area of at least `size` bytes, with any contents: whole pages, aligned to a page.
///
/// NULL with errno EINVAL if `size` is 0, ENOMEM if there is no memory or address space for it.
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc(size: usize) -> *mut c_void {
    allocate(size, 1, Fill::Any)
}

/// Allocates an area of at least `size` bytes, the first `size` of which are 0. Pages fresh from the system are not
/// written to.
///
/// NULL as vmalloc.
#[unsafe(no_mangle)]
pub extern "C" fn vzalloc(size: usize) -> *mut c_void {
    allocate(size, 1, Fill::Zero)
}

/// Allocates an area at a multiple of `align`, a power of two of any size.
///
/// NULL as vmalloc, and with errno EINVAL if `align` is no power of two.
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc_aligned(size: usize, align: usize) -> *mut c_void {
    allocate(size, align, Fill::Any)
}

/// Allocates an area that huge pages can back: aligned to 2 MiB if it has as many bytes. The system decides whether
/// they do (/sys/kernel/mm/transparent_hugepage/enabled).
///
/// NULL as vmalloc.
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc_huge(size: usize) -> *mut c_void {
    allocate(size, if size >= HUGE_BYTES { HUGE_BYTES } else { 1 }, Fill::Any)
}

/// Resizes the area at `area` to at least `size` bytes and returns its address. If the address is different, the bytes
/// up to the smaller size were moved there. Further bytes have any value.
///
/// vrealloc(NULL, size) is vmalloc(size). vrealloc(area, 0) frees the area and returns NULL. NULL as vmalloc if there
/// is no memory: the area is unchanged.
///
/// # Safety
/// `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no
/// thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vrealloc(area: *mut c_void, size: usize) -> *mut c_void {
    let Some(area) = NonNull::new(area.cast::<u8>()) else { return vmalloc(size) };
    if size == 0 {
        // SAFETY: this function's contract.
        unsafe { free_area("vrealloc", area) };
        return null_mut();
    }
    // SAFETY: this function's contract.
    unsafe { resize("vrealloc", area, size) }
}

/// # Safety
/// If an area begins at `area`, the caller owns it, and no other thread uses it meanwhile.
unsafe fn resize(what: &str, area: NonNull<u8>, size: usize) -> *mut c_void {
    let keep = KeepErrno::new();
    let memory = match owner(area) {
        Ok(memory) => memory,
        Err(error) => bad_pointer(what, &error),
    };
    let Ok(layout) = Layout::from_size_align(size, 1) else {
        drop(keep);
        return null_with(libc::ENOMEM);
    };
    // SAFETY: this function's contract.
    let resized = unsafe { memory.grow(area, layout) };
    drop(keep);
    match resized {
        Ok(area) => area.as_ptr().cast(),
        Err(error) => not_resized(what, &error),
    }
}

/// Frees an area. NULL is ignored.
///
/// # Safety
/// `area` is NULL or an area of vmalloc, vzalloc, vrealloc, vmalloc_aligned or vmalloc_huge that no thread uses any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfree(area: *const c_void) {
    if let Some(area) = NonNull::new(area.cast::<u8>().cast_mut()) {
        // SAFETY: this function's contract.
        unsafe { free_area("vfree", area) };
    }
}

/// Allocates at least `size` bytes: from malloc if they are less than 64 KiB, else an area as of vmalloc. If no area
/// can be allocated, they are from malloc, too. The alignment is that of malloc. A size of 0 is passed to malloc.
///
/// NULL with errno ENOMEM if neither has memory.
#[unsafe(no_mangle)]
pub extern "C" fn kvmalloc(size: usize) -> *mut c_void {
    kv_allocate(size, Fill::Any)
}

/// Allocates as kvmalloc does, with all bytes 0.
#[unsafe(no_mangle)]
pub extern "C" fn kvzalloc(size: usize) -> *mut c_void {
    kv_allocate(size, Fill::Zero)
}

fn kv_allocate(size: usize, fill: Fill) -> *mut c_void {
    if size >= LARGE_BYTES {
        let keep = KeepErrno::new();
        let area = allocate(size, 1, fill);
        drop(keep);
        if !area.is_null() {
            return area;
        }
    }
    by_malloc(|| match fill {
        // SAFETY: allocates memory.
        Fill::Any => unsafe { libc::malloc(size) },
        // SAFETY: allocates memory.
        Fill::Zero => unsafe { libc::calloc(1, size) },
    })
}

/// Calls a function of malloc's, which may change `errno` even if it succeeds. Checks CA2.
fn by_malloc(call: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let keep = KeepErrno::new();
    let memory = call();
    keep.unless(memory.is_null());
    memory
}

/// Resizes memory of the kv functions and returns its address. The memory may move between malloc and an area.
///
/// kvrealloc(NULL, size) is kvmalloc(size). kvrealloc(memory, 0) frees and returns NULL. NULL with errno ENOMEM if
/// there is no memory: the old memory is unchanged.
///
/// # Safety
/// `memory` is NULL or of kvmalloc, kvzalloc or kvrealloc, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrealloc(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(at) = NonNull::new(memory.cast::<u8>()) else { return kvmalloc(size) };
    if size == 0 {
        // SAFETY: this function's contract.
        unsafe { kvfree(memory) };
        return null_mut();
    }
    let usable_bytes =
        |owner: &Vmalloc| owner.usable_bytes(at).unwrap_or_else(|error| bad_pointer("kvrealloc", &error));
    let held_bytes = match owner(at) {
        Err(_) if size < LARGE_BYTES => {
            // SAFETY: this function's contract; the address is outside our arena, so malloc allocated it.
            return by_malloc(|| unsafe { libc::realloc(memory, size) });
        }
        // Half of the threshold, so that small changes of size do not move it back and forth.
        Ok(owner) if size >= LARGE_BYTES / 2 => {
            let keep = KeepErrno::new();
            // SAFETY: this function's contract.
            let resized = unsafe { resize("kvrealloc", at, size) };
            if !resized.is_null() {
                return resized;
            }
            drop(keep);
            // No area is to be had: it stays where it is long enough, or malloc may have memory.
            let held_bytes = usable_bytes(owner);
            if size <= held_bytes {
                return memory;
            }
            held_bytes
        }
        Ok(owner) => usable_bytes(owner),
        // SAFETY: as above.
        Err(_) => unsafe { libc::malloc_usable_size(memory) },
    };
    let to = kvmalloc(size);
    if to.is_null() {
        return to;
    }
    // SAFETY: both have that many bytes, and are two allocations.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(at.as_ptr(), held_bytes.min(size)) };
    // SAFETY: this function's contract.
    unsafe { kvfree(memory) };
    to
}

/// Frees memory of the kv functions, or an area. NULL is ignored.
///
/// An address outside the arena is passed to free.
///
/// # Safety
/// `memory` is NULL or of kvmalloc, kvzalloc, kvrealloc, or an area, and no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvfree(memory: *const c_void) {
    let Some(at) = NonNull::new(memory.cast::<u8>().cast_mut()) else { return };
    if owner(at).is_ok() {
        // SAFETY: this function's contract.
        unsafe { free_area("kvfree", at) };
    } else {
        let _keep = KeepErrno::new();
        // SAFETY: this function's contract.
        unsafe { libc::free(at.as_ptr().cast()) };
    }
}

/// Returns true if an address is in the part of the arena where areas have been, whether or not one is live there.
/// O(1), takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn is_vmalloc_addr(address: *const c_void) -> bool {
    Vmalloc::try_global().is_some_and(|memory| memory.contains(address.cast()))
}

/// Returns the usable bytes of the area at `area`: its whole pages. 0 for NULL. O(1), takes no lock.
///
/// Memory of the kv functions may be malloc's: check it by is_vmalloc_addr.
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc_usable_size(area: *const c_void) -> usize {
    let Some(area) = NonNull::new(area.cast::<u8>().cast_mut()) else { return 0 };
    let usable = owner(area).and_then(|memory| memory.usable_bytes(area));
    usable.unwrap_or_else(|error| bad_pointer("vmalloc_usable_size", &error))
}

/// Releases all cached memory to the system. Returns the number of bytes released.
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc_trim() -> usize {
    let _keep = KeepErrno::new();
    Vmalloc::try_global().map_or(0, Vmalloc::trim)
}

/// Statistics of the memory, in bytes unless a field says otherwise. The numbers are not of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct vmalloc_counts {
    /// Address space reserved for areas.
    pub arena_bytes: u64,
    /// Bytes of it that are readable and writable.
    pub committed_bytes: u64,
    /// Bytes of live areas, in whole pages.
    pub live_bytes: u64,
    /// Freed bytes that are cached whole, for an allocation of the same size.
    pub cached_bytes: u64,
    /// Freed bytes that are cached, merged with their neighbours.
    pub dirty_bytes: u64,
    /// Bytes mapped for the records of the allocator.
    pub record_bytes: u64,
    /// Bytes released to the system since start.
    pub purged_bytes: u64,
    /// Allocations served from the cache since start.
    pub cache_hits: u64,
    /// Areas that were copied to grow, since start.
    pub copies: u64,
}

/// Writes the counts to `counts`, all 0 before the first allocation. `size` is sizeof(struct vmalloc_counts). A program
/// that was built with a shorter struct gets the first bytes. Fields of a longer struct that this library lacks are 0.
///
/// Returns 0, or -1 with errno EINVAL if `counts` is NULL.
///
/// # Safety
/// `counts` is NULL or points to `size` bytes to write to, aligned for such a struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmalloc_stats(counts: *mut vmalloc_counts, size: usize) -> c_int {
    if counts.is_null() {
        let _null: *mut u8 = null_with(libc::EINVAL);
        return -1;
    }
    let keep = KeepErrno::new();
    let stats = Vmalloc::try_global().map(Vmalloc::stats).unwrap_or_default();
    drop(keep);
    let now = vmalloc_counts {
        arena_bytes: stats.arena_bytes as u64,
        committed_bytes: stats.committed_bytes as u64,
        live_bytes: stats.live_bytes as u64,
        cached_bytes: stats.cached_bytes as u64,
        dirty_bytes: stats.dirty_bytes as u64,
        record_bytes: stats.record_bytes as u64,
        purged_bytes: stats.purged_bytes,
        cache_hits: stats.cache_hits,
        copies: stats.copies,
    };
    let known = size.min(size_of::<vmalloc_counts>());
    let (from, to) = ((&raw const now).cast::<u8>(), counts.cast::<u8>());
    // SAFETY: `now` has that many bytes, and so has `counts` by this function's contract.
    unsafe { to.copy_from_nonoverlapping(from, known) };
    // SAFETY: inside the caller's bytes.
    let rest = unsafe { to.add(known) };
    // SAFETY: the rest of the caller's bytes.
    unsafe { rest.write_bytes(0, size - known) };
    0
}

/// Writes a line for every area in address order, and then for every mapping of vmap, in the format of
/// /proc/vmallocinfo. As snprintf does, it writes at most `size` bytes with the 0 at the end, which is always there
/// unless `size` is 0. Returns the number of bytes of all lines, without the 0 byte. If that is not less than `size`,
/// the output is truncated.
///
/// # Safety
/// `text` points to `size` bytes to write to; it may be NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmallocinfo(text: *mut c_char, size: usize) -> usize {
    let _keep = KeepErrno::new();
    let mut out = Text { to: text.cast(), left: size.saturating_sub(1), bytes: 0 };
    if let Some(memory) = Vmalloc::try_global() {
        // `Text` never fails.
        let _written = write!(out, "{}", memory.vmallocinfo());
    }
    if let Some(mappings) = Mappings::try_global() {
        let _written = write!(out, "{}", mappings.vmallocinfo());
    }
    if size > 0 {
        // SAFETY: at most `size - 1` bytes were written before.
        unsafe { out.to.write(0) };
    }
    out.bytes
}

/// A caller's buffer with room for `left` more bytes.
struct Text {
    to: *mut u8,
    left: usize,
    bytes: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let count = text.len().min(self.left);
        // SAFETY: the buffer of `vmallocinfo`'s caller has room for them.
        unsafe { self.to.copy_from_nonoverlapping(text.as_ptr(), count) };
        // SAFETY: at most one past the end of the caller's buffer.
        self.to = unsafe { self.to.add(count) };
        self.left -= count;
        self.bytes += text.len();
        Ok(())
    }
}

/// Returns the version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn vmalloc_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
