//! Short-lived small mappings.

use super::vmap::Asked;
use super::{CLOSINGS, MapSpace, RAM_PAGES_MAX};
use crate::error::{FreeError, MapError};
use crate::machine::{PageTable, Protection};
use crate::record::{Kind, Wanted};
use crate::request::PageList;
use va_base::{LockClass, Machine, Pages, Va, VaRange};
use va_block::{Config, UnmapError};

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Maps pages of the caller's as [`vmap`](Self::vmap) does, without a guard page. Up to
    /// [`RAM_PAGES_MAX`] pages are mapped in a block of the CPU, without the space and without a
    /// record; more as an area.
    ///
    /// # Errors
    /// The errors of [`vmap`](Self::vmap).
    /// # Locks
    /// Those of blocks, or those of [`vmap`](Self::vmap).
    /// Cost: O(1) and the pages.
    pub fn vm_map_ram<L: PageList + ?Sized>(
        &self,
        cpu: u32,
        pages: &L,
        protection: Protection,
    ) -> Result<Va, MapError> {
        let count = pages.count();
        if count == 0 || !self.is_small(count) {
            return self.map_area(cpu, pages, Kind::Ram, Asked { protection, caller: 0 });
        }
        let at = self.blocks.alloc(cpu, count)?;
        if let Err(error) = self.map_list(at, pages, protection) {
            if self.blocks.free(cpu, at, count).is_err() {
                let bytes = Pages::new(count).checked_bytes().unwrap_or(0);
                self.broken("MP5", VaRange::from_size(at, bytes).unwrap_or_default());
            }
            return Err(error);
        }
        self.count(Kind::Block, count, true);
        Ok(at)
    }

    /// Ends a mapping of `pages` pages that [`vm_map_ram`](Self::vm_map_ram) created. Its addresses are allocated again
    /// after a flush.
    ///
    /// # Errors
    /// [`FreeError`], if no such mapping of that size starts at `at`. Nothing has changed.
    /// # Locks
    /// `closing`, then those of a free of a block; for more than [`RAM_PAGES_MAX`] pages those of
    /// [`vunmap`](Self::vunmap). Cost: O(1) and the pages.
    pub fn vm_unmap_ram(&self, cpu: u32, at: Va, pages: u64) -> Result<(), FreeError> {
        if pages == 0 || !self.is_small(pages) {
            return self.unmap_area(at, Wanted { kind: Kind::Ram, mapped: Some(pages) });
        }
        let Some(range) = VaRange::from_size(at, pages * va_base::PAGE_SIZE) else {
            return Err(UnmapError::BadCount { pages }.into());
        };
        // A block has no state between mapped and freed, and freed pages may be mapped for another caller right after a
        // flush. So of two callers that unmap the same mapping, the second must detect that before it unmaps anything.
        // Its entries tell, and first: if they are there, no other caller is about to free what is found then.
        self.machine.locking(LockClass::Closing);
        let closing = self.closing[(at.page_floor() / RAM_PAGES_MAX) as usize % CLOSINGS].lock();
        let mapped = self.extent().contains(at) && self.pages().leaf(at).is_some();
        let found = self.blocks.find_enclosing(at);
        let own = mapped && found == Some(range);
        if own {
            self.forget(range);
        }
        // The space may call the machine, which may free another mapping.
        drop(closing);
        if own {
            self.count(Kind::Block, pages, false);
            if self.blocks.free(cpu, at, pages).is_err() {
                self.broken("MP5", range);
            }
            return Ok(());
        }
        Err(match found {
            Some(own) if own == range => UnmapError::Twice { range }.into(),
            Some(other) if other.start() == at => {
                UnmapError::WrongCount { range: other, pages: Pages::new(pages) }.into()
            }
            Some(other) => UnmapError::NotMapped { at, inside: Some(other) }.into(),
            None => match self.record_around(at) {
                Some(entry) if entry.start() == at && entry.kind == Kind::Ram => {
                    FreeError::WrongCount { at, pages: Pages::new(pages), mapped: Pages::new(entry.mapped) }
                }
                Some(entry) if entry.start() == at => {
                    FreeError::WrongKind { area: entry.range(), kind: entry.kind }
                }
                _ => self.missing(at),
            },
        })
    }

    /// Returns true if a mapping is cut from a block.
    fn is_small(&self, pages: u64) -> bool {
        pages <= RAM_PAGES_MAX.min(self.blocks.block_pages().get())
    }
}
