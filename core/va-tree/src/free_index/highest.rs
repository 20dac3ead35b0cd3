//! The search for the highest fit.
//!
//! # Theory
//! The window's end clips at most one hole, the highest. Every hole below it that encloses an aligned run of the size
//! fits, or reaches below the window. So a search that goes down from hole to hole, each of them enclosing such a run,
//! ends at the second.

use crate::Unit;
use va_base::{Request, Va, VaRange};

/// Returns the highest address in `window` at which `request` could be met. `below` returns the highest hole that starts
/// at or below an address and encloses a run of the request's size and alignment.
pub(crate) fn find(
    unit: Unit,
    window: VaRange,
    request: &Request,
    mut below: impl FnMut(Va) -> Option<VaRange>,
) -> Option<Va> {
    let (low, high) = unit.whole(window);
    let size = request.size().get();
    // The highest page at which the area ends inside the window: its hole starts there or below.
    let mut last = high.checked_sub(size)?;
    loop {
        let (start, end) = unit.whole(below(unit.address(last))?);
        let at = unit.floor(unit.address(end.min(high) - size).align_down(request.align()));
        if at >= start.max(low) {
            return Some(unit.address(at));
        }
        // What lies below ends at the start of this hole.
        last = start.checked_sub(1).filter(|_| start > low)?;
    }
}
