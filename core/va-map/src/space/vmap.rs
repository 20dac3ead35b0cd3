//! Pages of a caller, mapped as one range.

use super::MapSpace;
use crate::error::{FreeError, MapError};
use crate::ladder;
use crate::machine::{PageTable, Protection};
use crate::record::{Entry, Kind, Wanted};
use crate::request::{DirectMap, Guard, Leaves, PageList};
use va_base::{Align, Machine, PAGE_SIZE, Request, Va};
use va_block::Config;

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Maps pages of the caller contiguously, a page as often as it is in the list, with a guard page after the last.
    /// The caller continues to own them. Pages of consecutive numbers are mapped by entries as large as their numbers
    /// allow, and the mapping is aligned for that if there is room.
    ///
    /// # Errors
    /// [`MapError`]. Mapped pages were unmapped.
    /// # Locks
    /// `records`, then those of the space, one after the other.
    /// Cost: that of an alloc of the space, and the pages.
    pub fn vmap<L: PageList + ?Sized>(
        &self,
        cpu: u32,
        pages: &L,
        protection: Protection,
        caller: u64,
    ) -> Result<Va, MapError> {
        self.map_area(cpu, pages, Kind::Vmap, Asked { protection, caller })
    }

    /// Ends a mapping that [`vmap`](Self::vmap) created. Its addresses are allocated again after a flush.
    ///
    /// # Errors
    /// [`FreeError`], if no mapping of that kind starts at `at`. Nothing has changed.
    /// # Locks
    /// `records`, then those of a free of the space.
    /// Cost: the pages.
    pub fn vunmap(&self, at: Va) -> Result<(), FreeError> {
        self.unmap_area(at, Kind::Vmap)
    }

    pub(super) fn map_area<L: PageList + ?Sized>(
        &self,
        cpu: u32,
        pages: &L,
        kind: Kind,
        asked: Asked,
    ) -> Result<Va, MapError> {
        let count = pages.count();
        let guard = if kind == Kind::Ram { Guard::None } else { Guard::Page };
        // A mapping without pages is invalid, whatever the guard adds.
        let wanted =
            Request::pages(count).and_then(|_| Request::pages(count.saturating_add(guard.pages())))?;
        let area = self.begin_aligned(cpu, wanted, ladder::best_of_list(T::LEAF_SIZES, pages))?;
        if let Err(error) = self.map_list(area.start(), pages, asked.protection) {
            self.cancel_area(area);
            return Err(error);
        }
        let entry = Entry {
            page: area.start().page_floor(),
            pages: area.size().get(),
            mapped: count,
            stale: 0,
            requested: count * PAGE_SIZE,
            caller: asked.caller,
            protection: asked.protection,
            align: Align::PAGE,
            kind,
            guard,
            leaves: Leaves::LargeWherePossible,
            direct_map: DirectMap::Unchanged,
            aliased: false,
            numa_id: None,
            window: None,
        };
        self.count(kind, count, true);
        self.publish(entry);
        Ok(entry.start())
    }

    pub(super) fn unmap_area(&self, at: Va, wanted: impl Into<Wanted>) -> Result<(), FreeError> {
        let entry = self.claim(at, wanted, false)?;
        self.forget(entry.part(0, entry.mapped));
        self.count(entry.kind, entry.mapped, false);
        self.release(&entry);
        Ok(())
    }
}

/// The properties of a mapping, besides its pages.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) protection: Protection,
    pub(super) caller: u64,
}
