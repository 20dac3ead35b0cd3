//! Our address space as a target: areas from a space, small mappings from its blocks, per-CPU chunks from the same
//! space.
//!
//! # Theory
//! There are addresses only: nothing is mapped or written. An area includes a guard page at its end, as a kernel's
//! does, so that ranges have the same length. Workers of the standard policies have a magazine and a lane each; those
//! of Linux's policies have neither.
//!
//! # Invariants
//! - **TS1 empty** when everything is freed, the busy pages of the space are those of its blocks and per-CPU chunks,
//!   and no mapping and no object is left.

use crate::case::Case;
use crate::target::{Ask, Ram, Setup, Target, Unsettled, Worker};
use anyhow::{Context as _, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use va_base::{PAGE_SIZE, Pages, Request, Va, VaRange};
use va_block::{Blocks, Config as BlockConfig, Lane};
use va_percpu::{Backend, BackendError, Config as PercpuConfig, Geometry, Offset, PercpuSpace, Sizes};
use va_space::{Magazine, Purge, VmapSpace};
use va_tree::Congruent;
use vmlab_machine::{LabMachine, SpinLock, Watch, Work};

/// Range of areas, as in Linux on x86-64, without its last byte.
const WINDOW: (u64, u64) = (0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff);
/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Bytes of a unit of per-CPU memory, of the sections of the first chunk, and the alignment of chunks: Linux's values.
const UNIT: u32 = 256 << 10;
const PARTS: [u32; 3] = [221_184, 8192, 28_672];
const ATOM: u32 = 2 << 20;
/// Address of the first chunk, which is not allocated from the space.
const FIRST_CHUNK: Va = Va::new(0xffff_8880_4000_0000);

/// The policy of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// Standard: each worker has a magazine and a lane, and areas grow in place if possible.
    Standard,
    /// Linux's: every call is one to the space, and an area that grows moves.
    Linux,
}

/// The target: locks of type `L`, blocks with policies `B` on a space with theirs, per-CPU memory with policies `C`.
pub(crate) struct SpaceTarget<L: Watch, B: BlockConfig, C: PercpuConfig> {
    chunks: Arc<Chunks<L, B>>,
    /// Created by the first test that allocates from it: the space that other tests measure does not need it.
    percpu: OnceLock<Percpu<L, B, C>>,
    cpus: u32,
    manner: Manner,
}

type Percpu<L, B, C> = PercpuSpace<LabMachine<SpinLock>, Source<L, B>, C>;

/// The space, and the pages of per-CPU chunks in it.
struct Chunks<L: Watch, B: BlockConfig> {
    blocks: Blocks<LabMachine<L>, B>,
    /// Pages of allocated chunks.
    pages: AtomicU64,
}

/// The space as the source of chunks.
struct Source<L: Watch, B: BlockConfig>(Arc<Chunks<L, B>>);

impl<L: Watch, B: BlockConfig, C: PercpuConfig> SpaceTarget<L, B, C> {
    /// Makes an empty space with a node for each CPU.
    ///
    /// # Errors
    /// If there is no memory for records.
    pub(crate) fn new(setup: &Setup, manner: Manner) -> Result<Self> {
        let cpus = setup.cpus.clamp(1, va_space::NODES_LIMIT);
        let machine = LabMachine::<L>::new(cpus, cpus, Work::Here);
        let window = VaRange::new(Va::new(WINDOW.0), Va::new(WINDOW.1)).context("no window")?;
        let space = VmapSpace::new(vmlab_machine::kernel_extent(), window, machine.clone())?;
        let chunks = Arc::new(Chunks { blocks: Blocks::new(space, machine)?, pages: AtomicU64::new(0) });
        Ok(Self { chunks, percpu: OnceLock::new(), cpus, manner })
    }

    /// Returns per-CPU memory; `None` if there is no memory for its records.
    fn percpu(&self) -> Option<&Percpu<L, B, C>> {
        if self.percpu.get().is_none() {
            let [fixed, reserved, dynamic] = PARTS;
            let (units, alloc) = (self.cpus, UNIT * self.cpus);
            let sizes = Sizes { unit: UNIT, fixed, reserved, dynamic, atom: ATOM, alloc, units };
            let geometry = Geometry::new(sizes, FIRST_CHUNK).ok()?;
            let machine = LabMachine::new(self.cpus, self.cpus, Work::Here);
            let made = PercpuSpace::new(geometry, machine, Source(Arc::clone(&self.chunks))).ok()?;
            // Another thread may have been first; its value is then used.
            let _slower = self.percpu.set(made);
        }
        self.percpu.get()
    }

    fn space(&self) -> &VmapSpace<LabMachine<L>, B::Space> {
        self.chunks.blocks.space()
    }

    /// Does the balance work of per-CPU memory that is due, as a kernel's worker would.
    #[inline]
    fn after_percpu(percpu: &Percpu<L, B, C>) {
        if percpu.is_balance_due() {
            percpu.balance();
        }
    }
}

impl<L: Watch, B: BlockConfig, C: PercpuConfig> Target for SpaceTarget<L, B, C> {
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_> {
        // If there is no memory for a magazine, the worker has none.
        let magazine = (self.manner == Manner::Standard).then(|| self.space().magazine(cpu).ok()).flatten();
        Box::new(SpaceWorker { target: self, cpu, magazine, lane: None })
    }

    fn supports(&self, _: Case) -> bool {
        true
    }

    /// Checks TS1, and validates the space, its blocks and per-CPU memory.
    fn settle(&self) -> Result<(), Unsettled> {
        let (blocks, space) = (&self.chunks.blocks, self.space());
        blocks.unmap_aliases();
        space.purge(Purge::Full);
        let percpu = self.percpu.get();
        percpu.map_or(Ok(()), Percpu::<L, B, C>::validate).map_err(Unsettled::InvariantViolation)?;
        blocks.validate().map_err(Unsettled::InvariantViolation)?;
        space.validate().map_err(Unsettled::InvariantViolation)?;
        let stats = blocks.stats();
        let in_blocks = stats.blocks * blocks.block_pages().get();
        let in_chunks = self.chunks.pages.load(Ordering::Relaxed);
        let areas = space.stats().busy_pages.get().saturating_sub(in_blocks + in_chunks);
        let objects = percpu.map_or(0, |percpu| percpu.stats().live);
        match areas + stats.live_pages.get() + objects {
            0 => Ok(()),
            left => Err(Unsettled::Left(left)),
        }
    }
}

/// One thread's handle to the target.
struct SpaceWorker<'t, L: Watch, B: BlockConfig, C: PercpuConfig> {
    target: &'t SpaceTarget<L, B, C>,
    cpu: u32,
    magazine: Option<Magazine<'t, LabMachine<L>, B::Space>>,
    /// Created by the first test of small mappings.
    lane: Option<Lane<'t, LabMachine<L>, B>>,
}

/// Returns the pages of an area for `bytes`, including its guard page.
fn area_pages(bytes: u64) -> Option<u64> {
    bytes.div_ceil(PAGE_SIZE).checked_add(1)
}

/// Returns the request for a space.
pub fn request(ask: &Ask) -> Option<Request> {
    let (mut bytes, mut align) = (ask.bytes, ask.align);
    if ask.huge && bytes >= HUGE {
        (bytes, align) = (bytes.checked_next_multiple_of(HUGE)?, align.max(HUGE));
    }
    let align = va_base::Align::new(align)?;
    Some(Request::pages(area_pages(bytes)?).ok()?.aligned(align))
}

impl<L: Watch, B: BlockConfig, C: PercpuConfig> Worker for SpaceWorker<'_, L, B, C> {
    #[inline]
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        let request = request(ask)?;
        let got = match &mut self.magazine {
            Some(magazine) => magazine.alloc(&request),
            None => self.target.space().alloc(self.cpu, &request),
        };
        got.ok().map(|area| area.start().get())
    }

    #[inline]
    fn vfree(&mut self, at: u64) {
        let freed = match &mut self.magazine {
            Some(magazine) => magazine.free_at(Va::new(at)),
            None => self.target.space().free_at(Va::new(at)),
        };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    #[inline(always)]
    fn write(&mut self, _: u64, _: u8) {}

    #[inline(always)]
    fn holds(&mut self, _: u64, _: u8) -> bool {
        true
    }

    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64> {
        // An area that shrinks frees pages and keeps its addresses, as in a kernel.
        if bytes.div_ceil(PAGE_SIZE) <= had.div_ceil(PAGE_SIZE) {
            return Some(at);
        }
        if self.target.manner == Manner::Standard {
            let (space, pages) = (self.target.space(), area_pages(bytes)?);
            let range = space.find(Va::new(at))?.range;
            if range.len_bytes() / PAGE_SIZE >= pages
                || space.resize_at(Va::new(at), Pages::new(pages)).is_ok()
            {
                return Some(at);
            }
        }
        let moved = self.vmalloc(&Ask::bytes(bytes))?;
        self.vfree(at);
        Some(moved)
    }

    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        let blocks = &self.target.chunks.blocks;
        if self.target.manner == Manner::Standard && self.lane.is_none() {
            self.lane = blocks.lane(self.cpu).ok();
        }
        Some(Box::new(SpaceRam { blocks, cpu: self.cpu, lane: &mut self.lane, count }))
    }

    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let request = va_percpu::Request::new(usize::try_from(bytes).ok()?, usize::try_from(align).ok()?);
        let percpu = self.target.percpu()?;
        let got = percpu.alloc(&request).ok().map(Offset::get);
        SpaceTarget::after_percpu(percpu);
        got
    }

    fn pcpu_free(&mut self, at: u64) {
        let Some(percpu) = self.target.percpu.get() else { return };
        let freed = percpu.free(Offset::new(at));
        debug_assert!(freed.is_ok(), "{freed:?}");
        SpaceTarget::after_percpu(percpu);
    }
}

/// Pages without contents: only their number matters.
struct SpaceRam<'w, 't, L: Watch, B: BlockConfig> {
    blocks: &'t Blocks<LabMachine<L>, B>,
    cpu: u32,
    lane: &'w mut Option<Lane<'t, LabMachine<L>, B>>,
    count: u64,
}

impl<L: Watch, B: BlockConfig> Ram for SpaceRam<'_, '_, L, B> {
    #[inline]
    fn map_write_unmap(&mut self, _: u8) -> bool {
        match self.lane {
            Some(lane) => lane.alloc(self.count).is_ok_and(|at| lane.free(at, self.count).is_ok()),
            None => {
                let got = self.blocks.alloc(self.cpu, self.count);
                got.is_ok_and(|at| self.blocks.free(self.cpu, at, self.count).is_ok())
            }
        }
    }
}

/// Returns the groups of a chunk: one, of whole atoms.
fn groups(geometry: &Geometry) -> [(u64, u64); 1] {
    let bytes = u64::from(geometry.unit_bytes()) * u64::from(geometry.sizes().units);
    [(0, bytes.next_multiple_of(ATOM.into()))]
}

impl<L: Watch, B: BlockConfig> Backend for Source<L, B> {
    const BY_PAGE: bool = true;

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        let groups = groups(geometry);
        let areas = Congruent::new(&groups, ATOM.into()).map_err(|_| BackendError)?;
        let at = self.0.blocks.space().alloc_congruent(&areas).map_err(|_| BackendError)?;
        self.0.pages.fetch_add(groups[0].1 / PAGE_SIZE, Ordering::Relaxed);
        Ok(at)
    }

    fn destroy(&self, geometry: &Geometry, base: Va) {
        let freed = self.0.blocks.space().free_at(base);
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.0.pages.fetch_sub(groups(geometry)[0].1 / PAGE_SIZE, Ordering::Relaxed);
    }

    fn populate(&self, _: &Geometry, _: Va, _: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _: &Geometry, _: Va, _: Range<u32>) {}

    fn flush(&self, _: &Geometry, _: Va, _: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}
