//! Interleavings of alloc, free and the balance, each small enough to try all of them (with at most three preemptions).
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test --release -p va-percpu --lib loom`. The backend fails the test if a page is
//! populated twice, or depopulated while it is not populated. The end of a test checks that no page in use was
//! depopulated. The pages that the space records are those of the backend, and all live objects are in them (PC5).

mod cells;
mod magazines;

use crate::config::{Config, Runs, Scan, Standard};
use crate::geometry::{Geometry, Sizes};
use crate::offset::Offset;
use crate::request::{Context, Request};
use crate::{AllocError, Backend, BackendError, PercpuSpace};
use core::ops::Range;
use loom::thread;
use std::collections::BTreeSet;
pub(crate) use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;
use va_base::{HeapMachine, Va};

/// Chunks that are numbers, with the set of their populated pages.
#[derive(Default)]
struct Chunks {
    /// The number of created chunks, and the populated pages.
    state: Mutex<(u64, BTreeSet<(u64, u32)>)>,
    /// The present chunks, and depopulated pages that a CPU may still translate.
    there: Mutex<(BTreeSet<u64>, BTreeSet<(u64, u32)>)>,
}

impl Chunks {
    fn each(
        &self,
        base: Va,
        pages: Range<u32>,
        mut what: impl FnMut(&mut BTreeSet<(u64, u32)>, (u64, u32)) -> bool,
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(self.there().0.contains(&base.get()), "no chunk at {base}");
        for page in pages {
            assert!(what(&mut state.1, (base.get(), page)), "page {page} of {base}");
        }
    }

    fn populated(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.len() as u64
    }

    fn there(&self) -> std::sync::MutexGuard<'_, (BTreeSet<u64>, BTreeSet<(u64, u32)>)> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Chunks {
    const BY_PAGE: bool = true;

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        let base = (1 << 40) - state.0 * u64::from(geometry.unit_bytes());
        self.there().0.insert(base);
        Ok(Va::new(base))
    }

    fn destroy(&self, geometry: &Geometry, base: Va) {
        self.each(base, 0..geometry.unit_pages(), |pages, page| !pages.contains(&page));
        let mut there = self.there();
        there.0.remove(&base.get());
        there.1.retain(|page| page.0 != base.get());
    }

    fn populate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError> {
        let stale = |page| self.there().1.contains(&page);
        self.each(base, pages, |pages, page| !stale(page) && pages.insert(page));
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        self.each(base, pages, |pages, page| pages.remove(&page) && self.there().1.insert(page));
    }

    fn flush(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        self.there().1.retain(|page| page.0 != base.get() || !pages.contains(&page.1));
    }

    /// Does nothing: there is no memory.
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}

type Space<C> = PercpuSpace<HeapMachine<parking_lot::RawMutex>, Chunks, C>;

/// Returns the smallest possible space: eight pages a unit, five of them in the first chunk, which are taken.
fn space<C: Config>() -> Space<C> {
    let sizes =
        Sizes { unit: 32 << 10, fixed: 0, reserved: 0, dynamic: 20 << 10, atom: 4096, alloc: 4096, units: 1 };
    let Ok(geometry) = Geometry::new(sizes, Va::new(1 << 30)) else { panic!("sizes") };
    let Ok(space) = PercpuSpace::new(geometry, HeapMachine::new(1), Chunks::default()) else {
        panic!("records")
    };
    alloc(&space, 20 << 10, 4096);
    space
}

fn try_alloc<C: Config>(
    space: &Space<C>,
    size: usize,
    align: usize,
    context: Context,
) -> Result<Offset, AllocError> {
    space.alloc(&Request::new(size, align).context(context))
}

fn alloc<C: Config>(space: &Space<C>, size: usize, align: usize) -> Offset {
    match try_alloc(space, size, align, Context::Sleeping) {
        Ok(offset) => offset,
        Err(error) => panic!("{error}"),
    }
}

fn free<C: Config>(space: &Space<C>, offset: Offset) {
    if let Err(error) = space.free(offset) {
        panic!("{error}");
    }
}

/// Checks, while no thread is in a call, the invariants, and that the backend has the pages that the space records.
fn settle<C: Config>(space: &Space<C>, live: u64) {
    if let Err(broken) = space.validate() {
        panic!("{broken}");
    }
    let stats = space.stats();
    assert_eq!((stats.live, stats.populated_pages), (live, 5 + space.backend().populated()));
}

/// In machine words: loom's own threads have 32 KiB of stack, less than a space.
const STACK_WORDS: usize = 1 << 17;

pub(crate) fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    match thread::Builder::new().stack_size(STACK_WORDS).spawn(body) {
        Ok(handle) => handle,
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn join<T>(handle: thread::JoinHandle<T>) -> T {
    match handle.join() {
        Ok(value) => value,
        Err(_) => panic!("a thread panicked"),
    }
}

pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(3));
    builder.max_branches = 20_000;
    let body = Arc::new(body);
    builder.check(move || {
        let body = body.clone();
        // A failure printed its message already.
        assert!(spawn(move || body()).join().is_ok());
    });
}

/// Two threads send requests that create one chunk, and share it; each has pages of its own, populated once.
fn two_make_one_chunk<C: Config>() {
    model(|| {
        let space = Arc::new(space::<C>());
        let theirs = space.clone();
        let other = spawn(move || alloc(&theirs, 6000, 4));
        let mine = alloc(&space, 6000, 4);
        let theirs = join(other);
        assert!(mine.get().abs_diff(theirs.get()) >= 6000, "{mine} {theirs}");
        assert_eq!(space.stats().chunks, 2);
        settle(&space, 3);
    });
}

#[test]
fn pc5_two_make_one_chunk_and_populate_each_page_once() {
    two_make_one_chunk::<Runs>();
    two_make_one_chunk::<Scan>();
}

#[test]
fn pc1_one_of_two_frees_of_an_object_fails() {
    model(|| {
        let space = Arc::new(space::<Runs>());
        let object = alloc(&space, 100, 4);
        let theirs = space.clone();
        let other = spawn(move || theirs.free(object).is_ok());
        let mine = space.free(object).is_ok();
        assert_ne!(mine, join(other));
        settle(&space, 1);
    });
}

#[test]
fn cc3_one_of_two_frees_of_a_slot_fails() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        let object = alloc(&space, 16, 16);
        let theirs = space.clone();
        let other = spawn(move || theirs.free(object).is_ok());
        let mine = space.free(object).is_ok();
        assert_ne!(mine, join(other));
        settle(&space, 1);
    });
}

#[test]
fn cc2_two_make_slabs_of_one_class_and_neither_is_lost() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        let theirs = space.clone();
        let other = spawn(move || {
            let object = alloc(&theirs, 16, 16);
            free(&theirs, object);
        });
        let mine = alloc(&space, 16, 16);
        join(other);
        settle(&space, 2);
        free(&space, mine);
        settle(&space, 1);
    });
}

/// The balance depopulates a chunk that empties while another takes a page of it.
fn take_against_the_balance<C: Config>() {
    model(|| {
        let space = Arc::new(space::<C>());
        let objects: Vec<Offset> = (0..16).map(|_| alloc(&space, 4096, 4096)).collect();
        // Seven pages to spare in the higher chunk, so that the three of the lower one are too many.
        for &object in objects[9..].iter().chain(&objects[1..4]) {
            free(&space, object);
        }
        assert_eq!(space.stats().isolated, 1);
        let theirs = space.clone();
        let other = spawn(move || {
            // The third step depopulates a run.
            for _ in 0..4 {
                let _more = theirs.tick();
            }
        });
        let mine = try_alloc(&space, 4096, 4096, Context::Atomic).ok();
        free(&space, objects[0]);
        join(other);
        settle(&space, 6 + u64::from(mine.is_some()));
        space.balance();
        settle(&space, 6 + u64::from(mine.is_some()));
    });
}

#[test]
fn pc4_the_balance_releases_no_page_in_use() {
    take_against_the_balance::<Runs>();
    take_against_the_balance::<Scan>();
}

/// An object is placed in a chunk that the balance depopulates meanwhile.
fn place_against_depopulation<C: Config>() {
    model(|| {
        let space = Arc::new(space::<C>());
        let objects: Vec<Offset> = (0..16).map(|_| alloc(&space, 4096, 4096)).collect();
        for &object in objects[9..].iter().chain(&objects[1..4]) {
            free(&space, object);
        }
        assert_eq!(space.stats().isolated, 1);
        // The step after the next depopulates.
        let _more = (space.tick(), space.tick());
        let theirs = space.clone();
        let other = spawn(move || {
            let _more = (theirs.tick(), theirs.tick());
        });
        let placed = space.alloc_at(objects[2], 100);
        assert!(placed.is_ok(), "{placed:?}");
        join(other);
        settle(&space, 8);
        space.balance();
        settle(&space, 8);
        free(&space, objects[2]);
        settle(&space, 7);
    });
}

#[test]
fn pc5_depopulation_retains_the_pages_of_a_new_object() {
    place_against_depopulation::<Runs>();
    place_against_depopulation::<Scan>();
}

/// An object is placed in a chunk that the balance destroys meanwhile: it is there afterwards, or was never placed.
fn place_against_destruction<C: Config>() {
    model(|| {
        let space = Arc::new(space::<C>());
        let objects: Vec<Offset> = (0..2).map(|_| alloc(&space, 32 << 10, 4)).collect();
        objects.iter().for_each(|&object| free(&space, object));
        let theirs = space.clone();
        let other = spawn(move || {
            for _ in 0..3 {
                let _more = theirs.tick();
            }
        });
        let placed: Vec<Offset> =
            objects.iter().copied().filter(|&object| space.alloc_at(object, 100).is_ok()).collect();
        join(other);
        assert!(!placed.is_empty());
        settle(&space, 1 + placed.len() as u64);
        space.balance();
        settle(&space, 1 + placed.len() as u64);
        placed.iter().for_each(|&object| free(&space, object));
        settle(&space, 1);
    });
}

#[test]
fn pc7_an_object_is_not_placed_in_a_chunk_that_is_destroyed() {
    place_against_destruction::<Runs>();
    place_against_destruction::<Scan>();
}

#[test]
fn pc6_callers_that_wait_or_cannot_share_chunks_with_the_balance() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        let theirs = space.clone();
        let other = spawn(move || {
            let object = try_alloc(&theirs, 16, 4, Context::Atomic);
            let _more = theirs.tick();
            object.is_ok()
        });
        let mine = alloc(&space, 24, 8);
        let both = 2 + u64::from(join(other));
        settle(&space, both);
        space.balance();
        settle(&space, both);
        free(&space, mine);
        settle(&space, both - 1);
    });
}

/// A thread makes a slab where an object was. Meanwhile another one frees that object once more, which is a mistake, and
/// a third one takes `bytes` of the same chunk. The free hits the first slot of the slab, or the object there, once a
/// caller has it, or fails. Before, there were objects of 8 and of 4 KiB; the one of `freed` is freed again.
fn a_slab_begins_beside_a_second_free(bytes: usize, freed: usize) {
    model(move || {
        let sizes = Sizes {
            unit: 32 << 10,
            fixed: 0,
            reserved: 0,
            dynamic: 20 << 10,
            atom: 4096,
            alloc: 4096,
            units: 1,
        };
        let Ok(geometry) = Geometry::new(sizes, Va::new(1 << 30)) else { panic!("sizes") };
        let made = PercpuSpace::<_, _, Standard>::new(geometry, HeapMachine::new(1), Chunks::default());
        let Ok(space) = made.map(Arc::new) else { panic!("records") };
        // The first chunk has pages to spare, so that those of the second one go. It is not wholly free.
        let first = alloc(&space, 20 << 10, 4096);
        let objects = [8 << 10, 4096].map(|bytes| alloc(&space, bytes, 4096));
        let last = alloc(&space, 4096, 4096);
        free(&space, first);
        objects.iter().for_each(|&object| free(&space, object));
        space.balance();
        let first = alloc(&space, 20 << 10, 4096);
        let (a, b, object) = (space.clone(), space.clone(), objects[freed]);
        let slot = spawn(move || alloc(&a, 16, 16));
        let again = spawn(move || b.free(object).is_ok());
        let other = alloc(&space, bytes, 256);
        let (slot, again) = (join(slot), join(again));
        assert!(!again || slot == object || other == object);
        settle(&space, 4 - u64::from(again));
        let lost = [first, last, slot, other].into_iter().filter(|&live| space.free(live).is_err());
        assert_eq!(lost.count(), usize::from(again));
        space.balance();
        settle(&space, 0);
    });
}

#[test]
fn cc1_a_second_free_does_not_hit_a_slab_that_is_about_to_begin() {
    a_slab_begins_beside_a_second_free(2048, 0);
}

/// The other request has the first two pages of the chunk, and waits for them first.
#[test]
fn cc1_a_second_free_does_not_hit_a_slab_whose_pages_come_after_those_of_another() {
    a_slab_begins_beside_a_second_free(8 << 10, 1);
}

/// A call for the balance during a pass is for the next one.
#[test]
fn pc6_a_call_for_the_balance_during_a_pass_is_heard() {
    model(|| {
        let space = Arc::new(space::<Runs>());
        let take = |pages: u64| {
            (0..pages).filter(|_| try_alloc(&space, 4096, 4096, Context::Atomic).is_ok()).count()
        };
        alloc(&space, 4096, 4096);
        space.balance();
        assert_eq!((take(3), space.is_balance_due()), (3, true));
        let theirs = space.clone();
        let other = spawn(move || theirs.balance());
        let used = 5 + 1 + 3 + take(3) as u64;
        assert!(join(other) > 1);
        let spare = space.stats().populated_pages - used;
        assert!(spare >= u64::from(Runs::SPARE_PAGES_LOW) || space.is_balance_due(), "a call was lost");
        settle(&space, used - 4);
    });
}
