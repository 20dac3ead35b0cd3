//! Areas whose mappings the program changed.

use super::*;
use crate::heap::tests_cached::resident_pages;
use vmalloc_os::os::shim::{bind, is_bound};

#[test]
fn what_was_changed_is_mapped_anew_when_it_is_freed_and_nothing_else_is() {
    for guards in [false, true] {
        let shim = Shim::default();
        let plan = Plan { guards, ..PLAN };
        let mut model = Model::new(Owned::new(shim.clone(), plan).unwrap());
        for bytes in [5000, 300_000, 3 * MIB] {
            let [below, at, above] = [0; 3].map(|_| model.alloc(bytes, 1, Fill::Any).unwrap());
            let pages = bytes.next_multiple_of(PAGE_BYTES);
            // One byte of the last page, twice; nothing outside live areas.
            model.heap.renew_at_free(at + pages - 1, 1);
            model.heap.renew_at_free(at, pages);
            model.heap.renew_at_free(0, PAGE_BYTES);
            model.heap.renew_at_free(usize::MAX, 9);
            assert_eq!(model.heap.stats().moved_areas, 1);
            // The mark survives a resize: the freed tail is mapped anew at once.
            let less = if bytes < MIB / 16 { PAGE_BYTES } else { MIB / 16 };
            let renewals = shim.calls(Call::Renew);
            let at = model.resize(at, bytes - less, Fill::Any).unwrap();
            assert_eq!(
                (shim.calls(Call::Renew) - renewals, model.heap.stats().moved_areas),
                (1, u64::from(!guards))
            );
            for (at, more) in [(below, 0), (above, 0), (at, u64::from(!guards))] {
                let renewals = shim.calls(Call::Renew);
                model.free(at);
                assert_eq!(shim.calls(Call::Renew) - renewals, more);
            }
            assert_eq!(model.heap.stats().moved_areas, 0);
            // Several at once.
            let ats = [0; 4].map(|_| model.alloc(bytes, 1, Fill::Any).unwrap());
            let (low, high) = (ats.iter().min().unwrap(), ats.iter().max().unwrap());
            model.heap.renew_at_free(low + 1, high - low);
            assert_eq!(model.heap.stats().moved_areas, 4);
            ats.into_iter().for_each(|at| model.free(at));
            model.check();
        }
        model.end();
    }
}

/// Returns true if all pages have a memory policy, and panics if some have.
fn all_bound(at: usize, bytes: usize) -> bool {
    let bound = (at..at + bytes).step_by(PAGE_BYTES).filter(|&page| is_bound(page)).count();
    assert!([0, bytes.div_ceil(PAGE_BYTES)].contains(&bound), "{bound} pages of {bytes} bytes");
    bound > 0
}

#[test]
fn a_policy_of_an_area_goes_with_it_where_it_grows_and_moves_and_ends_with_its_free() {
    // With or without guards, with or without moves of pages, and the sizes before and after.
    let cases = [
        (false, true, 4 * MIB, 6 * MIB),
        (false, false, 4 * MIB, 6 * MIB),
        (false, true, 200_000, 900_000),
        (false, true, PAGE_BYTES, 3 * PAGE_BYTES),
        (false, true, 4 * MIB, 2 * MIB),
        (true, true, 300_000, MIB),
        (true, true, 300_000, 100_000),
    ];
    for (guards, moves, before, after) in cases {
        let shim = Shim::default();
        shim.on_cpu(0);
        let plan = Plan { arena_bytes_max: 1 << 32, guards, ..PLAN };
        let mut model = Model::new(Owned::new(shim.clone(), plan).unwrap());
        if !moves {
            shim.fail(Call::Move, 0);
        }
        for fill in [Fill::Any, Fill::Zero] {
            // Dirty pages, which have no policy, serve the next requests.
            let dirty = model.alloc(5 * MIB, 1, Fill::Any).unwrap();
            let at = model.alloc(before, 1, Fill::Any).unwrap();
            let above = model.alloc(before, 1, Fill::Any).unwrap();
            model.heap.renew_at_free(at, before);
            if !bind(at, before.next_multiple_of(PAGE_BYTES)) {
                return eprintln!("NOT RUN: mbind fails here");
            }
            model.free(dirty);
            let to = model.resize(at, after, fill).unwrap();
            assert!(all_bound(to, after), "{before} to {after}");
            assert_eq!(model.heap.stats().moved_areas, 1);
            assert!(to == at || !all_bound(at, before), "the old place");
            // In place, if the pages above are free.
            let to = model.resize(to, after + 10 * PAGE_BYTES, fill).unwrap();
            assert!(all_bound(to, after + 10 * PAGE_BYTES), "{after} in place");
            model.free(to);
            assert!(!all_bound(to, after + 10 * PAGE_BYTES) && model.heap.stats().moved_areas == 0);
            model.free(above);
            model.check();
        }
        model.end();
    }
}

#[test]
fn pages_that_join_an_area_with_a_policy_are_placed_anew() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 32, 64 * MIB));
    let [at, above, wall] = [0; 3].map(|_| model.alloc(MIB, 1, Fill::Any).unwrap());
    assert_eq!((above - at, wall - above), (MIB, MIB));
    Model::bytes(above, MIB).fill(7);
    model.areas.get_mut(&above).unwrap().2 = 7;
    model.free(above);
    assert_eq!(model.heap.drain_all() as usize * PAGE_BYTES, MIB, "what the magazine held");
    model.heap.renew_at_free(at, MIB);
    if !bind(at, MIB) {
        return eprintln!("NOT RUN: mbind fails here");
    }
    assert_eq!(resident_pages(above, MIB), 256);
    model.areas.remove(&at);
    // SAFETY: the model's own area, to which no reference exists.
    let to = unsafe { model.heap.resize(at, layout(2 * MIB, 1), Fill::Any) }.unwrap().addr().get();
    assert!(to == at && all_bound(at, 2 * MIB) && resident_pages(above, MIB) == 0);
    model.enter(at, 2 * MIB, 1);
    model.end();
}

#[test]
fn of_several_policies_none_is_preserved_and_one_that_covers_all_but_the_ends_is() {
    let mut model = Model::new(heap(&Shim::default(), 1 << 32, 64 * MIB));
    for (skip, most, kept) in [(0, MIB / 2, false), (MIB / 2, MIB / 2, false), (8192, MIB - 16384, true)] {
        let at = model.alloc(MIB, 1, Fill::Any).unwrap();
        let above = model.alloc(MIB, 1, Fill::Any).unwrap();
        model.heap.renew_at_free(at + skip, most);
        if !bind(at + skip, most) {
            return eprintln!("NOT RUN: mbind fails here");
        }
        let to = model.resize(at, 3 * MIB, Fill::Any).unwrap();
        assert_eq!((to != at, all_bound(to, 3 * MIB)), (true, kept), "{skip} {most}");
        model.free(to);
        model.free(above);
    }
    model.end();
}

/// A program may lock all of its memory in any thread, while other threads free and resize their areas.
#[test]
fn another_thread_may_mark_all_as_changed_while_areas_are_freed_and_resized() {
    for guards in [false, true] {
        let plan = Plan { arena_bytes_max: 1 << 30, guards, ..PLAN };
        let heap = Owned::new(Shim::default(), plan).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    heap.renew_at_free(0, usize::MAX);
                }
            });
            let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                for round in 0..20_000 {
                    let most = 5000 + round % 9 * 4096;
                    let mut at = heap.alloc(layout(most, 1), Fill::Any).unwrap().addr().get();
                    // The same number of pages, fewer, and more.
                    for bytes in [most - 100, most - 1000, most + 80_000] {
                        // SAFETY: this test's own area, to which no reference exists.
                        at = unsafe { heap.resize(at, layout(bytes, 1), Fill::Any) }.unwrap().addr().get();
                    }
                    // SAFETY: as before.
                    unsafe { heap.free(at) }.unwrap();
                }
            }));
            done.store(true, Ordering::Relaxed);
            result.unwrap();
        });
        assert_eq!(heap.stats().moved_areas, 0);
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn a_changed_area_that_cannot_be_mapped_anew_is_retired() {
    let shim = Shim::default();
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 32, 64 * MIB));
    let at = model.alloc(MIB, 1, Fill::Any).unwrap();
    model.heap.renew_at_free(at, MIB);
    shim.fail(Call::Renew, 0);
    let at = model.resize(at, MIB / 2, Fill::Any).unwrap();
    assert_eq!(model.heap.stats().retired_bytes, MIB / 2);
    model.free(at);
    assert_eq!((model.heap.stats().retired_bytes, model.heap.stats().moved_areas), (MIB, 0));
    for _ in 0..64 {
        let other = model.alloc(MIB / 4, 1, Fill::Any).unwrap();
        assert!(!(at..at + MIB).contains(&other));
    }
    shim.allow();
    model.check();
    model.end();
}

#[test]
fn vm1_vm2_a_word_that_is_wrong_is_named() {
    let shim = Shim::default();
    let mut model = Model::new(heap(&shim, 1 << 30, 64 * MIB));
    let at = model.alloc(10 * PAGE_BYTES, 1, Fill::Any).unwrap();
    let page = (at / PAGE_BYTES) as u64;
    let wrong = |model: &Model, page, word| {
        let (arena, before) = (&model.heap.arena, model.heap.arena.get(page));
        arena.put(page, word);
        let wrong = model.heap.validate().unwrap_err();
        arena.put(page, before);
        wrong
    };
    let empty = wrong(&model, page, Word::from_bits(0));
    assert_eq!((empty.rule, empty.actual), ("VM1", 0));
    assert_eq!(wrong(&model, page, Word::free(10)).rule, "VM1");
    assert_eq!(wrong(&model, page + 3, Word::live(1, 1)).rule, "VM2");
    model.check();
    model.end();
}
