//! The only door to atomics: the machine's, or loom's under `--cfg loom`.
//!
//! Every crate of the core imports its atomics from here (`cargo xtask tidy` refuses `core::sync` elsewhere), so that
//! any protocol can be put under loom without touching its code. The names are the same on both sides. The index of
//! holes takes `&mut self` and needs none of them; they are for the layers that share.

//!
//! [`Mutex`] is lock_api's: the machine says what kind of lock it is by a [`RawMutex`] (one that spins with interrupts off,
//! one that parks, a futex). There is no lock of our own here. [`OnceRef`] holds a reference that is set once; loom does not
//! model it, so what races to set one is not under loom.

pub use crate::lock::{Mutex, MutexGuard};
pub use lock_api::{GuardNoSend, RawMutex};
pub use once_cell::race::OnceRef;

#[cfg(loom)]
pub use loom::{hint::spin_loop, sync::atomic};

#[cfg(not(loom))]
pub use core::{hint::spin_loop, sync::atomic};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_facade_is_the_machines_own_atomics() {
        let count = AtomicU64::new(1);
        assert_eq!(count.fetch_add(2, Ordering::Relaxed), 1);
        assert_eq!(count.into_inner(), 3);
    }
}
