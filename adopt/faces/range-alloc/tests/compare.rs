//! Random operations on the original and on this crate: equal answers, except where a test says what differs.

#[path = "../../draws.rs"]
mod draws;

use draws::Draws;
use original as theirs;
use range_alloc as ours;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A value of either crate as text: the types have the same names, and the same `Debug`.
fn text<T: Debug>(value: T) -> String {
    format!("{value:?}")
}

/// Compares for one type of position; a length is a number of it. Positions at the start are allocated, and each second
/// one is freed, so that there are `holes` holes at first.
macro_rules! compare {
    ($name:ident, $type:ty) => {
        fn $name(seed: u64, whole: Range<$type>, holes: usize, longest: u64, align_max: u64, steps: u32) {
            let mut draws = Draws::new(seed);
            let mut our = ours::RangeAllocator::new(whole.clone());
            let mut their = theirs::RangeAllocator::new(whole.clone());
            let mut live: Vec<Range<$type>> = Vec::new();
            let (mut good, mut bad) = (0, 0);
            for at in 0..2 * holes {
                let length = 1 + (at / 2 % 7) as $type;
                let range = our.allocate_range(length).unwrap();
                assert_eq!(their.allocate_range(length).unwrap(), range);
                live.push(range);
            }
            for at in (0..holes).rev() {
                let range = live.swap_remove(2 * at);
                our.free_range(range.clone());
                their.free_range(range);
            }
            for step in 0..steps {
                if !live.is_empty() && draws.below(100) < 40 {
                    let mut range = live.swap_remove(draws.below(live.len() as u64) as usize);
                    // Sometimes a part, or two neighbours at once.
                    if range.end - range.start > 1 && draws.below(8) == 0 {
                        live.push(range.start + 1..range.end);
                        range.end = range.start + 1;
                    } else if draws.below(8) == 0
                        && let Some(next) = live.iter().position(|next| next.start == range.end)
                    {
                        range.end = live.swap_remove(next).end;
                    }
                    our.free_range(range.clone());
                    their.free_range(range);
                } else {
                    let length = 1 + draws.below(longest) as $type;
                    let taken = if draws.below(3) == 0 {
                        let align = 1 + draws.below(align_max) as $type;
                        let taken = our.allocate_range_aligned(length, align);
                        let theirs = their.allocate_range_aligned(length, align);
                        assert_eq!(text(&taken), text(theirs), "{step}: {length} at {align}");
                        taken
                    } else {
                        let taken = our.allocate_range(length);
                        assert_eq!(text(&taken), text(their.allocate_range(length)), "{step}: {length}");
                        taken
                    };
                    match taken {
                        Ok(range) => {
                            live.push(range);
                            good += 1;
                        }
                        Err(_) => bad += 1,
                    }
                }
                assert_eq!(our.total_available(), their.total_available());
                assert_eq!(our.is_empty(), their.is_empty());
                if step.is_multiple_of(40) {
                    assert!(our.allocated_ranges().eq(their.allocated_ranges()), "{step}");
                    assert_eq!(text(&our), text(&their), "{step}");
                }
                if step == steps / 2 && whole.end < <$type>::MAX / 2 {
                    let end = whole.end + whole.end / 8;
                    our.grow_to(end);
                    their.grow_to(end);
                    assert_eq!(our.initial_range(), their.initial_range());
                }
                if draws.below(3000) == 0 {
                    our.reset();
                    their.reset();
                    live.clear();
                }
            }
            assert!(good > steps / 10 && bad > steps / 200, "{good} good, {bad} bad: too one-sided");
        }
    };
}

compare!(compare_u64, u64);
compare!(compare_u32, u32);
compare!(compare_u8, u8);
compare!(compare_i32, i32);
compare!(compare_usize, usize);

#[test]
fn answers_are_equal() {
    for seed in 0..6 {
        compare_u64(seed, 0..3000, 0, 40, 33, 4000);
        compare_u64(seed, 777..100_000, 0, 1000, 300, 4000);
        compare_u64(seed, u64::MAX - 5000..u64::MAX - 1000, 0, 50, 20, 4000);
        // More than a list has: an index, which becomes a list later.
        compare_u64(seed, 0..12_100, 1500, 30, 7, 6000);
        compare_u32(seed, 0..200, 0, 9, 5, 4000);
        compare_i32(seed, 5..900, 0, 20, 9, 4000);
        compare_usize(seed, 64..65_536, 0, 900, 64, 4000);
        compare_u8(seed, 3..100, 0, 6, 4, 4000);
    }
}

#[test]
fn negative_positions_are_equal() {
    let mut our = ours::RangeAllocator::new(-50i64..50);
    let mut their = theirs::RangeAllocator::new(-50i64..50);
    for (length, align) in [(3, 7), (10, 4), (1, 1), (20, 16), (2, 3), (90, 1)] {
        let theirs = their.allocate_range_aligned(length, align);
        assert_eq!(text(our.allocate_range_aligned(length, align)), text(theirs));
    }
}

/// Both panic for the same calls.
#[test]
fn mistakes_panic_as_the_original_documents() {
    type Call = (&'static str, fn(&mut ours::RangeAllocator<u32>), fn(&mut theirs::RangeAllocator<u32>));
    let calls: [Call; 7] = [
        ("no length", |our| _ = our.allocate_range(0), |their| _ = their.allocate_range(0)),
        (
            "no alignment",
            |our| _ = our.allocate_range_aligned(1, 0),
            |their| _ = their.allocate_range_aligned(1, 0),
        ),
        (
            "no length at 2",
            |our| _ = our.allocate_range_aligned(0, 2),
            |their| {
                _ = their.allocate_range_aligned(0, 2);
            },
        ),
        ("empty", |our| our.free_range(15..15), |their| their.free_range(15..15)),
        ("below", |our| our.free_range(5..12), |their| their.free_range(5..12)),
        ("above", |our| our.free_range(95..101), |their| their.free_range(95..101)),
        ("free", |our| our.free_range(60..70), |their| their.free_range(60..70)),
    ];
    for (what, ours, theirs) in calls {
        let mut our = ours::RangeAllocator::new(10u32..100);
        let mut their = theirs::RangeAllocator::new(10u32..100);
        assert_eq!(our.allocate_range(20), Ok(10..30));
        assert_eq!(their.allocate_range(20), Ok(10..30));
        let is_panic = (
            catch_unwind(AssertUnwindSafe(|| ours(&mut our))).is_err(),
            catch_unwind(AssertUnwindSafe(|| theirs(&mut their))).is_err(),
        );
        assert_eq!(is_panic, (true, true), "{what}");
        assert!(our.allocated_ranges().eq(std::iter::once(10..30)), "{what}: nothing has changed");
    }
}

/// The original notices an overlap only if the range touches no free one. Otherwise positions are free twice.
#[test]
fn a_free_of_what_is_free_is_noticed_here() {
    let mut our = ours::RangeAllocator::new(0u32..100);
    let mut their = theirs::RangeAllocator::new(0u32..100);
    for _ in 0..10 {
        assert_eq!(our.allocate_range(10).ok(), their.allocate_range(10).ok());
    }
    for range in [20..30, 40..50] {
        our.free_range(range.clone());
        their.free_range(range);
    }
    // It begins where a free range ends, and overlaps the next.
    assert!(catch_unwind(AssertUnwindSafe(|| our.free_range(30..45))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| their.free_range(30..45))).is_ok());
    assert_eq!((our.total_available(), their.total_available()), (20, 35));
}

#[test]
fn unusual_ranges_work() {
    let mut empty = ours::RangeAllocator::new(5u32..5);
    assert!(empty.is_empty() && empty.allocate_range(1).is_err());
    empty.grow_to(9);
    assert_eq!((empty.allocate_range(4), empty.is_empty()), (Ok(5..9), false));
    empty.grow_to(5);
    assert_eq!(empty.initial_range(), &(5..9), "positions above are allocated");
    empty.free_range(6..9);
    empty.grow_to(6);
    assert_eq!((empty.initial_range(), empty.total_available()), (&(5..6), 0));
    // A length or an alignment below zero is an error here.
    let mut signed = ours::RangeAllocator::new(-9i8..100);
    assert!(signed.allocate_range(-1).is_err() && signed.allocate_range_aligned(1, -1).is_err());
    assert_eq!(signed.allocate_range_aligned(1, 8), Ok(-8..-7));
    // Of a longer range the lowest positions are allocated.
    let mut all = ours::RangeAllocator::new(0..u64::MAX);
    assert_eq!(all.allocate_range(1 << 51), Ok(0..1 << 51));
    assert_eq!(all.total_available(), u64::MAX - (1 << 51));
    assert!(all.allocate_range(1 << 51).is_err());
    assert!(all.allocated_ranges().eq(std::iter::once(0..1 << 51)));
    all.free_range(0..1 << 51);
    assert!(all.is_empty());
    let mut wide = ours::RangeAllocator::new(i128::MIN..i128::MAX);
    assert_eq!(wide.allocate_range(7), Ok(i128::MIN..i128::MIN + 7));
}

#[test]
fn an_allocator_can_be_sent_and_shared() {
    fn both<T: Send + Sync>(_: &T) {}
    both(&ours::RangeAllocator::new(0u8..9));
}
