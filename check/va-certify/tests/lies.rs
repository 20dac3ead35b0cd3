//! A certificate that is wrong in any way is not accepted: one test for each kind of lie, and all certificates of a
//! small space.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_certify::{Bound, Checker, Fit, Lie, Request, Run};

/// Units 10 to 29: taken are `[13, 15)`, `[19, 20)` and `[27, 30)`; holes are `[10, 13)`, `[15, 19)`, `[20, 27)`.
fn checker() -> Checker {
    let mut checker = Checker::new(10, 30);
    checker.take((13, 15), (10, 30), [Some((10, 13)), Some((15, 30))]).unwrap();
    checker.take((19, 20), (15, 30), [Some((15, 19)), Some((20, 30))]).unwrap();
    checker.take((27, 30), (20, 30), [Some((20, 27)), None]).unwrap();
    checker.counts((3, 14, 7)).unwrap();
    checker
}

fn ask(size: u64, align_log2: u32, fit: Fit) -> Request {
    Request { size, align_log2, low: 0, high: 100, fit }
}

fn at_most(low: u64, high: u64, longest: u64) -> Bound {
    Bound::AtMost { low, high, longest, align_log2: 0 }
}

fn whole(low: u64, high: u64) -> Bound {
    Bound::Hole { low, high, hole: (low, high) }
}

#[test]
fn the_truth_is_accepted() {
    let checker = checker();
    let lowest = ask(4, 0, Fit::Lowest);
    checker.fits(&lowest, 15, (15, 19), &[at_most(10, 15, 3), at_most(15, 18, 3)]).unwrap();
    checker.fits(&lowest, 15, (15, 19), &[at_most(10, 18, 3)]).unwrap();
    let highest = ask(4, 0, Fit::Highest);
    checker.fits(&highest, 23, (20, 27), &[at_most(24, 30, 3)]).unwrap();
    let best = ask(3, 1, Fit::Best);
    let aligned = Bound::AtMost { low: 13, high: 15, longest: 0, align_log2: 1 };
    let bounds =
        [whole(10, 13), aligned, whole(15, 19), at_most(19, 20, 0), whole(20, 27), at_most(27, 30, 0)];
    checker.fits(&best, 10, (10, 13), &bounds).unwrap();
    checker.fits_nowhere(&ask(8, 0, Fit::Lowest), &[at_most(10, 30, 7)]).unwrap();
    // A window that is outside, or empty, needs no reason.
    checker.fits_nowhere(&Request { low: 40, ..lowest }, &[]).unwrap();
    checker.fits_nowhere(&Request { low: 20, high: 15, ..lowest }, &[]).unwrap();
}

#[test]
fn an_answer_outside_the_window_or_the_space_is_not_accepted() {
    let checker = checker();
    let window = Request { low: 16, high: 22, ..ask(3, 0, Fit::Lowest) };
    let outside = |request: &Request, at, hole| {
        assert!(matches!(checker.fits(request, at, hole, &[]), Err(Lie::Outside { .. })), "{at}");
    };
    outside(&window, 15, (15, 19));
    outside(&window, 20, (20, 27));
    outside(&ask(3, 0, Fit::Lowest), 30, (30, 40));
    outside(&ask(3, 0, Fit::Lowest), 8, (8, 13));
    outside(&ask(3, 0, Fit::Lowest), u64::MAX, (20, 27));
    // Nothing is no area.
    outside(&ask(0, 0, Fit::Lowest), 10, (10, 13));
}

#[test]
fn a_misaligned_answer_is_not_accepted() {
    let lie = checker().fits(&ask(3, 2, Fit::Lowest), 15, (15, 19), &[at_most(10, 17, 2)]);
    assert_eq!(lie, Err(Lie::Misaligned { at: 15, align_log2: 2 }));
    assert!(checker().fits(&ask(3, 64, Fit::Lowest), 20, (20, 27), &[]).is_err());
    assert!(checker().fits_nowhere(&ask(3, 64, Fit::Lowest), &[at_most(10, 30, 2)]).is_err());
}

#[test]
fn an_answer_over_a_live_area_is_not_accepted() {
    for (at, size) in [(12, 2), (13, 1), (13, 2), (14, 3), (10, 17), (18, 3), (29, 1)] {
        let lie = checker().fits(&ask(size, 0, Fit::Lowest), at, (10, 30), &[at_most(10, at + size - 1, 0)]);
        assert_eq!(lie, Err(Lie::Overlap { answer: (at, at + size) }));
        let mut checker = checker();
        assert!(matches!(checker.take((at, at + size), (10, 30), [None; 2]), Err(Lie::Overlap { .. })));
        checker.counts((3, 14, 7)).unwrap();
    }
}

#[test]
fn a_wrong_hole_is_not_accepted() {
    let bounds = [at_most(10, 15, 3), at_most(15, 18, 3)];
    for hole in [(15, 20), (14, 19), (16, 19), (15, 18), (10, 13), (0, 0)] {
        let lie = checker().fits(&ask(4, 0, Fit::Lowest), 15, hole, &bounds);
        assert_eq!(lie, Err(Lie::WrongHole { claimed: Some(hole), hole: Some((15, 19)) }));
        assert!(checker().take((15, 16), hole, [None, Some((16, hole.1.max(17)))]).is_err());
    }
}

#[test]
fn an_answer_that_is_not_the_lowest_highest_or_best_is_not_accepted() {
    let checker = checker();
    // A lower one in a lower hole, and in the same hole; the bounds are as true as they can be.
    let lowest = ask(3, 0, Fit::Lowest);
    let lower_hole = [at_most(10, 15, 3), at_most(15, 17, 2)];
    assert!(matches!(checker.fits(&lowest, 15, (15, 19), &lower_hole), Err(Lie::Permits { .. })));
    let claimed = [whole(10, 13), at_most(13, 17, 2)];
    assert!(matches!(checker.fits(&lowest, 15, (15, 19), &claimed), Err(Lie::Permits { .. })));
    assert!(matches!(checker.fits(&ask(2, 0, Fit::Lowest), 11, (10, 13), &[]), Err(Lie::Gap { .. })));
    let same = [at_most(10, 12, 2)];
    assert!(matches!(checker.fits(&ask(2, 0, Fit::Lowest), 11, (10, 13), &same), Err(Lie::Permits { .. })));
    // Higher ones.
    let highest = ask(3, 0, Fit::Highest);
    let same = [at_most(24, 30, 3)];
    assert!(matches!(checker.fits(&highest, 23, (20, 27), &same), Err(Lie::Permits { .. })));
    // A smaller hole, an equal one below, and a lower address in the hole.
    let best = ask(3, 0, Fit::Best);
    let all = [whole(10, 13), at_most(13, 15, 0), whole(15, 19), at_most(19, 20, 0), whole(20, 27)];
    let all = [&all[..], &[at_most(27, 30, 0)]].concat();
    checker.fits(&best, 10, (10, 13), &all).unwrap();
    assert_eq!(checker.fits(&best, 15, (15, 19), &all), Err(Lie::Permits { bound: whole(10, 13) }));
    assert_eq!(checker.fits(&best, 20, (20, 27), &all), Err(Lie::Permits { bound: whole(10, 13) }));
    let other = Request { low: 14, ..best };
    let all = [&[at_most(14, 15, 0)], &all[2..]].concat();
    assert_eq!(checker.fits(&other, 16, (15, 19), &all), Err(Lie::Permits { bound: whole(15, 19) }));
    let mut checker = Checker::new(0, 10);
    checker.take((4, 6), (0, 10), [Some((0, 4)), Some((6, 10))]).unwrap();
    let equal = [whole(0, 4), at_most(4, 6, 0), whole(6, 10)];
    assert_eq!(checker.fits(&best, 6, (6, 10), &equal), Err(Lie::Permits { bound: whole(0, 4) }));
}

#[test]
fn a_bound_that_is_too_small_is_not_accepted() {
    let lie =
        checker().fits(&ask(3, 0, Fit::Lowest), 15, (15, 19), &[at_most(10, 15, 2), at_most(15, 17, 2)]);
    assert_eq!(lie, Err(Lie::TooSmall { bound: at_most(10, 15, 2), run: (10, 13) }));
    let lie = checker().fits_nowhere(&ask(5, 0, Fit::Lowest), &[at_most(10, 20, 4), at_most(20, 30, 4)]);
    assert_eq!(lie, Err(Lie::TooSmall { bound: at_most(20, 30, 4), run: (20, 27) }));
    // One of aligned runs, which is true of its own alignment but proves nothing about a smaller one.
    let bound = Bound::AtMost { low: 10, high: 13, longest: 1, align_log2: 2 };
    let rest = [bound, at_most(13, 30, 2)];
    assert_eq!(checker().fits_nowhere(&ask(3, 1, Fit::Lowest), &rest), Err(Lie::Permits { bound }));
    let bound = Bound::AtMost { low: 20, high: 30, longest: 6, align_log2: 2 };
    let lie = checker().fits_nowhere(&ask(7, 2, Fit::Lowest), &[at_most(10, 20, 4), bound]);
    assert_eq!(lie, Err(Lie::TooSmall { bound, run: (20, 27) }));
}

#[test]
fn a_gap_in_a_cover_is_not_accepted() {
    let checker = checker();
    let nothing = ask(5, 0, Fit::Lowest);
    let gap =
        |bounds: &[Bound]| assert!(matches!(checker.fits_nowhere(&nothing, bounds), Err(Lie::Gap { .. })));
    // The hole of seven is left out: in the middle, at the end, at the beginning; and a cover that goes back.
    gap(&[at_most(10, 20, 4), at_most(27, 30, 0)]);
    gap(&[at_most(10, 20, 4)]);
    gap(&[]);
    gap(&[at_most(27, 30, 0)]);
    gap(&[at_most(10, 20, 4), at_most(10, 20, 4), at_most(27, 30, 0)]);
    gap(&[at_most(10, 20, 4), at_most(20, 20, 0), at_most(30, 30, 0)]);
    gap(&[at_most(10, 20, 4), at_most(20, 31, 0)]);
    gap(&[at_most(30, 10, 0)]);
    // Only a part of a hole is shown.
    let best = ask(5, 0, Fit::Best);
    let part = Bound::Hole { low: 20, high: 24, hole: (20, 27) };
    let bounds = [at_most(10, 20, 4), part, at_most(24, 30, 3)];
    assert!(matches!(checker.fits(&best, 20, (20, 27), &bounds), Err(Lie::Gap { .. })));
}

#[test]
fn bounds_that_meet_inside_a_hole_are_not_accepted() {
    // Each half of the hole of seven has less than five, and each claim is true.
    let bounds = [at_most(10, 20, 4), at_most(20, 24, 4), at_most(24, 30, 3)];
    let lie = checker().fits_nowhere(&ask(5, 0, Fit::Lowest), &bounds);
    assert_eq!(lie, Err(Lie::Straddled { at: 24 }));
}

#[test]
fn a_hole_that_is_not_there_is_not_accepted() {
    let best = ask(5, 0, Fit::Best);
    for hole in [(20, 28), (19, 27), (21, 27), (27, 30)] {
        let wrong = Bound::Hole { low: 20, high: 27, hole };
        let bounds = [at_most(10, 20, 4), wrong, at_most(27, 30, 0)];
        let lie = checker().fits(&best, 20, (20, 27), &bounds);
        assert_eq!(lie, Err(Lie::WrongHole { claimed: Some(hole), hole: Some((20, 27)) }));
    }
}

#[test]
fn a_wrong_rest_is_not_accepted() {
    for rests in [[None, Some((18, 19))], [Some((15, 16)), None], [Some((15, 17)), Some((18, 19))], [None; 2]]
    {
        let mut checker = checker();
        let lie = checker.take((16, 18), (15, 19), rests);
        assert!(matches!(lie, Err(Lie::WrongHole { .. })), "{rests:?}");
        checker.counts((3, 14, 7)).unwrap();
    }
    checker().take((16, 18), (15, 19), [Some((15, 16)), Some((18, 19))]).unwrap();
}

#[test]
fn a_free_of_what_is_not_allocated_is_not_accepted() {
    for (range, hole) in
        [((10, 11), (10, 13)), ((12, 14), (10, 13)), ((14, 16), (15, 19)), ((13, 20), (15, 19))]
    {
        let lie = checker().free(range, [None; 2], range);
        assert_eq!(lie, Err(Lie::NotAllocated { freed: range, hole }));
        checker().free_rejected(range, Some(hole)).unwrap();
        assert!(checker().free_rejected(range, None).is_err());
    }
    for range in [(29, 31), (8, 9), (30, 31), (14, 14), (14, 13)] {
        assert!(matches!(checker().free(range, [None; 2], range), Err(Lie::Outside { .. })), "{range:?}");
        checker().free_rejected(range, None).unwrap();
    }
}

#[test]
fn an_area_without_reasons_is_not_accepted_over_another() {
    let mut checker = checker();
    for range in [(12, 14), (13, 14), (26, 28), (10, 20)] {
        assert_eq!(checker.occupy(range), Err(Lie::Overlap { answer: range }));
    }
    assert!(matches!(checker.occupy((29, 31)), Err(Lie::Outside { .. })));
    for (range, hole) in
        [((12, 14), (10, 13)), ((14, 16), (15, 19)), ((13, 20), (15, 19)), ((10, 13), (10, 13))]
    {
        assert_eq!(checker.vacate(range), Err(Lie::NotAllocated { freed: range, hole }));
    }
    assert!(matches!(checker.vacate((29, 31)), Err(Lie::Outside { .. })));
    checker.counts((3, 14, 7)).unwrap();
    checker.occupy((16, 18)).unwrap();
    checker.vacate((14, 15)).unwrap();
    checker.counts((4, 13, 7)).unwrap();
    checker.vacate((16, 18)).unwrap();
    checker.counts((3, 15, 7)).unwrap();
}

#[test]
fn a_wrong_merge_is_not_accepted() {
    let (below, above) = (Some((10, 13)), Some((15, 19)));
    checker().free((13, 15), [below, above], (10, 19)).unwrap();
    checker().free((14, 15), [None, above], (14, 19)).unwrap();
    for (neighbours, hole) in [
        ([None, above], (13, 19)),
        ([below, None], (10, 15)),
        ([None; 2], (13, 15)),
        ([below, above], (10, 18)),
        ([below, above], (10, 20)),
        ([Some((11, 13)), above], (11, 19)),
    ] {
        let mut checker = checker();
        assert!(
            matches!(checker.free((13, 15), neighbours, hole), Err(Lie::WrongHole { .. })),
            "{neighbours:?}"
        );
        checker.counts((3, 14, 7)).unwrap();
    }
}

#[test]
fn a_rejection_without_a_reason_is_not_accepted() {
    let checker = checker();
    for range in [(10, 13), (15, 16), (20, 27)] {
        assert_eq!(checker.take_rejected(range), Err(Lie::Rejected { range }));
    }
    for range in [(12, 14), (13, 14), (26, 28), (29, 31), (9, 11), (11, 11)] {
        checker.take_rejected(range).unwrap();
    }
    for range in [(13, 14), (13, 15), (27, 30)] {
        assert_eq!(checker.free_rejected(range, None), Err(Lie::Rejected { range }));
        assert_eq!(checker.free_rejected(range, Some((10, 13))), Err(Lie::Rejected { range }));
    }
    assert!(matches!(checker.free_rejected((12, 14), Some((15, 19))), Err(Lie::WrongHole { .. })));
}

#[test]
fn a_wrong_count_is_not_accepted() {
    for counts in [(2, 14, 7), (3, 13, 7), (3, 14, 6), (3, 14, 8)] {
        assert!(matches!(checker().counts(counts), Err(Lie::Count { .. })));
    }
}

const UNITS: u64 = 4;
/// The first unit: odd, so that no alignment begins with the space.
const FIRST: u64 = 3;

/// The holes of a set of free units.
fn holes(bits: u64) -> Vec<Run> {
    let is_free = |unit: u64| (FIRST..FIRST + UNITS).contains(&unit) && bits & (1 << (unit - FIRST)) != 0;
    let starts = (FIRST..FIRST + UNITS).filter(|&unit| is_free(unit) && !is_free(unit - 1));
    starts.map(|start| (start, (start..).find(|&unit| !is_free(unit)).unwrap())).collect()
}

/// The right answer, by trying each.
fn truth(bits: u64, request: &Request) -> Option<u64> {
    let runs = holes(bits);
    let hole_of =
        |at: u64| runs.iter().copied().find(|&(start, end)| start <= at && at + request.size <= end);
    let fits = (0..FIRST + UNITS + 3).filter(|&at| {
        let inside = request.low <= at && at + request.size <= request.high;
        inside && at % (1 << request.align_log2) == 0 && hole_of(at).is_some()
    });
    match request.fit {
        Fit::Lowest => fits.min(),
        Fit::Highest => fits.max(),
        Fit::Best => fits.min_by_key(|&at| hole_of(at).map(|(start, end)| (end - start, at))),
    }
}

/// Calls `each` with every certificate that covers the units `[low, high)` by claims that may help.
fn certificates(
    (low, high): Run,
    request: &Request,
    holes: &[Run],
    bounds: &mut Vec<Bound>,
    each: &mut dyn FnMut(&[Bound]),
) {
    // One that ends here may be complete, or end too early.
    each(bounds);
    for end in low + 1..=high {
        let less = request.size - 1;
        let claims = [(less, 0), (0, 0), (less, request.align_log2), (request.size, 0)];
        let claims =
            claims.map(|(longest, align_log2)| Bound::AtMost { low, high: end, longest, align_log2 });
        // The same claim twice says nothing new.
        let claims = claims.into_iter().skip(usize::from(request.align_log2 == 0 || less == 0));
        let around =
            holes.iter().filter(|hole| hole.0 <= low).map(|&hole| Bound::Hole { low, high: end, hole });
        for bound in claims.chain(around) {
            bounds.push(bound);
            certificates((end, high), request, holes, bounds, each);
            bounds.pop();
        }
    }
}

/// Tries every state of a space of four units, every request, every answer, and every cover of it by such claims. A
/// right answer is accepted for some certificate, and another one for none.
#[test]
fn only_right_answers_are_accepted_whatever_the_certificate() {
    let (mut accepted, mut rejected) = (0u64, 0u64);
    for bits in 0..1u64 << UNITS {
        let mut checker = Checker::new(FIRST, FIRST + UNITS);
        for unit in (FIRST..FIRST + UNITS).filter(|unit| bits & (1 << (unit - FIRST)) == 0) {
            // What was free so far: the units from here up, and those below that stay free.
            let still = bits | !((1 << (unit - FIRST)) - 1);
            let around = holes(still & ((1 << UNITS) - 1));
            let hole = *around.iter().find(|&&(start, end)| start <= unit && unit < end).unwrap();
            let rests = [(hole.0, unit), (unit + 1, hole.1)];
            let rests = rests.map(|(start, end)| (start < end).then_some((start, end)));
            checker.take((unit, unit + 1), hole, rests).unwrap();
        }
        let runs = holes(bits);
        for (size, align_log2) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 2), (4, 0)] {
            for low in FIRST - 1..=FIRST + UNITS {
                for high in low..=FIRST + UNITS + 1 {
                    for fit in [Fit::Lowest, Fit::Highest, Fit::Best] {
                        let request = Request { size, align_log2, low, high, fit };
                        let right = truth(bits, &request);
                        let answers = (FIRST - 1..=FIRST + UNITS).map(Some).chain([None]);
                        for answer in answers {
                            let window = (low.max(FIRST), high.min(FIRST + UNITS));
                            let region = match (answer, fit) {
                                (Some(at), Fit::Lowest) => (window.0, at + size - 1),
                                (Some(at), Fit::Highest) => (at + 1, window.1),
                                _ => window,
                            };
                            let hole =
                                |at| runs.iter().copied().find(|&(start, end)| start <= at && at < end);
                            let mut found = false;
                            certificates(region, &request, &runs, &mut Vec::new(), &mut |bounds| {
                                let verdict = match answer {
                                    Some(at) => {
                                        checker.fits(&request, at, hole(at).unwrap_or((0, 0)), bounds)
                                    }
                                    None => checker.fits_nowhere(&request, bounds),
                                };
                                found |= verdict.is_ok();
                                *(if verdict.is_ok() { &mut accepted } else { &mut rejected }) += 1;
                            });
                            assert_eq!(
                                found,
                                answer == right,
                                "{bits:04b} {request:?}: {answer:?}, right {right:?}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 5_000 && rejected > 1_000_000, "{accepted} accepted, {rejected} rejected");
}
