//! Warm rooms: open rooms without an owner, with pages of zeros, for the next request of their size.
//!
//! # Theory
//! A short list, searched from the newest. Each room was opened at a random address, which reveals nothing about the
//! area that had its pages before. The oldest rooms beyond the limit are evicted. A stray write can change such a room,
//! so it is zeroed again when it is taken. Removing access and restoring it would cost more.
//!
//! # Invariants
//! - **HW1 bounded** the list holds at most its limits of rooms and pages, and its count of pages is that of its rooms.

use super::quarantine::Held;
use va_base::Record;

/// The most rooms in the list.
const ROOMS_MAX: usize = 64;

/// The list of warm rooms, oldest first.
pub(super) struct Warm {
    rooms: [Held; ROOMS_MAX],
    len: usize,
    pages: u64,
    pages_max: u64,
    /// Pages that the system has room for: `pages_max`, or fewer.
    allowed: u64,
}

impl Warm {
    pub(super) const fn new(pages_max: u64) -> Self {
        Self { rooms: [Held::EMPTY; ROOMS_MAX], len: 0, pages: 0, pages_max, allowed: pages_max }
    }

    /// Sets the limit of pages.
    pub(super) fn allow(&mut self, pages_max: u64) {
        (self.pages_max, self.allowed) = (pages_max, pages_max);
    }

    /// Limits the pages until the next call to what the system has.
    pub(super) fn bound(&mut self, pages: u64) {
        self.allowed = pages.min(self.pages_max);
    }

    /// Removes a room of exactly these pages whose first page is a multiple of `align` pages.
    pub(super) fn take(&mut self, pages: u64, align: u64) -> Option<Held> {
        let fits = |held: &Held| held.pages() == pages && held.page() & (align - 1) == 0;
        let at = self.rooms[..self.len].iter().rposition(fits)?;
        Some(self.remove(at))
    }

    /// Returns true if a room of that many pages can be in the list at all.
    pub(super) fn admits(&self, pages: u64) -> bool {
        pages <= self.allowed
    }

    /// Adds a room that is admitted. Returns a room that exceeds the limits then.
    pub(super) fn push(&mut self, room: Held) -> Option<Held> {
        let out = if self.len == ROOMS_MAX { self.pop() } else { None };
        self.rooms[self.len] = room;
        self.len += 1;
        self.pages += room.pages();
        out.or_else(|| self.surplus())
    }

    /// Removes the oldest room, if there are too many pages. Checks HW1.
    pub(super) fn surplus(&mut self) -> Option<Held> {
        if self.pages > self.allowed { self.pop() } else { None }
    }

    /// Removes the oldest room.
    pub(super) fn pop(&mut self) -> Option<Held> {
        (self.len > 0).then(|| self.remove(0))
    }

    fn remove(&mut self, at: usize) -> Held {
        let room = self.rooms[at];
        self.rooms.copy_within(at + 1..self.len, at);
        self.len -= 1;
        self.pages -= room.pages();
        room
    }

    pub(super) fn rooms(&self) -> u64 {
        self.len as u64
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = Held> {
        self.rooms[..self.len].iter().copied()
    }

    /// Checks HW1 with a walk. The error has the recorded and the counted pages.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), (u64, u64)> {
        let counted = self.rooms[..self.len].iter().map(|held| held.pages()).sum();
        let sound = counted == self.pages && self.pages <= self.pages_max;
        if sound { Ok(()) } else { Err((self.pages, counted)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hw1_the_newest_that_fits_is_taken_and_the_oldest_leaves() {
        let mut warm = Warm::new(100);
        assert!(warm.admits(100) && !warm.admits(101));
        for page in 0..20u64 {
            assert_eq!(warm.push(Held::new(page, 5)), None);
        }
        assert_eq!((warm.check(), warm.rooms()), (Ok(()), 20));
        assert_eq!(warm.take(5, 1), Some(Held::new(19, 5)));
        assert_eq!(warm.take(5, 16), Some(Held::new(16, 5)));
        assert_eq!(warm.take(4, 1), None);
        // 90 pages are in the list: the four oldest rooms make room for 30 more.
        let mut out = Vec::new();
        let mut surplus = warm.push(Held::new(50, 30));
        while let Some(room) = surplus {
            out.push(room.page());
            surplus = warm.surplus();
        }
        assert_eq!((out, warm.check()), (vec![0, 1, 2, 3], Ok(())));
        let mut many = Warm::new(1000);
        let outs = (0..70).filter_map(|page| many.push(Held::new(page, 1))).map(Held::page);
        assert_eq!(outs.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}
