//! Models of counters and reference counts, small enough to try all interleavings with at most three preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-percpu --lib loom`. To other threads of its unit a
//! section is atomic. So each unit has a lock in the model, and taking each of the locks once waits for the end of all
//! sections.

use crate::counter::{Counter, Deltas};
use crate::locks::Lock;
use crate::reference::{Counted, RefMode, Units};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;
use vmalloc_os::lock::Futex;

loom::thread_local! {
    static UNIT: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

/// The units of a model. Sections of one unit exclude each other; a reader outside of sections takes no lock.
struct Model(Vec<(Mutex<()>, AtomicI64)>);

impl Model {
    fn new(units: usize) -> Self {
        Self((0..units).map(|_| (Mutex::new(()), AtomicI64::new(0))).collect())
    }

    fn on<R>(&self, unit: usize, section: impl FnOnce(&mut i64) -> R) -> R {
        let (lock, word) = &self.0[unit % self.0.len()];
        let _alone = lock.lock().unwrap();
        // Load and store are separate, as in a section.
        let before = word.load(Ordering::Relaxed);
        let mut value = before;
        let result = section(&mut value);
        // A section that leaves the value as it was stores nothing.
        if value != before {
            word.store(value, Ordering::Relaxed);
        }
        result
    }

    fn here<R>(&self, section: impl FnOnce(&mut i64) -> R) -> R {
        self.on(UNIT.with(|unit| unit.get()), section)
    }
}

impl Deltas for Model {
    fn add_within(&self, amount: i64, batch: i64) -> bool {
        self.here(|delta| {
            let within = (*delta + amount).abs() < batch;
            *delta += if within { amount } else { 0 };
            within
        })
    }

    fn take(&self) -> i64 {
        self.here(core::mem::take)
    }

    fn sum(&self) -> i64 {
        self.0.iter().map(|(_, word)| word.load(Ordering::Relaxed)).sum()
    }

    fn units(&self) -> i64 {
        self.0.len() as i64
    }
}

impl Units for Model {
    fn add(&self, amount: i64, gate: &AtomicU64) -> bool {
        let (lock, word) = &self.0[UNIT.with(|unit| unit.get()) % self.0.len()];
        let _alone = lock.lock().unwrap();
        // The gate first, then the word, as in the section; a CPU with ordered loads performs them in this order.
        let open = gate.load(Ordering::SeqCst) == 0;
        if open {
            word.store(word.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        }
        open
    }

    fn end_adds(&self) -> bool {
        (0..self.0.len()).for_each(|unit| self.on(unit, |_| {}));
        true
    }

    fn take_all(&self) -> i64 {
        self.0.iter().map(|(_, word)| word.swap(0, Ordering::Relaxed)).sum()
    }
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(3));
    builder.check(test);
}

/// Runs `work` in two threads, on units 0 and 1.
fn two(work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads: Vec<_> = [0, 1]
        .into_iter()
        .map(|unit| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                UNIT.with(|here| here.set(unit));
                work(unit);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A lock of one counter.
struct Own(va_base::sync::Mutex<Futex, ()>);

impl Lock for Own {
    fn hold(&self) -> impl Sized {
        self.0.lock()
    }
}

fn own() -> Own {
    Own(va_base::sync::Mutex::new(()))
}

type Count = Counter<Model, Own>;
type Ref = Counted<Model, Own>;

#[test]
fn loom_pk1_what_is_added_while_others_fold_and_sum_is_there_in_the_end() {
    model(|| {
        let counter = Arc::new(Count::new(Model::new(2), 0, own()));
        let shared = Arc::clone(&counter);
        two(move |unit| {
            shared.add(1, 2);
            shared.add(1, 2);
            if unit == 1 {
                let seen = shared.sum();
                assert!((2..=4).contains(&seen), "PK1: {seen}");
            } else {
                shared.sync();
            }
        });
        assert_eq!(counter.sum(), 4, "PK1");
    });
}

#[test]
fn loom_pk1_two_threads_of_one_unit_lose_nothing() {
    model(|| {
        let counter = Arc::new(Count::new(Model::new(1), 0, own()));
        let shared = Arc::clone(&counter);
        two(move |unit| {
            shared.add(1, 2);
            shared.add(if unit == 0 { 1 } else { -1 }, 2);
        });
        assert_eq!(counter.sum(), 2, "PK1");
    });
}

#[test]
fn loom_pk2_two_threads_near_the_limit_do_not_exceed_it() {
    model(|| {
        let counter = Arc::new(Count::new(Model::new(2), 0, own()));
        let granted = Arc::new(AtomicUsize::new(0));
        let (shared, count) = (Arc::clone(&counter), Arc::clone(&granted));
        two(move |_| {
            if shared.limited_add(5, 3, 4) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!((counter.sum(), granted.load(Ordering::SeqCst)), (3, 1), "PK2");
    });
}

#[test]
fn loom_rf2_the_last_put_releases_once_whichever_thread_kills() {
    model(|| {
        let count = Arc::new(Ref::new(Model::new(2), RefMode::PerCpu, own()));
        let released = Arc::new(AtomicUsize::new(0));
        let (shared, times) = (Arc::clone(&count), Arc::clone(&released));
        two(move |unit| {
            let last = if unit == 0 {
                shared.kill(|| {}).unwrap()
            } else {
                shared.try_get_live() && {
                    assert_eq!(times.load(Ordering::SeqCst), 0, "RF2: released under a reference");
                    shared.put(1)
                }
            };
            if last {
                times.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(released.load(Ordering::SeqCst), 1, "RF2");
        assert!(count.is_zero() && count.is_dying());
    });
}

#[test]
fn loom_rf1_a_reference_got_before_and_put_during_the_switch_is_counted() {
    model(|| {
        let count = Arc::new(Ref::new(Model::new(2), RefMode::PerCpu, own()));
        // Got on unit 0, put on unit 1.
        count.get(1);
        let shared = Arc::clone(&count);
        two(move |unit| {
            if unit == 0 {
                shared.switch_to_atomic().unwrap();
                shared.switch_to_percpu(true);
            } else {
                assert!(!shared.put(1), "RF2: the first reference is there");
                assert!(shared.try_get(1));
            }
        });
        count.switch_to_atomic().unwrap();
        assert_eq!(count.count(), 2, "RF1");
    });
}

#[test]
fn loom_rf1_one_of_two_kills_succeeds_and_revives() {
    model(|| {
        let count = Arc::new(Ref::new(Model::new(2), RefMode::PerCpu, own()));
        let releases = Arc::new(AtomicUsize::new(0));
        let (shared, times) = (Arc::clone(&count), Arc::clone(&releases));
        two(move |_| {
            if shared.kill(|| {}) == Ok(true) {
                times.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(releases.load(Ordering::SeqCst), 1, "RF2");
        count.resurrect(true, true).unwrap();
        assert!(count.is_percpu() && count.try_get_live() && !count.put(1));
    });
}
