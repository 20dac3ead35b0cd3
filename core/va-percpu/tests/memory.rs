//! Per-CPU memory whose records must be in pages, and units of as many CPUs as a kernel can have.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{HeapMachine, LimitedHeap, Va};
use va_percpu::config::{Linux612, Runs, Standard};
use va_percpu::{AllocError, Config, Geometry, Offset, PercpuSpace, Request, Sizes};
use va_sim::effort::some;
use va_sim::percpu::SimChunks;

/// The smallest unit, so that no record of a chunk is longer than a page.
const SIZES: Sizes = Sizes {
    unit: 32 << 10,
    fixed: 4096,
    reserved: 0,
    dynamic: 28 << 10,
    atom: 32 << 10,
    alloc: 64 << 10,
    units: 2,
};
const BASE: Va = Va::new(1 << 36);

type Machine = HeapMachine<parking_lot::RawMutex, LimitedHeap>;
type Space<C> = PercpuSpace<&'static Machine, SimChunks, C>;

fn space<C: Config>(sizes: Sizes, limit: usize) -> (Space<C>, &'static LimitedHeap) {
    let machine: &'static Machine = Box::leak(Box::new(Machine::watched(2, LimitedHeap::new())));
    machine.watcher.limit(limit);
    let geometry = Geometry::new(sizes, BASE).unwrap();
    (PercpuSpace::new(geometry, machine, SimChunks::default()).unwrap(), &machine.watcher)
}

/// Frees everything, and expects that all memory is returned.
fn end<C: Config>(space: Space<C>, offsets: Vec<Offset>, heap: &LimitedHeap) {
    offsets.into_iter().for_each(|offset| space.free(offset).unwrap());
    space.balance();
    space.validate().unwrap();
    drop(space);
    assert_eq!(heap.bytes(), 0);
}

/// A million objects of 32 bytes, 1,024 a chunk, where no allocation is longer than a page.
fn million<C: Config>() {
    let (space, heap) = space::<C>(SIZES, 4096);
    let request = Request::new(32, 4);
    let mut offsets: Vec<_> = (0..1_000_000).map(|_| space.alloc(&request).unwrap()).collect();
    assert!(space.stats().chunks > 970, "{:?}", space.stats());
    assert!(heap.longest() <= 4096);
    // Each has its own address.
    offsets.sort_unstable();
    assert!(offsets.windows(2).all(|two| two[0] != two[1]));
    end(space, offsets, heap);
}

#[test]
fn a_million_objects_need_no_piece_longer_than_a_page() {
    million::<Standard>();
    million::<Linux612>();
}

/// Objects of a whole unit: one chunk each.
fn shortage<C: Config>() {
    let (space, heap) = space::<C>(SIZES, usize::MAX);
    let request = Request::new(32 << 10, 4096);
    let mut offsets = Vec::new();
    let mut more = |count: usize| {
        let before = offsets.len();
        let error = loop {
            match space.alloc(&request) {
                Ok(_) if offsets.len() - before == count => panic!("an object too many"),
                Ok(offset) => offsets.push(offset),
                Err(error) => break Some(error),
            }
            if offsets.len() - before == count {
                break None;
            }
        };
        space.validate().unwrap();
        (offsets.len() - before, error)
    };
    assert_eq!(more(200).0, 200);
    for _ in 0..some(5) {
        // No memory, then pages alone, then any.
        heap.limit(0);
        assert!(matches!(more(1), (0, Some(AllocError::NoMeta { .. }))));
        heap.limit(4096);
        assert_eq!(more(150), (150, None));
        assert!(heap.longest() <= 4096);
        heap.limit(usize::MAX);
        assert_eq!(more(300), (300, None));
    }
    // The next tables are contiguous again.
    assert_eq!(more(600), (600, None));
    assert!(heap.longest() > 4096);
    end(space, offsets, heap);
}

#[test]
fn a_shortage_is_forgotten_as_soon_as_there_are_pages() {
    shortage::<Runs>();
    shortage::<Standard>();
    shortage::<Linux612>();
}

#[test]
fn units_of_4096_cpus_work() {
    let units = 4096;
    let sizes = Sizes { alloc: SIZES.unit * units, units, ..SIZES };
    let (space, heap) = space::<Standard>(sizes, 4096);
    let offsets: Vec<_> =
        (0..3000u32).map(|nth| space.alloc(&Request::new(8 + nth as usize % 90, 8)).unwrap()).collect();
    let stats = space.stats();
    assert!(stats.chunks > 1, "{stats:?}");
    assert_eq!(space.populated_bytes(), stats.populated_pages * 4096 * u64::from(units));
    assert!(offsets.iter().all(|&offset| space.find(offset).is_some()));
    space.validate().unwrap();
    end(space, offsets, heap);
}
