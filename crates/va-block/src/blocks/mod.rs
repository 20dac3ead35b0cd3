//! Blocks: mappings of a few pages, given out and taken back without the space.
//!
//! # Theory
//! ```text
//!   space --a block, aligned--> open list of a CPU --cut--> mapping --given back--> dead --flush--> free --cut--> ...
//!     ^                                                                               |               |
//!     +------------------- nothing lives in it and it is not needed -----------------+---------------+
//! ```
//! A CPU gives out from the block it used last. When that has no room, it looks through its other open blocks, then has the
//! dead collected if there are many, then asks the space for another block.
//!
//! In Linux a block's pages are given out once: a single page that lives long pins 4 MiB. Here dead pages come back into
//! use when a flush has covered them, so a block that is still needed for one page serves others with the rest.
//! The flush is shared: it is begun when as many pages are dead, in all blocks, as may be lazy in a space, and covers all
//! of them. So there is no more flushing than when blocks die whole.
//!
//! # Invariants
//! - **VB6 ours** each block that is present is a busy area of the space, of the block's size and aligned to it.
//! - **VB7 listed** a block is in the list of its CPU exactly if it is open; a full one has no free page.
//!
//! Those of the space hold here too. SP2: pages that were given back are given out again after a flush that covers them, or
//! after the block went back to the space, which sees to it. SP3: giving back sets a bit. SP4: errors change nothing. SP5:
//! the same calls with the same CPU ids give the same addresses.
//!
//! # Locking
//! ```text
//!   Collect (PurgeLock)  >  Queue of a CPU (Lock)      >  nothing
//!                        >  Lookup of a bucket (Lock)  >  nothing
//!                        >  what the space takes to free
//! ```
//! The space is never called under `Queue` or `Lookup`, and asked for an area under no lock. A mapping that is given out
//! takes the CPU's own `Queue` (a [`Lane`] takes none), one that is given back takes none.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vm_map_ram`, `vm_unmap_ram`, `new_vmap_block`, `vb_alloc`, `vb_free`). Reuse and lanes are our own.

#[cfg(test)]
#[cfg(not(loom))]
mod broken;
mod collect;
mod lane;
mod validate;

pub use collect::Collected;
pub use lane::Lane;
pub use validate::Stats;

use crate::block::{Block, NIL, PAGES_MAX, Place, Refusal};
use crate::config::{ALLOC_PAGES_MAX, Config, Spread};
use crate::error::{BlockError, UnmapError};
use crate::lookup::{COVERED, Lookup};
use crate::queue::{Cpu, Queue};
use collect::Collection;
use core::marker::PhantomData;
use va_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard};
use va_base::{Align, LockClass, Machine, PAGE_SHIFT, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_space::{SpaceError, VmapSpace};

/// Most CPUs that have blocks of their own; higher ids share.
#[cfg(not(loom))]
pub const CPUS_MAX: usize = 512;
/// Most CPUs that have blocks of their own, in a model.
#[cfg(loom)]
pub const CPUS_MAX: usize = 2;

/// An atomic in a cache line of its own.
#[repr(align(128))]
struct Alone<T>(T);

/// Where pages were found.
type Found = (&'static Block, u32);

/// Small mappings on machine `P` under the policies `C`, and the space that they are cut from.
///
/// ```
/// use va_base::VaRange;
/// use va_block::{Blocks, UnmapError, config};
/// use va_sim::machine::SimMachine;
/// use va_space::VmapSpace;
///
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let machine = SimMachine::new(4);
/// let space = VmapSpace::new(window, window, &machine)?;
/// let blocks = Blocks::<_, config::Default>::new(space, &machine)?;
/// let at = blocks.alloc(0, 3)?;
/// assert!(matches!(blocks.free(1, at, 4), Err(UnmapError::WrongCount { .. })));
/// assert_eq!(blocks.free(1, at, 3), Ok(()));
/// assert!(matches!(blocks.free(0, at, 3), Err(UnmapError::Twice { .. })));
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct Blocks<P: Machine + Clone, C: Config> {
    // Constant after `new`.
    space: VmapSpace<P, C::Space>,
    machine: P,
    /// Pages of a block, and their logarithm.
    pages: u32,
    pages_log2: u32,
    /// Number of the block that has index 0.
    first: u64,
    alloc_max: u64,
    cpus: [Option<&'static Cpu<P::Lock>>; CPUS_MAX],
    cpu_count: u32,
    lookup: Lookup,
    // Under its lock.
    collection: Mutex<P::PurgeLock, Collection>,
    // Atomic, each alone.
    /// Stack of the blocks in which something was given back since they were last collected.
    touched: Alone<AtomicU32>,
    /// Pages given back since the last collection, as far as CPUs told.
    freed: Alone<AtomicU64>,
    /// Moves when lanes are to hand back what they hold.
    recall: Alone<AtomicU64>,
    /// Moves when a block may have become one that could go back to the space.
    news: Alone<AtomicU64>,
    /// What it was when all of them had gone back.
    old_news: AtomicU64,
    /// A collection was begun and is not finished: a hint.
    collecting: AtomicBool,
    config: PhantomData<fn() -> C>,
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Creates blocks in the default window of `space`; there are none yet. The machine is asked for a table for each
    /// possible CPU.
    ///
    /// # Errors
    /// [`BlockError::TooWide`] if the window has more blocks than the lookup covers, [`BlockError::NoTable`] if the
    /// machine refuses a table. The space is dropped with either.
    pub fn new(space: VmapSpace<P, C::Space>, machine: P) -> Result<Self, BlockError> {
        let cpus = machine.cpus_possible();
        Self::with_cpus(space, machine, cpus)
    }

    /// Does as [`new`](Self::new) for `cpus` CPUs, where there are to be more or fewer than the space has nodes.
    ///
    /// # Errors
    /// As there.
    pub fn with_cpus(space: VmapSpace<P, C::Space>, machine: P, cpus: u32) -> Result<Self, BlockError> {
        let count = cpus.clamp(1, CPUS_MAX as u32);
        let pages = C::block_pages(cpus).clamp(1, u64::from(PAGES_MAX)).next_power_of_two();
        let pages_log2 = pages.ilog2();
        let window = space.default_window();
        let first = window.start().page_floor() >> pages_log2;
        let last = window.end().page_floor() >> pages_log2;
        if last - first >= COVERED {
            return Err(BlockError::TooWide { window, limit: COVERED });
        }
        let mut blocks = Self {
            space,
            machine,
            pages: pages as u32,
            pages_log2,
            first,
            alloc_max: ALLOC_PAGES_MAX.min(pages),
            cpus: [None; CPUS_MAX],
            cpu_count: count,
            lookup: Lookup::new(),
            collection: Mutex::new(Collection::new()),
            touched: Alone(AtomicU32::new(NIL)),
            freed: Alone(AtomicU64::new(0)),
            recall: Alone(AtomicU64::new(0)),
            news: Alone(AtomicU64::new(1)),
            old_news: AtomicU64::new(0),
            collecting: AtomicBool::new(false),
            config: PhantomData,
        };
        for cpu in &mut blocks.cpus[..count as usize] {
            // Dropped on refusal, the blocks hand back what they got.
            *cpu = Some(blocks.machine.lend_table().ok_or(BlockError::NoTable)?);
        }
        Ok(blocks)
    }

    /// The space below.
    pub fn space(&self) -> &VmapSpace<P, C::Space> {
        &self.space
    }

    /// Pages of a block.
    pub fn block_pages(&self) -> Pages {
        Pages::new(u64::from(self.pages))
    }

    /// Gives out `pages` pages; `cpu` is the CPU that asks, or stands for it. There is no guard page.
    ///
    /// Up to [`ALLOC_PAGES_MAX`] pages come from a block, more from the space.
    ///
    /// # Errors
    /// [`BlockError::BadRequest`] if `pages` is 0 or beyond any space; [`BlockError::Space`] if there is no room, after blocks
    /// in which nothing lives went back to the space and all there was purged; [`BlockError::NoTable`] if the machine lends no
    /// record.
    /// # Locks
    /// `Queue` of the CPU; the others, one after the other, when its blocks have no room.
    /// Cost: O(1) from the open run.
    #[inline]
    pub fn alloc(&self, cpu: u32, pages: u64) -> Result<Va, BlockError> {
        if pages.wrapping_sub(1) >= self.alloc_max {
            return self.alloc_large(cpu, pages);
        }
        let consumed = C::consumed(pages as u32);
        if !C::FIRST_FIT {
            let queue = self.lock_queue(self.cpu(cpu));
            if let Some(block) = queue.current
                && let Some(page) = block.carve(pages as u32, consumed)
            {
                return Ok(self.va(block, page));
            }
        }
        let (block, page) = self.find_room(cpu, pages as u32, consumed, Place::Open)?;
        Ok(self.va(block, page))
    }

    /// Takes back the `pages` pages at `at`, which were given out together; `cpu` is the CPU that calls, any one. They are
    /// given out again after a flush.
    ///
    /// What is larger than a block's share is an area of the space: any area of exactly that size that starts there.
    ///
    /// # Errors
    /// [`UnmapError`] if nothing that is out starts there, or something of another size. Of two calls at a time, one gets it.
    /// # Locks
    /// None; where blocks die with their last mapping, that one takes `Queue` of the block's CPU, `Lookup`, and what the space
    /// takes to free.
    /// Cost: O(1).
    #[inline]
    pub fn free(&self, cpu: u32, at: Va, pages: u64) -> Result<(), UnmapError> {
        let Some((block, page)) = self.block_at(at) else { return self.free_large(at, pages) };
        self.give_back(block, page, at, pages, &self.cpu(cpu).freed)
    }

    /// The mapping of a block that `at` is inside, as it was at one moment. No lock; cost: O(1).
    ///
    /// For whoever reads what is mapped: outside of these, a block has nothing behind it.
    pub fn find_enclosing(&self, at: Va) -> Option<VaRange> {
        let (block, page) = self.block_at(Va::from_page(at.page_floor()))?;
        let (head, size) = block.living_around(page)?;
        Some(self.range(block, head, u64::from(size)))
    }

    /// Sets the bit, and tells the collection; `freed` counts for the caller.
    #[inline(always)]
    fn give_back(
        &self,
        block: &'static Block,
        page: u32,
        at: Va,
        pages: u64,
        freed: &AtomicU64,
    ) -> Result<(), UnmapError> {
        if let Err(refusal) = block.give_back(page, pages) {
            return self.refused(block, page, refusal, at, pages);
        }
        if block.touch() {
            self.tell(block);
        }
        if C::REUSE {
            self.note_freed(freed, pages);
        } else if block.count_dead(C::consumed(pages as u32)) == self.pages {
            self.bury(block);
        }
        Ok(())
    }

    /// Counts freed pages of one CPU and, now and then, for all.
    #[inline(always)]
    fn note_freed(&self, freed: &AtomicU64, pages: u64) {
        let mut now = freed.load(Ordering::Relaxed) + pages;
        if now >= C::TELL_PAGES {
            self.freed.0.fetch_add(now, Ordering::Relaxed);
            now = 0;
        }
        freed.store(now, Ordering::Relaxed);
    }

    /// Notes that there may be something for [`shrink`](Self::shrink).
    fn note_news(&self) {
        // Release pairs with the acquire of `shrink`.
        self.news.0.fetch_add(1, Ordering::Release);
    }

    /// Pushes a block that was just touched on the stack.
    #[cold]
    fn tell(&self, block: &Block) {
        self.note_news();
        let mut head = self.touched.0.load(Ordering::Relaxed);
        loop {
            block.touched_next.store(head, Ordering::Relaxed);
            // Release pairs with the acquire of whoever takes the stack: he sees the link.
            let pushed =
                self.touched.0.compare_exchange(head, block.index(), Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Finds room in a block of `cpu`, one of the space if need be; the block is `to` then: open, or in a lane.
    #[cold]
    fn find_room(&self, cpu: u32, pages: u32, consumed: u32, to: Place) -> Result<Found, BlockError> {
        if let Some(found) = self.search(cpu, pages, consumed, to) {
            return Ok(found);
        }
        // Slice by slice, so that others get at the lock, and until there is room: a new block for each slice would make each
        // collection longer than the one before.
        let mut goes_on = C::REUSE && self.is_due();
        while goes_on {
            goes_on = self.collect_some();
            if let Some(found) = self.search(cpu, pages, consumed, to) {
                return Ok(found);
            }
        }
        let refused = match self.begin_block(cpu, pages, consumed, to) {
            Err(error @ BlockError::Space(SpaceError::NoSpace { .. })) => error,
            done => return done,
        };
        self.shrink();
        if let Some(found) = self.search(cpu, pages, consumed, to) {
            return Ok(found);
        }
        // Others may have taken what was purged; then what the space said first is as true.
        self.begin_block(cpu, pages, consumed, to).map_err(|_| refused)
    }

    /// Looks through the open blocks of `cpu`.
    fn search(&self, cpu: u32, pages: u32, consumed: u32, to: Place) -> Option<Found> {
        let mut queue = self.lock_queue(self.cpu(cpu));
        let queue = &mut *queue;
        for block in queue.each(&self.lookup) {
            if block.room() >= consumed
                && let Some(page) = block.carve_anywhere(pages, consumed, self.pages)
            {
                match to {
                    Place::Laned => queue.unlink(&self.lookup, block, Place::Laned),
                    Place::Open | Place::Full | Place::Absent => queue.current = Some(block),
                }
                return Some((block, page));
            }
            if block.room() == 0 {
                queue.unlink(&self.lookup, block, Place::Full);
            }
        }
        None
    }

    /// Gets a block from the space and cuts the first pages from it.
    fn begin_block(&self, cpu: u32, pages: u32, consumed: u32, to: Place) -> Result<Found, BlockError> {
        let align = Align::from_log2(self.pages_log2 + PAGE_SHIFT).unwrap_or_default();
        let request = Request::pages(u64::from(self.pages))?.aligned(align);
        let area = self.space.alloc(cpu, &request)?;
        let index = self.index_of(area.start().page_floor());
        let Some(block) = index.and_then(|index| self.lookup.ensure(index, &self.machine)) else {
            self.space.free(area).unwrap_or_else(|error| {
                self.machine.bug(format_args!("giving back what was just taken: {error}"), None)
            });
            return Err(BlockError::NoTable);
        };
        *self.lock_present(block.index()) += 1;
        block.begin(cpu % self.cpu_count, self.pages);
        let mut queue = self.lock_queue(self.cpu(cpu));
        let Some(page) = block.carve(pages, consumed) else {
            self.machine.bug(format_args!("a fresh block has no room for {consumed} pages"), None)
        };
        if to == Place::Laned {
            block.set_place(Place::Laned);
        } else {
            queue.push(&self.lookup, block);
            queue.current = Some(block);
        }
        Ok((block, page))
    }

    /// Gives a block back to the space whose pages all died, unless it is in a lane, which does so itself.
    #[cold]
    fn bury(&self, block: &'static Block) {
        let (mut queue, place) = self.lock_home(block);
        // Asked under the lock: a purge may have been quicker, and another block may have begun here.
        if block.dead_counted() == self.pages && self.end(&mut queue, block, place) {
            drop(queue);
            self.give_up(block);
        }
    }

    /// Ends a block in which nothing lives, if it is not in a lane; tells whether it did. Give it up next, without the lock.
    ///
    /// `place` is what [`lock_home`](Self::lock_home) told: one that was absent then may be anywhere by now.
    fn end(&self, queue: &mut Queue, block: &'static Block, place: Place) -> bool {
        match place {
            Place::Open => queue.unlink(&self.lookup, block, Place::Full),
            Place::Full => {}
            Place::Laned | Place::Absent => return false,
        }
        block.end();
        true
    }

    /// Gives the area of an ended block back.
    fn give_up(&self, block: &Block) {
        *self.lock_present(block.index()) -= 1;
        if let Err(error) = self.space.free_at(self.va(block, 0)) {
            self.machine.bug(format_args!("the space does not know a block: {error}"), None);
        }
    }

    #[cold]
    fn alloc_large(&self, cpu: u32, pages: u64) -> Result<Va, BlockError> {
        let request = Request::pages(pages)?;
        let area = match self.space.alloc(cpu, &request) {
            Err(SpaceError::NoSpace { .. }) => {
                self.shrink();
                self.space.alloc(cpu, &request)?
            }
            done => done?,
        };
        // Given back by its address.
        Ok(area.start())
    }

    #[cold]
    fn free_large(&self, at: Va, pages: u64) -> Result<(), UnmapError> {
        let count = Pages::new(pages);
        if pages == 0 || count.checked_bytes().is_none() {
            return Err(UnmapError::BadCount { pages });
        }
        match self.space.find(at) {
            Some(seen) if pages > self.alloc_max => {
                let size = seen.range.len_bytes() / PAGE_SIZE;
                if size != pages {
                    return Err(UnmapError::WrongCount { range: seen.range, pages: count });
                }
                self.space.free_at(at)?;
                Ok(())
            }
            Some(seen) => Err(UnmapError::WrongCount { range: seen.range, pages: count }),
            None => {
                let inside = self.space.find_enclosing(at).map(|seen| seen.range);
                Err(UnmapError::NotMapped { at, inside })
            }
        }
    }

    /// Says why a block refused; an address whose block is gone may be in an area of the space.
    #[cold]
    fn refused(
        &self,
        block: &'static Block,
        page: u32,
        refusal: Refusal,
        at: Va,
        pages: u64,
    ) -> Result<(), UnmapError> {
        if block.place() == Place::Absent {
            return self.free_large(at, pages);
        }
        if pages == 0 {
            return Err(UnmapError::BadCount { pages });
        }
        let range = |size| self.range(block, page, u64::from(size));
        Err(match refusal {
            Refusal::NoHead => UnmapError::NotMapped { at, inside: self.find_enclosing(at) },
            Refusal::Size(size) => UnmapError::WrongCount { range: range(size), pages: Pages::new(pages) },
            Refusal::Twice(size) => UnmapError::Twice { range: range(size) },
        })
    }

    #[inline(always)]
    fn cpu(&self, cpu: u32) -> &'static Cpu<P::Lock> {
        // The common case needs no division.
        let at = if cpu < self.cpu_count { cpu } else { cpu % self.cpu_count };
        match self.cpus[at as usize % CPUS_MAX] {
            Some(cpu) => cpu,
            None => self.machine.bug(format_args!("CPU {at} of {} is missing", self.cpu_count), None),
        }
    }

    fn each_cpu(&self) -> impl Iterator<Item = &'static Cpu<P::Lock>> + '_ {
        self.cpus.iter().flatten().copied()
    }

    #[inline(always)]
    #[track_caller]
    fn lock_queue(&self, cpu: &'static Cpu<P::Lock>) -> MutexGuard<'static, P::Lock, Queue> {
        self.machine.locking(LockClass::Queue);
        cpu.queue.lock()
    }

    /// Takes the lock that guards where a block is, and tells that.
    ///
    /// A record lives again and again, each time with the CPU that begins it: the CPU is read anew once its lock is held. If
    /// the block is in that CPU's list or was, it stays so until the lock is dropped.
    #[track_caller]
    fn lock_home(&self, block: &'static Block) -> (MutexGuard<'static, P::Lock, Queue>, Place) {
        loop {
            let cpu = block.cpu();
            let queue = self.lock_queue(self.cpu(cpu));
            // In this order: who sees the place of a later life, which is written last, sees its CPU.
            let place = block.place();
            if block.cpu() == cpu {
                return (queue, place);
            }
        }
    }

    #[track_caller]
    fn lock_present(&self, index: u32) -> MutexGuard<'static, P::Lock, u64> {
        self.machine.locking(LockClass::Lookup);
        self.cpu(C::Spread::bucket(index, self.cpu_count)).present.lock()
    }

    #[track_caller]
    fn lock_collection(&self) -> MutexGuard<'_, P::PurgeLock, Collection> {
        self.machine.locking(LockClass::Collect);
        self.collection.lock()
    }

    /// The record of the block that a page-aligned address is in, and the page there.
    #[inline(always)]
    fn block_at(&self, at: Va) -> Option<Found> {
        let page = at.page_floor();
        if at.get() & (PAGE_SIZE - 1) != 0 {
            return None;
        }
        let block = self.lookup.find(self.index_of(page)?)?;
        Some((block, page as u32 & (self.pages - 1)))
    }

    #[inline(always)]
    fn index_of(&self, page: u64) -> Option<u32> {
        // Below the window it wraps to far above what is covered.
        let index = (page >> self.pages_log2).wrapping_sub(self.first);
        (index < COVERED).then_some(index as u32)
    }

    #[inline(always)]
    fn va(&self, block: &Block, page: u32) -> Va {
        let number = self.first + u64::from(block.index());
        Va::from_page((number << self.pages_log2) + u64::from(page))
    }

    fn range(&self, block: &Block, page: u32, pages: u64) -> VaRange {
        // In the extent of the space, which ends by 2^64 - 1.
        VaRange::from_size(self.va(block, page), pages * PAGE_SIZE).unwrap_or_default()
    }
}

impl<P: Machine + Clone, C: Config> Drop for Blocks<P, C> {
    fn drop(&mut self) {
        self.lookup.hand_back(&self.machine);
        for cpu in self.cpus.iter_mut().filter_map(Option::take) {
            self.machine.take_back_table(cpu);
        }
    }
}
