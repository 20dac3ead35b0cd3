//! The calls that run slices of a purge, and the wake of the worker that does.
//!
//! # Theory
//! Too much may be lazy after a free, and a thread has to purge. The machine chooses which, once a pass
//! ([`Machine::drain`]): the call that freed too much and those after it, a slice each, or a worker that calls
//! [`VmapSpace::drain`].
//!
//! If calls that free run the slices, the backlog is bounded. It is the threshold, the open rounds of magazines, pages
//! freed during one decay's slices, and those freed for callers that may not wait. If a worker does, no free runs one:
//! a worker that never runs leaves all that was ever freed. But an alloc through a magazine, if it may sleep and finds
//! no area in the cache, runs up to eight slices while the backlog is above the threshold.
//!
//! A free counts its pages, then puts its area into a list, then looks whether to wake the worker. For example, a
//! thread frees 65,536 pages where 8,192 may be lazy, and a worker of higher priority takes its CPU after the first
//! step. The worker sees too many lazy pages, and a pass finds no area. So it ends: if it went on, the thread would
//! never run. The thread wakes it again after the second step (protocol PR-DRAIN).
//!
//! # Locking
//! `purge`, for each slice: by `try_lock` in calls that free or allocate.

use super::VmapSpace;
use super::purge::Purged;
use crate::config::Config;
use va_base::sync::atomic::{Ordering, fence};
use va_base::{Context, Drain, LockClass, Machine, Pages};

/// [`Machine::drain`] was not called for the pass that is due or in progress.
pub(super) const UNASKED: u8 = 0;
/// It returned [`Drain::Here`].
const HERE: u8 = 1;
/// It returned [`Drain::Elsewhere`], or is being called.
pub(super) const ELSEWHERE: u8 = 2;

/// Slices after a drain of magazines, with the purge lock released in between: enough for a whole round. One in a
/// model, where a slice is one area.
const DRAIN_SLICES: u32 = if cfg!(loom) { 1 } else { 36 };

/// Slices that an alloc runs under one hold of the purge lock when the purge has fallen behind.
const CATCH_UP_SLICES: u32 = if cfg!(loom) { 1 } else { 8 };

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Runs one slice of a purge if one is in progress or due. For workers and idle loops.
    ///
    /// # Locks
    /// `purge`, for one slice.
    pub fn tick(&self) -> Purged {
        let mut state = self.lock_purge();
        let exceeds = || self.lazy_pages() > self.lazy_max();
        // A round may have woken the worker for what other rounds hold: a later free wakes it again.
        let due = !state.is_idle() || exceeds() || {
            self.forget_drainer();
            exceeds()
        };
        let waiting = due && self.slice(&mut state, false);
        drop(state);
        self.purged(waiting)
    }

    /// Purges until no pass is in progress and no more pages are lazy than may be. It ends earlier if it has to wait for
    /// a flush, or after a pass that found nothing to settle. For a worker that was woken: pages that others drained in
    /// the meantime are not drained again.
    ///
    /// [`Purged::left`] may still be too much then: a free counts its pages before its area can be found, and its thread
    /// may not run in between. That free wakes the worker again.
    ///
    /// # Locks
    /// `purge`, released after each slice.
    pub fn drain(&self) -> Purged {
        let mut before = None;
        loop {
            let mut state = self.lock_purge();
            if state.is_idle() {
                self.forget_drainer();
                // A pass since then began after the answer was cleared. A free whose area it missed finds no answer.
                let now = (state.passes, state.areas);
                let in_vain = before.is_some_and(|(passes, areas)| passes < now.0 && areas == now.1);
                if in_vain || self.lazy_pages() <= self.lazy_max() {
                    drop(state);
                    return self.purged(false);
                }
                before = Some(now);
            }
            if self.slice(&mut state, false) {
                drop(state);
                return self.purged(true);
            }
        }
    }

    /// Returns the number of pages that may be lazy before a purge is due, with the CPUs that are online now.
    #[inline]
    pub fn lazy_max(&self) -> Pages {
        C::lazy_max(self.machine.cpus_online())
    }

    /// Runs a slice after a free, or wakes the worker, if too many pages are lazy.
    #[inline]
    pub(super) fn after_free(&self, context: Context) {
        if self.lazy_pages() > self.lazy_max() || self.purging.load(Ordering::Relaxed) {
            self.drain_some(context, self.lazy_pages().get());
        }
    }

    /// Does the same at the end of a magazine's round, where the rounds of others count, too. Returns whether the next
    /// free of the magazine should call again: after many frees, one slice would let the purge fall behind.
    pub(super) fn after_round(&self) -> bool {
        let lazy = self.lazy_pages().get() + self.unsealed();
        let due = lazy > self.lazy_max().get() || self.purging.load(Ordering::Relaxed);
        due && self.drain_some(Context::Sleeping, lazy)
    }

    /// Does the same after a drain, whose caller may free nothing more: slices for a whole round.
    pub(super) fn after_drain(&self) {
        for _ in 0..DRAIN_SLICES {
            if !self.after_round() {
                return;
            }
        }
    }

    /// Runs a slice, unless another thread does; returns whether one more could be run at once.
    #[cold]
    fn drain_some(&self, context: Context, lazy: u64) -> bool {
        let begun = self.purging.load(Ordering::Relaxed);
        if self.drainer() == Drain::Elsewhere || context == Context::Atomic {
            return false;
        }
        let due = lazy > self.lazy_max().get() || begun;
        // A thread that holds it runs this slice.
        self.machine.locking(LockClass::Purge);
        let Some(mut state) = self.purge.try_lock() else { return false };
        due && !self.slice(&mut state, false) && !state.is_idle()
    }

    /// Runs a few slices if too many pages are lazy, for an alloc that may sleep and whose cache had no area. It does
    /// so even where a worker drains: the areas that wait for the worker are missing there, and the index costs more.
    #[inline]
    pub(super) fn catch_up(&self) {
        if self.lazy_pages() > self.lazy_max() {
            self.catch_up_some();
        }
    }

    #[cold]
    fn catch_up_some(&self) {
        self.machine.locking(LockClass::Purge);
        let Some(mut state) = self.purge.try_lock() else { return };
        for _ in 0..CATCH_UP_SLICES {
            if self.slice(&mut state, false) || state.is_idle() {
                return;
            }
        }
    }

    /// Returns where to drain: the machine's answer, requested once a pass.
    fn drainer(&self) -> Drain {
        // Pairs with the fence of `forget_drainer`. Either this call sees that the answer was cleared, or the thread
        // that cleared it sees the pages that this one counted as lazy, and continues.
        fence(Ordering::SeqCst);
        match self.drainer.load(Ordering::Relaxed) {
            HERE => return Drain::Here,
            ELSEWHERE => return Drain::Elsewhere,
            _ => {}
        }
        let (old, new) = (UNASKED, ELSEWHERE);
        if self.drainer.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Drain::Elsewhere;
        }
        let answer = self.machine.drain();
        if answer == Drain::Here {
            // Fails if that pass has ended since: then the next free calls the machine.
            let (old, new) = (ELSEWHERE, HERE);
            let _stale = self.drainer.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        answer
    }

    /// Clears the machine's answer before the last read of `lazied`: a later free with too many lazy pages asks again.
    pub(super) fn forget_drainer(&self) {
        self.drainer.store(UNASKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
