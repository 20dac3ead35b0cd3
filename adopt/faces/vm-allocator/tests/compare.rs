//! Random operations on the original and on this crate: equal answers, except where a test says what differs.
#![expect(clippy::unwrap_used, reason = "a test that finds no value fails")]

#[path = "../../draws.rs"]
mod draws;

use draws::Draws;
use original as theirs;
use vm_allocator as ours;

/// A value of either crate as text: the types have the same names, and the same `Debug`.
fn text<T: std::fmt::Debug>(value: T) -> String {
    format!("{value:?}")
}

fn policies(draw: u64, at: u64) -> (ours::AllocPolicy, theirs::AllocPolicy) {
    match draw {
        0 => (ours::AllocPolicy::FirstMatch, theirs::AllocPolicy::FirstMatch),
        1 => (ours::AllocPolicy::LastMatch, theirs::AllocPolicy::LastMatch),
        _ => (ours::AllocPolicy::ExactMatch(at), theirs::AllocPolicy::ExactMatch(at)),
    }
}

/// Runs random operations in steps of `unit` addresses. Where the original would cut an area in two, the operation is
/// left out: see `an_exact_match_inside_an_area_differs`.
fn compare(seed: u64, base: u64, size: u64, unit: u64, steps: u32) {
    let mut draws = Draws::new(seed);
    let mut our = ours::AddressAllocator::new(base, size).unwrap();
    let mut their = theirs::AddressAllocator::new(base, size).unwrap();
    let mut live: Vec<(u64, u64)> = Vec::new();
    let (mut good, mut bad) = (0, 0);
    for step in 0..steps {
        let frees = !live.is_empty() && draws.below(100) < 42;
        if frees {
            let (start, end) = live.swap_remove(draws.below(live.len() as u64) as usize);
            let ours = our.free(&ours::RangeInclusive::new(start, end).unwrap());
            assert_eq!(
                text(ours),
                text(their.free(&theirs::RangeInclusive::new(start, end).unwrap())),
                "{step}"
            );
            continue;
        }
        if draws.below(20) == 0 {
            // A free of a range that is no area, or of one that is free.
            let (start, len) = (base + unit * draws.below(size / unit), unit * (1 + draws.below(4)));
            if let Ok(key) = ours::RangeInclusive::new(start, start + len - 1)
                && !live.contains(&(key.start(), key.end()))
            {
                let theirs = theirs::RangeInclusive::new(key.start(), key.end()).unwrap();
                assert_eq!(text(our.free(&key)), text(their.free(&theirs)), "{step}: {key:?}");
            }
            continue;
        }
        let len = unit * (draws.below(12) + u64::from(draws.below(30) > 0));
        let align = if draws.below(30) == 0 { draws.below(100) } else { 1 << draws.below(10) };
        let at = base + unit * draws.below(size / unit);
        let (our_policy, their_policy) = policies(draws.below(3), at);
        let inside = |&(start, end): &(u64, u64)| start <= at && at <= end;
        if let ours::AllocPolicy::ExactMatch(_) = our_policy
            && let Some(&(start, end)) = live.iter().find(|area| inside(area))
            && (start, end) != (at, at.wrapping_add(len).wrapping_sub(1))
            && at.wrapping_add(len).wrapping_sub(1) <= end
        {
            continue;
        }
        let (ours, theirs) = (our.allocate(len, align, our_policy), their.allocate(len, align, their_policy));
        assert_eq!(text(ours), text(theirs), "{step}: {len} aligned to {align}, {our_policy:?}");
        match ours {
            Ok(range) => {
                live.push((range.start(), range.end()));
                good += 1;
            }
            Err(_) => bad += 1,
        }
    }
    assert!(good > steps / 10 && bad > steps / 100, "{good} good, {bad} bad: too one-sided");
}

#[test]
fn answers_of_allocators_are_equal() {
    for seed in 0..8 {
        compare(seed, 0x1000, 0x10_0000, 0x100, 3000);
        compare(seed, (1 << 51) - 0x8000, 0x10_000, 0x40, 3000);
        compare(seed, u64::MAX - 0xffff, 0xff00, 4, 3000);
        compare(seed, 0x7fff_1230, 0x4000, 2, 3000);
    }
}

/// The original merges no free range of one address, fails there, or loses the range. So with single addresses the
/// answers differ, and ours succeeds whenever there is room.
#[test]
fn single_addresses_are_merged_here() {
    let (mut our, mut their) =
        (ours::AddressAllocator::new(2, 16).unwrap(), theirs::AddressAllocator::new(2, 16).unwrap());
    for start in 2..18 {
        let range = our.allocate(1, 1, ours::AllocPolicy::FirstMatch).unwrap();
        assert_eq!(text(range), text(their.allocate(1, 1, theirs::AllocPolicy::FirstMatch).unwrap()));
        assert_eq!(range.start(), start);
    }
    for start in 2..18 {
        our.free(&ours::RangeInclusive::new(start, start).unwrap()).unwrap();
        their.free(&theirs::RangeInclusive::new(start, start).unwrap()).unwrap();
    }
    assert_eq!(our.allocate(16, 1, ours::AllocPolicy::FirstMatch).unwrap().start(), 2);
    assert_eq!(
        their.allocate(2, 1, theirs::AllocPolicy::FirstMatch),
        Err(theirs::Error::ResourceNotAvailable)
    );
}

/// The original does not look at the state of the range that it finds for an exact match.
#[test]
fn an_exact_match_inside_an_area_differs() {
    let mut our = ours::AddressAllocator::new(0x1000, 0x1000).unwrap();
    let mut their = theirs::AddressAllocator::new(0x1000, 0x1000).unwrap();
    our.allocate(0x800, 1, ours::AllocPolicy::FirstMatch).unwrap();
    their.allocate(0x800, 1, theirs::AllocPolicy::FirstMatch).unwrap();
    let exact = our.allocate(0x100, 1, ours::AllocPolicy::ExactMatch(0x1100));
    assert_eq!(exact, Err(ours::Error::ResourceNotAvailable));
    assert!(their.allocate(0x100, 1, theirs::AllocPolicy::ExactMatch(0x1100)).is_ok(), "allocated twice");
}

/// Other cases in which the original fails, or loses a range, and this crate does not.
#[test]
fn edges_that_the_original_leaves_out_are_used() {
    // The last match in a free range that begins at address 0 and is exactly as long.
    let mut our = ours::AddressAllocator::new(0, 0x1000).unwrap();
    let mut their = theirs::AddressAllocator::new(0, 0x1000).unwrap();
    assert!(our.allocate(0x1000, 1, ours::AllocPolicy::LastMatch).is_ok());
    assert!(their.allocate(0x1000, 1, theirs::AllocPolicy::LastMatch).is_err());
    // A free of a range that begins at address 1.
    let mut our = ours::AddressAllocator::new(1, 8).unwrap();
    let mut their = theirs::AddressAllocator::new(1, 8).unwrap();
    let range = our.allocate(8, 1, ours::AllocPolicy::FirstMatch).unwrap();
    let theirs = their.allocate(8, 1, theirs::AllocPolicy::FirstMatch).unwrap();
    assert_eq!((our.free(&range), their.free(&theirs)), (Ok(()), Err(theirs::Error::Underflow)));
    // A range that is longer than the index can number.
    assert!(theirs::AddressAllocator::new(0, u64::MAX).is_ok());
    assert_eq!(ours::AddressAllocator::new(0, u64::MAX), Err(ours::Error::InvalidRange(0, u64::MAX - 1)));
    for (base, size) in [(u64::MAX, 0x100), (0x1000, 0), (1, u64::MAX)] {
        assert_eq!(
            text(ours::AddressAllocator::new(base, size).is_err()),
            text(theirs::AddressAllocator::new(base, size).is_err() || size == u64::MAX)
        );
    }
}

#[test]
fn answers_of_ids_are_equal() {
    for (seed, base, end) in [(1, 5, 60), (2, 0, 10), (3, u32::MAX - 40, u32::MAX), (4, 7, 7), (5, 9, 3)] {
        let mut draws = Draws::new(seed);
        let pair = (ours::IdAllocator::new(base, end), theirs::IdAllocator::new(base, end));
        let (mut our, mut their) = match pair {
            (Ok(our), Ok(their)) => (our, their),
            (our, their) => {
                assert_eq!(text(our.unwrap_err()), text(their.unwrap_err()));
                continue;
            }
        };
        for _ in 0..5000 {
            let id = base.saturating_sub(2).saturating_add(draws.below(70) as u32);
            match draws.below(5) {
                0 | 1 => assert_eq!(text(our.free_id(id)), text(their.free_id(id))),
                2 => assert_eq!(our.is_allocated(id), their.is_allocated(id)),
                _ => assert_eq!(text(our.allocate_id()), text(their.allocate_id())),
            }
        }
    }
}

#[test]
fn requests_that_make_no_sense_have_the_same_errors() {
    for (size, align) in [(0, 4), (0, 3), (4, 0), (4, 3), (4, 4), (u64::MAX, 1 << 63)] {
        for policy in 0..3 {
            let (our, their) = policies(policy, 6);
            assert_eq!(
                text(ours::Constraint::new(size, align, our)),
                text(theirs::Constraint::new(size, align, their))
            );
        }
    }
    for (start, end) in [(2, 1), (0, u64::MAX), (1, u64::MAX), (5, 5)] {
        assert_eq!(
            text(ours::RangeInclusive::new(start, end)),
            text(theirs::RangeInclusive::new(start, end))
        );
    }
    assert_eq!(ours::DEFAULT_CONSTRAINT_ALIGN, theirs::DEFAULT_CONSTRAINT_ALIGN);
}
