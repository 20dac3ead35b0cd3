//! The index of bytes: the answers of the model of pages, with a page for each number, up to the end of all numbers.

use va_base::{Align, AllocError, Heap, NoSlabs, Pages, Request, RequestError, Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::ModelIndex;
use va_sim::op::Rng;
use va_tree::{BestFitIndex, ByteIndex, Fit, FreeIndex, TrackedIndex, Unit};

fn numbers(first: u64, end: u64) -> VaRange {
    VaRange::try_from(first..end).unwrap()
}

fn ask(count: u64, align_log2: u32) -> Request {
    Request::units(count, 1 << align_log2).unwrap()
}

/// The numbers of an index, and the pages of its model: a number is `shift` more than its page, a multiple of 2^51.
#[derive(Clone, Copy)]
struct Both {
    shift: u64,
    first: u64,
    end: u64,
}

impl Both {
    fn numbers(self) -> VaRange {
        numbers(self.shift + self.first, self.shift + self.end)
    }

    fn pages(self) -> VaRange {
        VaRange::from_pages(self.first, self.end).unwrap()
    }

    fn as_pages(self, range: VaRange) -> VaRange {
        VaRange::from_pages(range.start().get() - self.shift, range.end().get() - self.shift).unwrap()
    }

    fn same_holes(self, index: &impl FreeIndex, model: &ModelIndex) {
        index.validate().unwrap();
        assert!(index.holes().map(|hole| self.as_pages(hole)).eq(model.holes()));
        assert!(index.taken().map(|range| self.as_pages(range)).eq(model.taken()));
        let counts = |index: &dyn Fn() -> (u64, Pages, Pages, u64)| index();
        assert_eq!(
            counts(&|| (index.live(), index.free_pages(), index.largest_hole(), index.hole_count())),
            counts(&|| (model.live(), model.free_pages(), model.largest_hole(), model.hole_count()))
        );
        for hole in index.holes() {
            for at in [hole.start().get(), hole.end().get() - 1, hole.end().get()] {
                let page = Va::from_page(at - self.shift);
                let at = Va::new(at);
                let same = |a: Option<VaRange>, b| assert_eq!(a.map(|hole| self.as_pages(hole)), b, "{at}");
                same(index.hole_after(at), model.hole_after(page));
                same(index.hole_below(at), model.hole_below(page));
                for size in [1, 3, 8].map(Pages::new) {
                    same(index.fit_below(at, size), model.fit_below(page, size));
                    let found = index.aligned_fit_below(at, size, Align::new(8).unwrap());
                    same(found, model.aligned_fit_below(page, size, Align::new(8 << 12).unwrap()));
                }
            }
        }
    }

    /// Makes random calls on both.
    fn compare<I: FreeIndex>(self, mut index: I, seed: u64) -> I {
        assert_eq!((index.unit(), index.extent()), (Unit::BYTE, self.numbers()));
        let mut model = ModelIndex::new(self.pages(), self.pages()).unwrap();
        let (mut rng, mut areas) = (Rng::new(seed), Vec::new());
        let (mut met, mut failed) = (0, 0);
        for round in 0..1500 {
            // The end is drawn as often as all others together.
            let number = |rng: &mut Rng| match rng.below(4) {
                0 => self.end - rng.below(9),
                1 => self.first + rng.below(9),
                _ => self.first + rng.below(self.end - self.first),
            };
            let (a, b) = (number(&mut rng), number(&mut rng));
            let (low, high) = (a.min(b), a.max(b));
            match rng.below(9) {
                0..=5 => {
                    let log2 = [0, 0, 0, 1, 3, 6, 18, 19, 40, 51][rng.below(10) as usize];
                    let size = 1 + rng.below(12);
                    let (mut by_number, mut by_page) =
                        (ask(size, log2), ask(size, 0).aligned(Align::from_log2(log2 + 12).unwrap()));
                    if rng.below(2) == 0 {
                        by_number = by_number.within(numbers(self.shift + low, self.shift + high));
                        by_page = by_page.within(VaRange::from_pages(low, high).unwrap());
                    }
                    let (got, expected) = match rng.below(4) {
                        3 => (index.alloc_ample(&by_number), model.alloc_ample(&by_page)),
                        0 => (index.alloc(&by_number), model.alloc(&by_page)),
                        1 => (index.alloc_highest(&by_number), model.alloc_highest(&by_page)),
                        _ => (index.alloc_best(&by_number), model.alloc_best(&by_page)),
                    };
                    let page = expected.map(|at| at.page_floor() + self.shift);
                    assert_eq!(got.ok().map(Va::get), page.ok(), "{by_number:?}");
                    if let Ok(at) = got {
                        areas.push(VaRange::from_size(at, size).unwrap());
                        met += 1;
                    } else {
                        failed += 1;
                    }
                }
                6 => {
                    let range = numbers(self.shift + low, self.shift + high.min(low + 9));
                    let got = index.take(range);
                    let expected = model.take(VaRange::from_pages(low, high.min(low + 9)).unwrap());
                    assert_eq!(got.ok(), expected.ok(), "{range:?}");
                    if got.is_ok() {
                        areas.push(range);
                    }
                }
                _ if areas.is_empty() => {}
                _ => {
                    let area = areas.swap_remove(rng.below(areas.len() as u64) as usize);
                    assert_eq!((index.free(area), model.free(self.as_pages(area))), (Ok(()), Ok(())));
                    assert!(index.free(area).is_err());
                }
            }
            if round % 25 == 0 {
                self.same_holes(&index, &model);
            }
        }
        assert!(met > 300 && failed > 20, "{met} {failed}");
        for area in areas {
            assert_eq!(index.free(area), Ok(()));
        }
        assert!(index.holes().eq([self.numbers()]));
        index
    }
}

#[test]
fn bytes_have_the_answers_of_pages_at_both_ends_of_all_numbers() {
    let top = Both { shift: u64::MAX - (1 << 51) + 1, first: (1 << 51) - 3000, end: (1 << 51) - 1 };
    let bottom = Both { shift: 0, first: 0, end: 3000 };
    let middle = Both { shift: 1 << 63, first: 5, end: 3001 };
    for (both, seed) in
        [top, bottom, middle].into_iter().flat_map(|both| (0..some(5)).map(move |seed| (both, seed)))
    {
        let fresh = || ByteIndex::new(both.numbers(), both.numbers(), Heap).unwrap();
        both.compare(Certified::new(fresh()), seed);
        both.compare(Certified::new(fresh().with_rows().unwrap()), seed);
        both.compare(Certified::new(BestFitIndex::new(fresh(), Heap).unwrap()), seed);
    }
}

#[test]
fn all_numbers_but_the_last_are_in_an_extent() {
    const MAX: u64 = u64::MAX;
    let fresh = || ByteIndex::new(VaRange::ALL, VaRange::ALL, NoSlabs).unwrap();
    let mut index = fresh();
    assert_eq!((index.free_pages().get(), index.largest_hole().get()), (MAX, MAX));
    assert_eq!(index.hole_below(Va::MAX), Some(VaRange::ALL));
    assert_eq!((index.hole_after(Va::new(MAX - 1)), index.hole_after(Va::MAX)), (Some(VaRange::ALL), None));
    assert_eq!(index.alloc_highest(&ask(1, 0)), Ok(Va::new(MAX - 1)));
    assert_eq!(index.alloc_highest(&ask(1, 1)), Ok(Va::new(MAX - 3)));
    assert_eq!(index.alloc_highest(&ask(1, 63)), Ok(Va::new(1 << 63)));
    assert_eq!(index.alloc(&ask(1, 63)), Ok(Va::ZERO));
    // Nothing is left that is so aligned: the next multiple would be 2^64.
    assert!(index.alloc(&ask(1, 63)).is_err() && index.alloc_best(&ask(1, 63)).is_err());
    assert!(index.alloc_highest(&ask(1, 63)).is_err());
    assert_eq!(index.free(numbers(MAX - 1, MAX)), Ok(()));
    index.validate().unwrap();
    // Windows at the end.
    for (low, high, log2, at) in [
        (MAX - 1, MAX, 0, Some(MAX - 1)),
        (MAX - 1, MAX, 1, Some(MAX - 1)),
        (MAX - 1, MAX, 2, None),
        (MAX, MAX, 0, None),
        (MAX - 3, MAX, 1, Some(MAX - 1)),
    ] {
        let request = ask(1, log2).within(numbers(low, high));
        assert_eq!(index.would_fit(&request).ok(), at.map(Va::new), "{low} {log2}");
        assert_eq!(index.best_fit(&request).ok(), at.map(Va::new), "{low} {log2}");
        assert_eq!(index.highest_fit(&request).ok(), at.map(Va::new), "{low} {log2}");
    }
    // Halves of everything, and a request of the largest size.
    let mut index = fresh();
    assert_eq!(index.take(numbers(1 << 63, MAX)), Ok(Fit::RightEdge));
    assert_eq!(index.take(numbers(0, 1 << 63)), Ok(Fit::Full));
    assert_eq!(index.holes().count(), 0);
    assert!(index.alloc(&ask(1, 0)).is_err());
    assert_eq!(index.free(numbers(0, 1 << 63)), Ok(()));
    assert_eq!(index.alloc_highest(&ask((1 << 52) - 1, 0)), Ok(Va::new((1 << 63) - (1 << 52) + 1)));
    assert_eq!(index.free(numbers(1 << 63, MAX)), Ok(()));
    index.validate().unwrap();
    let copy = va_tree::InPlace::try_clone(&index, NoSlabs).unwrap();
    assert_eq!(copy, index);
    assert_eq!(Request::units(1 << 52, 1), Err(RequestError::TooManyPages { pages: 1 << 52 }));
    assert_eq!(Request::units(1, 3), Err(RequestError::BadAlign { align_bytes: 3 }));
    assert!(Request::units(0, 1).is_err());
    assert!(matches!(index.take(numbers(MAX, MAX)), Err(AllocError::BadRange { .. })));
    assert!(ByteIndex::new(numbers(MAX, MAX), VaRange::ALL, NoSlabs).is_err());
    assert!(ByteIndex::new(numbers(MAX - 1, MAX), VaRange::ALL, NoSlabs).is_ok());
}

#[test]
fn an_ample_hole_has_less_than_2_to_the_52_numbers() {
    for log2 in [1, 40, 51, 52, 53, 59, 63] {
        let mut index = ByteIndex::new(VaRange::ALL, VaRange::ALL, Heap).unwrap();
        // One hole of three numbers, with a multiple in the middle, and a long one above.
        let multiple = 1u64 << log2;
        index.take(numbers(0, multiple - 1)).unwrap();
        index.take(numbers(multiple + 2, multiple + (1 << 61))).unwrap();
        let request = ask(1, log2);
        let passes_it = (2..52).contains(&log2);
        let at = if passes_it { multiple + (1 << 61) } else { multiple };
        assert_eq!(index.ample_fit(&request).ok(), Some(Va::new(at)), "{log2}");
        assert_eq!(index.alloc_ample(&request), Ok(Va::new(at)), "{log2}");
        index.validate().unwrap();
    }
}

#[test]
fn ti1_areas_of_bytes_are_known_up_to_the_end() {
    let all = numbers(u64::MAX - 100, u64::MAX);
    let mut index = TrackedIndex::new(ByteIndex::new(all, all, Heap).unwrap(), Heap);
    let top = index.alloc_highest(&ask(7, 0)).unwrap();
    assert_eq!(top, numbers(u64::MAX - 7, u64::MAX));
    assert_eq!(index.shrink_to(top.start(), Pages::new(5)), Ok(numbers(u64::MAX - 7, u64::MAX - 2)));
    assert_eq!(index.grow_to(top.start(), Pages::new(7)), Ok(top));
    assert!(index.grow_to(top.start(), Pages::new(8)).is_err());
    assert_eq!(index.free_any(numbers(u64::MAX - 3, u64::MAX - 1)), Ok(Pages::new(2)));
    assert!(index.areas().eq([numbers(u64::MAX - 7, u64::MAX - 3), numbers(u64::MAX - 1, u64::MAX)]));
    assert_eq!(index.free(Va::new(u64::MAX - 1)), Ok(numbers(u64::MAX - 1, u64::MAX)));
    let odd = index.alloc_best(&ask(3, 0)).unwrap();
    assert_eq!(odd, numbers(u64::MAX - 3, u64::MAX));
    index.validate().unwrap();
    assert_eq!(index.try_clone(Heap).unwrap(), index);
}

#[test]
fn congruent_areas_of_bytes_have_their_sizes() {
    let all = numbers(1, 1 << 20);
    let mut index = ByteIndex::new(all, all, Heap).unwrap();
    let areas = [(0, 8192), (1 << 16, 4096)];
    let request = va_tree::Congruent::new(&areas, 4096).unwrap();
    assert_eq!(request.window(), None, "the default window");
    let (window, no_align) = (numbers(4096, 1 << 18), va_tree::Congruent::new(&areas, 1).unwrap());
    let within = no_align.within(window);
    assert_eq!((within.window(), within.areas(), within.align()), (Some(window), &areas[..], Align::PAGE));
    let wide = va_tree::Congruent::new(&areas[..1], 8192).unwrap();
    assert_eq!(wide.align(), Align::new(8192).unwrap());
    assert_eq!((within.pages(), within.span_bytes()), (Pages::new(3), (1 << 16) + 4096));
    assert_eq!(index.find_congruent(&within), Ok(Va::new((1 << 18) - (1 << 16) - 4096)));
    // As low as the window begins, and no lower.
    let at_8192 = numbers(8192, 8192 + request.span_bytes());
    assert_eq!(index.find_congruent(&request.within(at_8192)), Ok(Va::new(8192)));
    assert!(index.find_congruent(&request.within(numbers(8193, 12_288 + request.span_bytes() - 1))).is_err());
    let base = index.alloc_congruent(&request).unwrap().get();
    assert_eq!(base, (1 << 20) - (1 << 16) - 4096);
    assert!(index.taken().eq([numbers(base, base + 8192), numbers((1 << 20) - 4096, 1 << 20)]));
    index.validate().unwrap();
}
