//! Room for a request that the current block does not meet: other open blocks, a collection, a block of the space.
//!
//! # Theory
//! The open block that fits best is tried first. Then dead pages are collected if there are many. Then a block begins,
//! if one more may be present (VB8). If none may, the touched blocks are reaped, which needs no flush. If the space has
//! none, all unneeded blocks are released to it. The request is tried again as long as blocks began or were released
//! meanwhile.
//!
//! After a reaping a block may begin, unless other threads use up the room. A request that reaps in vain while nothing
//! moves waits for a thread that stands between two steps of a call. On one CPU, where the request has the higher
//! priority, that thread would never go on. So such a request fails ([`BlockError::Bound`]).
//!
//! Before a request that may sleep fails, for whatever reason, it takes pages of another CPU's open block, which stays where it is. For
//! example, CPU 0 has the only block that the space has room for, with 1,023 free pages: CPU 1 gets one of them. Each
//! CPU shows how large a request its queue may meet, so only queues that promise room are locked. Until a block begins
//! or is released, later requests go to other CPUs at once: they need not purge a full space each time. A lane takes no
//! block meanwhile, since its CPU and others need the block as well. Linux has no such step, nor have its policies.
//!
//! A request that may not sleep goes to other CPUs in that state alone. Else its caller tries again where it may sleep,
//! and begins a block that serves the next thousand requests.

use super::collect::Reap;
use super::{Blocks, Found};
use crate::block::{Block, Place};
use crate::config::{Config, SHARED_MOST, Spread};
use crate::error::BlockError;
use crate::queue::Queue;
use va_base::sync::atomic::Ordering;
use va_base::{Align, Context, Machine, PAGE_SHIFT, Request};
use va_space::{Area, Release, SpaceError};

/// Reapings in a row, during which no block began or was released, after which a request that may begin none fails.
const REAPS_IN_VAIN: u32 = 2;

/// A request that the open run of the current block does not meet.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) cpu: u32,
    pub(super) pages: u32,
    /// Pages that the request uses up.
    pub(super) consumed: u32,
    /// The place of the block after the allocation: open, or in a lane.
    pub(super) to: Place,
    pub(super) context: Context,
}

impl Ask {
    fn waits(self) -> bool {
        self.context == Context::Sleeping
    }
}

/// The number of present blocks, in any state, in the lower half; that of touched blocks in the upper.
///
/// A block that is not touched holds a live page: it began with one, or held one when it was last examined, and no page
/// of it was freed since. So the difference is a lower bound of the blocks that hold one. It is exact when every
/// touched block was just examined. A page is live until the call that frees it has touched its block, and a block that
/// is about to begin holds the page that it begins for.
///
/// A CPU keeps its current block without a live page, and a lane its block. So each is entitled to one, and to another
/// that has died and was not examined since. For example, 1 CPU and 64 lanes without a live page have up to 130 blocks.
/// Then a reaping finds 65 of them to release: it looks at two for each, however many lanes there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Balance(pub(super) u64);

impl Balance {
    pub(super) const PRESENT: u64 = 1;
    pub(super) const TOUCHED: u64 = 1 << 32;

    pub(super) fn present(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }

    pub(super) fn touched(self) -> u64 {
        self.0 >> 32
    }

    /// Returns below how many present blocks another may begin, for so many CPUs and lanes (VB8).
    pub(super) fn most(self, users: u64) -> u64 {
        2 * (self.present().saturating_sub(self.touched()) + users)
    }

    pub(super) fn has_room(self, users: u64) -> bool {
        self.present() < self.most(users)
    }
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Finds room in a block of `ask.cpu`, one from the space if need be, and puts the block to `ask.to`: open, or in a
    /// lane. If no block may begin, finds room in a block of any CPU, which stays open. Returns the block's place, too.
    #[cold]
    pub(super) fn find_room(&self, ask: Ask) -> Result<(Found, Place), BlockError> {
        if self.is_full(ask)
            && let Some(found) = self.search_all(ask)
        {
            return Ok((found, Place::Open));
        }
        let mut failed = None;
        loop {
            let counted = self.search_or_reserve(ask);
            // Acquire pairs with the release of the thread that began a block: its CPU shows it.
            let moves = self.moves.load(Ordering::Acquire);
            let error = match counted {
                Ok(Some(found)) => return Ok((found, ask.to)),
                Ok(None) => match self.begin_block(ask) {
                    Ok(found) => return Ok((found, ask.to)),
                    Err(error) => {
                        self.balance.0.fetch_sub(Balance::PRESENT, Ordering::Relaxed);
                        error
                    }
                },
                Err(error) => error,
            };
            let is_full = matches!(error, BlockError::Space(SpaceError::NoSpace { .. }));
            // What may get the CPU a block of its own is tried first, and the caller does so that may not sleep.
            if ask.waits()
                && (!is_full || failed.is_some())
                && let Some(found) = self.search_others(ask)
            {
                if is_full {
                    self.full.store(moves + 1, Ordering::Relaxed);
                    self.shared.store(0, Ordering::Relaxed);
                }
                return Ok((found, Place::Open));
            }
            // All was tried, and no block began or was released to the space since.
            if !is_full || failed == Some(self.moves.load(Ordering::Acquire)) {
                return Err(error);
            }
            failed = Some(moves);
            self.drain_lanes(None);
            self.shrink();
            if C::REUSE {
                self.collect_all();
            }
        }
    }

    /// Returns whether a request goes to other CPUs at once: no block could begin a moment ago. Areas that return to the
    /// space do not show here, so after [`SHARED_MOST`] requests one that may sleep asks the space again.
    fn is_full(&self, ask: Ask) -> bool {
        self.full.load(Ordering::Relaxed) == self.moves.load(Ordering::Relaxed) + 1
            && (!ask.waits() || self.shared.fetch_add(1, Ordering::Relaxed) < SHARED_MOST)
    }

    /// Finds room in the open blocks of `ask.cpu`, or else counts a block that is about to begin.
    fn search_or_reserve(&self, ask: Ask) -> Result<Option<Found>, BlockError> {
        self.ensure_cpu(ask.context, ask.cpu)?;
        let found = self.search(ask.cpu, ask);
        if found.is_some() {
            return Ok(found);
        }
        // Slice by slice, so that other threads can take the lock, and until there is room.
        let mut goes_on = ask.waits() && self.is_due();
        while goes_on {
            goes_on = self.collect_some();
            let found = self.search(ask.cpu, ask);
            if found.is_some() {
                return Ok(found);
            }
        }
        let mut left = REAPS_IN_VAIN;
        while !self.reserve() {
            if !ask.waits() {
                return Err(BlockError::WouldBlock);
            }
            if left == 0 {
                let balance = self.balance();
                let (present, most) = (balance.present(), balance.most(self.users()));
                return Err(BlockError::Bound { present, most });
            }
            let moves = self.moves.load(Ordering::Relaxed);
            self.reap(Reap::UntilBounded);
            let found = self.search(ask.cpu, ask);
            if found.is_some() {
                return Ok(found);
            }
            left = if self.moves.load(Ordering::Relaxed) == moves { left - 1 } else { REAPS_IN_VAIN };
        }
        Ok(None)
    }

    /// Searches the open blocks of `ask.cpu`, and then those of other CPUs. The block stays where it is.
    fn search_all(&self, ask: Ask) -> Option<Found> {
        let own = self.made(ask.cpu).and_then(|_| self.search(ask.cpu, Ask { to: Place::Open, ..ask }));
        own.or_else(|| self.search_others(ask))
    }

    /// Searches the open blocks of those other CPUs that show room. The block stays where it is.
    fn search_others(&self, ask: Ask) -> Option<Found> {
        if !C::REUSE {
            return None;
        }
        let own = ask.cpu % self.cpu_count;
        let mut others = self.cpus.with_room(own, self.cpu_count, ask.consumed);
        others.find_map(|cpu| self.search(cpu, Ask { to: Place::Open, ..ask }))
    }

    /// Searches the open blocks of a CPU.
    fn search(&self, cpu: u32, ask: Ask) -> Option<Found> {
        let mut queue = self.lock_queue(cpu);
        let queue = &mut *queue;
        if C::FIRST_FIT {
            for block in queue.oldest(&self.lookup) {
                if let Some(found) = self.carve_in(queue, block, ask) {
                    return Some(found);
                }
                if block.room() == 0 {
                    queue.unlink(&self.lookup, block, Place::Full);
                }
            }
            return None;
        }
        let mut next = queue.current.or_else(|| queue.fitting(&self.lookup, ask.consumed));
        while let Some(block) = next {
            if let Some(found) = self.carve_in(queue, block, ask) {
                return Some(found);
            }
            // Pages were allocated since it was sorted: its class was too high.
            if queue.is_current(block) {
                queue.current = None;
            }
            queue.sort::<C>(&self.lookup, block, self.pages);
            next = queue.fitting(&self.lookup, ask.consumed);
        }
        None
    }

    /// Allocates from one open block, which becomes the current one or goes into a lane.
    fn carve_in(&self, queue: &mut Queue, block: &'static Block, ask: Ask) -> Option<Found> {
        if block.room() < ask.consumed {
            return None;
        }
        let page = block.carve_anywhere(ask.pages, ask.consumed, self.pages)?;
        match ask.to {
            Place::Laned => queue.unlink(&self.lookup, block, Place::Laned),
            Place::Open | Place::Full | Place::Absent => queue.current = Some(block),
        }
        Some((block, page))
    }

    pub(super) fn balance(&self) -> Balance {
        // Relaxed: the two counts are in one word, and order no other memory.
        Balance(self.balance.0.load(Ordering::Relaxed))
    }

    /// Returns how many blocks have begun and were released, for models.
    #[cfg(all(test, loom))]
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Returns how many blocks are present, in any state. No lock; cost: O(1).
    pub fn present(&self) -> u64 {
        self.balance().present()
    }

    /// Returns the number of CPUs and lanes.
    pub(super) fn users(&self) -> u64 {
        // Relaxed: a lane is counted before it has a block, and until it has returned it.
        u64::from(self.cpu_count) + self.lanes.load(Ordering::Relaxed)
    }

    /// Counts a block that is about to begin, if one more may be present (VB8); returns whether it may.
    fn reserve(&self) -> bool {
        let users = self.users();
        let more = |balance: u64| {
            let fits = !C::REUSE || Balance(balance).has_room(users);
            fits.then_some(balance + Balance::PRESENT)
        };
        self.balance.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Requests an area of the space. A request that may not wait gets [`BlockError::WouldBlock`] where there is none.
    pub(super) fn ask_space(&self, cpu: u32, request: &Request) -> Result<Area, BlockError> {
        self.space.alloc(cpu, request).map_err(|error| match error {
            SpaceError::NoSpace { .. } | SpaceError::WouldBlock { .. } if !request.waits() => {
                BlockError::WouldBlock
            }
            error => BlockError::Space(error),
        })
    }

    /// Allocates a block from the space and cuts the first pages from it. The block was counted.
    fn begin_block(&self, ask: Ask) -> Result<Found, BlockError> {
        let align = Align::from_log2(self.pages_log2 + PAGE_SHIFT).unwrap_or_default();
        let request = Request::pages(u64::from(self.pages))?.aligned(align).context(ask.context);
        let record = |index| {
            self.ensure_cpu(ask.context, C::Spread::bucket(index, self.cpu_count)).ok()?;
            match ask.context {
                Context::Sleeping => self.lookup.ensure(index, &self.machine),
                // The machine may sleep when it allocates a table.
                Context::Atomic => self.lookup.find(index),
            }
        };
        let (block, key) = loop {
            let area = self.ask_space(ask.cpu, &request)?;
            let Some(block) = self.index_of(area.start().page_floor()).and_then(record) else {
                // Nothing was mapped there: a caller that tries again makes no area lazy. An error says that the late
                // free of an earlier mapping took it.
                let _freed = self.space.free_unused(area);
                return Err(if ask.waits() { BlockError::NoTable } else { BlockError::WouldBlock });
            };
            // From here on no such free takes the area. If one did before, another area is as good.
            if let Ok(key) = self.space.hold(&area) {
                break (block, key);
            }
            // Nor is it left behind where a late call resized it.
            let _freed = self.space.free_as(Release::Resized(area), ask.context);
        };
        *self.lock_present(block.index()) += 1;
        block.begin(ask.cpu % self.cpu_count, self.pages, key);
        let mut queue = self.lock_queue(ask.cpu);
        let Some(page) = block.carve(ask.pages, ask.consumed) else {
            self.machine.bug(format_args!("a fresh block has no room for {} pages", ask.consumed), None)
        };
        if ask.to == Place::Laned {
            block.set_place(Place::Laned);
        } else {
            queue.push::<C>(&self.lookup, block);
            // One that another thread used meanwhile may have more room than when it was sorted.
            if let Some(before) = queue.current.replace(block)
                && !C::FIRST_FIT
            {
                queue.sort::<C>(&self.lookup, before, self.pages);
            }
        }
        // Counted when other requests find it, and not before. Release: who sees the count sees the room that is shown.
        drop(queue);
        self.moves.fetch_add(1, Ordering::Release);
        Ok((block, page))
    }
}
