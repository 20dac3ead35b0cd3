//! The collection: one flush for all that is dead in blocks, then back into use.
//!
//! # Theory
//! Whoever gives back in a block pushes the block on a stack, once until the next collection. That takes the stack, so it
//! meets every block with something dead, full ones and those in lanes among them, and no others. In stages: **gather**:
//! note block by block what is dead, and cover it by a hull; **flight**: one flush over the hull; **settle**: block by
//! block, what was noted is free again; **decay**: blocks in which nothing lived in all of the time since the last
//! collection go back to the space.
//!
//! What a lane has is settled by its owner: the block is only told that its flight has landed. Until he looks, what
//! dies in it afterwards waits for another collection (a flush covers it nevertheless).
//!
//! A collection is run in slices of [`Config::SLICE_BLOCKS`] blocks, each under one hold of the lock.
//!
//! Where dead pages are not reused, gathering is all there is: blocks in which nothing lives and little is unused are
//! given up, the dead pages of others are flushed once and noted.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `purge_fragmented_block`, `_vm_unmap_aliases`, `purge_fragmented_blocks_allcpus`).

use super::Blocks;
use crate::block::{Block, Flight, Hull, NIL, Place};
use crate::config::Config;
use crate::queue::Queue;
use va_base::sync::atomic::Ordering;
use va_base::{Epoch, LockClass, Machine, Va, VaRange};
use va_space::Purge;

/// What a collection did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Blocks given back to the space by this call.
    pub blocks: u64,
    /// A flush has not ended: call again, or [`tick`](Blocks::tick), later.
    pub waiting: bool,
}

enum Stage {
    Idle,
    /// Blocks yet to be looked at, those noted, the hull of what is dead in them in pages.
    Gather {
        rest: u32,
        chain: u32,
        low: u64,
        high: u64,
    },
    Flight {
        chain: u32,
        epoch: Epoch,
    },
    Settle {
        chain: u32,
    },
    /// The next CPU.
    Decay {
        cpu: u32,
    },
}

/// What the lock of the collection guards.
pub(super) struct Collection {
    stage: Stage,
    /// Collections ended.
    pub(super) done: u64,
    pub(super) flushes: u64,
    /// Blocks given up.
    pub(super) given_up: u64,
    /// Pages put back into use.
    pub(super) recycled: u64,
}

impl Collection {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Idle, done: 0, flushes: 0, given_up: 0, recycled: 0 }
    }

    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Has a flush under way for one block, as `validate` sees it.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn pretend_flight(&mut self, chain: u32) {
        self.stage = Stage::Settle { chain };
    }

    /// The chain of blocks with a flush under way.
    pub(super) fn chain(&self) -> u32 {
        match self.stage {
            Stage::Idle | Stage::Decay { .. } => NIL,
            Stage::Gather { chain, .. } | Stage::Flight { chain, .. } | Stage::Settle { chain } => chain,
        }
    }
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Sees to it that no CPU translates any address that was given back before the call, in blocks or in the space.
    ///
    /// Blocks with something dead are all visited, full ones too.
    ///
    /// # Locks
    /// `Collect`, then those of a purge of the space.
    /// Cost: O(blocks in which something was given back since the last time), and the purge.
    pub fn unmap_aliases(&self) -> Collected {
        let mut collected = self.collect_whole();
        collected.waiting |= self.space().purge(Purge::Aliases).waiting;
        collected
    }

    /// Gives every block back to the space in which nothing lives (`purge_fragmented_blocks_allcpus`), and has lanes put
    /// theirs back. For a machine that is short of space; the hook [`Machine::reclaim`] may call it.
    ///
    /// # Locks
    /// `Collect`, and under it the others in turn.
    /// Cost: O(blocks), or O(1) and no lock if nothing was given back since the last time.
    pub fn shrink(&self) -> Collected {
        // Read first: what comes later is news for the next.
        let news = self.news.0.load(Ordering::Acquire);
        if C::REUSE && self.old_news.load(Ordering::Relaxed) == news {
            return Collected::default();
        }
        self.recall.0.fetch_add(1, Ordering::Relaxed);
        let mut collected = if C::REUSE { self.collect_whole() } else { Collected::default() };
        let mut collection = self.lock_collection();
        let before = collection.given_up;
        for block in self.lookup.each() {
            if block.place() == Place::Absent {
                continue;
            }
            let (mut queue, place) = self.lock_home(block);
            if self.is_forlorn(block) && self.end(&mut queue, block, place) {
                drop(queue);
                self.give_up(block);
                collection.given_up += 1;
            }
        }
        collected.blocks += collection.given_up - before;
        if !collected.waiting {
            self.old_news.store(news, Ordering::Relaxed);
        }
        collected
    }

    /// Does one slice of a collection if one is under way or due. For workers and idle loops.
    ///
    /// # Locks
    /// `Collect`, for one slice.
    pub fn tick(&self) -> Collected {
        let mut collection = self.lock_collection();
        let before = collection.given_up;
        let due = !collection.is_idle() || (C::REUSE && self.is_due());
        let waiting = due && self.slice(&mut collection);
        Collected { blocks: collection.given_up - before, waiting }
    }

    /// Tells whether many pages are dead, or something was begun. A hint.
    pub(super) fn is_due(&self) -> bool {
        self.freed.0.load(Ordering::Relaxed) >= C::dead_max(self.machine.cpus_online()).get()
            || self.collecting.load(Ordering::Relaxed)
    }

    /// Does one slice, unless somebody else is at it; tells whether more would follow at once.
    pub(super) fn collect_some(&self) -> bool {
        self.machine.locking(LockClass::Collect);
        let Some(mut collection) = self.collection.try_lock() else { return false };
        let waiting = self.slice(&mut collection);
        !waiting && !collection.is_idle()
    }

    /// Ends what is under way and runs one collection from its beginning, unless a flush has to be waited for.
    fn collect_whole(&self) -> Collected {
        let mut collection = self.lock_collection();
        let before = collection.given_up;
        let target = collection.done + 1 + u64::from(!collection.is_idle());
        let mut waiting = false;
        while collection.done < target && !waiting {
            waiting = self.slice(&mut collection);
        }
        Collected { blocks: collection.given_up - before, waiting }
    }

    /// One slice; begins a collection if none is under way. Tells whether it waits for a flush.
    fn slice(&self, collection: &mut Collection) -> bool {
        let mut budget = C::SLICE_BLOCKS;
        if collection.is_idle() {
            self.collecting.store(true, Ordering::Relaxed);
            self.freed.0.store(0, Ordering::Relaxed);
            // Acquire pairs with the release of those who pushed.
            let rest = self.touched.0.swap(NIL, Ordering::Acquire);
            collection.stage = Stage::Gather { rest, chain: NIL, low: u64::MAX, high: 0 };
        }
        while budget > 0 {
            collection.stage = match collection.stage {
                Stage::Idle => return false,
                Stage::Gather { rest, chain, low, high } => match self.lookup.find(rest) {
                    Some(block) => {
                        budget -= 1;
                        self.gather(collection, block, chain, low, high)
                    }
                    None if low >= high => Stage::Decay { cpu: 0 },
                    None => {
                        let hull = VaRange::new(Va::from_page(low), Va::from_page(high));
                        collection.flushes += 1;
                        let epoch = self.machine.flush(&[hull.unwrap_or(VaRange::ALL)]);
                        Stage::Flight { chain, epoch }
                    }
                },
                Stage::Flight { chain, epoch } => {
                    if !self.machine.completed(epoch) {
                        return true;
                    }
                    Stage::Settle { chain }
                }
                Stage::Settle { chain } => match self.lookup.find(chain) {
                    Some(block) => {
                        budget -= 1;
                        let next = block.chain.load(Ordering::Relaxed);
                        self.settle(collection, block);
                        Stage::Settle { chain: next }
                    }
                    None => Stage::Decay { cpu: 0 },
                },
                Stage::Decay { cpu } if C::REUSE && cpu < self.cpu_count => {
                    budget = budget.saturating_sub(self.decay(collection, cpu));
                    Stage::Decay { cpu: cpu + 1 }
                }
                Stage::Decay { .. } => {
                    collection.done += 1;
                    self.collecting.store(false, Ordering::Relaxed);
                    Stage::Idle
                }
            };
        }
        false
    }

    /// Notes what is dead in one block; the next stage.
    fn gather(
        &self,
        collection: &mut Collection,
        block: &'static Block,
        chain: u32,
        low: u64,
        high: u64,
    ) -> Stage {
        let rest = block.touched_next.load(Ordering::Relaxed);
        // From here on it may be pushed again, which changes the link.
        block.untouch();
        let (mut queue, place) = self.lock_home(block);
        let mut stage = Stage::Gather { rest, chain, low, high };
        let Stage::Gather { chain, low, high, .. } = &mut stage else { return stage };
        if place == Place::Absent {
            return stage;
        }
        let mut hull = Hull::EMPTY;
        if !C::REUSE {
            let free = u64::from(block.free_pages());
            if self.is_forlorn(block)
                && C::is_fragmented(free, u64::from(self.pages))
                && self.end(&mut queue, block, place)
            {
                drop(queue);
                self.give_up(block);
                collection.given_up += 1;
                return stage;
            }
            block.note_flushed(&mut hull);
        } else if block.flight() == Flight::None {
            block.note_flushed(&mut hull);
            if !hull.is_empty() {
                block.set_flight(Flight::Begun);
                block.chain.store(*chain, Ordering::Relaxed);
                *chain = block.index();
            }
        } else {
            // In a lane that has not looked since its last flight landed: noted next time, flushed now.
            hull = Hull { low: 0, high: self.pages };
            if block.touch() {
                self.tell(block);
            }
        }
        if !hull.is_empty() {
            let first = self.va(block, 0).page_floor();
            *low = (*low).min(first + u64::from(hull.low));
            *high = (*high).max(first + u64::from(hull.high));
        }
        stage
    }

    /// Puts what was noted in one block back into use, or has its lane do it.
    fn settle(&self, collection: &mut Collection, block: &'static Block) {
        let (mut queue, place) = self.lock_home(block);
        if place == Place::Laned {
            block.set_flight(Flight::Landed);
            return;
        }
        collection.recycled += u64::from(block.recycle::<C>());
        block.set_flight(Flight::None);
        if place == Place::Full {
            queue.push(&self.lookup, block);
        }
        if block.is_empty() {
            block.set_idle_since(collection.done);
        }
    }

    /// Gives up the blocks of one CPU that were empty all the time since the last collection; returns how many it looked
    /// at.
    fn decay(&self, collection: &mut Collection, cpu: u32) -> u32 {
        let (mut looked, mut ended) = (0, NIL);
        let mut queue = self.lock_queue(self.cpu(cpu));
        for block in queue.each(&self.lookup) {
            looked += 1;
            let idle = block.idle_since() < collection.done && block.is_empty();
            if idle && self.end_chained(&mut queue, block, ended) {
                ended = block.index();
            }
        }
        drop(queue);
        while let Some(block) = self.lookup.find(ended) {
            // First: given up, its record may begin again.
            ended = block.chain.load(Ordering::Relaxed);
            self.give_up(block);
            collection.given_up += 1;
        }
        looked + 1
    }

    fn end_chained(&self, queue: &mut Queue, block: &'static Block, chain: u32) -> bool {
        let ends = block.flight() == Flight::None && self.end(queue, block, Place::Open);
        if ends {
            block.chain.store(chain, Ordering::Relaxed);
        }
        ends
    }

    /// Tells whether nothing lives in a block and no flush for it is under way. Queue lock.
    fn is_forlorn(&self, block: &Block) -> bool {
        if C::REUSE {
            return block.flight() == Flight::None && block.is_dead();
        }
        // As counted: then nobody who gave back has still to count.
        block.dead_counted() + block.free_pages() == self.pages
    }
}
