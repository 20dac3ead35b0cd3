//! Areas whose mappings the program changed itself, as in `heap/changed.rs`: their rooms are mapped again before they
//! close.
//!
//! The free reads nothing of such an area, since it may not be readable: the canary is not checked, and the pages are
//! not cached. If the area moves, its memory policy (`mbind`) goes with it, and the area is changed there, too.
//!
//! # Locking
//! The allocator's lock, to find an area, if the bytes are in the range of the window: other mappings of the program
//! have nothing to do with it. A call from a signal handler has no effect if the interrupted thread holds the lock.

use super::Hard;
use super::granules::Closed;
use super::tag::{State as TagState, Tag};
use super::window::{Room, address};
use crate::PAGE_BYTES;
use core::sync::atomic::Ordering;
use vmalloc_os::lock::Fork;
use vmalloc_os::os::Os;

impl<O: Os> Hard<O> {
    /// Marks every live area that overlaps the bytes `[at, at + bytes)`, so that its free maps it again. O(log n) an
    /// area.
    pub(crate) fn renew_at_free(&self, at: usize, bytes: usize) {
        let end = at.saturating_add(bytes).min(self.window.extent().end().get() as usize);
        let mut from = ((at / PAGE_BYTES) as u64).max(self.window.first());
        while address(from) < end && !self.state.is_mine() {
            let state = self.state.lock();
            let Some(range) = state.places.above(from) else { return };
            let (wall, stop) = range.whole_pages();
            if address(wall) >= end {
                return;
            }
            if let Some(place) = self.window.tag(wall + 1) {
                let changed = |bits| {
                    let tag = Tag::from_bits(bits);
                    (tag.state() == TagState::Live).then(|| tag.changed().bits())
                };
                // Only the tag changes; the thread that frees the area needs no other write of this one.
                let _freed = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
            }
            from = stop;
        }
    }

    /// Retires the room of a changed area that could not be mapped again: its tag stays quarantined forever.
    ///
    /// It may not be writable, so it is not zeroed. Its pages are released and its access is removed, if the system
    /// allows that.
    #[cold]
    pub(super) fn retire_changed(&self, mut room: Room) {
        self.window.shut(&mut room);
        let mut state = self.state.lock();
        state.live -= 1;
        state.live_pages -= room.pages();
        state.retired_pages += room.pages() + 2;
        self.leave(&mut state, &mut room, Closed::Whole { shut: false });
    }
}
