//! Sets in both forms, beside a list of booleans.

use super::*;
use std::vec;
use std::vec::Vec;

#[path = "../../../draws.rs"]
mod draws;

const UNITS: u64 = 400;

/// Random calls on sets that change their form often, and on a list of booleans.
#[test]
fn a_set_equals_a_list_of_booleans_in_both_forms() {
    let mut forms = [0; 2];
    for seed in 0..40 {
        let mut draws = draws::Draws::new(seed);
        let mut lowest = InlineUnits::<8>::new();
        let mut best = StagedUnits::<Listed<8>, BestFitIndex<BTreeIndex<Heap>, Heap>>::new();
        let mut model = [vec![false; UNITS as usize], vec![false; UNITS as usize]];
        for step in 0..600 {
            // Phases of many holes and of few.
            if step / 100 % 2 == 1 && draws.below(2) == 0 {
                for model in &mut model {
                    if let Some(&(start, end)) = holes(model).first() {
                        model[start as usize..end as usize].fill(false);
                    }
                }
                let (first, first_best) = (lowest.iter().next(), best.iter().next());
                assert!(first.is_none_or(|(start, end)| lowest.take(start, end)));
                assert!(first_best.is_none_or(|(start, end)| best.take(start, end)));
            }
            let longest = 1 + draws.below(30);
            let (start, len) = (draws.below(UNITS), 1 + draws.below(longest));
            let end = (start + len).min(UNITS);
            let set = |model: &mut Vec<bool>, start: u64, end: u64, to: bool| {
                let units = &mut model[start as usize..end as usize];
                let all = units.iter().all(|&unit| unit != to);
                units.iter_mut().filter(|_| all).for_each(|unit| *unit = to);
                all
            };
            match draws.below(4) {
                0 => {
                    assert_eq!(lowest.add(start, end).is_ok(), set(&mut model[0], start, end, true));
                    assert_eq!(best.add(start, end).is_ok(), set(&mut model[1], start, end, true));
                }
                1 => {
                    assert_eq!(lowest.take(start, end), set(&mut model[0], start, end, false));
                    assert_eq!(best.take(start, end), set(&mut model[1], start, end, false));
                }
                2 => {
                    let (log2, high) = (draws.below(4) as u32, UNITS - draws.below(90));
                    let found = (start..high).find(|at| {
                        at.is_multiple_of(1 << log2)
                            && at + len <= high
                            && (*at..at + len).all(|unit| model[0][unit as usize])
                    });
                    assert_eq!(lowest.take_lowest(len, log2, start, high), found);
                    found.map(|at| set(&mut model[0], at, at + len, false));
                }
                _ => {
                    let align = 1 + draws.below(6);
                    let smallest = holes(&model[1]).into_iter().filter_map(|(start, end)| {
                        let first = start.next_multiple_of(align);
                        (first + len <= end).then(|| (end - first, first))
                    });
                    let found = smallest.min().map(|(_, first)| first);
                    let padding = |unit: u64| Some(unit.next_multiple_of(align) - unit);
                    let taken = match align {
                        1 => best.take_best(len),
                        _ => best.take_best_aligned(len, align, padding),
                    };
                    assert_eq!(taken, found);
                    found.map(|at| set(&mut model[1], at, at + len, false));
                }
            }
            assert!(lowest.iter().eq(holes(&model[0])) && best.iter().eq(holes(&model[1])));
            assert_eq!(lowest.holes(), holes(&model[0]).len() as u64);
            assert_eq!(best.total(), model[1].iter().filter(|&&unit| unit).count() as u64);
            assert_eq!(lowest.contains(start), model[0][start as usize]);
            assert_eq!(best.contains(start), model[1][start as usize]);
            assert_eq!((lowest.validate(), best.validate()), (Ok(()), Ok(())));
            forms[usize::from(lowest.is_index())] += 1;
            forms[usize::from(best.is_index())] += 1;
        }
        assert!(lowest.clone().iter().eq(lowest.iter()) && best.clone().iter().eq(best.iter()));
    }
    assert!(forms[0] > 5_000 && forms[1] > 5_000, "{forms:?}");
}

fn holes(model: &[bool]) -> Vec<Hole> {
    let mut holes: Vec<Hole> = Vec::new();
    for (unit, _) in (0..).zip(model).filter(|&(_, &free)| free) {
        match holes.last_mut() {
            Some(last) if last.1 == unit => last.1 += 1,
            _ => holes.push((unit, unit + 1)),
        }
    }
    holes
}

#[test]
fn numbers_at_the_limit_work_in_both_forms() {
    let mut free = InlineUnits::<2>::new();
    assert_eq!(free.take_lowest(1, 0, 0, u64::MAX), None);
    for is_index in [false, true] {
        free.add(LIMIT - 3, LIMIT).unwrap();
        assert_eq!(free.add(LIMIT, LIMIT + 1), Err(AddError::BadRange));
        assert_eq!(free.add(5, 5), Err(AddError::BadRange));
        assert_eq!(free.take_lowest(u64::MAX, 0, 0, u64::MAX), None);
        assert_eq!(free.take_lowest(0, 0, 0, u64::MAX), None);
        assert_eq!(free.take_lowest(1, 63, 1, u64::MAX), None);
        assert_eq!(free.take_lowest(1, 64, 0, u64::MAX), None);
        assert_eq!(free.take_lowest(2, 1, LIMIT - 4, u64::MAX), Some(LIMIT - 3));
        assert!(free.take(LIMIT - 1, LIMIT) && !free.take(7, 7));
        assert_eq!(free.is_index(), is_index);
        for at in [10, 20, 30] {
            assert_eq!(free.add(at, at + 1).is_ok(), !is_index);
        }
    }
    let mut ids = Ids::default();
    ids.add(u64::from(u32::MAX), 1 << 32).unwrap();
    assert_eq!(ids.add(1 << 32, (1 << 32) + 1), Err(AddError::BadRange));
    assert_eq!(ids.take_lowest(1, 0, 0, u64::MAX), Some(u64::from(u32::MAX)));
    assert_eq!(BestFitUnits::new().take_best(1), None);
}
