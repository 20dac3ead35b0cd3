//! The quarantine: freed areas in the order of their frees, whose addresses are not reused yet.
//!
//! # Theory
//! A ring of ranges, first in, first out. An area that would exceed the limit of bytes or of areas evicts the oldest.
//! So the period in which a use after free surely faults is known: the last `bytes_max` bytes of addresses or the last
//! `areas_max` areas, whichever is less. The ring is allocated once, so that adding an area cannot fail (SP3).
//!
//! # Invariants
//! - **HQ1 bounded** the ring holds at most its limits of bytes and areas, and its count of bytes is that of its areas.

use va_base::Record;

/// A range of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    page: u64,
    pages: u64,
}

impl Record for Held {
    const EMPTY: Self = Self { page: 0, pages: 0 };
}

impl Held {
    pub(crate) fn new(page: u64, pages: u64) -> Self {
        Self { page, pages }
    }

    /// Returns the first page.
    pub(crate) fn page(self) -> u64 {
        self.page
    }

    pub(crate) fn pages(self) -> u64 {
        self.pages
    }
}

/// The ring of areas in quarantine.
pub(crate) struct Quarantine {
    ring: &'static mut [Held],
    oldest: usize,
    len: usize,
    pages: u64,
    pages_max: u64,
}

impl Quarantine {
    /// Makes a quarantine of at most `pages_max` pages, in as many areas as `ring` has slots.
    pub(crate) const fn new(ring: &'static mut [Held], pages_max: u64) -> Self {
        Self { ring, oldest: 0, len: 0, pages: 0, pages_max }
    }

    /// Adds an area, for which there must be room: see [`overflow`](Self::overflow).
    pub(crate) fn push(&mut self, held: Held) {
        let count = self.ring.len();
        self.ring[(self.oldest + self.len) % count] = held;
        self.len += 1;
        self.pages += held.pages;
    }

    /// Removes the oldest area, if there is no room for another one of `pages`. Checks HQ1.
    pub(crate) fn overflow(&mut self, pages: u64) -> Option<Held> {
        let full = self.len == self.ring.len() || self.pages + pages > self.pages_max;
        if full { self.pop() } else { None }
    }

    /// Returns true if an area of that many pages can be in quarantine at all.
    pub(crate) fn admits(&self, pages: u64) -> bool {
        !self.ring.is_empty() && pages <= self.pages_max
    }

    /// Removes the oldest area.
    pub(crate) fn pop(&mut self) -> Option<Held> {
        self.len = self.len.checked_sub(1)?;
        let held = self.ring[self.oldest];
        self.oldest = (self.oldest + 1) % self.ring.len();
        self.pages -= held.pages;
        Some(held)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn areas(&self) -> u64 {
        self.len as u64
    }

    /// Checks HQ1 with a walk. The error has the recorded and the counted pages.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), (u64, u64)> {
        let counted = (0..self.len).map(|at| self.ring[(self.oldest + at) % self.ring.len()].pages).sum();
        let bounded = self.pages <= self.pages_max && self.len <= self.ring.len();
        if counted == self.pages && bounded { Ok(()) } else { Err((self.pages, counted)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(ring: &mut Quarantine, held: Held) -> Vec<u64> {
        let mut out = Vec::new();
        while let Some(old) = ring.overflow(held.pages()) {
            out.push(old.page());
        }
        ring.push(held);
        assert_eq!(ring.check(), Ok(()));
        out
    }

    #[test]
    fn hq1_the_oldest_leaves_when_bytes_or_areas_are_too_many() {
        let mut ring = Quarantine::new(vec![Held::EMPTY; 4].leak(), 100);
        let outs: Vec<_> = (0..6).map(|n| enter(&mut ring, Held::new(n, 10))).collect();
        assert_eq!(outs, [vec![], vec![], vec![], vec![], vec![0], vec![1]]);
        // 40 pages are in: with 70 more, only 30 of them may stay.
        assert_eq!(enter(&mut ring, Held::new(6, 70)), [2]);
        assert_eq!((ring.pages(), ring.areas()), (100, 4));
        assert_eq!(enter(&mut ring, Held::new(7, 100)), [3, 4, 5, 6]);
        assert!(ring.admits(100) && !ring.admits(101));
        assert_eq!((ring.pop(), ring.pop()), (Some(Held::new(7, 100)), None));
        assert!(!Quarantine::new(Vec::new().leak(), 100).admits(1));
    }
}
