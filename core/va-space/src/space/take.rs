//! Areas from the index: the lowest range, the highest one or the best fit, made busy under the lock of the index.

use super::VmapSpace;
use super::busy::Tables;
use super::locks::{Heap, HeapGuard};
use crate::area::{Area, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::lookup::Lookup;
use crate::map::{State, Word};
use va_base::sync::MutexGuard;
use va_base::{AllocError, Machine, Request, Va, VaRange};
use va_tree::FreeIndex;

/// Steps of a request between which `free` is released: enough for the row of an alignment of a million holes.
const STEPS_MAX: u32 = 1 << 13;

/// The range that a request gets of those that fit. A type, so that most programs have the code of one.
pub(super) trait Placement {
    /// True if a search is short: O(log holes). A purge for a request then searches after each slice.
    const IS_SHORT: bool = true;

    /// Takes the range from an index, or does a step of it: `None` if more is left to do.
    fn take<C: Config, I: FreeIndex>(index: &mut I, request: &Request) -> Result<Option<Va>, AllocError>;
}

/// The lowest range.
pub(super) struct Lowest;
/// The highest range.
struct Highest;
/// The lowest range in the smallest hole.
struct Best;

impl Placement for Lowest {
    #[inline(always)]
    fn take<C: Config, I: FreeIndex>(index: &mut I, request: &Request) -> Result<Option<Va>, AllocError> {
        C::take_lowest(index, request)
    }
}

impl Placement for Highest {
    fn take<C: Config, I: FreeIndex>(index: &mut I, request: &Request) -> Result<Option<Va>, AllocError> {
        index.alloc_highest_step(request)
    }
}

impl Placement for Best {
    const IS_SHORT: bool = false;

    fn take<C: Config, I: FreeIndex>(index: &mut I, request: &Request) -> Result<Option<Va>, AllocError> {
        index.alloc_best(request).map(Some)
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates the highest range that meets a request, as [`alloc`](Self::alloc) allocates the lowest. The area has
    /// no owner, and comes from no pool.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    /// # Locks
    /// `free`; all of them one after the other when nothing fits.
    /// Cost: O(log holes), with the exceptions of the index; a purge when nothing fits.
    pub fn alloc_highest(&self, request: &Request) -> Result<Area, SpaceError> {
        self.alloc_from_index::<Highest>(request, None)
    }

    /// Allocates the best fit: in the smallest hole that permits the request. The area has no owner, and comes from no
    /// pool: what is lazy or pooled is no hole.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    /// # Locks
    /// `free`; all of them one after the other when nothing fits.
    /// Cost: that of `FreeIndex::best_fit`: O(log holes) with a `BestFitIndex` as the index of `C`, O(holes) with
    /// others; a purge when nothing fits.
    pub fn alloc_best(&self, request: &Request) -> Result<Area, SpaceError> {
        self.alloc_from_index::<Best>(request, None)
    }

    /// Allocates a range that no pool has: from the index, and if nothing fits by all other steps.
    #[inline(always)]
    pub(super) fn alloc_from_index<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
    ) -> Result<Area, SpaceError> {
        if let Some(error) = self.impossible(request) {
            return Err(error);
        }
        match self.or_supplied::<F>(request, owner, self.take_from_index::<F>(request, owner)) {
            Err(SpaceError::NoSpace { .. } | SpaceError::WouldBlock { .. }) => {
                self.overflow::<F>(request, owner)
            }
            done => done,
        }
    }

    /// Takes a range from the index.
    #[inline]
    pub(super) fn take_from_index<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
    ) -> Result<Area, SpaceError> {
        let owner = match owner {
            // A request that may not wait allocates no node: the area gets no owner.
            Some(node) if !request.waits() && self.table.get(node).is_none() => None,
            Some(node) => self.ensure_node(node).map(|()| owner)?,
            None => None,
        };
        let mut heap = self.lock_free();
        let mut steps = 0;
        let taken = loop {
            match F::take::<C, _>(&mut heap.index, request).transpose() {
                Some(taken) => break taken,
                None => heap = self.between_steps(heap, request, &mut steps),
            }
        };
        match taken {
            Ok(at) if !request.waits() && !self.map.attach(&mut heap.marker, at.page_floor()) => {
                self.put_back(&mut heap, range_of(at.page_floor(), request.size().get()));
                Err(self.would_block(request))
            }
            Ok(at) => {
                let tables = if request.waits() { Tables::Missing } else { Tables::None };
                match self.begin(heap, at.page_floor(), request.size().get(), owner, tables) {
                    Err(SpaceError::NoTable) if !request.waits() => Err(self.would_block(request)),
                    done => done,
                }
            }
            Err(error) => Err(Self::not_yet(error)),
        }
    }

    /// Releases `free` between two steps of a request, and allocates the memory that the next one lacks. After
    /// [`STEPS_MAX`] it remains held, so that a request ends whatever others do.
    #[cold]
    #[inline(never)]
    fn between_steps<'a>(
        &'a self,
        heap: HeapGuard<'a, P, C>,
        request: &Request,
        steps: &mut u32,
    ) -> HeapGuard<'a, P, C> {
        *steps += 1;
        if *steps > STEPS_MAX {
            return heap;
        }
        drop(heap);
        if request.waits() {
            // Without it the request takes longer.
            let _supplied = self.supply(1);
        }
        self.lock_free()
    }

    /// Frees in the index what was just taken from it.
    #[cold]
    pub(super) fn put_back(&self, heap: &mut Heap<C::Index<P>>, range: VaRange) {
        if let Err(error) = heap.index.free(range) {
            self.machine.bug(format_args!("freeing what was just allocated: {error}"), None);
        }
    }

    /// Makes pages busy that were just taken from the index, or frees them if their slots or record are missing and
    /// cannot be allocated.
    #[inline]
    pub(super) fn begin<'a>(
        &'a self,
        heap: MutexGuard<'a, P::Lock, Heap<C::Index<P>>>,
        page: u64,
        pages: u64,
        owner: Option<u32>,
        tables: Tables,
    ) -> Result<Area, SpaceError> {
        self.begin_as(heap, (page, pages), owner, tables, State::Busy)
    }

    /// Begins an area in a state, as [`begin`](Self::begin) begins a busy one. One in another state is in no lookup.
    #[inline]
    pub(super) fn begin_as<'a>(
        &'a self,
        mut heap: MutexGuard<'a, P::Lock, Heap<C::Index<P>>>,
        (page, pages): (u64, u64),
        owner: Option<u32>,
        tables: Tables,
        state: State,
    ) -> Result<Area, SpaceError> {
        if Self::NOTIFIES_LOOKUP || !self.map.attach(&mut heap.marker, page) {
            let tables = tables.or_leaves(!Self::NOTIFIES_LOOKUP && heap.marker.lacks_leaves());
            self.release_slots(&mut heap, core::iter::once(page));
            heap.transit_pages += pages;
            drop(heap);
            let ready = self.ready_slots(1, |_| page, pages, tables);
            let error = ready.as_ref().err().copied();
            heap = ready.unwrap_or_else(|_| self.lock_free());
            heap.transit_pages -= pages;
            if let Some(error) = error {
                self.put_back(&mut heap, range_of(page, pages));
                drop(heap);
                self.note_return();
                return Err(error);
            }
        }
        let word = Word::new(pages, owner, self.map.last_generation(page) + 1, state);
        let _slot = self.map.begin(&mut heap.marker, page, pages, word);
        drop(heap);
        if state != State::Busy {
            self.lookup.remove(Va::from_page(page), &self.machine);
        }
        Ok(Area { page, pages, generation: word.generation() })
    }
}
