//! Notes, which are numbers that owners store with busy areas, and areas that are detached before they are freed.
//!
//! # Theory
//! A kernel has a record for each area (its mapping, its caller), and looks it up by an address. So a busy area has
//! room for one number, its **note**: the address of the record. A lookup returns it with the area, and the kernel
//! needs no tree of its own. An area is freed as in Linux. It is first **detached**: no other caller finds or frees it
//! any more. Then its pages are unmapped, and it is released, which frees it.
//!
//! ```text
//!          alloc         note             detach                release
//!   index -------> busy ------> busy, 77 --------> detached, 77 ---------> lazy ...
//!                   find: -     find: 77            find: nothing
//! ```
//!
//! A note takes no memory: an area that is busy is in no list, so the link of its slot is unused (`map`).
//!
//! # Locking
//! None for a note; that of the lookup to detach; those of a free to release.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `find_unlink_vmap_area`, `remove_vm_area`, `free_unmap_vmap_area`; `va->vm` is the
//! note).

use super::VmapSpace;
use crate::area::DetachedArea;
use crate::config::Config;
use crate::error::ReleaseError;
use crate::list::UnlinkedArea;
use crate::lookup::Lookup;
use crate::map::{Seen, Slot, State, Word};
use va_base::{Context, Machine, Va};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Sets the note of the busy area that starts at `at` to a number, in place of an earlier one. Lookups return it
    /// from now on, until the area is freed; a concurrent one may return none. If the area is cut, the lower half has
    /// the note. If it is joined to another, the result has that of the lower one.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no busy area starts there, or another call changes it. Nothing has changed.
    /// # Locks
    /// None. Cost: O(1).
    pub fn note(&self, at: Va, note: u64) -> Result<(), ReleaseError> {
        let (Seen { word, .. }, slot) = self.steady_at(at)?;
        // A free or a note begins from a steady word, so the link is this thread's until it restores one.
        slot.exchange(word, word.noting()).map_err(|_| self.no_area_at(at))?;
        slot.set_link(note);
        slot.put(word.with_note());
        Ok(())
    }

    /// Detaches the busy area that starts at `at`: no other caller finds or frees it, and its addresses are not
    /// allocated, until the caller releases it. A free by its handle fails from now on.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no busy area starts there; of two concurrent calls, one fails with it. Nothing has
    /// changed.
    /// # Locks
    /// Those of the lookup. Cost: O(1).
    pub fn detach(&self, at: Va) -> Result<DetachedArea, ReleaseError> {
        let (Seen { page, pages, word }, slot) = self.steady_at(at)?;
        slot.exchange(word, word.with_state(State::Detached)).map_err(|_| self.no_area_at(at))?;
        self.lookup.remove(at, &self.machine);
        let note = word.is_noted().then(|| slot.note());
        Ok(DetachedArea { page, pages, note })
    }

    /// Frees a detached area, for a caller in `context`; it cannot fail. A value of another space stops the machine.
    ///
    /// # Locks
    /// Those of [`free_in`](Self::free_in). Cost: O(1), and at most one slice.
    pub fn release(&self, context: Context, area: DetachedArea) {
        let DetachedArea { page, pages, .. } = area;
        let seen = self.map.seen_slot(page, |word| word.state() == Some(State::Detached));
        if let Some((seen, slot)) = seen.filter(|(seen, _)| seen.pages == pages) {
            let idle = seen.word.with_state(State::Idle);
            slot.put(idle);
            self.make_lazy(UnlinkedArea::won(page, pages, idle, slot));
            return self.after_free(context);
        }
        let start = Va::from_page(page);
        self.machine.bug(format_args!("{pages} pages at {start} are released, and not detached here"), None)
    }

    /// Returns the busy area that starts at `at`, if no other call is changing it.
    fn steady_at(&self, at: Va) -> Result<(Seen, &'static Slot), ReleaseError> {
        let seen = self.map.seen_slot(at.page_floor(), Word::is_steady);
        seen.filter(|(seen, _)| Va::from_page(seen.page) == at).ok_or_else(|| self.no_area_at(at))
    }
}
