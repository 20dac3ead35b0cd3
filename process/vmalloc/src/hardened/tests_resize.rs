//! Tests of areas that are resized: in place, or by moving their pages.

use super::tests::*;
use super::*;
use vmalloc_os::os::shim::Shim;
use vmalloc_os::os::{Call, Span};

/// Returns the number of resident pages of an area.
fn resident(shim: &Shim, at: usize, size: usize) -> usize {
    let start = at & !(PAGE_BYTES - 1);
    let mut seen = vec![0; (at + size - start).div_ceil(PAGE_BYTES)];
    shim.resident(Span { at: start, bytes: seen.len() * PAGE_BYTES }, &mut seen).unwrap();
    seen.iter().filter(|&byte| byte & 1 == 1).count()
}

/// Allocates an area without pages, and writes every 32nd of them.
fn sparse(hard: &Owned<Shim>, size: usize) -> usize {
    let at = alloc(hard, size);
    (0..size).step_by(32 * PAGE_BYTES).for_each(|byte| bytes(at, size)[byte] = 7);
    at
}

#[test]
fn an_area_grows_in_place_where_the_pages_above_it_are_free() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        let mut at = alloc(&hard, MIB);
        bytes(at, MIB).fill(7);
        let (mut beside, mut moved) = (Vec::new(), 0);
        for mib in 2..=64 {
            let size = mib * MIB;
            let (old, moves) = (at, shim.calls(Call::Move));
            at = resize(&hard, at, size, 16).unwrap();
            moved += u64::from(at != old);
            let in_place = shim.calls(Call::Move) == moves;
            assert!(in_place == (at == old) || !shim.can_move(), "a step that copies, at {mib} MiB");
            assert!(bytes(at, size - MIB).iter().step_by(PAGE_BYTES).all(|&byte| byte == 7));
            assert!(bytes(at + size - MIB, MIB).iter().all(|&byte| byte == 0));
            assert!(!is_readable(at + size) && !is_readable(at - 1), "no walls at {mib} MiB");
            assert!(at == old || !is_readable(old));
            bytes(at + size - MIB, MIB).fill(7);
            beside.push(alloc(&hard, 150_000));
            assert_eq!(hard.stats().live_bytes, size + beside.len() * 37 * PAGE_BYTES);
        }
        assert!(moved < 8, "{moved} of 63 steps moved the area");
        assert_eq!(hard.validate(), Ok(()));
        beside.into_iter().chain([at]).for_each(|at| free(&hard, at).unwrap());
        assert!((0..64).all(|mib| !is_readable(at + mib * MIB)));
        hard.trim();
        end(hard, &shim);
    }
}

#[test]
fn an_area_that_cannot_stay_moves_its_pages_and_no_others() {
    let shim = Shim::default();
    let hard = make(&shim, Plan { arena_bytes_max: 64 * MIB, window_bytes: 64 * MIB, ..plan(None) });
    if !shim.can_move() || hard.window.wall() == Wall::Protection {
        eprintln!("SKIPPED: this system moves no pages");
        return;
    }
    // A smaller area is always moved, so that the whole old place is in quarantine.
    let at = sparse(&hard, 3 * MIB);
    let to = resize(&hard, at, 2 * MIB, 1).unwrap();
    assert_eq!((shim.calls(Call::Move), resident(&shim, to, 2 * MIB)), (1, 16));
    assert!(to != at && !is_readable(at) && !is_readable(to + 2 * MIB));
    free(&hard, to).unwrap();
    let mut areas: Vec<_> = (0..14).map(|_| sparse(&hard, MIB)).collect();
    let (mut moved, before) = (0, shim.calls(Call::Move));
    for at in &mut areas {
        let to = resize(&hard, *at, 2 * MIB, 1).unwrap();
        assert_eq!(resident(&shim, to, 2 * MIB), 8, "pages without contents stay so");
        assert!(bytes(to, MIB).iter().step_by(32 * PAGE_BYTES).all(|&byte| byte == 7));
        assert!(!is_readable(to + 2 * MIB) && (to == *at || !is_readable(*at)));
        moved += u64::from(to != *at);
        *at = to;
    }
    assert!(moved > 0 && moved == shim.calls(Call::Move) - before, "{moved} moves");
    areas.into_iter().for_each(|at| free(&hard, at).unwrap());
    // What was not moved is copied, however far the move came.
    for granted in [0, 1] {
        let at = alloc(&hard, 3 * MIB);
        bytes(at, 3 * MIB).fill(9);
        shim.halve(granted > 0);
        shim.fail(Call::Move, 0);
        let to = resize(&hard, at, 2 * MIB, 1).unwrap();
        shim.allow();
        assert!(bytes(to, 2 * MIB).iter().all(|&byte| byte == 9) && !is_readable(at));
        free(&hard, to).unwrap();
    }
    hard.trim();
    end(hard, &shim);
}

#[test]
fn a_large_area_of_any_size_stays_at_its_offset_between_canaries() {
    let shim = Shim::default();
    for (before, after) in [(1_000_003, 1_500_001), (750_000, 700_005), (200_001, 200_009)] {
        let hard = make(&shim, plan(None));
        let in_page = |at: usize| at % PAGE_BYTES;
        let at = alloc(&hard, before);
        bytes(at, before).fill(7);
        let to = resize(&hard, at, after, 1).unwrap();
        assert_eq!((in_page(to), hard.live(to).unwrap().requested_bytes()), (in_page(at), after));
        assert!(!is_readable((to + after).next_multiple_of(PAGE_BYTES)));
        // What was the canary behind the end is zeros.
        let stays = before.min(after);
        assert!(bytes(to, stays).iter().all(|&byte| byte == 7));
        assert!(bytes(to + stays, after - stays).iter().all(|&byte| byte == 0));
        // An area of few pages ends with its page, so it is copied.
        let small = resize(&hard, to, 9001, 1).unwrap();
        assert!(!is_readable(small + 9001) && bytes(small, 9001).iter().all(|&byte| byte == 7));
        let again = resize(&hard, small, before, 1).unwrap();
        assert!(!is_readable(again + before));
        let last = resize(&hard, again, after, 1).unwrap();
        // A canary is behind this end, and is zeros where the area grows over it.
        let size = after + 100_001;
        let last = resize(&hard, last, size, 1).unwrap();
        assert!(bytes(last + after, size - after).iter().all(|&byte| byte == 0));
        bytes(last + size, 1)[0] ^= 1;
        let fault = Fault::Spoiled { address: last, bytes: size, offset: size as isize };
        assert_eq!(free(&hard, last), Err(fault));
    }
}

#[test]
fn an_area_that_cannot_be_resized_is_unchanged() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        let at = alloc(&hard, 300_000);
        bytes(at, 300_000).fill(7);
        for call in [Call::Commit, Call::Unguard] {
            shim.fail(call, 0);
        }
        for size in [600_000, 300_000 + 8 * PAGE_BYTES, 0, 1 << 40, isize::MAX as usize] {
            if let Ok(to) = resize(&hard, at, size, 1) {
                // The markers behind it needed no change.
                assert_eq!(resize(&hard, to, 300_000, 1), Ok(at));
            }
            assert_eq!(hard.live(at).unwrap().requested_bytes(), 300_000);
            assert!(is_readable(at) && !is_readable(at + 300_000));
            assert_eq!(hard.validate(), Ok(()));
        }
        shim.allow();
        assert!(bytes(at, 300_000).iter().all(|&byte| byte == 7));
        assert_eq!(resize(&hard, at, 300_000, 1), Ok(at), "the same size");
        free(&hard, at).unwrap();
        end(hard, &shim);
    }
}
