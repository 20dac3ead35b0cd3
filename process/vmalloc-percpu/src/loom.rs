//! Models of counters, of reference counts and of the units that were used, small enough to try all interleavings with at
//! most three preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-percpu --lib loom`. To other threads of its unit a
//! section is atomic. So each unit has a lock in the model, and taking each of the locks once waits for the end of all
//! sections.

use crate::Error;
use crate::counter::{At, Counter, Deltas, Home};
use crate::hot::Hot;
use crate::locks::Lock;
use crate::options::Index;
use crate::reference::{Counted, RefMode, Units};
use loom::cell::UnsafeCell;
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

/// The batch of counters of a model.
const BATCH: i64 = 2;
/// The contents of deltas that are not allocated.
const GARBAGE: i64 = 1 << 40;

/// Deltas of a counter, with the lock of its space.
struct Folded<'h>(&'h Model, &'h Own);

impl Deltas for Folded<'_> {
    fn add_within(&self, amount: i64, batch: i64) -> bool {
        self.0.here(|delta| {
            let within = (*delta + amount).abs() < batch;
            *delta += if within { amount } else { 0 };
            within
        })
    }

    fn take(&self) -> i64 {
        self.0.here(core::mem::take)
    }

    fn sum(&self) -> i64 {
        self.0.0.iter().map(|(_, word)| word.load(Ordering::Relaxed)).sum()
    }

    fn units(&self) -> i64 {
        self.0.0.len() as i64
    }

    fn batch(&self) -> i64 {
        BATCH
    }

    fn hold(&self) -> impl Sized {
        self.1.hold()
    }
}

/// A space with deltas for so many promotions, each in use once. Of deltas that are freed nothing may be used.
struct Spare {
    sets: Vec<Model>,
    allocated: AtomicUsize,
    freed: AtomicUsize,
    lock: Own,
}

impl Spare {
    fn new(units: usize, sets: usize) -> Self {
        let garbage = || Model((0..units).map(|_| (Mutex::new(()), AtomicI64::new(GARBAGE))).collect());
        Self {
            sets: (0..sets).map(|_| garbage()).collect(),
            allocated: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            lock: own(),
        }
    }
}

impl Home for Arc<Spare> {
    type Deltas<'h> = Folded<'h>;

    fn alloc(&self, space: At) -> Result<At, Error> {
        assert_eq!(space.0, 4, "the address of the space");
        let set = self.allocated.fetch_add(1, Ordering::Relaxed);
        let words = self.sets.get(set).ok_or(Error::NoRecords)?;
        // No section runs on them yet.
        words.0.iter().for_each(|(_, word)| word.store(0, Ordering::Relaxed));
        Ok(At(8 * (set + 1)))
    }

    fn free(&self, deltas: At) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        self.sets[deltas.0 / 8 - 1].0.iter().for_each(|(_, word)| word.store(GARBAGE, Ordering::Relaxed));
    }

    fn deltas(&self, at: At) -> Folded<'_> {
        Folded(&self.sets[at.0 / 8 - 1], &self.lock)
    }
}

/// Returns a counter in one word, in a space that has memory for so many promotions.
fn in_word(units: usize, sets: usize, count: i64) -> (Count, Arc<Spare>) {
    let spare = Arc::new(Spare::new(units, sets));
    (Counter::new(Arc::clone(&spare), At(4), count), spare)
}

/// Returns a promoted counter.
fn promoted(units: usize) -> Count {
    let (counter, _) = in_word(units, 1, 0);
    counter.promote().unwrap();
    counter
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
fn two(work: impl Fn(usize) + 'static) {
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

type Count = Counter<Arc<Spare>>;
type Ref = Counted<Model, Own>;

#[test]
fn loom_pk1_what_is_added_while_others_fold_and_sum_is_there_in_the_end() {
    model(|| {
        let counter = Arc::new(promoted(2));
        let shared = Arc::clone(&counter);
        two(move |unit| {
            shared.add(1, None);
            shared.add(1, None);
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
        let counter = Arc::new(promoted(1));
        let shared = Arc::clone(&counter);
        two(move |unit| {
            shared.add(1, None);
            shared.add(if unit == 0 { 1 } else { -1 }, None);
        });
        assert_eq!(counter.sum(), 2, "PK1");
    });
}

#[test]
fn loom_pk1_additions_beside_a_promotion_are_in_every_later_sum() {
    model(|| {
        let (counter, _) = in_word(2, 2, 5);
        let counter = Arc::new(counter);
        let shared = Arc::clone(&counter);
        two(move |unit| {
            shared.add(1, None);
            // Its own addition is in the sum, and at most those of the other thread.
            let seen = shared.sum();
            assert!((6..=7 + unit as i64).contains(&seen), "PK1: {seen}");
            if unit == 0 {
                shared.promote().unwrap();
                shared.add(1, None);
                shared.sync();
            }
        });
        assert!(counter.is_percpu());
        assert_eq!(counter.sum(), 8, "PK1");
    });
}

#[test]
fn loom_pk3_of_two_promotions_one_is_published_and_its_deltas_are_seen_as_zeros() {
    model(|| {
        let (counter, spare) = in_word(2, 2, 0);
        let counter = Arc::new(counter);
        let shared = Arc::clone(&counter);
        two(move |_| {
            shared.promote().unwrap();
            shared.add(1, None);
        });
        let (allocated, freed) =
            (spare.allocated.load(Ordering::Relaxed), spare.freed.load(Ordering::Relaxed));
        assert_eq!(allocated - freed, 1, "PK3");
        assert_eq!(counter.sum(), 2, "PK1");
    });
}

/// Checks what promotes a counter: an addition of another thread between a load and an exchange, and nothing else.
#[test]
fn loom_pk1_contention_promotes_and_turns_do_not() {
    use std::sync::atomic::AtomicUsize as Count;
    let (promoted, in_a_word) = (Arc::new(Count::new(0)), Arc::new(Count::new(0)));
    let seen = (Arc::clone(&promoted), Arc::clone(&in_a_word));
    model(move || {
        let (counter, spare) = in_word(2, 2, 0);
        let counter = Arc::new(counter);
        let shared = Arc::clone(&counter);
        two(move |_| shared.add(1, None));
        assert_eq!(counter.sum(), 2, "PK1");
        assert_eq!(spare.allocated.load(Ordering::Relaxed) > 0, counter.is_percpu());
        let of = if counter.is_percpu() { &seen.0 } else { &seen.1 };
        of.fetch_add(1, Ordering::Relaxed);
    });
    let found = (promoted.load(Ordering::Relaxed), in_a_word.load(Ordering::Relaxed));
    assert!(found.0 > 0 && found.1 > 0, "{found:?}");
}

#[test]
fn loom_pk1_contention_without_memory_leaves_one_word() {
    model(|| {
        let (counter, spare) = in_word(2, 0, 0);
        let counter = Arc::new(counter);
        let shared = Arc::clone(&counter);
        two(move |_| {
            shared.add(1, None);
            shared.add_local(1);
            shared.add(1, None);
        });
        assert!(!counter.is_percpu());
        assert_eq!((counter.read(), counter.sum()), (6, 6), "PK1");
        // A failure is noted, so that contention does not request memory again and again.
        assert!(spare.allocated.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn loom_pk2_two_threads_near_the_limit_do_not_exceed_it() {
    model(|| {
        let counter = Arc::new(promoted(2));
        let granted = Arc::new(AtomicUsize::new(0));
        let (shared, count) = (Arc::clone(&counter), Arc::clone(&granted));
        two(move |_| {
            if shared.limited_add(5, 3) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!((counter.sum(), granted.load(Ordering::SeqCst)), (3, 1), "PK2");
    });
}

#[test]
fn loom_pk2_a_limit_holds_while_one_thread_sees_a_word_and_the_other_deltas() {
    model(|| {
        let (counter, _) = in_word(2, 2, 0);
        let counter = Arc::new(counter);
        let granted = Arc::new(AtomicUsize::new(0));
        let (shared, count) = (Arc::clone(&counter), Arc::clone(&granted));
        two(move |unit| {
            if unit == 0 {
                shared.promote().unwrap();
            }
            if shared.limited_add(5, 3) {
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
        // What is released: the model detects a release that a use does not happen before.
        let released = Arc::new((UnsafeCell::new(()), AtomicUsize::new(0)));
        let (shared, what) = (Arc::clone(&count), Arc::clone(&released));
        two(move |unit| {
            let last = if unit == 1 {
                shared.kill(|| {}).unwrap()
            } else {
                shared.try_get_live() && {
                    assert_eq!(what.1.load(Ordering::Relaxed), 0, "RF2: released under a reference");
                    what.0.with(|_| {});
                    shared.put(1)
                }
            };
            if last {
                what.0.with_mut(|_| {});
                what.1.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(released.1.load(Ordering::Relaxed), 1, "RF2");
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

/// Threads use an object in units that no thread used before, one of them in the strangers'. The thread that allocates
/// the memory for the next object zeroes the units that it finds used.
#[test]
fn loom_pp1_an_object_is_zeros_in_each_unit_that_threads_used_at_once() {
    model(|| {
        let copies = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        // The lock of the space, with the number of uses that have ended.
        let shared = Arc::new((Hot::new(None, Index::Cpu, 2), copies, Mutex::new(0)));
        let use_unit = |shared: &(Hot, [AtomicU64; 3], Mutex<u32>), unit: u32| {
            shared.0.touch(unit);
            shared.1[unit as usize].fetch_add(1, Ordering::Relaxed);
            *shared.2.lock().unwrap() += 1;
        };
        let others = [1, 2].map(|unit| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || use_unit(&theirs, unit))
        });
        use_unit(&shared, 0);
        let (hot, copies, ended) = &*shared;
        let ended = ended.lock().unwrap();
        if *ended == 3 {
            hot.live_units().for_each(|unit| copies[unit as usize].store(0, Ordering::Relaxed));
            assert!(copies.iter().all(|copy| copy.load(Ordering::Relaxed) == 0), "PP1");
        }
        drop(ended);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
