//! Checks of the hints against the bits: PH1 to PH4.

use super::{Hints, Rules, ScanHints};
use crate::bitmap::{self, PAGE_BITS};
use crate::engine::{View, Wrong};

/// Checks every page and the chunk.
pub(super) fn check<R: Rules>(view: &View<'_, ScanHints<R>>) -> Result<(), Wrong> {
    for page in 0..view.pages {
        let base = page * PAGE_BITS;
        let block = &view.blocks[page as usize];
        Wrong::unless(block.bits == PAGE_BITS, "PH1", base, PAGE_BITS, block.bits)?;
        runs(view, base, block, true)?;
        edges(view, base, block)?;
    }
    // The edges in the head of a chunk are never read. Its runs are computed from the edges of pages.
    runs(view, 0, view.head, R::EXACT_EDGES)
}

/// Checks the runs, if they are `exact`, and `first_free`.
fn runs<R: Rules>(view: &View<'_, ScanHints<R>>, base: u32, hints: &Hints, exact: bool) -> Result<(), Wrong> {
    let free = |rule, start: u32, size: u32| {
        let inside = size == 0 || start + size <= hints.bits;
        Wrong::unless(inside, rule, base + start, hints.bits, start + size)?;
        let used = bitmap::next_set(view.map, base + start, base + start + size);
        Wrong::unless(size == 0 || used == base + start + size, rule, base + start, size, used)
    };
    if exact {
        free("PH1", hints.contig_start, hints.contig)?;
        free("PH2", hints.scan_start, hints.scan)?;
    }
    let first = bitmap::next_clear(view.map, base, base + hints.bits) - base;
    // A page that an object covers whole retains its `first_free`; no search reads it.
    Wrong::unless(hints.first_free <= first, "PH4", base, first, hints.first_free)
}

fn edges<R: Rules>(view: &View<'_, ScanHints<R>>, base: u32, block: &Hints) -> Result<(), Wrong> {
    let left = bitmap::next_set(view.map, base, base + PAGE_BITS) - base;
    let sound = (block.left_free <= left || !R::EXACT_EDGES) && (block.left_free > 0 || left == 0);
    Wrong::unless(sound, "PH3", base, left, block.left_free)?;
    let right = base + PAGE_BITS - bitmap::after_last_set(view.map, base, base + PAGE_BITS);
    // A search skips pages whose longest run is too short, their edges at the end included.
    let right = right.min(block.contig);
    Wrong::unless(block.right_free <= right, "PH3", base + PAGE_BITS, right, block.right_free)
}
