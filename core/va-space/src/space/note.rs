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
//! A note is written by the owner of the area, before others know its address or while they only look it up. While it
//! is written, no other call takes the area.
//!
//! # Locking
//! None for a note; that of the lookup to detach; those of a free to release.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `find_unlink_vmap_area`, `remove_vm_area`, `free_unmap_vmap_area`; `va->vm` is the
//! note).

use super::{Release, VmapSpace};
use crate::area::DetachedArea;
use crate::config::Config;
use crate::error::ReleaseError;
use crate::lookup::Lookup;
use crate::map::{Found, State, Word};
use va_base::{Context, Machine, Va, VaRange};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Sets the note of the busy area that starts at `at` to a number, in place of an earlier one. Lookups return it
    /// from now on, until the area is freed; a concurrent one may return none. If the area is cut, the lower half has
    /// the note. If it is joined to another, the result has that of the lower one.
    ///
    /// The caller owns the area, as one that splits it does. A free or a detachment while the note is written fails, and
    /// may be repeated by the address. It does not wait: in an interrupt of the thread that writes, it would for ever.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no busy area starts there, or another call changes it. Nothing has changed.
    /// # Locks
    /// None. Cost: O(1).
    pub fn note(&self, at: Va, note: u64) -> Result<(), ReleaseError> {
        let found = self.found_at(at, Word::is_steady).ok_or_else(|| self.no_area_at(at))?;
        let word = found.word;
        // A free or a note begins from a steady word, so the link is this thread's until it restores one.
        let slot = found.exchange(word.held()).map_err(|_| self.no_area_at(at))?;
        slot.set_link(note);
        slot.put(word.with_note());
        Ok(())
    }

    /// Detaches the busy area that starts at `at`: no other caller finds or frees it, and its addresses are not
    /// allocated, until the caller releases it. A free by its handle fails from now on.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no busy area starts there, or another call changes it; of two concurrent calls, one
    /// fails with it. Nothing has changed.
    /// # Locks
    /// Those of the lookup. Cost: O(1).
    #[inline(always)]
    pub fn detach(&self, at: Va) -> Result<DetachedArea, ReleaseError> {
        let found = self.found_at(at, Word::is_steady);
        found.and_then(|found| self.detach_found(found)).ok_or_else(|| self.no_area_at(at))
    }

    /// Detaches the area that `at` is inside, if it has a note. One without, as a block of `va-block`, is not changed.
    /// For a kernel that frees areas by any of their addresses; nearly every caller has the start, which is quicker.
    ///
    /// # Locks
    /// Those of the lookup. Cost: O(1), that of a lookup.
    #[inline(always)]
    pub fn try_detach_noted(&self, at: Va) -> Option<DetachedArea> {
        match self.found_at(at, Word::is_noted_alone) {
            Some(found) => self.detach_found(found),
            None => self.detach_noted_around(at),
        }
    }

    /// Detaches the noted area around an address, as it was found there.
    #[cold]
    fn detach_noted_around(&self, at: Va) -> Option<DetachedArea> {
        self.detach_found(self.found_around(at, Word::is_noted_alone)?)
    }

    #[inline(always)]
    fn detach_found(&self, found: Found) -> Option<DetachedArea> {
        let Found { page, pages, word, .. } = found;
        let slot = found.exchange(word.with_state(State::Detached)).ok()?;
        self.lookup.remove(Va::from_page(page), &self.machine);
        let note = word.is_noted().then(|| slot.note());
        Some(DetachedArea { page, pages, generation: word.generation(), note })
    }

    /// Frees a detached area, for a caller in `context`.
    ///
    /// # Errors
    /// [`ReleaseError`] if another call released it by its address, which errs. Nothing has changed.
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1), and at most one slice.
    pub fn release(&self, context: Context, area: DetachedArea) -> Result<(), ReleaseError> {
        self.free_as(Release::Detached(area), context).map(|_| ())
    }

    /// Frees the detached area that starts at `at`, for a caller that stores no handle, and returns its range.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no detached area starts there. Of two concurrent calls one succeeds.
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1), and at most one slice.
    pub fn release_at(&self, context: Context, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::DetachedAt(at), context)
    }
}
