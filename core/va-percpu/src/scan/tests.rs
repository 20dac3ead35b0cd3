//! Tests of the hints, step by step, and of wrong hints.

use super::*;
use crate::bitmap::{Word, words_for};
use std::vec;
use std::vec::Vec;

/// One chunk of eight pages.
struct Chunk<R> {
    map: Vec<Word>,
    blocks: Vec<Hints>,
    head: Hints,
    rules: PhantomData<R>,
}

const PAGES: u32 = 8;

impl<R: Rules> Chunk<R> {
    fn new() -> Self {
        let map = vec![Word(0); words_for(PAGES * PAGE_BITS) as usize];
        let blocks = vec![Hints::EMPTY; PAGES as usize];
        let mut chunk = Self { map, blocks, head: Hints::EMPTY, rules: PhantomData };
        ScanHints::<R>::reset(&mut chunk.view());
        chunk
    }

    fn view(&mut self) -> View<'_, ScanHints<R>> {
        const ALL: &[Word] = &[Word(u64::MAX)];
        View {
            map: &mut self.map,
            populated: ALL,
            blocks: &mut self.blocks,
            head: &mut self.head,
            pages: PAGES,
        }
    }

    fn take(&mut self, at: u32, bits: u32) -> u32 {
        let pages = ScanHints::<R>::take_at(&mut self.view(), at, bits);
        self.check();
        pages
    }

    fn free(&mut self, at: u32, bits: u32) -> u32 {
        let pages = ScanHints::<R>::free(&mut self.view(), at, bits).pages;
        self.check();
        pages
    }

    fn check(&mut self) {
        ScanHints::<R>::validate(&self.view()).unwrap();
    }

    fn broken(&mut self) -> &'static str {
        ScanHints::<R>::validate(&self.view()).unwrap_err().rule
    }
}

/// Returns `(contig, its start, scan, its start)`, the last `None` if there is no scan.
fn runs(hints: &Hints) -> (u32, u32, Option<(u32, u32)>) {
    (hints.contig, hints.contig_start, (hints.scan > 0).then_some((hints.scan, hints.scan_start)))
}

/// Checks the hints of a chunk of 32 KiB after each step, from the description of Linux's rules.
#[test]
fn ph1_hints_follow_the_rules_step_by_step() {
    let mut chunk = Chunk::<Corrected>::new();
    let mut spare = 8i32;
    for at in [0, 4, 8, 12] {
        spare -= chunk.take(at, 4) as i32;
    }
    assert_eq!(runs(&chunk.blocks[0]), (1008, 16, None));
    let edges = |hints: &Hints| (hints.left_free, hints.right_free, hints.first_free);
    assert_eq!((edges(&chunk.blocks[0]), spare), ((0, 1008, 16), 7));
    assert_eq!((runs(&chunk.head), chunk.head.first_free), ((8176, 16, None), 16));

    spare += chunk.free(4, 4) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].first_free), ((1008, 16, Some((4, 4))), 4));
    assert_eq!((runs(&chunk.head), chunk.head.first_free), ((8176, 16, Some((4, 4))), 4));

    spare += chunk.free(12, 4) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((1012, 12, None), 1012));
    assert_eq!(runs(&chunk.head), (8176, 16, Some((1012, 12))));

    spare -= chunk.take(12, 8) as i32;
    assert_eq!(runs(&chunk.blocks[0]), (1004, 20, Some((4, 4))));
    assert_eq!(runs(&chunk.head), (8172, 20, None));

    spare -= chunk.take(4, 2) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].first_free), ((1004, 20, None), 6));
    assert_eq!((runs(&chunk.head), chunk.head.first_free, spare), ((8172, 20, None), 6, 7));

    spare -= chunk.take(1000, 100) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((980, 20, Some((2, 6))), 0));
    assert_eq!((runs(&chunk.blocks[1]), edges(&chunk.blocks[1])), ((948, 76, None), (0, 948, 76)));
    assert_eq!((runs(&chunk.head), spare), ((7092, 1100, Some((980, 20))), 6));

    spare -= chunk.take(20, 980) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((2, 6, None), 0));
    assert_eq!((runs(&chunk.head), spare), ((7092, 1100, None), 6));

    spare += chunk.free(1000, 100) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((24, 1000, Some((2, 6))), 24));
    assert_eq!((runs(&chunk.blocks[1]), runs(&chunk.head), spare), ((1024, 0, None), (7192, 1000, None), 7));

    spare += chunk.free(20, 980) as i32;
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((1004, 20, None), 1004));
    // The longest run has 8172: one that spans pages is computed again only when a page becomes free.
    assert_eq!((runs(&chunk.head), spare), ((7192, 1000, Some((1004, 20))), 7));
}

/// Four-bit objects fill the chunk; 24 bits in a row are freed in its fourth page.
fn full_but_24_bits<R: Rules>() -> u32 {
    let mut chunk = Chunk::<R>::new();
    for at in (0..PAGES * PAGE_BITS).step_by(4) {
        chunk.take(at, 4);
    }
    assert_eq!(ScanHints::<R>::longest(&chunk.head), 0);
    for at in (3 * PAGE_BITS + 100..3 * PAGE_BITS + 124).step_by(4) {
        chunk.free(at, 4);
    }
    ScanHints::<R>::longest(&chunk.head)
}

#[test]
fn a_run_freed_behind_the_first_page_is_seen_where_the_rule_is_corrected() {
    assert_eq!((full_but_24_bits::<Corrected>(), full_but_24_bits::<AsInLinux>()), (24, 0));
}

#[test]
fn parts_that_are_switched_off_find_the_same_room_later() {
    macro_rules! rules {
        ($name:ident, $($off:ident),*) => {
            enum $name {}
            impl Rules for $name { $(const $off: bool = false;)* }
        };
    }
    rules!(NoScan, TRACK_SCAN, LEARN, FORWARD);
    rules!(NoLearning, LEARN);
    rules!(NoForward, FORWARD);
    fn fills<R: Rules>() -> u32 {
        let mut chunk = Chunk::<R>::new();
        let wants = [Want { bits: 4, align: 4 }, Want { bits: 5, align: 1 }];
        for (count, want) in (0..).zip(wants.into_iter().cycle()) {
            if !matches!(ScanHints::<R>::take(&mut chunk.view(), want, true), Fit::At { .. }) {
                return count;
            }
            chunk.check();
        }
        unreachable!("a chunk has an end");
    }
    let counts = [fills::<Corrected>(), fills::<NoScan>(), fills::<NoLearning>(), fills::<NoForward>()];
    // Two objects take 12 bits, since the second misaligns the next one; a fit may be missed near the end.
    assert!(counts.iter().all(|count| (1360..=1366).contains(count)), "{counts:?}");
}

#[test]
fn ph1_a_longest_run_that_is_used_is_seen() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(10, 10);
    chunk.blocks[0].contig_start = 15;
    assert_eq!(chunk.broken(), "PH1");
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(0, 1);
    chunk.head.contig += 1;
    assert_eq!(chunk.broken(), "PH1");
}

#[test]
fn ph2_a_run_before_it_that_is_used_is_seen() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(0, 30);
    chunk.free(4, 4);
    chunk.blocks[0].scan = 5;
    assert_eq!(chunk.broken(), "PH2");
}

#[test]
fn ph3_edges_that_are_used_are_seen() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(1000, 10);
    chunk.blocks[0].left_free += 1;
    assert_eq!(chunk.broken(), "PH3");
    chunk.blocks[0].left_free = 0;
    assert_eq!(chunk.broken(), "PH3");
    chunk.blocks[0].left_free = 1000;
    chunk.check();
    chunk.blocks[0].right_free = 15;
    assert_eq!(chunk.broken(), "PH3");

    // The edge is free, but longer than the longest run that is known.
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(20, 10);
    chunk.blocks[0].right_free = 30;
    (chunk.blocks[0].contig, chunk.blocks[0].contig_start) = (20, 0);
    assert_eq!(chunk.broken(), "PH3");
    chunk.blocks[0].right_free = 20;
    chunk.check();
}

/// Two runs of equal length, the first at the beginning of a page; a take from its middle breaks it.
fn cut_the_left_edge<R: Rules>() -> (u32, u32, u32) {
    let mut chunk = Chunk::<R>::new();
    chunk.take(8, 8);
    chunk.take(24, 1000);
    let hints = &chunk.blocks[0];
    assert_eq!((hints.contig, hints.contig_start, hints.scan, hints.scan_start), (8, 0, 8, 16));
    chunk.take(4, 2);
    let hints = &chunk.blocks[0];
    (hints.contig, hints.contig_start, hints.left_free)
}

#[test]
fn ph3_the_left_edge_of_a_page_is_cut_also_where_a_run_as_long_follows() {
    assert_eq!(cut_the_left_edge::<Corrected>(), (8, 16, 4));
    // Linux reads the page from the other run on, and leaves 8.
    assert_eq!(cut_the_left_edge::<AsInLinux>(), (8, 16, 8));
}

#[test]
fn ph4_something_free_below_the_first_free_is_seen() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(0, 10);
    chunk.blocks[0].first_free = 11;
    assert_eq!(chunk.broken(), "PH4");
    chunk.blocks[0].first_free = 10;
    chunk.head.first_free = 12;
    assert_eq!(chunk.broken(), "PH4");
}

/// A page's longest run and the one recorded before it, each with its start, then a free run and the page's runs
/// after it.
type Learned = ((u32, u32), (u32, u32), (u32, u32), (u32, u32), (u32, u32));

/// Linux's rules for a run that came free, case by case (`pcpu_block_update`, 6.12).
#[test]
fn a_free_run_changes_the_longest_and_the_one_before_it() {
    const CASES: &[Learned] = &[
        // Longer than the longest, before it, or the longest itself, which grew: nothing is known before it.
        ((10, 100), (4, 20), (60, 12), (12, 60), (0, 20)),
        ((10, 100), (4, 20), (100, 12), (12, 100), (0, 20)),
        // Longer, and behind it: the old longest is before it, unless `scan` is as long.
        ((10, 100), (4, 20), (200, 12), (12, 200), (10, 100)),
        ((10, 100), (10, 50), (200, 12), (12, 200), (10, 50)),
        ((10, 100), (10, 200), (200, 12), (12, 200), (10, 200)),
        ((10, 100), (10, 300), (200, 12), (12, 200), (0, 300)),
        // As long, and better aligned: it becomes the longest. `scan` must be before it, or as long.
        ((10, 100), (4, 20), (64, 10), (10, 64), (4, 20)),
        ((10, 100), (4, 64), (64, 10), (10, 64), (4, 64)),
        ((10, 100), (4, 80), (64, 10), (10, 64), (0, 80)),
        ((10, 100), (10, 80), (64, 10), (10, 64), (10, 80)),
        ((10, 100), (4, 20), (0, 10), (10, 0), (0, 20)),
        // As long, and not better aligned, or the longest begins the page: it is `scan`, where that tells more.
        ((10, 96), (4, 20), (204, 10), (10, 96), (10, 204)),
        ((10, 96), (4, 300), (204, 10), (10, 96), (10, 204)),
        ((10, 96), (10, 200), (204, 10), (10, 96), (10, 204)),
        ((10, 96), (10, 300), (204, 10), (10, 96), (10, 300)),
        ((10, 100), (4, 20), (204, 10), (10, 100), (10, 204)),
        ((10, 0), (4, 20), (64, 10), (10, 0), (10, 64)),
        // Shorter, before the longest: the longer one, of two as long the later one.
        ((10, 100), (4, 20), (60, 6), (10, 100), (6, 60)),
        ((10, 100), (4, 20), (60, 4), (10, 100), (4, 60)),
        ((10, 100), (4, 20), (10, 4), (10, 100), (4, 20)),
        ((10, 100), (4, 20), (60, 3), (10, 100), (4, 20)),
        // Shorter, and behind it, or at its start: no news.
        ((10, 100), (4, 20), (200, 6), (10, 100), (4, 20)),
        ((10, 100), (4, 20), (100, 6), (10, 100), (4, 20)),
    ];
    for &(contig, scan, (start, run), new_contig, new_scan) in CASES {
        let mut hints = Hints { first_free: 70, left_free: 3, right_free: 5, ..Hints::whole(PAGE_BITS) };
        ((hints.contig, hints.contig_start), (hints.scan, hints.scan_start)) = (contig, scan);
        hints.learn::<Corrected>(start, start + run);
        let seen = ((hints.contig, hints.contig_start), (hints.scan, hints.scan_start));
        assert_eq!(seen, (new_contig, new_scan), "{contig:?}, {scan:?}: {run} from {start} on");
        let left = if start == 0 { run } else { 3 };
        assert_eq!((hints.first_free, hints.left_free, hints.right_free), (start.min(70), left, 5));
    }
    let mut hints = Hints { first_free: 70, left_free: 3, right_free: 5, ..Hints::whole(PAGE_BITS) };
    hints.learn::<Corrected>(1000, PAGE_BITS);
    assert_eq!((hints.first_free, hints.left_free, hints.right_free), (70, 3, 24));
    // Linux computes an end before the start: the first free bit is all that is learned.
    let before = hints;
    hints.learn::<Corrected>(50, 40);
    assert_eq!(hints, Hints { first_free: 50, ..before });
}

#[test]
fn a_search_records_the_longest_run_that_it_skipped() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(0, 100);
    chunk.take(106, 94);
    chunk.take(210, PAGE_BITS - 210 - 6);
    chunk.take(PAGE_BITS + 4, 20);
    // Runs of 6, 10, and of 6 and 4 over the edge of a page.
    let find = |chunk: &mut Chunk<Corrected>, bits, from| {
        (chunk.blocks[0].scan, chunk.blocks[0].right_free) = (0, 0);
        let at = chunk.view().settle(Want { bits, align: 1 }, from).unwrap();
        (at, runs(&chunk.blocks[0]).2, chunk.blocks[0].right_free)
    };
    assert_eq!(find(&mut chunk, 8, 0), (200, Some((6, 100)), 0));
    assert_eq!(find(&mut chunk, 6, 100), (100, None, 0), "nothing was skipped");
    let edge = PAGE_BITS - 6;
    assert_eq!(
        find(&mut chunk, 12, edge),
        (PAGE_BITS + 24, None, 0),
        "over the edge: in the hints of no page"
    );
    chunk.take(PAGE_BITS, 4);
    assert_eq!(find(&mut chunk, 12, edge), (PAGE_BITS + 24, None, 6), "up to the edge");
}

#[test]
fn a_search_begins_behind_the_run_before_the_longest_if_that_is_too_short() {
    let from = |(scan, scan_start), bits| {
        let mut hints = Hints { first_free: 7, contig: 50, contig_start: 100, ..Hints::whole(PAGE_BITS) };
        (hints.scan, hints.scan_start) = (scan, scan_start);
        hints.look_from::<Corrected>(bits)
    };
    assert_eq!([from((20, 30), 21), from((20, 30), 20), from((20, 30), 19)], [50, 7, 7]);
    // None is known, or it is behind the longest.
    assert_eq!([from((0, 30), 21), from((20, 200), 21), from((20, 100), 21)], [7, 7, 7]);
}

#[test]
fn the_longest_run_of_a_chunk_is_replaced_by_the_one_before_it_alone() {
    let mut chunk = Chunk::<Corrected>::new();
    for at in (0..PAGES * PAGE_BITS).step_by(4) {
        chunk.take(at, 4);
    }
    for (at, bits) in [(2 * PAGE_BITS + 8, 32), (100, 20)] {
        (at..at + bits).step_by(4).for_each(|at| _ = chunk.free(at, 4));
    }
    let longest = (32, 2 * PAGE_BITS + 8, Some((20, 100)));
    assert_eq!(runs(&chunk.head), longest);
    chunk.take(2 * PAGE_BITS + 8, 32);
    assert_eq!(runs(&chunk.head), (20, 100, None));
}

#[test]
fn ph3_the_end_of_a_page_that_is_read_again_is_known_though_other_runs_are_longer() {
    let mut chunk = Chunk::<Corrected>::new();
    chunk.take(0, PAGE_BITS);
    for (at, bits) in [(100, 30), (200, 20), (PAGE_BITS - 10, 10)] {
        chunk.free(at, bits);
    }
    chunk.take(100, 30);
    assert_eq!((runs(&chunk.blocks[0]), chunk.blocks[0].right_free), ((20, 200, None), 10));
}

#[test]
fn a_longest_run_holds_what_fits_behind_its_first_aligned_bit() {
    let hints = Hints { contig: 10, contig_start: 6, ..Hints::whole(PAGE_BITS) };
    let holds = |bits, align| hints.holds(Want { bits, align });
    assert_eq!([holds(10, 1), holds(11, 1), holds(10, 2)], [true, false, true]);
    assert_eq!([holds(8, 8), holds(9, 8), holds(1, 16)], [true, false, false]);
}
