//! A lane: a block that one owner allocates from, under a lock of its own that other threads only try.
//!
//! # Theory
//! A caller that maps and unmaps often (a CPU, a thread) owns a lane and calls it instead of the blocks. The lane takes
//! an open block out of the list of its CPU and allocates from it with plain stores. Other callers free as before. When
//! the block has no room, it returns to the list and the lane takes another. A free by the lane itself finds the lane's
//! block without the lookup.
//!
//! The slot of the lane, in memory of the machine, has the block under a lock ([`Machine::OwnerLock`]) that the owner
//! takes to allocate. So another thread can take the block of a lane whose owner sleeps: a request in a full space, a
//! shrinker, a CPU that goes offline. The owner holds the lock while it allocates, and never while it looks for another
//! block.
//!
//! While the space has room, a lane keeps its block, and the bound of blocks counts lanes as it counts CPUs (VB8). For
//! example, 64 lanes on one CPU map and unmap a page in turn. They have 64 blocks, and a pair of each is as fast as if
//! it were alone. If lanes did not count, each would take the block of another for every pair.
//!
//! # Locking
//! `Owner` for an alloc from the lane's block, one compare-exchange for a free in any block. A drain holds `Collect` for
//! a slice of the lanes at a time, and takes `Owner` by `try_lock`. No lock is taken under `Owner`.
//!
//! Lanes may end between two slices of a drain. So a drain counts itself at the lane where it pauses. If that lane ends
//! meanwhile, its slot stays in the list, and the drain that goes on from there frees it.
//! # Source
//! Our own.

use super::{Ask, Blocks};
use crate::block::{Block, FlushState, Place};
use crate::config::{Config, Standard};
use crate::error::{BlockError, UnmapError};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard, RawMutex};
use va_base::{Context, LockClass, Machine, Meta, PAGE_SHIFT, Table, Va};

/// The state of a lane that other threads can find. In cache lines of its own.
#[repr(align(128))]
pub(super) struct Slot<O: 'static, L: 'static> {
    /// The block of the lane. The owner stores one, any thread may take it out.
    held: Mutex<O, Option<&'static Block>>,
    /// The CPU that the lane was created for. Protocol PR-HINT.
    cpu: AtomicU64,
    /// Under the lock of the collection.
    links: Mutex<L, Links<O, L>>,
}

type Next<O, L> = Option<&'static Slot<O, L>>;

/// The place of a slot among all.
struct Links<O: 'static, L: 'static> {
    next: Next<O, L>,
    prev: Next<O, L>,
    /// Drains that pause at this slot.
    paused: u32,
    /// The lane has ended; the last drain that pauses here frees the slot.
    ended: bool,
}

impl<O, L> Table for Slot<O, L>
where
    O: RawMutex + Send + Sync + 'static,
    L: RawMutex + Send + Sync + 'static,
{
    va_base::empty_table! {
        Self {
            held: Mutex::new(None),
            cpu: AtomicU64::new(0),
            links: Mutex::new(Links { next: None, prev: None, paused: 0, ended: false }),
        }
    }
}

impl<O: RawMutex, L: RawMutex> Slot<O, L> {
    fn next(&self) -> Next<O, L> {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        self.links.lock().next
    }

    /// Keeps the slot in the list until [`Lanes::go_on`], for a drain that unlocks the collection.
    pub(super) fn pause(&self) {
        self.links.lock().paused += 1;
    }
}

/// The slots of all lanes. Under the lock of the collection.
pub(super) struct Lanes<O: 'static, L: 'static> {
    first: Next<O, L>,
}

impl<O: RawMutex, L: RawMutex> Lanes<O, L> {
    pub(super) const fn new() -> Self {
        Self { first: None }
    }

    /// Returns how many lanes there are, one by one.
    pub(super) fn count(&self) -> u64 {
        let all = core::iter::successors(self.first, |slot| slot.next());
        all.filter(|slot| !slot.links.lock().ended).count() as u64
    }

    fn push(&mut self, slot: &'static Slot<O, L>) {
        slot.links.lock().next = self.first;
        if let Some(first) = self.first.replace(slot) {
            first.links.lock().prev = Some(slot);
        }
    }

    fn remove(&mut self, slot: &'static Slot<O, L>) {
        let (next, prev) = {
            let links = slot.links.lock();
            (links.next, links.prev)
        };
        if let Some(next) = next {
            next.links.lock().prev = prev;
        }
        match prev {
            Some(prev) => prev.links.lock().next = next,
            None => self.first = next,
        }
    }

    /// Ends a lane; returns whether its slot is in no list now, and the caller frees it.
    fn end(&mut self, slot: &'static Slot<O, L>) -> bool {
        let is_free = {
            let mut links = slot.links.lock();
            links.ended = true;
            links.paused == 0
        };
        if is_free {
            self.remove(slot);
        }
        is_free
    }

    /// Continues a drain that paused at a slot; returns whether the slot is in no list now, and the caller frees it.
    pub(super) fn go_on(&mut self, slot: &'static Slot<O, L>) -> bool {
        let is_free = {
            let mut links = slot.links.lock();
            links.paused -= 1;
            links.ended && links.paused == 0
        };
        if is_free {
            self.remove(slot);
        }
        is_free
    }
}

/// A block that one caller allocates from by `&mut`; see the module.
///
/// ```
/// # use va_base::{HeapMachine, VaRange};
/// # use va_block::{Blocks, config};
/// # use va_space::VmapSpace;
/// # let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// # let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
/// # let space = VmapSpace::new(window, window, &machine)?;
/// let blocks = Blocks::<_>::new(space, &machine)?;
/// let mut lane = blocks.lane(2)?;
/// let at = lane.alloc(5)?;
/// lane.free(at, 5).unwrap();
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct Lane<'b, P: Machine + Clone, C: Config = Standard> {
    blocks: &'b Blocks<P, C>,
    slot: Meta<&'static Slot<P::OwnerLock, P::Lock>>,
    cpu: u32,
    /// The block that this lane stored in its slot last; another thread may have taken it out.
    block: Option<&'static Block>,
    /// First address of the block.
    base: Va,
    /// Freed pages that are not published yet. Protocol PR-HINT.
    freed: AtomicU64,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for Lane<'_, P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lane").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Creates a lane, without a block yet, for a caller on CPU `cpu`. The machine allocates a table for it.
    ///
    /// # Errors
    /// [`BlockError::NoTable`] if the machine has none.
    /// # Locks
    /// `Collect`, as when the lane is dropped.
    pub fn lane(&self, cpu: u32) -> Result<Lane<'_, P, C>, BlockError> {
        let slot = self.machine.alloc_table::<Slot<_, _>>().ok_or(BlockError::NoTable)?;
        slot.cpu.store(u64::from(cpu), Ordering::Relaxed);
        self.lock_collection().lanes.push(slot);
        self.lanes.fetch_add(1, Ordering::Relaxed);
        let slot = Meta::new(slot);
        Ok(Lane { blocks: self, slot, cpu, block: None, base: Va::ZERO, freed: AtomicU64::new(0) })
    }

    /// Returns the blocks of lanes to the lists of their CPUs: of the lanes of `cpu`, or of all. The owners continue
    /// with other blocks. Returns how many. For a CPU that goes offline, and for a machine that is short of space.
    ///
    /// A lane whose owner is allocating at the moment is skipped.
    ///
    /// # Locks
    /// `Collect` for a slice of [`Config::SLICE_BLOCKS`] lanes at a time, and under it `Owner` of each lane by
    /// `try_lock`, then `Queue`.
    /// Cost: O(lanes).
    pub fn drain_lanes(&self, cpu: Option<u32>) -> u64 {
        let of = |slot: &Slot<_, _>| cpu.is_none_or(|cpu| slot.cpu.load(Ordering::Relaxed) == u64::from(cpu));
        self.drain_where(of, |_| true)
    }

    /// Drains the lanes whose blocks hold no live page.
    pub(super) fn drain_dead_lanes(&self) -> u64 {
        self.drain_where(|_| true, Block::is_dead)
    }

    fn drain_where(
        &self,
        of: impl Fn(&Slot<P::OwnerLock, P::Lock>) -> bool,
        is: impl Fn(&Block) -> bool,
    ) -> u64 {
        let mut collection = self.lock_collection();
        let (mut drained, mut left) = (0, C::SLICE_BLOCKS);
        let mut at = collection.lanes.first;
        while let Some(slot) = at {
            if left == 0 {
                slot.pause();
                drop(collection);
                collection = self.lock_collection();
                left = C::SLICE_BLOCKS;
                at = slot.next();
                if collection.lanes.go_on(slot) {
                    self.machine.free_table(Meta::new(slot));
                    continue;
                }
            }
            left -= 1;
            drained += u64::from(of(slot) && self.drain_slot(slot, &is));
            at = slot.next();
        }
        drained
    }

    /// Drains one lane, unless its owner is allocating; returns whether it had a block as asked for. The collection is
    /// locked, so that no collection sees the block without an owner.
    fn drain_slot(&self, slot: &Slot<P::OwnerLock, P::Lock>, is: impl Fn(&Block) -> bool) -> bool {
        self.machine.locking(LockClass::Owner);
        let held = slot.held.try_lock().and_then(|mut held| held.take_if(|block| is(block)));
        if let Some(block) = held {
            self.park(Context::Sleeping, block);
        }
        held.is_some()
    }

    /// Puts a block that was taken out of a lane into the list of its CPU, for a caller in `context`.
    fn park(&self, context: Context, block: &'static Block) {
        let mut queue = self.lock_queue(block.cpu());
        // Under the lock: from here on, a collection that completes does this itself.
        recycle_completed::<C>(block);
        block.measure(self.pages);
        if block.room() == 0 {
            block.set_place(Place::Full);
        } else {
            queue.push::<C>(&self.lookup, block);
        }
        drop(queue);
        // Its last page may have died while the lane had it. Where dead pages are reused, none is counted.
        if block.dead_counted() == self.pages {
            self.release_dead(context, block);
        }
    }
}

impl<P: Machine + Clone, C: Config> Lane<'_, P, C> {
    /// Allocates `pages` pages, as [`Blocks::alloc`] does.
    ///
    /// # Errors
    /// The errors of [`Blocks::alloc`]. Before one that a block could have met fails, the lane's block was returned to
    /// its list.
    /// # Locks
    /// `Owner` from the lane's block; else those of [`Blocks::alloc`].
    #[inline]
    pub fn alloc(&mut self, pages: u64) -> Result<Va, BlockError> {
        self.alloc_in(Context::Sleeping, pages)
    }

    /// Allocates as [`alloc`](Self::alloc) does, for a caller in `context`; see [`Blocks::alloc_in`].
    ///
    /// # Errors
    /// The errors of [`Blocks::alloc_in`].
    #[inline]
    pub fn alloc_in(&mut self, context: Context, pages: u64) -> Result<Va, BlockError> {
        match self.take(pages) {
            Some(at) => Ok(at),
            None => self.alloc_further(context, pages),
        }
    }

    /// Allocates `pages` pages of the lane's block, where it was not used yet. `None` if it has no block, or no such
    /// pages left: [`alloc_in`](Self::alloc_in) looks further. It is a function of its own, since one without calls needs
    /// few registers, and nearly every alloc ends here.
    ///
    /// # Locks
    /// `Owner`. Cost: O(1).
    #[inline(always)]
    pub fn take(&mut self, pages: u64) -> Option<Va> {
        if pages.wrapping_sub(1) >= self.blocks.alloc_max {
            return None;
        }
        let held = self.lock();
        let page = (*held)?.carve(pages as u32, C::consumed(pages as u32))?;
        Some(self.va(page))
    }

    #[cold]
    fn alloc_further(&mut self, context: Context, pages: u64) -> Result<Va, BlockError> {
        if pages.wrapping_sub(1) >= self.blocks.alloc_max {
            return self.blocks.alloc_large(self.cpu, pages, context);
        }
        self.find_room(pages as u32, C::consumed(pages as u32), context)
    }

    /// Returns the address of a page of the lane's block.
    #[inline(always)]
    fn va(&self, page: u32) -> Va {
        Va::new(self.base.get() + (u64::from(page) << PAGE_SHIFT))
    }

    #[inline(always)]
    #[track_caller]
    fn lock(&self) -> MutexGuard<'static, P::OwnerLock, Option<&'static Block>> {
        self.blocks.machine.locking(LockClass::Owner);
        self.slot.held.lock()
    }

    /// Frees pages, as [`Blocks::free`] does; any caller may have allocated them.
    ///
    /// # Errors
    /// The errors of [`Blocks::free`].
    /// # Locks
    /// Those of [`Blocks::free`].
    #[inline]
    pub fn free(&mut self, at: Va, pages: u64) -> Result<(), UnmapError> {
        self.free_in(Context::Sleeping, at, pages)
    }

    /// Frees as [`free`](Self::free) does, for a caller in `context`; see [`Blocks::free_in`].
    ///
    /// # Errors
    /// The errors of [`Blocks::free_in`].
    #[inline]
    pub fn free_in(&mut self, context: Context, at: Va, pages: u64) -> Result<(), UnmapError> {
        if self.free_own(at, pages) { Ok(()) } else { self.free_further(context, at, pages) }
    }

    /// Frees pages of the lane's block, if they are between two multiples of 32 pages of it. Otherwise it returns false
    /// and changes nothing: [`free_in`](Self::free_in) does the rest. So it does where nothing is to be freed, or another
    /// thread frees in the same 32 pages at the moment. It is a function of its own, as is [`take`](Self::take).
    ///
    /// # Locks
    /// `Queue` of the CPU, for the first free in a block after a collection. Cost: O(1).
    #[inline(always)]
    pub fn free_own(&mut self, at: Va, pages: u64) -> bool {
        let Some(block) = self.block.filter(|_| C::REUSE) else { return false };
        // An address inside a page, or below the block, is beyond every page.
        let page = at.get().wrapping_sub(self.base.get()).rotate_right(PAGE_SHIFT);
        if page >= u64::from(self.blocks.pages) || !block.free_in_strip(page as u32, pages) {
            return false;
        }
        self.blocks.note_freed(&self.freed, pages);
        self.blocks.ensure_touched(block);
        true
    }

    #[cold]
    fn free_further(&mut self, context: Context, at: Va, pages: u64) -> Result<(), UnmapError> {
        match self.blocks.block_at(at) {
            Some((block, page)) => self.blocks.free_mapping(context, block, page, at, pages, &self.freed),
            None => self.blocks.free_large(context, at, pages),
        }
    }

    /// Returns the slot, for tests that stop a drain at it.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn slot(&self) -> &'static Slot<P::OwnerLock, P::Lock> {
        *self.slot
    }

    /// Returns whether the lane has a block.
    pub fn holds(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns the lane's block to the list of its CPU.
    ///
    /// # Locks
    /// `Owner`, then `Queue` of the CPU; where blocks are freed with their last mapping, those of [`Blocks::free`].
    pub fn park(&mut self) {
        self.block = None;
        let held = self.lock().take();
        if let Some(block) = held {
            self.blocks.park(Context::Sleeping, block);
        }
    }

    #[cold]
    fn find_room(&mut self, pages: u32, consumed: u32, context: Context) -> Result<Va, BlockError> {
        let mut held = self.lock();
        if let Some(block) = *held {
            recycle_completed::<C>(block);
            if let Some(page) = block.carve_anywhere(pages, consumed, self.blocks.pages) {
                return Ok(self.va(page));
            }
        }
        let full = held.take();
        drop(held);
        self.block = None;
        if let Some(block) = full {
            self.blocks.park(context, block);
        }
        let ask = Ask { cpu: self.cpu, pages, consumed, to: Place::Laned, context };
        let ((block, page), place) = self.blocks.find_room(ask)?;
        if place != Place::Laned {
            // The block stays with its CPU, and the next request looks again.
            return Ok(self.blocks.va(block, page));
        }
        self.base = self.blocks.va(block, 0);
        self.block = Some(block);
        *self.lock() = Some(block);
        Ok(self.va(page))
    }
}

/// Recycles the dead pages of a block if their flush is completed. Owner only.
fn recycle_completed<C: Config>(block: &Block) {
    if block.flush_state() == FlushState::Completed {
        block.recycle::<C>();
        block.set_flush_state(FlushState::None);
    }
}

impl<P: Machine + Clone, C: Config> Drop for Lane<'_, P, C> {
    fn drop(&mut self) {
        self.park();
        let freed = self.freed.load(Ordering::Relaxed);
        if C::REUSE && freed > 0 {
            self.blocks.freed.0.fetch_add(freed, Ordering::Relaxed);
        }
        // After its block was returned: until then it counts (VB8).
        self.blocks.lanes.fetch_sub(1, Ordering::Relaxed);
        let is_free = self.blocks.lock_collection().lanes.end(*self.slot);
        // A drain finds slots under the lock of the collection alone, and frees this one if it pauses there.
        if is_free {
            self.blocks.machine.free_table(self.slot);
        }
    }
}
