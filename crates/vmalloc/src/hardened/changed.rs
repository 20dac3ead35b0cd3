//! Areas whose mappings the program changed itself, as in `heap/changed.rs`: their rooms are mapped anew before they close.
//!
//! Nothing of them is read at the free, since it may not be readable: nobody looks at the canary, and their pages are not kept.
//!
//! # Locking
//! The one lock, to find an area. A handler of a signal that came in the midst of a call is not heard.

use super::Hard;
use super::tag::{State as Said, Tag};
use super::window::{Room, address};
use crate::PAGE_BYTES;
use crate::lock::Fork;
use crate::os::Os;
use core::sync::atomic::Ordering;

impl<O: Os> Hard<O> {
    /// Has every live area that the bytes `[at, at + bytes)` touch mapped anew when it is freed. O(log n) an area.
    pub(crate) fn renew_at_free(&self, at: usize, bytes: usize) {
        let end = at.saturating_add(bytes);
        let mut from = ((at / PAGE_BYTES) as u64).max(self.window.first());
        while address(from) < end && !self.state.is_mine() {
            let Some(range) = self.state.lock().places.above(from) else { return };
            let (wall, stop) = range.whole_pages();
            if address(wall) >= end {
                return;
            }
            if let Some(place) = self.window.tag(wall + 1) {
                let changed = |bits| {
                    let tag = Tag::from_bits(bits);
                    (tag.state() == Said::Live).then(|| tag.changed().bits())
                };
                // Only the tag changes; whoever frees the area acquires nothing from here.
                let _freed = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
            }
            from = stop;
        }
    }

    /// Maps the room of an area anew that was changed, and tells whether it was. Refused, it closes as it is.
    pub(super) fn renew(&self, room: &mut Room, tag: Tag) -> bool {
        if tag.is_changed() && !self.window.renew(room) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        tag.is_changed()
    }
}
