//! Memory for the allocator's own records. It is mapped, never from the global allocator, which may be this one.
//!
//! # Theory
//! Chunks are mapped in doubling sizes, or as small as needed where that fails, and pieces are cut from the front. A
//! freed piece joins the free list of its size, a power of two. All chunks are unmapped when the allocator is dropped.
//! The first chunk begins with the `Home` itself, so that nothing is on a stack or in a static: a [`Host`] leads to
//! everything.
//!
//! # Invariants
//! - **RC1 once** a piece is in one state: allocated, in a free list, or not yet cut.
//!
//! # Locking
//! The lock of the chunks is the innermost of all; under it `mmap` may be called.

use crate::lock::{Fork, Futex, Mutex};
use crate::os::{Call, Errno, Os, Span, abort_with};
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, InvariantViolation, Machine, Meta, Platform, Record, Table, VaRange};

/// Bytes of the first chunk, and the limit up to which each next one is twice as large.
const CHUNK_FIRST: usize = 256 << 10;
const CHUNK_LAST: usize = 8 << 20;
/// The smallest piece, which has room for the link of a free list.
const PIECE_MIN: usize = 64;
const CLASSES: usize = 48;

/// The memory of all records of an allocator.
struct Home<O: Os> {
    // Constant after `new`.
    os: O,
    // Under its lock.
    chunks: Mutex<Chunks>,
    // Atomic, independent of each other.
    /// The number of the next flush, which has ended at once. Protocol PR-NUMBER.
    epoch: AtomicU64,
}

struct Chunks {
    /// The rest of the newest chunk.
    at: usize,
    end: usize,
    /// The newest chunk, whose header has the address of the one before.
    newest: usize,
    mapped: usize,
    /// The free lists, by size.
    back: [usize; CLASSES],
}

/// The header at the start of a chunk.
#[derive(Clone, Copy)]
struct Header {
    before: usize,
    bytes: usize,
}

/// A handle of an allocator's records: the address of their `Home`. It must not be used after [`Host::close`].
pub struct Host<O: Os>(NonNull<Home<O>>);

// SAFETY: a `Host` gives shared access only to a home's lock and atomics.
unsafe impl<O: Os> Send for Host<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Host<O> {}

impl<O: Os> Clone for Host<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Os> Copy for Host<O> {}

impl<O: Os> fmt::Debug for Host<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.0).finish()
    }
}

impl<O: Os> Host<O> {
    /// A handle of no home, for constants that get a home before they are used. No method of it may be called.
    pub const NOWHERE: Self = Self(NonNull::dangling());

    #[inline(always)]
    fn home(&self) -> &'static Home<O> {
        // SAFETY: written by `open`, and valid until `close`, after which no `Host` is used; no method of `NOWHERE` is
        // called.
        unsafe { self.0.as_ref() }
    }

    /// Opens a home on `os`.
    ///
    /// # Errors
    /// The call that failed, and its error.
    pub fn open(os: O) -> Result<Self, (Call, Errno)> {
        let start = os.map(CHUNK_FIRST).map_err(|error| (Call::Map, error))?;
        let mut chunks = Chunks { at: 0, end: 0, newest: 0, mapped: 0, back: [0; CLASSES] };
        chunks.adopt(start, CHUNK_FIRST);
        let home = Home { os, chunks: Mutex::new(chunks), epoch: AtomicU64::new(0) };
        // The first chunk is larger than a `Home`, so this cannot fail.
        let Some(place) = home.piece(Layout::new::<Home<O>>()) else {
            abort_with(format_args!("the first chunk of records is too small"))
        };
        let place = place.cast::<Home<O>>();
        // SAFETY: fresh memory of that size and alignment.
        unsafe { place.write(home) };
        Ok(Self(place))
    }

    /// Unmaps everything, this home included.
    ///
    /// # Safety
    /// No thread uses this home, or memory that it allocated, any more.
    pub unsafe fn close(self) {
        let mut chunk = self.home().chunks.lock().newest;
        // SAFETY: by this function's contract no other reference exists or is made; the memory stays mapped until the
        // loop below.
        let os = unsafe { (&raw const self.home().os).read() };
        while chunk != 0 {
            // SAFETY: a chunk begins with its header.
            let header = unsafe { with_exposed_provenance_mut::<Header>(chunk).read() };
            // SAFETY: mapped by `map`, and no reference to it remains.
            unsafe { os.unmap(Span { at: chunk, bytes: header.bytes }) };
            chunk = header.before;
        }
    }

    /// Returns the system.
    #[inline(always)]
    #[must_use]
    pub fn os(&self) -> &'static O {
        &self.home().os
    }

    /// Returns the number of bytes mapped for records.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.home().chunks.lock().mapped
    }

    /// Allocates memory for `count` values that are all zero bytes.
    #[must_use]
    pub fn alloc_zeroed<T: Zeroed>(&self, count: usize) -> Option<&'static [T]> {
        let layout = Layout::array::<T>(count).ok()?;
        // Cut from fresh memory, whose pages are zeros and become resident at the first access.
        let mut chunks = self.home().chunks.lock();
        let place = chunks.cut_fresh(&self.home().os, layout)?.cast::<T>();
        drop(chunks);
        // SAFETY: mapped memory that was never used is zeros, which are values by `Zeroed`; it is allocated once (RC1).
        Some(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }

    /// Allocates memory for a value, until the home is closed. The value is never dropped.
    #[must_use]
    pub fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        Some(self.home().piece(Layout::new::<T>())?.cast())
    }

    /// Returns true if the calling thread holds the lock of the chunks.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.home().chunks.is_mine()
    }

    /// Takes the lock of the chunks for the time of a fork.
    pub fn hold(&self, interrupted: bool) {
        self.home().chunks.hold(interrupted);
    }

    /// Releases the lock of the chunks after a fork, in the parent and in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    pub unsafe fn release(&self) {
        // SAFETY: held, by this function's contract.
        unsafe { self.home().chunks.release() };
    }
}

/// A value in the records, at an address of its own. It is never dropped: its memory, and all that it has of the same
/// home, is unmapped by [`Host::close`].
///
/// Empty values are constants in the program, thousands of bytes for a space. A type that contains this has a small
/// one, and the constant of the value is there once.
pub struct Placed<T>(NonNull<T>);

// SAFETY: it has exclusive access to the value, as a box.
unsafe impl<T: Send> Send for Placed<T> {}
// SAFETY: as before.
unsafe impl<T: Sync> Sync for Placed<T> {}

impl<T> fmt::Debug for Placed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Placed").field(&self.0).finish()
    }
}

impl<T> Placed<T> {
    /// A handle of no value, for constants. It must not be used before [`new`](Self::new) replaces it.
    pub const NOWHERE: Self = Self(NonNull::dangling());

    /// Writes a value, which should be a constant: then no copy of it is on the stack.
    pub fn new<O: Os>(host: &Host<O>, value: impl FnOnce() -> T) -> Option<Self> {
        let place = host.alloc_place()?;
        // SAFETY: memory for a value, allocated to this caller only (RC1).
        unsafe { place.write(value()) };
        Some(Self(place))
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and valid until the home is closed; `NOWHERE` is not used.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Placed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as before; this is the only handle.
        unsafe { self.0.as_mut() }
    }
}

/// A type with a value of all zero bytes.
///
/// # Safety
/// All zero bytes are a valid value of the type.
pub unsafe trait Zeroed: Send + Sync + 'static {}

impl<O: Os> Home<O> {
    /// Allocates a piece.
    #[inline(never)]
    fn piece(&self, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(layout)?;
        let mut chunks = self.chunks.lock();
        let listed = chunks.back[class];
        if let Some(first) = NonNull::new(with_exposed_provenance_mut::<usize>(listed)) {
            // SAFETY: a piece in a list begins with the address of the next one (RC1).
            chunks.back[class] = unsafe { first.read() };
            return Some(first.cast());
        }
        // Aligned for every layout that may use the piece after it is freed.
        let align = layout.align().max((1 << class).min(crate::PAGE_BYTES));
        chunks.cut_fresh(&self.os, Layout::from_size_align(1 << class, align).ok()?)
    }

    /// Frees a piece.
    ///
    /// # Safety
    /// [`piece`](Self::piece) returned it for this layout, and no reference to it remains.
    unsafe fn free_piece(&self, piece: NonNull<u8>, layout: Layout) {
        let Some(class) = class_of(layout) else { return };
        let mut chunks = self.chunks.lock();
        debug_assert_ne!(chunks.back[class], piece.addr().get(), "RC1: a piece came back twice");
        // SAFETY: it has at least `PIECE_MIN` bytes and is aligned for them, and the caller does not use it any more.
        unsafe { piece.cast::<usize>().write(chunks.back[class]) };
        chunks.back[class] = piece.expose_provenance().get();
    }
}

/// Returns the size of the piece for a layout, as a power of two.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(PIECE_MIN);
    Some(bytes.checked_next_power_of_two()?.trailing_zeros() as usize).filter(|&class| class < CLASSES)
}

impl Chunks {
    /// Makes a new mapping the chunk to cut from. The rest of the previous chunk stays unused.
    fn adopt(&mut self, at: usize, bytes: usize) {
        let header = Header { before: self.newest, bytes };
        // SAFETY: a new mapping of more bytes than that, page-aligned.
        unsafe { with_exposed_provenance_mut::<Header>(at).write(header) };
        (self.newest, self.at, self.end) = (at, at + size_of::<Header>(), at + bytes);
        self.mapped += bytes;
    }

    /// Cuts a piece of never used memory, all zeros.
    fn cut_fresh(&mut self, os: &impl Os, layout: Layout) -> Option<NonNull<u8>> {
        for _ in 0..2 {
            let at = self.at.checked_next_multiple_of(layout.align())?;
            if let Some(end) = at.checked_add(layout.size()).filter(|&end| end <= self.end) {
                self.at = end;
                return NonNull::new(with_exposed_provenance_mut(at));
            }
            let want = layout.size().checked_add(layout.align() + size_of::<Header>())?;
            let least = want.checked_next_power_of_two()?.max(CHUNK_FIRST);
            let bytes = least.max(self.mapped.min(CHUNK_LAST));
            // A limit of address space may have room for a smaller one.
            let map = |bytes| os.map(bytes).map(|at| (at, bytes));
            let (new, bytes) = map(bytes).or_else(|_| map(least)).ok()?;
            self.adopt(new, bytes);
        }
        None
    }
}

impl<O: Os> Platform for Host<O> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let layout = Layout::array::<T>(min.max(1)).ok()?;
        let place = self.home().piece(layout)?.cast::<T>();
        for at in 0..min {
            // SAFETY: inside the piece.
            let slot = unsafe { place.add(at) };
            // SAFETY: aligned, and allocated to this caller only (RC1).
            unsafe { slot.write(T::EMPTY) };
        }
        // SAFETY: all of them were written, and they are allocated to this caller only (RC1).
        Some(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), min) })
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let Ok(layout) = Layout::array::<T>(slab.len().max(1)) else { return };
        // SAFETY: `alloc_meta` allocated it for that layout, and the core has no other reference to it.
        unsafe { self.home().free_piece(NonNull::from(slab.take()).cast(), layout) };
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        match broken {
            Some(broken) => abort_with(format_args!("{what}: {broken}")),
            None => abort_with(what),
        }
    }
}

impl<O: Os> Machine for Host<O> {
    type Lock = Futex;
    type PurgeLock = Futex;
    type OwnerLock = Self::Lock;

    /// Returns 1: the space is called under one lock, and the caches in front of it are per CPU.
    fn cpus_possible(&self) -> u32 {
        1
    }

    fn cpus_online(&self) -> u32 {
        1
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let place = self.home().piece(Layout::new::<T>())?.cast::<T>();
        #[cfg(not(loom))]
        // SAFETY: a piece of that size and alignment, allocated to this caller only (RC1).
        unsafe {
            place.write(T::EMPTY);
        };
        #[cfg(loom)]
        // SAFETY: as before.
        unsafe {
            place.write(T::empty());
        };
        // SAFETY: written a moment ago; it is valid until `free_table`.
        Some(unsafe { place.as_ref() })
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        let place = with_exposed_provenance_mut::<u8>((&raw const **table).addr());
        let Some(place) = NonNull::new(place) else { return };
        // SAFETY: `alloc_table` allocated it for that layout, and the space keeps no reference to a table that it
        // frees.
        unsafe { self.home().free_piece(place, Layout::new::<T>()) };
    }

    /// Does nothing: the pages were released, and every CPU's TLB was flushed, before the range was freed to the space.
    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(self.home().epoch.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::shim::Shim;

    /// A value of all zeros.
    struct Zeros {
        _words: [AtomicU64; 100],
    }

    // SAFETY: numbers, for which zero is valid.
    unsafe impl Zeroed for Zeros {}

    #[test]
    fn rc1_pieces_are_apart_and_are_reused_after_a_free() {
        let shim = Shim::default();
        let host = Host::open(shim.clone()).unwrap();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        let mut add = |at: usize, bytes: usize| {
            assert!(seen.iter().all(|&(other, size)| at + bytes <= other || other + size <= at));
            seen.push((at, bytes));
        };
        for bytes in [1usize, 63, 64, 65, 4096, 100_000, 3_000_000, 1 << 20] {
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            let piece = host.home().piece(layout).unwrap();
            add(piece.addr().get(), bytes);
            assert!(piece.addr().get().is_multiple_of(bytes.next_power_of_two().clamp(64, 4096)));
            // SAFETY: allocated for this layout above.
            unsafe { host.home().free_piece(piece, layout) };
            assert_eq!(host.home().piece(layout), Some(piece));
        }
        let zeros = host.alloc_zeroed::<Zeros>(3).unwrap();
        add(zeros.as_ptr().addr(), size_of_val(zeros));
        // A chunk as large as all others together is not available, and a small one is.
        let (mapped, rest) = (host.mapped_bytes(), Layout::from_size_align(4096, 4096).unwrap());
        shim.fail_some(Call::Map, 0, 1);
        while host.mapped_bytes() == mapped {
            assert!(host.home().piece(rest).is_some());
        }
        assert_eq!(host.mapped_bytes(), mapped + CHUNK_FIRST);
        shim.fail(Call::Map, 0);
        let huge = Layout::from_size_align(1 << 30, 8).unwrap();
        assert_eq!(host.home().piece(huge), None);
        assert!(host.mapped_bytes() > 4 << 20);
        let before = shim.mapped();
        // SAFETY: no memory of this home is used from here on.
        unsafe { host.close() };
        assert_eq!((before > 0, shim.mapped()), (true, 0));
    }
}
