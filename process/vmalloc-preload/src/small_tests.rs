//! The functions of `malloc`, called by their Rust paths with few and small areas, and by threads: for Miri, which runs no
//! program of C. The tests of `tests/preload.rs` are programs that load the library.

use crate::abi::{
    aligned_alloc, calloc, free, free_aligned_sized, free_sized, internal, malloc, malloc_trim,
    malloc_usable_size, memalign, posix_memalign, pvalloc, realloc, reallocarray, valloc,
};
use crate::conf::Conf;
use crate::large;
use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

const PAGE: usize = 4096;
/// The least large size of these tests.
const LARGE: usize = 2 * PAGE;
const ROUNDS: usize = if cfg!(miri) { 2 } else { 200 };

/// Does what the constructor does, once for all tests.
fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        large::configure(&Conf { threshold_bytes: LARGE, decay: None, ..Conf::DEFAULT });
        large::begin();
        // While one thread creates the allocator, others are served by the next `malloc`.
        assert!(large::allocator().is_some());
    });
}

/// Memory whose first and last bytes have a value.
struct Piece {
    at: *mut c_void,
    bytes: usize,
    value: u8,
}

// SAFETY: its owner is the only one who uses it.
unsafe impl Send for Piece {}

impl Piece {
    fn new(at: *mut c_void, bytes: usize, value: u8) -> Self {
        assert!(!at.is_null() && at.addr().is_multiple_of(16));
        // LP1: the arena has the large ones alone.
        assert_eq!(large::owner(at.cast()).is_some(), bytes >= LARGE, "{bytes}");
        let piece = Self { at, bytes, value };
        for end in piece.ends() {
            // SAFETY: in the memory that this value owns.
            unsafe { end.write(value) };
        }
        piece
    }

    fn ends(&self) -> [*mut u8; 2] {
        [self.at.cast(), self.at.cast::<u8>().wrapping_add(self.bytes - 1)]
    }

    fn check(&self) {
        for end in self.ends() {
            // SAFETY: as before.
            assert_eq!(unsafe { end.read() }, self.value);
        }
        // SAFETY: as before.
        assert!(unsafe { malloc_usable_size(self.at) } >= self.bytes);
    }

    /// Resizes it. It moves between the arena and the next `malloc` at a threshold, so a smaller size may stay large.
    fn resize(self, bytes: usize) -> *mut c_void {
        self.check();
        // SAFETY: as before.
        let at = unsafe { realloc(self.at, bytes) };
        // SAFETY: the memory of the same value.
        assert_eq!(unsafe { at.cast::<u8>().read() }, self.value);
        at
    }

    fn free(self) {
        self.check();
        // SAFETY: as before, and no reference to it remains.
        unsafe { free(self.at) };
    }
}

/// Allocates by each function, small and large.
fn each_function(value: u8) {
    for bytes in [24, LARGE, LARGE + 100] {
        let mut to = null_mut();
        // SAFETY: writes to `to`.
        assert_eq!(unsafe { posix_memalign(&raw mut to, 64, bytes) }, 0);
        let all = [
            malloc(bytes),
            calloc(bytes / 4, 4),
            to,
            aligned_alloc(PAGE, bytes),
            memalign(64, bytes),
            internal::__libc_malloc(bytes),
            // SAFETY: null is allowed.
            unsafe { realloc(null_mut(), bytes) },
            // SAFETY: null is allowed.
            unsafe { reallocarray(null_mut(), bytes / 4, 4) },
        ];
        // SAFETY: zeros, of that many bytes.
        assert_eq!(unsafe { all[1].cast::<u8>().wrapping_add(bytes / 4 * 4 - 1).read() }, 0);
        assert!(all[3].addr().is_multiple_of(PAGE));
        let pieces = all.map(|at| Piece::new(at, bytes / 4 * 4, value));
        pieces.into_iter().for_each(Piece::free);
    }
    // Of the next `malloc` under Miri there are no others.
    for at in [valloc(LARGE), pvalloc(LARGE - 1)] {
        assert!(at.addr().is_multiple_of(PAGE));
        Piece::new(at, LARGE, value).free();
    }
    let large = malloc(LARGE);
    // SAFETY: our own memory, which is not used any more.
    unsafe { free_sized(large, LARGE) };
    let aligned = aligned_alloc(64, LARGE);
    // SAFETY: as before.
    unsafe { free_aligned_sized(aligned, 64, LARGE) };
    // SAFETY: null is allowed.
    unsafe { free(null_mut()) };
}

#[test]
fn lp1_each_function_serves_small_and_large_sizes_and_threads_free_the_pieces_of_others() {
    begin();
    each_function(1);
    let shared = AtomicPtr::<Piece>::default();
    let put = |piece: Option<Piece>| {
        let new = piece.map_or(null_mut(), |piece| Box::into_raw(Box::new(piece)));
        let old = shared.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: a box that was put there once, and is taken once.
            unsafe { Box::from_raw(old) }.free();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let put = &put;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = [LARGE, 40, 3 * LARGE][(round + usize::from(thread)) % 3];
                    put(Some(Piece::new(malloc(bytes), bytes, thread + 1)));
                    each_function(thread + 5);
                }
            });
        }
    });
    put(None);
    assert!(malloc_trim(0) == 1 || !cfg!(miri));
}

#[test]
fn lp1_a_piece_that_is_resized_moves_between_the_allocators_with_its_contents() {
    begin();
    // The next one's, ours, larger, at the place that is left at half of the threshold, and the next one's again.
    let at = Piece::new(malloc(100), 100, 9).resize(LARGE);
    let at = Piece::new(at, LARGE, 8).resize(9 * LARGE);
    let at = Piece::new(at, 9 * LARGE, 7).resize(LARGE - 100);
    assert!(large::owner(at.cast()).is_some());
    // SAFETY: our own memory.
    let at = unsafe { realloc(at, 50) };
    let at = Piece::new(at, 50, 6).resize(60);
    // SAFETY: our own memory; a size of 0 frees it.
    assert!(unsafe { realloc(at, 0) }.is_null());
    let large = malloc(LARGE);
    // SAFETY: as before.
    assert!(unsafe { realloc(large, 0) }.is_null());
    // SAFETY: null is allowed, and the product overflows.
    assert!(unsafe { reallocarray(null_mut(), usize::MAX, 2) }.is_null());
    assert!(calloc(usize::MAX, 2).is_null() && malloc(usize::MAX).is_null());
}
