//! Models of what magazines share, of frontiers, of the time, of the thread that releases memory, and of the list of
//! texts. They are small enough to try all interleavings with at most three preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc --lib loom`.

use crate::frontier::{Frontier, Number};
use crate::heap::{Time, Worker};
use crate::magazine::{Big, CpuSet, Front};
use crate::tagged::Texts;
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(3));
    builder.check(test);
}

/// A push and a drain of the magazine of CPU 0, with a number for what it has.
#[test]
fn loom_mz3_of_a_push_and_a_drain_the_drain_finds_the_item_or_the_cpu_is_in_the_set() {
    model(|| {
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

/// An area that one thread puts after it wrote to it, and two others take.
#[test]
fn loom_ar2_one_of_two_threads_takes_what_a_third_put_and_sees_its_writes() {
    model(|| {
        // The model detects two simultaneous accesses to the area.
        let shared = Arc::new((Front::empty(), UnsafeCell::new(())));
        let mut others = Vec::new();
        for any in [false, true] {
            let theirs = Arc::clone(&shared);
            others.push(thread::spawn(move || {
                let found = theirs.0.get();
                let taken = if any { theirs.0.take_any() == 7 } else { found == 7 && theirs.0.take(found) };
                if taken {
                    theirs.1.with_mut(|_| {});
                }
                taken
            }));
        }
        shared.1.with_mut(|_| {});
        assert!(shared.0.put(7), "it was empty");
        let taken = others.into_iter().map(|other| other.join().unwrap()).filter(|&taken| taken).count();
        assert_eq!(taken + usize::from(shared.0.take(7)), 1, "AR2");
    });
}

#[test]
fn loom_mz1_two_threads_together_stay_within_a_budget() {
    model(|| {
        let budget = Arc::new(Big::new(3, 0));
        let theirs = Arc::clone(&budget);
        let other = thread::spawn(move || theirs.enter(2));
        let mine = budget.enter(2);
        let theirs = other.join().unwrap();
        assert!(!(mine && theirs), "MZ1");
        assert_eq!(budget.pages(), 2 * u64::from(mine || theirs));
    });
}

#[test]
fn loom_tg1_a_number_of_a_text_leads_to_the_whole_text() {
    model(|| {
        let texts = Arc::new(Texts::empty());
        let theirs = Arc::clone(&texts);
        let other = thread::spawn(move || theirs.number("two words"));
        let mine = texts.number("a word");
        // A slot that another thread has taken has no text, or all of it.
        let seen = texts.get(1 - mine);
        assert!(seen.is_none() || seen == Some("two words"), "TG1: {seen:?}");
        let theirs = other.join().unwrap();
        assert_eq!((texts.get(mine), texts.get(theirs)), (Some("a word"), Some("two words")), "TG1");
    });
}

#[test]
fn one_of_two_threads_ends_a_turn() {
    model(|| {
        let time = Arc::new(Time::new(Some(Duration::from_secs(16))));
        // The first reading of the clock begins the first turn.
        assert_eq!(time.turns_over(1), 0);
        let theirs = Arc::clone(&time);
        let other = thread::spawn(move || theirs.turns_over(1_500_000_000));
        let mine = time.turns_over(1_500_000_000);
        assert_eq!(mine + other.join().unwrap(), 1);
    });
}

/// A thread that caches something and wakes the thread that releases it, which is about to sleep since nothing is
/// cached. What is cached is a number.
#[test]
fn loom_wk1_the_thread_does_not_sleep_while_something_is_cached() {
    model(|| {
        let shared = Arc::new((Worker::awake(), Mutex::new(0)));
        let (worker, theirs) = (Arc::clone(&shared), Arc::clone(&shared));
        let releases = thread::spawn(move || {
            let (worker, cached) = &*worker;
            worker.sleep_unless(|| *cached.lock().unwrap() > 0);
        });
        let frees = thread::spawn(move || {
            let (worker, cached) = &*theirs;
            *cached.lock().unwrap() += 1;
            worker.wake();
        });
        [releases, frees].into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!shared.0.is_asleep(), "WK1");
    });
}

impl Number for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

/// A thread makes three pages accessible in two steps. To make a page accessible is a write to it. Another thread
/// accesses each page that it finds below the frontier.
#[test]
fn loom_ar1_pages_below_the_frontier_are_accessible() {
    model(|| {
        let pages = [UnsafeCell::new(()), UnsafeCell::new(()), UnsafeCell::new(())];
        let shared = Arc::new((Frontier::at(AtomicU64::new(0)), pages));
        let theirs = Arc::clone(&shared);
        let opens = thread::spawn(move || {
            let (frontier, pages) = &*theirs;
            for (have, want) in [(0, 1), (1, 3)] {
                let open = || {
                    // The model detects an access at the same time, or one that this does not happen before.
                    pages[have..want].iter().for_each(|page| page.with_mut(|_| {}));
                    Ok::<_, ()>(())
                };
                frontier.advance(want as u64, open).unwrap();
            }
            // A step that fails moves nothing.
            assert!(frontier.advance(4, || Err(())).is_err());
        });
        let (frontier, pages) = &*shared;
        for _ in 0..2 {
            pages[..frontier.pages() as usize].iter().for_each(|page| page.with(|_| {}));
        }
        opens.join().unwrap();
        assert_eq!(frontier.pages(), 3, "AR1");
    });
}
