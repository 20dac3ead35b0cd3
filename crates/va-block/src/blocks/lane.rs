//! A lane: a block that one caller has to himself, so that his pairs take no lock.
//!
//! # Theory
//! Whoever maps and unmaps all the time (a CPU, a thread) owns a lane and calls it instead of the blocks. The lane takes an
//! open block out of the list of its CPU and is its owner: it gives out with plain stores. Others give back as ever.
//! When the block has no room, it goes back to the list and the lane takes another. A lane's own block is found without the
//! lookup when the lane itself gives back.
//!
//! A request that fails elsewhere moves the recall generation, and a lane puts its block back at its owner's next call.
//! Dropping it does the same.
//!
//! # Locking
//! None for a pair in the lane's block: one compare-exchange.
//! # Source
//! Our own.

use super::Blocks;
use crate::block::{Block, Flight, Place};
use crate::config::Config;
use crate::error::{BlockError, UnmapError};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Machine, Va};

/// A block in the hands of one caller, who passes the lane by `&mut`; see the module.
///
/// ```
/// # use va_base::VaRange;
/// # use va_block::{Blocks, config};
/// # use va_sim::machine::SimMachine;
/// # use va_space::VmapSpace;
/// # let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// # let machine = SimMachine::new(4);
/// # let space = VmapSpace::new(window, window, &machine)?;
/// let blocks = Blocks::<_, config::Default>::new(space, &machine)?;
/// let mut lane = blocks.lane(2);
/// let at = lane.alloc(5)?;
/// lane.free(at, 5).unwrap();
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct Lane<'b, P: Machine + Clone, C: Config> {
    blocks: &'b Blocks<P, C>,
    cpu: u32,
    block: Option<&'static Block>,
    /// First page of the block.
    first: u64,
    recall: u64,
    freed: AtomicU64,
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Creates a lane for whoever calls for CPU `cpu`. It has no block yet.
    pub fn lane(&self, cpu: u32) -> Lane<'_, P, C> {
        let recall = self.recall.0.load(Ordering::Relaxed);
        Lane { blocks: self, cpu, block: None, first: 0, recall, freed: AtomicU64::new(0) }
    }
}

impl<P: Machine + Clone, C: Config> Lane<'_, P, C> {
    /// Gives out `pages` pages, as [`Blocks::alloc`] does.
    ///
    /// # Errors
    /// As there; before a failure, the lane's block was put back.
    /// # Locks
    /// None from the lane's block; else as there.
    #[inline]
    pub fn alloc(&mut self, pages: u64) -> Result<Va, BlockError> {
        let recall = self.blocks.recall.0.load(Ordering::Relaxed);
        if recall != self.recall {
            self.recall = recall;
            self.park();
        }
        if pages.wrapping_sub(1) >= self.blocks.alloc_max {
            return self.alloc_large(pages);
        }
        let consumed = C::consumed(pages as u32);
        if let Some(block) = self.block
            && let Some(page) = block.carve(pages as u32, consumed)
        {
            return Ok(Va::from_page(self.first + u64::from(page)));
        }
        self.find_room(pages as u32, consumed)
    }

    /// Takes pages back, as [`Blocks::free`] does; they may come from anywhere.
    ///
    /// # Errors
    /// As there.
    /// # Locks
    /// As there.
    #[inline]
    pub fn free(&mut self, at: Va, pages: u64) -> Result<(), UnmapError> {
        let page = at.page_floor().wrapping_sub(self.first);
        let (block, page) = match self.block {
            Some(block) if page < u64::from(self.blocks.pages) && Va::from_page(at.page_floor()) == at => {
                (block, page as u32)
            }
            Some(_) | None => match self.blocks.block_at(at) {
                Some(found) => found,
                None => return self.blocks.free_large(at, pages),
            },
        };
        self.blocks.give_back(block, page, at, pages, &self.freed)
    }

    /// Tells whether the lane has a block.
    pub fn holds(&self) -> bool {
        self.block.is_some()
    }

    /// Puts the lane's block back into the list of its CPU.
    ///
    /// # Locks
    /// `Queue` of the CPU; where blocks die with their last mapping, as in [`Blocks::free`].
    pub fn park(&mut self) {
        let Some(block) = self.block.take() else { return };
        let blocks = self.blocks;
        let mut queue = blocks.lock_queue(blocks.cpu(block.cpu()));
        // Under the lock: a collection that lands does this itself from here on.
        recycle_landed::<C>(block);
        if block.free_pages() == 0 {
            block.set_place(Place::Full);
        } else {
            queue.push(&blocks.lookup, block);
        }
        drop(queue);
        blocks.note_news();
        // Its last page may have died while the lane had it.
        if !C::REUSE && block.dead_counted() == blocks.pages {
            blocks.bury(block);
        }
    }

    #[cold]
    fn find_room(&mut self, pages: u32, consumed: u32) -> Result<Va, BlockError> {
        if let Some(block) = self.block {
            recycle_landed::<C>(block);
            if let Some(page) = block.carve_anywhere(pages, consumed, self.blocks.pages) {
                return Ok(Va::from_page(self.first + u64::from(page)));
            }
        }
        self.park();
        let (block, page) = self.blocks.find_room(self.cpu, pages, consumed, Place::Laned)?;
        self.first = self.blocks.va(block, 0).page_floor();
        self.block = Some(block);
        Ok(self.blocks.va(block, page))
    }

    #[cold]
    fn alloc_large(&mut self, pages: u64) -> Result<Va, BlockError> {
        match self.blocks.alloc_large(self.cpu, pages) {
            Err(BlockError::Space(_)) if self.block.is_some() => {
                self.park();
                self.blocks.alloc_large(self.cpu, pages)
            }
            done => done,
        }
    }
}

/// Puts the dead pages of a block back into use that a flush covered. Owner only.
fn recycle_landed<C: Config>(block: &Block) {
    if block.flight() == Flight::Landed {
        block.recycle::<C>();
        block.set_flight(Flight::None);
    }
}

impl<P: Machine + Clone, C: Config> Drop for Lane<'_, P, C> {
    fn drop(&mut self) {
        self.park();
        let freed = self.freed.load(Ordering::Relaxed);
        if C::REUSE && freed > 0 {
            self.blocks.freed.0.fetch_add(freed, Ordering::Relaxed);
        }
    }
}
