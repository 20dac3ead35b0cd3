//! Magazines with wrong records: each check is shown to fail.

use super::state::Lacks;
use super::*;
use crate::BackendError;
use crate::config::Standard;
use crate::geometry::{Geometry, Sizes};
use core::ops::Range;
use va_base::HeapMachine;
use va_base::sync::atomic::AtomicBool;

/// Chunks that are numbers; one flag says whether they are zero.
#[derive(Default)]
struct Flat {
    written: AtomicBool,
}

impl Backend for Flat {
    const BY_PAGE: bool = true;

    fn create(&self, _: &Geometry) -> Result<Va, BackendError> {
        Err(BackendError)
    }

    fn destroy(&self, _: &Geometry, _: Va) {}

    fn populate(&self, _: &Geometry, _: Va, _: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _: &Geometry, _: Va, _: Range<u32>) {}

    fn flush(&self, _: &Geometry, _: Va, _: Range<u32>) {}

    fn zero(&self, _: &Geometry, _: Va, _: u32, _: u32) {}

    fn is_zero(&self, _: &Geometry, _: Va, _: u32, _: u32) -> Option<bool> {
        Some(!self.written.load(Ordering::Relaxed))
    }
}

type Machine = HeapMachine<parking_lot::RawMutex>;

/// The class of the objects.
const CLASS: usize = 1;

/// Runs a check on a magazine with four dirty objects and some clean ones.
fn with_magazine(check: impl FnOnce(&mut Magazine<'_, Machine, Flat, Standard>)) {
    let sizes =
        Sizes { unit: 32 << 10, fixed: 0, reserved: 0, dynamic: 20 << 10, atom: 4096, alloc: 4096, units: 1 };
    let geometry = Geometry::new(sizes, Va::new(1 << 30)).unwrap();
    let space = PercpuSpace::new(geometry, Machine::new(1), Flat::default()).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let objects: [Offset; 4] = core::array::from_fn(|_| magazine.alloc(&Request::new(16, 8)).unwrap());
    objects.into_iter().for_each(|object| magazine.free(object).unwrap());
    space.validate().unwrap();
    check(&mut magazine);
    // Its records are wrong: nothing is flushed.
    core::mem::forget(magazine);
}

fn rule(magazine: &Magazine<'_, Machine, Flat, Standard>) -> &'static str {
    magazine.space.validate().unwrap_err().rule
}

#[test]
fn mc1_an_object_in_two_places_or_in_none_is_seen() {
    with_magazine(|magazine| {
        magazine.lock().break_once(CLASS);
        assert_eq!(rule(magazine), "MC1");
        magazine.lock().break_lost(CLASS);
        magazine.space.validate().unwrap();
        magazine.lock().break_lost(CLASS);
        assert_eq!(rule(magazine), "MC1");
    });
}

#[test]
fn mc1_an_object_that_is_twice_in_place_of_another_is_seen() {
    with_magazine(|magazine| {
        let mut contents = magazine.lock();
        contents.stacks[CLASS].dirty[0] = contents.stacks[CLASS].dirty[1];
        drop(contents);
        assert_eq!(rule(magazine), "MC1");
    });
}

#[test]
fn mc1_a_cached_object_that_the_store_has_freed_is_seen() {
    with_magazine(|magazine| {
        let at = magazine.lock().stacks[CLASS].dirty[0];
        assert!(magazine.space.lock().put_batch(&[at]).is_ok());
        assert_eq!(rule(magazine), "MC1");
    });
}

#[test]
fn mc2_a_clean_object_that_is_not_zero_is_seen() {
    with_magazine(|magazine| {
        magazine.lock().break_clean(CLASS);
        magazine.space.validate().unwrap();
        magazine.space.backend.written.store(true, Ordering::Relaxed);
        assert_eq!(rule(magazine), "MC2");
    });
}

#[test]
fn mc3_wrong_bytes_are_seen() {
    with_magazine(|magazine| {
        magazine.lock().bytes += 8;
        assert_eq!(rule(magazine), "MC3");
    });
}

#[test]
fn mc4_a_wrong_count_is_seen() {
    with_magazine(|magazine| {
        add(&magazine.cell.counts.frees, 1);
        // The objects of the space, as the store counts them, are the same.
        assert_eq!(rule(magazine), "MC4");
    });
}

#[test]
fn the_states_of_the_first_chunk_are_those_of_its_dynamic_section() {
    let (unit, atom, base) = (32 << 10, 4096, Va::new(1 << 30));
    // The reserved section ends in the page in which the dynamic one begins.
    let sizes = Sizes { unit, fixed: 5000, reserved: 4100, dynamic: 20 << 10, atom, alloc: atom, units: 1 };
    let geometry = Geometry::new(sizes, base).unwrap();
    let space = PercpuSpace::<_, _, Standard>::new(geometry, Machine::new(1), Flat::default()).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let object = magazine.alloc(&Request::new(16, 8).context(Context::Atomic)).unwrap();
    // It had no tables, so the balance allocates all.
    space.balance();
    let span = space.states.span(object.at(base).get(), None).map(state::Span::base);
    assert_eq!(span, space.find(object).map(|found| found.base));
}

#[test]
fn the_states_of_a_chunk_that_is_destroyed_are_those_of_no_other() {
    with_magazine(|magazine| {
        let (base, states) = (1 << 30, &magazine.space.states);
        let at = magazine.lock().stacks[CLASS].dirty[0];
        let beyond = states.span_end(at);
        assert_eq!((states.lacks(at), states.is_cached(at)), (Lacks::Nothing, true));
        // Another chunk's, and then its own.
        states.retire(beyond, 32 << 10);
        assert_eq!(states.lacks(at), Lacks::Nothing);
        states.retire(base, 32 << 10);
        assert_eq!((states.lacks(at), states.is_cached(at)), (Lacks::Span, false));
    });
}
