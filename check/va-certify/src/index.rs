//! An index whose every answer is checked.

use crate::{Bound, Checker, Fit, Lie, Request};
use std::fmt;
use va_base::{Align, AllocError, FreeError, InvariantViolation, Pages, Va, VaRange};
use va_tree::certify::{self, Certify, Covered};
use va_tree::{FreeIndex, IndexMemory, Unit};

/// An index, and a checker that sees each of its answers with the reasons for it.
///
/// It is an index itself, so it goes where an index goes: into tests of random operations, fuzzing and replays. Each
/// call costs the call, O(F log n) for its reasons, and the check; the best fit costs a step a hole. A rejected
/// certificate stops the program.
///
/// ```
/// use va_base::{NoSlabs, Request, VaRange};
/// use va_certify::Certified;
/// use va_tree::{BTreeIndex, FreeIndex};
///
/// let space = VaRange::from_pages(16, 32).unwrap();
/// let mut index = Certified::new(BTreeIndex::new(space, space, NoSlabs)?);
/// let at = index.alloc(&Request::pages(3)?)?;
/// index.free(VaRange::from_size(at, 3 * 4096).unwrap())?;
/// assert!(index.alloc(&Request::pages(17)?).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Certified<I> {
    index: I,
    checker: Checker,
}

impl<I> fmt::Debug for Certified<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certified").field("checker", &self.checker).finish_non_exhaustive()
    }
}

/// The hole of an answer, and what covers all that is better.
struct Reasons {
    hole: Option<VaRange>,
    bounds: Vec<Bound>,
}

impl<I: Certify> Certified<I> {
    /// Wraps a new index: all of its extent is free.
    #[must_use]
    pub fn new(index: I) -> Self {
        let unit = index.unit().log2();
        let extent = index.extent();
        let checker = Checker::new(extent.start().get() >> unit, extent.end().get() >> unit);
        Self { index, checker }
    }

    /// Wraps an index and a checker of the same state.
    pub(crate) fn with(index: I, checker: Checker) -> Self {
        Self { index, checker }
    }

    /// Undoes the last change of the index by `undo`, without a certificate: the checker is that of before.
    pub(crate) fn undo(&mut self, before: &Checker, undo: impl FnOnce(&mut I) -> bool) -> bool {
        self.checker.clone_from(before);
        undo(&mut self.index)
    }

    /// Returns the index.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Returns the checker, which has seen all changes.
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    fn number(&self, at: Va) -> u64 {
        at.get() >> self.index.unit().log2()
    }

    /// Returns the units of a range, rounded to those that are whole.
    fn units(&self, range: VaRange) -> (u64, u64) {
        let log2 = self.index.unit().log2();
        let (start, end) = (range.start().get(), range.end().get());
        ((start >> log2) + u64::from(start & ((1 << log2) - 1) != 0), end >> log2)
    }

    fn request(&self, request: &va_base::Request, fit: Fit) -> Request {
        let window = request.window().unwrap_or(self.index.default_window());
        let (low, high) = self.units(window);
        let align_log2 = request.align().log2().saturating_sub(self.index.unit().log2());
        Request { size: request.size().get(), align_log2, low, high, fit }
    }

    /// Reads the reasons for an address, or for none, from the index.
    fn reasons(&self, request: &Request, at: Option<Va>) -> Reasons {
        let extent = self.units(self.index.extent());
        let (mut low, mut high) = (request.low.max(extent.0), request.high.min(extent.1));
        if let Some(at) = at.map(|at| self.number(at)) {
            match request.fit {
                Fit::Lowest => high = at + request.size - 1,
                Fit::Highest => low = at + 1,
                Fit::Best => {}
            }
        }
        let mut bounds = Vec::new();
        if low < high {
            let covered = Covered { low, high, size: request.size, align_log2: request.align_log2 };
            self.index.cover(covered, &mut |bound| bounds.push(converted(bound)));
        }
        Reasons { hole: at.and_then(|at| self.index.hole_below(at)), bounds }
    }

    /// Checks an answer, with reasons from before it.
    fn check_fit(&self, request: &Request, reasons: &Reasons, answer: &Result<Va, AllocError>) {
        let lie = match answer {
            Ok(at) => {
                let hole = self.units(reasons.hole.unwrap_or_default());
                self.checker.fits(request, self.number(*at), hole, &reasons.bounds)
            }
            Err(AllocError::NoSpace { .. }) => self.checker.fits_nowhere(request, &reasons.bounds),
            // A missing record, or a request that is none: no claim about addresses.
            Err(_) => Ok(()),
        };
        self.accept(lie, || format!("{request:?} -> {answer:?}, by {:?}", reasons.bounds));
    }

    fn accept(&self, lie: Result<(), Lie>, what: impl FnOnce() -> String) {
        if let Err(lie) = lie {
            panic!("a certificate is not accepted: {lie}: {}", what());
        }
    }

    /// Checks an answer that changes nothing.
    fn query(&self, request: &va_base::Request, fit: Fit, answer: &Result<Va, AllocError>) {
        let request = self.request(request, fit);
        self.check_fit(&request, &self.reasons(&request, answer.as_ref().ok().copied()), answer);
    }

    /// Takes by `alloc`. The reasons are read before, for the answer that the index gives without taking.
    fn allocate(
        &mut self,
        request: &va_base::Request,
        fit: Fit,
        alloc: impl FnOnce(&mut I) -> Result<Va, AllocError>,
    ) -> Result<Va, AllocError> {
        match self.allocate_step(request, fit, |index| alloc(index).map(Some)).transpose() {
            Some(answer) => answer,
            None => unreachable!("an alloc in one step"),
        }
    }

    /// Does the same with a step, which may leave more to do: then nothing was taken.
    fn allocate_step(
        &mut self,
        request: &va_base::Request,
        fit: Fit,
        alloc: impl FnOnce(&mut I) -> Result<Option<Va>, AllocError>,
    ) -> Result<Option<Va>, AllocError> {
        let plan = match fit {
            Fit::Lowest => self.index.would_fit(request),
            Fit::Highest => self.index.highest_fit(request),
            Fit::Best => self.index.best_fit(request),
        };
        let certified = self.request(request, fit);
        let reasons = self.reasons(&certified, plan.ok());
        let Some(answer) = alloc(&mut self.index).transpose() else {
            self.counts();
            return Ok(None);
        };
        self.check_fit(&certified, &reasons, &answer);
        self.allocated(certified.size, reasons.hole, answer).map(Some)
    }

    /// Follows an answer that was checked: if it is an address, `size` units of `hole` were taken there.
    fn allocated(
        &mut self,
        size: u64,
        hole: Option<VaRange>,
        answer: Result<Va, AllocError>,
    ) -> Result<Va, AllocError> {
        if let Ok(start) = answer.map(|at| self.number(at)) {
            self.took((start, start + size), hole);
        }
        self.counts();
        answer
    }

    /// Follows a change: `range` was taken from `hole`.
    fn took(&mut self, range: (u64, u64), hole: Option<VaRange>) {
        let log2 = self.index.unit().log2();
        let address = |unit: u64| Va::new(unit << log2);
        let below = range.0.checked_sub(1).and_then(|last| self.index.hole_below(address(last)));
        let below = below.map(|hole| self.units(hole)).filter(|&(_, end)| end == range.0);
        let above = self.index.hole_after(address(range.1)).map(|hole| self.units(hole));
        let above = above.filter(|&(start, _)| start == range.1);
        let hole = self.units(hole.unwrap_or_default());
        let lie = self.checker.take(range, hole, [below, above]);
        self.accept(lie, || format!("taken {range:?} of {hole:?}, left {below:?} and {above:?}"));
    }

    fn counts(&self) {
        let index = &self.index;
        let counts = (index.hole_count(), index.free_pages().get(), index.largest_hole().get());
        self.accept(self.checker.counts(counts), || "counts".to_string());
    }

    /// Returns true if a range is one of whole units inside the extent.
    fn is_a_range(&self, range: VaRange) -> bool {
        let mask = (1u64 << self.index.unit().log2()) - 1;
        let is_whole = (range.start().get() | range.end().get()) & mask == 0;
        is_whole && !range.is_empty() && self.index.extent().encloses(range)
    }
}

/// The claim of an index as the checker reads it.
fn converted(bound: certify::Bound) -> Bound {
    match bound {
        certify::Bound::AtMost { low, high, longest, align_log2 } => {
            Bound::AtMost { low, high, longest, align_log2 }
        }
        certify::Bound::Hole { low, high, start, end } => Bound::Hole { low, high, hole: (start, end) },
    }
}

impl<I: Certify> FreeIndex for Certified<I> {
    fn extent(&self) -> VaRange {
        self.index.extent()
    }

    fn unit(&self) -> Unit {
        self.index.unit()
    }

    fn default_window(&self) -> VaRange {
        self.index.default_window()
    }

    fn would_fit(&self, request: &va_base::Request) -> Result<Va, AllocError> {
        let answer = self.index.would_fit(request);
        self.query(request, Fit::Lowest, &answer);
        answer
    }

    fn alloc(&mut self, request: &va_base::Request) -> Result<Va, AllocError> {
        self.allocate(request, Fit::Lowest, |index| index.alloc(request))
    }

    fn alloc_step(&mut self, request: &va_base::Request) -> Result<Option<Va>, AllocError> {
        self.allocate_step(request, Fit::Lowest, |index| index.alloc_step(request))
    }

    fn alloc_highest_step(&mut self, request: &va_base::Request) -> Result<Option<Va>, AllocError> {
        self.allocate_step(request, Fit::Highest, |index| index.alloc_highest_step(request))
    }

    fn highest_fit(&self, request: &va_base::Request) -> Result<Va, AllocError> {
        let answer = self.index.highest_fit(request);
        self.query(request, Fit::Highest, &answer);
        answer
    }

    fn alloc_highest(&mut self, request: &va_base::Request) -> Result<Va, AllocError> {
        self.allocate(request, Fit::Highest, |index| index.alloc_highest(request))
    }

    fn best_fit(&self, request: &va_base::Request) -> Result<Va, AllocError> {
        let answer = self.index.best_fit(request);
        self.query(request, Fit::Best, &answer);
        answer
    }

    fn alloc_best(&mut self, request: &va_base::Request) -> Result<Va, AllocError> {
        self.allocate(request, Fit::Best, |index| index.alloc_best(request))
    }

    /// The answer is that of two searches with certificates: for an ample hole, and if there is none for the lowest fit.
    fn alloc_ample(&mut self, request: &va_base::Request) -> Result<Va, AllocError> {
        let plan = self.ample_fit(request);
        let hole = plan.ok().and_then(|at| self.index.hole_below(at));
        let answer = self.index.alloc_ample(request);
        if !matches!(answer, Err(AllocError::NoMeta { .. })) {
            assert_eq!(answer, plan, "{request:?} in an ample hole");
        }
        self.allocated(request.size().get(), hole, answer)
    }

    fn take(&mut self, range: VaRange) -> Result<va_tree::Fit, AllocError> {
        let hole = self.index.hole_below(range.start());
        let answer = self.index.take(range);
        let units = self.units(range);
        match answer {
            Ok(fit) => {
                let parts = self.units(hole.unwrap_or_default());
                self.took(units, hole);
                let edges = (units.0 == parts.0, units.1 == parts.1);
                let expected = match edges {
                    (true, true) => va_tree::Fit::Full,
                    (true, false) => va_tree::Fit::LeftEdge,
                    (false, true) => va_tree::Fit::RightEdge,
                    (false, false) => va_tree::Fit::NoEdge,
                };
                assert_eq!(fit, expected, "the position of {range} in {hole:?}");
            }
            Err(AllocError::BadRange { .. }) => assert!(!self.is_a_range(range), "{range} is a range"),
            Err(AllocError::Occupied { .. }) => {
                self.accept(self.checker.take_rejected(units), || format!("take {range}: {answer:?}"));
            }
            Err(_) => {}
        }
        self.counts();
        answer
    }

    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        let last = range.start().get().checked_sub(1).map(Va::new);
        let below = last.and_then(|last| self.index.hole_below(last));
        let below = below.filter(|hole| hole.end() == range.start()).map(|hole| self.units(hole));
        let above = self.index.hole_after(range.start()).filter(|hole| hole.start() == range.end());
        let above = above.map(|hole| self.units(hole));
        let answer = self.index.free(range);
        let units = self.units(range);
        match answer {
            Ok(()) => {
                let hole = self.index.hole_below(range.start()).unwrap_or_default();
                let lie = self.checker.free(units, [below, above], self.units(hole));
                self.accept(lie, || format!("freed {range} between {below:?} and {above:?} to {hole}"));
            }
            Err(FreeError::BadRange { .. }) => assert!(!self.is_a_range(range), "{range} is a range"),
            Err(FreeError::AlreadyFree { hole, .. }) => {
                let lie = self.checker.free_rejected(units, Some(self.units(hole)));
                self.accept(lie, || format!("free {range}: {answer:?}"));
            }
            // The checker does not know how many areas there are.
            Err(_) => {}
        }
        self.counts();
        answer
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        self.index.reserve_splits(pieces)
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        self.index.release_splits(pieces)
    }

    fn live(&self) -> u64 {
        self.index.live()
    }

    fn free_pages(&self) -> Pages {
        self.index.free_pages()
    }

    fn hole_count(&self) -> u64 {
        self.index.hole_count()
    }

    fn largest_hole(&self) -> Pages {
        self.index.largest_hole()
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        self.index.hole_after(at)
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        self.index.hole_below(at)
    }

    fn fit_below(&self, at: Va, size: Pages) -> Option<VaRange> {
        self.index.fit_below(at, size)
    }

    fn aligned_fit_below(&self, at: Va, size: Pages, align: Align) -> Option<VaRange> {
        self.index.aligned_fit_below(at, size, align)
    }

    fn memory(&self) -> IndexMemory {
        self.index.memory()
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.validate()
    }

    fn bug(&self, what: fmt::Arguments<'_>) -> ! {
        self.index.bug(what)
    }
}

impl<I: Certify> Certify for Certified<I> {
    fn cover(&self, covered: Covered, each: &mut dyn FnMut(certify::Bound)) {
        self.index.cover(covered, each);
    }

    fn shape(&self, each: &mut dyn FnMut(u64)) {
        self.index.shape(each);
    }
}
