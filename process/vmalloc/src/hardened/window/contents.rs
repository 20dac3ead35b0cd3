//! The contents of rooms: the area, and the canary beside it in its pages.

use super::{Room, Window, address, pointer};
use crate::PAGE_BYTES;
use crate::hardened::resize::MOVED_PAGES_MIN;
use crate::hardened::tag::Tag;
use vmalloc_os::os::{Os, Span};

impl<O: Os> Window<O> {
    /// Writes the canary to the bytes beside the area. Those behind the end of the area that was there, `old`, become
    /// zeros before.
    pub(crate) fn fill(&self, room: &mut Room, old: Tag, tag: Tag, pattern: [u8; 8]) {
        let start = address(room.page) + tag.offset();
        let old_end = start + old.requested_bytes();
        let end = old_end.next_multiple_of(PAGE_BYTES).min(start + tag.requested_bytes());
        if old_end < end {
            self.write_zeros(Span { at: old_end, bytes: end - old_end });
        }
        for (from, to) in slack(room, tag) {
            for at in from..to {
                // SAFETY: in the room, which is open and which the caller owns exclusively.
                unsafe { pointer(at).write(pattern[at % 8]) };
            }
        }
    }

    /// Returns the offset in the area of the first byte that is not the canary; those after its end come first.
    pub(crate) fn spoiled(&self, room: &Room, tag: Tag, pattern: [u8; 8]) -> Option<isize> {
        let start = address(room.page) + tag.offset();
        let [below, behind] = slack(room, tag);
        [behind, below].into_iter().flat_map(|(from, to)| from..to).find_map(|at| {
            // SAFETY: in the room, which is open; a concurrent write there would violate the allocator's contract.
            let byte = unsafe { pointer(at).read_volatile() };
            (byte != pattern[at % 8]).then(|| at.cast_signed() - start.cast_signed())
        })
    }

    /// Moves what two areas have in common from one to the other: by whole pages where both begin at the same offset,
    /// and the rest by a copy.
    pub(crate) fn transfer(&self, from: &mut Room, tag: Tag, to: &mut Room, into: Tag) {
        let bytes = tag.requested_bytes().min(into.requested_bytes());
        let pages = from.pages.min(to.pages);
        let mut done = 0;
        if tag.offset() == into.offset() && pages >= MOVED_PAGES_MIN && !tag.is_changed() {
            let span = Span { at: address(from.page), bytes: address(pages) };
            // SAFETY: the caller owns both rooms exclusively; both are in the window.
            let moved = unsafe { self.host.os().move_pages(span, address(to.page)) };
            let moved = moved.map_or_else(|stopped| stopped.bytes, |()| span.bytes);
            done = moved.saturating_sub(tag.offset()).min(bytes);
        }
        let from = pointer(address(from.page) + tag.offset() + done);
        // SAFETY: both rooms are open, distinct and the caller's own; each area has that many bytes.
        unsafe {
            pointer(address(to.page) + into.offset() + done).copy_from_nonoverlapping(from, bytes - done);
        };
    }
}

/// Returns the unused bytes of a room: below the area and above it.
fn slack(room: &Room, tag: Tag) -> [(usize, usize); 2] {
    let page = address(room.page);
    let start = page + tag.offset();
    [(page, start), (start + tag.requested_bytes(), page + address(room.pages))]
}
