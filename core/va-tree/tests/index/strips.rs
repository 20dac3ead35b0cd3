//! Small spaces drawn as strips, on every index: four fits, merges, failures. `.` free, `#` out, `a` the allocated
//! pages.

use va_base::{Align, AllocError, FreeError, Request, VaRange};
use va_sim::platform::HeapPlatform;
use va_sim::strip::{alloc, draw, lay};
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, Fit, FreeIndex, RbIndex};

/// First page of every strip: odd, so that alignment is of addresses and not of offsets.
const FIRST: u64 = 9;

fn range(from: u64, to: u64) -> VaRange {
    VaRange::from_pages(FIRST + from, FIRST + to).unwrap()
}

/// Runs `test` on a fresh index of each kind, which has the pages of `strip` and what it draws.
fn each(strip: &str, test: impl Fn(&mut dyn Strip)) {
    let all = range(0, strip.chars().count() as u64);
    let heap = HeapPlatform::default;
    let on = |mut index: Box<dyn Strip>| {
        index.lay(strip);
        test(&mut *index);
        index.check();
    };
    on(Box::new(RbIndex::<Linux, _>::new(all, all, heap()).unwrap()));
    on(Box::new(RbIndex::<Exact, _>::new(all, all, heap()).unwrap()));
    on(Box::new(BTree::<u64, 8, _>::new(all, all, heap()).unwrap()));
    on(Box::new(BTreeIndex::new(all, all, heap()).unwrap().with_rows().unwrap()));
    on(Box::new(BTreeIndex32::new(all, all, heap()).unwrap()));
}

/// The operations of a strip test on any index.
trait Strip {
    fn lay(&mut self, strip: &str);
    fn draw(&self) -> String;
    fn alloc(&mut self, pages: u64, align_pages: u64) -> String;
    fn take(&mut self, from: u64, to: u64) -> Result<Fit, AllocError>;
    fn back(&mut self, from: u64, to: u64) -> Result<(), FreeError>;
    fn check(&self);
}

impl<I: FreeIndex> Strip for I {
    fn lay(&mut self, strip: &str) {
        lay(self, strip);
    }
    fn draw(&self) -> String {
        self.validate().unwrap();
        draw(self)
    }
    fn alloc(&mut self, pages: u64, align_pages: u64) -> String {
        alloc(self, &Request::pages(pages).unwrap().aligned(Align::new(align_pages * 4096).unwrap()))
    }
    fn take(&mut self, from: u64, to: u64) -> Result<Fit, AllocError> {
        FreeIndex::take(self, range(from, to))
    }
    fn back(&mut self, from: u64, to: u64) -> Result<(), FreeError> {
        self.free(range(from, to))
    }
    fn check(&self) {
        self.validate().unwrap();
    }
}

#[test]
fn the_four_fits() {
    each("..####..", |index| {
        assert_eq!((index.take(0, 2), index.draw()), (Ok(Fit::Full), "######..".into()));
    });
    each("....##..", |index| {
        assert_eq!((index.take(0, 2), index.draw()), (Ok(Fit::LeftEdge), "##..##..".into()));
    });
    each("....##..", |index| {
        assert_eq!((index.take(2, 4), index.draw()), (Ok(Fit::RightEdge), "..####..".into()));
    });
    each("....##..", |index| {
        assert_eq!((index.take(1, 3), index.draw()), (Ok(Fit::NoEdge), ".##.##..".into()));
    });
}

#[test]
fn the_four_fits_of_the_hole_at_the_top() {
    each("##....", |index| assert_eq!((index.take(2, 6), index.draw()), (Ok(Fit::Full), "######".into())));
    each("##....", |index| {
        assert_eq!((index.take(2, 4), index.draw()), (Ok(Fit::LeftEdge), "####..".into()));
    });
    each("##....", |index| {
        assert_eq!((index.take(4, 6), index.draw()), (Ok(Fit::RightEdge), "##..##".into()));
    });
    each("##....", |index| assert_eq!((index.take(3, 5), index.draw()), (Ok(Fit::NoEdge), "##.##.".into())));
}

#[test]
fn lowest_fit_whatever_lies_above() {
    each(".#..#...#....", |index| assert_eq!(index.alloc(1, 1), "a#..#...#...."));
    each(".#..#...#....", |index| assert_eq!(index.alloc(2, 1), ".#aa#...#...."));
    each(".#..#...#....", |index| assert_eq!(index.alloc(3, 1), ".#..#aaa#...."));
    each(".#..#...#....", |index| assert_eq!(index.alloc(4, 1), ".#..#...#aaaa"));
}

#[test]
fn alignment_is_of_addresses() {
    // Pages 9 to 20: multiples of four at offsets 3, 7, 11.
    each("............", |index| assert_eq!(index.alloc(1, 4), "...a........"));
    each("............", |index| assert_eq!(index.alloc(5, 4), "...aaaaa...."));
    each("............", |index| assert_eq!(index.alloc(1, 1), "a..........."));
    each("............", |index| assert_eq!(index.alloc(1, 16), ".......a...."));
}

#[test]
fn what_comes_back_merges_with_what_it_touches() {
    for (strip, from, to, want) in [
        ("####aa####..", 4, 6, "####..####.."),
        ("####aa..##..", 4, 6, "####....##.."),
        ("##..aa####..", 4, 6, "##....####.."),
        ("##..aa..##..", 4, 6, "##......##.."),
        ("####aa......", 4, 6, "####........"),
        ("##..aa......", 4, 6, "##.........."),
        ("aaaaaaaaaaaa", 0, 12, "............"),
        ("##########aa", 10, 12, "##########.."),
        ("aa##########", 0, 2, "..##########"),
    ] {
        each(strip, |index| {
            assert_eq!(index.back(from, to), Ok(()), "{strip}");
            assert_eq!(index.draw(), want, "{strip}");
        });
    }
}

#[test]
fn what_is_not_free_is_not_taken() {
    each("..##..", |index| {
        for (from, to) in [(2, 4), (0, 3), (1, 3), (3, 5), (0, 6)] {
            assert_eq!(index.take(from, to), Err(AllocError::Occupied { range: range(from, to) }));
        }
        let extent = range(0, 6);
        assert_eq!(index.take(5, 7), Err(AllocError::BadRange { range: range(5, 7), extent }));
        assert_eq!(index.draw(), "..##..");
    });
}

#[test]
fn free_addresses_are_not_freed_again() {
    each("..####..##..", |index| {
        for (from, to, hole) in
            [(0, 1, (0, 2)), (1, 3, (0, 2)), (5, 7, (6, 8)), (2, 12, (6, 8)), (11, 12, (10, 12))]
        {
            let error = FreeError::AlreadyFree { range: range(from, to), hole: range(hole.0, hole.1) };
            assert_eq!(index.back(from, to), Err(error));
        }
        let extent = range(0, 12);
        assert_eq!(index.back(8, 13), Err(FreeError::BadRange { range: range(8, 13), extent }));
        assert_eq!(index.draw(), "..####..##..");
    });
}

#[test]
fn ft6_more_splits_than_areas_are_errors() {
    each(".aaaaaa.", |index| {
        // One area out: a free of an island would leave three holes and no area.
        assert_eq!(index.back(2, 3), Err(FreeError::TooManySplits { range: range(2, 3), live: 1 }));
        assert_eq!(index.draw(), ".######.");
        assert_eq!(index.back(1, 7), Ok(()));
        assert_eq!(index.draw(), "........");
    });
}
