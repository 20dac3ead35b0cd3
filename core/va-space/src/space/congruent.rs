//! Several areas at fixed distances from one base, for a copy of the same object on each CPU or memory node.
//!
//! They are cut top down, away from where single areas grow, so that the distances can be met repeatedly. All are taken
//! under one hold of the lock of the index, and become busy once the machine allocated their slots; else all are freed.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `pcpu_get_vm_areas`).

use super::VmapSpace;
use super::busy::Tables;
use crate::area::range_of;
use crate::config::Config;
use crate::error::SpaceError;
use crate::map::{State, Word};
use va_base::{AllocError, Machine, Va, VaRange};
use va_tree::{Congruent, FreeIndex};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates several areas at fixed distances from one base, the highest possible, all or none
    /// (`pcpu_get_vm_areas`).
    ///
    /// The areas are at `base + offset` in the order of `areas`, have no owner, and are freed one by one by their
    /// start.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc) for a caller that may sleep.
    /// # Locks
    /// `free`; all of them one after the other when nothing fits.
    /// Cost: holes above the result times areas. That some dozen times, and a purge, when nothing fits.
    pub fn alloc_congruent(&self, areas: &Congruent<'_>) -> Result<Va, SpaceError> {
        let attempt = || {
            self.twice(areas.areas().len() as u64, || {
                let mut heap = self.lock_free();
                let got = heap.index.alloc_congruent(areas);
                if got.is_ok() {
                    heap.transit_pages += areas.pages().get();
                }
                got
            })
        };
        let mut got = attempt();
        if let Err(AllocError::NoSpace { .. }) = got {
            let _made = self.make_space(
                false,
                |_| None,
                || {
                    got = attempt();
                    (!matches!(got, Err(AllocError::NoSpace { .. }))).then_some(())
                },
            );
        }
        let base = got.map_err(|error| self.space_error(error))?;
        let pages_of = |&(offset, size): &(u64, u64)| {
            let range = VaRange::from_size(Va::new(base.get() + offset), size).unwrap_or_default();
            let (page, end) = range.whole_pages();
            (page, end - page)
        };
        let parts = || areas.areas().iter().map(pages_of);
        let mut readied = 0;
        let ready = parts().try_for_each(|(page, pages)| {
            self.ready(page, pages)?;
            readied += 1;
            Ok(())
        });
        let slots =
            ready.and_then(|()| self.lock_with_slots(|| parts().map(|(page, _)| page), Tables::Missing));
        let ready = slots.as_ref().map(|_| ()).map_err(|&error| error);
        if ready.is_err() {
            parts().take(readied).for_each(|(page, _)| self.unready(page));
        }
        let mut guard = slots.unwrap_or_else(|_| self.lock_free());
        let heap = &mut *guard;
        heap.transit_pages -= areas.pages().get();
        for (page, pages) in parts() {
            if ready.is_ok() {
                let word = Word::new(pages, None, self.map.last_generation(page) + 1, State::Busy);
                self.map.begin(&mut heap.marker, page, pages, word);
            } else if let Err(error) = heap.index.free(range_of(page, pages)) {
                self.machine.bug(format_args!("freeing what was just allocated: {error}"), None);
            }
        }
        drop(guard);
        if ready.is_err() {
            self.note_return();
        }
        ready.map(|()| base)
    }
}
