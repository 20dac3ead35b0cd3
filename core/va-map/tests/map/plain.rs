//! A source that cannot reset permissions.

use va_base::{Va, VaRange};
use va_map::{
    AreaRequest, DirectMap, Entries, Leaf, MapError, MapSpace, PageRequest, PageSource, PageTable, Run,
    Stopped,
};
use va_sim::machine::SimMachine;
use va_sim::pages::SimPages;
use va_space::VmapSpace;

const PAGE: u64 = va_base::PAGE_SIZE;

/// Simulated pages, without resets.
struct Plain<'m>(SimPages<'m>);

impl PageTable for Plain<'_> {
    const LEAF_SIZES: &'static [u32] = <SimPages<'_> as PageTable>::LEAF_SIZES;

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        self.0.map(at, entries)
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        self.0.unmap(range, gone);
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        self.0.leaf(at)
    }
}

impl PageSource for Plain<'_> {
    fn alloc(&self, frames: &mut [u64], request: PageRequest) -> usize {
        PageSource::alloc(&self.0, frames, request)
    }

    fn alloc_run(&self, pages_log2: u32, request: PageRequest) -> Option<u64> {
        self.0.alloc_run(pages_log2, request)
    }

    fn free(&self, run: Run) {
        self.0.free(run);
    }

    fn clear(&self, frame: u64, from: u64, to: u64) {
        self.0.clear(frame, from, to);
    }
}

#[test]
fn a_source_that_cannot_reset_has_areas_that_need_no_reset() {
    let machine = SimMachine::new(1);
    let pages = Plain(SimPages::new(&machine, 100));
    let window = VaRange::from_pages(0x10, 0x1010).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map: MapSpace<&SimMachine, &Plain<'_>> = MapSpace::new(space, &machine, &pages).unwrap();
    let area = AreaRequest::new(3 * PAGE);
    assert_eq!(map.vmalloc(0, &area.direct_map(DirectMap::ResetOnFree)), Err(MapError::NoReset));
    assert_eq!((map.stats().areas, pages.0.allocated()), (0, 0));
    let at = map.vmalloc(0, &area).unwrap();
    assert_eq!(map.reset_on_free(at), Err(MapError::NoReset));
    map.vfree(at).unwrap();
    assert_eq!((pages.0.allocated(), pages.0.faults()), (0, Vec::new()));
}
