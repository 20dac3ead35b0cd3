//! Guard pages behind areas: an access past the end of an area faults.
//!
//! # Theory
//! ```text
//!   |== usable ==|#|== usable ==|#|        # the last page of a run: no access, and not part of the area
//! ```
//! With guards, every run has one page more than its area. Access to it is removed once, when the run is carved. It is
//! restored when the run leaves the magazines and merges with its neighbours. In between the run is reused unchanged
//! with its guard, so reuse costs no more than without guards.
//!
//! A marker in the page table (`MADV_GUARD_INSTALL`, Linux 6.13) splits no mapping, so there may be millions. Elsewhere
//! the page is protected (`mprotect`), which adds two mappings. The number of those is bounded by a quarter of the
//! mappings that the process may have. Beyond it, and where the system allows neither, the area has no guard. That is
//! counted and is no error: a program for which guards are mandatory uses the hardened profile.
//!
//! A resize that changes the number of pages copies the area, because the page above it is a guard.
//!
//! # Invariants
//! - **GP1 recorded** the word of a page records that it is a guard, and of which kind, exactly while it is one.
//! # Source
//! Linux has a page without a mapping behind each area (`mm/vmalloc.c`, `VM_NO_GUARD` for none).

use super::{Fill, Heap};
use crate::PAGE_BYTES;
use crate::arena::{Run, address, into_pointer};
use crate::error::{AllocError, ResizeError};
use crate::page_word::{Guard, Word, area_pages};
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use vmalloc_os::os::{Os, Span};

/// The counts of guards.
// In this order, since each cached pair reads the first.
#[repr(C)]
pub(super) struct Guards {
    // Constant after `new`.
    /// Pages of a run beyond its area: 0 or 1.
    pub(super) tail: u64,
    /// The greatest number of guards by protection.
    protected_max: u64,
    // Atomic, each alone.
    /// Guards by marks. A counter.
    marked: AtomicU64,
    /// Guards by protection. Protocol PR-BUDGET.
    protected: AtomicU64,
    /// Runs ever carved without a guard. A counter.
    pub(super) missing: AtomicU64,
}

impl Guards {
    pub(super) const fn none() -> Self {
        Self {
            tail: 0,
            protected_max: 0,
            marked: AtomicU64::new(0),
            protected: AtomicU64::new(0),
            missing: AtomicU64::new(0),
        }
    }

    pub(super) fn new(wanted: bool, mappings_max: u64) -> Self {
        Self {
            tail: u64::from(wanted),
            // Two mappings each.
            protected_max: mappings_max / 8,
            ..Self::none()
        }
    }

    /// Returns the number of guards.
    pub(super) fn count(&self) -> u64 {
        self.marked.load(Ordering::Relaxed) + self.protected.load(Ordering::Relaxed)
    }
}

fn span(page: u64) -> Span {
    Span { at: address(page), bytes: PAGE_BYTES }
}

impl<O: Os> Heap<O> {
    /// Returns the number of pages of the run for an area of `size` bytes.
    #[inline(always)]
    pub(super) fn run_pages(&self, size: usize) -> u64 {
        area_pages(size, self.rounded) + self.guards.tail
    }

    /// Sets a guard on the last page of a carved run, if guards are on.
    #[inline]
    pub(super) fn guard(&self, run: &mut Run) {
        if self.guards.tail > 0 {
            self.guard_last(run);
        }
    }

    #[cold]
    fn guard_last(&self, run: &mut Run) {
        let (os, last) = (self.host.os(), run.end() - 1);
        // SAFETY: a page of a run that the caller alone owns.
        if os.can_guard() && unsafe { os.guard(span(last)) }.is_ok() {
            self.guards.marked.fetch_add(1, Ordering::Relaxed);
            self.arena.put(last, Word::guard(Guard::Marked));
            return;
        }
        let before = self.guards.protected.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as before.
        if before < self.guards.protected_max && unsafe { os.forbid(span(last)) }.is_ok() {
            self.arena.put(last, Word::guard(Guard::Protected));
            return;
        }
        self.guards.protected.fetch_sub(1, Ordering::Relaxed);
        self.guards.missing.fetch_add(1, Ordering::Relaxed);
        self.arena.put(last, Word::from_bits(0));
    }

    /// Removes the guard from the last page of a run. Returns false if the system call fails: the run is unusable then.
    #[cold]
    pub(super) fn unguard(&self, run: &mut Run) -> bool {
        let (os, last) = (self.host.os(), run.end() - 1);
        // Checks GP1: a page that is not a guard needs nothing.
        let (gone, count) = match self.arena.get(last).as_guard() {
            None => return true,
            // SAFETY: a page of a run that the caller alone owns.
            Some(Guard::Marked) => (unsafe { os.unguard(span(last)) }, &self.guards.marked),
            // SAFETY: as before.
            Some(Guard::Protected) => (unsafe { os.commit(span(last)) }, &self.guards.protected),
        };
        // SAFETY: as before; a fresh page serves as well.
        let gone = gone.or_else(|_| unsafe { os.renew(span(last)) });
        if gone.is_ok() {
            count.fetch_sub(1, Ordering::Relaxed);
            self.arena.put(last, Word::from_bits(0));
        }
        gone.is_ok()
    }

    /// Resizes an area with a guard: in place if its number of pages stays the same, else by a copy.
    ///
    /// # Safety
    /// As [`resize`](Self::resize).
    #[cold]
    pub(super) unsafe fn resize_guarded(
        &self,
        at: usize,
        layout: Layout,
        fill: Fill,
    ) -> Result<NonNull<u8>, ResizeError> {
        let word = self.live(at)?;
        let (size, before) = (layout.size(), word.requested_bytes());
        if size == 0 {
            return Err(AllocError::ZeroSize.into());
        }
        let page = (at / PAGE_BYTES) as u64;
        if self.run_pages(size) == word.pages() && at.is_multiple_of(layout.align()) {
            let to = Word::live(word.pages(), size).tailed(self.guards.tail);
            if self.change_own(page, word, to).is_none() {
                return Err(self.free_error(at).into());
            }
            // SAFETY: live, and owned by the caller alone during this call.
            let mut run = unsafe { Run::claim(page, word.pages()) };
            if fill == Fill::Zero && before < size {
                self.arena.zero(&mut run, before, size);
            }
            return Ok(into_pointer(run));
        }
        let (mut to, mut used) = self.carve(layout, false)?;
        // SAFETY: this function's contract.
        let (from, word) = match unsafe { self.claim(at) } {
            Ok(claimed) => claimed,
            Err(error) => {
                self.free_unused(to);
                return Err(error.into());
            }
        };
        used = self.move_policy(&from, word, &mut to, used);
        self.growth.copied.fetch_add(1, Ordering::Relaxed);
        // A caller that queried the usable size may have written all of it.
        self.arena.copy(&from, &mut to, 0, word.usable_bytes().min(size));
        self.zero_rest(&mut to, word, size, fill, used);
        self.free_run(from, word);
        Ok(into_pointer(to))
    }

    /// Checks GP1: the words of each kind of guard are as many as the counter of that kind.
    #[cfg(test)]
    pub(super) fn check_guards(&self) -> Result<(), va_base::InvariantViolation> {
        use va_base::{InvariantViolation, Va};
        let mut counts = [0; 2];
        for zone in self.zones() {
            let first = self.arena.extent(zone).start().page_floor();
            let pages = first..self.arena.frontier(zone);
            for kind in pages.filter_map(|page| self.arena.get(page).as_guard()) {
                counts[kind as usize] += 1;
            }
        }
        let (marked, protected) = (&self.guards.marked, &self.guards.protected);
        for (got, count) in counts.into_iter().zip([marked, protected]) {
            let want = count.load(Ordering::Relaxed);
            InvariantViolation::check(want == got, "GP1", Va::ZERO, want, got)?;
        }
        Ok(())
    }
}
