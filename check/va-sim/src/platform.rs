//! Platforms for tests and the laboratory: slabs from the heap, and requests that fail.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use va_base::{Heap, Meta, Platform, Record};

/// Freed slabs, by the type of their records.
type Pool = HashMap<TypeId, Vec<Box<dyn Any + Send>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates slabs from the heap and reuses freed ones, so that thousands of short-lived indexes cost no more memory
/// than the largest of them. Clones share one pool.
#[derive(Clone, Default)]
pub struct HeapPlatform {
    pool: Arc<Mutex<Pool>>,
}

impl Platform for HeapPlatform {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let mut pool = lock(&self.pool);
        let slabs = pool.entry(TypeId::of::<T>()).or_default();
        let fits = slabs.iter().position(|slab| {
            // Not far longer than requested, or small indexes would use up the slabs of large ones.
            slab.downcast_ref::<&'static mut [T]>()
                .is_some_and(|slab| slab.len() >= min && slab.len() / 4 <= min)
        });
        if let Some(at) = fits
            && let Ok(slab) = slabs.swap_remove(at).downcast::<&'static mut [T]>()
        {
            return Some(*slab);
        }
        Heap.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let mut pool = lock(&self.pool);
        pool.entry(TypeId::of::<T>()).or_default().push(Box::new(slab.take()));
    }
}

/// The requests that a [`FailingPlatform`] fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fail {
    /// Never.
    Never,
    /// Every request from now on.
    All,
    /// Every request after this many were granted.
    After(u64),
}

impl fmt::Debug for HeapPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapPlatform").finish_non_exhaustive()
    }
}

/// A [`HeapPlatform`] that fails requests for slabs on request. Clones share the setting.
#[derive(Clone, Debug)]
pub struct FailingPlatform {
    heap: HeapPlatform,
    state: Arc<Mutex<(Fail, u64)>>,
}

impl FailingPlatform {
    /// Creates a platform that fails according to `fail`.
    #[must_use]
    pub fn new(fail: Fail) -> Self {
        Self { heap: HeapPlatform::default(), state: Arc::new(Mutex::new((fail, 0))) }
    }

    /// Changes when it fails; grants are counted from here on.
    pub fn set(&self, fail: Fail) {
        *lock(&self.state) = (fail, 0);
    }

    /// Returns the slabs granted since the last [`set`](Self::set).
    #[must_use]
    pub fn granted(&self) -> u64 {
        lock(&self.state).1
    }
}

impl Platform for FailingPlatform {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let mut state = lock(&self.state);
        let fails = match state.0 {
            Fail::Never => false,
            Fail::All => true,
            Fail::After(granted) => state.1 >= granted,
        };
        if fails {
            return None;
        }
        state.1 += 1;
        self.heap.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.heap.free_meta(slab);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Word(u64);
    impl Record for Word {
        const EMPTY: Self = Self(7);
    }

    #[test]
    fn a_freed_slab_is_allocated_again() {
        let heap = HeapPlatform::default();
        let slab = heap.alloc_meta::<Word>(8).unwrap();
        assert!(slab.iter().all(|word| word.0 == 7));
        let at = slab.as_ptr();
        heap.free_meta(Meta::new(slab));
        assert_eq!(heap.clone().alloc_meta::<Word>(6).unwrap().as_ptr(), at);
        assert_ne!(heap.alloc_meta::<Word>(6).unwrap().as_ptr(), at);
    }

    #[test]
    fn it_fails_on_request() {
        let platform = FailingPlatform::new(Fail::After(1));
        assert!(platform.alloc_meta::<Word>(1).is_some());
        assert!(platform.alloc_meta::<Word>(1).is_none());
        platform.set(Fail::Never);
        assert!(platform.alloc_meta::<Word>(1).is_some());
        platform.set(Fail::All);
        assert!(platform.alloc_meta::<Word>(1).is_none());
        assert_eq!(platform.granted(), 0);
    }
}
