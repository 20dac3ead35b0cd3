//! The same operations give the same results (SP5), whatever memory the records are in.

use va_base::{Meta, Platform, Record, VaRange};
use va_sim::effort::some;
use va_sim::op::{Op, Space};
use va_sim::platform::HeapPlatform;
use va_sim::run::{Driver, Walk, assert_same};
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux, Search};
use va_tree::{BTreeIndex, BTreeIndex32, FreeIndex, RbIndex};

/// Allocates more than requested, at other addresses, including freed slabs with their old contents.
#[derive(Clone, Default)]
struct Generous(HeapPlatform);

impl Platform for Generous {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.0.alloc_meta(2 * min + 7)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.0.free_meta(slab);
    }
}

fn space() -> Space {
    Space::whole(VaRange::from_pages(3, 6000).unwrap())
}

/// Runs the ops of a seed on an index of each platform, the second time on slabs that were used before.
fn twice<A: FreeIndex, B: FreeIndex>(one: impl Fn(HeapPlatform) -> A, other: impl Fn(Generous) -> B) {
    let (heap, generous) = (HeapPlatform::default(), Generous::default());
    for seed in [11, 11, 12] {
        let ops = Op::from_seed(&space(), seed).take(some(6000)).collect::<Vec<_>>();
        assert_same(&space(), one(heap.clone()), other(generous.clone()), ops, Walk::Every(100));
    }
}

#[test]
fn sp5_answers_do_not_depend_on_where_records_are() {
    let all = space().extent;
    twice(
        |p| RbIndex::<Linux, _>::new(all, all, p).unwrap(),
        |p| RbIndex::<Linux, _>::new(all, all, p).unwrap(),
    );
    twice(
        |p| RbIndex::<Exact, _>::new(all, all, p).unwrap(),
        |p| RbIndex::<Exact, _>::new(all, all, p).unwrap(),
    );
    twice(
        |p| BTree::<u64, 8, _>::new(all, all, p).unwrap(),
        |p| BTree::<u64, 8, _>::new(all, all, p).unwrap(),
    );
    twice(|p| BTreeIndex::new(all, all, p).unwrap(), |p| BTreeIndex::new(all, all, p).unwrap());
    // Rows are another path to the same result.
    twice(
        |p| BTreeIndex32::new(all, all, p).unwrap(),
        |p| BTreeIndex32::new(all, all, p).unwrap().with_rows().unwrap(),
    );
}

#[test]
fn sp5_shapes_do_not_depend_on_where_records_are() {
    fn shape<S: Search, P: Platform>(platform: P) -> Vec<(u64, u64, u32)> {
        let all = space().extent;
        let mut driver = Driver::new(RbIndex::<S, P>::new(all, all, platform).unwrap());
        for op in Op::from_seed(&space(), 5).take(4000) {
            driver.run(&op);
        }
        driver.index.shape().map(|(start, end, depth)| (start.get(), end.get(), depth)).collect()
    }
    assert!(shape::<Linux, _>(HeapPlatform::default()).len() > 15);
    assert_eq!(shape::<Linux, _>(HeapPlatform::default()), shape::<Linux, _>(Generous::default()));
    assert_eq!(shape::<Exact, _>(HeapPlatform::default()), shape::<Exact, _>(Generous::default()));
}
