//! A model of the memory of the start, small enough to try all interleavings.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-preload --lib loom`.

use crate::boot::{End, HEAD_BYTES, cut};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::array;
use std::sync::Arc;

/// The word of a model.
struct Shared(AtomicUsize);

impl End for Shared {
    fn load(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn replace(&self, from: usize, to: usize) -> Result<usize, usize> {
        self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// Units of 16 bytes: room for the heads and pieces of three requests in any order, and for no more.
const UNITS: usize = 8;

/// Three threads ask for pieces, and each writes to all bytes of its own.
#[test]
fn loom_pb1_pieces_of_threads_are_apart_and_all_have_room() {
    loom::model(|| {
        // The model detects two threads that have a unit.
        let units: [UnsafeCell<()>; UNITS] = array::from_fn(|_| UnsafeCell::new(()));
        let shared = Arc::new((Shared(AtomicUsize::new(0)), units));
        let piece = |(end, units): &(Shared, [UnsafeCell<()>; UNITS]), size: usize, align: usize| {
            let at = cut(end, UNITS * HEAD_BYTES, size, align)?;
            assert!(at.is_multiple_of(align), "{at}");
            let (first, last) = (at / HEAD_BYTES - 1, (at + size - 1) / HEAD_BYTES);
            units[first..=last].iter().for_each(|unit| unit.with_mut(|_| {}));
            Some(at)
        };
        let others = [(16, 16), (1, 32)].map(|(size, align)| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || piece(&theirs, size, align))
        });
        assert!(piece(&shared, 17, 16).is_some(), "there is room");
        for other in others {
            assert!(other.join().unwrap().is_some(), "there is room");
        }
        assert_eq!(piece(&shared, 1, 16), None, "there is no room");
    });
}
