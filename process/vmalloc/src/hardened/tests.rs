//! Tests of the hardened profile on a system with fault injection. Mistakes that end a process are in
//! `tests/hardened.rs`.

use super::*;
use crate::error::{CreateError, ResizeError};
use std::collections::BTreeMap;
use vmalloc_os::os::shim::{Shim, bind, is_bound};
use vmalloc_os::os::{Call, Errno};

pub(super) const MIB: usize = 1 << 20;

pub(super) fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

pub(super) fn plan(wall: Option<Wall>) -> Plan {
    Plan {
        arena_bytes_max: 1 << 34,
        cache_bytes_max: 8 * MIB,
        window_bytes: 1 << 30,
        quarantine_bytes_max: 16 * MIB,
        quarantine_areas_max: 64,
        wall,
        seed: Some(0x5eed),
    }
}

pub(super) fn make(shim: &Shim, plan: Plan) -> Owned<Shim> {
    Owned::new(shim.clone(), plan).unwrap()
}

pub(super) fn bytes(at: usize, bytes: usize) -> &'static mut [u8] {
    // SAFETY: each test uses its allocator alone, and passes areas that it allocated.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(at), bytes) }
}

/// Returns true if a byte is readable. The kernel reads it, so that the test does not fault.
pub(super) fn is_readable(at: usize) -> bool {
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

pub(super) fn alloc(hard: &Owned<Shim>, size: usize) -> usize {
    hard.alloc(layout(size, 1)).unwrap().addr().get()
}

pub(super) fn free(hard: &Owned<Shim>, at: usize) -> Result<(), Fault> {
    // SAFETY: tests do not use freed areas.
    unsafe { hard.free(at) }
}

pub(super) fn resize(hard: &Owned<Shim>, at: usize, size: usize, align: usize) -> Result<usize, ResizeError> {
    // SAFETY: tests do not use the old addresses of areas that moved.
    let to = unsafe { hard.resize(at, layout(size, align)) };
    to.unwrap().map(|to| to.addr().get())
}

pub(super) fn end(hard: Owned<Shim>, shim: &Shim) {
    assert_eq!(hard.validate(), Ok(()));
    assert_eq!(hard.stats().live_bytes, 0);
    drop(hard);
    assert_eq!(shim.mapped(), 0, "all that was mapped was unmapped");
}

#[test]
fn hd1_hd3_hq1_hw1_random_calls_lose_nothing_and_give_nothing_out_twice() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        let mut areas: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
        let mut draw = Draw::new([1, 2]);
        for step in 0..1500u32 {
            let size = match draw.below(4) {
                0 => 1 + draw.below(MIB as u64),
                _ => 1 + draw.below(40_000),
            } as usize;
            let align = 1usize << [0, 3, 4, 12, 14, 21][draw.below(6) as usize];
            let nth = |draw: &mut Draw| {
                let count = areas.len() as u64;
                (count > 0).then(|| draw.below(count)).and_then(|n| areas.keys().nth(n as usize).copied())
            };
            let (mut gone, mut new) = (None, None);
            match draw.below(8) {
                0..4 => {
                    let at = hard.alloc(layout(size, align)).unwrap().addr().get();
                    assert!(bytes(at, size).iter().all(|&byte| byte == 0), "a new area is zeros");
                    new = Some(at);
                }
                4..7 => {
                    if let Some(at) = nth(&mut draw) {
                        free(&hard, at).unwrap();
                        gone = Some((at, 0));
                    }
                }
                _ => {
                    if let Some(at) = nth(&mut draw) {
                        let to = resize(&hard, at, size, align).unwrap();
                        gone = Some((at, size));
                        new = Some(to);
                        let (before, byte) = areas[&at];
                        let stays = before.min(size);
                        assert!(bytes(to, stays).iter().all(|&found| found == byte));
                        assert!(bytes(to + stays, size - stays).iter().all(|&found| found == 0));
                    }
                }
            }
            if let Some((at, _)) = gone {
                areas.remove(&at);
                assert!(new == Some(at) || !is_readable(at), "HD2: a freed area can be read");
            }
            if let Some(at) = new {
                assert!(at.is_multiple_of(align));
                assert_eq!(hard.live(at).unwrap().requested_bytes(), size);
                let below = areas.range(..at + size).next_back();
                assert!(below.is_none_or(|(&other, &(bytes, _))| other + bytes <= at));
                let end = (at + size).next_multiple_of(PAGE_BYTES);
                assert!(!is_readable(end) && !is_readable((at & !(PAGE_BYTES - 1)) - 1), "HD2: no walls");
                let byte = 1 + draw.below(255) as u8;
                bytes(at, size).fill(byte);
                areas.insert(at, (size, byte));
            }
            if step % 50 == 0 {
                assert_eq!(hard.validate(), Ok(()));
                let live: usize = areas.values().map(|&(bytes, _)| bytes.next_multiple_of(PAGE_BYTES)).sum();
                assert_eq!(hard.stats().live_bytes, live);
            }
        }
        for (at, (size, byte)) in areas {
            assert!(bytes(at, size).iter().all(|&found| found == byte), "another owner wrote here");
            free(&hard, at).unwrap();
        }
        assert!(hard.stats().quarantined_areas == 64 || hard.stats().quarantined_bytes > 14 * MIB);
        hard.trim();
        assert_eq!(hard.stats().cached_bytes, 0);
        end(hard, &shim);
    }
}

#[test]
fn hd2_what_was_freed_can_not_be_read_nor_what_is_beside() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        for size in [1, 100, 4096, 70_000, 3 * MIB] {
            let at = alloc(&hard, size);
            bytes(at, size).fill(7);
            assert!(is_readable(at) && is_readable(at + size - 1));
            // Without an alignment, the area ends with its page.
            assert!(!is_readable(at + size), "{size}");
            free(&hard, at).unwrap();
            assert!((0..size).step_by(4096).all(|byte| !is_readable(at + byte)), "{size}");
        }
        end(hard, &shim);
    }
}

#[test]
fn what_is_known_of_a_bad_address_is_reported() {
    let shim = Shim::default();
    let hard = make(&shim, Plan { quarantine_areas_max: 2, ..plan(None) });
    let known = |at: usize| match free(&hard, at) {
        Err(Fault::BadFree { address, known }) if address == at => known,
        other => panic!("{other:?}"),
    };
    let (one, two) = (alloc(&hard, 10_000), alloc(&hard, 5000));
    let live = Diagnosis::Live { start: one, bytes: 10_000 };
    assert_eq!(known(one + 5000), live);
    assert_eq!(known(one - 1), live, "in its first page, before its start");
    assert_eq!(known(one + 10_000), live, "in the wall behind it");
    assert_eq!(known(one - 4096), live, "in the wall before it");
    assert_eq!(known(0x1000), Diagnosis::Outside);
    assert_eq!(
        (hard.live(one + 16), hard.live(7)),
        (Err(FreeError::NoArea { address: one + 16 }), Err(FreeError::NotOurs { address: 7 }))
    );
    free(&hard, one).unwrap();
    assert_eq!(hard.live(one & !4095), Err(FreeError::AlreadyFree { address: one & !4095, bytes: 12288 }));
    let pages_at = one & !4095;
    assert_eq!(known(one), Diagnosis::Quarantined { pages_at, bytes: 12288, frees: 0 });
    free(&hard, two).unwrap();
    assert_eq!(known(one + 8000), Diagnosis::Quarantined { pages_at, bytes: 12288, frees: 1 });
    free(&hard, alloc(&hard, 1)).unwrap();
    assert_eq!(known(one), Diagnosis::Released { bytes: 12288, frees: 2 });
    assert_eq!(known(two), Diagnosis::Quarantined { pages_at: two & !4095, bytes: 8192, frees: 1 });
    let nowhere = (0..)
        .map(|n| address(hard.window.first() + 77 + n))
        .find(|&at| hard.diagnosis(at) == Diagnosis::Never);
    assert!(nowhere.is_some());
    // None of these calls has changed anything.
    assert_eq!(hard.validate(), Ok(()));
    end(hard, &shim);
}

#[test]
fn pages_are_used_again_as_zeros_at_another_place_and_dropped_where_they_cannot_be_moved() {
    let shim = Shim::default();
    if !shim.can_move() {
        eprintln!("SKIPPED: this system moves no pages");
        return;
    }
    let hard = make(&shim, plan(None));
    for size in [100, 70_000, 3 * MIB] {
        let one = alloc(&hard, size);
        bytes(one, size).fill(7);
        let hits = hard.stats().cache_hits;
        free(&hard, one).unwrap();
        assert_eq!(hard.stats().cached_bytes, size.next_multiple_of(PAGE_BYTES));
        // Cached rooms are accessible: the data of a stray write there is not visible in a new area.
        let kept = readable_pages(&hard);
        assert_eq!(kept.len(), size.div_ceil(PAGE_BYTES));
        kept.iter().for_each(|page| bytes(address(hard.window.first() + page) + 9, 1)[0] = 7);
        let two = alloc(&hard, size);
        assert_eq!((hard.stats().cache_hits, hard.stats().cached_bytes), (hits + 1, 0));
        // The pages are resident already: no fault.
        let mut seen = [0; 800];
        let span = vmalloc_os::os::Span { at: two & !4095, bytes: size.next_multiple_of(PAGE_BYTES) };
        let pages = span.bytes / PAGE_BYTES;
        shim.resident(span, &mut seen[..pages]).unwrap();
        assert!(seen[..pages].iter().all(|byte| byte & 1 == 1));
        assert!(two != one && !is_readable(one) && bytes(two, size).iter().all(|&byte| byte == 0));
        free(&hard, two).unwrap();
        hard.trim();
    }
    // The pages of a sparse room are released, not zeroed.
    let one = alloc(&hard, 3 * MIB);
    bytes(one, MIB)[0] = 1;
    free(&hard, one).unwrap();
    assert_eq!(hard.stats().cached_bytes, 0);
    // The call fails after one success, and at once.
    for granted in [1, 0] {
        let one = alloc(&hard, 5 * MIB);
        bytes(one, 5 * MIB).fill(7);
        shim.fail(Call::Move, granted);
        free(&hard, one).unwrap();
        assert_eq!(hard.stats().cached_bytes > 0, granted > 0);
        let two = alloc(&hard, 5 * MIB);
        assert!(!is_readable(one) && bytes(two, 5 * MIB).iter().all(|&byte| byte == 0));
        free(&hard, two).unwrap();
        hard.trim();
        shim.allow();
    }
    end(hard, &shim);
}

#[test]
fn writes_beside_an_area_are_detected() {
    let shim = Shim::default();
    let hard = make(&shim, plan(None));
    // Aligned to 64, an area of 1000 bytes leaves 24 bytes after it, and 3072 before it.
    for offset in [1000isize, 1001, 1023, -1, -8, -3072] {
        let at = hard.alloc(layout(1000, 64)).unwrap().addr().get();
        let spot = bytes(at.wrapping_add_signed(offset), 1);
        spot[0] ^= 1;
        let fault = Fault::Spoiled { address: at, bytes: 1000, offset };
        assert_eq!(free(&hard, at), Err(fault));
    }
    // The first bad byte after the end is reported, regardless of others.
    let at = hard.alloc(layout(1000, 64)).unwrap().addr().get();
    bytes(at - 100, 1)[0] ^= 0x80;
    bytes(at + 1005, 10).iter_mut().for_each(|byte| *byte = !*byte);
    assert_eq!(free(&hard, at), Err(Fault::Spoiled { address: at, bytes: 1000, offset: 1005 }));
    // Two areas have different canaries.
    let pattern = |at: usize| bytes(at + 1000, 8).to_vec();
    let two = [(); 2].map(|()| hard.alloc(layout(1000, 64)).unwrap().addr().get());
    assert_ne!(pattern(two[0]), pattern(two[1]));
}

#[test]
fn hq1_the_quarantine_is_bounded_and_frees_addresses() {
    let shim = Shim::default();
    for (areas, size) in [(64, 4096), (1 << 14, MIB), (0, 4096)] {
        let hard = make(&shim, Plan { quarantine_areas_max: areas, ..plan(None) });
        for _ in 0..200 {
            let at = alloc(&hard, size);
            free(&hard, at).unwrap();
            let stats = hard.stats();
            assert!(stats.quarantined_areas <= areas as u64 && stats.quarantined_bytes <= 16 * MIB);
            assert!(!is_readable(at));
        }
        let stats = hard.stats();
        match (areas, size) {
            (64, _) => assert_eq!(stats.quarantined_areas, 64),
            (0, _) => assert_eq!(stats.quarantined_areas, 0),
            // Each area has a wall on both sides.
            _ => assert_eq!((stats.quarantined_areas, stats.quarantined_bytes), (15, 15 * (MIB + 8192))),
        }
        // An area larger than the quarantine's limit is released at once.
        let at = alloc(&hard, 17 * MIB);
        free(&hard, at).unwrap();
        assert!(!is_readable(at) && matches!(hard.diagnosis(at), Diagnosis::Released { .. }));
        end(hard, &shim);
    }
}

#[test]
fn the_window_grows_with_what_is_taken_until_all_of_it_is() {
    let shim = Shim::default();
    for wall in [None, Some(Wall::Protection)] {
        let hard = make(&shim, Plan { arena_bytes_max: 256 * MIB, window_bytes: 32 * MIB, ..plan(wall) });
        assert_eq!(hard.stats().committed_bytes, 32 * MIB);
        let mut areas = Vec::new();
        let error = loop {
            match hard.alloc(layout(MIB, 1)) {
                Ok(area) => areas.push(area.addr().get()),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, AllocError::NoSpace { requested_bytes: MIB, largest_bytes, .. } if largest_bytes < MIB + 8192)
        );
        assert_eq!(hard.stats().committed_bytes, 256 * MIB);
        // The areas are scattered, so they do not fill the window: gaps are smaller than an area and two walls.
        assert!(areas.len() > 128, "{}", areas.len());
        assert_eq!(hard.validate(), Ok(()));
        // If nothing else is free, areas leave the quarantine early, the oldest first.
        let last = areas.pop().unwrap();
        free(&hard, last).unwrap();
        let again = alloc(&hard, MIB);
        assert!(again.abs_diff(last) < 2 * MIB);
        areas.push(again);
        for at in areas {
            free(&hard, at).unwrap();
        }
        let too_much = hard.alloc(layout(257 * MIB, 1));
        assert!(matches!(too_much, Err(AllocError::NoSpace { .. })), "{too_much:?}");
        let aligned = hard.alloc(layout(MIB, 32 * MIB)).unwrap().addr().get();
        assert!(aligned.is_multiple_of(32 * MIB));
        free(&hard, aligned).unwrap();
        end(hard, &shim);
    }
}

/// Makes the nth call of each kind fail, for every n: nothing is lost, and later calls succeed.
#[test]
fn sp4_nothing_is_lost_whichever_call_fails() {
    let kinds = [
        Call::Map,
        Call::Commit,
        Call::Discard,
        Call::Guard,
        Call::Unguard,
        Call::Forbid,
        Call::Move,
        Call::Resident,
    ];
    for wall in [None, Some(Wall::Protection)] {
        for call in kinds {
            let mut failed = 0;
            for granted in (0..10).chain([13, 21, 34, 55]) {
                let shim = Shim::default();
                let hard = make(&shim, plan(wall));
                shim.fail_some(call, granted, 1);
                let mut areas = Vec::new();
                for round in 0..40usize {
                    let size = 1 + round * 3000;
                    match hard.alloc(layout(size, 16)) {
                        Ok(area) => {
                            let at = area.addr().get();
                            assert!(bytes(at, size).iter().all(|&byte| byte == 0));
                            bytes(at, size).fill(9);
                            areas.push((at, size));
                        }
                        Err(error) => {
                            failed += 1;
                            let matches = match error {
                                AllocError::CallFailed { call: by, errno: Errno::NOMEM, .. } => by == call,
                                AllocError::NoRecords => call == Call::Map,
                                _ => false,
                            };
                            assert!(matches, "{error:?}");
                        }
                    }
                    if round % 3 == 1
                        && let Some((at, size)) = areas.last_mut()
                    {
                        // Whole pages more, so that it may grow in place.
                        let (old, more) = (*size, *size + 60 * PAGE_BYTES);
                        if let Ok(to) = resize(&hard, *at, more, 16) {
                            assert!(bytes(to + old, more - old).iter().all(|&byte| byte == 0));
                            (*at, *size) = (to, more);
                        }
                        assert!(bytes(*at, old).iter().all(|&byte| byte == 9));
                        bytes(*at, *size).fill(9);
                    }
                    if round % 2 == 1
                        && let Some((at, size)) = areas.pop()
                    {
                        free(&hard, at).unwrap();
                        // A room that was not closed is zeros.
                        assert!(
                            !is_readable(at) || bytes(at, size).iter().all(|&byte| byte == 0),
                            "{call:?}"
                        );
                    }
                }
                assert_eq!(hard.validate(), Ok(()), "{call:?} after {granted}");
                shim.allow();
                areas.push((alloc(&hard, 100_000), 100_000));
                for (at, _) in areas {
                    free(&hard, at).unwrap();
                }
                hard.trim();
                end(hard, &shim);
            }
            let may = match wall {
                // If a bundle cannot be opened, the room is placed elsewhere.
                None => call == Call::Unguard,
                Some(_) => call == Call::Commit,
            };
            assert!(failed > 0 || !may, "{call:?} never failed");
        }
    }
}

#[test]
fn what_cannot_be_made_is_an_error_and_leaves_nothing() {
    let shim = Shim::default();
    let made = |shim: &Shim| Owned::new(shim.clone(), Plan { seed: None, ..plan(None) }).err();
    for (call, granted) in [(Call::Random, 0), (Call::Random, 1), (Call::Map, 0), (Call::Reserve, 0)] {
        shim.fail(call, granted);
        let error = made(&shim);
        assert!(matches!(error, Some(CreateError::CallFailed { call: by, .. }) if by == call), "{error:?}");
        shim.allow();
        assert_eq!(shim.mapped(), 0);
    }
    // If every writable page is charged, the window is smaller: it needs eight bytes for each of its pages.
    shim.fail_commit_above(Some(300 << 10));
    let hard = make(&shim, plan(None));
    assert_eq!(hard.stats().committed_bytes, 128 * MIB);
    drop(hard);
    shim.fail_commit_above(Some(PAGE_BYTES));
    assert!(matches!(made(&shim), Some(CreateError::CallFailed { call: Call::Commit, .. })));
    assert_eq!(shim.mapped(), 0);
    shim.limit_addresses(Some(MIB));
    assert!(matches!(made(&shim), Some(CreateError::TooSmall { .. })));
}

#[test]
fn without_markers_rooms_are_bounded_by_what_the_system_maps() {
    let shim = Shim::default();
    shim.fail(Call::Guard, 0);
    shim.limit_mappings(800);
    let hard = make(&shim, plan(None));
    assert_eq!(hard.window.wall(), Wall::Protection);
    let areas: Vec<_> = (0..100).map(|_| alloc(&hard, 5000)).collect();
    assert!(areas.iter().all(|&at| !is_readable(at + 5000)));
    assert_eq!(hard.alloc(layout(1, 1)), Err(AllocError::TooManyGuards { guards_max: 100 }));
    for at in areas {
        free(&hard, at).unwrap();
    }
    let at = alloc(&hard, 1);
    free(&hard, at).unwrap();
    end(hard, &shim);
}

/// Returns the readable pages of the window, counted from its first.
pub(super) fn readable_pages(hard: &Owned<Shim>) -> Vec<u64> {
    let first = hard.window.first();
    (0..hard.window.window_pages()).filter(|page| is_readable(address(first + page))).collect()
}

#[test]
fn a_changed_room_that_cannot_be_mapped_anew_is_retired_and_not_written_to() {
    for (wall, closes) in [(None, true), (Some(Wall::Protection), true), (None, false)] {
        let shim = Shim::default();
        let hard = make(&shim, Plan { window_bytes: 32 * MIB, ..plan(wall) });
        let at = alloc(&hard, 9000);
        let start = at & !(PAGE_BYTES - 1);
        hard.renew_at_free(at, 1);
        // SAFETY: this test's own area.
        let code =
            unsafe { libc::mprotect(core::ptr::with_exposed_provenance_mut(start), 9000, libc::PROT_READ) };
        assert_eq!(code, 0);
        shim.fail(Call::Renew, 0);
        if !closes {
            [Call::Guard, Call::Discard, Call::Forbid].into_iter().for_each(|call| shim.fail(call, 0));
        }
        free(&hard, at).unwrap();
        shim.allow();
        let stats = hard.stats();
        assert_eq!((stats.retired_bytes, stats.failed_purges, stats.live_bytes), (5 * PAGE_BYTES, 1, 0));
        assert_eq!(hard.validate(), Ok(()));
        assert!(!(closes && is_readable(at)) && free(&hard, at).is_err());
        // Areas leave the quarantine, and a retired room is never reused.
        for _ in 0..2 {
            let areas: Vec<_> = (0..500).map(|_| alloc(&hard, 9000)).collect();
            assert!(areas.iter().all(|other| other.abs_diff(at) >= 4 * PAGE_BYTES));
            areas.into_iter().for_each(|other| free(&hard, other).unwrap());
        }
        assert_eq!(hard.stats().retired_bytes, 5 * PAGE_BYTES);
        end(hard, &shim);
    }
}

#[test]
fn a_change_of_other_memory_waits_for_no_lock() {
    let shim = Shim::default();
    let hard = make(&shim, plan(None));
    let _area = alloc(&hard, 9000);
    let extent = hard.window.extent();
    let _held = hard.state.lock();
    std::thread::scope(|scope| {
        // Beyond the window, up to the last address, and below it.
        scope.spawn(|| hard.renew_at_free(extent.end().get() as usize, usize::MAX));
        scope.spawn(|| hard.renew_at_free(PAGE_BYTES, extent.start().get() as usize - PAGE_BYTES));
    });
}

#[test]
fn a_policy_of_an_area_goes_with_it_where_it_is_resized_and_ends_with_its_free() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        for (before, after) in [(100, 5000), (9000, 300_000), (MIB, 3 * MIB), (MIB, 9000)] {
            // Its pages stay for the next area of that size.
            let warm = alloc(&hard, after);
            bytes(warm, after).fill(1);
            free(&hard, warm).unwrap();
            let at = alloc(&hard, before);
            bytes(at, before).fill(7);
            let start = at & !(PAGE_BYTES - 1);
            hard.renew_at_free(at, before);
            if !bind(start, before.next_multiple_of(PAGE_BYTES)) {
                return eprintln!("NOT RUN: mbind fails here");
            }
            let to = resize(&hard, at, after, 1).unwrap();
            assert!(bytes(to, after)[..before.min(after)].iter().all(|&byte| byte == 7));
            assert!(bytes(to, after)[before.min(after)..].iter().all(|&byte| byte == 0));
            let pages = || (to & !(PAGE_BYTES - 1)..to + after).step_by(PAGE_BYTES);
            assert!(pages().all(is_bound) && !is_bound(start), "{before} to {after}");
            free(&hard, to).unwrap();
            assert!(!pages().any(is_bound));
        }
        end(hard, &shim);
    }
}
