//! The search for an ample hole: the lowest one that holds an aligned range wherever the hole starts.
//!
//! # Theory
//! A hole of a size and an alignment together, less one unit, holds such a range whatever its place. So an index finds
//! it without a summary of any alignment. Shorter holes that hold one by their place are passed, so the answer may be
//! higher than the lowest fit. Linux searches for such a length, too, and takes a shorter hole only where its walk
//! passes one (`mm/vmalloc.c` 6.12, `find_vmap_lowest_match`).

use super::FreeIndex;
use crate::Unit;
use va_base::{Request, Va};

/// Returns the units of an ample hole; `None` from 2^52 up, more than a request can have.
#[inline(always)]
pub(crate) fn units(unit: Unit, request: &Request) -> Option<u64> {
    let before = (1u64 << unit.align_log2(request.align())) - 1;
    Some(request.size().get() + before).filter(|&units| units < 1 << 52)
}

/// Returns the lowest address of `request` in the lowest hole that is ample for it in its window.
pub(crate) fn find<I: FreeIndex + ?Sized>(index: &I, request: &Request) -> Option<Va> {
    let window = request.window().unwrap_or(index.default_window());
    let ample = Request::units(units(index.unit(), request)?, 1).ok()?.within(window);
    index.would_fit(&ample).ok()?.align_up(request.align())
}
