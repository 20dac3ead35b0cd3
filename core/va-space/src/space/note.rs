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

use super::VmapSpace;
use crate::area::{DetachedArea, range_of};
use crate::config::Config;
use crate::error::ReleaseError;
use crate::list::{Unflushed, UnlinkedArea};
use crate::lookup::Lookup;
use crate::map::{Seen, Slot, State, Word};
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
        let (Seen { word, .. }, slot) = self.steady_at(at).ok_or_else(|| self.no_area_at(at))?;
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
    /// [`ReleaseError::NoArea`] if no busy area starts there, or another call changes it; of two concurrent calls, one
    /// fails with it. Nothing has changed.
    /// # Locks
    /// Those of the lookup. Cost: O(1).
    #[inline(always)]
    pub fn detach(&self, at: Va) -> Result<DetachedArea, ReleaseError> {
        self.try_detach(at).ok_or_else(|| self.no_area_at(at))
    }

    /// Detaches an area as [`detach`](Self::detach) does, for a caller that needs no error: `None` is without the search
    /// for the area around `at`.
    ///
    /// # Locks
    /// Those of the lookup. Cost: O(1).
    #[inline(always)]
    pub fn try_detach(&self, at: Va) -> Option<DetachedArea> {
        self.detach_if(at, |_| true)
    }

    /// Detaches an area as [`try_detach`](Self::try_detach) does, if it has a note. One without, as a block of
    /// `va-block`, is not changed.
    ///
    /// # Locks
    /// Those of the lookup. Cost: O(1).
    #[inline(always)]
    pub fn try_detach_noted(&self, at: Va) -> Option<DetachedArea> {
        self.detach_if(at, Word::is_noted)
    }

    #[inline(always)]
    fn detach_if(&self, at: Va, is: impl Fn(Word) -> bool) -> Option<DetachedArea> {
        let (Seen { page, pages, word }, slot) = self.steady_at(at)?;
        if !is(word) {
            return None;
        }
        slot.exchange(word, word.with_state(State::Detached)).ok()?;
        self.lookup.remove(at, &self.machine);
        let note = word.is_noted().then(|| slot.note());
        Some(DetachedArea { page, pages, note })
    }

    /// Frees a detached area, for a caller in `context`; it cannot fail. A value of another space stops the machine.
    ///
    /// # Locks
    /// Those of [`free_in`](Self::free_in). Cost: O(1), and at most one slice.
    pub fn release(&self, context: Context, area: DetachedArea) {
        self.make_lazy(self.win_handle(&area));
        self.after_free(context);
    }

    /// Frees the detached area that starts at `at`, for a caller that stores no handle, and returns its range.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no detached area starts there. Of two concurrent calls one succeeds.
    /// # Locks
    /// Those of [`free_in`](Self::free_in). Cost: O(1), and at most one slice.
    pub fn release_at(&self, context: Context, at: Va) -> Result<VaRange, ReleaseError> {
        let freed = self.win_detached(at).ok_or_else(|| self.no_area_at(at))?;
        let range = range_of(freed.page, freed.pages);
        self.make_lazy(freed);
        self.after_free(context);
        Ok(range)
    }

    /// Claims the detached area that starts at `at` for the call that frees it.
    #[inline(always)]
    pub(super) fn win_detached(&self, at: Va) -> Option<UnlinkedArea<Unflushed>> {
        let seen = self.map.seen_slot(at.page_floor(), |word| word.state() == Some(State::Detached));
        let (Seen { page, pages, word }, slot) = seen.filter(|(seen, _)| Va::from_page(seen.page) == at)?;
        let idle = word.with_state(State::Idle);
        slot.exchange(word, idle).ok()?;
        Some(UnlinkedArea::won(page, pages, idle, slot))
    }

    /// Claims the area of a handle; a value of another space stops the machine.
    pub(super) fn win_handle(&self, area: &DetachedArea) -> UnlinkedArea<Unflushed> {
        let start = area.range().start();
        match self.win_detached(start) {
            Some(freed) if freed.pages == area.pages => freed,
            _ => self.machine.bug(
                format_args!("{} pages at {start} are released, and not detached here", area.pages),
                None,
            ),
        }
    }

    /// Returns the busy area that starts at `at`, if no other call is changing it.
    #[inline(always)]
    fn steady_at(&self, at: Va) -> Option<(Seen, &'static Slot)> {
        let seen = self.map.seen_slot(at.page_floor(), Word::is_steady);
        seen.filter(|(seen, _)| Va::from_page(seen.page) == at)
    }
}
