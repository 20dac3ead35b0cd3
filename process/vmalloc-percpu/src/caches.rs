//! The caches of a space: a magazine for each number of a thread, behind a lock.
//!
//! A thread takes the lock of the number that it has at that moment, a concurrency id or a CPU. So another thread holds
//! it only if this one is moved within a call, or if numbers are more than caches. The lock is there for these cases
//! and for a fork, which takes all of them: then no call of the index is in progress.
//!
//! # Locking
//! A holder of one of these locks may take those of the index, and takes no other of these. A fork and `validate` take
//! all of them, in one order.

use super::index::{Chunks, InProcess, Index, IndexMachine};
use core::ptr::NonNull;
use va_percpu::{AllocError, FreeError, Magazine, Offset, Request};
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::Os;
use vmalloc_os::records::Host;

/// Most caches of a space.
const MOST: u32 = 64;

type Own<O> = Magazine<'static, IndexMachine<O>, Chunks<O>, InProcess>;

/// A cache; on lines of its own, since threads of other CPUs use its neighbours.
#[repr(align(128))]
struct Slot<O: Os + 'static>(Mutex<Option<Own<O>>>);

/// The caches.
pub(super) struct Caches<O: Os + 'static> {
    slots: NonNull<Slot<O>>,
    count: u32,
}

// SAFETY: slots are shared by threads, each behind its lock; a magazine may be used by any thread.
unsafe impl<O: Os> Send for Caches<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Caches<O> {}

/// The server of a call: a magazine, or the index if there is no memory for one.
pub(super) enum Server<'a, O: Os + 'static> {
    Own(&'a mut Own<O>),
    Index(&'a Index<O>),
}

impl<O: Os> Server<'_, O> {
    pub(super) fn alloc(&mut self, request: &Request) -> Result<Offset, AllocError> {
        match self {
            Self::Own(own) => own.alloc(request),
            Self::Index(index) => index.alloc(request),
        }
    }

    pub(super) fn free(&mut self, offset: Offset) -> Result<(), FreeError> {
        match self {
            Self::Own(own) => own.free(offset),
            Self::Index(index) => index.free(offset),
        }
    }
}

impl<O: Os> Caches<O> {
    /// Allocates the locks, without magazines.
    pub(super) fn alloc(host: &Host<O>, numbers: u32) -> Option<Self> {
        let place = host.alloc_place::<[Slot<O>; MOST as usize]>()?.cast::<Slot<O>>();
        let count = numbers.min(MOST);
        for nth in 0..count as usize {
            // SAFETY: in the memory allocated above.
            let slot = unsafe { place.add(nth) };
            // SAFETY: as before; nothing else refers to it.
            unsafe { slot.write(Slot(Mutex::new(None))) };
        }
        Some(Self { slots: place, count })
    }

    /// Returns the locks, in the order in which a fork takes them.
    pub(super) fn each(&self) -> impl Iterator<Item = &Mutex<Option<Own<O>>>> {
        // SAFETY: so many were written by `alloc`, and live as long as the records.
        let slots = unsafe { core::slice::from_raw_parts(self.slots.as_ptr(), self.count as usize) };
        slots.iter().map(|slot| &slot.0)
    }

    /// Calls `f` with the magazine of a number, under its lock. The first call with a number creates it.
    #[inline(always)]
    pub(super) fn with<R>(
        &self,
        index: &'static Index<O>,
        number: u32,
        f: impl FnOnce(&mut Server<'_, O>) -> R,
    ) -> R {
        let nth = if number < self.count { number } else { number % self.count };
        // SAFETY: below the count; written by `alloc`.
        let slot = unsafe { self.slots.add(nth as usize) };
        // SAFETY: as before; slots live as long as the records.
        let mut slot = unsafe { slot.as_ref() }.0.lock();
        if slot.is_none() {
            *slot = index.magazine(nth).ok();
        }
        match slot.as_mut() {
            Some(own) => f(&mut Server::Own(own)),
            None => f(&mut Server::Index(index)),
        }
    }

    /// Takes one of the locks: for a caller of the index that uses no magazine.
    pub(super) fn hold_one(&self) -> impl Sized {
        self.each().next().map(Mutex::lock)
    }

    /// Takes all locks, and releases them when the result is dropped.
    pub(super) fn hold_all(&self) -> impl Sized {
        core::array::from_fn::<_, { MOST as usize }, _>(|nth| self.each().nth(nth).map(Mutex::lock))
    }

    /// Ends all magazines.
    pub(super) fn end(&self) {
        self.each().for_each(|slot| drop(slot.lock().take()));
    }
}
