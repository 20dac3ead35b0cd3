//! Records without pointers or a heap: an inline slab first, then slabs that the platform lends.
//!
//! # Theory
//! A record is named by a 32-bit id, five bits of slab and 27 of slot, so a lookup is one shift and one table entry away.
//! The first records are part of the index itself, so that a kernel can use it before it has a heap; they are few, and
//! when the first slab is lent they move into it, once, under the same ids. (So a lookup decides "inline or lent" the same
//! way every time, which a branch predictor knows; a mix of both cost a tenth of the time of small trees.) A further slab
//! asks for as many records as there already are, so that 32 slabs are always enough. Records freed are kept in a list that
//! is threaded through the records themselves ([`Linked`]).
//!
//! The number of slabs is a parameter. With one, growing means to lend a larger slab, copy, and hand the old one back:
//! O(n) at every doubling, but the lookup has no table. The binary tree takes that (a lookup at each of twenty levels), the
//! B+tree does not (five levels, and its operations are never to cost O(n)).
//!
//! ```text
//!   id  | slab:5 |      slot:27      |      before   inline   [r r r r]
//!                                           after    slab 0   [r r r r r r r r]                     lent
//!                                                    slab 1   [r r r r r r r r]                     lent, as many as before
//!                                                    slab 2   [r r r r r r r r r r r r r r r r]     lent ...
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
/// Slabs that ids can name: they have five bits for it.
pub(crate) const SLABS_MAX: usize = 1 << (u32::BITS - SLOT_BITS);
/// The id of no record: slot 2^27 - 1 is never handed out (see `SLAB_LEN_MAX`).
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

/// A growing set of records, `N` of them inline, the others in up to `S` lent slabs; with one slab it grows by moving.
pub(crate) struct Slab<T: Linked, const N: usize, const S: usize> {
    inline: [T; N],
    lent: [&'static mut [T]; S],
    lent_count: usize,
    capacity: usize,
    used: usize,
    /// Head of the list of records that were used and freed.
    freed: u32,
    /// Next record that was never used.
    fresh: u32,
}

impl<T: Linked, const N: usize, const S: usize> Slab<T, N, S> {
    pub(crate) fn new() -> Self {
        const { assert!(N > 0 && N < SLAB_LEN_MAX && S > 0 && S <= SLABS_MAX) };
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
            // A first slab takes in what was inline, and an only slab what was in the one before it.
            let moving = if self.lent_count == 0 || S == 1 { self.capacity } else { 0 };
            if (self.lent_count == S && S > 1) || moving + missing > SLAB_LEN_MAX {
                return Err(missing);
            }
            // Doubling keeps the slabs enough; a platform too short of memory for that may still have the bare need.
            let least = missing.min(SLAB_LEN_MAX) + moving;
            let ideal = (missing.max(self.capacity) + moving).min(SLAB_LEN_MAX);
            let slab = platform
                .lend_slab::<T>(ideal)
                .or_else(|| if least < ideal { platform.lend_slab::<T>(least) } else { None })
                .ok_or(missing)?;
            // A slab that is shorter than promised would let this loop run out of directory entries: refuse it.
            if slab.len() < least {
                platform.take_back_slab(slab);
                return Err(missing);
            }
            self.capacity += slab.len().min(SLAB_LEN_MAX) - moving;
            if self.lent_count == 0 {
                slab[..moving].copy_from_slice(&self.inline[..moving]);
            } else if moving > 0 {
                slab[..moving].copy_from_slice(&self.lent[0][..moving]);
                platform.take_back_slab(core::mem::replace(&mut self.lent[0], slab));
                continue;
            }
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
            // Past the end of a slab comes the beginning of the next.
            let slab = (self.fresh >> SLOT_BITS) as usize;
            let slab_len = if self.lent_count == 0 { N } else { self.lent[slab].len().min(SLAB_LEN_MAX) };
            if (self.fresh & SLOT_MASK) as usize == slab_len {
                self.fresh = (slab as u32 + 1) << SLOT_BITS;
            }
            let id = self.fresh;
            self.fresh += 1;
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

    /// Slab and slot of a record.
    #[inline(always)]
    fn place(id: u32) -> (usize, usize) {
        if S == 1 { (0, id as usize) } else { ((id >> SLOT_BITS) as usize, (id & SLOT_MASK) as usize) }
    }

    /// Record `id`.
    #[inline(always)]
    pub(crate) fn get(&self, id: u32) -> &T {
        let (slab, slot) = Self::place(id);
        match self.lent[slab].get(slot) {
            Some(record) => record,
            None => &self.inline[slot],
        }
    }

    /// Record `id`, to change it.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        let (slab, slot) = Self::place(id);
        match self.lent[slab].get_mut(slot) {
            Some(record) => record,
            None => &mut self.inline[slot],
        }
    }

    /// All records of a slab that grows by moving, by id: a walk that looks them up here decides "inline or lent" once, and
    /// finds [`NIL`] past the end.
    #[inline(always)]
    pub(crate) fn all(&self) -> &[T] {
        const { assert!(S == 1) };
        if self.lent_count == 0 { &self.inline } else { &*self.lent[0] }
    }

    /// The same, to change them.
    #[inline(always)]
    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        const { assert!(S == 1) };
        if self.lent_count == 0 { &mut self.inline } else { &mut *self.lent[0] }
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
        let mut slab = Slab::<Cellule, 3, SLABS_MAX>::new();
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
        let mut slab = Slab::<Cellule, 2, SLABS_MAX>::new();
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
        let platform = lender(12);
        let mut slab = Slab::<Cellule, 8, SLABS_MAX>::new();
        slab.reserve(12, &platform).unwrap();
        assert_eq!(slab.capacity(), 12);
        assert_eq!(slab.reserve(25, &platform), Err(13));
        assert_eq!(slab.capacity(), 12);
    }

    #[test]
    fn inline_records_move_into_the_first_slab_under_their_ids() {
        let platform = lender(1 << 20);
        let mut slab = Slab::<Cellule, 4, SLABS_MAX>::new();
        let ids: Vec<_> = (0..4).map(|_| slab.take().unwrap()).collect();
        for &id in &ids {
            slab.get_mut(id).0 = 100 + id;
        }
        slab.put(2);
        slab.reserve(9, &platform).unwrap();
        assert_eq!([0, 1, 3].map(|id| slab.get(id).0), [100, 101, 103]);
        assert_eq!((slab.take(), slab.take()), (Some(2), Some(4)));
    }

    #[test]
    fn an_only_slab_grows_by_moving_and_hands_the_old_one_back() {
        let platform = lender(1 << 20);
        let mut slab = Slab::<Cellule, 4, 1>::new();
        for want in 1..100 {
            slab.reserve(want, &platform).unwrap();
            let id = slab.take().unwrap();
            assert_eq!(id as usize, want - 1);
            slab.get_mut(id).0 = 1000 + id;
            assert!((0..=id).all(|id| slab.get(id).0 == 1000 + id));
        }
        assert_eq!(platform.lent.get() - platform.back.get(), slab.capacity());
        slab.return_all(&platform);
        assert_eq!(platform.lent.get(), platform.back.get());
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
        let mut slab = Slab::<Cellule, 1, SLABS_MAX>::new();
        assert_eq!(slab.reserve(9, &platform), Err(8));
        assert_eq!((slab.capacity(), platform.0.get()), (1, 1));
    }
}
