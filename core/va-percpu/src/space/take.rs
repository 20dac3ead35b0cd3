//! Slabs, chunks, and pages for objects that were taken where some are missing.
//!
//! # Theory
//! A request takes its object under `chunks`, and populates the pages that it lacks under `grow`. Meanwhile it is an
//! object of the chunks that no caller has. For example, a caller frees an offset a second time while a slab of 64 slots
//! is about to begin there. If that free succeeded, the slab would begin on free bytes, and so share them with the next
//! object. So the store has the places of such objects (`taking`), and no free finds them.
//!
//! There are two places: one for a request that waits for `grow`, and one for the request that has it. A request that
//! finds the first one in use gives its object back, waits for `grow` with none, and takes it once more.
//!
//! # Locks
//! As of the space: `grow` > `chunks`.

use super::PercpuSpace;
use crate::backend::{Backend, Event};
use crate::bitmap::BIT_BYTES;
use crate::config::Config;
use crate::engine::Want;
use crate::error::AllocError;
use crate::offset::Offset;
use crate::request::Request;
use crate::rows::Row;
use crate::store::class::{Class, Dissolved, Slot};
use crate::store::{Store, Taken};
use va_base::sync::MutexGuard;
use va_base::{Machine, Va};

/// The lock of the chunks, held.
type Held<'a, P, C> = MutexGuard<'a, <P as Machine>::Lock, Store<C>>;

/// An object or a slab that is to be taken from the chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// An object in any chunk.
    Anywhere(Want),
    /// An object in the reserved section.
    Reserved(Want),
    /// An object at an address.
    At(u64, Want),
    /// A slab.
    Slab(Class),
}

impl Wanted {
    /// Takes it; with `populated`, only where pages are populated.
    #[inline(always)]
    pub(super) fn take<C: Config>(self, store: &mut Store<C>, populated: bool) -> Option<Taken> {
        match self {
            Self::Anywhere(want) => store.take_any(want, populated),
            Self::Reserved(want) => store.take_reserved(want, populated),
            Self::At(at, want) => store.take_exact(at, want.bits),
            Self::Slab(class) => store.take_slab(class, populated),
        }
    }

    /// Returns the length of the row of slabs that is missing before it can begin.
    fn row_wanted<C: Config>(self, store: &Store<C>, row: u32) -> Option<u32> {
        if matches!(self, Self::Slab(_)) { store.slab_row_wanted(row) } else { None }
    }

    /// Makes what it is of a taken object, all of whose pages are populated. Returns whether the balance is due; `None` if
    /// a slab cannot begin there, and the place is free.
    fn begin<C: Config>(self, store: &mut Store<C>, taken: Taken) -> Option<bool> {
        match self {
            Self::Anywhere(want) | Self::Reserved(want) | Self::At(_, want) => {
                store.totals.count(want);
                Some(false)
            }
            Self::Slab(class) => store.begin_slab(class, taken),
        }
    }
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Frees what was taken for nothing, and calls for the balance: a chunk or pages may have been added for it.
    #[cold]
    fn undo_take(&self, mut store: Held<'_, P, C>, taken: Taken) {
        let _bits = store.free_uncounted(taken.row, taken.at);
        // The balance visits its chunk then, if there are pages to return.
        let _called_anyway = store.after_free(taken.row);
        drop(store);
        self.call_for_balance();
    }

    /// Populates the pages that a taken object of a request lacks, and publishes it. `None` as
    /// [`populate`](Self::populate).
    // Not inlined: it would lengthen the frame of every request.
    #[cold]
    #[inline(never)]
    pub(super) fn populate_object(
        &self,
        request: &Request,
        store: Held<'_, P, C>,
        wanted: Wanted,
        taken: Taken,
    ) -> Result<Option<Offset>, AllocError> {
        let Some((taken, base)) = self.populate(store, wanted, taken)? else { return Ok(None) };
        let bytes = request.want()?.bits * BIT_BYTES;
        Ok(Some(self.publish(request, base, taken.at * BIT_BYTES, bytes)))
    }

    /// Populates the pages that a taken object lacks, and begins what was wanted. Returns the object and the base of its
    /// chunk; `None` if there was no room any more after a wait.
    ///
    /// # Errors
    /// The backend populated none, or the machine has no memory for a row of slabs. Then the place is free again.
    #[cold]
    fn populate<'a>(
        &'a self,
        mut store: Held<'a, P, C>,
        wanted: Wanted,
        mut taken: Taken,
    ) -> Result<Option<(Taken, Va)>, AllocError> {
        let (place, mut grow) = if store.taking[0].is_none() {
            store.taking[0] = Some((taken.row, taken.at));
            drop(store);
            let grow = self.lock_grow();
            store = self.lock();
            (0, grow)
        } else {
            self.undo_take(store, taken);
            let grow = self.lock_grow();
            store = self.lock();
            let Some(again) = wanted.take(&mut store, false) else { return Ok(None) };
            taken = again;
            store.taking[1] = Some((taken.row, taken.at));
            (1, grow)
        };
        let (base, pages) = (Va::new(store.chunk(taken.row).base), store.pages_of(taken));
        let mut lacks = Ok(());
        if let Some(len) = wanted.row_wanted(&store, taken.row) {
            drop(store);
            let row = Row::alloc(len, &self.machine);
            store = self.lock();
            match row {
                Some(row) => store.put_slab_row(taken.row, row),
                None => lacks = Err(AllocError::NoMeta { chunks: store.totals.chunks }),
            }
        }
        while lacks.is_ok()
            && let Some(run) = store.run_of_pages(taken.row, pages.start, pages.end, false)
        {
            drop(store);
            self.flush_before_populating(&mut grow, taken.row, base);
            let populated = self.backend.populate(&self.geometry, base, run.clone());
            store = self.lock();
            match populated {
                Ok(()) => store.note_populated(taken.row, run),
                Err(_) => {
                    lacks = Err(AllocError::NotPopulated { page: run.start, pages: run.end - run.start });
                }
            }
        }
        store.taking[place] = None;
        if let Err(error) = lacks {
            self.undo_take(store, taken);
            return Err(error);
        }
        let Some(due) = wanted.begin(&mut store, taken) else {
            return Err(AllocError::NoMeta { chunks: store.totals.chunks });
        };
        let low = store.totals.spare_pages < i64::from(C::SPARE_PAGES_LOW);
        drop(store);
        drop(grow);
        if low || due {
            self.call_for_balance();
        }
        // Others have the rest of the first page, and of the last one.
        self.make_tables(base, pages.start..pages.start + 1);
        self.make_tables(base, pages.end - 1..pages.end);
        Ok(Some((taken, base)))
    }

    /// Takes a slot, from a new slab if no other has room. `None` if none can be created.
    #[inline(always)]
    pub(super) fn take_slot(&self, class: Class, want: Want, atomic: bool) -> Option<Slot> {
        loop {
            if let Some(slot) = self.lock().take_slot(class, want) {
                return Some(slot);
            }
            if !self.make_slab(class, want, atomic, Store::wants_slab_for_one) {
                return None;
            }
        }
    }

    /// Creates a slab where there is room, if the store `wants` one; it creates no chunk.
    #[cold]
    pub(crate) fn make_slab(
        &self,
        class: Class,
        want: Want,
        atomic: bool,
        wants: fn(&mut Store<C>, Class, Want) -> bool,
    ) -> bool {
        let mut store = self.lock();
        if !wants(&mut store, class, want) {
            return false;
        }
        let Some(taken) = store.take_slab(class, atomic) else { return false };
        // A caller that cannot wait uses the pages and rows that are there.
        if !atomic && (taken.missing || store.slab_row_wanted(taken.row).is_some()) {
            // If there was no room any more, another caller has it, and perhaps made a slab.
            return self.populate(store, Wanted::Slab(class), taken).is_ok();
        }
        let made = store.begin_slab(class, taken);
        let low = store.totals.spare_pages < i64::from(C::SPARE_PAGES_LOW);
        drop(store);
        if low || made == Some(true) {
            self.call_for_balance();
        }
        made.is_some()
    }

    /// Dissolves sparse slabs until there may be room, in steps between which the lock is released; one step for a
    /// caller that cannot wait. Returns the lock if nothing can be gained.
    #[cold]
    pub(super) fn dissolve<'a>(
        &'a self,
        mut store: Held<'a, P, C>,
        want: Want,
        atomic: bool,
        looked: &mut u32,
    ) -> Result<(), Held<'a, P, C>> {
        let first = *looked == 0;
        loop {
            if atomic && !first {
                return Err(store);
            }
            match store.dissolve(want, looked) {
                Dissolved::Some => return Ok(()),
                Dissolved::Nothing => return Err(store),
                Dissolved::Searching if atomic => return Err(store),
                Dissolved::Searching => {
                    drop(store);
                    store = self.lock();
                }
            }
        }
    }

    /// Creates a chunk, unless one is wholly free, or the number of created chunks is no longer `made`. In that case
    /// the caller that created one may have used it already, and there may be room for others.
    #[cold]
    pub(super) fn make_one_if_none(&self, made: u32) -> Result<(), AllocError> {
        let grow = self.lock_grow();
        let free = self.geometry.slots().free as usize;
        {
            let store = self.lock();
            if store.lists.first[free] != crate::chunk::NIL || store.totals.made != made {
                return Ok(());
            }
        }
        let made = self.make();
        drop(grow);
        made.map(drop)
    }

    /// Creates a chunk and puts it in its list. The caller holds `grow`.
    pub(super) fn make(&self) -> Result<u32, AllocError> {
        let (need, chunks) = {
            let store = self.lock();
            (store.need(), store.totals.chunks)
        };
        // Reserved first: once the backend has created the chunk, nothing can fail.
        if !need.is_none() {
            let Some(more) = need.alloc(&self.machine) else { return Err(AllocError::NoMeta { chunks }) };
            let old = self.lock().grow(more);
            old.free(&self.machine);
        }
        // No other caller uses the rows of the next chunk: they are initialized with no lock of the chunks held.
        let mut rows = self.lock().take_rows();
        rows.wipe(&self.geometry);
        let created = self.backend.create(&self.geometry);
        let mut store = self.lock();
        let row = store.put_rows(rows);
        let base = created.map_err(|_| AllocError::NoChunk { chunks })?;
        store.add(row, base);
        if !B::BY_PAGE {
            store.note_populated(row, 0..self.geometry.unit_pages());
        }
        store.relocate_new(row);
        drop(store);
        self.backend.event(Event::CreateChunk { base });
        Ok(row)
    }
}
