//! Every n-th request for memory fails, in every call of an index that makes some: `va_sim::every_nth` has the rules.
//!
//! An index begins with as many areas as it has memory for, so that the next one needs more.

use va_base::{Align, AllocError, PAGE_SIZE, Pages, Platform, Request, Va, VaRange};
use va_sim::every_nth::{Subject, every_nth};
use va_sim::machine::SimMachine;
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{
    BTreeIndex, BTreeIndex32, BestFitIndex, Congruent, FreeIndex, InPlace, RbIndex, Supplied, TrackedError,
    TrackedIndex,
};

/// Areas of one page below this page have one free page above them; there are three levels with 8 records a node.
const CROWDED: u64 = 200;
const END: u64 = 100_000;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

/// Returns a request for pages in the midst of the large hole: one hole more.
fn ask() -> Request {
    Request::pages(5).unwrap().within(pages(50_000, 50_100))
}

/// A machine for each index: one that others used has slabs of other lengths. All are leaked, as slabs are.
type On = &'static SimMachine;
type Build<I> = fn(On) -> Result<I, AllocError>;

fn machine() -> On {
    Box::leak(Box::new(SimMachine::new(2)))
}

/// Creates an index and takes areas, as long as there is memory.
fn crowd<I: FreeIndex>(build: Build<I>) -> Run<I> {
    let machine = machine();
    let (mut index, mut areas) = (build(machine).unwrap(), Vec::new());
    for page in (1..).step_by(2) {
        if page > CROWDED {
            machine.fail_after(0, 0);
        }
        match index.take(pages(page, page + 1)) {
            Ok(_) => areas.push(pages(page, page + 1)),
            Err(_) => break,
        }
    }
    machine.fail_after(u64::MAX, u64::MAX);
    Run { machine, build, index, areas }
}

/// An index, and its areas.
struct Run<I> {
    machine: On,
    build: Build<I>,
    index: I,
    areas: Vec<VaRange>,
}

impl<I: FreeIndex> Run<I> {
    fn add(&mut self, range: VaRange) -> VaRange {
        self.areas.push(range);
        range
    }

    fn add_at(&mut self, at: Va) -> VaRange {
        self.add(VaRange::from_size(at, 5 * PAGE_SIZE).unwrap())
    }
}

impl<I: FreeIndex> Subject for Run<I> {
    type Seen = (u64, u64, u64, Vec<VaRange>);
    type Error = AllocError;
    const KINDS: &'static [&'static str] = &["slab"];

    fn seen(&self) -> Self::Seen {
        let index = &self.index;
        assert_eq!(index.validate(), Ok(()));
        (index.live(), index.free_pages().get(), index.hole_count(), index.holes().collect())
    }

    fn is_of_memory(error: &AllocError) -> bool {
        matches!(error, AllocError::NoMeta { records: 1.. })
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn end(mut self) {
        // Each second one first: as many holes as there can be.
        let (some, others): (Vec<_>, Vec<_>) =
            self.areas.iter().enumerate().partition(|(nth, _)| nth % 2 == 0);
        some.into_iter().chain(others).for_each(|(_, &area)| self.index.free(area).unwrap());
        self.index.release_splits(u64::MAX);
        assert_eq!((self.index.live(), self.index.holes().collect()), (0, vec![self.index.extent()]));
        drop(self.index);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

/// Makes all calls of an index. Returns how many failed.
fn all<I>(name: &str, build: Build<I>) -> u64
where
    I: FreeIndex + Supplied + InPlace<On> + PartialEq,
{
    let mut errors = 0;
    let mut try_call = |call: &str, make: &dyn Fn(&mut Run<I>) -> Result<VaRange, AllocError>| {
        errors += every_nth(&format!("{name}, {call}"), || crowd(build), make).iter().sum::<u64>();
    };
    try_call("alloc", &|run| run.index.alloc(&ask()).map(|at| run.add_at(at)));
    try_call("alloc_highest", &|run| run.index.alloc_highest(&ask()).map(|at| run.add_at(at)));
    try_call("alloc_best", &|run| run.index.alloc_best(&ask()).map(|at| run.add_at(at)));
    // Even pages are free below: without a row for its alignment, the search is long.
    try_call("alloc, aligned", &|run| {
        let align = Align::new(PAGE_SIZE << 4).unwrap();
        run.index.alloc(&Request::pages(5).unwrap().aligned(align)).map(|at| run.add_at(at))
    });
    try_call("take", &|run| {
        let range = pages(70_000, 70_007);
        run.index.take(range).map(|_| run.add(range))
    });
    try_call("alloc_congruent", &|run| {
        let parts = [(0, PAGE_SIZE), (9000 * PAGE_SIZE, 2 * PAGE_SIZE), (30_000 * PAGE_SIZE, PAGE_SIZE)];
        let areas = Congruent::new(&parts, PAGE_SIZE).unwrap();
        let base = run.index.alloc_congruent(&areas)?;
        for (offset, bytes) in parts {
            run.add(VaRange::from_size(Va::new(base.get() + offset), bytes).unwrap());
        }
        Ok(run.areas[run.areas.len() - 3])
    });
    try_call("reserve_splits", &|run| run.index.reserve_splits(3000).map(|()| VaRange::ALL));
    try_call("supply", &|run| run.index.supply(3000, &run.machine).map(|()| VaRange::ALL));
    try_call("shrink", &|run| {
        run.index.shrink(usize::MAX);
        Ok(VaRange::ALL)
    });
    try_call("restore", &|run| {
        let mut other = (run.build)(run.machine)?;
        let taken: Vec<_> = run.index.taken().collect();
        let restored = other.restore(&taken, run.index.live());
        assert_eq!(other.validate(), Ok(()));
        match restored {
            Ok(()) => assert!(other.same_state(&run.index)),
            Err(_) => assert_eq!((other.live(), other.hole_count()), (0, 1)),
        }
        restored.map(|()| other.holes().last().unwrap())
    });
    try_call("try_clone", &|run| {
        let copy = run.index.try_clone(run.machine)?;
        assert!(copy == run.index && copy.validate().is_ok());
        Ok(copy.holes().last().unwrap())
    });
    errors
}

fn linux<P: Platform>(machine: P) -> Result<RbIndex<Linux, P>, AllocError> {
    RbIndex::new(pages(1, END), pages(1, END), machine)
}

fn exact<P: Platform>(machine: P) -> Result<RbIndex<Exact, P>, AllocError> {
    RbIndex::new(pages(1, END), pages(1, END), machine)
}

fn narrow<P: Platform>(machine: P) -> Result<BTree<u64, 8, P>, AllocError> {
    BTree::new(pages(1, END), pages(1, END), machine)
}

fn btree<P: Platform>(machine: P) -> Result<BTreeIndex<P>, AllocError> {
    BTreeIndex::new(pages(1, END), pages(1, END), machine)
}

fn btree32<P: Platform>(machine: P) -> Result<BTreeIndex32<P>, AllocError> {
    BTreeIndex32::new(pages(1, END), pages(1, END), machine)
}

fn with_rows<P: Platform>(machine: P) -> Result<BTreeIndex<P>, AllocError> {
    btree(machine)?.with_rows()
}

fn by_size<P: Platform + Copy>(machine: P) -> Result<BestFitIndex<BTreeIndex<P>, P>, AllocError> {
    BestFitIndex::new(btree(machine)?, machine)
}

#[test]
fn sp3_sp4_every_nth_request_for_memory_may_fail() {
    let errors = [
        all("rb-linux", linux),
        all("rb-exact", exact),
        all("btree of 8", narrow),
        all("btree", btree),
        all("btree32", btree32),
        all("btree with rows", with_rows),
        all("by size", by_size),
    ];
    assert!(errors.iter().all(|&errors| errors > 20), "too few calls failed: {errors:?}");
}

#[test]
fn sp4_every_nth_request_for_rows_may_fail() {
    let errors = every_nth("rows for ever", || crowd(btree), |run| run.index.add_all_rows());
    assert!(errors[0] > 2, "{errors:?}");
}

/// An index that knows its areas.
struct Tracked<I: FreeIndex> {
    machine: On,
    index: TrackedIndex<I, On>,
}

impl<I: FreeIndex> Subject for Tracked<I> {
    type Seen = (Vec<VaRange>, Vec<VaRange>);
    type Error = TrackedError;
    const KINDS: &'static [&'static str] = &["slab"];

    fn seen(&self) -> Self::Seen {
        assert_eq!(self.index.validate(), Ok(()));
        (self.index.areas().collect(), self.index.index().holes().collect())
    }

    fn is_of_memory(error: &TrackedError) -> bool {
        matches!(error, TrackedError::Index(AllocError::NoMeta { .. }))
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn end(mut self) {
        for area in self.seen().0 {
            assert_eq!(self.index.free(area.start()), Ok(area));
        }
        assert_eq!((self.index.len(), self.seen().1.len()), (0, 1));
        drop(self.index);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

fn all_tracked<I>(name: &str, build: Build<I>) -> u64
where
    I: FreeIndex + InPlace<On>,
{
    // It has four pages, and free ones above.
    let (own, at) = (pages(60_000, 60_004), Va::from_page(60_000));
    let fresh = || {
        let machine = machine();
        let mut index = TrackedIndex::new(build(machine).unwrap(), machine);
        index.take(own).unwrap();
        for page in (1..).step_by(2) {
            if page > CROWDED {
                machine.fail_after(0, 0);
            }
            if index.take(pages(page, page + 1)).is_err() {
                break;
            }
        }
        machine.fail_after(u64::MAX, u64::MAX);
        Tracked { machine, index }
    };
    let mut errors = 0;
    let mut try_call = |call: &str, make: &dyn Fn(&mut Tracked<I>) -> Result<VaRange, TrackedError>| {
        errors += every_nth(&format!("tracked {name}, {call}"), fresh, make).iter().sum::<u64>();
    };
    try_call("alloc", &|run| Ok(run.index.alloc(&ask())?));
    try_call("alloc_highest", &|run| Ok(run.index.alloc_highest(&ask())?));
    try_call("alloc_best", &|run| Ok(run.index.alloc_best(&ask())?));
    try_call("take", &|run| Ok(run.index.take(pages(70_000, 70_007)).map(|()| own)?));
    try_call("grow_to", &|run| run.index.grow_to(at, Pages::new(5000)));
    try_call("shrink_to", &|run| run.index.shrink_to(at, Pages::new(1)));
    try_call("free_any", &|run| run.index.free_any(pages(60_001, 60_002)).map(|_| own));
    try_call("try_clone", &|run| {
        let copy = run.index.try_clone(run.machine)?;
        assert!(copy.areas().eq(run.index.areas()));
        Ok(own)
    });
    try_call("restore", &|run| {
        let mut other = TrackedIndex::new((build)(run.machine)?, run.machine);
        let areas: Vec<_> = run.index.areas().collect();
        let restored = other.restore(&areas);
        assert_eq!(other.validate(), Ok(()));
        assert_eq!(other.len(), if restored.is_ok() { run.index.len() } else { 0 });
        Ok(restored.map(|()| own)?)
    });
    errors
}

#[test]
fn sp3_sp4_every_nth_request_of_a_tracked_index_may_fail() {
    let errors =
        [all_tracked("rb-exact", exact), all_tracked("btree", btree), all_tracked("by size", by_size)];
    assert!(errors.iter().all(|&errors| errors > 20), "too few calls failed: {errors:?}");
}
