//! One page: its longest run, and a bound on all other runs.
//!
//! # Theory
//! To compute what fits after a change, every run of the page would have to be read; there may be 512. Instead the page
//! stores its longest run, and for each alignment the best of all others, the `rest`:
//!
//! ```text
//!   U..UU.UUUU..................UU.U     best = [10, 28)     rest = fits of the runs [1,3) [5,6) [30,31)
//! ```
//!
//! A take from the best run leaves two runs: the longer is the new best, the other joins the rest. A take from the rest
//! may have been from its best run for some alignment: that lane is tainted, so it is only a bound. The taint does not
//! matter while the best run holds more; when it does not, the page is read again.
//!
//! # Invariants
//! - **PR1 page-exact**  for each alignment, the better of the best run and the rest is what fits in the page, and both
//!   edges are exact.
//! - **PR2 rest-bounds**  the rest is at least what fits the runs other than the best, and exactly that where it is not
//!   tainted.

use crate::bitmap::{self, PAGE_BITS, WORD_BITS, Word};
use crate::fits::{ALIGN_MASK, ALIGNS, CAP, Fits, LANES, lanes};

const BEST_START: usize = ALIGNS;
const BEST_END: usize = ALIGNS + 1;
/// Set in a lane that is only a bound. Runs that are not a whole page are shorter.
const TAINT: i16 = 1 << 14;

/// The record of a page beside its [`Fits`]: the rest, and the start and end of the best run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rest(Fits);

impl Rest {
    #[inline]
    pub(super) fn load(record: &Fits) -> Self {
        Self(*record)
    }

    #[inline]
    pub(super) fn store(self) -> Fits {
        self.0
    }

    #[inline]
    fn new(rest: Fits, best: (u32, u32)) -> Self {
        Self(rest.with(best.0, best.1))
    }

    /// Returns the best run, from its start to its end.
    #[inline]
    pub(super) fn best(&self) -> (u32, u32) {
        (self.0.0[BEST_START] as u32, self.0.0[BEST_END] as u32)
    }

    /// Returns a bound on what fits in the other runs.
    #[inline]
    pub(super) fn fit(&self, lane: usize) -> i16 {
        self.0.0[lane % LANES] & !TAINT
    }

    fn is_tainted(&self, lane: usize) -> bool {
        self.0.0[lane] & TAINT != 0
    }

    /// Returns the rest without the removed run `gone` and with the new run `come`.
    ///
    /// If the removed run was as good as all the rest, the remaining best is unknown: the lane is tainted, until a
    /// new run is as good.
    #[inline(always)]
    fn changed(self, gone: Fits, come: Fits) -> Fits {
        let lanes = lanes(|lane| {
            let (gone, come) = (gone.0[lane], come.0[lane]);
            let known = self.0.0[lane] & !TAINT;
            let taint = if gone > 0 && gone == known { TAINT } else { self.0.0[lane] & TAINT };
            (if come > 0 && come >= known { come } else { known | taint }) & ALIGN_MASK[lane]
        });
        Fits(lanes)
    }
}

/// Returns a page that is wholly free.
pub(super) fn whole() -> (Fits, Rest) {
    let fits = Fits::of_run(0, PAGE_BITS).with_edges(PAGE_BITS, PAGE_BITS);
    (fits, Rest::new(Fits::NONE, (0, PAGE_BITS)))
}

/// Returns a page without a free bit.
fn full() -> (Fits, Rest) {
    (Fits::NONE, Rest::new(Fits::NONE, (0, 0)))
}

/// Reads a page, whose bits begin at `base`.
#[cold]
pub(super) fn read(map: &[Word], base: u32) -> (Fits, Rest) {
    let end = base + PAGE_BITS;
    let (mut best, mut rest) = ((0, 0), Fits::NONE);
    let mut start = bitmap::next_clear(map, base, end);
    while start < end {
        let stop = bitmap::next_set(map, start, end);
        let run = (start - base, stop - base);
        let other = if run.1 - run.0 > best.1 - best.0 { core::mem::replace(&mut best, run) } else { run };
        rest = rest.max(Fits::of_run(other.0, other.1));
        start = bitmap::next_clear(map, stop, end);
    }
    finish(map, base, rest, best)
}

/// Returns what fits, given the rest and the best run; and both edges.
#[inline(always)]
fn finish(map: &[Word], base: u32, rest: Fits, best: (u32, u32)) -> (Fits, Rest) {
    let (start, end) = best;
    let fits = Fits::of_run(start, end);
    // If a tainted lane exceeds the best run, a bound would decide: the page is read again.
    let mut doubt = 0;
    for lane in 0..LANES {
        let more = if rest.0[lane] & !TAINT > fits.0[lane] { TAINT } else { 0 };
        doubt |= rest.0[lane] & more;
    }
    if doubt != 0 {
        return read(map, base);
    }
    let stop = base + PAGE_BITS;
    let left = if start == 0 { end } else { bitmap::next_set(map, base, stop) - base };
    let right = if end == PAGE_BITS { end - start } else { stop - bitmap::after_last_set(map, base, stop) };
    let others = Fits(lanes(|lane| rest.0[lane] & !TAINT));
    (fits.max(others).with_edges(left, right), Rest::new(rest, best))
}

/// Returns the run around `[start, end)` of a page, with the free bits on both sides of it.
#[inline]
fn around(map: &[Word], base: u32, start: u32, end: u32) -> (u32, u32) {
    let from = bitmap::after_last_set(map, base, base + start) - base;
    let to = bitmap::next_set(map, base + end, base + PAGE_BITS) - base;
    (from, to)
}

/// Returns the page after `[start, end)` of it was taken; its bits are set already.
#[inline]
pub(super) fn take(map: &[Word], base: u32, rest: Rest, start: u32, end: u32) -> (Fits, Rest) {
    if end - start == PAGE_BITS {
        return full();
    }
    let best = rest.best();
    if best.0 <= start && end <= best.1 {
        let (left, right) = ((best.0, start), (end, best.1));
        let longer = right.1 - right.0 >= left.1 - left.0;
        let (best, other) = if longer { (right, left) } else { (left, right) };
        let piece = Fits::of_run(other.0, other.1);
        return finish(map, base, rest.changed(Fits::NONE, piece), best);
    }
    let (from, to) = around(map, base, start, end);
    let pieces = Fits::of_run(from, start).max(Fits::of_run(end, to));
    finish(map, base, rest.changed(Fits::of_run(from, to), pieces), best)
}

/// Returns the page after `[start, end)` of it was freed; its bits are clear already.
#[inline]
pub(super) fn freed(map: &[Word], base: u32, rest: Rest, start: u32, end: u32) -> (Fits, Rest) {
    let (from, to) = around(map, base, start, end);
    if to - from == PAGE_BITS {
        return whole();
    }
    let best = rest.best();
    let has_best = best.1 > best.0;
    if has_best && from <= best.0 && best.1 <= to {
        // One neighbour was the best run, the other one is in the rest.
        let other = if best.1 == start { (end, to) } else { (from, start) };
        return finish(map, base, rest.changed(Fits::of_run(other.0, other.1), Fits::NONE), (from, to));
    }
    if to - from > best.1 - best.0 {
        let neighbours = Fits::of_run(from, start).max(Fits::of_run(end, to));
        let old = Fits::of_run(best.0, best.1);
        return finish(map, base, rest.changed(neighbours, old), (from, to));
    }
    // It is at least as good as the neighbours that it merges.
    finish(map, base, rest.changed(Fits::NONE, Fits::of_run(from, to)), best)
}

/// Returns the lowest bit of a page where `bits` aligned to `align` are free, counted from its beginning. There is one.
#[inline]
pub(super) fn lowest(map: &[Word], base: u32, rest: Rest, bits: u32, align: u32) -> Option<u32> {
    let lane = align.trailing_zeros() as usize;
    let aligned = |at: u32| at.next_multiple_of(align);
    let (start, end) = rest.best();
    if (rest.fit(lane) as u32) < bits {
        return Some(aligned(start)).filter(|at| at + bits <= end);
    }
    if bits <= WORD_BITS {
        return lowest_in_words(map, base, bits, align);
    }
    let mut start = bitmap::next_clear(map, base, base + PAGE_BITS);
    while start < base + PAGE_BITS {
        let stop = bitmap::next_set(map, start, base + PAGE_BITS);
        let at = aligned(start - base);
        if base + at + bits <= stop {
            return Some(at);
        }
        start = bitmap::next_clear(map, stop, base + PAGE_BITS);
    }
    None
}

/// Returns the same for at most 64 bits: tries all bits of a word at once.
fn lowest_in_words(map: &[Word], base: u32, bits: u32, align: u32) -> Option<u32> {
    let first = (base / WORD_BITS) as usize;
    let words = &map[first..first + (PAGE_BITS / WORD_BITS) as usize];
    let places = bitmap::MULTIPLES[align.trailing_zeros().min(6) as usize];
    for (at, word) in words.iter().enumerate() {
        let start = at as u32 * WORD_BITS;
        if word.0 == u64::MAX || !start.is_multiple_of(align.min(PAGE_BITS)) && align > WORD_BITS {
            continue;
        }
        let after = words.get(at + 1).map_or(0, |word| !word.0);
        let mut free = u128::from(!word.0) | u128::from(after) << WORD_BITS;
        // Bits after which so many are free; doubled up to all of them.
        let mut run = 1;
        while run < bits {
            let more = run.min(bits - run);
            free &= free >> more;
            run += more;
        }
        let found = free as u64 & places;
        if found != 0 {
            return Some(start + found.trailing_zeros());
        }
    }
    None
}

/// Checks PR1 and PR2 of the summary of a page. Returns the broken rule, with the expected and the actual value.
pub(super) fn check(
    map: &[Word],
    base: u32,
    fits: &Fits,
    rest: Rest,
) -> Result<(), (&'static str, i16, i16)> {
    let (want, _) = read(map, base);
    if let Some(lane) = (0..LANES).find(|&lane| want.0[lane] != fits.0[lane]) {
        return Err(("PR1", want.0[lane], fits.0[lane]));
    }
    let (best, end) = (rest.best(), base + PAGE_BITS);
    let (mut others, mut seen) = (Fits::NONE, best.1 == best.0);
    let mut start = bitmap::next_clear(map, base, end);
    while start < end {
        let stop = bitmap::next_set(map, start, end);
        if (start - base, stop - base) == best {
            seen = true;
        } else {
            others = others.max(Fits::of_run(start - base, stop - base));
        }
        start = bitmap::next_clear(map, stop, end);
    }
    if !seen {
        return Err(("PR2", best.0 as i16, best.1 as i16));
    }
    let wrong = |lane: &usize| {
        let (want, got) = (others.0[*lane], rest.fit(*lane));
        got < want || (got > want && !rest.is_tainted(*lane))
    };
    match (0..ALIGNS).find(wrong) {
        Some(lane) => Err(("PR2", others.0[lane], rest.fit(lane))),
        None => Ok(()),
    }
}

/// No run of a page is cut off.
const _: () = assert!(CAP as u32 >= PAGE_BITS);
