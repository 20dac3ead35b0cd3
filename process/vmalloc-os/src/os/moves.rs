//! Moves of pages that meet pages at their destination.
//!
//! # Theory
//! No caller needs the contents of a destination. Yet there may be pages, of zeros mostly: a huge page of a neighbour
//! covers it, or the memory is locked. `UFFDIO_MOVE` fails with `EEXIST` at such a page. Then all pages there are
//! dropped, and it is repeated.
//!
//! The page that it meets may also be one that it has just moved. Linux 6.18 was seen to return `EEXIST` without some
//! pages in its count that were at the destination. It moves small pages in batches, so the cause seems to be a step that
//! it repeats inside (`EAGAIN`), and then takes the next batch for failed as well. A batch ends with a page table at the
//! latest. So the pages up to the end of the table are looked at:
//!
//! ```text
//!   source    destination     what the page is           what is done
//!   bytes     any             not moved                  it is copied
//!   zeros     bytes           moved: it has no source    it stays
//!   zeros     zeros           either                     nothing
//! ```
//! If no page was moved, all pages at the destination are dropped, as before, and the rest moves again.
//! # Source
//! Traces of system calls on Linux 6.18 (decision 0087); the contract is that of Linux 6.8, `mm/userfaultfd.c`.

use super::advice::discard_one;
use super::uffd::Mover;
use super::{Errno, Span, Stopped, pointer};
use crate::PAGE_BYTES;

/// Bytes that a page table maps.
const TABLE_BYTES: usize = 2 << 20;
const WORDS: usize = PAGE_BYTES / size_of::<u64>();

/// Moves the pages of `from` to `to`. An error has the number of bytes that are at `to`.
///
/// # Safety
/// Both are in one reservation, accessible and disjoint; no reference to either exists.
pub(super) unsafe fn move_pages(mover: &Mover, from: Span, to: usize) -> Result<(), Stopped> {
    let (mut done, mut dropped) = (0, usize::MAX);
    loop {
        let rest = |at: usize| Span { at: at + done, bytes: from.bytes - done };
        // SAFETY: this function's contract.
        let Err(stopped) = (unsafe { mover.move_pages(rest(from.at), to + done) }) else { return Ok(()) };
        done += stopped.bytes;
        if stopped.errno.0 != libc::EEXIST || done == dropped {
            return Err(Stopped { bytes: done, ..stopped });
        }
        let rest = |at: usize| Span { at: at + done, bytes: from.bytes - done };
        let (table, target) = (TABLE_BYTES - (to + done) % TABLE_BYTES, rest(to));
        let bytes = table.min(target.bytes);
        let part = Span { bytes, ..rest(from.at) };
        // SAFETY: this function's contract.
        let has_bytes = |span: Span, at| !unsafe { is_zero(span.at + at) };
        let is_moved = |at: usize| has_bytes(target, at) && !has_bytes(part, at);
        let moved = (0..bytes).step_by(PAGE_BYTES).any(is_moved);
        let settled = if moved {
            // SAFETY: as before.
            unsafe { copy_rest(part, target.at) }
        } else {
            dropped = done;
            discard_one(target)
        };
        settled.map_err(|errno| Stopped { bytes: done, errno })?;
        done += if moved { bytes } else { 0 };
    }
}

/// Copies each page of `from` that is not zeros, and drops `from`.
///
/// # Safety
/// As [`move_pages`].
unsafe fn copy_rest(from: Span, to: usize) -> Result<(), Errno> {
    for at in (0..from.bytes).step_by(PAGE_BYTES) {
        // SAFETY: this function's contract.
        if !unsafe { is_zero(from.at + at) } {
            let (source, target) = (pointer(from.at + at).cast::<u64>(), pointer(to + at).cast::<u64>());
            // SAFETY: as before: whole pages, which are disjoint.
            unsafe { target.copy_from_nonoverlapping(source, WORDS) };
        }
    }
    discard_one(from)
}

/// Returns true if a page is zeros.
///
/// # Safety
/// It is readable, and no reference to it exists.
unsafe fn is_zero(page: usize) -> bool {
    let words = pointer(page).cast::<u64>();
    // SAFETY: inside the page.
    let word = |at| unsafe { words.add(at) };
    // SAFETY: as before, and aligned.
    (0..WORDS).all(|at| unsafe { word(at).read() } == 0)
}

#[cfg(test)]
mod tests {
    use super::super::{Linux, Os};
    use super::*;

    const PAGES: usize = 600;

    fn place(at: usize, page: usize) -> *mut u8 {
        pointer(at + page * PAGE_BYTES + 9).cast()
    }

    #[test]
    fn pages_that_a_failed_move_has_moved_stay() {
        let _alone = crate::os::alone();
        let linux = Linux::new();
        let bytes = PAGES * PAGE_BYTES;
        for first in [0, 3, 17] {
            let base = linux.map(3 * bytes).unwrap();
            let (from, to) = (Span { at: base, bytes }, (base + bytes).next_multiple_of(TABLE_BYTES));
            let byte = |page: usize| if page % 5 == 2 { 0 } else { page as u8 | 1 };
            for page in 0..PAGES {
                // As Linux 6.18 leaves them: some are at the destination already, among them pages of zeros.
                let at = if (first..first + 11).contains(&page) { to } else { base };
                // SAFETY: the mapping made above.
                unsafe { place(at, page).write(byte(page)) };
            }
            // SAFETY: the same, and no reference to it exists.
            let moved = unsafe { linux.move_pages(from, to) };
            if moved == Ok(()) {
                for page in 0..PAGES {
                    // SAFETY: the same.
                    let found = [base, to].map(|at| unsafe { place(at, page).read() });
                    assert_eq!(found, [0, byte(page)], "page {page}, moved from {first} on");
                }
            } else {
                eprintln!("this system moves no pages ({moved:?}): nothing was tested");
            }
            // SAFETY: the same.
            unsafe { linux.unmap(Span { at: base, bytes: 3 * bytes }) };
        }
    }
}
