//! The search for the highest fit.
//!
//! # Theory
//! The window's end clips at most one hole, and its start at most one more. Every other hole that encloses an aligned
//! run of the size fits. So a search that goes down from hole to hole, each of them enclosing such a run, ends at the
//! third: [`FreeIndex::aligned_fit_below`] decides the cost.

use super::FreeIndex;
use va_base::{Request, Va};

/// Returns the highest address at which `request` could be met.
pub(super) fn find<I: FreeIndex + ?Sized>(index: &I, request: &Request) -> Option<Va> {
    let window = request.window().unwrap_or(index.default_window());
    let (low, high) = window.whole_pages();
    let (size, align) = (request.size().get(), request.align());
    // The highest page at which the area ends inside the window: its hole starts there or below.
    let mut last = high.checked_sub(size)?;
    loop {
        let (start, end) = index.aligned_fit_below(Va::from_page(last), request.size(), align)?.whole_pages();
        let at = Va::from_page(end.min(high) - size).align_down(align).page_floor();
        if at >= start.max(low) {
            return Some(Va::from_page(at));
        }
        // What lies below ends at the start of this hole.
        last = start.checked_sub(1).filter(|_| start > low)?;
    }
}
