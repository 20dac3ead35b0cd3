//! The checker: a state of its own, and what makes an answer right.

use crate::holes::{Holes, Run, usable};
use std::fmt;

/// Which of the possible addresses is the right one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The lowest one.
    Lowest,
    /// The highest one.
    Highest,
    /// The lowest one in the smallest hole that permits the request, and of equal holes in the lowest.
    Best,
}

/// A request, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Units to take.
    pub size: u64,
    /// Binary logarithm of the alignment in units.
    pub align_log2: u32,
    /// First unit of the window.
    pub low: u64,
    /// Unit after the window.
    pub high: u64,
    /// Which address is wanted.
    pub fit: Fit,
}

/// A reason why no better address fits: a claim about the units `[low, high)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// No free run inside that begins at a multiple of `2^align_log2` is longer than `longest`.
    AtMost {
        /// First unit.
        low: u64,
        /// Unit after the last.
        high: u64,
        /// Units of the longest such run, or more.
        longest: u64,
        /// Binary logarithm of the alignment in units.
        align_log2: u32,
    },
    /// It is all that the window includes of a hole, for the best fit: that hole is the chosen one, or a worse one.
    Hole {
        /// First unit.
        low: u64,
        /// Unit after the last.
        high: u64,
        /// The hole.
        hole: Run,
    },
}

impl Bound {
    fn units(&self) -> Run {
        match *self {
            Self::AtMost { low, high, .. } | Self::Hole { low, high, .. } => (low, high),
        }
    }
}

/// The reason why a certificate is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// The answer is not inside the window and the space, or is empty.
    Outside {
        /// The answer.
        answer: Run,
        /// The part of the space that the window includes.
        window: Run,
    },
    /// The answer does not begin at a multiple of `2^align_log2`.
    Misaligned {
        /// First unit of the answer.
        at: u64,
        /// Binary logarithm of the alignment.
        align_log2: u32,
    },
    /// Units of the answer are taken.
    Overlap {
        /// The answer.
        answer: Run,
    },
    /// A hole is claimed that is not there, or not of that size.
    WrongHole {
        /// The claim.
        claimed: Option<Run>,
        /// The hole that is there.
        hole: Option<Run>,
    },
    /// The bounds do not follow each other, or end early or late.
    Gap {
        /// The unit at which a bound must begin, or the bounds end.
        expected: u64,
        /// The unit at which one begins, or they end.
        found: u64,
    },
    /// A run straddles two bounds, so that neither is about it.
    Straddled {
        /// The unit at which they meet.
        at: u64,
    },
    /// A bound is true, but permits a better answer.
    Permits {
        /// The bound.
        bound: Bound,
    },
    /// A bound is false: a run is longer than it says.
    TooSmall {
        /// The bound.
        bound: Bound,
        /// The run.
        run: Run,
    },
    /// Units that are freed are free.
    NotAllocated {
        /// The units to be freed.
        freed: Run,
        /// The lowest hole that it overlaps.
        hole: Run,
    },
    /// A request was rejected that could be met exactly there.
    Rejected {
        /// The requested range.
        range: Run,
    },
    /// A count differs.
    Count {
        /// Holes, free units and the longest hole by the index.
        claimed: (u64, u64, u64),
        /// By the checker.
        counted: (u64, u64, u64),
    },
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Lie {}

/// The free and the taken units of a space, and the answers that are right for it.
///
/// It knows nothing of the index whose answers it checks. Every bound is compared with its own state. After an accepted
/// change its state has changed; after a [`Lie`] nothing has.
#[derive(Clone, Debug)]
pub struct Checker {
    extent: Run,
    holes: Holes,
}

impl Checker {
    /// Creates a checker of the units `[low, high)`, all free.
    #[must_use]
    pub fn new(low: u64, high: u64) -> Self {
        let mut holes = Holes::new();
        if low < high {
            holes.insert((low, high));
        }
        Self { extent: (low, high), holes }
    }

    /// Returns a checker of at most 64 units, of which those are free whose bits are set.
    pub(crate) fn of_bits(extent: Run, free: u64) -> Self {
        let (low, high) = extent;
        let mut checker = Self { extent, holes: Holes::new() };
        let mut unit = low;
        while unit < high {
            let length = u64::from((free >> (unit - low)).trailing_ones()).min(high - unit);
            if length > 0 {
                checker.holes.insert((unit, unit + length));
            }
            unit += length + 1;
        }
        checker
    }

    /// Returns the free units as bits from `low` on.
    pub(crate) fn free_bits(&self, low: u64) -> u64 {
        let mut bits = 0;
        let mut next = self.holes.first_above(low);
        while let Some((start, end)) = next {
            bits |= (u64::MAX >> (64 - (end - start))) << (start - low);
            next = self.holes.first_above(end);
        }
        bits
    }

    /// Returns what a window includes of the space.
    fn window(&self, request: &Request) -> Run {
        (request.low.max(self.extent.0), request.high.min(self.extent.1))
    }

    /// Accepts the address of a request: it is free, inside, aligned, and by `bounds` the lowest, highest or best.
    ///
    /// For the lowest fit, the bounds cover all from the window's start to the end of an area one unit lower. For the
    /// highest, they cover all from one unit higher to the window's end; for the best, the window. `hole` is the one in
    /// which the answer is. O(log n) for each bound; see the crate for alignments.
    ///
    /// # Errors
    /// A [`Lie`].
    pub fn fits(&self, request: &Request, at: u64, hole: Run, bounds: &[Bound]) -> Result<(), Lie> {
        let (low, high) = self.window(request);
        let end = at.saturating_add(request.size);
        let answer = (at, end);
        if request.size == 0 || end - at != request.size || at < low || end > high {
            return Err(Lie::Outside { answer, window: (low, high) });
        }
        if request.align_log2 > 63 || at & ((1 << request.align_log2) - 1) != 0 {
            return Err(Lie::Misaligned { at, align_log2: request.align_log2 });
        }
        let around = self.holes.around(at).filter(|&(_, hole_end)| end <= hole_end);
        let around = around.ok_or(Lie::Overlap { answer })?;
        if around != hole {
            return Err(Lie::WrongHole { claimed: Some(hole), hole: Some(around) });
        }
        match request.fit {
            Fit::Lowest => self.cover(request, (low, end - 1), None, bounds),
            Fit::Highest => self.cover(request, (at + 1, high), None, bounds),
            Fit::Best => self.cover(request, (low, high), Some((at, hole)), bounds),
        }
    }

    /// Accepts that a request fits nowhere: the bounds cover all that the window includes.
    ///
    /// # Errors
    /// A [`Lie`].
    pub fn fits_nowhere(&self, request: &Request, bounds: &[Bound]) -> Result<(), Lie> {
        if request.align_log2 > 63 {
            // Nothing is so aligned but zero, and no index is asked for it.
            return Err(Lie::Misaligned { at: 0, align_log2: request.align_log2 });
        }
        self.cover(request, self.window(request), None, bounds)
    }

    /// Checks that bounds follow each other from `low` to `high`, that each is true, and that none permits a fit;
    /// except for `best`, whose hole the others must not beat.
    fn cover(
        &self,
        request: &Request,
        (low, high): Run,
        best: Option<(u64, Run)>,
        bounds: &[Bound],
    ) -> Result<(), Lie> {
        let mut done = low;
        for bound in bounds {
            let (from, to) = bound.units();
            if from != done || to <= from || to > high {
                return Err(Lie::Gap { expected: done, found: from });
            }
            // Two bounds that meet inside a hole say nothing about a run over both.
            if from > low && self.holes.around(from).is_some_and(|(start, _)| start < from) {
                return Err(Lie::Straddled { at: from });
            }
            match *bound {
                Bound::AtMost { longest, align_log2, .. } => {
                    // A run for a larger alignment begins at a multiple of the smaller one, too; not the other way.
                    if longest >= request.size || align_log2 > request.align_log2 {
                        return Err(Lie::Permits { bound: *bound });
                    }
                    if let Some(run) = self.holes.longer((from, to), longest, align_log2) {
                        return Err(Lie::TooSmall { bound: *bound, run });
                    }
                }
                Bound::Hole { hole, .. } => self.is_worse(request, (from, to), hole, best, *bound)?,
            }
            done = to;
        }
        // An empty region has no bound and nothing to be said about.
        if done < high { Err(Lie::Gap { expected: high, found: done }) } else { Ok(()) }
    }

    /// Checks that `hole` is there, and that the best fit is in it, or it is larger, or of its size and higher.
    fn is_worse(
        &self,
        request: &Request,
        part: Run,
        hole: Run,
        best: Option<(u64, Run)>,
        bound: Bound,
    ) -> Result<(), Lie> {
        let around = self.holes.around(part.0);
        if around != Some(hole) {
            return Err(Lie::WrongHole { claimed: Some(hole), hole: around });
        }
        let (low, high) = self.window(request);
        if part != (hole.0.max(low), hole.1.min(high)) {
            return Err(Lie::Gap { expected: hole.1.min(high), found: part.1 });
        }
        let Some((at, chosen)) = best else { return Err(Lie::Permits { bound }) };
        let order = |(start, end): Run| (end - start, start);
        let is_right = if hole == chosen {
            // The first aligned unit of the part is the answer.
            usable(part, request.align_log2) == part.1 - at
        } else {
            order(hole) > order(chosen)
        };
        if is_right { Ok(()) } else { Err(Lie::Permits { bound }) }
    }

    /// Accepts that `range` was taken from `hole`, which leaves the `rests` below and above it.
    ///
    /// # Errors
    /// A [`Lie`]; nothing has changed.
    pub fn take(&mut self, range: Run, hole: Run, rests: [Option<Run>; 2]) -> Result<(), Lie> {
        let (start, end) = range;
        if start >= end || start < self.extent.0 || end > self.extent.1 {
            return Err(Lie::Outside { answer: range, window: self.extent });
        }
        let around = self.holes.around(start).filter(|&(_, hole_end)| end <= hole_end);
        let around = around.ok_or(Lie::Overlap { answer: range })?;
        if around != hole {
            return Err(Lie::WrongHole { claimed: Some(hole), hole: Some(around) });
        }
        let left = [(hole.0, start), (end, hole.1)].map(|(start, end)| (start < end).then_some((start, end)));
        for (claimed, hole) in rests.into_iter().zip(left) {
            if claimed != hole {
                return Err(Lie::WrongHole { claimed, hole });
            }
        }
        self.holes.remove(hole.0);
        left.into_iter().flatten().for_each(|rest| self.holes.insert(rest));
        Ok(())
    }

    /// Accepts an area from an allocator that gives no reasons: it is free and inside.
    ///
    /// # Errors
    /// [`Lie::Outside`], [`Lie::Overlap`]; nothing has changed.
    pub fn occupy(&mut self, range: Run) -> Result<(), Lie> {
        let hole = self.holes.around(range.0).unwrap_or_default();
        let rests = [(hole.0, range.0), (range.1, hole.1)];
        self.take(range, hole, rests.map(|(start, end)| (start < end).then_some((start, end))))
    }

    /// Accepts that such an area was freed: all of it is allocated.
    ///
    /// # Errors
    /// [`Lie::Outside`], [`Lie::NotAllocated`]; nothing has changed.
    pub fn vacate(&mut self, (start, end): Run) -> Result<(), Lie> {
        let below = start.checked_sub(1).and_then(|last| self.holes.around(last));
        let above = self.holes.around(end);
        let whole = (below.map_or(start, |hole| hole.0), above.map_or(end, |hole| hole.1));
        self.free((start, end), [below, above], whole)
    }

    /// Returns the units of the longest hole.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.holes.longest()
    }

    /// Accepts that `range` could not be taken: it is empty, not inside, or not all free.
    ///
    /// # Errors
    /// [`Lie::Rejected`].
    pub fn take_rejected(&self, range: Run) -> Result<(), Lie> {
        let (start, end) = range;
        let around = self.holes.around(start);
        let could = start < end && around.is_some_and(|(_, hole_end)| end <= hole_end);
        if could { Err(Lie::Rejected { range }) } else { Ok(()) }
    }

    /// Accepts that `range` was freed. It merges with the `neighbours` below and above it, and `hole` is the result.
    ///
    /// # Errors
    /// A [`Lie`]; nothing has changed.
    pub fn free(&mut self, range: Run, neighbours: [Option<Run>; 2], hole: Run) -> Result<(), Lie> {
        let (start, end) = range;
        if start >= end || start < self.extent.0 || end > self.extent.1 {
            return Err(Lie::Outside { answer: range, window: self.extent });
        }
        let above = self.holes.first_above(start);
        if let Some(hole) = above.filter(|&(hole_start, _)| hole_start < end) {
            return Err(Lie::NotAllocated { freed: range, hole });
        }
        let below = start.checked_sub(1).and_then(|last| self.holes.around(last));
        let touching = [below, above.filter(|&(hole_start, _)| hole_start == end)];
        for (claimed, hole) in neighbours.into_iter().zip(touching) {
            if claimed != hole {
                return Err(Lie::WrongHole { claimed, hole });
            }
        }
        let whole = (touching[0].map_or(start, |hole| hole.0), touching[1].map_or(end, |hole| hole.1));
        if whole != hole {
            return Err(Lie::WrongHole { claimed: Some(hole), hole: Some(whole) });
        }
        touching.into_iter().flatten().for_each(|(start, _)| self.holes.remove(start));
        self.holes.insert(whole);
        Ok(())
    }

    /// Accepts that `range` could not be freed: it is empty, not inside, or overlaps `hole`.
    ///
    /// # Errors
    /// [`Lie::Rejected`] if all of it is taken; [`Lie::WrongHole`] if the lowest hole that it overlaps is another one.
    pub fn free_rejected(&self, range: Run, hole: Option<Run>) -> Result<(), Lie> {
        let (start, end) = range;
        if start >= end || start < self.extent.0 || end > self.extent.1 {
            return Ok(());
        }
        let overlapped = self.holes.first_above(start).filter(|&(hole_start, _)| hole_start < end);
        match (overlapped, hole) {
            (None, _) => Err(Lie::Rejected { range }),
            (Some(_), claimed) if claimed == overlapped => Ok(()),
            (Some(_), claimed) => Err(Lie::WrongHole { claimed, hole: overlapped }),
        }
    }

    /// Accepts the number of holes, of free units, and of units in the longest hole.
    ///
    /// # Errors
    /// [`Lie::Count`].
    pub fn counts(&self, claimed: (u64, u64, u64)) -> Result<(), Lie> {
        let counted = (self.holes.count(), self.holes.free(), self.holes.longest());
        if claimed == counted { Ok(()) } else { Err(Lie::Count { claimed, counted }) }
    }
}
