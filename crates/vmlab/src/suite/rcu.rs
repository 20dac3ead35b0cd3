//! Frees that wait until nobody can still be looking: epochs, as `kvfree_rcu` has grace periods.
//!
//! # Theory
//! Who looks at what others may free opens a *section*, in which he notes the epoch that he saw. The epoch moves on
//! only when every open section has seen it. What was deferred in epoch `e` may still be looked at from sections that
//! saw `e` or `e - 1`; two moves later both are closed:
//!
//! ```text
//!   epoch      e           e + 1           e + 2
//!   -----------+-------------+---------------+-----
//!   [ section saw e-1 ]      |               |
//!        defer x   [ section saw e   ]       free x
//! ```
//!
//! Deferred frees are gathered in batches as large as a page of pointers. A thread also frees what it deferred, when a
//! batch is full and others have become ripe. The kernel has a worker for that, so there the time is not the caller's.
//! Memory is bounded. A caller that may sleep (one argument) waits for a grace period when a few batches are pending.
//! One that may not (two arguments) waits only when many are.
//!
//! # Invariants
//! - **KF1 grace** an allocation is freed only after every section that was open when it was deferred has been closed.
//! - **KF2 once** what is deferred is freed once, at the latest when the thread that deferred it [ends](Deferred::end).
//!
//! # Locking
//! None. A section is a store and a fence.
//! # Source
//! Fraser, "Practical lock-freedom" (2004), for the epochs; Linux `kernel/rcu/tree.c` (6.12: `kvfree_call_rcu`) for
//! batches and for what the number of arguments means.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Allocations of a batch: pointers of a page.
const BATCH: usize = 512;
/// Batches that may be pending for a caller who may sleep, and for one who may not.
const PENDING_SLEEP: usize = 4;
const PENDING_ATOMIC: usize = 64;

/// A section's note in a cache line of its own: 0, or the epoch and a one.
#[repr(align(128))]
#[derive(Default)]
struct Note(AtomicU64);

/// The epoch, and what each thread notes.
pub struct Epochs {
    epoch: Note,
    notes: Box<[Note]>,
}

impl Epochs {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        let epochs = Self { epoch: Note::default(), notes: (0..threads).map(|_| Note::default()).collect() };
        epochs.epoch.0.store(2, Ordering::Relaxed);
        epochs
    }

    /// Returns the handle by which thread number `thread` defers. Each number is one thread's.
    ///
    /// # Panics
    /// If there are not that many threads.
    pub fn deferred(&self, thread: usize) -> Deferred<'_> {
        let note = &self.notes[thread].0;
        Deferred { epochs: self, note, filling: Vec::with_capacity(BATCH), sealed: VecDeque::new() }
    }

    /// Moves the epoch on if every open section has seen it. Returns what it is.
    fn advance(&self) -> u64 {
        let now = self.epoch.0.load(Ordering::Relaxed);
        // Pairs with the fence of `section`: of a section whose note is not seen here, all reads come after this, so
        // they find nothing that was out of reach before.
        fence(Ordering::SeqCst);
        let seen = |note: &Note| [0, now << 1 | 1].contains(&note.0.load(Ordering::Relaxed));
        if !self.notes.iter().all(seen) {
            return now;
        }
        // Pairs with the release that closes a section, or opens the next of its thread: what was done in it is over.
        fence(Ordering::Acquire);
        match self.epoch.0.compare_exchange(now, now + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => now + 1,
            Err(other) => other,
        }
    }
}

/// The caller of a deferred free, which may sleep or not.
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
    /// Full batches, each with the epoch in which the last of it was deferred; oldest first.
    sealed: VecDeque<(u64, Vec<u64>)>,
}

/// While it lives, nothing is freed that is deferred from now on, by whomever.
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
        // Release, for the thread's section before: `advance` may see this note in place of the 0 that closed that one,
        // and takes what was done in it to be over. It pairs with the same acquire.
        self.note.store(epoch << 1 | 1, Ordering::Release);
        // Pairs with the fence of `advance`.
        fence(Ordering::SeqCst);
        Section(self.note)
    }

    /// Has `at` freed after a grace period. Nobody who does not look at it yet can reach it any more. Calls `free` for
    /// those whose time has come.
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

    /// Waits until everything may be freed that this thread deferred, and has it freed.
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
            // Pairs with the fence of `section`: who opens one after this finds nothing of the batch.
            fence(Ordering::SeqCst);
            let epoch = self.epochs.epoch.0.load(Ordering::Relaxed);
            let batch = std::mem::replace(&mut self.filling, Vec::with_capacity(BATCH));
            self.sealed.push_back((epoch, batch));
        }
    }

    /// Checks KF1, and frees what it holds for.
    fn collect(&mut self, free: &mut dyn FnMut(u64)) {
        let now = self.epochs.advance();
        // Pairs with the release of whoever moved the epoch on: all that was done in sections that have gone is over.
        fence(Ordering::Acquire);
        // Checks KF2: a batch is taken out before its allocations are freed.
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
        // One more than may be pending would wait for ever.
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

    /// Ends readers when it goes, also if the writer fails.
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
                        // Each looks at least once, however late it comes.
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
