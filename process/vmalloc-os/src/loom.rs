//! Models of the locks, of calls that are forbidden, and of values that one thread makes, small enough to try all
//! interleavings with at most four preemptions.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p vmalloc-os --lib loom`.

use crate::lock;
use crate::os::{UNKNOWN, Word, begin_call, end_call, forbid_calls, known_or};
use crate::owner_lock::OwnerLock;
use crate::published::{Pointer, Published};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
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

/// A word whose waiters are those of a kernel: a thread looks at the word and begins to wait in one step.
///
/// Loom takes a sequentially consistent access for one with acquire and release. So such an access has a fence on its
/// side of the other accesses here, which loom knows.
struct Shared {
    word: AtomicU32,
    /// A wait ends by itself, and is no more than a pause. Otherwise it ends only by a wake, so that a lost one shows.
    ends: bool,
    waiting: Mutex<()>,
    wakes: Condvar,
}

impl Shared {
    fn new(value: u32, ends: bool) -> Self {
        Self { word: AtomicU32::new(value), ends, waiting: Mutex::new(()), wakes: Condvar::new() }
    }
}

fn fence_if(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(order);
    }
}

impl Word for Shared {
    fn load(&self, order: Ordering) -> u32 {
        fence_if(order);
        self.word.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.word.store(value, order);
        fence_if(order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }

    fn add(&self, value: u32, order: Ordering) -> u32 {
        let before = self.word.fetch_add(value, order);
        fence_if(order);
        before
    }

    fn replace(&self, from: u32, to: u32, success: Ordering) -> bool {
        self.word.compare_exchange(from, to, success, Ordering::Relaxed).is_ok()
    }

    fn wait(&self, seen: u32, _nanos: u64) {
        if self.ends {
            return thread::yield_now();
        }
        let held = self.waiting.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == seen {
            drop(self.wakes.wait(held).unwrap());
        }
    }

    fn wake(&self) {
        let _held = self.waiting.lock().unwrap();
        self.wakes.notify_one();
    }
}

/// Three threads take the lock of one word, so that one may wait while another takes it after a wait.
#[test]
fn loom_a_lock_has_one_holder_and_wakes_all_who_wait() {
    model(|| {
        let shared = Arc::new((Shared::new(0, false), UnsafeCell::new(())));
        let section = |(word, held): &(Shared, UnsafeCell<()>), me: u32| {
            if !lock::try_lock(word, me) {
                lock::lock_slowly(word, me);
            }
            // The model detects two simultaneous accesses.
            held.with_mut(|_| {});
            lock::unlock(word);
        };
        let others = [4, 6].map(|me| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || section(&theirs, me))
        });
        section(&shared, 2);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(lock::try_lock(&shared.0, 2), "it is free at the end");
    });
}

/// A thread makes two calls that are counted, while another forbids them and installs its filter.
#[test]
fn loom_no_call_is_in_progress_once_calls_are_forbidden() {
    model(|| {
        // The model detects a call beside the filter.
        let shared = Arc::new((Shared::new(0, true), Shared::new(0, true), UnsafeCell::new(())));
        let theirs = Arc::clone(&shared);
        let caller = thread::spawn(move || {
            let (plain, calls, filter) = &*theirs;
            for _ in 0..2 {
                if begin_call(plain, calls) {
                    filter.with(|_| {});
                }
                end_call(calls);
            }
        });
        let (plain, calls, filter) = &*shared;
        forbid_calls(plain, calls);
        filter.with_mut(|_| {});
        caller.join().unwrap();
        assert!(!begin_call(plain, calls));
    });
}

#[test]
fn loom_two_threads_that_ask_at_once_have_the_answer_and_later_ones_do_not_ask() {
    model(|| {
        let word = Arc::new(Shared::new(UNKNOWN, true));
        let theirs = Arc::clone(&word);
        let other = thread::spawn(move || known_or(&*theirs, || 7));
        assert_eq!(known_or(&*word, || 7), 7);
        assert_eq!(other.join().unwrap(), 7);
        assert_eq!(known_or(&*word, || unreachable!("it is known")), 7);
    });
}
