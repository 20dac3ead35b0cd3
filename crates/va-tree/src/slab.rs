//! Records without pointers or a heap: an inline slab first, then slabs that the platform lends.
//!
//! # Theory
//! A record is named by a 32-bit id, five bits of slab and 27 of slot. Slab 0 is part of the index itself, so that a
//! kernel can use the index before it has a heap. A further slab asks for as many records as there already are, so
//! that 31 lent slabs are always enough and a lookup is one shift and one table entry away. Records freed are kept in a
//! list threaded through an array of the platform's choosing: the record itself ([`Linked`]).
//!
//! ```text
//!   id  | slab:5 |      slot:27      |          slab 0   [r r r r]                 inline
//!                                               slab 1   [r r r r]                 lent, as many as before
//!                                               slab 2   [r r r r r r r r]         lent ...
//! ```
//!
//! # Invariants
//! - **SL1 conserved** records in use + on the free list + never used = capacity.
//!
//! Reserving is separate from taking: [`Slab::reserve`] is the only call that asks the platform and the only one that
//! can fail; [`Slab::take`] uses what was reserved. A caller that takes more than it reserved has a wrong bound, which
//! is a bug and stops loudly.

use va_base::{Platform, Record};

/// Bits of an id that name the slot.
const SLOT_BITS: u32 = 27;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Slabs that a platform may lend: ids have five bits for the slab, and slab 0 is inline.
const LENT_MAX: usize = 31;
/// The id of no record. Slot 2^27 - 1 of slab 31 is never handed out (see `SLAB_LEN_MAX`).
pub(crate) const NIL: u32 = u32::MAX;
/// Longest slab in use, one less than the slots that an id can name, so that [`NIL`] stays free.
const SLAB_LEN_MAX: usize = SLOT_MASK as usize;

/// A record that can keep the id of another while it is not in use.
pub(crate) trait Linked: Record {
    /// Returns what [`set_link`](Self::set_link) stored.
    fn link(&self) -> u32;
    /// Stores an id in this unused record.
    fn set_link(&mut self, id: u32);
}

/// A growing set of records, `N` of them inline.
pub(crate) struct Slab<T: Linked, const N: usize> {
    inline: [T; N],
    lent: [&'static mut [T]; LENT_MAX],
    lent_count: usize,
    capacity: usize,
    used: usize,
    /// Head of the list of records that were used and freed.
    freed: u32,
    /// Next record that was never used.
    fresh: u32,
}

impl<T: Linked, const N: usize> Slab<T, N> {
    pub(crate) fn new() -> Self {
        const { assert!(N > 0 && N < SLAB_LEN_MAX) };
        Self {
            inline: [T::EMPTY; N],
            lent: core::array::from_fn(|_| Default::default()),
            lent_count: 0,
            capacity: N,
            used: 0,
            freed: NIL,
            fresh: 0,
        }
    }

    /// Records that exist, used or not.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Records in use.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Makes the capacity at least `want`, or returns how many records are missing. Slabs that were lent before a
    /// refusal stay: they are spare capacity, which changes no answer.
    pub(crate) fn reserve(&mut self, want: usize, platform: &impl Platform) -> Result<(), usize> {
        while self.capacity < want {
            let missing = want - self.capacity;
            if self.lent_count == LENT_MAX {
                return Err(missing);
            }
            // Doubling keeps 31 slabs enough; a platform too short of memory for that may still have the bare need.
            let ideal = missing.max(self.capacity).min(SLAB_LEN_MAX);
            let slab = platform
                .lend_slab::<T>(ideal)
                .or_else(|| platform.lend_slab::<T>(missing.min(SLAB_LEN_MAX)))
                .ok_or(missing)?;
            // A slab that is shorter than promised would let this loop run out of directory entries: refuse it.
            if slab.len() < missing.min(SLAB_LEN_MAX) {
                platform.take_back_slab(slab);
                return Err(missing);
            }
            self.capacity += slab.len().min(SLAB_LEN_MAX);
            self.lent[self.lent_count] = slab;
            self.lent_count += 1;
        }
        Ok(())
    }

    /// Takes an unused record, or `None` if nothing was reserved. Its contents are unspecified.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        let id = if self.freed != NIL {
            let id = self.freed;
            self.freed = self.get(id).link();
            id
        } else {
            if self.used == self.capacity {
                return None;
            }
            let id = self.fresh;
            let slab = (id >> SLOT_BITS) as usize;
            let slab_len = if slab == 0 { N } else { self.lent[slab - 1].len().min(SLAB_LEN_MAX) };
            let last = (id & SLOT_MASK) as usize + 1 == slab_len;
            self.fresh = if last { ((id >> SLOT_BITS) + 1) << SLOT_BITS } else { id + 1 };
            id
        };
        self.used += 1;
        Some(id)
    }

    /// Puts record `id` back among the unused.
    #[inline]
    pub(crate) fn put(&mut self, id: u32) {
        let head = self.freed;
        self.get_mut(id).set_link(head);
        self.freed = id;
        self.used -= 1;
    }

    /// Record `id`.
    #[inline(always)]
    pub(crate) fn get(&self, id: u32) -> &T {
        let slab = (id >> SLOT_BITS) as usize;
        let records: &[T] = if slab == 0 { &self.inline } else { self.lent[slab - 1] };
        &records[(id & SLOT_MASK) as usize]
    }

    /// Record `id`, to change it.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        let slab = (id >> SLOT_BITS) as usize;
        let records: &mut [T] = if slab == 0 { &mut self.inline } else { self.lent[slab - 1] };
        &mut records[(id & SLOT_MASK) as usize]
    }

    /// Length of the free list, O(free); `None` if it is longer than the capacity, so has a loop (SL1).
    pub(crate) fn count_freed(&self) -> Option<usize> {
        let (mut id, mut count) = (self.freed, 0);
        while id != NIL {
            count += 1;
            if count > self.capacity {
                return None;
            }
            id = self.get(id).link();
        }
        Some(count)
    }

    /// Hands every lent slab back; the slab must not be used afterwards.
    pub(crate) fn return_all(&mut self, platform: &impl Platform) {
        for slab in &mut self.lent[..self.lent_count] {
            platform.take_back_slab(core::mem::take(slab));
        }
        self.lent_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::cell::Cell;
    use std::vec;
    use std::vec::Vec;
    use va_base::NoSlabs;

    #[derive(Clone, Copy)]
    struct Cellule(u32);
    impl Record for Cellule {
        const EMPTY: Self = Self(0);
    }
    impl Linked for Cellule {
        fn link(&self) -> u32 {
            self.0
        }
        fn set_link(&mut self, id: u32) {
            self.0 = id;
        }
    }

    /// Lends exactly what is asked up to `limit` records a slab, and counts.
    struct Lender {
        limit: usize,
        lent: Cell<usize>,
        back: Cell<usize>,
    }
    impl Platform for Lender {
        fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
            if min > self.limit {
                return None;
            }
            self.lent.set(self.lent.get() + min);
            Some(Box::leak(vec![T::EMPTY; min].into_boxed_slice()))
        }
        fn take_back_slab<T: Record>(&self, slab: &'static mut [T]) {
            self.back.set(self.back.get() + slab.len());
        }
    }
    fn lender(limit: usize) -> Lender {
        Lender { limit, lent: Cell::new(0), back: Cell::new(0) }
    }

    #[test]
    fn the_inline_slab_serves_without_a_platform() {
        let mut slab = Slab::<Cellule, 3>::new();
        let ids: Vec<_> = (0..3).map(|_| slab.take().unwrap()).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(slab.take(), None);
        assert_eq!(slab.reserve(4, &NoSlabs), Err(1));
        slab.put(1);
        assert_eq!(slab.take(), Some(1));
    }

    #[test]
    fn sl1_ids_are_distinct_across_slabs_and_come_back() {
        let platform = lender(1 << 20);
        let mut slab = Slab::<Cellule, 2>::new();
        slab.reserve(1000, &platform).unwrap();
        let mut ids: Vec<_> = (0..slab.capacity()).map(|_| slab.take().unwrap()).collect();
        assert_eq!(slab.take(), None);
        for &id in &ids {
            slab.get_mut(id).0 = id;
        }
        for &id in &ids {
            assert_eq!(slab.get(id).0, id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), slab.capacity());
        for id in ids {
            slab.put(id);
        }
        assert_eq!((slab.used(), slab.count_freed()), (0, Some(slab.capacity())));
        slab.return_all(&platform);
        assert_eq!(platform.lent.get(), platform.back.get());
    }

    #[test]
    fn a_platform_short_of_memory_is_asked_for_the_bare_need() {
        let platform = lender(4);
        let mut slab = Slab::<Cellule, 8>::new();
        slab.reserve(12, &platform).unwrap();
        assert_eq!(slab.capacity(), 12);
        assert_eq!(slab.reserve(20, &platform), Err(8));
        assert_eq!(slab.capacity(), 12);
    }

    #[test]
    fn a_slab_shorter_than_promised_is_refused_and_handed_back() {
        struct Short(Cell<usize>);
        impl Platform for Short {
            fn lend_slab<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
                Some(Box::leak(vec![T::EMPTY; 1].into_boxed_slice()))
            }
            fn take_back_slab<T: Record>(&self, slab: &'static mut [T]) {
                self.0.set(self.0.get() + slab.len());
            }
        }
        let platform = Short(Cell::new(0));
        let mut slab = Slab::<Cellule, 1>::new();
        assert_eq!(slab.reserve(9, &platform), Err(8));
        assert_eq!((slab.capacity(), platform.0.get()), (1, 1));
    }
}
