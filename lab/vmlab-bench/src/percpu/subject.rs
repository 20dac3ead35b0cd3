//! The measured subjects: our policies, each as a separate space, and their operations.

use anyhow::{Context as _, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use va_base::Va;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_percpu::{
    Backend, BackendError, Config, Context, Geometry, Magazine, Offset, PercpuSpace, Request, Sizes, Stats,
};
use vmlab_machine::{LabMachine, SpinLock, Watch, Work};

/// The size of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Bytes of a unit, of which there are four.
    pub(crate) unit: u32,
    /// Bytes of the static, the reserved and the dynamic section of the first chunk.
    pub(crate) parts: [u32; 3],
}

/// Linux's shape on four CPUs.
pub(crate) const USUAL: Shape = Shape { unit: 256 << 10, parts: [221_184, 8192, 28_672] };

impl Shape {
    /// Another size of the unit, with a small first chunk.
    pub(crate) const fn of_unit(unit: u32) -> Self {
        Self { unit, parts: [4096, 0, 20_480] }
    }
}

/// Units of a chunk.
pub(crate) const UNITS: u32 = 4;

/// Counts at one time. Bytes and pages are of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) chunks: u64,
    /// Free bytes in chunks, and in slabs.
    pub(crate) free_bytes: u64,
    pub(crate) pages: u64,
}

/// An allocator of per-CPU objects.
pub(crate) trait Subject {
    /// Allocates an object; 0 on failure.
    fn alloc(&self, size: u32, align: u32) -> u64;

    /// The same for a caller that cannot sleep.
    fn alloc_atomic(&self, size: u32, align: u32) -> u64;

    /// Frees an object.
    fn free(&self, at: u64);

    /// Returns the current counts.
    fn counts(&self) -> Counts;
}

/// A space with policies `C`, on chunks that are numbers: nothing is mapped or zeroed. The calling thread does the
/// balance work that is due, as in Linux's library.
pub(crate) struct Standard<C: Config, L: Watch = SpinLock>(PercpuSpace<LabMachine<L>, Numbers, C>);

impl<C: Config, L: Watch> Standard<C, L> {
    pub(crate) fn new(shape: Shape) -> Result<Self> {
        let [fixed, reserved, dynamic] = shape.parts;
        let (unit, atom) = (shape.unit, 2 << 20);
        let sizes = Sizes { unit, fixed, reserved, dynamic, atom, alloc: unit * UNITS, units: UNITS };
        let geometry = Geometry::new(sizes, Va::new(0xffff_8880_4000_0000)).context("sizes")?;
        let machine = LabMachine::new(UNITS, UNITS, Work::Here);
        let stride = (u64::from(unit) * u64::from(UNITS)).next_multiple_of(atom.into());
        let numbers = Numbers { stride, free: parking_lot::Mutex::default(), used: AtomicU64::new(0) };
        Ok(Self(PercpuSpace::new(geometry, machine, numbers).context("no memory for records")?))
    }

    /// Returns a caller with a magazine of its own.
    pub(crate) fn cached(&self, cpu: u32) -> Result<Cached<'_, C, L>> {
        let magazine = self.0.magazine(cpu).context("no memory for a magazine")?;
        Ok(Cached { magazine: RefCell::new(magazine), space: self })
    }

    /// Returns the space, for callers that leave the balance to others.
    pub(super) fn space(&self) -> &PercpuSpace<LabMachine<L>, Numbers, C> {
        &self.0
    }

    /// Returns the counts of the space.
    pub(crate) fn stats(&self) -> Stats {
        self.0.stats()
    }

    #[inline(always)]
    fn ask(&self, request: Request) -> u64 {
        let got = self.0.alloc(&request).map_or(0, Offset::get);
        self.after();
        got
    }

    #[inline(always)]
    fn after(&self) {
        if self.0.is_balance_due() {
            self.0.balance();
        }
    }
}

impl<C: Config, L: Watch> Subject for Standard<C, L> {
    #[inline(always)]
    fn alloc(&self, size: u32, align: u32) -> u64 {
        self.ask(Request::new(size as usize, align as usize))
    }

    #[inline(always)]
    fn alloc_atomic(&self, size: u32, align: u32) -> u64 {
        self.ask(Request::new(size as usize, align as usize).context(Context::Atomic))
    }

    #[inline(always)]
    fn free(&self, at: u64) {
        let freed = self.0.free(Offset::new(at));
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.after();
    }

    fn counts(&self) -> Counts {
        let stats = self.0.stats();
        Counts {
            chunks: stats.chunks.into(),
            free_bytes: stats.free_bytes + stats.slab_free_bytes,
            pages: stats.chunk_pages,
        }
    }
}

/// A space that is called through a magazine. The cell costs an instruction or two, since a subject is shared.
pub(crate) struct Cached<'s, C: Config, L: Watch = SpinLock> {
    magazine: RefCell<Magazine<'s, LabMachine<L>, Numbers, C>>,
    space: &'s Standard<C, L>,
}

impl<C: Config, L: Watch> Cached<'_, C, L> {
    #[inline(always)]
    fn ask(&self, request: Request) -> u64 {
        let got = self.magazine.borrow_mut().alloc(&request).map_or(0, Offset::get);
        self.space.after();
        got
    }
}

impl<C: Config, L: Watch> Subject for Cached<'_, C, L> {
    #[inline(always)]
    fn alloc(&self, size: u32, align: u32) -> u64 {
        self.ask(Request::new(size as usize, align as usize))
    }

    #[inline(always)]
    fn alloc_atomic(&self, size: u32, align: u32) -> u64 {
        self.ask(Request::new(size as usize, align as usize).context(Context::Atomic))
    }

    #[inline(always)]
    fn free(&self, at: u64) {
        let freed = self.magazine.borrow_mut().free(Offset::new(at));
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.space.after();
    }

    fn counts(&self) -> Counts {
        self.space.counts()
    }
}

/// Chunks that are numbers, allocated from the top down, the highest free one first.
pub(crate) struct Numbers {
    stride: u64,
    free: parking_lot::Mutex<BTreeSet<u64>>,
    used: AtomicU64,
}

/// Address at which chunks end.
const TOP: u64 = 0xffff_e8ff_0000_0000;

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        let place = self.free.lock().pop_first();
        let place = place.unwrap_or_else(|| self.used.fetch_add(1, Ordering::Relaxed) + 1);
        let below = place.checked_mul(self.stride).ok_or(BackendError)?;
        TOP.checked_sub(below).map(Va::new).ok_or(BackendError)
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        self.free.lock().insert((TOP - base.get()) / self.stride);
    }

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}
