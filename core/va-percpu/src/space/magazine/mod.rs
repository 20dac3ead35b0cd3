//! A magazine: zeroed objects that one CPU or thread holds, whose pairs take no shared lock.
//!
//! # Theory
//! An alloc in the space takes the lock `chunks`, and then zeroes the object in every unit. Linux does both for each
//! object. A caller that allocates and frees often owns a magazine and calls it instead. What it frees, from whichever
//! magazine or CPU, it holds for its next allocs.
//!
//! ```text
//!            refill: one lock, zeroed run by run                 zero: up to 16 at a time, no lock
//!   chunks -----------------------------------> clean <---------------------------------- dirty
//!     ^                                           '--- alloc ---> a caller --- free ---------^ |
//!     '------------------- flush of the oldest: one lock ---------------------------------------'
//! ```
//!
//! A steady load stays in its magazine. A caller that only allocates takes the lock once for a batch of up to 128
//! objects, and so does one that only frees. Objects of up to 256 bytes are cached, in ten sizes; other requests, and
//! those from the reserved section, go to the space.
//!
//! **Bound.** A magazine holds at most [`Config::CACHE_BYTES`] over all units, between [`MAGAZINE_BYTES_MIN`] and
//! [`MAGAZINE_BYTES_MAX`] of one unit. So it is 32 KiB of each unit up to 8 CPUs, 4 KiB with 64, and 2 KiB from 128 on.
//! What exceeds it is flushed, other classes first.
//!
//! **Contexts.** A caller that cannot wait may use a magazine: it takes what is there, or what is free in populated
//! pages, and no call of it waits. The tables that its objects need are allocated ahead (`tables`). The machine and the
//! backend are called under no lock of a magazine.
//!
//! **Errors.** A free of anything but a live object is a typed error, as in the space (`state`). Of two frees of an
//! object at the same time, one fails.
//!
//! **Shortage.** Before a request fails in the space or in a magazine, all magazines are drained, and it is tried
//! again. A CPU that goes offline and a shrinker drain, too ([`PercpuSpace::drain_cpu`],
//! [`PercpuSpace::drain_magazines`]). A magazine whose owner is in a call is left.
//!
//! # Locking
//! The magazine's own lock (Owner), once a call, with no lock held. Under it no lock is taken, nothing is called.
//! Batches are in no magazine on their way: taken from one under its lock, and put under `chunks` after it. The
//! protocol is in docs/protocols.md.
//!
//! # Cost
//! A pair: no locked operation but one for the state of the object, where the owner's lock has none. 21 KiB of memory
//! for each magazine. A batch holds `chunks` for up to 128 objects.
//!
//! # Source
//! Our own, after Bonwick's magazines. Linux `mm/percpu.c` (6.12: `pcpu_alloc_noprof`) takes `pcpu_lock` and clears
//! each copy for every object; Harry Yoo's RFC of 2025 measured the cost of that for `mm_struct`.

#[cfg(test)]
#[cfg(not(loom))]
mod broken;
pub(crate) mod cell;
mod class;
pub(crate) mod state;
mod tables;
mod validate;

use super::PercpuSpace;
use crate::backend::{Backend, Event};
use crate::config::Config;
use crate::error::{AllocError, FreeError, NewError};
use crate::offset::Offset;
use crate::request::{Context, Place, Request};
use crate::store::Store;
use crate::store::class::Class;
use cell::{Batch, Cell, Contents, MOST, add};
use class::{CLASSES, SIZES};
use state::{Freed, Headed, States};
use va_base::sync::MutexGuard;
use va_base::sync::atomic::Ordering;
use va_base::{LockClass, Machine, Va};

/// Fewest bytes of a unit that a magazine may hold.
pub const MAGAZINE_BYTES_MIN: u32 = 2 << 10;
/// Most bytes of a unit that a magazine may hold.
pub const MAGAZINE_BYTES_MAX: u32 = 32 << 10;
/// Dirty objects that are zeroed together.
const ZERO_MOST: usize = 16;

/// The result of a call that drains magazines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Objects that went back to the chunks.
    pub objects: u64,
    /// Magazines whose owner was in a call at that moment: they were not drained.
    pub busy: u64,
}

/// A cache of objects that its owner passes by `&mut`; see the module. A few words: the objects are in memory from the
/// machine.
///
/// ```
/// # use va_base::{HeapMachine, Va};
/// # use va_percpu::{BackendError, Geometry, PercpuSpace, Request, Sizes, config, km::{Blocks, KmChunks}};
/// # struct NoMore; // no memory at all: addresses are numbers here
/// # impl Blocks for NoMore {
/// #     fn alloc(&self, _bytes: u64) -> Result<Va, BackendError> {
/// #         Err(BackendError)
/// #     }
/// #     fn free(&self, _at: Va, _bytes: u64) {}
/// #     fn zero(&self, _at: Va, _bytes: u64) {}
/// #     fn is_zero(&self, _at: Va, _bytes: u64) -> Option<bool> {
/// #         None
/// #     }
/// # }
/// # let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
/// # let sizes = Sizes { unit: 65_536, fixed: 0, reserved: 0, dynamic: 20_480, atom: 4096, alloc: 262_144, units: 4 };
/// # let geometry = Geometry::new(sizes, Va::new(1 << 36)).unwrap();
/// let space = PercpuSpace::<_, _>::new(geometry, &machine, KmChunks(NoMore))?;
/// let mut magazine = space.magazine(0)?;
/// let counter = magazine.alloc(&Request::new(8, 8)).unwrap();
/// magazine.free(counter).unwrap();
/// assert!(magazine.free(counter).is_err());
/// // Any thread can drain it.
/// assert!(space.drain_cpu(0).objects > 0);
/// # Ok::<(), va_percpu::NewError>(())
/// ```
pub struct Magazine<'s, P: Machine, B: Backend, C: Config> {
    space: &'s PercpuSpace<P, B, C>,
    cell: &'static Cell<P::OwnerLock>,
    /// Bytes of one unit that it may hold.
    bytes_max: u32,
    /// Most objects of each class in a stack, and in a batch.
    most: [u8; CLASSES],
}

impl<P: Machine, B: Backend, C: Config> core::fmt::Debug for Magazine<'_, P, B, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Magazine").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// Returns the most objects of each class in a stack, and in a batch.
fn most(bytes_max: u32) -> [u8; CLASSES] {
    SIZES.map(|size| (bytes_max / 2 / size).min(MOST as u32) as u8)
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Creates a magazine for callers on CPU `cpu`, or for a thread. The only limit is the machine's memory: each
    /// magazine takes 21 KiB, used for one magazine after another until the space ends. With a policy whose
    /// [`Config::CACHE_BYTES`] is 0 it caches nothing.
    ///
    /// # Errors
    /// [`NewError::NoMeta`] if the machine has no memory for it.
    /// # Locks
    /// `chunks` for the first one.
    pub fn magazine(&self, cpu: u32) -> Result<Magazine<'_, P, B, C>, NewError> {
        if !self.states.is_used() {
            let made = Headed::alloc(&self.machine).ok_or(NewError::NoMeta)?;
            let guard = self.lock();
            let other = self.states.set_heads(made);
            drop(guard);
            if let Some(other) = other {
                other.free(&self.machine);
            }
        }
        let cell = self.cells.take(&self.machine, cpu).ok_or(NewError::NoMeta)?;
        let bytes_max = self.magazine_bytes();
        Ok(Magazine { space: self, cell, bytes_max, most: most(bytes_max) })
    }

    /// Returns the bytes of a unit that a magazine may hold.
    #[must_use]
    pub fn magazine_bytes(&self) -> u32 {
        match C::CACHE_BYTES {
            0 => 0,
            all => (all / self.geometry.sizes().units).clamp(MAGAZINE_BYTES_MIN, MAGAZINE_BYTES_MAX),
        }
    }

    /// Drains every magazine of every owner, for a machine that is short of memory. The objects go back to the chunks;
    /// [`tick`](Self::tick) releases their pages.
    ///
    /// # Locks
    /// That of a magazine, by `try_lock`, and `chunks`, one after the other. Waits for no owner. Cost: a free of each
    /// object in the space.
    pub fn drain_magazines(&self) -> Drained {
        self.drain_cells(|_| true)
    }

    /// Drains the magazines that were created for `cpu`, which goes offline. The magazine itself stays usable.
    ///
    /// # Locks
    /// Those of [`drain_magazines`](Self::drain_magazines).
    pub fn drain_cpu(&self, cpu: u32) -> Drained {
        self.drain_cells(|cell| cell.cpu.load(Ordering::Relaxed) == cpu)
    }

    fn drain_cells(&self, chosen: impl Fn(&Cell<P::OwnerLock>) -> bool) -> Drained {
        let mut drained = Drained::default();
        for cell in self.cells.each() {
            if cell.counts.cached.load(Ordering::Relaxed) == 0 || !chosen(cell) {
                continue;
            }
            let (objects, busy) = self.drain_cell(cell);
            drained.objects += objects;
            drained.busy += u64::from(busy);
        }
        drained
    }

    /// Drains a cell, batch by batch; stops where its owner is in a call. No more batches than a cell can fill, since
    /// its owner may fill it again meanwhile.
    fn drain_cell(&self, cell: &'static Cell<P::OwnerLock>) -> (u64, bool) {
        let mut objects = 0;
        for _ in 0..2 * SIZES.len() {
            self.machine.locking(LockClass::Owner);
            let Some(mut contents) = cell.try_lock() else { return (objects, true) };
            let batch = contents.take_any(0, usize::MAX);
            cell.publish(&contents);
            drop(contents);
            if batch.len == 0 {
                break;
            }
            objects += batch.len as u64;
            self.flush(batch.objects());
        }
        (objects, false)
    }

    /// Puts objects that were in a magazine back into their chunks.
    #[inline(never)]
    fn flush(&self, objects: &[u64]) {
        let mut store = self.lock();
        for &at in objects {
            self.states.end(at);
        }
        let put = store.put_batch(objects);
        drop(store);
        self.after_put(put, false);
    }

    /// Calls for the balance if it is `due`, or by the outcome of a batch that was put back.
    fn after_put(&self, put: Result<bool, FreeError>, due: bool) {
        match put {
            Ok(more) if due || more => self.call_for_balance(),
            Ok(_) => {}
            Err(error) => self.machine.bug(format_args!("MC1: a cached object: {error}"), None),
        }
    }

    /// Zeroes objects of a class in every unit, adjacent ones together.
    fn zero_all(&self, class: usize, objects: &[u64]) {
        let bytes = SIZES[class];
        let (mut start, mut end) = (0, 0);
        for &at in objects {
            if at == end && end > start {
                end += u64::from(bytes);
            } else if at + u64::from(bytes) == start {
                start = at;
            } else {
                self.zero_run(start, end);
                (start, end) = (at, at + u64::from(bytes));
            }
        }
        self.zero_run(start, end);
    }

    /// Zeroes a run, span by span: objects that are adjacent by address may be of two chunks.
    fn zero_run(&self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let base = self.states.span(at, None).map_or(Va::new(at), state::Span::base);
            let stop = end.min(self.states.span_end(at));
            self.backend.zero(&self.geometry, base, (at - base.get()) as u32, (stop - at) as u32);
            at = stop;
        }
    }
}

impl<P: Machine, B: Backend, C: Config> Magazine<'_, P, B, C> {
    #[inline(always)]
    #[track_caller]
    fn lock(&self) -> MutexGuard<'static, P::OwnerLock, Contents> {
        self.space.machine.locking(LockClass::Owner);
        self.cell.lock()
    }

    /// Returns the class of a request, if its objects are cached.
    #[inline(always)]
    fn class_of(request: &Request) -> Option<usize> {
        if C::CACHE_BYTES == 0 || request.place != Place::Anywhere {
            return None;
        }
        class::of(request.size, request.align)
    }

    /// Allocates an object, as [`PercpuSpace::alloc`] does: zero on every CPU.
    ///
    /// # Errors
    /// Those of [`PercpuSpace::alloc`], before which this magazine was drained, too.
    /// # Locks
    /// The magazine's; `chunks` for a refill; else those of [`PercpuSpace::alloc`], one after the other. For a caller
    /// that cannot wait never `grow`.
    /// Cost: O(1); a pair is a row of `results/counts.csv`. A refill of up to 128 objects; the backend's for zeroing.
    #[inline(always)]
    pub fn alloc(&mut self, request: &Request) -> Result<Offset, AllocError> {
        let Some(class) = Self::class_of(request) else { return self.space.alloc(request) };
        match self.take(class) {
            Some((at, base)) => Ok(self.publish(request, at, base)),
            None => self.alloc_further(request, class),
        }
    }

    /// Takes a clean object of a class, which is live then. Returns its address, and the base of its chunk.
    #[inline(always)]
    fn take(&mut self, class: usize) -> Option<(u64, Va)> {
        let mut contents = self.lock();
        let at = contents.stacks[class].pop()?;
        contents.bytes -= SIZES[class];
        let span = self.space.states.span(at, contents.last[0]);
        States::allocate(span, at, class);
        contents.last[0] = span;
        let counts = &self.cell.counts;
        add(&counts.allocs, 1);
        add(&counts.bytes, SIZES[class].into());
        self.cell.publish(&contents);
        Some((at, span.map_or(Va::new(at), state::Span::base)))
    }

    #[inline(always)]
    fn publish(&self, request: &Request, at: u64, base: Va) -> Offset {
        let offset = Offset::between(self.space.geometry.base(), at);
        let off = at.wrapping_sub(base.get()) as u32;
        self.space.backend.event(Event::Alloc { request: *request, base, off, offset });
        offset
    }

    /// Allocates an object of which the magazine holds no clean one.
    #[cold]
    #[inline(never)]
    fn alloc_further(&mut self, request: &Request, class: usize) -> Result<Offset, AllocError> {
        request.want()?;
        let atomic = request.context == Context::Atomic;
        add(&self.cell.counts.misses, 1);
        // A refill whose objects lack tables would be undone.
        let refills = !atomic || !self.space.lacking.load(Ordering::Relaxed);
        if (self.clean_some(class) || refills && self.refill(class, atomic))
            && let Some((at, base)) = self.take(class)
        {
            return Ok(self.publish(request, at, base));
        }
        // One object as large as the class, which is cached once it is freed.
        let bytes = SIZES[class] as usize;
        let whole = Request { size: bytes, align: 1 << bytes.trailing_zeros(), ..*request };
        if let Ok(offset) = self.space.alloc_once(&whole) {
            let at = offset.at(self.space.geometry.base()).get();
            if self.space.make_states(at, atomic) {
                let mut store = self.space.lock();
                // Unless a free that is a mistake was faster. If another caller has an object of this size there by
                // now, that one can be cached, too.
                if store.is_allocated(at, SIZES[class]) {
                    self.space.states.adopt(at, class);
                }
            }
            return Ok(offset);
        }
        self.space.alloc(request)
    }

    /// Zeroes the latest dirty objects. Returns whether there are clean ones now.
    #[inline(never)]
    fn clean_some(&mut self, class: usize) -> bool {
        let mut contents = self.lock();
        let mut objects = [0; ZERO_MOST];
        let taken = contents.take_dirty(class, &mut objects);
        self.cell.publish(&contents);
        drop(contents);
        if taken == 0 {
            return false;
        }
        self.add_clean(class, &objects[..taken]);
        true
    }

    /// Zeroes objects that no magazine holds, and adds them to the clean ones.
    fn add_clean(&mut self, class: usize, objects: &[u64]) {
        self.space.zero_all(class, objects);
        let bytes = objects.len() as u32 * SIZES[class];
        add(&self.cell.counts.zeroed, bytes.into());
        let mut contents = self.lock();
        // Only this owner adds objects, and there was room.
        contents.stacks[class].push_clean(objects);
        contents.bytes += bytes;
        self.cell.publish(&contents);
    }

    /// Takes objects of a class from the chunks. Returns whether there are clean ones now.
    #[inline(never)]
    fn refill(&mut self, class: usize, atomic: bool) -> bool {
        let room = self.make_room_for(class);
        let mut batch = Batch::EMPTY;
        self.take_from_chunks(class, atomic, room, &mut batch);
        if batch.len == 0 {
            return false;
        }
        add(&self.cell.counts.refills, 1);
        self.add_clean(class, batch.objects());
        true
    }

    /// Flushes objects of other classes until a refill fits the share. Returns the objects that fit.
    // Not inlined, since a batch is a kilobyte of stack.
    #[inline(never)]
    fn make_room_for(&self, class: usize) -> usize {
        let size = SIZES[class];
        let mut contents = self.lock();
        let count = u32::from(contents.stacks[class].refill(size, self.most[class]));
        let evicted = contents.take_any(self.bytes_max.saturating_sub(count * size), class);
        let room = (self.bytes_max.saturating_sub(contents.bytes) / size).min(count);
        self.cell.publish(&contents);
        drop(contents);
        if evicted.len > 0 {
            self.flush(evicted.objects());
        }
        room as usize
    }

    /// Fills a batch with up to `room` objects that can be cached, none of which is in use or cached.
    fn take_from_chunks(&self, class: usize, atomic: bool, room: usize, batch: &mut Batch) {
        // Twice: the first time the objects may lack tables.
        for _ in 0..2 {
            let Some(into) = batch.at.get_mut(batch.len..room) else { return };
            let (kept, taken) = self.take_some(class, atomic, into);
            let lacking = &into[kept..taken];
            batch.len += kept;
            // They are in the chunks again.
            if !lacking.iter().all(|&at| self.space.make_states(at, atomic)) || lacking.is_empty() {
                return;
            }
        }
    }

    /// Takes objects from the chunks. Those at the front of `into` are cached now, and the others lack tables and went
    /// back. Returns the number of the first ones, and that of all.
    fn take_some(&self, class: usize, atomic: bool, into: &mut [u64]) -> (usize, usize) {
        let want = class::want(class);
        let slots = Class::of(want, C::CLASS_WORDS);
        if let Some(slots) = slots {
            let mut of_slabs =
                |store: &mut Store<C>, into: &mut [u64]| store.take_slots_of_new(slots, want, into);
            let mut taken = self.take_marked(class, into, &mut of_slabs);
            if taken.1 == 0 && self.space.make_slab(slots, want, atomic, Store::wants_slab) {
                taken = self.take_marked(class, into, &mut of_slabs);
            }
            if taken.1 > 0 {
                return taken;
            }
        }
        self.take_marked(class, into, &mut |store, into| store.take_batch(want, slots, into))
    }

    /// Takes objects by `take`, and notes that they are cached, or puts them back, all under one hold of `chunks`. So a
    /// free of one of them, which is a mistake, finds it cached.
    fn take_marked(
        &self,
        class: usize,
        into: &mut [u64],
        take: &mut dyn FnMut(&mut Store<C>, &mut [u64]) -> usize,
    ) -> (usize, usize) {
        let space = self.space;
        let mut store = space.lock();
        let taken = take(&mut store, into);
        let (mut kept, mut end, mut last) = (0, taken, None);
        while kept < end {
            if space.states.begin(into[kept], class, &mut last) {
                kept += 1;
            } else {
                end -= 1;
                into.swap(kept, end);
            }
        }
        let put = store.put_batch(&into[kept..taken]);
        // As for one object: a refill that leaves few populated pages calls for the balance.
        let low = store.totals.spare_pages < i64::from(C::SPARE_PAGES_LOW);
        drop(store);
        space.after_put(put, low);
        (kept, taken)
    }

    fn flush(&self, objects: &[u64]) {
        add(&self.cell.counts.flushes, 1);
        self.space.flush(objects);
    }

    /// Frees an object, whichever magazine it is from, or the space. In any context.
    ///
    /// # Errors
    /// The offset is not the start of a live object; nothing has changed.
    /// # Locks
    /// The magazine's; `chunks` for a flush, after it.
    /// Cost: O(1), with one locked operation; a flush up to 128 frees of the space.
    #[inline(always)]
    pub fn free(&mut self, offset: Offset) -> Result<(), FreeError> {
        let at = offset.at(self.space.geometry.base()).get();
        if C::CACHE_BYTES > 0 {
            let mut contents = self.lock();
            let span = self.space.states.span(at, contents.last[1]);
            match span.map_or(Freed::Plain, |span| self.space.states.free(span, at)) {
                Freed::Cached(class, base) => {
                    contents.last[1] = span;
                    add(&self.cell.counts.frees, 1);
                    let size = SIZES[class];
                    let fits = contents.bytes + size <= self.bytes_max;
                    if fits && contents.stacks[class].push_dirty(at, self.most[class]) {
                        contents.bytes += size;
                        self.cell.publish(&contents);
                        drop(contents);
                    } else {
                        self.make_room(contents, class, at);
                    }
                    let off = at.wrapping_sub(base.get()) as u32;
                    self.space.backend.event(Event::Free { base, off, offset });
                    return Ok(());
                }
                Freed::Lost => return Err(FreeError::NoObject { offset, inside: None }),
                Freed::Plain => {}
            }
        }
        self.space.free_plain(offset)
    }

    /// Flushes objects, and then adds one to the dirty ones.
    #[cold]
    #[inline(never)]
    fn make_room(&self, mut contents: MutexGuard<'static, P::OwnerLock, Contents>, class: usize, at: u64) {
        let (size, most) = (SIZES[class], self.most[class]);
        let batch = if contents.stacks[class].dirty_len >= most {
            contents.take_oldest(class)
        } else {
            // Half of the share, so that the next free finds room, too.
            contents.take_any(self.bytes_max / 2, class)
        };
        // The class may hold all of the share alone, in its clean objects.
        let fits = contents.bytes + size <= self.bytes_max && contents.stacks[class].push_dirty(at, most);
        if fits {
            contents.bytes += size;
        }
        self.cell.publish(&contents);
        drop(contents);
        if batch.len > 0 {
            self.flush(batch.objects());
        }
        if !fits {
            self.flush(&[at]);
        }
    }
}

impl<P: Machine, B: Backend, C: Config> Drop for Magazine<'_, P, B, C> {
    /// Puts all objects back into their chunks.
    fn drop(&mut self) {
        loop {
            let mut contents = self.lock();
            let batch = contents.take_any(0, usize::MAX);
            contents.last = [None; 2];
            self.cell.publish(&contents);
            drop(contents);
            if batch.len == 0 {
                break;
            }
            self.flush(batch.objects());
        }
        // Release pairs with the acquire of the next magazine there: the cell is empty.
        self.cell.taken.store(false, Ordering::Release);
    }
}
