//! The choice of an address for the next room: at random.
//!
//! # Theory
//! Of all starts in a window that are aligned as asked, one is drawn, and another one if that is not free.
//! The window is a bundle of [granules](super::granules) for a small room, and the whole one for others. So
//! every position at which the room fits is equally likely (except in a bundle that is nearly full: `tries`).
//! A search for the next hole above would not give that: it finds the hole behind a long area as often as
//! that area is long. The window is kept four times as large as its allocated part, while the reservation
//! lasts. So few draws are in vain, and the entropy is that of the window:
//!
//! ```text
//!   bits = log2(window pages - taken pages - pages of the room and walls)      16 GiB, a quarter taken, an area of 1 MiB: 21.6
//! ```
//! The longer the area, and the more neighbours it must not touch, the fewer positions: an area of a quarter
//! of the window has two bits less, or more. After `tries` draws in vain the lowest fit above the last one is
//! taken, or the lowest of all.
//! # Source
//! Our own; Linux draws where its window begins, once a boot (`vmalloc_base`), and the index stays deterministic here, too (SP5).

use super::secret::Draw;
use super::window::address;
use crate::PAGE_BYTES;
use crate::os::{Call, Errno, Os, abort_with};
use crate::places::Process;
use crate::records::{Host, empty_value};
use va_base::{Align, AllocError, Request, Va, VaRange};
use va_space::{Purge, SpaceError, VmapSpace};

/// The reason why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoPlace {
    /// Nothing fits; the largest hole.
    Full { largest_bytes: usize },
    /// The system gave no memory for records.
    NoRecords,
    /// The system does not open it.
    Refused(Call, Errno),
}

impl From<SpaceError> for NoPlace {
    fn from(error: SpaceError) -> Self {
        match error {
            SpaceError::NoSpace { largest, .. } => Self::Full { largest_bytes: address(largest.get()) },
            SpaceError::Index(AllocError::Occupied { .. }) => Self::Full { largest_bytes: 0 },
            _ => Self::NoRecords,
        }
    }
}

/// Which addresses are whose.
pub(super) struct Places<O: Os> {
    space: VmapSpace<Host<O>, Process>,
    /// Pages that are not free, walls included.
    taken: u64,
}

impl<O: Os> Places<O> {
    empty_value!(Self { space: VmapSpace::empty(), taken: 0 });

    /// Gives an empty one its pages, where it is; `false` for want of records.
    pub(super) fn init(&mut self, extent: VaRange, host: Host<O>) -> bool {
        self.space.init(extent, extent, host).is_ok()
    }

    /// Pages that are not free, walls included.
    pub(super) fn taken_pages(&self) -> u64 {
        self.taken
    }

    /// Takes a room of `pages` whose first page is a multiple of `align` pages, in the window `[first, end)`; its first page.
    pub(super) fn take(
        &mut self,
        draw: &mut Draw,
        [first, end]: [u64; 2],
        pages: u64,
        align: u64,
        tries: u32,
    ) -> Result<u64, NoPlace> {
        let lowest = (first + 1).next_multiple_of(align);
        let Some(highest) = end.checked_sub(pages + 1).filter(|&highest| highest >= lowest) else {
            return Err(NoPlace::Full { largest_bytes: address(end - first) });
        };
        let positions = (highest - lowest) / align + 1;
        let mut last = lowest;
        for _ in 0..tries {
            last = lowest + draw.below(positions) * align;
            match self.take_at(last, pages) {
                Ok(()) => return Ok(last),
                Err(NoPlace::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match self.take_fit([last - 1, end], pages, align) {
            Err(NoPlace::Full { .. }) => self.take_fit([first, end], pages, align),
            done => done,
        }
    }

    /// Takes the room that begins there, if all of it is free.
    fn take_at(&mut self, page: u64, pages: u64) -> Result<(), NoPlace> {
        let range = VaRange::from_pages(page - 1, page + pages + 1).unwrap_or_default();
        let _by_its_start = self.space.alloc_at(range)?;
        self.taken += pages + 2;
        Ok(())
    }

    /// Takes a range that is free for good; `false` for want of records.
    pub(super) fn take_for_good(&mut self, range: VaRange) -> bool {
        let taken = self.space.alloc_at(range).is_ok();
        self.taken += if taken { range.len_bytes() / PAGE_BYTES as u64 } else { 0 };
        taken
    }

    /// Takes the lowest room between two pages.
    fn take_fit(&mut self, [from, to]: [u64; 2], pages: u64, align: u64) -> Result<u64, NoPlace> {
        let window = VaRange::from_pages(from, to).unwrap_or_default();
        // Room to align in; what is too much goes back at once.
        let whole = pages + 1 + align;
        let align_bytes = Align::new(address(align) as u64).unwrap_or(Align::PAGE);
        let request = Request::pages(whole).map_err(|_| NoPlace::Full { largest_bytes: 0 })?;
        let area = self.space.alloc(0, &request.aligned(align_bytes).within(window))?;
        let page = area.range().start().page_floor() + align;
        self.taken += whole;
        self.give([area.range()].into_iter());
        self.take_at(page, pages)?;
        Ok(page)
    }

    /// Takes ranges back.
    pub(super) fn give(&mut self, ranges: impl Iterator<Item = VaRange>) {
        for range in ranges {
            match self.space.free_at(range.start()) {
                Ok(freed) => self.taken -= freed.len_bytes() / PAGE_BYTES as u64,
                // Checks HD3: what comes back was given out, as it was.
                Err(error) => abort_with(format_args!("a room that the space does not know: {error}")),
            }
        }
        self.space.purge(Purge::Full);
    }

    /// The room that a page is in, walls included.
    pub(super) fn around(&self, page: u64) -> Option<VaRange> {
        Some(self.space.find_enclosing(Va::from_page(page))?.range)
    }

    /// The lowest room that ends above a page.
    pub(super) fn above(&self, page: u64) -> Option<VaRange> {
        Some(self.space.find_above(Va::from_page(page))?.range)
    }

    #[cfg(test)]
    pub(super) fn validate(&self) -> Result<(), va_base::InvariantViolation> {
        self.space.validate()?;
        let busy = self.space.stats().busy_pages.get();
        va_base::InvariantViolation::check(busy == self.taken, "HD3", Va::ZERO, busy, self.taken)
    }
}
