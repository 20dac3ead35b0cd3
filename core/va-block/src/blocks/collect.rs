//! The collection: it releases blocks without live mappings to the space, and flushes the dead pages of all others at
//! once.
//!
//! # Theory
//! The first free in a block since it was last examined pushes the block on a stack: it is **touched**. So the stack
//! has every block with a dead mapping that is not noted yet, including full blocks and blocks in lanes. It is used in
//! two ways:
//!
//! - **Reap**: take the stack and examine each block. A block without live mappings is released to the space unflushed,
//!   as in Linux: the space flushes it with all that is lazy there. Other blocks with dead pages are put on a list,
//!   **pending**. This needs no flush, so it is done whenever a block may not begin (VB8).
//! - **Collect**: four steps.
//!   - Reap.
//!   - **Note**, block by block, which pages are dead, and compute their hull.
//!   - **In flight**: one flush over the hull.
//!   - **Settle**: block by block, the noted pages are free again.
//!
//!   `unmap_aliases` has the space begin that flush, so that one flush covers the dead pages of blocks and the lazy areas
//!   of the space. A collection is run when as many pages are dead in blocks as may be lazy in a space.
//!
//! A CPU's current block remains without live mappings while a quarter of it is unused; so does a block in a lane. Both
//! are pushed on the stack again, to be examined later.
//!
//! The owner of a lane settles its block: the collection only records that the flush is completed. Pages that die in
//! the block before the owner reads this wait for another collection, although a flush covers them. That flush is
//! begun once: by how many there are the next collections know whether one died since.
//!
//! Both are run in slices of [`Config::SLICE_BLOCKS`] blocks, each under one hold of the lock.
//!
//! If dead pages are not reused, a block without live mappings and with few unused pages is released. The dead pages
//! of others are flushed once and noted.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `purge_fragmented_block`, `_vm_unmap_aliases`, `purge_fragmented_blocks_allcpus`).

use super::lane::Lanes;
use super::{Balance, Blocks};
use crate::block::{Block, FlushState, Hull, List, NIL, Place};
use crate::config::Config;
#[cfg(test)]
#[cfg(not(loom))]
use crate::lookup::Lookup;
use crate::queue::Queue;
use crate::ring::{COLLECTED, Ring};
use va_base::sync::RawMutex;
use va_base::sync::atomic::Ordering;
use va_base::{Context, Epoch, LockClass, Machine, Va, VaRange};

/// The result of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Blocks released to the space by this call.
    pub blocks: u64,
    /// A flush has not ended: call the same again later. A [`tick`](Blocks::tick) continues what is in progress, and
    /// begins nothing for an [`unmap_aliases`](Blocks::unmap_aliases).
    pub waiting: bool,
}

/// The extent of one pass over the touched blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reap {
    /// Until a block may begin.
    UntilBounded,
    /// Through all touched blocks. Those without live mappings are released even if they are about to be used.
    All,
}

enum Stage {
    Idle,
    /// Touched blocks are examined; the stack was taken since the collection began.
    Reap {
        taken: bool,
    },
    /// The dead pages of pending blocks are noted; the hull of those noted so far, in pages.
    Note {
        low: u64,
        high: u64,
    },
    /// All pages are noted, and the flush is about to begin.
    Noted {
        low: u64,
        high: u64,
    },
    InFlight {
        epoch: Epoch,
    },
    Settle,
}

/// The state in which a slice ends although it has budget left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    /// The flush is about to begin.
    Noted,
    /// The collection has to wait for a flush.
    Waiting,
}

fn hull_of(low: u64, high: u64) -> VaRange {
    VaRange::new(Va::from_page(low), Va::from_page(high)).unwrap_or(VaRange::ALL)
}

/// The state that the lock of the collection guards.
pub(super) struct Collection<O: 'static, L: 'static> {
    pub(super) lanes: Lanes<O, L>,
    stage: Stage,
    /// Blocks taken from the stack and not examined yet.
    rest: u32,
    pending: Ring<COLLECTED>,
    in_flight: Ring<COLLECTED>,
    /// Collections ended.
    pub(super) done: u64,
    pub(super) flushes: u64,
    /// Blocks released to the space.
    pub(super) released: u64,
    /// Pages recycled.
    pub(super) recycled: u64,
}

/// The collection on machine `P`.
pub(super) type CollectionOf<P> = Collection<<P as Machine>::OwnerLock, <P as Machine>::Lock>;

impl<O: RawMutex, L: RawMutex> Collection<O, L> {
    pub(super) const fn new() -> Self {
        Self {
            lanes: Lanes::new(),
            stage: Stage::Idle,
            rest: NIL,
            pending: Ring::EMPTY,
            in_flight: Ring::EMPTY,
            done: 0,
            flushes: 0,
            released: 0,
            recycled: 0,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Returns the hull of the noted pages if their flush is about to begin, and the number of the collection.
    fn noted(&self) -> Option<(u64, u64, u64)> {
        match self.stage {
            Stage::Noted { low, high } => Some((low, high, self.done)),
            _ => None,
        }
    }

    /// Returns the lists of blocks, and the mark of the blocks in each.
    pub(super) fn lists(&self) -> [(Ring<COLLECTED>, List); 2] {
        [(self.pending, List::Pending), (self.in_flight, List::InFlight)]
    }

    /// Lists a block as one in flight.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn pretend_in_flight(&mut self, lookup: &Lookup, block: &'static Block) {
        block.set_list(List::InFlight);
        self.in_flight.push(lookup, block);
    }

    fn list(&mut self, list: List) -> Option<&mut Ring<COLLECTED>> {
        match list {
            List::None => None,
            List::Pending => Some(&mut self.pending),
            List::InFlight => Some(&mut self.in_flight),
        }
    }
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Ensures that no CPU translates any address that was freed before the call, in blocks or in the space.
    ///
    /// If the result is `waiting`, none of this is certain yet: call again. That ends when the machine has flushed, unless
    /// other threads free all the while.
    ///
    /// All blocks with dead mappings are visited, full ones too. Those without live mappings are released to the space,
    /// except for one of each CPU at most.
    ///
    /// # Locks
    /// `Collect`, then those of a purge of the space.
    /// Cost: O(blocks in which a mapping was freed since the last collection), and the purge.
    pub fn unmap_aliases(&self) -> Collected {
        self.unmap_aliases_and(VaRange::default())
    }

    /// Ensures the same, and that no CPU translates an address of the caller's `dirty` range, in bytes. One flush covers
    /// all. An empty range adds nothing. If the result is `waiting`, call [`unmap_aliases`](Self::unmap_aliases) next: each
    /// call with a range begins another flush of it.
    ///
    /// # Locks
    /// Those of [`unmap_aliases`](Self::unmap_aliases).
    pub fn unmap_aliases_and(&self, dirty: VaRange) -> Collected {
        let purge = |hull: VaRange| self.space().purge_aliases(&[hull, dirty]);
        let mut purged = None;
        let collected = self.collect_whole(|hull| !purged.insert(purge(hull)).waiting);
        let purged = purged.unwrap_or_else(|| purge(VaRange::default()));
        Collected { waiting: collected.waiting || purged.waiting, ..collected }
    }

    /// Releases every block without live mappings to the space (`purge_fragmented_blocks_allcpus`), including those of
    /// lanes. For a machine that is short of space; the hook [`Machine::reclaim`] may call it.
    ///
    /// # Locks
    /// `Collect`, and under it the others in turn, slice by slice.
    /// Cost: O(touched blocks), or O(1) and no lock if there is none.
    pub fn shrink(&self) -> Collected {
        if self.balance().touched() == 0 {
            return Collected::default();
        }
        self.drain_dead_lanes();
        Collected { blocks: self.reap(Reap::All), waiting: false }
    }

    /// Examines touched blocks, slice by slice; returns how many were released to the space. Without other threads there
    /// is room for another block afterwards (VB8).
    pub(super) fn reap(&self, how: Reap) -> u64 {
        let (mut taken, mut blocks) = (false, 0);
        loop {
            let mut collection = self.lock_collection();
            let before = collection.released;
            let mut budget = C::SLICE_BLOCKS;
            let over = self.reap_slice(&mut collection, how, &mut taken, &mut budget);
            blocks += collection.released - before;
            let enough = how == Reap::UntilBounded && self.balance().has_room(self.users());
            if over || enough {
                return blocks;
            }
        }
    }

    /// Runs one slice of a collection if one is in progress or due. For workers and idle loops.
    ///
    /// # Locks
    /// `Collect`, for one slice.
    pub fn tick(&self) -> Collected {
        let mut collection = self.lock_collection();
        let before = collection.released;
        let due = !collection.is_idle() || self.is_due();
        let waiting = due && self.slice(&mut collection, Until::Waiting);
        Collected { blocks: collection.released - before, waiting }
    }

    /// Returns whether dead pages are reused, and many are dead or a collection is in progress. A hint.
    pub(super) fn is_due(&self) -> bool {
        C::REUSE
            && (self.freed.0.load(Ordering::Relaxed) >= C::dead_max(self.machine.cpus_online()).get()
                || self.collecting.load(Ordering::Relaxed))
    }

    /// Runs one slice, unless another thread runs one; returns whether more would follow at once.
    pub(super) fn collect_some(&self) -> bool {
        self.machine.locking(LockClass::Collect);
        let Some(mut collection) = self.collection.try_lock() else { return false };
        let waiting = self.slice(&mut collection, Until::Waiting);
        !waiting && !collection.is_idle()
    }

    /// Ends a collection that is in progress and runs one from its beginning, slice by slice, unless it has to wait for
    /// a flush. `flush` is called without a lock for a range that a flush is to cover. It returns whether one did and
    /// has ended.
    fn collect_whole(&self, mut flush: impl FnMut(VaRange) -> bool) -> Collected {
        let mut collection = self.lock_collection();
        let target = collection.done + 1 + u64::from(!collection.is_idle());
        let (mut blocks, mut waiting, mut asked) = (0, false, false);
        while collection.done < target && !waiting {
            let before = collection.released;
            let own = collection.done + 1 == target && !asked;
            let until = if own { Until::Noted } else { Until::Waiting };
            waiting = self.slice(&mut collection, until);
            blocks += collection.released - before;
            let noted = collection.noted();
            drop(collection);
            // If another thread flushes meanwhile, or ends the collection, the result is the same.
            let flushed = noted.filter(|&(low, high, _)| {
                asked = true;
                flush(hull_of(low, high))
            });
            collection = self.lock_collection();
            if flushed.is_some() && flushed == collection.noted() {
                collection.flushes += 1;
                collection.stage = Stage::Settle;
            }
        }
        Collected { blocks, waiting }
    }

    /// Runs a whole collection and waits for its flush, for a caller that may sleep.
    pub(super) fn collect_all(&self) {
        // Two waits at most: for the flush that was in progress, and for its own.
        for _ in 0..2 {
            if !self.collect_whole(|_| false).waiting {
                return;
            }
            let collection = self.lock_collection();
            let Stage::InFlight { epoch } = collection.stage else { continue };
            drop(collection);
            self.machine.wait(epoch);
        }
        self.tick();
    }

    /// Runs one slice; begins a collection if none is in progress. Returns whether it waits for a flush.
    fn slice(&self, collection: &mut CollectionOf<P>, until: Until) -> bool {
        let mut budget = C::SLICE_BLOCKS;
        if collection.is_idle() {
            self.collecting.store(true, Ordering::Relaxed);
            self.freed.0.store(0, Ordering::Relaxed);
            collection.stage = Stage::Reap { taken: false };
        }
        while budget > 0 {
            collection.stage = match collection.stage {
                Stage::Idle => return false,
                Stage::Reap { mut taken } => {
                    match self.reap_slice(collection, Reap::UntilBounded, &mut taken, &mut budget) {
                        true => Stage::Note { low: u64::MAX, high: 0 },
                        false => Stage::Reap { taken },
                    }
                }
                Stage::Note { low, high } => match collection.pending.first(&self.lookup) {
                    Some(block) => {
                        budget -= 1;
                        self.note(collection, block, low, high)
                    }
                    None if low >= high => self.ended(collection),
                    None => Stage::Noted { low, high },
                },
                Stage::Noted { .. } if until == Until::Noted => return false,
                Stage::Noted { low, high } => {
                    collection.flushes += 1;
                    let epoch = self.machine.flush(&[hull_of(low, high)]);
                    Stage::InFlight { epoch }
                }
                Stage::InFlight { epoch } => {
                    if !self.machine.completed(epoch) {
                        return true;
                    }
                    Stage::Settle
                }
                Stage::Settle => match collection.in_flight.first(&self.lookup) {
                    Some(block) => {
                        budget -= 1;
                        self.settle(collection, block);
                        Stage::Settle
                    }
                    None => self.ended(collection),
                },
            };
        }
        false
    }

    fn ended(&self, collection: &mut CollectionOf<P>) -> Stage {
        collection.done += 1;
        self.collecting.store(false, Ordering::Relaxed);
        Stage::Idle
    }

    /// Examines touched blocks while budget is left. Returns whether all were examined that were touched when `taken`
    /// was set.
    fn reap_slice(
        &self,
        collection: &mut CollectionOf<P>,
        how: Reap,
        taken: &mut bool,
        budget: &mut u32,
    ) -> bool {
        while *budget > 0 {
            match self.lookup.find(collection.rest) {
                Some(block) => {
                    *budget -= 1;
                    collection.rest = block.touched_next.load(Ordering::Relaxed);
                    self.examine(collection, block, how);
                }
                None if *taken => return true,
                None => {
                    // Acquire pairs with the release of the threads that pushed.
                    collection.rest = self.touched.0.swap(NIL, Ordering::Acquire);
                    *taken = true;
                }
            }
        }
        false
    }

    /// Releases a touched block to the space if no mapping is live in it; else lists it if it has dead pages.
    fn examine(&self, collection: &mut CollectionOf<P>, block: &'static Block, how: Reap) {
        let (mut queue, place) = self.lock_home(block);
        // First: a later free touches the block again, and the check below sees the earlier ones.
        block.set_touched(false);
        let dead = place != Place::Absent && self.is_dead(block);
        if dead && !self.is_needed(&queue, block, how) {
            let left = block.free_pages();
            if self.end(&mut queue, block, place) {
                self.forget(collection, block);
                drop(queue);
                self.balance.0.fetch_sub(Balance::PRESENT + Balance::TOUCHED, Ordering::Relaxed);
                self.note_reaped(self.pages - left);
                // A caller that reaps may sleep: the space may drain here.
                self.release(Context::Sleeping, block);
                collection.released += 1;
                return;
            }
        }
        if dead {
            self.push_touched(block);
        } else {
            self.balance.0.fetch_sub(Balance::TOUCHED, Ordering::Relaxed);
        }
        // A block in flight is listed again when its flush is completed. An absent one was released by the free of its
        // last page, and the space may not have received it yet. Where dead pages are reused, none is absent here.
        if block.list() == List::None && (block.has_unflushed() || place == Place::Absent) {
            block.set_list(List::Pending);
            collection.pending.push(&self.lookup, block);
        }
    }

    /// Returns whether no mapping is live in a block. Queue lock.
    fn is_dead(&self, block: &Block) -> bool {
        if C::REUSE {
            return block.is_dead();
        }
        // By the count, so that no caller that freed a page has still to count it.
        block.dead_counted() + block.free_pages() == self.pages
    }

    /// Returns whether a block without live mappings is retained, since it is about to be used. Queue lock.
    fn is_needed(&self, queue: &Queue, block: &Block, how: Reap) -> bool {
        how != Reap::All
            && (!C::REUSE || queue.is_current(block))
            && !C::is_fragmented(u64::from(block.free_pages()), u64::from(self.pages))
    }

    /// Removes a block from the lists of the collection.
    fn forget(&self, collection: &mut CollectionOf<P>, block: &Block) {
        if let Some(list) = collection.list(block.list()) {
            list.remove(&self.lookup, block);
            block.set_list(List::None);
        }
    }

    /// Subtracts pages that are no longer dead, although no collection was run.
    fn note_reaped(&self, pages: u32) {
        let less = |freed: u64| Some(freed.saturating_sub(u64::from(pages)));
        // It cannot fail: `less` always returns a value.
        let _done = self.freed.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes the dead pages of one block; returns the next stage.
    fn note(&self, collection: &mut CollectionOf<P>, block: &'static Block, low: u64, high: u64) -> Stage {
        self.forget(collection, block);
        let (_queue, place) = self.lock_home(block);
        let mut hull = Hull::EMPTY;
        let all = Hull { low: 0, high: self.pages };
        if place == Place::Absent {
            // Its area may not have reached the space yet, which would flush it.
            hull = all;
        } else if !C::REUSE {
            block.note_flushed(&mut hull);
        } else if block.flush_state() == FlushState::None {
            block.note_flushed(&mut hull);
            if !hull.is_empty() {
                block.set_flush_state(FlushState::Begun);
                block.uncover();
                block.set_list(List::InFlight);
                collection.in_flight.push(&self.lookup, block);
            }
        } else {
            // In a lane that has not recycled since its last flush was completed: noted next time, flushed now.
            if block.claim_uncovered() {
                hull = all;
            }
            if !block.is_touched() {
                self.balance.0.fetch_add(Balance::TOUCHED, Ordering::Relaxed);
                self.push_touched(block);
            }
        }
        if hull.is_empty() {
            return Stage::Note { low, high };
        }
        let first = self.va(block, 0).page_floor();
        Stage::Note {
            low: low.min(first + u64::from(hull.low)),
            high: high.max(first + u64::from(hull.high)),
        }
    }

    /// Recycles the noted pages of one block, or leaves that to its lane.
    fn settle(&self, collection: &mut CollectionOf<P>, block: &'static Block) {
        self.forget(collection, block);
        let (mut queue, place) = self.lock_home(block);
        if place == Place::Laned {
            block.set_flush_state(FlushState::Completed);
        } else {
            collection.recycled += u64::from(block.recycle::<C>());
            block.set_flush_state(FlushState::None);
            if place == Place::Full {
                block.measure(self.pages);
                queue.push::<C>(&self.lookup, block);
            } else if !queue.is_current(block) {
                queue.sort::<C>(&self.lookup, block, self.pages);
            }
        }
        // Mappings were freed during the flush.
        if block.has_unflushed() {
            block.set_list(List::Pending);
            collection.pending.push(&self.lookup, block);
        }
    }
}
