//! Address spaces as strings, one character a page: `.` is free, a letter is an area.

use va_base::{PAGE_SIZE, Request, VaRange};
use va_tree::FreeIndex;

/// Takes all pages that are not `.` in `strip`, each run of one letter as one area, from an index of that many pages.
///
/// # Panics
/// If the index returns an error: the strip is then not one of a fresh index.
pub fn lay(index: &mut impl FreeIndex, strip: &str) {
    let first = index.extent().start().page_floor();
    let pages: Vec<char> = strip.chars().collect();
    let mut at = 0;
    while at < pages.len() {
        let run = pages[at..].iter().take_while(|&&page| page == pages[at]).count();
        if pages[at] != '.' {
            let range = VaRange::from_pages(first + at as u64, first + (at + run) as u64).unwrap_or_default();
            if let Err(error) = index.take(range) {
                panic!("cannot lay {strip:?}: {error}");
            }
        }
        at += run;
    }
}

/// Draws free pages as `.` and others as `#`.
pub fn draw(index: &impl FreeIndex) -> String {
    let (first, end) = index.extent().whole_pages();
    let mut strip = vec!['#'; (end - first) as usize];
    for hole in index.holes() {
        let (from, to) = hole.whole_pages();
        strip[(from - first) as usize..(to - first) as usize].fill('.');
    }
    strip.into_iter().collect()
}

/// Takes `request` and draws its pages as `a`, others as [`draw`] does; or returns the error.
pub fn alloc(index: &mut impl FreeIndex, request: &Request) -> String {
    match index.alloc(request) {
        Ok(at) => {
            let from = (at.page_floor() - index.extent().start().page_floor()) as usize;
            let mut strip: Vec<char> = draw(index).chars().collect();
            strip[from..from + request.size().get() as usize].fill('a');
            strip.into_iter().collect()
        }
        Err(error) => error.to_string(),
    }
}

/// Makes `holes` (in pages, freed in this order) the only holes of a fresh index.
///
/// # Panics
/// If the index returns an error: the holes are then not disjoint ranges of it.
pub fn leave(index: &mut impl FreeIndex, holes: &[(u64, u64)]) {
    let all = index.extent();
    // A fragment for each hole, and one for the pages that remain allocated before it; no more than there are pages.
    let pieces = (2 * holes.len() as u64).min(all.len_bytes() / PAGE_SIZE - 1);
    let pieces = index.take(all).map(|_| index.reserve_splits(pieces));
    if !matches!(pieces, Ok(Ok(()))) {
        panic!("cannot take {all}: {pieces:?}");
    }
    for &(first, end) in holes {
        let hole = VaRange::from_pages(first, end).unwrap_or_default();
        if let Err(error) = index.free(hole) {
            panic!("cannot leave {hole}: {error}");
        }
    }
}
