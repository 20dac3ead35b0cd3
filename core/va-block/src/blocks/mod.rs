//! Blocks: mappings of a few pages, allocated and freed without a call of the space.
//!
//! # Theory
//! ```text
//!   space --a block, aligned--> open list of a CPU --cut--> mapping --freed-------> dead --flush--> free --cut--> ...
//!     ^                                                                               |               |
//!     +------------------- no live mapping in it, and it is unneeded -----------------+---------------+
//! ```
//! A CPU allocates from the block that it used last. If that has no room, the CPU takes the open block that fits best.
//! Else it collects the dead pages if there are many, and then allocates another block from the space. If the space has
//! none, it takes pages of other CPUs' blocks.
//!
//! A block without live pages is freed to the space, as in Linux, when a block would begin and may not (VB8). In Linux
//! the pages of a block are allocated once, so one long-lived page pins 4 MiB. Here dead pages are used again after a
//! flush that covers them, although other pages of the block are live. The flush is shared: it is begun when as many
//! pages are dead, in all blocks, as may be lazy in a space, and covers all of them. So there is no more flushing than
//! when blocks die whole (docs/decisions/0021-blocks-present.md).
//!
//! # Invariants
//! - **VB6 ours** each block that is present is a busy area of the space, of the block's size and aligned to it.
//! - **VB7 listed** a block is in a list of its CPU exactly if it is open; a full one has no free page.
//! - **VB8 bounded** where pages are reused, a block begins only while the blocks present, in any state, are below a
//!   bound. It is twice those that hold a live page, plus two for each CPU and each lane. A block that is not touched
//!   counts as one with a live page.
//! - **VB9 shown** each CPU shows how large a request its queue may meet: any if it has a current block, else one of the
//!   highest class that has a block.
//!
//! Those of the space hold here too. SP2: freed pages are allocated again after a flush that covers them, or after the
//! block was freed to the space, which then flushes. SP3: a free sets a bit. SP4: errors change nothing. SP5: the same
//! calls with the same CPU ids return the same addresses.
//!
//! # Locking
//! ```text
//!   Collect (PurgeLock)  >  Queue of a CPU (Lock)      >  nothing
//!                        >  Lookup of a bucket (Lock)  >  nothing
//!                        >  Owner of a lane (OwnerLock, by try_lock)
//!                        >  what the space takes to free, and to purge
//! ```
//! The space is never called under `Queue`, `Lookup` or `Owner`, and an area is allocated from it under no lock. To
//! allocate a mapping takes the CPU's own `Queue`, or `Owner` of a [`Lane`]. To free one takes no lock, except `Queue`
//! for the first free in a block since it was examined.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vm_map_ram`, `vm_unmap_ram`, `new_vmap_block`, `vb_alloc`, `vb_free`). Reuse and lanes
//! are our own.

mod begin;
#[cfg(test)]
#[cfg(not(loom))]
mod broken;
mod collect;
mod cpus;
mod lane;
mod room;
#[cfg(test)]
#[cfg(not(loom))]
mod steps;
mod validate;

pub use collect::Collected;
pub use lane::Lane;
pub use validate::Stats;

use crate::block::{Block, Place, WrongFree};
use crate::config::{Config, Spread, Standard};
use crate::error::{BlockError, UnmapError};
use crate::lookup::{COVERED, Lookup};
use crate::queue::{Cpu, Queue};
use collect::CollectionOf;
use core::marker::PhantomData;
use cpus::{Cpus, Locked};
use room::{Ask, Balance};
use va_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard};
use va_base::{Context, Late, LockClass, Machine, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_space::{Release, ReleaseError, SpaceError, VmapSpace};

/// Most CPUs that have blocks of their own; higher ids share.
#[cfg(not(loom))]
pub const CPUS_MAX: usize = 4096;
/// Most CPUs that have blocks of their own, in a model.
#[cfg(loom)]
pub const CPUS_MAX: usize = 2;

/// An atomic in a cache line of its own.
#[repr(align(128))]
struct CachePadded<T>(T);

/// A block, and a page of it.
type Found = (&'static Block, u32);

/// Small mappings on machine `P` under the policies `C`, and the space that they are cut from.
///
/// ```
/// use va_base::{HeapMachine, VaRange};
/// use va_block::{Blocks, UnmapError, config};
/// use va_space::VmapSpace;
///
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(4); // feature `alloc`, for tests
/// let space = VmapSpace::new(window, window, &machine)?;
/// let blocks = Blocks::<_>::new(space, &machine)?;
/// let at = blocks.alloc(0, 3)?;
/// assert!(matches!(blocks.free(1, at, 4), Err(UnmapError::WrongCount { .. })));
/// assert_eq!(blocks.free(1, at, 3), Ok(()));
/// assert!(matches!(blocks.free(0, at, 3), Err(UnmapError::Twice { .. })));
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct Blocks<P: Machine + Clone, C: Config = Standard> {
    // Constant after `init`.
    space: VmapSpace<P, C::Space>,
    machine: Late<P>,
    /// Pages of a block, and their logarithm.
    pages: u32,
    pages_log2: u32,
    /// Number of the block that has index 0.
    first: u64,
    alloc_max: u64,
    cpus: Cpus<P::Lock>,
    cpu_count: u32,
    lookup: Lookup,
    // Under its lock.
    collection: Mutex<P::PurgeLock, CollectionOf<P>>,
    // Atomic, each alone.
    /// Stack of the touched blocks: those in which something was freed since they were last examined. A block is pushed
    /// under the lock of its queue. Protocol PR-TOUCH.
    touched: CachePadded<AtomicU32>,
    /// Blocks present, and touched blocks above: see [`Balance`]. Protocol PR-ROOM.
    balance: CachePadded<AtomicU64>,
    /// Lanes that there are: each may have a block (VB8). Protocol PR-ROOM.
    lanes: AtomicU64,
    /// Changes when a block has begun, and when one was freed to the space. Protocol PR-MOVES.
    moves: AtomicU64,
    /// `moves`, and one, when a request last had to take pages of another CPU, since no block could begin. Protocol
    /// PR-HINT.
    full: AtomicU64,
    /// Requests that went to other CPUs at once since then. A counter.
    shared: AtomicU32,
    /// Pages freed since the last collection, as far as CPUs have published their counts. Protocol PR-HINT.
    freed: CachePadded<AtomicU64>,
    /// A collection was begun and is not finished: a hint. Protocol PR-HINT.
    collecting: AtomicBool,
    config: PhantomData<fn() -> C>,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for Blocks<P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Blocks")
            .field("space", &self.space)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Returns the space below.
    pub fn space(&self) -> &VmapSpace<P, C::Space> {
        &self.space
    }

    /// Returns the number of pages of a block.
    pub fn block_pages(&self) -> Pages {
        Pages::new(u64::from(self.pages))
    }

    /// Allocates `pages` pages; `cpu` is the CPU of the caller, or an id of its choice. There is no guard page.
    ///
    /// Up to [`ALLOC_PAGES_MAX`](crate::config::ALLOC_PAGES_MAX) pages come from a block, more from the space.
    ///
    /// # Errors
    /// - [`BlockError::BadRequest`] if `pages` is 0 or beyond any space.
    /// - [`BlockError::Space`] if there is no room in the blocks of any CPU, after blocks without live mappings were
    ///   released to the space and all there was purged. A block that another call is about to begin is no room.
    /// - [`BlockError::Bound`] if another thread stands between two steps of a call.
    /// - [`BlockError::NoTable`] if the machine allocates no record.
    /// # Locks
    /// `Queue` of the CPU; the others, one after the other, when its blocks have no room.
    /// Cost: O(1) from the open run. Before it fails, a byte for each possible CPU.
    #[inline]
    pub fn alloc(&self, cpu: u32, pages: u64) -> Result<Va, BlockError> {
        self.alloc_in(Context::Sleeping, cpu, pages)
    }

    /// Allocates as [`alloc`](Self::alloc) does, for a caller in `context`.
    ///
    /// A caller that may not sleep gets pages of its CPU's open blocks. Else it gets a block whose area the space can
    /// allocate without waiting, if the block had a record before. On a CPU that came online later and has not
    /// allocated before, the call fails. Where one that may sleep found the space full since a block last began or was
    /// released, it gets pages of other CPUs' open blocks, too.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc). Where a caller that may sleep would first flush, wait or release blocks to
    /// the space, the error is [`BlockError::WouldBlock`], never a lack of space.
    #[inline]
    pub fn alloc_in(&self, context: Context, cpu: u32, pages: u64) -> Result<Va, BlockError> {
        if pages.wrapping_sub(1) >= self.alloc_max {
            return self.alloc_large(cpu, pages, context);
        }
        let consumed = C::consumed(pages as u32);
        if !C::FIRST_FIT
            && let Some(own) = self.made(cpu)
        {
            // An allocation from the current block changes nothing that a CPU shows.
            self.machine.locking(LockClass::Queue);
            let queue = own.queue.lock();
            if let Some(block) = queue.current
                && let Some(page) = block.carve(pages as u32, consumed)
            {
                return Ok(self.va(block, page));
            }
        }
        let ask = Ask { cpu, pages: pages as u32, consumed, to: Place::Open, context };
        let ((block, page), _) = self.find_room(ask)?;
        Ok(self.va(block, page))
    }

    /// Frees the `pages` pages at `at`, which were allocated together, on any CPU; `cpu` is the CPU of the caller. They
    /// are allocated again after a flush.
    ///
    /// A range larger than a block's share is an area of the space: any area of exactly that size that starts there.
    ///
    /// # Errors
    /// [`UnmapError`] if no allocated range starts there, or one of another size. Of two concurrent frees, one fails
    /// with it.
    /// # Locks
    /// None, except `Queue` of the block's CPU for the first free in a block since a collection examined it. Where
    /// blocks are freed with their last mapping, the free of that mapping takes `Queue`, `Lookup`, and the locks of the
    /// space's free.
    /// Cost: O(1).
    #[inline]
    pub fn free(&self, cpu: u32, at: Va, pages: u64) -> Result<(), UnmapError> {
        self.free_in(Context::Sleeping, cpu, at, pages)
    }

    /// Frees as [`free`](Self::free) does, for a caller in `context`. [`Context::Atomic`] suits an interrupt: the call
    /// never flushes and never waits.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    /// # Locks
    /// [`Context::Atomic`]: at most `Queue` of the block's CPU. A mapping larger than a block's share takes the locks
    /// of the space's free in that context. So does a free where blocks are freed with their last mapping. Cost: O(1).
    #[inline]
    pub fn free_in(&self, context: Context, cpu: u32, at: Va, pages: u64) -> Result<(), UnmapError> {
        let Some((block, page)) = self.block_at(at) else {
            return self.free_large(context, at, pages);
        };
        match self.made(cpu) {
            Some(own) => self.free_mapping(context, block, page, at, pages, &own.freed),
            None => self.free_on_new(context, (block, page), at, pages),
        }
    }

    /// Frees on a CPU that has no state yet.
    #[cold]
    fn free_on_new(
        &self,
        context: Context,
        (block, page): Found,
        at: Va,
        pages: u64,
    ) -> Result<(), UnmapError> {
        let freed = AtomicU64::new(0);
        self.free_mapping(context, block, page, at, pages, &freed)?;
        self.freed.0.fetch_add(freed.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the mapping of a block that encloses `at`, as it was at one moment. No lock; cost: O(1).
    ///
    /// For a reader of mapped memory: outside of these ranges, nothing is mapped in a block.
    pub fn find_enclosing(&self, at: Va) -> Option<VaRange> {
        let (block, page) = self.block_at(Va::from_page(at.page_floor()))?;
        let (head, size) = block.living_around(page)?;
        Some(self.range(block, head, u64::from(size)))
    }

    /// Marks the mapping as freed, and touches its block; `freed` is the count of the caller's CPU.
    #[inline(always)]
    fn free_mapping(
        &self,
        context: Context,
        block: &'static Block,
        page: u32,
        at: Va,
        pages: u64,
        freed: &AtomicU64,
    ) -> Result<(), UnmapError> {
        if let Err(wrong) = block.free(page, pages) {
            return self.rejected(context, block, page, wrong, at, pages);
        }
        self.ensure_touched(block);
        if C::REUSE {
            self.note_freed(freed, pages);
        } else if block.count_dead(C::consumed(pages as u32)) == self.pages {
            self.release_dead(context, block);
        }
        Ok(())
    }

    /// Touches a block in which a mapping was marked as freed.
    #[inline(always)]
    fn ensure_touched(&self, block: &'static Block) {
        if !block.is_touched() {
            self.touch(block);
        }
    }

    /// Counts freed pages of one CPU and, at intervals, adds them to the count of all.
    #[inline(always)]
    fn note_freed(&self, freed: &AtomicU64, pages: u64) {
        let mut now = freed.load(Ordering::Relaxed) + pages;
        if now >= C::REPORT_PAGES {
            self.freed.0.fetch_add(now, Ordering::Relaxed);
            now = 0;
        }
        freed.store(now, Ordering::Relaxed);
    }

    /// Puts a block on the stack of touched blocks, unless it is on it.
    ///
    /// Under the lock: a free that finds the block touched relies on its presence on the stack. So the block is pushed
    /// before it is marked as touched, and a second caller waits for the first.
    #[cold]
    fn touch(&self, block: &'static Block) {
        let (_queue, place) = self.lock_home(block);
        if place != Place::Absent && !block.is_touched() {
            self.balance.0.fetch_add(Balance::TOUCHED, Ordering::Relaxed);
            self.push_touched(block);
        }
    }

    /// Pushes a block that is counted as touched and not on the stack. Queue lock.
    fn push_touched(&self, block: &Block) {
        let mut head = self.touched.0.load(Ordering::Relaxed);
        loop {
            block.touched_next.store(head, Ordering::Relaxed);
            // Release pairs with the acquire of the collection that takes the stack: it sees the link.
            let pushed =
                self.touched.0.compare_exchange(head, block.index(), Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        block.set_touched(true);
    }

    /// Releases a block to the space if all its pages are dead, unless it is in a lane, which releases it itself.
    #[cold]
    fn release_dead(&self, context: Context, block: &'static Block) {
        let (mut queue, place) = self.lock_home(block);
        // Checked under the lock: a purge may have released it first, and another block may have begun here.
        if block.dead_counted() == self.pages && self.end(&mut queue, block, place) {
            drop(queue);
            // Its touch stays counted until a collection takes the block from the stack.
            self.balance.0.fetch_sub(Balance::PRESENT, Ordering::Relaxed);
            self.release(context, block);
        }
    }

    /// Ends a block without live mappings, if it is not in a lane; returns whether it did. The caller then releases it,
    /// without the lock.
    ///
    /// `place` is what [`lock_home`](Self::lock_home) returned: a block that was absent then may be anywhere by now.
    fn end(&self, queue: &mut Queue, block: &'static Block, place: Place) -> bool {
        match place {
            Place::Open => queue.unlink(&self.lookup, block, Place::Full),
            Place::Full => {}
            Place::Laned | Place::Absent => return false,
        }
        block.end();
        true
    }

    /// Frees the area of an ended block.
    fn release(&self, context: Context, block: &Block) {
        *self.lock_present(block.index()) -= 1;
        if let Err(error) = self.space.free_as(Release::Held(self.va(block, 0), block.key()), context) {
            self.machine.bug(format_args!("the space does not know a block: {error}"), None);
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn alloc_large(&self, cpu: u32, pages: u64, context: Context) -> Result<Va, BlockError> {
        let request = Request::pages(pages)?.context(context);
        let area = match self.ask_space(cpu, &request) {
            Err(BlockError::Space(SpaceError::NoSpace { .. })) => {
                self.shrink();
                self.ask_space(cpu, &request)?
            }
            done => done?,
        };
        // Freed later by its address.
        Ok(area.start())
    }

    #[cold]
    fn free_large(&self, context: Context, at: Va, pages: u64) -> Result<(), UnmapError> {
        let count = Pages::new(pages);
        if pages == 0 || count.checked_bytes().is_none() {
            return Err(UnmapError::BadCount { pages });
        }
        if pages > self.alloc_max {
            // Size and area are of one look: a late second free takes no area of another size, and none of a block.
            return match self.space.free_as(Release::Sized(at, count), context) {
                Ok(_) => Ok(()),
                Err(ReleaseError::WrongSize { area, .. }) => {
                    Err(UnmapError::WrongCount { range: area, pages: count })
                }
                Err(ReleaseError::NoArea { inside, .. }) => Err(UnmapError::NotMapped { at, inside }),
                Err(_) => Err(UnmapError::NotMapped { at, inside: None }),
            };
        }
        match self.space.find(at) {
            // An area of another caller of the space: none of blocks is so short.
            Some(seen) if seen.range.len_bytes() / PAGE_SIZE == pages => {
                Err(UnmapError::NotMapped { at, inside: Some(seen.range) })
            }
            Some(seen) => Err(UnmapError::WrongCount { range: seen.range, pages: count }),
            None => {
                let inside = self.space.find_enclosing(at).map(|seen| seen.range);
                Err(UnmapError::NotMapped { at, inside })
            }
        }
    }

    /// Returns the reason why a free was rejected; an address outside the present blocks may be in an area of the
    /// space.
    #[cold]
    fn rejected(
        &self,
        context: Context,
        block: &'static Block,
        page: u32,
        wrong: WrongFree,
        at: Va,
        pages: u64,
    ) -> Result<(), UnmapError> {
        if block.place() == Place::Absent {
            return self.free_large(context, at, pages);
        }
        if pages == 0 {
            return Err(UnmapError::BadCount { pages });
        }
        let range = |size| self.range(block, page, u64::from(size));
        Err(match wrong {
            WrongFree::NoHead => UnmapError::NotMapped { at, inside: self.find_enclosing(at) },
            WrongFree::Size(size) => UnmapError::WrongCount { range: range(size), pages: Pages::new(pages) },
            WrongFree::Twice(size) => UnmapError::Twice { range: range(size) },
        })
    }

    /// Returns the state of a CPU, if it was created.
    #[inline(always)]
    fn made(&self, cpu: u32) -> Option<&'static Cpu<P::Lock>> {
        match self.cpus.get(cpu) {
            None => self.made_as(cpu),
            there => there,
        }
    }

    /// Returns the state for an id that may stand for a lower one, if it was created.
    #[cold]
    fn made_as(&self, cpu: u32) -> Option<&'static Cpu<P::Lock>> {
        self.cpus.get(cpu % self.cpu_count)
    }

    /// Returns the state of a CPU; creates it if there is none and `context` allows the machine to allocate a table.
    fn ensure_cpu(&self, context: Context, cpu: u32) -> Result<&'static Cpu<P::Lock>, BlockError> {
        match (self.made(cpu), context) {
            (Some(there), _) => Ok(there),
            (None, Context::Atomic) => Err(BlockError::WouldBlock),
            (None, Context::Sleeping) => {
                self.cpus.ensure(cpu % self.cpu_count, &self.machine).ok_or(BlockError::NoTable)
            }
        }
    }

    /// Returns the state of the CPU of a block or a bucket, which was created before either began.
    #[inline(always)]
    fn cpu(&self, cpu: u32) -> &'static Cpu<P::Lock> {
        match self.made(cpu) {
            Some(cpu) => cpu,
            None => self.machine.bug(format_args!("CPU {cpu} of {} is missing", self.cpu_count), None),
        }
    }

    fn each_cpu(&self) -> impl Iterator<Item = (u32, &'static Cpu<P::Lock>)> + '_ {
        self.cpus.each()
    }

    #[inline(always)]
    #[track_caller]
    fn lock_queue(&self, cpu: u32) -> Locked<'_, P::Lock> {
        let own = self.cpu(cpu);
        self.machine.locking(LockClass::Queue);
        self.cpus.locked(cpu % self.cpu_count, own.queue.lock())
    }

    /// Takes the lock that guards the place of a block, and returns the place.
    ///
    /// A record is reused, each time for the CPU that begins the block. So the CPU is read again once its lock is held.
    /// If the block is or was in that CPU's list, this does not change until the lock is dropped.
    #[track_caller]
    fn lock_home(&self, block: &'static Block) -> (Locked<'_, P::Lock>, Place) {
        loop {
            let cpu = block.cpu();
            let queue = self.lock_queue(cpu);
            // In this order: a thread that sees the place of a later block, which is written last, sees its CPU.
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
    fn lock_collection(&self) -> MutexGuard<'_, P::PurgeLock, CollectionOf<P>> {
        self.machine.locking(LockClass::Collect);
        self.collection.lock()
    }

    /// Returns the record of the block that a page-aligned address is in, and the page there.
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
        self.lookup.release_meta(&self.machine);
        self.cpus.release_meta(&self.machine);
    }
}
