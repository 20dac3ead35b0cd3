//! Reference models of the index of holes, in simple forms.
//!
//! [`ModelIndex`] is a sorted list of holes, searched from the front. [`PageIndex`] is one boolean a page. Both count
//! areas out as the trait demands. Both have no records, so they return `NoMeta` only for requests that no memory could
//! ever meet.

use va_base::{AllocError, FreeError, InvariantViolation, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_tree::{Congruent, Fit, FreeIndex, IndexMemory};

/// Returns the pages of `range`, if it is a range of whole pages of `index`.
fn pages_of(index: &impl FreeIndex, range: VaRange) -> Option<(u64, u64)> {
    let inside = range.is_page_aligned() && !range.is_empty() && index.extent().encloses(range);
    inside.then(|| range.whole_pages())
}

/// Returns the areas out plus `pieces`, which are at most one a page.
fn more_pieces(index: &impl FreeIndex, pieces: u64) -> Result<u64, AllocError> {
    let (live, pages) =
        (index.live().saturating_add(pieces), Pages::new(index.extent().len_bytes() / PAGE_SIZE));
    if pieces > 0 && live > pages.get() { Err(AllocError::TooManyAreas { live, pages }) } else { Ok(live) }
}

/// A sorted list of holes, in page numbers `[start, end)`.
#[derive(Clone, Debug)]
pub struct ModelIndex {
    first: u64,
    end: u64,
    default_window: VaRange,
    holes: Vec<(u64, u64)>,
    live: u64,
}

impl ModelIndex {
    /// Creates an index of the whole pages of `extent`, all free.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there is no whole page.
    pub fn new(extent: VaRange, default_window: VaRange) -> Result<Self, AllocError> {
        let (first, end) = extent.whole_pages();
        if first >= end {
            return Err(AllocError::BadRange { range: extent, extent: VaRange::ALL });
        }
        Ok(Self { first, end, default_window, holes: vec![(first, end)], live: 0 })
    }

    fn highest(&self, request: &Request) -> Option<u64> {
        let (low, high) = request.window().unwrap_or(self.default_window).whole_pages();
        let size = request.size().get();
        self.holes.iter().rev().find_map(|&(start, end)| {
            let at = Va::from_page(end.min(high).checked_sub(size)?).align_down(request.align()).page_floor();
            (at >= start.max(low)).then_some(at)
        })
    }

    fn lowest(&self, request: &Request) -> Option<u64> {
        self.holes.iter().find_map(|&hole| self.lowest_in(hole, request))
    }

    fn best(&self, request: &Request) -> Option<u64> {
        let fitting = self.holes.iter().filter_map(|&hole| Some((hole, self.lowest_in(hole, request)?)));
        // Of equals the first.
        fitting.min_by_key(|&((start, end), _)| end - start).map(|(_, at)| at)
    }

    fn lowest_in(&self, (start, end): (u64, u64), request: &Request) -> Option<u64> {
        let (low, high) = request.window().unwrap_or(self.default_window).whole_pages();
        let size = request.size().get();
        let at = Va::from_page(start.max(low)).align_up(request.align())?.page_ceil();
        // `start.max(low)` may be 2^52, one past the last page, which shifts to zero.
        (at >= start.max(low) && at + size <= end && at + size <= high).then_some(at)
    }

    fn cut(&mut self, start: u64, end: u64) -> Option<Fit> {
        // From the end, where a caller that takes areas in address order cuts.
        let at = self.holes.iter().rposition(|&(s, e)| s <= start && end <= e)?;
        let (hole_start, hole_end) = self.holes.remove(at);
        if end < hole_end {
            self.holes.insert(at, (end, hole_end));
        }
        if hole_start < start {
            self.holes.insert(at, (hole_start, start));
        }
        self.live += 1;
        Some(match (start == hole_start, end == hole_end) {
            (true, true) => Fit::Full,
            (true, false) => Fit::LeftEdge,
            (false, true) => Fit::RightEdge,
            (false, false) => Fit::NoEdge,
        })
    }
}

fn range(start: u64, end: u64) -> VaRange {
    VaRange::from_pages(start, end).unwrap_or_default()
}

impl FreeIndex for ModelIndex {
    fn extent(&self) -> VaRange {
        range(self.first, self.end)
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.lowest(request).map(Va::from_page).ok_or_else(|| self.no_space(request))
    }

    fn highest_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.highest(request).map(Va::from_page).ok_or_else(|| self.no_space(request))
    }

    fn best_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.best(request).map(Va::from_page).ok_or_else(|| self.no_space(request))
    }

    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let at = self.would_fit(request)?;
        let taken = self.cut(at.page_floor(), at.page_floor() + request.size().get());
        assert!(taken.is_some());
        Ok(at)
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        let bad = AllocError::BadRange { range, extent: self.extent() };
        let (start, end) = pages_of(self, range).ok_or(bad)?;
        self.cut(start, end).ok_or(AllocError::Occupied { range })
    }

    fn free(&mut self, back: VaRange) -> Result<(), FreeError> {
        let bad = FreeError::BadRange { range: back, extent: self.extent() };
        let (start, end) = pages_of(self, back).ok_or(bad)?;
        if let Some(&(s, e)) = self.holes.iter().find(|&&(s, e)| s < end && start < e) {
            return Err(FreeError::AlreadyFree { range: back, hole: range(s, e) });
        }
        let mut holes = self.holes.clone();
        holes.push((start, end));
        holes.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (s, e) in holes {
            match merged.last_mut() {
                Some(last) if last.1 == s => last.1 = e,
                _ => merged.push((s, e)),
            }
        }
        // FT6: one area less is out, and holes are never more than areas plus one.
        if self.live == 0 || merged.len() as u64 > self.live {
            return Err(FreeError::TooManySplits { range: back, live: self.live });
        }
        self.live -= 1;
        self.holes = merged;
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        self.live = more_pieces(self, pieces)?;
        Ok(())
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        let mut released = 0;
        while released < pieces && self.live > 0 && self.holes.len() as u64 <= self.live {
            self.live -= 1;
            released += 1;
        }
        released
    }

    fn live(&self) -> u64 {
        self.live
    }

    fn free_pages(&self) -> Pages {
        Pages::new(self.holes.iter().map(|&(s, e)| e - s).sum())
    }

    fn hole_count(&self) -> u64 {
        self.holes.len() as u64
    }

    fn largest_hole(&self) -> Pages {
        Pages::new(self.holes.iter().map(|&(s, e)| e - s).max().unwrap_or(0))
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        self.holes.iter().map(|&(s, e)| range(s, e)).find(|hole| hole.end() > at)
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        self.holes.iter().rev().map(|&(s, e)| range(s, e)).find(|hole| hole.start() <= at)
    }

    /// Tries the highest base, then the ends of holes downward. For each area and each hole, the highest base at which
    /// the area ends with the hole is a candidate. The result is one of these or the top.
    fn find_congruent(&self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        let window = areas.window().unwrap_or(self.default_window);
        let low = window.start().max(self.extent().start());
        let high = window.end().min(self.extent().end());
        let span = areas.span_bytes();
        let mut candidates = vec![high.align_down(areas.align()).get().checked_sub(span)];
        for &(_, hole_end) in &self.holes {
            for &(offset, size) in areas.areas() {
                let end = Va::from_page(hole_end).align_down(areas.align()).get();
                candidates.push(end.checked_sub(offset + size));
            }
        }
        let top = candidates[0];
        let fits = |base: u64| {
            base >= low.get()
                && areas.areas().iter().all(|&(offset, size)| {
                    self.holes.iter().any(|&(s, e)| {
                        s * PAGE_SIZE <= base + offset && base + offset + size <= e * PAGE_SIZE
                    })
                })
        };
        candidates
            .into_iter()
            .flatten()
            .filter(|&base| top.is_some_and(|top| base <= top) && fits(base))
            .max()
            .map(Va::new)
            .ok_or(AllocError::NoSpace {
                requested: areas.pages(),
                align: areas.align(),
                window,
                largest: self.largest_hole(),
            })
    }

    fn memory(&self) -> IndexMemory {
        let used_bytes = self.holes.len() * size_of::<(u64, u64)>();
        IndexMemory {
            used_bytes,
            row_bytes: 0,
            allocated_bytes: self.holes.capacity() * size_of::<(u64, u64)>(),
        }
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        let mut last = None;
        for &(start, end) in &self.holes {
            let at = Va::from_page(start);
            if start >= end || start < self.first || end > self.end {
                return Err(InvariantViolation { rule: "FT4", at, expected: self.first, actual: start });
            }
            if let Some(last) = last {
                InvariantViolation::check(last <= start, "FT1", at, last, start)?;
                InvariantViolation::check(last != start, "FT2", at, last, start)?;
            }
            last = Some(end);
        }
        let (holes, live) = (self.holes.len() as u64, self.live);
        InvariantViolation::check(holes <= live + 1, "FT6", Va::ZERO, live + 1, holes)
    }
}

/// One boolean a page, for small spaces: a model of the model.
#[derive(Clone, Debug)]
pub struct PageIndex {
    first: u64,
    default_window: VaRange,
    free: Vec<bool>,
    live: u64,
}

impl PageIndex {
    /// Creates an index of the whole pages of `extent`, all free.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there is no whole page, or over 2^16 of them: this is for small spaces.
    pub fn new(extent: VaRange, default_window: VaRange) -> Result<Self, AllocError> {
        let (first, end) = extent.whole_pages();
        if first >= end || end - first > 1 << 16 {
            return Err(AllocError::BadRange { range: extent, extent: VaRange::ALL });
        }
        Ok(Self { first, default_window, free: vec![true; (end - first) as usize], live: 0 })
    }

    fn is_free(&self, page: u64) -> bool {
        page.checked_sub(self.first).and_then(|at| self.free.get(at as usize)).copied().unwrap_or(false)
    }

    fn all(&self, start: u64, size: u64, free: bool) -> bool {
        size <= self.free.len() as u64 && (start..start + size).all(|page| self.is_free(page) == free)
    }

    fn set(&mut self, start: u64, end: u64, free: bool) {
        for page in start..end {
            self.free[(page - self.first) as usize] = free;
        }
    }

    fn runs(&self) -> Vec<VaRange> {
        let end = self.first + self.free.len() as u64;
        let starts =
            (self.first..end).filter(|&page| self.is_free(page) && !self.is_free(page.wrapping_sub(1)));
        starts.map(|start| range(start, (start..).find(|&page| !self.is_free(page)).unwrap_or(end))).collect()
    }
}

impl PageIndex {
    fn pages(&self) -> core::ops::Range<u64> {
        self.first..self.first + self.free.len() as u64
    }

    fn fits(&self, request: &Request, page: u64) -> bool {
        let (low, high) = request.window().unwrap_or(self.default_window).whole_pages();
        let size = request.size().get();
        Va::from_page(page).is_aligned(request.align())
            && page >= low
            && page.checked_add(size).is_some_and(|end| end <= high)
            && self.all(page, size, true)
    }

    fn found(&self, request: &Request, page: Option<u64>) -> Result<Va, AllocError> {
        page.map(Va::from_page).ok_or_else(|| self.no_space(request))
    }
}

impl FreeIndex for PageIndex {
    fn extent(&self) -> VaRange {
        range(self.first, self.first + self.free.len() as u64)
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.found(request, self.pages().find(|&page| self.fits(request, page)))
    }

    fn highest_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.found(request, self.pages().rfind(|&page| self.fits(request, page)))
    }

    fn best_fit(&self, request: &Request) -> Result<Va, AllocError> {
        let mut runs: Vec<_> = self.runs().into_iter().map(VaRange::whole_pages).collect();
        runs.sort_by_key(|&(start, end)| (end - start, start));
        let page =
            runs.into_iter().find_map(|(start, end)| (start..end).find(|&page| self.fits(request, page)));
        self.found(request, page)
    }

    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let at = self.would_fit(request)?;
        self.set(at.page_floor(), at.page_floor() + request.size().get(), false);
        self.live += 1;
        Ok(at)
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        let bad = AllocError::BadRange { range, extent: self.extent() };
        let (start, end) = pages_of(self, range).ok_or(bad)?;
        if !self.all(start, end - start, true) {
            return Err(AllocError::Occupied { range });
        }
        self.set(start, end, false);
        self.live += 1;
        Ok(match (self.is_free(start.wrapping_sub(1)), self.is_free(end)) {
            (false, false) => Fit::Full,
            (false, true) => Fit::LeftEdge,
            (true, false) => Fit::RightEdge,
            (true, true) => Fit::NoEdge,
        })
    }

    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        let bad = FreeError::BadRange { range, extent: self.extent() };
        let (start, end) = pages_of(self, range).ok_or(bad)?;
        if let Some(hole) = self.runs().into_iter().find(|hole| hole.overlaps(range)) {
            return Err(FreeError::AlreadyFree { range, hole });
        }
        self.set(start, end, true);
        if self.live == 0 || self.runs().len() as u64 > self.live {
            self.set(start, end, false);
            return Err(FreeError::TooManySplits { range, live: self.live });
        }
        self.live -= 1;
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        self.live = more_pieces(self, pieces)?;
        Ok(())
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        let spare = (self.live + 1).saturating_sub(self.hole_count()).min(self.live).min(pieces);
        self.live -= spare;
        spare
    }

    fn live(&self) -> u64 {
        self.live
    }

    fn free_pages(&self) -> Pages {
        Pages::new(self.free.iter().filter(|&&free| free).count() as u64)
    }

    fn hole_count(&self) -> u64 {
        self.runs().len() as u64
    }

    fn largest_hole(&self) -> Pages {
        Pages::new(self.runs().iter().map(|run| run.len_bytes() / PAGE_SIZE).max().unwrap_or(0))
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        self.runs().into_iter().find(|run| run.end() > at)
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        self.runs().into_iter().rev().find(|run| run.start() <= at)
    }

    /// Tries every base from the top down.
    fn find_congruent(&self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        let window = areas.window().unwrap_or(self.default_window);
        let low = window.start().max(self.extent().start());
        let high = window.end().min(self.extent().end());
        let top = high.get().checked_sub(areas.span_bytes()).map_or(0, |top| top / PAGE_SIZE + 1);
        (self.first..top)
            .rev()
            .find(|&page| {
                Va::from_page(page).is_aligned(areas.align())
                    && Va::from_page(page) >= low
                    && areas
                        .areas()
                        .iter()
                        .all(|&(offset, size)| self.all(page + offset / PAGE_SIZE, size / PAGE_SIZE, true))
            })
            .map(Va::from_page)
            .ok_or(AllocError::NoSpace {
                requested: areas.pages(),
                align: areas.align(),
                window,
                largest: self.largest_hole(),
            })
    }

    fn memory(&self) -> IndexMemory {
        IndexMemory { used_bytes: self.free.len(), row_bytes: 0, allocated_bytes: self.free.capacity() }
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        let (holes, live) = (self.hole_count(), self.live);
        InvariantViolation::check(holes <= live + 1, "FT6", Va::ZERO, live + 1, holes)
    }
}
