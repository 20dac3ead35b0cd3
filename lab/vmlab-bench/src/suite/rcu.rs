//! Frees that wait until no thread can still read: epochs, as `kvfree_rcu` has grace periods.
//!
//! # Theory
//! A thread that reads memory which others may free opens a *section*, and records the epoch that it saw. The epoch
//! advances only when every open section has seen it. Allocations deferred in epoch `e` may still be read from sections
//! that saw `e` or `e - 1`; after two advances both are closed:
//!
//! ```text
//!   epoch      e           e + 1           e + 2
//!   -----------+-------------+---------------+-----
//!   [ section saw e-1 ]      |               |
//!        defer x   [ section saw e   ]       free x
//! ```
//!
//! Deferred frees are gathered in batches as large as a page of pointers. When a batch is full, a thread also frees
//! those of its older batches whose grace period is over. The kernel has a worker for that, so there the caller does
//! not spend the time. Memory is bounded. A caller that may sleep (one argument) waits for a grace period when a few
//! batches are pending. One that may not (two arguments) waits only when many are.
//!
//! # Invariants
//! - **KF1 grace** an allocation is freed only after every section that was open when it was deferred has been closed.
//! - **KF2 once** every deferred allocation is freed once, at the latest when the thread that deferred it
//!   [ends](Deferred::end).
//!
//! # Locking
//! None. A section is a store and a fence.
//! # Source
//! Fraser, "Practical lock-freedom" (2004), for the epochs; Linux `kernel/rcu/tree.c` (6.12: `kvfree_call_rcu`) for
//! batches and for the meaning of the number of arguments.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Allocations of a batch: the pointers that fit a page.
const BATCH: usize = 512;
/// Batches that may be pending for a caller that may sleep, and for one that may not.
const PENDING_SLEEP: usize = 4;
const PENDING_ATOMIC: usize = 64;

/// The state of a section in a cache line of its own: 0, or the epoch shifted left by one, plus 1.
#[repr(align(128))]
#[derive(Default)]
struct Note(AtomicU64);

/// The epoch, and the state of each thread's section.
pub struct Epochs {
    epoch: Note,
    notes: Box<[Note]>,
}

impl Epochs {
    /// Creates epochs for `threads` threads.
    pub fn new(threads: usize) -> Self {
        let epochs = Self { epoch: Note::default(), notes: (0..threads).map(|_| Note::default()).collect() };
        epochs.epoch.0.store(2, Ordering::Relaxed);
        epochs
    }

    /// Returns the handle with which thread number `thread` defers. Each number belongs to one thread.
    ///
    /// # Panics
    /// If there are not that many threads.
    pub fn deferred(&self, thread: usize) -> Deferred<'_> {
        let note = &self.notes[thread].0;
        Deferred { epochs: self, note, filling: Vec::with_capacity(BATCH), sealed: VecDeque::new() }
    }

    /// Advances the epoch if every open section has seen it. Returns the current epoch.
    fn advance(&self) -> u64 {
        let now = self.epoch.0.load(Ordering::Relaxed);
        // Pairs with the fence of `section`. If the note of a section is not seen here, all its reads come after this
        // fence, so they find no allocation that was unreachable before.
        fence(Ordering::SeqCst);
        let seen = |note: &Note| [0, now << 1 | 1].contains(&note.0.load(Ordering::Relaxed));
        if !self.notes.iter().all(seen) {
            return now;
        }
        // Pairs with the release that closes a section, or opens the next of its thread: its reads are complete.
        fence(Ordering::Acquire);
        match self.epoch.0.compare_exchange(now, now + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => now + 1,
            Err(other) => other,
        }
    }
}

/// The context of a deferred free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// `kvfree_rcu_mightsleep(p)`: one argument.
    MaySleep,
    /// `kvfree_rcu(p, head)`: two arguments.
    Atomic,
}

/// The deferred frees of one thread.
pub struct Deferred<'e> {
    epochs: &'e Epochs,
    note: &'e AtomicU64,
    filling: Vec<u64>,
    /// Full batches, each with the epoch in which its last allocation was deferred; oldest first.
    sealed: VecDeque<(u64, Vec<u64>)>,
}

/// While it exists, no allocation that any thread defers from now on is freed.
pub struct Section<'d>(&'d AtomicU64);

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the acquire of `advance`.
        self.0.store(0, Ordering::Release);
    }
}

impl Deferred<'_> {
    /// Opens a section. A thread has one at a time, and cannot defer in it.
    #[inline]
    pub fn section(&mut self) -> Section<'_> {
        let epoch = self.epochs.epoch.0.load(Ordering::Relaxed);
        // Release, for the previous section of this thread: `advance` may see this note in place of the 0 that closed
        // that section, and then treats that section as closed. It pairs with the same acquire.
        self.note.store(epoch << 1 | 1, Ordering::Release);
        // Pairs with the fence of `advance`.
        fence(Ordering::SeqCst);
        Section(self.note)
    }

    /// Defers the free of `at` until after a grace period. `at` is reachable only from sections that are open now.
    /// Calls `free` for allocations whose grace period is over.
    #[inline]
    pub fn defer(&mut self, at: u64, caller: Caller, free: &mut dyn FnMut(u64)) {
        self.filling.push(at);
        if self.filling.len() == BATCH {
            self.seal();
            self.collect(free);
            let pending_max = match caller {
                Caller::MaySleep => PENDING_SLEEP,
                Caller::Atomic => PENDING_ATOMIC,
            };
            while self.sealed.len() > pending_max {
                std::thread::yield_now();
                self.collect(free);
            }
        }
    }

    /// Waits until every allocation that this thread deferred may be freed, and frees them.
    pub fn end(&mut self, free: &mut dyn FnMut(u64)) {
        self.seal();
        while !self.sealed.is_empty() {
            self.collect(free);
            if !self.sealed.is_empty() {
                std::thread::yield_now();
            }
        }
    }

    fn seal(&mut self) {
        if !self.filling.is_empty() {
            // Pairs with the fence of `section`: a section opened after this finds no allocation of the batch.
            fence(Ordering::SeqCst);
            let epoch = self.epochs.epoch.0.load(Ordering::Relaxed);
            let batch = std::mem::replace(&mut self.filling, Vec::with_capacity(BATCH));
            self.sealed.push_back((epoch, batch));
        }
    }

    /// Checks KF1, and frees the batches for which it holds.
    fn collect(&mut self, free: &mut dyn FnMut(u64)) {
        let now = self.epochs.advance();
        // Pairs with the release of the thread that advanced the epoch: all reads in closed sections are complete.
        fence(Ordering::Acquire);
        // Checks KF2: a batch is removed before its allocations are freed.
        while let Some((_, batch)) = self.sealed.pop_front_if(|(epoch, _)| *epoch + 2 <= now) {
            batch.into_iter().for_each(&mut *free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn kf1_what_is_deferred_while_a_section_is_open_waits_for_it() {
        let epochs = Epochs::new(2);
        let (mut reader, mut writer) = (epochs.deferred(0), epochs.deferred(1));
        let mut freed = Vec::new();
        let section = reader.section();
        // One more would exceed the limit of pending batches, and wait for ever.
        for at in 1..=(PENDING_ATOMIC * BATCH) as u64 {
            writer.defer(at, Caller::Atomic, &mut |at| freed.push(at));
        }
        assert_eq!(freed, [0u64; 0]);
        drop(section);
        writer.end(&mut |at| freed.push(at));
        assert_eq!(freed, (1..=(PENDING_ATOMIC * BATCH) as u64).collect::<Vec<_>>());
    }

    #[test]
    fn kf1_a_section_that_saw_the_epoch_before_holds_up_the_next_but_one() {
        let epochs = Epochs::new(2);
        let (mut reader, mut writer) = (epochs.deferred(0), epochs.deferred(1));
        let section = reader.section();
        assert_eq!(epochs.advance(), 3, "it has seen 2");
        writer.filling.push(7);
        writer.seal();
        let mut freed = Vec::new();
        for _ in 0..5 {
            writer.collect(&mut |at| freed.push(at));
        }
        assert_eq!((epochs.advance(), freed.len()), (3, 0), "it has not seen 3");
        drop(section);
        writer.end(&mut |at| freed.push(at));
        assert_eq!(freed, [7]);
    }

    /// Stops the readers when it is dropped, also if the writer panics.
    struct Done<'t>(&'t AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn kf2_many_threads_free_each_once_and_never_under_a_reader() {
        const COUNT: u64 = 60_000;
        let epochs = Epochs::new(3);
        // Number `n` is alive until it is freed; `current` is what readers can reach.
        let alive: Vec<AtomicBool> = (0..=COUNT).map(|_| AtomicBool::new(true)).collect();
        let (current, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|thread| {
                    let (epochs, alive, current, done) = (&epochs, &alive, &current, &done);
                    scope.spawn(move || {
                        let mut own = epochs.deferred(thread);
                        let mut looks = 0u64;
                        // Each reader reads at least once, however late it starts.
                        loop {
                            let section = own.section();
                            let at = current.load(Ordering::Acquire);
                            for _ in 0..looks % 7 {
                                std::hint::spin_loop();
                            }
                            if looks.is_multiple_of(64) {
                                std::thread::yield_now();
                            }
                            assert!(alive[at as usize].load(Ordering::Relaxed), "KF1: {at} was freed");
                            drop(section);
                            looks += 1;
                            if done.load(Ordering::Relaxed) {
                                break looks;
                            }
                        }
                    })
                })
                .collect();
            let ended = Done(&done);
            let mut writer = epochs.deferred(2);
            let mut freed = BTreeSet::new();
            let mut free = |at: u64| {
                alive[at as usize].store(false, Ordering::Relaxed);
                assert!(freed.insert(at), "KF2: {at} was freed twice");
            };
            for next in 1..=COUNT {
                let old = current.swap(next, Ordering::AcqRel);
                writer.defer(old, if next % 2 == 0 { Caller::MaySleep } else { Caller::Atomic }, &mut free);
            }
            writer.end(&mut free);
            drop(ended);
            assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
            assert_eq!(freed.len() as u64, COUNT);
        });
    }
}
