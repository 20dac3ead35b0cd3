//! Tests of the internal state, also after failures.

use super::hot::Hot;
use super::shape::STRIDE;
use super::state::Core;
use super::{Error, Index};
use core::alloc::Layout;
use vmalloc_os::os::Call;
use vmalloc_os::os::shim::Shim;

fn layout(bytes: usize) -> Layout {
    match Layout::from_size_align(bytes, 8) {
        Ok(layout) => layout,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_failed_mapping_is_an_error_and_leaves_nothing_mapped() {
    for (call, granted) in [(Call::Map, 0), (Call::Reserve, 0), (Call::Commit, 0)] {
        let shim = Shim::default();
        shim.fail(call, granted);
        let opened = Core::open(shim.clone(), Hot::new(None, Index::Cpu, 4));
        assert!(matches!(opened, Err(Error::CallFailed { call: by, .. }) if by == call), "{call:?}");
        assert_eq!(shim.mapped(), 0, "{call:?}");
    }
}

#[test]
fn a_failed_chunk_is_an_error_and_the_space_goes_on() {
    let shim = Shim::default();
    let core = Core::open(shim.clone(), Hot::new(None, Index::Cpu, 3)).unwrap();
    // SAFETY: it lives until it is closed below.
    let space = unsafe { core.as_ref() };
    shim.fail(Call::Commit, 0);
    let mut held = Vec::new();
    let error = loop {
        match space.alloc(layout(32 << 10)) {
            Ok(offset) => held.push(offset),
            Err(error) => break error,
        }
    };
    assert_eq!((held.len(), error), ((STRIDE >> 15) - 1, Error::NoChunk { chunks: 1 }));
    let mapped = shim.mapped();
    shim.allow();
    for _ in 0..20 {
        held.push(space.alloc(layout(32 << 10)).unwrap());
    }
    assert!(shim.mapped() > mapped);
    space.validate().unwrap();
    assert_eq!((space.stats().live, space.stats().chunks), (held.len() as u64, 4));
    for offset in held.drain(..) {
        // SAFETY: it is not used any more.
        assert!(unsafe { space.free(offset) });
        // SAFETY: as before: a double free, which is detected.
        assert!(!unsafe { space.free(offset) });
    }
    // Unused pages are released, and unused chunks unmapped.
    space.trim();
    assert!(space.stats().chunks < 4, "chunks are unmapped");
    space.validate().unwrap();
    // SAFETY: it is not used any more.
    unsafe { Core::close(core) };
    assert_eq!(shim.mapped(), 0);
}

#[test]
fn failed_advice_against_huge_pages_changes_nothing() {
    let shim = Shim::default();
    shim.fail(Call::Advise, 0);
    let core = Core::open(shim.clone(), Hot::new(None, Index::Cpu, 3)).unwrap();
    // SAFETY: it lives until it is closed below.
    let space = unsafe { core.as_ref() };
    space.alloc(layout(24)).unwrap();
    space.validate().unwrap();
    // SAFETY: it is not used any more.
    unsafe { Core::close(core) };
    assert_eq!(shim.mapped(), 0);
}

#[test]
fn impossible_numbers_of_units_are_errors() {
    for units in [0, 8193, u32::MAX] {
        let shim = Shim::default();
        let opened = Core::open(shim.clone(), Hot::new(None, Index::Cpu, units));
        assert_eq!(opened.err(), Some(Error::BadUnits { units }));
        assert_eq!(shim.mapped(), 0);
    }
}

#[test]
fn pp1_an_object_is_zeros_in_every_unit_that_was_ever_used() {
    let core = Core::open(Shim::default(), Hot::new(None, Index::Cpu, 6)).unwrap();
    // SAFETY: it lives until it is closed below.
    let space = unsafe { core.as_ref() };
    for unit in [0u32, 3, 6, 5] {
        let offset = space.alloc(layout(24)).unwrap();
        space.hot.touch(unit);
        for live in space.hot.live_units() {
            // SAFETY: an existing unit.
            let place = unsafe { space.first(offset).byte_add(live as usize * STRIDE) };
            for at in 0..24 {
                // SAFETY: inside the object, which only this test uses.
                let byte = unsafe { place.add(at) };
                // SAFETY: as before.
                assert_eq!(unsafe { byte.read() }, 0, "unit {live} at {at}");
                // SAFETY: as before.
                unsafe { byte.write(0xaa) };
            }
        }
        // SAFETY: it is not used any more.
        assert!(unsafe { space.free(offset) });
    }
    assert_eq!(space.hot.live_units().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    // SAFETY: it is not used any more.
    unsafe { Core::close(core) };
}

#[test]
fn threads_share_caches_and_the_index() {
    let core = Core::open(Shim::default(), Hot::new(None, Index::Cpu, 2)).unwrap();
    // SAFETY: it lives until it is closed below.
    let space = unsafe { core.as_ref() };
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                for round in 0..500usize {
                    let offset = space.alloc(layout(8 + (round * 7 + thread) % 300)).unwrap();
                    // SAFETY: it is not used any more.
                    assert!(unsafe { space.free(offset) });
                }
            });
        }
    });
    space.validate().unwrap();
    assert_eq!(space.stats().live, 0);
    // SAFETY: it is not used any more.
    unsafe { Core::close(core) };
}
