//! Areas that are resized: in place, or by moving their pages.
//!
//! # Theory
//! ```text
//!   in place   |#|== area ==|#|    free    |     ->  |#|===== area ======|#|  |     the wall moves up
//!   move       |#|== area ==|#|xx others xx|     ->  |~~~ quarantine ~~~~|xx|  ...  |#|===== area ======|#|
//! ```
//! An area grows in place where the pages above its wall are free. Otherwise its pages move to a new room, and the whole
//! old one enters quarantine. An area that becomes smaller always moves. What the system does not move is copied.
//!
//! Pages move only to the same offset in a page. So an area of [`MOVED_PAGES_MIN`] or more keeps its offset: less than a
//! page of canary may be between its end and the wall.
//!
//! # Locking
//! The one lock, while an area grows in place. Two to four system calls are made under it: granules are opened, and the
//! added pages.

use super::granules::{Closed, Entry, next_start};
use super::tag::Tag;
use super::window::{Room, Wall, into_pointer};
use super::{Fault, Hard};
use crate::error::ResizeError;
use crate::heap::probe;
use core::alloc::Layout;
use core::ptr::NonNull;
use vmalloc_os::os::Os;

/// Pages from which an area that is resized stays at its offset in the page, so that its pages can move: 128 KiB.
pub(super) const MOVED_PAGES_MIN: u64 = 32;

impl<O: Os> Hard<O> {
    /// Resizes an area: in place where the pages above it are free, else by moving its pages to a new area. Bytes
    /// beyond the smaller size are zeros.
    ///
    /// # Safety
    /// If an area begins there, no reference to it exists during the call, and the old address is not used afterwards.
    pub(crate) unsafe fn resize(
        &self,
        at: usize,
        layout: Layout,
    ) -> Result<Result<NonNull<u8>, ResizeError>, Fault> {
        // SAFETY: this function's contract.
        let (mut from, tag) = unsafe { self.claim(at) }?;
        self.check(&from, tag)?;
        let is_aligned = at.is_multiple_of(layout.align());
        let mut into = Tag::live(layout.size(), layout.align());
        if is_aligned && layout.size() == tag.requested_bytes() {
            self.window.put(from.page(), tag);
            return Ok(Ok(into_pointer(from, tag)));
        }
        if is_aligned && into.pages().min(tag.pages()) >= MOVED_PAGES_MIN {
            into = tag.resized(layout.size());
        }
        let may_stay = is_aligned && into.offset() == tag.offset() && !tag.is_changed();
        let taken = match self.check_size(layout) {
            Ok(()) if may_stay && self.extend(&mut from, into.pages()) => {
                return Ok(Ok(self.begin(from, tag, into)));
            }
            Ok(()) => self.take(layout, into),
            Err(error) => Err(error),
        };
        let mut to = match taken {
            Ok(to) => to,
            Err(error) => {
                self.window.put(from.page(), tag);
                return Ok(Err(error.into()));
            }
        };
        if tag.is_changed() && self.window.keep_policy(&from, &mut to) {
            into = into.changed();
        }
        self.window.transfer(&mut from, tag, &mut to, into);
        self.retire(from, tag);
        Ok(Ok(self.begin(to, tag, into)))
    }

    /// Extends a live room to that many pages, if those above it are free. Returns `false` if nothing has changed.
    fn extend(&self, room: &mut Room, pages: u64) -> bool {
        if pages <= room.pages() {
            return pages == room.pages();
        }
        let (old_end, end) = (room.page() + room.pages(), room.page() + pages);
        let window_end = self.window.first() + self.window.window_pages();
        let mut state = self.state.lock();
        let next = state.places.above(old_end + 1).map_or(window_end, |range| range.start().page_floor());
        if end >= next.min(window_end) || probe(self.host.os(), pages - room.pages()).is_err() {
            return false;
        }
        // SAFETY: the lock is held, and no range that the space has allocated contains these pages or the next one.
        let mut added = unsafe { Room::claim(old_end, pages - room.pages()) };
        // The room is counted in its last granule.
        let from = next_start(&self.window, old_end);
        // SAFETY: as before.
        let mut rest = unsafe { Room::claim(from, end.saturating_sub(from)) };
        let has_rest = rest.pages() > 0 && self.window.wall() == Wall::Markers;
        if has_rest && state.granules.enter(&self.window, &rest).is_err() {
            return false;
        }
        if self.window.open(&mut added, Entry::Marked).is_err() || !state.places.grow(room, pages) {
            self.window.close_unopened(&mut added);
            if has_rest {
                self.leave(&mut state, &mut rest, Closed::Whole { shut: true });
            }
            return false;
        }
        self.count_used(&mut state.granules, old_end + 1, end + 1);
        state.live_pages += added.pages();
        room.extend(added);
        true
    }
}
