//! Claims: how one call takes an area that others may free, cut or reuse at the same moment.
//!
//! # Theory
//! A caller that errs frees an area twice. Say A and B both free the area at page 64, C gets the address in between,
//! with another size, and B's call is late. Had B's call only *looked* before that, and claimed the area by its address
//! now, it would take the area of C, who made no mistake.
//!
//! So a call claims **what it found**. [`Found`] is the slot of an area and its word, which has the size and a
//! generation. The claim is one compare-exchange from that word. B's fails, because C's area has another generation.
//!
//! ```text
//!   B: finds page 64, generation 7          claims "64, generation 7": fails, nothing has changed
//!   A:              frees it
//!   C:                          gets page 64, generation 8
//! ```
//!
//! A handle leads to its area by the generation. An address alone means whatever is there at the moment of the look-up.
//! Two functions begin with one and say why that is enough: [`found_at`](VmapSpace::found_at), and
//! [`found_around`](VmapSpace::found_around) for an address inside.
//!
//! [`free_as`](VmapSpace::free_as) is every free: a [`Release`] says how the caller names the area.
//!
//! # Locking
//! None, but that of the lookup where the policy finds areas by trees.
//! # Source
//! Our own. Linux finds and unlinks under one lock (`mm/vmalloc.c`, 6.12: `find_unlink_vmap_area`).

use super::VmapSpace;
use crate::area::{Area, DetachedArea, range_of};
use crate::config::Config;
use crate::error::ReleaseError;
use crate::list::{Unflushed, UnlinkedArea};
use crate::lookup::Lookup;
use crate::map::{Found, State, Word};
use va_base::{Context, Machine, Pages, Va, VaRange};

/// An area that a caller frees, and how the caller names it.
///
/// ```
/// # use va_base::{Context, HeapMachine, Pages, Request, VaRange};
/// # use va_space::{Release, ReleaseError, VmapSpace};
/// # let (window, machine) = (VaRange::from_pages(16, 64).unwrap(), HeapMachine::<parking_lot::RawMutex>::new(1));
/// let space = VmapSpace::<_>::new(window, window, &machine)?;
/// let at = space.alloc(0, &Request::pages(3)?)?.start();
/// // A free that names the size takes no area of another one.
/// let wrong = space.free_as(Release::Sized(at, Pages::new(4)), Context::Sleeping);
/// assert!(matches!(wrong, Err(ReleaseError::WrongSize { .. })));
/// assert!(space.free_as(Release::Sized(at, Pages::new(3)), Context::Sleeping).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an area that is not freed is lost"]
pub enum Release {
    /// The area of a handle. Not if it was freed, or has another size now.
    Handle(Area),
    /// The area that began with a handle, whatever size it has now. Not if it was freed.
    Resized(Area),
    /// The area that starts at an address, which the caller holds by the key of [`hold`](VmapSpace::hold).
    Held(Va, u32),
    /// An area in which nothing was mapped since it was allocated. It needs no flush.
    Unused(Area),
    /// An area that the caller detached ([`detach`](VmapSpace::detach)).
    Detached(DetachedArea),
    /// The busy area that starts at an address.
    At(Va),
    /// The busy area that starts at an address, if it has that size.
    Sized(Va, Pages),
    /// The detached area that starts at an address.
    DetachedAt(Va),
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Frees an area for a caller in `context`, and returns its addresses. They are allocated again only after a flush
    /// that covers them, or at once for [`Release::Unused`]. [`Context::Atomic`] suits an interrupt: the call never
    /// flushes, and never takes the purge lock.
    ///
    /// # Errors
    /// [`ReleaseError`] if no such area is there. Of two calls that free one area, at a time or one after the other,
    /// one fails. Nothing has changed then, also if another area is at the address by now.
    /// # Locks
    /// [`Context::Atomic`]: `lazy` of one node; and before it, where the policy finds areas by trees, `busy` of one
    /// node. [`Context::Sleeping`]: also `purge` and all below it if this call runs a slice of a purge.
    /// [`Release::Unused`]: `free` in place of `lazy`. Cost: O(1), and at most one slice; O(log holes) for
    /// [`Release::Unused`].
    #[inline(always)]
    pub fn free_as(&self, release: Release, context: Context) -> Result<VaRange, ReleaseError> {
        let unused = matches!(release, Release::Unused(_));
        let freed = self.claim_as(release)?;
        let range = range_of(freed.page, freed.pages);
        if unused {
            self.return_unused(freed);
        } else {
            self.make_lazy(freed);
            self.after_free(context);
        }
        Ok(range)
    }

    /// Claims an area for the call that frees it.
    #[inline(always)]
    pub(super) fn claim_as(&self, release: Release) -> Result<UnlinkedArea<Unflushed>, ReleaseError> {
        match release {
            Release::Handle(area) | Release::Unused(area) => self.claim(&area),
            Release::Resized(area) => self.claim_kept(&area, Word::is_steady, |_| true),
            Release::Held(at, key) => match self.found_at(at, Word::is_held) {
                Some(found) if found.word.generation() == key => self.win(found),
                _ => Err(self.no_area_at(at)),
            },
            Release::Detached(area) => {
                let handle = Area { page: area.page, pages: area.pages, generation: area.generation };
                self.claim_kept(&handle, Word::is_detached, |pages| pages == handle.pages)
            }
            Release::At(at) => match self.found_at(at, Word::is_steady) {
                Some(found) => self.win(found),
                None => Err(self.no_area_at(at)),
            },
            Release::Sized(at, size) => self.claim_sized(at, size),
            Release::DetachedAt(at) => match self.found_at(at, Word::is_detached) {
                Some(found) => self.win(found),
                None => Err(self.no_area_at(at)),
            },
        }
    }

    /// Claims the area of a handle.
    #[inline]
    fn claim(&self, area: &Area) -> Result<UnlinkedArea<Unflushed>, ReleaseError> {
        let Some(slot) = self.map.slot(area.page) else { return Err(self.no_area_at(area.start())) };
        let word = slot.word();
        // A handle of a freed area has an older generation than the present one, for any page of the slot.
        if word.is_of(area.pages, area.generation) {
            return self.win(Found::new(area.page, area.pages, word, slot));
        }
        self.claim_kept(area, Word::is_steady, |pages| pages == area.pages)
    }

    /// Claims an area by its generation, if its word and its size suit. This takes more steps, and finds a size that is
    /// not in the word.
    #[cold]
    fn claim_kept(
        &self,
        area: &Area,
        suits: impl Fn(Word) -> bool,
        has_size: impl Fn(u64) -> bool,
    ) -> Result<UnlinkedArea<Unflushed>, ReleaseError> {
        match self.map.found(area.page, suits) {
            None => Err(self.no_area_at(area.start())),
            Some(found) if found.word.generation() == area.generation && has_size(found.pages) => {
                self.win(found)
            }
            Some(_) => Err(ReleaseError::Reused { handle: area.range() }),
        }
    }

    /// Claims the busy area that starts at `at` and has that size.
    #[cold]
    fn claim_sized(&self, at: Va, size: Pages) -> Result<UnlinkedArea<Unflushed>, ReleaseError> {
        match self.found_at(at, Word::is_steady) {
            None => Err(self.no_area_at(at)),
            Some(found) if found.pages != size.get() => {
                Err(ReleaseError::WrongSize { area: range_of(found.page, found.pages), requested: size })
            }
            Some(found) => self.win(found),
        }
    }

    /// Finds the area that starts at an address, if its word suits, for a claim of what is found.
    ///
    /// A claim by a bare address begins here, or in [`found_around`](Self::found_around), and no more can be known: the
    /// caller means the area that is there now. The area is claimed as it was found here, or not at all. So a caller
    /// that errs takes the area *at its address* at worst, and never one elsewhere, or one that began later.
    #[inline(always)]
    pub(super) fn found_at(&self, at: Va, suits: impl Fn(Word) -> bool) -> Option<Found> {
        let page = at.page_floor();
        self.map.found(page, suits).filter(|_| Va::from_page(page) == at)
    }

    /// Finds the area that an address is inside, as [`found_at`](Self::found_at) finds one that starts there.
    pub(super) fn found_around(&self, at: Va, suits: impl Fn(Word) -> bool) -> Option<Found> {
        let seen = self.map.covering(at.page_floor())?;
        self.map.found(seen.page, |word| word == seen.word && suits(word))
    }

    /// Claims an area that was found, for a call that frees it: of all that try, one succeeds.
    #[inline(always)]
    fn win(&self, found: Found) -> Result<UnlinkedArea<Unflushed>, ReleaseError> {
        let Found { page, pages, word, .. } = found;
        let idle = word.with_state(State::Idle);
        match found.exchange(idle) {
            Ok(slot) => {
                // A detached area left the lookup when it was detached.
                if word.is_busy() {
                    self.lookup.remove(Va::from_page(page), &self.machine);
                }
                Ok(UnlinkedArea::won(page, pages, idle, slot))
            }
            Err(_) => Err(self.no_area_at(Va::from_page(page))),
        }
    }

    /// Holds the area of a handle: lookups find it, and no other call frees, cuts or notes it, until
    /// [`Release::Held`] frees it with the key that this returns. For a layer that cuts areas into parts, which a late
    /// free of something that was at the address before must not take. A note that it had is gone.
    ///
    /// # Errors
    /// Those of [`free`](Self::free). Nothing has changed.
    /// # Locks
    /// None. Cost: O(1).
    pub fn hold(&self, area: &Area) -> Result<u32, ReleaseError> {
        let at = area.start();
        let Some(found) = self.map.found(area.page, Word::is_steady) else { return Err(self.no_area_at(at)) };
        let key = found.word.generation();
        if (found.pages, key) != (area.pages, area.generation) {
            return Err(ReleaseError::Reused { handle: area.range() });
        }
        found.exchange(found.word.held()).map_err(|_| self.no_area_at(at))?;
        Ok(key)
    }
}
