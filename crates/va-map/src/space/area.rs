//! Areas with pages of their own.

use super::MapSpace;
use super::fill::How;
use crate::error::{FreeError, MapError};
use crate::machine::{PageSource, PageTable};
use crate::record::{Entry, Kind};
use crate::request::{AreaRequest, Leaves};
use va_base::{Align, Machine, PAGE_SIZE, Request, RequestError, Va};
use va_block::Config;
use va_space::Area;

impl<P: Machine + Clone, C: Config, T: PageTable + PageSource> MapSpace<P, C, T> {
    /// Gives out an area with pages behind all of it; `cpu` is the CPU that asks, or stands for it.
    ///
    /// # Errors
    /// [`MapError`]. What was mapped by then was unmapped, what was lent was given back.
    /// # Locks
    /// `records`, then those of the space, one after the other.
    /// Cost: as an alloc of the space, and the pages.
    pub fn vmalloc(&self, cpu: u32, request: &AreaRequest) -> Result<Va, MapError> {
        let sizes = Sizes::of(request)?;
        let (area, align) = self.place(cpu, request, sizes)?;
        let entry = Entry {
            page: area.start().page_floor(),
            pages: area.size().get(),
            mapped: sizes.usable,
            stale: 0,
            requested: request.bytes,
            caller: request.caller,
            protection: request.protection,
            align,
            kind: Kind::Vmalloc,
            guard: request.guard,
            leaves: request.leaves,
            window: request.window,
        };
        let how = How { leaves: request.leaves, fill: request.fill, protection: request.protection };
        if let Err(error) = self.fill(entry.part(0, entry.mapped), how) {
            self.abandon(area);
            return Err(error);
        }
        self.count(Kind::Vmalloc, entry.mapped, true);
        self.publish(entry);
        Ok(entry.start())
    }

    /// Takes an area back that [`vmalloc`](Self::vmalloc) gave out. Its addresses are given out again after a flush.
    ///
    /// # Errors
    /// [`FreeError`], if no area of that kind starts at `at`. Nothing has changed.
    /// # Locks
    /// `records`, then those of a free of the space.
    /// Cost: the pages.
    pub fn vfree(&self, at: Va) -> Result<(), FreeError> {
        let entry = self.claim(at, Kind::Vmalloc, false)?;
        self.empty(entry.part(0, entry.mapped));
        self.count(Kind::Vmalloc, entry.mapped, false);
        self.release(&entry);
        Ok(())
    }

    /// Finds addresses for an area: where huge pages are wanted, at a multiple of their size if there is room for that.
    pub(super) fn place(
        &self,
        cpu: u32,
        request: &AreaRequest,
        sizes: Sizes,
    ) -> Result<(Area, Align), MapError> {
        let mut wanted = Request::pages(sizes.range)?.aligned(request.align);
        if let Some(window) = request.window {
            wanted = wanted.within(window);
        }
        let huge = Align::from_log2(T::HUGE_LOG2 + va_base::PAGE_SHIFT).unwrap_or(request.align);
        let fits_one = T::HUGE_LOG2 > 0 && sizes.usable >= 1 << T::HUGE_LOG2;
        if request.leaves == Leaves::HugeWherePossible && fits_one && huge > request.align {
            match self.begin(cpu, &wanted.aligned(huge)) {
                Ok(area) => return Ok((area, huge)),
                // Linux tries again with small pages as well.
                Err(MapError::Space(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.begin(cpu, &wanted)?, request.align))
    }
}

/// The sizes of an area, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) usable: u64,
    pub(super) range: u64,
}

impl Sizes {
    pub(super) fn of(request: &AreaRequest) -> Result<Self, RequestError> {
        let bad = RequestError::BadSize { size_bytes: request.bytes };
        let usable = request.bytes.div_ceil(PAGE_SIZE);
        if usable == 0 {
            return Err(bad);
        }
        let range = usable.max(request.range_bytes.div_ceil(PAGE_SIZE)) + request.guard.pages();
        // A range past any space is refused by the request for it.
        Ok(Self { usable, range })
    }
}
