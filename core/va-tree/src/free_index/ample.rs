//! The search for an ample hole: the lowest one that holds an aligned range wherever the hole starts.
//!
//! # Theory
//! A hole of a size and an alignment together, less one unit, holds such a range whatever its place. So an index finds
//! it without a summary of any alignment. Shorter holes that hold one by their place are passed, so the answer may be
//! higher than the lowest fit. Linux searches so (`mm/vmalloc.c` 6.12, `find_vmap_lowest_match`).

use super::FreeIndex;
use va_base::{Request, Va};

/// Returns the lowest address of `request` in the lowest hole that is ample for it in its window.
pub(crate) fn find<I: FreeIndex + ?Sized>(index: &I, request: &Request) -> Option<Va> {
    let before = (1u64 << index.unit().align_log2(request.align())) - 1;
    let window = request.window().unwrap_or(index.default_window());
    let ample = Request::units(request.size().get().checked_add(before)?, 1).ok()?.within(window);
    index.would_fit(&ample).ok()?.align_up(request.align())
}
