//! The search for the best fit: the smallest hole in which a request can be met, the lowest of equals.
//!
//! # Theory
//! The size of a hole is that of the whole hole, even where the window clips it: the choice leaves the large holes
//! whole. Within the hole the request gets the lowest address, as everywhere.

use super::FreeIndex;
use crate::Unit;
use va_base::{Request, Va, VaRange};

/// Returns the lowest address in `hole` at which `request` could be met.
pub(crate) fn within(unit: Unit, hole: VaRange, window: VaRange, request: &Request) -> Option<Va> {
    let start = hole.start().max(window.start()).align_up(request.align())?;
    let first = unit.whole(VaRange::new(start, Va::MAX)?).0;
    let taken = unit.range(first, first.checked_add(request.size().get())?)?;
    (hole.encloses(taken) && window.encloses(taken)).then_some(taken.start())
}

/// Returns the best fit after a look at each hole.
pub(crate) fn find<I: FreeIndex + ?Sized>(index: &I, window: VaRange, request: &Request) -> Option<Va> {
    let mut best: Option<(u64, Va)> = None;
    let mut next = index.hole_after(window.start());
    while let Some(hole) = next.filter(|hole| hole.start() < window.end()) {
        let size = hole.len_bytes();
        if best.is_none_or(|(smallest, _)| size < smallest)
            && let Some(at) = within(index.unit(), hole, window, request)
        {
            best = Some((size, at));
        }
        next = index.hole_after(hole.end());
    }
    best.map(|(_, at)| at)
}
