//! Areas with guards behind them.

use super::*;

fn guarded(shim: &Shim, cache_bytes_max: usize) -> Owned<Shim> {
    let plan = Plan { cache_bytes_max, huge_pages: HugePages::Auto, guards: true, ..PLAN };
    Owned::new(shim.clone(), plan).unwrap()
}

/// Returns true if the kernel can read a byte: the test itself does not touch it.
fn is_readable(at: usize) -> bool {
    let mut byte = 0u8;
    let (to, from) = (
        libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 },
        libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(at), iov_len: 1 },
    );
    let me = std::process::id() as i32;
    // SAFETY: writes a byte of this function's own.
    let count = unsafe { libc::process_vm_readv(me, &raw const to, 1, &raw const from, 1, 0) };
    count == 1
}

impl Model {
    /// Checks that a page behind every area cannot be read.
    fn check_walls(&self) {
        for (&at, &(bytes, ..)) in &self.areas {
            let end = at + bytes.next_multiple_of(PAGE_BYTES);
            assert!(!is_readable(end) && is_readable(end - 1), "no guard behind {bytes} bytes");
        }
    }
}

#[test]
fn gp1_whatever_is_allocated_freed_and_resized_every_area_has_its_guard() {
    for (markers, cached) in [(true, 0), (true, 8 * MIB), (false, 0), (false, 8 * MIB)] {
        let shim = Shim::default();
        if !markers {
            shim.fail(Call::Guard, 0);
        }
        let mut model = Model::new(guarded(&shim, cached));
        for step in 0..800 {
            model.step(2 * MIB).unwrap();
            if step % 20 == 0 {
                model.check();
                model.check_walls();
            }
        }
        let stats = model.heap.stats();
        // Without a budget nothing is cached.
        assert_eq!(stats.cache_hits > 0, cached > 0, "{stats:?}");
        assert!(stats.purged_bytes > 0 && stats.unguarded_areas == 0, "{stats:?}");
        assert!(stats.guards >= model.areas.len() as u64);
        assert_eq!(shim.calls(Call::Forbid) > 0, !markers);
        model.end();
    }
}

#[test]
fn a_guard_stays_while_its_run_is_used_again() {
    let shim = Shim::default();
    let heap = guarded(&shim, 64 * MIB);
    for bytes in [5000, MIB, 3 * MIB] {
        let first = heap.alloc(layout(bytes, 1), Fill::Any).unwrap();
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(first.addr().get()) }.unwrap();
        let calls = (shim.calls(Call::Guard), shim.calls(Call::Unguard));
        for _ in 0..100 {
            let area = heap.alloc(layout(bytes, 1), Fill::Any).unwrap();
            assert_eq!(area, first);
            assert!(!is_readable(first.addr().get() + bytes.next_multiple_of(PAGE_BYTES)));
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(area.addr().get()) }.unwrap();
        }
        assert_eq!((shim.calls(Call::Guard), shim.calls(Call::Unguard)), calls);
    }
    assert_eq!(heap.stats().guards, 3);
    heap.release_all();
    assert_eq!((heap.stats().guards, heap.validate()), (0, Ok(())));
}

#[test]
fn guards_that_split_mappings_are_bounded_and_areas_without_one_are_counted() {
    let shim = Shim::default();
    shim.fail(Call::Guard, 0);
    shim.limit_mappings(80);
    let mut model = Model::new(guarded(&shim, MIB));
    for _ in 0..15 {
        model.alloc(3000, 1, Fill::Zero).unwrap();
    }
    assert_eq!((model.heap.stats().guards, model.heap.stats().unguarded_areas), (10, 5));
    model.check();
    model.end();
    // Where that fails, too, no area has a guard.
    shim.fail(Call::Forbid, 0);
    let mut model = Model::new(guarded(&shim, MIB));
    model.alloc(3000, 1, Fill::Any).unwrap();
    assert_eq!((model.heap.stats().guards, model.heap.stats().unguarded_areas), (0, 1));
    model.end();
}

#[test]
fn sp4_a_guard_that_cannot_be_had_or_taken_away_loses_nothing() {
    for call in [Call::Guard, Call::Unguard, Call::Forbid, Call::Renew, Call::Commit, Call::Map] {
        for granted in 0..40 {
            let shim = Shim::default();
            let mut model = Model::new(guarded(&shim, MIB));
            shim.fail_some(call, granted, 1);
            for _ in 0..60 {
                // Failures are allowed here; their effects are checked below.
                _ = model.step(MIB / 2);
            }
            shim.allow();
            model.check();
            assert_eq!(model.heap.stats().retired_bytes, 0);
            model.end();
        }
    }
}

/// There may be a hundredth of the mappings per guarded area, and the heap uses no mapping more.
#[test]
fn many_guards_by_markers_make_no_mappings() {
    let shim = Shim::default();
    if !shim.can_guard() {
        eprintln!("SKIPPED: this system has no guard markers");
        return;
    }
    let heap = guarded(&shim, MIB);
    let before = mappings(&heap);
    let areas: Vec<_> =
        (0..20_000).map(|_| heap.alloc(layout(1, 1), Fill::Any).unwrap().addr().get()).collect();
    assert!(mappings(&heap) <= before + 2, "{before} mappings before, {} now", mappings(&heap));
    assert_eq!((heap.stats().guards, heap.stats().unguarded_areas), (20_000, 0));
    assert!(areas.iter().step_by(777).all(|&at| is_readable(at) && !is_readable(at + PAGE_BYTES)));
    for at in areas {
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(at) }.unwrap();
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn bad_frees_are_distinguished_in_constant_time_and_corrupt_nothing() {
    let shim = Shim::default();
    for guards in [true, false] {
        let heap = if guards { guarded(&shim, 8 * MIB) } else { heap(&shim, 1 << 34, 8 * MIB) };
        let [one, two] = [(); 2].map(|()| heap.alloc(layout(10_000, 1), Fill::Any).unwrap().addr().get());
        // SAFETY: an address at which no area begins is not freed.
        let free = |at: usize| unsafe { heap.free(at) };
        let none = |at: usize| Err(FreeError::NoArea { address: at });
        // Inside, in the first page and in others; behind, at the guard or in unowned pages; a record of the allocator.
        for at in [one + 1, one + 4096, one + 8192 + 5, one + 3 * 4096, two + 16 * MIB] {
            // Without guards the other area may begin there.
            if at != two {
                assert_eq!(free(at), none(at), "{guards}: {:#x}", at - one);
            }
        }
        let elsewhere = core::ptr::from_ref(&heap).addr();
        assert_eq!(free(elsewhere), Err(FreeError::NotOurs { address: elsewhere }));
        assert_eq!(free(0), Err(FreeError::NotOurs { address: 0 }));
        // In a magazine.
        free(one).unwrap();
        assert!(matches!(free(one), Err(FreeError::AlreadyFree { .. })));
        assert_eq!(free(one + 4096), none(one + 4096));
        // Released to the system.
        heap.release_all();
        assert!(matches!(free(one), Err(FreeError::AlreadyFree { .. })));
        // Part of another area.
        free(two).unwrap();
        heap.release_all();
        let large = heap.alloc(layout(900_000, 1), Fill::Any).unwrap().addr().get();
        for at in [one, two] {
            let inside = at > large && at < large + 900_000;
            assert!(at == large || free(at).is_err(), "{inside}");
        }
        assert_eq!((heap.validate(), heap.live(large).map(Word::requested_bytes)), (Ok(()), Ok(900_000)));
        free(large).unwrap();
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn a_guard_takes_no_room_from_cached_memory() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(guarded(&shim, 8 * MIB));
    for _ in 0..3 {
        // As much as one magazine may have in big items.
        let at = model.alloc(4 * MIB, PAGE_BYTES, Fill::Any).unwrap();
        model.free(at);
    }
    assert_eq!((model.heap.stats().cache_hits, shim.calls(Call::Guard)), (2, 1));
    model.end();
}
