//! Every state of an index of a small space, and in each of them every request, every take and every free, certified.
//!
//! # Theory
//! The state of an index is more than the set of its holes: the shape of a tree depends on its past. So this is a search
//! over states, from the first one along every change, until no change leads to a new one. Two indexes are in the same
//! state if [`Certify::shape`] gives the same numbers, which are compared by a hash of 128 bits. Then all that holds in
//! each state found, and for each change out of it, holds for every sequence of such changes, of any length.
//!
//! A state is stored as the change that led to it, and made again by its changes from the first one. Most changes can be
//! undone by their inverse, which saves that.
//!
//! Areas have one unit each: a take of several adds the fragments that its pages may be freed in. So each run of taken
//! units can be freed, whatever areas a caller had in mind. Memory does not fail here.

use crate::{Certified, Checker, Fit, Run};
use std::collections::HashSet;
use std::fmt;
use va_base::{Align, Request, Va, VaRange};
use va_tree::FreeIndex;
use va_tree::certify::Certify;

/// The requests and ranges that are tried in each state of a space.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The units of the space.
    pub extent: Run,
    /// The ranges that are taken and freed; those that cannot be must be rejected.
    pub ranges: Vec<Run>,
    /// The sizes of requests.
    pub sizes: Vec<u64>,
    /// The binary logarithms of their alignments.
    pub aligns: Vec<u32>,
    /// Their windows.
    pub windows: Vec<Run>,
    /// The ranges that are taken at first, one after the other.
    pub taken: Vec<Run>,
    /// True if the search goes on from the states to which requests lead, as from those of takes and frees. It always
    /// does from the state of a request that fails, which may have built a row.
    pub follows_requests: bool,
}

impl Scope {
    /// Returns a scope of everything: every range, every size and every window, one unit beyond the space as well.
    #[must_use]
    pub fn everything(first: u64, units: u64, aligns: &[u32]) -> Self {
        let (low, high) = (first.saturating_sub(1), first + units + 1);
        let pairs = || (low..=high).flat_map(move |start| (start..=high).map(move |end| (start, end)));
        Self {
            extent: (first, first + units),
            ranges: pairs().filter(|&(start, end)| start < end).collect(),
            sizes: (1..=units + 1).collect(),
            aligns: aligns.to_vec(),
            windows: pairs().collect(),
            taken: Vec::new(),
            follows_requests: true,
        }
    }

    /// Returns a scope of many holes of few units, so that trees are deep: `(taken, free)` units in turn. The free units
    /// of each cell are taken and freed as a whole. The units below them stay taken, except in the cells `joining`: there
    /// they are freed, too, so that holes merge.
    #[must_use]
    pub fn cells(first: u64, cells: &[(u64, u64)], joining: &[usize]) -> Self {
        let (mut at, mut ranges, mut taken) = (first, Vec::new(), Vec::new());
        for (number, &(below, size)) in cells.iter().enumerate() {
            let (start, end) = (at + below, at + below + size);
            ranges.push((start, end));
            if joining.contains(&number) {
                ranges.push((at, start));
            }
            taken.push((at, end));
            at = end;
        }
        // The last one keeps the topmost hole away from the end of the space.
        taken.push((at, at + 1));
        let extent = (first, at + 1);
        let middle = first + (at - first) / 2;
        let windows = vec![extent, (middle, extent.1), (extent.0, middle), (middle - 3, middle + 3)];
        let (sizes, aligns) = (vec![1, 2, 3], vec![0, 1, 2]);
        Self { extent, ranges, sizes, aligns, windows, taken, follows_requests: false }
    }

    /// Returns the extent as a range of an index with units of `2^unit` bytes.
    #[must_use]
    pub fn range(&self, unit: u32) -> VaRange {
        range_of(self.extent, unit)
    }

    fn requests(&self, unit: u32) -> Vec<(Request, Fit)> {
        let mut requests = Vec::new();
        for &size in &self.sizes {
            for &log2 in &self.aligns {
                for &window in &self.windows {
                    let request = Request::pages(size).ok().zip(Align::from_log2(log2 + unit));
                    let request =
                        request.map(|(request, align)| request.aligned(align).within(range_of(window, unit)));
                    for fit in [Fit::Lowest, Fit::Highest, Fit::Best] {
                        requests.extend(request.map(|request| (request, fit)));
                    }
                }
            }
        }
        requests
    }
}

/// The numbers of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tried {
    /// States of the index: what is free, and in which shape.
    pub states: u64,
    /// Sets of free units among them.
    pub sets: u64,
    /// Requests that were met and taken, or failed.
    pub requests: u64,
    /// Takes of a range, rejected ones as well.
    pub takes: u64,
    /// Frees, rejected ones as well.
    pub frees: u64,
    /// The most holes at a time.
    pub holes: u64,
    /// The most changes that lead to a state.
    pub depth: u64,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, sets, requests, takes, frees, holes, depth } = self;
        write!(
            f,
            "{states} states of {sets} sets of free units, {requests} requests, {takes} takes, {frees} frees; at most \
             {holes} holes, {depth} changes from the first state"
        )
    }
}

/// A change of a state.
#[derive(Clone, Copy, Debug)]
enum Change {
    First,
    Take(Run),
    Free(Run),
    /// The request of that number.
    Alloc(u32),
}

/// The way to a state.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The number of the state before.
    before: u32,
    change: Change,
    /// The free units by the checker, a bit each.
    free: u64,
}

/// Two sums over the numbers of a shape, each multiplied and rotated: equal by chance once in 2^128.
#[derive(Clone, Copy)]
struct Hash([u64; 2]);

impl Hash {
    fn of(index: &impl Certify) -> u128 {
        let mut hash = Self([0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f]);
        index.shape(&mut |number| hash.add(number));
        u128::from(hash.0[0]) << 64 | u128::from(hash.0[1])
    }

    fn add(&mut self, number: u64) {
        let [a, b] = self.0;
        self.0[0] = (a ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29) ^ b;
        self.0[1] = (b.wrapping_add(number)).wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(37) ^ a;
    }
}

struct Search<'a, I, M> {
    make: M,
    scope: &'a Scope,
    requests: Vec<(Request, Fit)>,
    steps: Vec<Step>,
    seen: HashSet<u128>,
    sets: HashSet<u64>,
    tried: Tried,
    /// The index in the present state, and the hash of that.
    now: Certified<I>,
    checker: Checker,
    hash: u128,
    number: u32,
    /// Binary logarithm of the bytes in a unit of the index.
    unit: u32,
}

/// Tries everything in `scope` in each state of the index that `make` makes, of the extent of the scope.
///
/// # Panics
/// At the first certificate that is not accepted, broken invariant, or wrong rejection.
pub fn explore<I: Certify>(scope: &Scope, make: impl Fn() -> I) -> Tried {
    let (low, high) = scope.extent;
    assert!(low < high && high - low <= 64, "a bit for each unit");
    let now = Certified::new(make());
    let unit = now.unit().log2();
    let mut search = Search {
        make,
        scope,
        requests: scope.requests(unit),
        steps: Vec::new(),
        seen: HashSet::new(),
        sets: HashSet::new(),
        tried: Tried::default(),
        now,
        checker: Checker::new(low, high),
        hash: 0,
        number: 0,
        unit,
    };
    search.begin();
    while (search.number as usize) < search.steps.len() {
        search.try_all();
        search.number += 1;
    }
    search.tried
}

fn range_of((start, end): Run, unit: u32) -> VaRange {
    VaRange::new(Va::new(start << unit), Va::new(end << unit)).unwrap_or_default()
}

/// Takes a range, as areas of one unit each. The index accepted it before, or must now.
fn take<I: FreeIndex>(index: &mut I, unit: u32, range: Run) -> bool {
    let taken = index.take(range_of(range, unit)).is_ok();
    taken && index.reserve_splits(range.1 - range.0 - 1).is_ok()
}

/// Frees a range of areas of one unit each.
fn free<I: FreeIndex>(index: &mut I, unit: u32, range: Run) -> bool {
    let more = range.1 - range.0 - 1;
    index.free(range_of(range, unit)).is_ok() && index.release_splits(more) == more
}

fn alloc<I: FreeIndex>(index: &mut I, (request, fit): &(Request, Fit)) -> Option<Va> {
    let at = match fit {
        Fit::Lowest => index.alloc(request),
        Fit::Highest => index.alloc_highest(request),
        Fit::Best => index.alloc_best(request),
    };
    at.ok().filter(|_| index.reserve_splits(request.size().get() - 1).is_ok())
}

impl<I: Certify, M: Fn() -> I> Search<'_, I, M> {
    fn begin(&mut self) {
        for &range in &self.scope.taken {
            assert!(take(&mut self.now, self.unit, range), "{range:?} is taken at first");
        }
        let free = self.now.checker().free_bits(self.scope.extent.0);
        self.steps.push(Step { before: 0, change: Change::First, free });
        self.seen.insert(Hash::of(&self.now));
    }

    /// Returns the changes that lead to the present state, the last one first.
    fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let mut step = self.steps.get(self.number as usize);
        std::iter::from_fn(move || {
            let Step { before, change, .. } = *step?;
            step = self.steps.get(before as usize);
            (!matches!(change, Change::First)).then_some(change)
        })
    }

    /// Makes the present state again, by the changes that lead to it.
    fn make_again(&mut self) {
        let changes: Vec<Change> = self.changes().collect();
        let mut index = (self.make)();
        let taken = self.scope.taken.iter().all(|&range| take(&mut index, self.unit, range));
        let done = changes.iter().rev().all(|change| match *change {
            Change::First => true,
            Change::Take(range) => take(&mut index, self.unit, range),
            Change::Free(range) => free(&mut index, self.unit, range),
            Change::Alloc(number) => {
                // One that fails is a change, too.
                let _at = alloc(&mut index, &self.requests[number as usize]);
                true
            }
        });
        assert!(taken && done, "the same changes are rejected: {changes:?}");
        self.tried.depth = self.tried.depth.max(changes.len() as u64);
        self.now = Certified::with(index, self.checker.clone());
    }

    fn validate(&self) {
        if let Err(broken) = self.now.validate() {
            panic!("{broken} one change after {:?}", self.changes().collect::<Vec<_>>());
        }
    }

    /// Adds the state to which `change` led, if it is new and the search goes on from there; then undoes the change by `undo`.
    fn arrived(&mut self, change: Change, follows: bool, undo: impl FnOnce(&mut I) -> bool) {
        let hash = Hash::of(&self.now);
        if hash == self.hash {
            return;
        }
        if !follows {
            self.validate();
        } else if self.seen.insert(hash) {
            self.validate();
            let free = self.now.checker().free_bits(self.scope.extent.0);
            self.steps.push(Step { before: self.number, change, free });
        }
        if !self.now.undo(&self.checker, undo) || Hash::of(&self.now) != self.hash {
            self.make_again();
            assert_eq!(Hash::of(&self.now), self.hash, "the same changes lead to another state");
        }
    }

    fn try_all(&mut self) {
        let Step { free: bits, .. } = self.steps[self.number as usize];
        self.checker = Checker::of_bits(self.scope.extent, bits);
        self.make_again();
        self.hash = Hash::of(&self.now);
        self.tried.states += 1;
        self.tried.holes = self.tried.holes.max(self.now.hole_count());
        self.sets.insert(bits);
        self.tried.sets = self.sets.len() as u64;
        self.try_requests();
        let unit = self.unit;
        for &range in &self.scope.ranges {
            self.tried.takes += 1;
            if take(&mut self.now, unit, range) {
                self.arrived(Change::Take(range), true, |index| free(index, unit, range));
            }
            self.tried.frees += 1;
            if free(&mut self.now, unit, range) {
                self.arrived(Change::Free(range), true, |index| take(index, unit, range));
            }
        }
    }

    fn try_requests(&mut self) {
        let (unit, follows) = (self.unit, self.scope.follows_requests);
        for number in 0..self.requests.len() {
            let request = self.requests[number];
            self.tried.requests += 1;
            let change = Change::Alloc(number as u32);
            match alloc(&mut self.now, &request).map(|at| at.get() >> unit) {
                Some(at) => {
                    let range = (at, at + request.0.size().get());
                    self.arrived(change, follows, |index| free(index, unit, range));
                }
                None => self.arrived(change, true, |_| false),
            }
        }
    }
}
