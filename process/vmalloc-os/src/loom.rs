//! A model of the owner lock, small enough to try all interleavings with at most four preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-os --lib loom`.

use crate::owner_lock::OwnerLock;
use loom::thread;
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
            let shared = Arc::new((OwnerLock::new(), loom::cell::UnsafeCell::new(0)));
            if light {
                // From the second section on the owner has no fence of its own.
                shared.0.lock_as_owner();
                shared.0.end();
            }
            let theirs = shared.clone();
            let other = thread::spawn(move || {
                let taken = theirs.0.try_lock_as_other();
                if taken {
                    // The model detects two simultaneous accesses.
                    theirs.1.with_mut(|_| {});
                    theirs.0.end();
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
