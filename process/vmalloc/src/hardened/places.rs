//! The choice of an address for the next room: at random.
//!
//! # Theory
//! An aligned start in a range is drawn at random, and another one if that is not free. The range is a bundle of
//! [granules](super::granules) for a small room, and the whole window for others. So every position at which the room
//! fits is equally likely (except in a bundle that is nearly full: `tries`). A search for the next hole above would not
//! have this property: it finds the hole above an area with a probability proportional to the area's length. The window
//! has four times its allocated pages, while the reservation suffices. So few draws fail, and the entropy is that of
//! the window:
//!
//! ```text
//!   bits = log2(window pages - taken pages - pages of the room and walls)
//!   16 GiB, a quarter taken, an area of 1 MiB: 21.6
//! ```
//! The longer the area, and the more areas it must not overlap, the fewer positions exist. An area of a quarter of the
//! window has at least two bits less. After `tries` failed draws the lowest fit above the last draw is taken, or else
//! the lowest of all.
//! # Source
//! Our own; Linux draws the start of its window once a boot (`vmalloc_base`). The index is deterministic here, too
//! (SP5).

use super::secret::Draw;
use super::window::{Room, address};
use crate::PAGE_BYTES;
use crate::space_config::Process;
use va_base::{Align, AllocError, Pages, Request, Va, VaRange};
use va_space::{Purge, SpaceError, VmapSpace};
use vmalloc_os::os::{Call, Errno, Os, abort_with};
use vmalloc_os::records::{Host, Placed};

/// The reason why no address was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoPlace {
    /// Nothing fits. It has the size of the largest hole.
    Full { largest_bytes: usize },
    /// The system has no memory for records.
    NoRecords,
    /// The system failed to open the room.
    Failed(Call, Errno),
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

/// The allocated addresses of the window.
pub(super) struct Places<O: Os> {
    space: Placed<VmapSpace<Host<O>, Process>>,
    /// Pages that are not free, walls included.
    taken: u64,
}

impl<O: Os> Places<O> {
    pub(super) const EMPTY: Self = Self { space: Placed::NOWHERE, taken: 0 };

    /// Initializes an empty value in place with its extent. Returns `false` if there is no memory for records.
    pub(super) fn init(&mut self, extent: VaRange, host: Host<O>) -> bool {
        let Some(space) = Placed::new(&host, || va_base::constant!(VmapSpace::empty())) else { return false };
        self.space = space;
        self.space.init(extent, extent, host).is_ok()
    }

    /// Returns the pages that are not free, walls included.
    pub(super) fn taken_pages(&self) -> u64 {
        self.taken
    }

    /// Allocates a room of `pages` whose first page is a multiple of `align` pages, in the range `[first, end)`.
    /// Returns its first page.
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

    /// Allocates the room that begins at a page, if all of it is free.
    fn take_at(&mut self, page: u64, pages: u64) -> Result<(), NoPlace> {
        let range = VaRange::from_pages(page - 1, page + pages + 1).unwrap_or_default();
        let _by_its_start = self.space.alloc_at(range)?;
        self.taken += pages + 2;
        Ok(())
    }

    /// Extends an allocated room to that many pages, which are free. Returns `false` without memory for records.
    pub(super) fn grow(&mut self, room: &Room, pages: u64) -> bool {
        let grown = self.space.resize_at(room.range().start(), Pages::new(pages + 2)).is_ok();
        self.taken += if grown { pages - room.pages() } else { 0 };
        grown
    }

    /// Allocates a free range for good. Returns `false` without memory for records.
    pub(super) fn take_for_good(&mut self, range: VaRange) -> bool {
        let taken = self.space.alloc_at(range).is_ok();
        self.taken += if taken { range.len_bytes() / PAGE_BYTES as u64 } else { 0 };
        taken
    }

    /// Allocates the lowest room between two pages.
    fn take_fit(&mut self, [from, to]: [u64; 2], pages: u64, align: u64) -> Result<u64, NoPlace> {
        let window = VaRange::from_pages(from, to).unwrap_or_default();
        // Allocates additional pages for the alignment, which are freed again below.
        let whole = pages + 1 + align;
        let align_bytes = Align::new(address(align) as u64).unwrap_or(Align::PAGE);
        let request = Request::pages(whole).map_err(|_| NoPlace::Full { largest_bytes: 0 })?;
        let area = self.space.alloc(0, &request.aligned(align_bytes).within(window))?;
        let page = area.range().start().page_floor() + align;
        self.taken += whole;
        self.free_ranges([area.range()].into_iter());
        self.take_at(page, pages)?;
        Ok(page)
    }

    /// Frees ranges.
    pub(super) fn free_ranges(&mut self, ranges: impl Iterator<Item = VaRange>) {
        for range in ranges {
            match self.space.free_at(range.start()) {
                Ok(freed) => self.taken -= freed.len_bytes() / PAGE_BYTES as u64,
                // Checks HD3: the freed range was allocated, with the same start.
                Err(error) => abort_with(format_args!("a room that the space does not know: {error}")),
            }
        }
        self.space.purge(Purge::Full);
    }

    /// Returns the room that contains a page, walls included.
    pub(super) fn around(&self, page: u64) -> Option<VaRange> {
        Some(self.space.find_enclosing(Va::from_page(page))?.range)
    }

    /// Returns the lowest room that ends above a page.
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
