//! The C functions of per-CPU memory, declared in `va_percpu.h`.
//!
//! The kernel has the chunks, their lists, their pages and the lock. The engine decides which bits of a chunk an object
//! gets, and has the hints about them. Its bitmap, its row of hints and its head are the memory that the kernel
//! allocates for its own ones: before there are pages, that is memory of the boot.

use va_percpu::engine::{Fit, HintEngine, View, Want};
use va_percpu::scan::{AsInLinux, Hints, ScanHints};
use va_percpu::{PAGE_BITS, Word};

/// Offset for offset what Linux decides.
type Engine = ScanHints<AsInLinux>;

/// A chunk, as C shows it.
#[repr(C)]
pub struct Chunk {
    map: *mut Word,
    populated: *const Word,
    blocks: *mut Hints,
    head: *mut Hints,
    pages: u32,
}

/// The bits that an object got: the first, or -1; and the pages that are no longer wholly free.
#[repr(C)]
pub struct Taken {
    at: i32,
    pages: u32,
}

/// Words of the bitmap for a page.
const PAGE_WORDS: usize = (PAGE_BITS / u64::BITS) as usize;

/// Calls `with` with a view of a chunk.
///
/// # Safety
/// - The fields of `chunk` are valid. The bitmap has a bit for each 4 bytes. There is a bit of `populated` and a block
///   for each page, and one head.
/// - No other thread accesses these: the caller has `pcpu_lock`, or nothing refers to the chunk yet.
#[inline(always)]
unsafe fn with<T>(chunk: *const Chunk, with: impl FnOnce(&mut View<'_, Engine>) -> T) -> T {
    // SAFETY: valid for reads by this function's contract.
    let &Chunk { map, populated, blocks, head, pages } = unsafe { &*chunk };
    let count = pages as usize;
    // SAFETY: so many words, accessed by no other thread, by this function's contract.
    let map = unsafe { core::slice::from_raw_parts_mut(map, count * PAGE_WORDS) };
    // SAFETY: a bit for each page, by this function's contract.
    let populated = unsafe { core::slice::from_raw_parts(populated, count.div_ceil(u64::BITS as usize)) };
    // SAFETY: a block for each page, accessed by no other thread, by this function's contract.
    let blocks = unsafe { core::slice::from_raw_parts_mut(blocks, count) };
    // SAFETY: accessed by no other thread, by this function's contract.
    let head = unsafe { &mut *head };
    with(&mut View { map, populated, blocks, head, pages })
}

/// Initializes the hints of a chunk whose bits are all clear.
///
/// # Safety
/// As of `with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_reset(chunk: *const Chunk) {
    // SAFETY: by this function's contract.
    unsafe { with(chunk, Engine::reset) }
}

/// Returns the bit from which `va_percpu_take` is to search, or -1 if nothing fits by the hints. With `populated`, only
/// where every page is populated.
///
/// # Safety
/// As of `with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_find(chunk: *const Chunk, bits: u32, align: u32, populated: bool) -> i32 {
    let want = Want { bits, align };
    // SAFETY: by this function's contract.
    unsafe { with(chunk, |view| Engine::find(view, want, populated).map_or(-1, |from| from as i32)) }
}

/// Finds room from a bit of `va_percpu_find` on, and sets its bits.
///
/// # Safety
/// As of `with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_take(chunk: *const Chunk, bits: u32, align: u32, from: u32) -> Taken {
    // SAFETY: by this function's contract.
    match unsafe { with(chunk, |view| Engine::take_from(view, Want { bits, align }, from)) } {
        Fit::At { at, pages } => Taken { at: at as i32, pages },
        Fit::Missed | Fit::Nowhere => Taken { at: -1, pages: 0 },
    }
}

/// Sets bits for something that is no object. Returns the pages that are no longer wholly free.
///
/// # Safety
/// As of `with`. The bits are in the chunk, and no object has one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_take_at(chunk: *const Chunk, at: u32, bits: u32) -> u32 {
    // SAFETY: by this function's contract.
    unsafe { with(chunk, |view| Engine::take_at(view, at, bits)) }
}

/// Clears the bits of an object. Returns the pages that are wholly free now.
///
/// # Safety
/// As of `with`. An object has exactly these bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_free(chunk: *const Chunk, at: u32, bits: u32) -> u32 {
    // SAFETY: by this function's contract.
    unsafe { with(chunk, |view| Engine::free(view, at, bits).pages) }
}

/// Compares the hints with the bits. Returns 0, or -1 if one is wrong, and 1 without the feature `validate`.
///
/// # Safety
/// As of `with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_percpu_validate(chunk: *const Chunk) -> i32 {
    if cfg!(not(feature = "validate")) {
        return 1;
    }
    // SAFETY: by this function's contract.
    if unsafe { with(chunk, |view| Engine::validate(view)) }.is_ok() { 0 } else { -1 }
}
