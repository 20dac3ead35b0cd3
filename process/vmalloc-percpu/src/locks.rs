//! The locks of counters and references, which are in the space, so that a fork can take them.
//!
//! A counter may be anywhere, and may move. Its lock is one of the sixteen of its space, chosen by the address of its
//! object. So a fork can hold them all, and in a child none is held by another thread of the parent. A holder takes no
//! other lock and makes no callback. Objects that share a lock contend only in rare operations: beyond a batch, for a
//! sum, to kill.

use va_percpu::Offset;
use vmalloc_os::lock::Mutex;

const LOCKS: usize = 16;

/// The locks of a space.
pub(super) struct Locks([Mutex<()>; LOCKS]);

/// The lock of a counter or a reference: a lock of its space, or one of its own in a model.
pub(crate) trait Lock {
    /// Takes the lock, which is held while the returned value lives.
    fn hold(&self) -> impl Sized;
}

/// A lock of a space.
pub(crate) struct Shared<'s>(&'s Mutex<()>);

impl<'s> Shared<'s> {
    /// Takes the lock, which is held while the returned value lives.
    pub(crate) fn take(self) -> impl Sized + use<'s> {
        self.0.lock()
    }
}

impl Lock for Shared<'_> {
    fn hold(&self) -> impl Sized {
        self.0.lock()
    }
}

impl Locks {
    pub(super) const fn new() -> Self {
        Self([const { Mutex::new(()) }; LOCKS])
    }

    /// Returns the lock of an object.
    pub(super) fn of(&self, offset: Offset) -> Shared<'_> {
        // Slots of counters are eight bytes apart.
        Shared(&self.0[(offset.get() / 8) as usize % LOCKS])
    }

    /// Returns all locks, in the order in which a fork takes them.
    pub(super) fn all(&self) -> &[Mutex<()>] {
        &self.0
    }
}
