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
#[doc(hidden)]
pub const BATCH: usize = 512;
/// Batches that may be pending for a caller that may sleep, and for one that may not.
const PENDING_SLEEP: usize = 4;
#[doc(hidden)]
pub const PENDING_ATOMIC: usize = 64;

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
    #[doc(hidden)]
    pub fn advance(&self) -> u64 {
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
