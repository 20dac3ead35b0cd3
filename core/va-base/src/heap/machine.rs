//! A machine over the global allocator, and a heap that fails the requests that a test chooses.
//!
//! # Theory
//! A slab is a leaked vector, as that of a [`Heap`]; a table is a leaked box, and a flush ends at once. Compiled with
//! the feature `alloc`, where the processor has atomics of 64 bits.
//!
//! | type | for |
//! |---|---|
//! | [`LimitedHeap`] | tests of failures: it fails the requests that a test chooses, and counts what is allocated |
//! | [`HeapMachine`] | a space: memory, locks of a library, a flush; a [`Watch`] observes calls and fails requests |

use super::Heap;
use super::alloc::boxed::Box;
use crate::sync::{Count, RawMutex};
use crate::{Epoch, LockClass, Machine, Meta, Platform, Record, Table, VaRange};
use core::fmt;
use core::marker::PhantomData;

/// A [`Heap`] that fails the requests that a test chooses, and counts the memory that is allocated.
///
/// ```
/// use va_base::{LimitedHeap, Meta, Platform};
/// # #[derive(Clone, Copy)] struct Word(u64); impl va_base::Record for Word { const EMPTY: Self = Self(0); }
/// let heap = LimitedHeap::new();
/// heap.limit(4096);
/// assert!(heap.alloc_meta::<Word>(513).is_none());
/// let slab = heap.alloc_meta::<Word>(512).unwrap();
/// assert_eq!((heap.asked(), heap.slabs(), heap.bytes()), (2, 1, 4096));
/// heap.free_meta(Meta::new(slab));
/// assert_eq!(heap.bytes(), 0);
/// ```
#[derive(Debug)]
pub struct LimitedHeap {
    limit: Count,
    left: Count,
    every: Count,
    asked: Count,
    slabs: Count,
    bytes: Count,
    longest: Count,
}

impl LimitedHeap {
    /// Creates a heap that fails nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: Count::new(u64::MAX),
            left: Count::new(u64::MAX),
            every: Count::new(u64::MAX),
            asked: Count::new(0),
            slabs: Count::new(0),
            bytes: Count::new(0),
            longest: Count::new(0),
        }
    }

    /// Fails requests for more than `bytes` bytes from now on; `usize::MAX` fails none.
    pub fn limit(&self, bytes: usize) {
        self.limit.set(bytes as u64);
        self.longest.set(0);
    }

    /// Grants `requests` more, and fails the rest; `u64::MAX` fails none.
    pub fn fail_after(&self, requests: u64) {
        self.left.set(requests);
    }

    /// Fails each request whose number is a multiple of `nth` from now on; `u64::MAX` fails none.
    pub fn fail_every(&self, nth: u64) {
        self.every.set(nth);
    }

    /// Returns the requests so far.
    pub fn asked(&self) -> u64 {
        self.asked.get()
    }

    /// Returns the slabs that are allocated, and the tables if the heap is that of a machine.
    pub fn slabs(&self) -> u64 {
        self.slabs.get()
    }

    /// Returns the bytes of the longest allocation since the limit was set.
    pub fn longest(&self) -> usize {
        self.longest.get() as usize
    }

    /// Returns the bytes that are allocated.
    pub fn bytes(&self) -> usize {
        self.bytes.get() as usize
    }
}

impl Default for LimitedHeap {
    fn default() -> Self {
        Self::new()
    }
}

impl Platform for LimitedHeap {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.admits(size_of::<T>().checked_mul(min)?).then(|| Heap.alloc_meta(min))?
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.returned(size_of_val(slab.take()));
    }
}

impl Watch for LimitedHeap {
    fn admits(&self, bytes: usize) -> bool {
        let (asked, left) = (self.asked.add(1) + 1, self.left.get());
        let is_granted =
            bytes as u64 <= self.limit.get() && left > 0 && !asked.is_multiple_of(self.every.get());
        if is_granted {
            self.left.set(if left == u64::MAX { left } else { left - 1 });
            self.slabs.add(1);
            self.bytes.add(bytes as u64);
            self.longest.set(self.longest.get().max(bytes as u64));
        }
        is_granted
    }

    fn returned(&self, bytes: usize) {
        self.slabs.sub(1);
        self.bytes.sub(bytes as u64);
    }
}

/// The hooks of a test or a measurement in a [`HeapMachine`]: calls that it observes, and requests that it fails.
pub trait Watch: Send + Sync {
    /// Returns true if a slab of so many bytes may be allocated.
    fn admits(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// Returns true if a table of so many bytes may be allocated. The default asks [`admits`](Self::admits).
    fn admits_table(&self, bytes: usize) -> bool {
        self.admits(bytes)
    }

    /// Notes that a slab or a table of so many bytes was freed.
    fn returned(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Notes that these ranges are flushed.
    fn flushed(&self, ranges: &[VaRange]) {
        let _ = ranges;
    }

    /// Notes that a lock of this class is about to be taken.
    #[inline(always)]
    fn locking(&self, class: LockClass) {
        let _ = class;
    }
}

impl Watch for () {}

/// A machine with memory from the global allocator, locks of type `L`, and flushes that are counted and end at once.
///
/// ```
/// use va_base::{HeapMachine, Machine};
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
/// let epoch = machine.flush(&[]);
/// assert!(machine.completed(epoch));
/// assert_eq!((machine.cpus_possible(), machine.flushes()), (4, 1));
/// ```
pub struct HeapMachine<L, W = ()> {
    /// The hooks.
    pub watcher: W,
    possible: u32,
    online: u32,
    flushes: Count,
    lock: PhantomData<fn() -> L>,
}

impl<L> HeapMachine<L> {
    /// Creates a machine of `cpus` CPUs, all online.
    #[must_use]
    pub const fn new(cpus: u32) -> Self {
        Self::watched(cpus, ())
    }
}

impl<L, W> HeapMachine<L, W> {
    /// Creates a machine of `cpus` CPUs, all online, with hooks.
    pub const fn watched(cpus: u32, watcher: W) -> Self {
        Self { watcher, possible: cpus, online: cpus, flushes: Count::new(0), lock: PhantomData }
    }

    /// Sets the number of online CPUs.
    #[must_use]
    pub fn with_online(self, cpus: u32) -> Self {
        Self { online: cpus, ..self }
    }

    /// Returns the number of flushes.
    pub fn flushes(&self) -> u64 {
        self.flushes.get()
    }
}

impl<L, W> fmt::Debug for HeapMachine<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapMachine").field("possible", &self.possible).finish_non_exhaustive()
    }
}

impl<L, W: Watch> Platform for HeapMachine<L, W> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.watcher.admits(size_of::<T>().checked_mul(min)?).then(|| Heap.alloc_meta(min))?
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.watcher.returned(size_of_val(slab.take()));
    }
}

impl<L: RawMutex + Send + Sync + 'static, W: Watch> Machine for HeapMachine<L, W> {
    type Lock = L;
    type PurgeLock = L;
    type OwnerLock = L;

    fn cpus_possible(&self) -> u32 {
        self.possible
    }

    fn cpus_online(&self) -> u32 {
        self.online
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.watcher.admits_table(size_of::<T>()).then(|| &*Box::leak(Box::new(T::empty())))
    }

    fn free_table<T: Table>(&self, _table: Meta<&'static T>) {
        self.watcher.returned(size_of::<T>());
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.watcher.flushed(ranges);
        Epoch(self.flushes.add(1))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }

    #[inline(always)]
    fn locking(&self, class: LockClass) {
        self.watcher.locking(class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[derive(Clone, Copy)]
    struct Word(u64);
    impl Record for Word {
        const EMPTY: Self = Self(7);
    }

    #[test]
    fn each_limit_fails_its_requests_and_no_others() {
        let heap = LimitedHeap::new();
        let mut slabs = Vec::new();
        let mut granted = |times: u32, records: usize| {
            let before = slabs.len();
            slabs.extend((0..times).filter_map(|_| heap.alloc_meta::<Word>(records)));
            slabs.len() - before
        };
        assert_eq!(granted(3, 100), 3);
        heap.limit(80);
        assert_eq!((granted(1, 11), granted(1, 10)), (0, 1));
        heap.fail_after(2);
        assert_eq!(granted(5, 1), 2);
        heap.fail_after(u64::MAX);
        heap.fail_every(5);
        assert_eq!(granted(10, 1), 8);
        assert_eq!((heap.asked(), heap.slabs(), heap.bytes()), (20, 14, 8 * (300 + 10 + 2 + 8)));
        assert!(slabs.iter().flat_map(|slab| slab.iter()).all(|word| word.0 == 7));
        slabs.into_iter().for_each(|slab| heap.free_meta(Meta::new(slab)));
        assert_eq!((heap.slabs(), heap.bytes()), (0, 0));
    }

    #[test]
    fn a_heap_without_room_fails() {
        assert!(Heap.alloc_meta::<Word>(usize::MAX / 8).is_none());
        assert!(LimitedHeap::new().alloc_meta::<Word>(usize::MAX).is_none());
    }
}
