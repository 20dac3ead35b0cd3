//! The locks of counters and references: in the space, where a fork finds them.
//!
//! A counter may be anywhere, and moves; its lock is one of the sixteen of its space, by the
//! address of its object. So a fork can hold them, and a child finds none that another thread of
//! the parent held. A thread that holds one takes no other lock and makes no callback. Threads that
//! share one wait for each other only where they would not come often: beyond a batch, for a sum,
//! to kill.

use crate::lock::Mutex;
use va_percpu::Offset;

const LOCKS: usize = 16;

/// The locks of a space.
pub(super) struct Locks([Mutex<()>; LOCKS]);

/// The lock of a counter or a reference: a lock of its space, or one of its own in a model.
pub(crate) trait Lock {
    /// Waits for it; it is held while what is returned lives.
    fn hold(&self) -> impl Sized;
}

/// A lock of a space.
pub(crate) struct Shared<'s>(&'s Mutex<()>);

impl Lock for Shared<'_> {
    fn hold(&self) -> impl Sized {
        self.0.lock()
    }
}

impl Locks {
    pub(super) const fn new() -> Self {
        Self([const { Mutex::new(()) }; LOCKS])
    }

    /// That of an object.
    pub(super) fn of(&self, offset: Offset) -> Shared<'_> {
        // Slots of counters are eight bytes apart.
        Shared(&self.0[(offset.get() / 8) as usize % LOCKS])
    }

    /// All of them, in the order in which they are held.
    pub(super) fn all(&self) -> &[Mutex<()>] {
        &self.0
    }
}
