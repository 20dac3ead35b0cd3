//! Runs ops on an index, or on two and names the first difference.

use crate::op::{Ask, Choice, Op, Space};
use std::fmt;
use va_base::{Align, AllocError, FreeError, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_tree::{Congruent, Fit, FreeIndex};

/// The result of an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// An address, or the error.
    At(Result<Va, AllocError>),
    /// The position of an exact range that was taken, or the error.
    Cut(Result<Fit, AllocError>),
    /// The result of each fragment that was freed.
    Back(Vec<Result<(), FreeError>>),
    /// The request could not be created.
    Rejected,
    /// There was no area for it.
    Nothing,
}

/// An index, and the areas out of it by its user's record.
pub struct Driver<I> {
    /// The index.
    pub index: I,
    /// `(start, size)` in bytes, sorted.
    pub out: Vec<(u64, u64)>,
}

impl<I> core::fmt::Debug for Driver<I> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Driver").field("out", &self.out).finish_non_exhaustive()
    }
}

impl<I: FreeIndex> Driver<I> {
    /// Wraps a fresh index.
    pub fn new(index: I) -> Self {
        Self { index, out: Vec::new() }
    }

    /// Runs one op.
    pub fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Alloc(ask) => {
                let Some(request) = request(ask) else { return Outcome::Rejected };
                let at = request.and_then(|request| match ask.choice {
                    Choice::Lowest => self.index.alloc(&request),
                    Choice::Ample => self.index.alloc_ample(&request),
                    Choice::Highest => self.index.alloc_highest(&request),
                    Choice::Best => self.index.alloc_best(&request),
                });
                if let Ok(at) = at {
                    self.took(at.get(), ask.size);
                }
                Outcome::At(at)
            }
            Op::WouldFit(ask) => {
                let Some(request) = request(ask) else { return Outcome::Rejected };
                Outcome::At(request.and_then(|request| match ask.choice {
                    Choice::Lowest => self.index.would_fit(&request),
                    Choice::Ample => self.index.ample_fit(&request),
                    Choice::Highest => self.index.highest_fit(&request),
                    Choice::Best => self.index.best_fit(&request),
                }))
            }
            &Op::Take { start, size } => {
                let Some(range) = VaRange::from_size(Va::new(start), size) else { return Outcome::Rejected };
                let fit = self.index.take(range);
                if fit.is_ok() {
                    self.took(start, size);
                }
                Outcome::Cut(fit)
            }
            Op::Congruent { areas, align } => {
                let Ok(request) = Congruent::new(areas, *align) else { return Outcome::Rejected };
                let base = self.index.alloc_congruent(&request);
                if let Ok(base) = base {
                    areas.iter().for_each(|&(offset, size)| self.took(base.get() + offset, size));
                }
                Outcome::At(base)
            }
            &Op::Free(n) => match self.pick(n) {
                Some(at) => Outcome::Back(vec![self.free(self.out[at].0, self.out[at].1)]),
                None => Outcome::Nothing,
            },
            &Op::FreeSplit { n, cut } => self.free_split(n, cut),
            &Op::FreeJoined(n) => self.free_joined(n),
            &Op::FreeRange { start, size } => match VaRange::from_size(Va::new(start), size) {
                Some(_) => Outcome::Back(vec![self.free(start, size)]),
                None => Outcome::Rejected,
            },
        }
    }

    fn free_split(&mut self, n: u64, cut: u64) -> Outcome {
        let Some(at) = self.pick(n) else { return Outcome::Nothing };
        let (start, size) = self.out[at];
        let cut = cut % (size / PAGE_SIZE) * PAGE_SIZE;
        if cut == 0 {
            return Outcome::Back(vec![self.free(start, size)]);
        }
        match self.index.reserve_splits(1) {
            Ok(()) => Outcome::Back(vec![self.free(start + cut, size - cut), self.free(start, cut)]),
            Err(error) => Outcome::At(Err(error)),
        }
    }

    fn free_joined(&mut self, n: u64) -> Outcome {
        let Some(at) = self.pick(n) else { return Outcome::Nothing };
        let (start, size) = self.out[at];
        match self.out.get(at + 1) {
            Some(&(next, next_size)) if next == start + size => {
                let back = self.free(start, size + next_size);
                if back.is_ok() {
                    self.index.release_splits(1);
                }
                Outcome::Back(vec![back])
            }
            _ => Outcome::Back(vec![self.free(start, size)]),
        }
    }

    fn pick(&self, n: u64) -> Option<usize> {
        (!self.out.is_empty()).then(|| (n % self.out.len() as u64) as usize)
    }

    fn took(&mut self, start: u64, size: u64) {
        let at = self.out.partition_point(|&(other, _)| other < start);
        self.out.insert(at, (start, size));
    }

    /// Frees a range, and removes it from the recorded areas.
    fn free(&mut self, start: u64, size: u64) -> Result<(), FreeError> {
        let range = VaRange::from_size(Va::new(start), size).unwrap_or_default();
        self.index.free(range)?;
        let end = start + size;
        let mut rest = Vec::new();
        self.out.retain(|&(other, other_size)| {
            let other_end = other + other_size;
            if other_end <= start || end <= other {
                return true;
            }
            if other < start {
                rest.push((other, start - other));
            }
            if end < other_end {
                rest.push((end, other_end - end));
            }
            false
        });
        for (start, size) in rest {
            self.took(start, size);
        }
        Ok(())
    }
}

/// Returns the request of a raw ask; `None` if its window is impossible.
fn request(ask: &Ask) -> Option<Result<Request, AllocError>> {
    let request = Request::new(ask.size, ask.align).map_err(AllocError::from);
    match ask.window {
        None => Some(request),
        Some((low, high)) => {
            let window = VaRange::new(Va::new(low), Va::new(high))?;
            Some(request.map(|request| request.within(window)))
        }
    }
}

/// The interval between walks over every invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// After every op.
    Always,
    /// After every so many ops.
    Every(usize),
}

/// The first difference between two indexes, or the first broken invariant.
#[derive(Debug)]
pub struct Difference {
    /// Number of the op, from 0.
    pub number: usize,
    /// The op.
    pub op: Op,
    /// The difference.
    pub what: String,
    /// The ops so far, this one included, in text form.
    pub ops: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "op {} ({}): {}", self.number, self.op, self.what)?;
        write!(f, "ops so far:\n{}", self.ops)
    }
}

/// Runs `ops` on both indexes and compares every outcome, every count, and every hole. Checks SP5 where both are of one
/// kind.
///
/// # Errors
/// The first [`Difference`].
pub fn compare<A: FreeIndex, B: FreeIndex>(
    a: A,
    b: B,
    ops: impl IntoIterator<Item = Op>,
    walk: Walk,
) -> Result<(), Box<Difference>> {
    let (mut a, mut b) = (Driver::new(a), Driver::new(b));
    let mut text = String::new();
    for (number, op) in ops.into_iter().enumerate() {
        text.push_str(&op.to_string());
        text.push('\n');
        let (x, y) = (a.run(&op), b.run(&op));
        let mut what = (x != y).then(|| format!("{x:?} and {y:?}"));
        let due = match walk {
            Walk::Always => true,
            Walk::Every(n) => number % n == n - 1,
        };
        what = what.or_else(|| counts_differ(&a.index, &b.index));
        if due && what.is_none() {
            what = walks_differ(&a.index, &b.index);
        }
        if let Some(what) = what {
            return Err(Box::new(Difference { number, op, what, ops: text }));
        }
    }
    Ok(())
}

fn counts_differ(a: &impl FreeIndex, b: &impl FreeIndex) -> Option<String> {
    let counts = |live, holes, free: Pages, largest: Pages| (live, holes, free.get(), largest.get());
    let x = counts(a.live(), a.hole_count(), a.free_pages(), a.largest_hole());
    let y = counts(b.live(), b.hole_count(), b.free_pages(), b.largest_hole());
    (x != y).then(|| format!("live, holes, free pages, largest hole: {x:?} and {y:?}"))
}

fn walks_differ(a: &impl FreeIndex, b: &impl FreeIndex) -> Option<String> {
    for broken in [a.validate(), b.validate()] {
        if let Err(broken) = broken {
            return Some(broken.to_string());
        }
    }
    let (x, y): (Vec<_>, Vec<_>) = (a.holes().collect(), b.holes().collect());
    if x != y {
        return Some(format!("holes {x:?} and {y:?}"));
    }
    // Neighbours, searched from the ends of every hole and from beside them.
    for hole in x.iter().take(64) {
        for at in [
            hole.start(),
            hole.end(),
            Va::new(hole.start().get().wrapping_sub(1)),
            Va::new(hole.end().get() - 1),
        ] {
            let (p, q) = ((a.hole_after(at), a.hole_below(at)), (b.hole_after(at), b.hole_below(at)));
            if p != q {
                return Some(format!("holes after and below {at}: {p:?} and {q:?}"));
            }
            // A size that just fits, and one that does not.
            for size in [hole.whole_pages().1 - hole.whole_pages().0, 2, 9].map(Pages::new) {
                let (p, q) = (a.fit_below(at, size), b.fit_below(at, size));
                if p != q {
                    return Some(format!("holes of {size} below {at}: {p:?} and {q:?}"));
                }
                for align in [4096, 1 << 14, 1 << 17].into_iter().filter_map(Align::new) {
                    let (p, q) = (a.aligned_fit_below(at, size, align), b.aligned_fit_below(at, size, align));
                    if p != q {
                        return Some(format!(
                            "holes of {size} aligned to {align:?} below {at}: {p:?} and {q:?}"
                        ));
                    }
                }
            }
        }
    }
    None
}

/// Panics with the difference if there is one; for tests.
pub fn assert_same<A: FreeIndex, B: FreeIndex>(
    space: &Space,
    a: A,
    b: B,
    ops: impl IntoIterator<Item = Op>,
    walk: Walk,
) {
    if let Err(difference) = compare(a, b, ops, walk) {
        panic!("in {space:?}: {difference}");
    }
}
