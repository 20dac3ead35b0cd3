//! Memory for requests while the next definitions are looked up.
//!
//! # Theory
//! A static block of memory with an end that only moves up. Each piece has its size before it, so that it can be
//! resized as any other memory. Nothing is freed: a process uses a few hundred bytes of it, if any.
//!
//! # Invariants
//! - **PB1 apart** pieces never overlap, are inside the arena, and are zeros when they are allocated.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The alignment of every allocation, and the bytes in front of it that hold its size.
pub(crate) const HEAD_BYTES: usize = 16;

/// The end of what was allocated: the machine's word, or one of a model.
pub(crate) trait End {
    /// Loads it.
    fn load(&self) -> usize;

    /// Moves it, if it is `from`. Returns where it is if it is not.
    fn replace(&self, from: usize, to: usize) -> Result<usize, usize>;
}

impl End for AtomicUsize {
    fn load(&self) -> usize {
        Self::load(self, Ordering::Relaxed)
    }

    fn replace(&self, from: usize, to: usize) -> Result<usize, usize> {
        self.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// Cuts `size` bytes at a multiple of `align` and the bytes in front of them from an arena of `bytes`. Returns where they
/// begin, or `None` if there is no room.
pub(crate) fn cut(end: &impl End, bytes: usize, size: usize, align: usize) -> Option<usize> {
    let mut used = end.load();
    loop {
        let at = used.checked_add(HEAD_BYTES)?.checked_next_multiple_of(align)?;
        let next =
            at.checked_add(size)?.checked_next_multiple_of(HEAD_BYTES).filter(|&next| next <= bytes)?;
        match end.replace(used, next) {
            Ok(_) => return Some(at),
            Err(moved) => used = moved,
        }
    }
}

/// A static block of memory from which pieces are cut.
#[repr(C, align(4096))]
pub(crate) struct Boot<const BYTES: usize> {
    memory: UnsafeCell<[u8; BYTES]>,
    /// Bytes that were allocated. Protocol PR-NUMBER.
    used: AtomicUsize,
}

// SAFETY: every piece is allocated once, to one caller; the atomic records the allocated bytes.
unsafe impl<const BYTES: usize> Sync for Boot<BYTES> {}

impl<const BYTES: usize> Boot<BYTES> {
    pub(crate) const fn new() -> Self {
        Self { memory: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) }
    }

    fn base(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// Allocates `size` zeros at a multiple of `align`, a power of two up to a page. Returns null if there is no room.
    /// Checks PB1.
    #[cold]
    pub(crate) fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        let align = align.max(HEAD_BYTES);
        if align > 4096 {
            return null_mut();
        }
        let Some(at) = cut(&self.used, BYTES, size, align) else { return null_mut() };
        // SAFETY: PB1: `at` and `HEAD_BYTES` before it are in the arena.
        let piece = unsafe { self.base().add(at) };
        // SAFETY: as above; aligned, since `at` and the arena are.
        let head = unsafe { piece.sub(HEAD_BYTES) };
        // SAFETY: these bytes are allocated to this caller only.
        unsafe { head.cast::<usize>().write(size) };
        piece
    }

    /// Returns true if an address is in the arena.
    #[inline(always)]
    pub(crate) fn contains(&self, address: *const u8) -> bool {
        address.addr().wrapping_sub(self.base().addr()) < BYTES
    }

    /// Returns the bytes of a piece.
    ///
    /// # Safety
    /// `piece` came from [`allocate`](Self::allocate).
    pub(crate) unsafe fn size_of_piece(&self, piece: *const u8) -> usize {
        // SAFETY: by this function's contract its size is before it.
        let head = unsafe { piece.sub(HEAD_BYTES) };
        // SAFETY: as before, and it is not written to after the allocation.
        unsafe { head.cast::<usize>().read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pb1_pieces_are_apart_aligned_zero_and_inside() {
        let boot = Box::new(Boot::<8192>::new());
        let (mut pieces, mut count) = (Vec::<(usize, usize)>::new(), 0usize);
        loop {
            let (size, align) = (1 + count * 37 % 300, 1 << (count % 9));
            let piece = boot.allocate(size, align);
            if piece.is_null() {
                break;
            }
            assert!(piece.addr().is_multiple_of(align.max(16)), "{piece:?} of alignment {align}");
            assert!(boot.contains(piece) && boot.contains(piece.wrapping_add(size - 1)));
            for at in 0..size {
                // SAFETY: a piece of that many bytes.
                let place = unsafe { piece.add(at) };
                // SAFETY: as before.
                let byte = unsafe { place.replace(0xa5) };
                assert_eq!(byte, 0);
            }
            // SAFETY: a piece of the arena.
            assert_eq!(unsafe { boot.size_of_piece(piece) }, size);
            pieces.push((piece.addr(), piece.addr() + size));
            count += 1;
        }
        assert!(count > 20, "{count}");
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|two| two[0].1 + HEAD_BYTES <= two[1].0));
        // A size that is too large changes nothing, and huge sizes cause no overflow.
        let used = boot.used.load(Ordering::Relaxed);
        for size in [8192, usize::MAX, usize::MAX - 15] {
            assert!(boot.allocate(size, 1).is_null());
        }
        assert!(boot.allocate(1, 1 << 20).is_null());
        assert_eq!(boot.used.load(Ordering::Relaxed), used);
    }

    #[test]
    fn what_is_outside_is_not_its() {
        let boot = Box::new(Boot::<8192>::new());
        let base = boot.base();
        assert!(boot.contains(base) && boot.contains(base.wrapping_add(8191)));
        assert!(!boot.contains(base.wrapping_sub(1)) && !boot.contains(base.wrapping_add(8192)));
        assert!(!boot.contains(core::ptr::null()));
    }
}
