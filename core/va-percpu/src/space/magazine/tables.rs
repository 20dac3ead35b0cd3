//! The tables of states: when they are allocated.
//!
//! # Theory
//! An object can be cached once the tables of its address are there, and a caller that cannot wait cannot allocate
//! them. So they are allocated together with the pages: when the balance populates pages, and when a caller that can
//! wait populates those of its object. A refill allocates what its objects still lack.
//!
//! Some pages have none: those populated before the first magazine, and those for which the machine had no memory. A
//! refill of a caller that cannot wait notes that (`lacking`) and calls for the balance, which then visits every
//! populated page. Until it does, such callers take one object each from the space, so a refill is undone once. A table
//! that the machine supplies after a failure calls for the balance, too.
//! docs/decisions/0072-states-for-callers-that-cannot-wait.md has the reasons.
//!
//! # Locking
//! Tables are allocated with no lock held, and added under `chunks`. Meanwhile the chunk may have been destroyed: a
//! span is added only for an address that is in a chunk.

use super::super::PercpuSpace;
use super::state::{LEAF_BYTES, Lacks};
use crate::backend::Backend;
use crate::bitmap::BIT_BYTES;
use crate::config::Config;
use core::ops::Range;
use va_base::sync::atomic::Ordering;
use va_base::{Machine, Meta, PAGE_SIZE, Va};

// A page has one leaf. Under loom it has more, of which only the first is allocated ahead.
const _: () = assert!(
    LEAF_BYTES == PAGE_SIZE || cfg!(loom),
    "va-percpu needs pages of 4 KiB: docs/decisions/0012-page-size.md"
);

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Allocates the tables of pages of a chunk, if there are magazines. The chunk may be destroyed meanwhile.
    pub(crate) fn make_tables(&self, base: Va, pages: Range<u32>) {
        if C::CACHE_BYTES == 0 || !self.states.is_used() {
            return;
        }
        // In its first page the dynamic section may be after others, which may be in no chunk.
        let first = self.geometry.dynamic();
        let start = if base == first.base { first.hidden_before * BIT_BYTES } else { 0 };
        for page in pages {
            let off = (u64::from(page) * PAGE_SIZE).max(start.into());
            if !self.make_states(base.get() + off, false) {
                return;
            }
        }
    }

    /// Allocates the tables that the states of an address need. `false` if one is missing and cannot be allocated, or
    /// the address is in no chunk.
    pub(super) fn make_states(&self, at: u64, atomic: bool) -> bool {
        loop {
            let made = match self.states.lacks(at) {
                Lacks::Nothing => return true,
                _ if atomic => {
                    if !self.lacking.swap(true, Ordering::Relaxed) {
                        self.call_for_balance();
                    }
                    false
                }
                Lacks::Span => self.make_span(at),
                Lacks::Leaf => self.make_leaf(at),
            };
            if !made {
                return false;
            }
        }
    }

    fn make_span(&self, at: u64) -> bool {
        let store = self.lock();
        let unused = self.states.take_unused();
        drop(store);
        let Some(span) = unused.or_else(|| self.machine.alloc_table()) else { return self.no_memory() };
        let store = self.lock();
        let base = store.base_at(at);
        let left = match base {
            Some(base) => self.states.add(at, base, span),
            None => Some(span),
        };
        if let Some(span) = left {
            self.states.put_unused(span);
        }
        base.is_some()
    }

    fn make_leaf(&self, at: u64) -> bool {
        let Some(leaf) = self.machine.alloc_table() else { return self.no_memory() };
        let store = self.lock();
        let left = self.states.add_leaf(at, leaf);
        drop(store);
        if let Some(leaf) = left {
            self.machine.free_table(Meta::new(leaf));
        }
        if self.lacking.load(Ordering::Relaxed) {
            // There is memory again.
            self.call_for_balance();
        }
        true
    }

    /// Notes that the machine had no memory for a table. The balance is called for when it has.
    #[cold]
    fn no_memory(&self) -> bool {
        self.lacking.store(true, Ordering::Relaxed);
        false
    }
}
