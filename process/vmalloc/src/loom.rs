//! A model of the set of CPUs that a miss visits, small enough to try all interleavings with at most three preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc --lib loom`.

use crate::magazine::CpuSet;
use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;

/// A push and a drain of the magazine of CPU 0, with a number for what it has.
#[test]
fn loom_mz3_of_a_push_and_a_drain_the_drain_finds_the_item_or_the_cpu_is_in_the_set() {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(3));
    builder.check(|| {
        let shared = Arc::new((CpuSet::empty(), Mutex::new(1)));
        let (set, items) = &*shared;
        set.add(0);
        let (pusher, drainer) = (Arc::clone(&shared), Arc::clone(&shared));
        let push = thread::spawn(move || {
            let (set, items) = &*pusher;
            *items.lock().unwrap() += 1;
            set.add(0);
        });
        let drain = thread::spawn(move || {
            let (set, items) = &*drainer;
            set.remove(0);
            *items.lock().unwrap() = 0;
        });
        [push, drain].into_iter().for_each(|thread| thread.join().unwrap());
        assert!(*items.lock().unwrap() == 0 || set.has(0), "MZ3");
    });
}
