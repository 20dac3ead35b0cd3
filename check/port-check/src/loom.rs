//! A model of the lock of a magazine in Linux, small enough to try all interleavings. Its own crate builds in a kernel
//! alone.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p port-check --lib loom`.

extern crate std;

#[path = "../../../adopt/linux/src/grant.rs"]
mod grant;

use core::cell::Cell;
use core::sync::atomic::Ordering;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::Arc;

/// The word of a lock.
struct Shared(AtomicU32);

/// The word, and how often the calling thread has turned preemption off.
struct Mine<'s>(&'s Shared, Cell<u32>);

impl grant::Word for Mine<'_> {
    fn load(&self) -> u32 {
        self.0.0.load(Ordering::Relaxed)
    }

    fn store_free(&self, order: Ordering) {
        self.0.0.store(0, order);
    }

    fn replace_free(&self, by: u32, success: Ordering) -> bool {
        self.0.0.compare_exchange(0, by, success, Ordering::Relaxed).is_ok()
    }

    fn pause(&self) {
        thread::yield_now();
    }

    fn preempt_off(&self) {
        self.1.set(self.1.get() + 1);
    }

    fn preempt_on(&self) {
        self.1.set(self.1.get() - 1);
    }
}

/// The owner of a magazine takes its lock twice, and two other threads try it. The model detects two holders at once, and
/// a holder that does not see what the last one did.
#[test]
fn loom_a_magazine_has_one_holder_whom_nothing_preempts() {
    loom::model(|| {
        let shared = Arc::new((Shared(AtomicU32::new(0)), UnsafeCell::new(())));
        let others = [(); 2].map(|()| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || {
                let word = Mine(&theirs.0, Cell::new(0));
                if grant::try_lock(&word) {
                    assert_eq!(word.1.get(), 1, "the owner waits for a thread that may be preempted");
                    theirs.1.with_mut(|_| {});
                    grant::unlock(&word);
                }
                assert_eq!(word.1.get(), 0, "the thread is preemptible again");
            })
        });
        let word = Mine(&shared.0, Cell::new(1));
        for _ in 0..2 {
            grant::lock(&word);
            shared.1.with_mut(|_| {});
            grant::unlock(&word);
            assert_eq!(word.1.get(), 1, "the owner's own");
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(grant::try_lock(&word), "it is free at the end");
    });
}
