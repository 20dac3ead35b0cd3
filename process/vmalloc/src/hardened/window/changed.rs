//! Rooms whose mappings the program changed (`hardened/changed.rs`).

use super::{Room, Wall, Window};
use vmalloc_os::os::Os;

impl<O: Os> Window<O> {
    /// Maps fresh pages over an open room. Returns `false` if the system call fails.
    pub(crate) fn renew(&self, room: &mut Room) -> bool {
        // SAFETY: the caller owns the room exclusively.
        unsafe { self.host.os().renew(room.span()) }.is_ok()
    }

    /// Sets the memory policy of an open room on another one, which then has no page. Returns `false` if there is none
    /// to preserve, or the system call fails.
    pub(crate) fn keep_policy(&self, from: &Room, to: &mut Room) -> bool {
        // SAFETY: the caller owns both rooms exclusively.
        let kept = unsafe { self.host.os().keep_policy(from.span(), to.span()) };
        if kept {
            self.empty(to.span());
        }
        kept
    }

    /// Releases the pages of a retired room and removes access, as far as the system allows. Writes nothing.
    pub(crate) fn shut(&self, room: &mut Room) {
        let os = self.host.os();
        // SAFETY: the caller owns the room exclusively.
        if self.wall == Wall::Markers && unsafe { os.guard(room.span()) }.is_ok() {
            return;
        }
        // SAFETY: as before.
        let _gone = unsafe { os.discard(&[room.span()]) };
        // SAFETY: as before.
        let _shut = unsafe { os.forbid(room.span()) };
    }
}
