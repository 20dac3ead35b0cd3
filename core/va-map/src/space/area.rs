//! Areas with pages of their own.

use super::MapSpace;
use super::fill::How;
use crate::error::{FreeError, MapError};
use crate::machine::{PageSource, PageTable};
use crate::record::{Entry, Kind, Memory, NotTaken};
use crate::request::{AreaRequest, DirectMap};
use va_base::{Align, Machine, PAGE_SIZE, Request, RequestError, Va};
use va_block::Config;
use va_space::Area;

impl<P: Machine + Clone, T: PageTable + PageSource, C: Config> MapSpace<P, T, C> {
    /// Allocates an area with pages in all of it; `cpu` is the CPU of the caller, or an id of its choice.
    ///
    /// # Errors
    /// [`MapError`]. Mapped pages were unmapped, allocated ones were freed.
    /// # Locks
    /// `records`, then those of the space, one after the other.
    /// Cost: that of an alloc of the space, and the pages.
    pub fn vmalloc(&self, cpu: u32, request: &AreaRequest) -> Result<Va, MapError> {
        let sizes = Sizes::of(request)?;
        if request.direct_map == DirectMap::ResetOnFree && !T::RESETS {
            return Err(MapError::NoReset);
        }
        let how = How::of(request);
        let supply = self.supply(how, sizes.usable);
        let area = self.place(cpu, request, sizes, supply.top).inspect_err(|_| self.cancel(supply))?;
        let entry = Entry {
            page: area.start().page_floor(),
            pages: area.size().get(),
            mapped: sizes.usable,
            stale: 0,
            requested: request.bytes,
            caller: request.caller,
            protection: request.protection,
            align: request.align,
            kind: Kind::Vmalloc,
            guard: request.guard,
            leaves: request.leaves,
            direct_map: request.direct_map,
            aliased: false,
            numa_id: request.numa_id,
            window: request.window,
        };
        if let Err(error) = self.fill(entry.part(0, entry.mapped), how, supply) {
            self.cancel_area(area);
            return Err(error);
        }
        self.count(Kind::Vmalloc, entry.mapped, true);
        self.publish(entry);
        Ok(entry.start())
    }

    /// Frees an area of [`vmalloc`](Self::vmalloc). Its addresses are allocated again after a flush.
    ///
    /// # Errors
    /// [`FreeError`], if no area of that kind starts at `at`. Nothing has changed.
    /// # Locks
    /// `records`, then those of a free of the space.
    /// Cost: the pages.
    pub fn vfree(&self, at: Va) -> Result<(), FreeError> {
        let entry = self.claim(at, Kind::Vmalloc, false)?;
        self.end(&entry);
        Ok(())
    }

    /// Frees an area of [`vmalloc`](Self::vmalloc) later: for a caller that may not sleep, as in an interrupt. Returns
    /// how many areas wait now, including this one; at 1 the machine wakes a worker, which calls
    /// [`run_deferred`](Self::run_deferred). Requests no memory.
    ///
    /// # Errors
    /// The errors of [`vfree`](Self::vfree), and [`FreeError::Deferred`] if it waits already. Nothing has changed.
    /// # Locks
    /// `records`, and for an error, where the space finds areas by trees, that of a node.
    /// Cost: O(1).
    pub fn vfree_atomic(&self, at: Va) -> Result<u64, FreeError> {
        let mut records = self.records();
        let done = match at.is_aligned(Align::PAGE) {
            true => records.defer(at.page_floor()),
            false => Err(NotTaken::None),
        };
        let waiting = records.deferred();
        drop(records);
        done.map(|()| waiting).map_err(|why| self.not_taken(at, why))
    }

    /// Frees every area that [`vfree_atomic`](Self::vfree_atomic) marked, and returns their number. The caller may
    /// sleep; several at a time share the work.
    ///
    /// # Locks
    /// Those of [`vfree`](Self::vfree), for each area.
    pub fn run_deferred(&self) -> u64 {
        let mut ended = 0;
        loop {
            let mut records = self.records();
            let entry = records.take_deferred();
            let excess = if entry.is_some() { records.excess(true) } else { Memory::default() };
            drop(records);
            excess.free(&self.machine);
            let Some(entry) = entry else { return ended };
            self.end(&entry);
            ended += 1;
        }
    }

    /// Requests that the permissions of an area's pages are reset when it is freed, as [`DirectMap::ResetOnFree`] does.
    ///
    /// # Errors
    /// [`MapError::NoReset`], or [`MapError::NoArea`] if no area starts at `at`. Nothing has changed.
    /// # Locks
    /// `records`.
    pub fn reset_on_free(&self, at: Va) -> Result<(), MapError> {
        if !T::RESETS {
            return Err(MapError::NoReset);
        }
        let mut records = self.records();
        let entry = records.get(at.page_floor()).filter(|entry| entry.start() == at);
        let done = entry.is_some_and(|entry| {
            entry.kind == Kind::Vmalloc
                && records.change(entry.page, |entry| entry.direct_map = DirectMap::ResetOnFree)
        });
        drop(records);
        let why = entry.map_or(NotTaken::None, NotTaken::Other);
        if done { Ok(()) } else { Err(self.not_taken(at, why).into()) }
    }

    /// Unmaps an area whose record was taken, and frees its pages and its addresses.
    fn end(&self, entry: &Entry) {
        self.retire(entry.part(0, entry.mapped), entry.direct_map, entry.aliased);
        self.count(Kind::Vmalloc, entry.mapped, false);
        self.release(entry);
    }

    /// Allocates addresses for an area whose largest entry is of a rung: at a multiple of its size, or of the largest
    /// smaller one for which there is room.
    pub(super) fn place(
        &self,
        cpu: u32,
        request: &AreaRequest,
        sizes: Sizes,
        top: usize,
    ) -> Result<Area, MapError> {
        let mut wanted = Request::pages(sizes.range)?.aligned(request.align);
        if let Some(window) = request.window {
            wanted = wanted.within(window);
        }
        self.begin_aligned(cpu, wanted, top)
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
        // A range past any space is rejected by the request for it.
        Ok(Self { usable, range })
    }
}
