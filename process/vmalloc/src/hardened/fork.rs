//! Forks of a hardened allocator: the child draws other addresses than its parent.

use super::Hard;
use crate::FORK_CACHED_MAX;
use core::sync::atomic::Ordering;
use vmalloc_os::fork::Hold;
use vmalloc_os::lock::Fork;
use vmalloc_os::os::{Os, process_id, unless_plain};

impl<O: Os> Hold for Hard<O> {
    fn is_mine(&self) -> bool {
        self.state.is_mine() || self.host.is_mine()
    }

    fn prepare(&self) {
        if self.state.lock().warm.pages() > FORK_CACHED_MAX {
            self.trim();
        }
    }

    fn hold(&self, interrupted: bool) {
        self.state.hold(interrupted);
        self.host.hold(interrupted);
    }

    fn forget(&self, held: bool) {
        self.host.os().forget();
        let interrupted = if held { self.state.is_left() } else { self.state.is_mine() };
        if interrupted {
            // A signal handler forks: the interrupted call of this thread may be changing the state.
            return;
        }
        let fresh = self.host.os().random().unwrap_or_default();
        // SAFETY: this is the only thread of the child, and it holds the lock only for the fork.
        let state = unsafe { &mut *self.state.data_ptr() };
        // Otherwise the child would draw the same addresses as its parent.
        let word = unless_plain(process_id).map_or_else(|| self.frees.load(Ordering::Relaxed), u64::from);
        state.draw.part(fresh, word);
    }

    unsafe fn release(&self) {
        // SAFETY: `hold` took both, by this function's contract.
        unsafe { self.host.release() };
        // SAFETY: as before.
        unsafe { self.state.release() };
    }
}
