//! Areas that were freed, in the order in which they were: nobody is given their addresses yet.
//!
//! # Theory
//! A ring of ranges. What comes in last stays longest; what makes the ring hold more bytes, or more areas, than it may pushes the
//! oldest out. So the window in which a use after free is certain to fault is known: the last `bytes_max` bytes of addresses and
//! the last `areas_max` areas, whichever is less. The ring is allocated once: to enter cannot fail (SP3).
//!
//! # Invariants
//! - **HQ1 bounded** the ring holds at most as many bytes and areas as it may, and the bytes that it tells are those of its areas.

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

    /// The first page.
    pub(crate) fn page(self) -> u64 {
        self.page
    }

    pub(crate) fn pages(self) -> u64 {
        self.pages
    }
}

/// The ring.
pub(crate) struct Quarantine {
    ring: &'static mut [Held],
    oldest: usize,
    len: usize,
    pages: u64,
    pages_max: u64,
}

impl Quarantine {
    /// Holds at most `pages_max` pages, in as many areas as the ring has.
    pub(crate) const fn new(ring: &'static mut [Held], pages_max: u64) -> Self {
        Self { ring, oldest: 0, len: 0, pages: 0, pages_max }
    }

    /// Lets an area in, for which there must be a place: see [`overflow`](Self::overflow).
    pub(crate) fn push(&mut self, held: Held) {
        let count = self.ring.len();
        self.ring[(self.oldest + self.len) % count] = held;
        self.len += 1;
        self.pages += held.pages;
    }

    /// The oldest area, if one of `pages` would not find room beside it. Checks HQ1.
    pub(crate) fn overflow(&mut self, pages: u64) -> Option<Held> {
        let full = self.len == self.ring.len() || self.pages + pages > self.pages_max;
        if full { self.pop() } else { None }
    }

    /// Tells whether an area of as many pages may come in at all.
    pub(crate) fn admits(&self, pages: u64) -> bool {
        !self.ring.is_empty() && pages <= self.pages_max
    }

    /// Lets the oldest out.
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

    /// Checks HQ1 with a walk; pages told and counted.
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
        // 40 pages are in: of 70 more only 30 may stay.
        assert_eq!(enter(&mut ring, Held::new(6, 70)), [2]);
        assert_eq!((ring.pages(), ring.areas()), (100, 4));
        assert_eq!(enter(&mut ring, Held::new(7, 100)), [3, 4, 5, 6]);
        assert!(ring.admits(100) && !ring.admits(101));
        assert_eq!((ring.pop(), ring.pop()), (Some(Held::new(7, 100)), None));
        assert!(!Quarantine::new(Vec::new().leak(), 100).admits(1));
    }
}
