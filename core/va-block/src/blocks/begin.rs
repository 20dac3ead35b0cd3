//! Creation of blocks: as a constant without a space, or with one, in place.

use super::collect::Collection;
use super::cpus::Cpus;
use super::{Blocks, CPUS_MAX, CachePadded};
use crate::block::{NIL, PAGES_MAX};
use crate::config::{ALLOC_PAGES_MAX, Config};
use crate::error::BlockError;
use crate::lookup::{COVERED, Lookup};
use core::marker::PhantomData;
use va_base::sync::Mutex;
use va_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use va_base::{Late, Machine, VaRange};
use va_space::{SpaceError, VmapSpace};

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Creates blocks in the default window of `space`; no block is present yet. The machine allocates a table for each
    /// CPU that is online, and another when an id beyond those is first used.
    ///
    /// Stack: up to 32 KiB in release builds, since the values are moved; [`init`](Self::init) takes less than 4 KiB.
    ///
    /// # Errors
    /// [`BlockError::TooWide`] if the window has more blocks than the lookup covers, [`BlockError::NoTable`] if the
    /// machine allocates no table. The space is dropped with either.
    pub fn new(space: VmapSpace<P, C::Space>, machine: P) -> Result<Self, BlockError> {
        let cpus = machine.cpus_possible();
        Self::with_cpus(space, machine, cpus)
    }

    /// Creates blocks as [`new`](Self::new) does, for `cpus` CPUs if their number differs from that of the space's
    /// nodes.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_cpus(space: VmapSpace<P, C::Space>, machine: P, cpus: u32) -> Result<Self, BlockError> {
        let mut blocks = va_base::constant!(Self::empty());
        blocks.space = space;
        blocks.begin_cpus(machine, cpus)?;
        Ok(blocks)
    }

    va_base::const_fn! {
        /// Creates blocks without a space and without a machine: a constant, for a `static` or for memory of the
        /// caller. [`init`](Self::init) supplies both in place.
        ///
        /// Before that nothing fits, and no mapping is found. A caller with little stack writes the value in place as a
        /// constant, `const { Blocks::empty() }`.
        pub fn empty() -> Self {
            Self {
                space: VmapSpace::empty(),
                machine: Late::NONE,
                pages: 1,
                pages_log2: 0,
                first: 0,
                alloc_max: 0,
                cpus: Cpus::new(),
                cpu_count: 1,
                lookup: Lookup::new(),
                collection: Mutex::new(Collection::new()),
                touched: CachePadded(AtomicU32::new(NIL)),
                balance: CachePadded(AtomicU64::new(0)),
                lanes: AtomicU64::new(0),
                moves: AtomicU64::new(0),
                full: AtomicU64::new(0),
                shared: AtomicU32::new(0),
                freed: CachePadded(AtomicU64::new(0)),
                collecting: AtomicBool::new(false),
                config: PhantomData,
            }
        }
    }

    /// Supplies [`empty`](Self::empty) blocks with a machine and, in place, a space over the whole pages of `extent`,
    /// of which `busy` is allocated already. See [`VmapSpace::init_with_busy`] and [`new`](Self::new). Stack: less than
    /// 4 KiB in release builds.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), after which the blocks are empty again and another call may succeed.
    /// [`SpaceError::AlreadyReady`](va_space::SpaceError::AlreadyReady) if there is a space.
    pub fn init(&mut self, extent: VaRange, machine: P, busy: &[VaRange]) -> Result<(), BlockError> {
        self.init_within(extent, extent, machine, busy)
    }

    /// Initializes blocks as [`init`](Self::init) does, with a default window inside of the extent, from which all
    /// blocks come.
    ///
    /// # Errors
    /// The errors of [`init`](Self::init).
    pub fn init_within(
        &mut self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<(), BlockError> {
        let made = self.init_once(extent, default_window, machine, busy);
        if !matches!(made, Ok(()) | Err(BlockError::Space(SpaceError::AlreadyReady))) {
            // Dropping the old value frees all that was allocated.
            *self = va_base::constant!(Self::empty());
        }
        made
    }

    /// Initializes blocks as [`init_within`](Self::init_within) does, for a caller that stops after an error: see
    /// [`VmapSpace::init_once`].
    ///
    /// # Errors
    /// Those of [`init_within`](Self::init_within).
    pub fn init_once(
        &mut self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<(), BlockError> {
        self.space.init_once(extent, default_window, machine.clone(), busy)?;
        let cpus = machine.cpus_possible();
        self.begin_cpus(machine, cpus)
    }

    /// Begins with a machine, over a space that was created already.
    fn begin_cpus(&mut self, machine: P, cpus: u32) -> Result<(), BlockError> {
        let count = cpus.clamp(1, CPUS_MAX as u32);
        let pages = C::block_pages(cpus).clamp(1, u64::from(PAGES_MAX)).next_power_of_two();
        let pages_log2 = pages.ilog2();
        let window = self.space.default_window();
        let first = window.start().page_floor() >> pages_log2;
        let last = window.end().page_floor() >> pages_log2;
        if last - first >= COVERED {
            return Err(BlockError::TooWide { window, limit: COVERED });
        }
        self.machine = Late::new(machine);
        (self.pages, self.pages_log2, self.first) = (pages as u32, pages_log2, first);
        (self.alloc_max, self.cpu_count) = (ALLOC_PAGES_MAX.min(pages), count);
        // The state of other CPUs is created when they first need it.
        for cpu in 0..self.machine.cpus_online().clamp(1, count) {
            // Dropped on an error, the blocks free what was allocated.
            self.cpus.ensure(cpu, &self.machine).ok_or(BlockError::NoTable)?;
        }
        Ok(())
    }
}
