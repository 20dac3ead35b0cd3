//! Several ranges at fixed distances from one base, as high as possible (`pcpu_get_vm_areas`).
//!
//! # Theory
//! A percpu chunk is one area per NUMA group, at distances fixed at boot. The base is the highest multiple of the
//! alignment at which every area lies in a hole. In the search `base` is always an upper bound of the result. The
//! search examines one area after the other. If one does not lie in a hole, it lowers `base` to the next value at which
//! that area would. When a full round changes nothing, all fit.
//!
//! ```text
//!    base                      areas A (offset 0) and B; B sticks out, so base drops until B lies in the next hole below
//!     |AA|       |BB|
//!   #######..###..#########
//!  |AA|       |BB|
//! ```
//! `base` only falls, and each step passes at least one end of a hole for one area: O(holes above the result x areas)
//! lookups. It starts at the top of the window because Linux keeps percpu chunks there, away from `vmalloc`.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `pcpu_get_vm_areas`); the result is the same, the walk is our own.

use super::{FreeIndex, units_of};
use va_base::{Align, AllocError, PAGE_SIZE, Pages, RequestError, Va, VaRange};

/// Areas to be taken together: `(offset, size)` in bytes from a common base.
///
/// A value proves that offsets and sizes are multiples of the alignment, that no area is empty, and that they are
/// disjoint and in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct Congruent<'a> {
    areas: &'a [(u64, u64)],
    align: Align,
    window: Option<VaRange>,
}

impl<'a> Congruent<'a> {
    /// Returns the request for `areas`, ascending `(offset, size)` pairs in bytes, whose base is a multiple of
    /// `align_bytes` (of a page, if that is larger), in the default window.
    ///
    /// # Errors
    /// [`RequestError::BadAlign`] unless `align_bytes` is a power of two; [`RequestError::BadArea`] with the first one
    /// that is empty, not aligned, past `2^64` or not after the one before; [`RequestError::NoArea`].
    pub fn new(areas: &'a [(u64, u64)], align_bytes: u64) -> Result<Self, RequestError> {
        let align = Align::new(align_bytes.max(1)).ok_or(RequestError::BadAlign { align_bytes })?;
        if align_bytes == 0 {
            return Err(RequestError::BadAlign { align_bytes });
        }
        let align = align.max(Align::PAGE);
        let mut end = 0u64;
        for &(offset, size_bytes) in areas {
            let bad = RequestError::BadArea { offset_bytes: offset, size_bytes, align_bytes: align.bytes() };
            let aligned = Va::new(offset).is_aligned(align) && Va::new(size_bytes).is_aligned(align);
            if !aligned || size_bytes == 0 || offset < end {
                return Err(bad);
            }
            end = offset.checked_add(size_bytes).ok_or(bad)?;
        }
        if areas.is_empty() {
            return Err(RequestError::NoArea);
        }
        Ok(Self { areas, align, window: None })
    }

    /// Returns the same request, to be met inside `window`.
    #[must_use]
    pub fn within(self, window: VaRange) -> Self {
        Self { window: Some(window), ..self }
    }

    /// Returns the `(offset, size)` pairs, in bytes.
    #[must_use]
    pub fn areas(&self) -> &'a [(u64, u64)] {
        self.areas
    }

    /// Returns the alignment of the base.
    #[must_use]
    pub fn align(&self) -> Align {
        self.align
    }

    /// Returns the window of the areas; `None` is the default window.
    #[must_use]
    pub fn window(&self) -> Option<VaRange> {
        self.window
    }

    /// Returns the bytes from the base to the end of the last area.
    #[must_use]
    pub fn span_bytes(&self) -> u64 {
        self.areas.last().map_or(0, |&(offset, size)| offset + size)
    }

    /// Returns the pages of all areas together.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.areas.iter().map(|&(_, size)| size / PAGE_SIZE).sum())
    }

    fn no_space(&self, index: &(impl FreeIndex + ?Sized), window: VaRange) -> AllocError {
        AllocError::NoSpace {
            requested: self.pages(),
            align: self.align,
            window,
            largest: index.largest_hole(),
        }
    }
}

/// Finds the highest base: a lookup for each area, and one more for each hole above it that could hold an area.
pub(crate) fn find_base<I: FreeIndex + ?Sized>(index: &I, request: &Congruent<'_>) -> Result<Va, AllocError> {
    let window = request.window.unwrap_or(index.default_window());
    let (low, high) = (window.start().max(index.extent().start()), window.end().min(index.extent().end()));
    let none = || request.no_space(index, window);
    let span = request.span_bytes();
    // The highest base that keeps the last area inside the window.
    let high = high.align_down(request.align).get();
    let mut base = high.checked_sub(span).ok_or_else(none)?;
    // How many areas in a row lie in holes at this base, and which is next: from the highest down, as the top falls
    // first.
    let (mut settled, mut next) = (0, request.areas.len() - 1);
    while settled < request.areas.len() {
        if base < low.get() {
            return Err(none());
        }
        let (offset, size) = request.areas[next];
        // Cannot overflow: base + span <= high.
        let (start, end) = (base + offset, base + offset + size);
        // The hole that must contain the area starts at or below its start; of those the highest that is not too small.
        let hole =
            index.fit_below(Va::new(start), Pages::new(size >> index.unit().log2())).ok_or_else(none)?;
        if hole.end().get() >= end {
            settled += 1;
            next = if next == 0 { request.areas.len() - 1 } else { next - 1 };
        } else {
            // The hole ends too early: the area can end no higher than the hole does.
            let hole_end = hole.end().align_down(request.align).get();
            base = hole_end.checked_sub(offset + size).ok_or_else(none)?;
            settled = 0;
        }
    }
    Ok(Va::new(base))
}

/// Takes every area at the highest base, or none.
pub(crate) fn take_all<I: FreeIndex + ?Sized>(
    index: &mut I,
    request: &Congruent<'_>,
) -> Result<Va, AllocError> {
    let base = find_base(index, request)?;
    // Each take adds an area and at worst a hole: two records each, reserved here, so that no take below fails. More
    // areas and holes than pages there are never.
    let spare = units_of(index).saturating_sub(index.live());
    let mut pieces = (2 * request.areas.len() as u64).min(spare);
    index.reserve_splits(pieces)?;
    for (done, &(offset, size)) in request.areas.iter().enumerate() {
        pieces -= index.release_splits(pieces.min(2));
        let range = VaRange::from_size(Va::new(base.get() + offset), size);
        match range.map(|range| index.take(range)) {
            Some(Ok(_)) => {}
            // The caller reserved more splits than there are pages out: those count as areas, and hide the bound.
            Some(Err(error @ AllocError::NoMeta { .. })) => {
                undo(index, base, &request.areas[..done], pieces);
                return Err(error);
            }
            // `find_base` saw every range free.
            taken => index.bug(format_args!("SP4: congruent area at {base} + {offset:#x}: {taken:?}")),
        }
    }
    Ok(base)
}

/// Frees the areas that were taken, and releases the records for the others.
#[cold]
fn undo<I: FreeIndex + ?Sized>(index: &mut I, base: Va, done: &[(u64, u64)], pieces: u64) {
    for &(offset, size) in done {
        // It was taken a moment ago.
        let _free = VaRange::from_size(Va::new(base.get() + offset), size).map(|range| index.free(range));
    }
    let _released = index.release_splits(pieces);
}
