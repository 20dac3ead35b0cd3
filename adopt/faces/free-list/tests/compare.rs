//! Random operations on the original and on this crate: equal answers, except where a test says what differs.
#![expect(clippy::unwrap_used, reason = "a test that finds no value fails")]

#[path = "../../draws.rs"]
mod draws;

use draws::Draws;
use free_list as ours;
use original as theirs;

const PAGE: usize = ours::PAGE_SIZE;

/// A value of either crate as text: the types have the same names, and the same `Debug`.
fn text<T: std::fmt::Debug>(value: T) -> String {
    format!("{value:?}")
}

fn ranges(start: usize, pages: usize) -> (ours::PageRange, theirs::PageRange) {
    let end = start + pages * PAGE;
    (ours::PageRange::new(start, end).unwrap(), theirs::PageRange::new(start, end).unwrap())
}

fn compare(seed: u64, base: usize, pages: u64, steps: u32) {
    let mut draws = Draws::new(seed);
    let mut our = ours::FreeList::<16>::new();
    let mut their = theirs::FreeList::<16>::new();
    let (first, first_of_theirs) = ranges(base, pages as usize);
    // SAFETY: no memory is behind the pages.
    unsafe { our.deallocate(first).unwrap() };
    // SAFETY: the same.
    unsafe { their.deallocate(first_of_theirs).unwrap() };
    let mut live: Vec<(usize, usize)> = Vec::new();
    let (mut good, mut bad) = (0, 0);
    for step in 0..steps {
        let at = base + PAGE * draws.below(pages) as usize;
        let len = 1 + draws.below(9) as usize;
        if !live.is_empty() && draws.below(100) < 45 {
            // An area, a part of one, or pages that may be free.
            let (mut start, mut len) = match draws.below(10) {
                0 => (at, len),
                _ => live.swap_remove(draws.below(live.len() as u64) as usize),
            };
            if len > 1 && draws.below(5) == 0 {
                live.push((start, 1));
                (start, len) = (start + PAGE, len - 1);
            }
            let (ours, theirs) = ranges(start, len);
            // SAFETY: no memory is behind the pages.
            let freed = unsafe { our.deallocate(ours) };
            // SAFETY: the same.
            assert_eq!(text(freed), text(unsafe { their.deallocate(theirs) }), "{step}: {ours}");
            continue;
        }
        let align = PAGE << draws.below(6);
        let size = if draws.below(40) == 0 { 0 } else { len * PAGE };
        let layout = ours::PageLayout::from_size_align(size, align).unwrap();
        let layout_of_theirs = theirs::PageLayout::from_size_align(size, align).unwrap();
        let (outside, outside_of_theirs) = ranges(at, 1 + draws.below(pages / 2) as usize);
        let taken = match draws.below(5) {
            0 => {
                let (ours, theirs) = ranges(at, len);
                let taken = our.allocate_at(ours);
                assert_eq!(text(&taken), text(their.allocate_at(theirs)), "{step}: {ours}");
                taken.map(|()| ours)
            }
            1 => {
                let taken = our.allocate_outside_of(layout, outside);
                let theirs = their.allocate_outside_of(layout_of_theirs, outside_of_theirs);
                assert_eq!(text(&taken), text(theirs), "{step}: {layout:?} outside of {outside}");
                taken
            }
            2 => {
                let limit = at;
                let taken = our.allocate_with(|free| free.fit(layout).filter(|fit| fit.start() >= limit));
                let theirs =
                    their.allocate_with(|free| free.fit(layout_of_theirs).filter(|fit| fit.start() >= limit));
                assert_eq!(text(&taken), text(theirs), "{step}: {layout:?} above {limit:#x}");
                taken
            }
            _ => {
                let taken = our.allocate(layout);
                assert_eq!(text(&taken), text(their.allocate(layout_of_theirs)), "{step}: {layout:?}");
                taken
            }
        };
        match taken {
            Ok(range) => {
                live.push((range.start(), range.pages().get()));
                good += 1;
            }
            Err(_) => bad += 1,
        }
        assert_eq!(our.free_space(), their.free_space());
        if step.is_multiple_of(64) {
            assert_eq!(text(our.iter().collect::<Vec<_>>()), text(their.iter().collect::<Vec<_>>()));
            assert_eq!(our.to_string(), their.to_string());
        }
    }
    assert!(good > steps / 10 && bad > steps / 100, "{good} good, {bad} bad: too one-sided");
}

#[test]
fn answers_of_lists_are_equal() {
    for seed in 0..8 {
        compare(seed, 0, 400, 3000);
        compare(seed, 0xffff_8000_0000_0000, 3000, 3000);
        compare(seed, 0usize.wrapping_sub(1000 * PAGE), 600, 3000);
    }
}

/// All pairs of small ranges, in all operations.
#[test]
fn answers_of_ranges_are_equal() {
    let all: Vec<_> = (0..6).flat_map(|start| (1..6).map(move |len| ranges(start * PAGE, len))).collect();
    for &(a, a_of_theirs) in &all {
        assert_eq!((a.to_string(), format!("{a:#}")), (a_of_theirs.to_string(), format!("{a_of_theirs:#}")));
        for &(b, b_of_theirs) in &all {
            let ours = (a.overlaps(b), a.touches(b), a.contains(b), a.partial_cmp(&b));
            let theirs = (
                a_of_theirs.overlaps(b_of_theirs),
                a_of_theirs.touches(b_of_theirs),
                a_of_theirs.contains(b_of_theirs),
                a_of_theirs.partial_cmp(&b_of_theirs),
            );
            assert_eq!(ours, theirs);
            assert_eq!(
                text((a + b, a.and(b))),
                text((a_of_theirs + b_of_theirs, a_of_theirs.and(b_of_theirs)))
            );
            let ours = match a - b {
                ours::PageRangeSub::None => vec![],
                ours::PageRangeSub::One(range) => vec![range],
                ours::PageRangeSub::Two(below, above) => vec![below, above],
            };
            let theirs = match a_of_theirs - b_of_theirs {
                theirs::PageRangeSub::None => vec![],
                theirs::PageRangeSub::One(range) => vec![range],
                theirs::PageRangeSub::Two(below, above) => vec![below, above],
            };
            assert_eq!(text(ours), text(theirs));
        }
    }
}

#[test]
fn answers_of_constructors_are_equal() {
    let numbers = [0, 1, 0x1000, 0x1001, 0x3000, 0x8000, 1 << 62, 1 << 63, usize::MAX - 0xfff, usize::MAX];
    for a in numbers {
        for b in numbers {
            assert_eq!(text(ours::PageRange::new(a, b)), text(theirs::PageRange::new(a, b)));
            let len = (ours::PageRange::from_start_len(a, b), theirs::PageRange::from_start_len(a, b));
            assert_eq!(text(len.0), text(len.1));
            let containing = (ours::PageRange::containing(a, b), theirs::PageRange::containing(a, b));
            assert_eq!(text(containing.0), text(containing.1));
            let layouts =
                (ours::PageLayout::from_size_align(a, b), theirs::PageLayout::from_size_align(a, b));
            assert_eq!(text(&layouts.0), text(&layouts.1));
            if let (Ok(ours), Ok(theirs)) = layouts {
                let (range, range_of_theirs) = ranges(0x3000, 5);
                assert_eq!(text(range.fit(ours)), text(range_of_theirs.fit(theirs)));
            }
        }
    }
}

/// A function that returns pages outside of the free range gets an error here. The original returns these pages.
#[test]
fn a_function_that_answers_with_other_pages_differs() {
    let mut our = ours::FreeList::<4>::new();
    let mut their = theirs::FreeList::<4>::new();
    let (free, free_of_theirs) = ranges(0x1000, 1);
    let (other, other_of_theirs) = ranges(0x8000, 1);
    // SAFETY: no memory is behind the pages.
    unsafe { our.deallocate(free).unwrap() };
    // SAFETY: the same.
    unsafe { their.deallocate(free_of_theirs).unwrap() };
    assert!(our.allocate_with(|_| Some(other)).is_err());
    assert!(their.allocate_with(|_| Some(other_of_theirs)).is_ok(), "pages that the list never had");
    assert_eq!((our.free_space(), their.free_space()), (0x1000, 0x1000));
    // Pages of another free range.
    // SAFETY: no memory is behind the pages.
    unsafe { our.deallocate(other).unwrap() };
    assert!(our.allocate_with(|range| (range == free).then_some(other)).is_err());
    assert_eq!(our.free_space(), 0x2000);
}

#[test]
fn a_list_can_be_sent_and_shared() {
    fn both<T: Send + Sync>(_: T) {}
    both(ours::FreeList::<16>::new());
}
