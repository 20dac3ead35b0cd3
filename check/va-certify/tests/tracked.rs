//! Every state of a small [`TrackedIndex`] over a certified index, and every call in each, beside a model of its areas.
//!
//! The certificates are about holes. An index that knows its areas also says which area begins where, and rejects what is
//! none. That part has a model here: a list of areas. The large scope runs in `cargo xtask ci --full --only states`.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Align, Pages, Request, Va, VaRange};
use va_certify::Certified;
use va_sim::platform::HeapPlatform;
use va_tree::btree::BTree;
use va_tree::certify::Certify;
use va_tree::rb::Exact;
use va_tree::{RbIndex, TrackedError, TrackedIndex};

/// The first unit of each space: an odd number, so that no alignment begins with the space.
const FIRST: u64 = 5;

/// The areas of a state, each with its first unit and the unit after its last, in order.
type Areas = Vec<(u64, u64)>;

fn range(from: u64, to: u64) -> VaRange {
    VaRange::from_pages(from, to).unwrap()
}

/// Returns each way to have areas in the units `[from, end)`, which may touch.
fn states(from: u64, end: u64) -> Vec<Areas> {
    if from == end {
        return vec![Vec::new()];
    }
    let mut all = states(from + 1, end);
    for to in from + 1..=end {
        for mut rest in states(to, end) {
            rest.insert(0, (from, to));
            all.push(rest);
        }
    }
    all
}

/// A call of an index.
#[derive(Clone, Copy, Debug)]
enum Call {
    Lowest(u64, u64),
    Highest(u64, u64),
    Best(u64, u64),
    Take(u64, u64),
    Free(u64),
    FreeRange(u64, u64),
    FreeAny(u64, u64),
    Grow(u64, u64),
    Shrink(u64, u64),
}

/// Returns every call with units of `[FIRST - 1, end]`.
fn calls(end: u64) -> Vec<Call> {
    let mut all = Vec::new();
    for from in FIRST - 1..=end {
        all.push(Call::Free(from));
        for to in from..=end + 1 {
            all.extend([Call::Take(from, to), Call::FreeRange(from, to), Call::FreeAny(from, to)]);
            all.extend([Call::Grow(from, to - from), Call::Shrink(from, to - from)]);
        }
    }
    for size in 1..=end - FIRST + 1 {
        for align in [1, 2, 4] {
            all.extend([Call::Lowest(size, align), Call::Highest(size, align), Call::Best(size, align)]);
        }
    }
    all
}

/// The result of a call: the range that it returned, the units that it freed, or no change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Range(u64, u64),
    Freed(u64),
    Rejected,
}

/// The model: what a call must return, and the areas after it. Of the best fit only whether there is one.
fn expected(areas: &Areas, end: u64, call: Call) -> (Answer, Areas) {
    let is_free = |from: u64, to: u64| {
        FIRST <= from
            && from < to
            && to <= end
            && areas.iter().all(|&(start, stop)| stop <= from || to <= start)
    };
    let with = |areas: &Areas, new: (u64, u64)| {
        let mut areas = areas.clone();
        areas.push(new);
        areas.sort_unstable();
        areas
    };
    let without = |at: u64| areas.iter().copied().filter(|&(start, _)| start != at).collect::<Areas>();
    let find = |at: u64| areas.iter().copied().find(|&(start, _)| start == at);
    let rejected = || (Answer::Rejected, areas.clone());
    let placed = |from: Option<u64>, size: u64| match from {
        Some(from) => (Answer::Range(from, from + size), with(areas, (from, from + size))),
        None => rejected(),
    };
    let fits =
        |size: u64, align: u64| (FIRST..=end).filter(move |&at| at % align == 0 && is_free(at, at + size));
    match call {
        Call::Lowest(size, align) => placed(fits(size, align).next(), size),
        Call::Highest(size, align) => placed(fits(size, align).next_back(), size),
        Call::Best(size, align) => {
            // The smallest hole that permits it, and of equals the lowest.
            let hole = |at: u64| {
                let low = (FIRST..=at).rev().take_while(|&low| is_free(low, at + 1)).last().unwrap_or(at);
                (at..=end).take_while(|&high| high == at || is_free(at, high)).last().unwrap_or(at) - low
            };
            placed(fits(size, align).min_by_key(|&at| (hole(at), at)), size)
        }
        Call::Take(from, to) if is_free(from, to) => (Answer::Range(from, to), with(areas, (from, to))),
        Call::Free(at) => match find(at) {
            Some((from, to)) => (Answer::Range(from, to), without(at)),
            None => rejected(),
        },
        Call::FreeRange(from, to) if find(from) == Some((from, to)) => {
            (Answer::Range(from, to), without(from))
        }
        Call::FreeAny(from, to) if FIRST <= from && from < to && to <= end => {
            let parts = areas.iter().flat_map(|&(start, stop)| {
                let below = (start, stop.min(from));
                let above = (start.max(to), stop);
                [below, above].into_iter().filter(|(start, stop)| start < stop)
            });
            let left: Areas = parts.collect();
            let units = |areas: &Areas| areas.iter().map(|(start, stop)| stop - start).sum::<u64>();
            (Answer::Freed(units(areas) - units(&left)), left)
        }
        Call::Grow(at, size) => match find(at) {
            Some((_, to)) if at + size == to || at + size > to && is_free(to, at + size) => {
                (Answer::Range(at, at + size), with(&without(at), (at, at + size)))
            }
            _ => rejected(),
        },
        Call::Shrink(at, size) => match find(at) {
            Some((_, to)) if size > 0 && at + size <= to => {
                (Answer::Range(at, at + size), with(&without(at), (at, at + size)))
            }
            _ => rejected(),
        },
        Call::Take(..) | Call::FreeRange(..) | Call::FreeAny(..) => rejected(),
    }
}

type Tracked<I> = TrackedIndex<Certified<I>, HeapPlatform>;

fn done<I: Certify>(index: &mut Tracked<I>, call: Call) -> Answer {
    let request =
        |size: u64, align: u64| Request::pages(size).unwrap().aligned(Align::new(align << 12).unwrap());
    let at = |unit: u64| Va::from_page(unit);
    let answer: Result<VaRange, TrackedError> = match call {
        Call::Lowest(size, align) => index.alloc(&request(size, align)).map_err(TrackedError::Index),
        Call::Highest(size, align) => index.alloc_highest(&request(size, align)).map_err(TrackedError::Index),
        Call::Best(size, align) => index.alloc_best(&request(size, align)).map_err(TrackedError::Index),
        Call::Take(from, to) => {
            index.take(range(from, to)).map(|()| range(from, to)).map_err(TrackedError::Index)
        }
        Call::Free(unit) => index.free(at(unit)),
        Call::FreeRange(from, to) => index.free_range(range(from, to)).map(|()| range(from, to)),
        Call::FreeAny(from, to) => {
            return index
                .free_any(range(from, to))
                .map_or(Answer::Rejected, |freed| Answer::Freed(freed.get()));
        }
        Call::Grow(unit, size) => index.grow_to(at(unit), Pages::new(size)),
        Call::Shrink(unit, size) => index.shrink_to(at(unit), Pages::new(size)),
    };
    answer.map_or(Answer::Rejected, |range| {
        let (from, to) = range.whole_pages();
        Answer::Range(from, to)
    })
}

/// Tries every call in every state of so many units. A state is made by takes from below and from above, so that the
/// trees of areas have two shapes. Returns the states and calls.
fn explore<I: Certify>(units: u64, make: impl Fn(VaRange, HeapPlatform) -> I) -> (usize, usize) {
    let (end, platform) = (FIRST + units, HeapPlatform::default());
    let (all, calls) = (states(FIRST, end), calls(end));
    let mut tried = 0;
    for areas in &all {
        for &call in &calls {
            let (answer, after) = expected(areas, end, call);
            for from_above in [false, true] {
                let index = Certified::new(make(range(FIRST, end), platform.clone()));
                let mut index = TrackedIndex::new(index, platform.clone());
                let mut order = areas.clone();
                if from_above {
                    order.reverse();
                }
                order.iter().for_each(|&(from, to)| index.take(range(from, to)).unwrap());
                assert_eq!(done(&mut index, call), answer, "{areas:?}, {call:?}");
                let found: Areas = index.areas().map(VaRange::whole_pages).collect();
                assert_eq!(found, after, "{areas:?}, {call:?}");
                index.validate().unwrap();
                tried += 1;
            }
        }
    }
    (all.len(), tried)
}

fn report(name: &str, units: u64, (states, calls): (usize, usize)) {
    println!("states: {units} units, {name}: {states} states of areas, {calls} calls");
}

fn both(units: u64) {
    let rb = |extent, platform| RbIndex::<Exact, _>::new(extent, extent, platform).unwrap();
    report("areas over the red-black tree", units, explore(units, rb));
    let btree =
        |extent, platform| BTree::<u64, 4, HeapPlatform, 1, 0>::new(extent, extent, platform).unwrap();
    report("areas over the B+tree", units, explore(units, btree));
}

#[test]
fn every_call_in_every_state_of_areas_of_five_units_is_that_of_the_model() {
    assert_eq!(states(FIRST, FIRST + 5).len(), 89);
    both(5);
}

#[test]
#[ignore = "minutes: every state of areas of eight units"]
fn every_call_in_every_state_of_areas_of_eight_units_is_that_of_the_model() {
    both(8);
}
