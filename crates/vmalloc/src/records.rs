//! Memory for the allocator's own records, mapped, never from the global allocator: which may be this one.
//!
//! # Theory
//! Chunks are mapped in sizes that double and handed out from the front; what comes back waits in a list of its size, a
//! power of two. All of it is unmapped when the allocator goes. The first chunk begins with [`Home`] itself, so that nothing
//! has to lie on a stack or in a static: whoever has a [`Host`] has all the rest.
//!
//! # Invariants
//! - **RC1 once** a piece is in at most one hand: out, in a list, or not yet handed out.
//!
//! # Locking
//! The lock of the chunks is the innermost of all; under it `mmap` may be called.

use crate::lock::{Fork, Futex, Mutex};
use crate::os::{Call, Errno, Os, Span, abort_with};
use core::alloc::Layout;
use core::fmt;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, InvariantViolation, Machine, Platform, Record, Table, VaRange};

/// Bytes of the first chunk; each next one is twice as large, up to the last size.
const CHUNK_FIRST: usize = 256 << 10;
const CHUNK_LAST: usize = 8 << 20;
/// Smallest piece, so that a list fits in what it lists.
const PIECE_MIN: usize = 64;
const CLASSES: usize = 48;

/// Defines an empty value, inside its `impl`: a constant, which is written to a place without a copy on the stack, or under loom, whose
/// atomics have none, a function.
macro_rules! empty_value {
    ($value:expr) => {
        #[cfg(not(loom))]
        #[expect(
            clippy::declare_interior_mutable_const,
            reason = "it is written to the place where it stays, once"
        )]
        pub(crate) const EMPTY: Self = $value;
        #[cfg(loom)]
        pub(crate) fn empty() -> Self {
            $value
        }
    };
}
pub(crate) use empty_value;

/// Writes an empty value of a type to a place.
macro_rules! write_empty {
    ($type:ty, $place:expr) => {{
        #[cfg(not(loom))]
        // SAFETY: the caller was allocated the place for it, and nobody else is given it.
        unsafe {
            $place.write(<$type>::EMPTY);
        };
        #[cfg(loom)]
        // SAFETY: as before.
        unsafe {
            $place.write(<$type>::empty());
        };
    }};
}
pub(crate) use write_empty;

/// The memory of all records of an allocator.
pub(crate) struct Home<O: Os> {
    // Constant after `new`.
    os: O,
    // Under its lock.
    chunks: Mutex<Chunks>,
    // Atomic, each alone.
    epoch: AtomicU64,
}

struct Chunks {
    /// The rest of the newest chunk.
    at: usize,
    end: usize,
    /// The newest chunk, whose header leads to the one before.
    newest: usize,
    mapped: usize,
    /// Pieces that came back, by size.
    back: [usize; CLASSES],
}

/// At the start of a chunk.
#[derive(Clone, Copy)]
struct Header {
    before: usize,
    bytes: usize,
}

/// The allocator's home, by its address. It must not be used once [`Host::close`] was called.
pub(crate) struct Host<O: Os>(NonNull<Home<O>>);

// SAFETY: a home is shared by its lock and its atomics, whoever knows where it is.
unsafe impl<O: Os> Send for Host<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Host<O> {}

impl<O: Os> Clone for Host<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Os> Copy for Host<O> {}

impl<O: Os> Host<O> {
    /// No home: for constants of what gets one before it is used. Nobody asks it for anything.
    pub(crate) const NOWHERE: Self = Self(NonNull::dangling());

    #[inline(always)]
    fn home(&self) -> &'static Home<O> {
        // SAFETY: written by `open`, and there until `close`, after which nobody uses a `Host`; `NOWHERE` is asked nothing.
        unsafe { self.0.as_ref() }
    }

    /// Opens a home on `os`.
    pub(crate) fn open(os: O) -> Result<Self, (Call, Errno)> {
        let start = os.map(CHUNK_FIRST).map_err(|error| (Call::Map, error))?;
        let mut chunks = Chunks { at: 0, end: 0, newest: 0, mapped: 0, back: [0; CLASSES] };
        chunks.adopt(start, CHUNK_FIRST);
        let home = Home { os, chunks: Mutex::new(chunks), epoch: AtomicU64::new(0) };
        // The first chunk is larger than that, so it has the piece.
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
    /// Nobody uses this home, or anything that it allocated, any more.
    pub(crate) unsafe fn close(self) {
        let mut chunk = self.home().chunks.lock().newest;
        // SAFETY: nobody else refers to it, and nobody will; the memory stays until below.
        let os = unsafe { (&raw const self.home().os).read() };
        while chunk != 0 {
            // SAFETY: a chunk begins with its header.
            let header = unsafe { with_exposed_provenance_mut::<Header>(chunk).read() };
            // SAFETY: mapped by `map`, and nobody refers to it any more.
            unsafe { os.unmap(Span { at: chunk, bytes: header.bytes }) };
            chunk = header.before;
        }
    }

    /// The system.
    #[inline(always)]
    pub(crate) fn os(&self) -> &'static O {
        &self.home().os
    }

    /// Bytes mapped for records.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.home().chunks.lock().mapped
    }

    /// Lends memory for `count` values that are all zero bytes.
    pub(crate) fn alloc_zeroed<T: Zeroed>(&self, count: usize) -> Option<&'static [T]> {
        let layout = Layout::array::<T>(count).ok()?;
        // Of its own mapping, whose pages come when they are touched, as zeros.
        let mut chunks = self.home().chunks.lock();
        let place = chunks.cut_fresh(&self.home().os, layout)?.cast::<T>();
        drop(chunks);
        // SAFETY: mapped memory that nobody used before is zeros, a value by `Zeroed`; nobody else is given it (RC1).
        Some(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }

    /// Lends a place for a value, until the home is closed. Nobody drops the value.
    pub(crate) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        Some(self.home().piece(Layout::new::<T>())?.cast())
    }

    /// Tells whether the calling thread has the lock of the chunks.
    pub(crate) fn is_mine(&self) -> bool {
        self.home().chunks.is_mine()
    }

    /// Takes the lock of the chunks for the time of a fork.
    pub(crate) fn hold(&self, interrupted: bool) {
        self.home().chunks.hold(interrupted);
    }

    /// Gives it back, in the parent and in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    pub(crate) unsafe fn release(&self) {
        // SAFETY: held, by this function's contract.
        unsafe { self.home().chunks.release() };
    }
}

/// A type of which all zero bytes are a value.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Zeroed: Send + Sync + 'static {}

impl<O: Os> Home<O> {
    /// Hands out a piece.
    fn piece(&self, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(layout)?;
        let mut chunks = self.chunks.lock();
        let listed = chunks.back[class];
        if let Some(first) = NonNull::new(with_exposed_provenance_mut::<usize>(listed)) {
            // SAFETY: a piece in a list begins with the address of the next (RC1).
            chunks.back[class] = unsafe { first.read() };
            return Some(first.cast());
        }
        // Aligned to what it may be used for when it comes back.
        let align = layout.align().max((1 << class).min(crate::PAGE_BYTES));
        chunks.cut_fresh(&self.os, Layout::from_size_align(1 << class, align).ok()?)
    }

    /// Takes a piece back.
    ///
    /// # Safety
    /// [`piece`](Self::piece) returned it for this layout, and nobody refers to it any more.
    unsafe fn free_piece(&self, piece: NonNull<u8>, layout: Layout) {
        let Some(class) = class_of(layout) else { return };
        let mut chunks = self.chunks.lock();
        debug_assert_ne!(chunks.back[class], piece.addr().get(), "RC1: a piece came back twice");
        // SAFETY: it has at least `PIECE_MIN` bytes and is aligned for them, and the caller gave it away.
        unsafe { piece.cast::<usize>().write(chunks.back[class]) };
        chunks.back[class] = piece.expose_provenance().get();
    }
}

/// The size of the piece for a layout, as a power of two.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(PIECE_MIN);
    Some(bytes.checked_next_power_of_two()?.trailing_zeros() as usize).filter(|&class| class < CLASSES)
}

impl Chunks {
    /// Makes a new mapping the chunk to cut from. What is left of the one before stays unused.
    fn adopt(&mut self, at: usize, bytes: usize) {
        let header = Header { before: self.newest, bytes };
        // SAFETY: a new mapping of more bytes than that, page-aligned.
        unsafe { with_exposed_provenance_mut::<Header>(at).write(header) };
        (self.newest, self.at, self.end) = (at, at + size_of::<Header>(), at + bytes);
        self.mapped += bytes;
    }

    /// Cuts a piece that nobody had before, all zeros.
    fn cut_fresh(&mut self, os: &impl Os, layout: Layout) -> Option<NonNull<u8>> {
        for _ in 0..2 {
            let at = self.at.checked_next_multiple_of(layout.align())?;
            if let Some(end) = at.checked_add(layout.size()).filter(|&end| end <= self.end) {
                self.at = end;
                return NonNull::new(with_exposed_provenance_mut(at));
            }
            let want = layout.size().checked_add(layout.align() + size_of::<Header>())?;
            let bytes = want.checked_next_power_of_two()?.max(self.mapped.clamp(CHUNK_FIRST, CHUNK_LAST));
            let new = os.map(bytes).ok()?;
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
            // SAFETY: aligned, and nobody else is given it (RC1).
            unsafe { slot.write(T::EMPTY) };
        }
        // SAFETY: all of them were written, and nobody else is given them (RC1).
        Some(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), min) })
    }

    fn free_meta<T: Record>(&self, slab: &'static mut [T]) {
        let Ok(layout) = Layout::array::<T>(slab.len().max(1)) else { return };
        // SAFETY: `alloc_meta` allocated it for that layout; the borrow that comes back was the only one.
        unsafe { self.home().free_piece(NonNull::from(slab).cast(), layout) };
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

    /// One: the space is called under one lock, and the CPUs are told apart in front of it.
    fn cpus_possible(&self) -> u32 {
        1
    }

    fn cpus_online(&self) -> u32 {
        1
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let place = self.home().piece(Layout::new::<T>())?.cast::<T>();
        // A piece of that size and alignment, which nobody else is given (RC1).
        write_empty!(T, place);
        // SAFETY: written a moment ago; it stays until it is taken back.
        Some(unsafe { place.as_ref() })
    }

    fn free_table<T: Table>(&self, table: &'static T) {
        let place = with_exposed_provenance_mut::<u8>((&raw const *table).addr());
        let Some(place) = NonNull::new(place) else { return };
        // SAFETY: `alloc_table` allocated it for that layout, and the space keeps no reference to what it gives back.
        unsafe { self.home().free_piece(place, Layout::new::<T>()) };
    }

    /// The pages went, and every CPU forgot them, before the range came to the space.
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

    #[test]
    fn rc1_pieces_are_apart_and_come_again_when_they_came_back() {
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
            // SAFETY: handed out for this layout a moment ago.
            unsafe { host.home().free_piece(piece, layout) };
            assert_eq!(host.home().piece(layout), Some(piece));
        }
        let zeros = host.alloc_zeroed::<crate::magazine::Magazine>(3).unwrap();
        add(zeros.as_ptr().addr(), size_of_val(zeros));
        shim.fail(Call::Map, 0);
        let huge = Layout::from_size_align(1 << 30, 8).unwrap();
        assert_eq!(host.home().piece(huge), None);
        assert!(host.mapped_bytes() > 4 << 20);
        let before = shim.mapped();
        // SAFETY: nothing that it allocated is used from here on.
        unsafe { host.close() };
        assert_eq!((before > 0, shim.mapped()), (true, 0));
    }
}
