//! Each structure of the core on a machine that frees slabs and tables at once. Miri reports a reference that would have
//! to be valid longer, and memory that was never freed.
//!
//! Values are dropped by `drop`, whose argument is such a reference if a field of it is one.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, Va, VaRange};
use va_block::Blocks;
use va_peer::host::{Host, Work};
use va_percpu::{Backend, BackendError, Geometry, PercpuSpace, Sizes};
use va_space::{Purge, VmapSpace};
use va_tree::rb::Exact;
use va_tree::{BTreeIndex, FreeIndex, RbIndex, Supplied};

/// Areas of each test: so many that their records need slabs.
const AREAS: u64 = if cfg!(miri) { 150 } else { 20_000 };

fn host() -> Host {
    Host::new(1, 1, Work::Here)
}

fn window() -> VaRange {
    VaRange::from_pages(0x1000, 0x10_0000).unwrap()
}

/// Allocates areas, frees every other one, then the rest, and frees slabs on the way and at the end.
fn fill<I: FreeIndex + Supplied>(mut index: I) {
    index.supply(AREAS / 2, &host()).unwrap();
    let page = Request::pages(1).unwrap();
    let areas: Vec<Va> = (0..AREAS).map(|_| index.alloc(&page).unwrap()).collect();
    for first in [0, 1] {
        for &area in areas.iter().skip(first).step_by(2) {
            index.free(VaRange::from_size(area, 4096).unwrap()).unwrap();
        }
        while index.shrink(usize::MAX) > 0 {}
    }
    // One supply that the index uses, and the same one too late.
    if let Some(wanted) = index.wanted(AREAS * 4) {
        let [first, second] = [(); 2].map(|()| I::alloc_supply(wanted, &host()).unwrap());
        assert!(index.donate(first).is_ok());
        I::free_supply(index.donate(second).err().unwrap(), &host());
    }
    drop(index);
}

#[test]
fn an_index_frees_its_slabs() {
    fill(BTreeIndex::new(window(), window(), host()).unwrap());
    fill(RbIndex::<Exact, _>::new(window(), window(), host()).unwrap());
}

#[test]
fn a_space_frees_its_tables_and_its_slabs() {
    let space = VmapSpace::<_>::new(window(), window(), host()).unwrap();
    let pages = |pages| Request::pages(pages).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let kept = magazine.alloc(&pages(3)).unwrap();
    let areas: Vec<_> = (0..AREAS / 8).map(|_| space.alloc(0, &pages(1)).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    magazine.free(kept).unwrap();
    drop(magazine);
    space.purge(Purge::Full);
    drop(space);
}

#[test]
fn blocks_free_their_tables_and_a_lane_its_slot() {
    let space = VmapSpace::new(window(), window(), host()).unwrap();
    let blocks = Blocks::<_>::new(space, host()).unwrap();
    let mut lane = blocks.lane(0).unwrap();
    let small = lane.alloc(5).unwrap();
    lane.free(small, 5).unwrap();
    drop(lane);
    let small = blocks.alloc(0, 3).unwrap();
    blocks.free(0, small, 3).unwrap();
    drop(blocks);
}

/// Chunks that are numbers.
struct Numbers;

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        Ok(Va::new(0x5000_0000))
    }

    fn destroy(&self, _geometry: &Geometry, _base: Va) {}

    fn populate(&self, _: &Geometry, _: Va, _pages: std::ops::Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: std::ops::Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: std::ops::Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}

#[test]
fn percpu_memory_frees_its_rows_and_its_tables() {
    let sizes =
        Sizes { unit: 32_768, fixed: 0, reserved: 0, dynamic: 20_480, atom: 4096, alloc: 131_072, units: 4 };
    let geometry = Geometry::new(sizes, Va::new(0x4000_0000)).unwrap();
    let space = PercpuSpace::<_, _>::new(geometry, host(), Numbers).unwrap();
    let large = va_percpu::Request::new(16_384, 8);
    let both = [(); 2].map(|()| space.alloc(&large).unwrap());
    let mut magazine = space.magazine(0).unwrap();
    let small = magazine.alloc(&va_percpu::Request::new(8, 8)).unwrap();
    magazine.free(small).unwrap();
    drop(magazine);
    both.into_iter().for_each(|large| space.free(large).unwrap());
    space.validate().unwrap();
    drop(space);
}
