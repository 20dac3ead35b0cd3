//! Areas whose mappings the program changed itself, as in `heap/changed.rs`: their rooms are mapped anew before they close.
//!
//! Nothing of them is read at the free, since it may not be readable: nobody looks at the canary, and their pages are not kept.
//!
//! # Locking
//! The one lock, to find an area. A handler of a signal that came in the midst of a call is not heard.

use super::Hard;
use super::granules::Closed;
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

    /// Gives the room of a changed area, which could not be mapped anew, to nobody any more: its tag says quarantined for good.
    ///
    /// It may not be writable, so it is not zeroed. Its pages go and access is taken away, as far as the system allows that.
    #[cold]
    pub(super) fn abandon_changed(&self, mut room: Room) {
        self.window.shut(&mut room);
        let mut state = self.state.lock();
        state.live -= 1;
        state.live_pages -= room.pages();
        state.retired_pages += room.pages() + 2;
        self.leave(&mut state, &mut room, Closed::Whole { shut: false });
    }
}
