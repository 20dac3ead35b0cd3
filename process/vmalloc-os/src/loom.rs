//! Models of the owner lock and of a pointer that is published, small enough to try all interleavings with at most four
//! preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-os --lib loom`.

use crate::owner_lock::OwnerLock;
use crate::published::{Pointer, Published};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, Ordering};
use loom::thread;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(4));
    builder.check(test);
}

/// The owner's barrier is the other thread's `membarrier` (`owner_lock::light_fence`); without it both threads can be
/// in their sections at once.
#[test]
fn an_owner_lock_excludes_its_owner_and_another_thread() {
    for light in [false, true] {
        model(move || {
            let shared = Arc::new((OwnerLock::new(), UnsafeCell::new(0)));
            if light {
                // From the second section on the owner has no fence of its own.
                shared.0.lock_as_owner();
                shared.0.end();
            }
            let theirs = shared.clone();
            let other = thread::spawn(move || {
                // Twice: an owner that waited for the first section may meet the second.
                for _ in 0..2 {
                    if theirs.0.try_lock_as_other() {
                        // The model detects two simultaneous accesses.
                        theirs.1.with_mut(|_| {});
                        theirs.0.end();
                    }
                }
            });
            for _ in 0..2 {
                shared.0.lock_as_owner();
                shared.1.with_mut(|_| {});
                shared.0.end();
            }
            other.join().unwrap();
            assert!(shared.0.try_lock_as_other(), "it is free at the end");
        });
    }
}

impl Pointer<usize> for AtomicPtr<usize> {
    fn load(&self, order: Ordering) -> *mut usize {
        Self::load(self, order)
    }

    fn replace_null(&self, new: *mut usize, success: Ordering, failure: Ordering) -> Result<(), *mut usize> {
        self.compare_exchange(null_mut(), new, success, failure).map(|_null| ())
    }
}

/// Two threads make a value each, and a third uses the one that is published. The model detects a use that its making
/// does not happen before.
#[test]
fn loom_of_two_values_one_is_published_and_used_by_all() {
    /// Pointers to these stand for the values.
    static PLACES: [usize; 2] = [0, 1];
    model(|| {
        let values = [UnsafeCell::new(()), UnsafeCell::new(())];
        let shared = Arc::new((Published::at(AtomicPtr::new(null_mut())), values));
        let number_of = |place: NonNull<usize>| usize::from(place == NonNull::from(&PLACES[1]));
        let makers = [0, 1].map(|mine| {
            let theirs = shared.clone();
            thread::spawn(move || {
                let (published, values) = &*theirs;
                values[mine].with_mut(|_| {});
                let place = NonNull::from(&PLACES[mine]);
                let used = published.publish(place).map_or_else(number_of, |()| mine);
                values[used].with(|_| {});
                used
            })
        });
        if let Some(place) = shared.0.get() {
            shared.1[number_of(place)].with(|_| {});
        }
        let used = makers.map(|maker| maker.join().unwrap());
        assert_eq!(used[0], used[1]);
        assert_eq!(shared.0.get().map(number_of), Some(used[0]));
    });
}
