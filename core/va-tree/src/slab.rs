//! Records without pointers or a heap: a few inside the index, the others in an array of pieces from the platform.
//!
//! # Theory
//! A record is named by an id of [`PagedArray`], which describes how memory is found and grows. The first records are
//! part of the index itself, so that a kernel can use it before it has memory. They are few, and when the first piece
//! is added they move into it, once, under the same ids. So a lookup decides "inside or in a piece" the same way every
//! time, which a branch predictor learns. Freed records are in a list that links the records themselves ([`Linked`]),
//! in both directions, so that any of them can leave it.
//!
//! ```text
//!   number   0 ........ fresh ........ capacity ........ held
//!            used or free   never used      not to be used: memory is about to be freed
//! ```
//!
//! **A flat beginning.** A binary tree looks up some twenty records in each walk, and a table of buckets costs half of
//! that again. So a slab can have at most its first `FLAT` records in one piece (`flat`), which grows by moving into
//! one twice as long: a bounded copy. If the platform has no such piece, or there are more records, the array
//! continues. Its ids are then those of the array with one bucket added: bucket 0 is the flat piece.
//!
//! **Shrinking** lowers the capacity record by record, from the top. So each step but one is O(1), and a caller can
//! stop after any step. A record that was never used is dropped, and a free one leaves the list. The owner moves a
//! record in use to a free one further down ([`Slab::move_last`]). When a whole piece lies above the capacity it is
//! freed. A flat beginning has one piece: it moves into one half as long, which is the only copy of more than a record.
//! Growing raises the capacity again before it requests memory.
//!
//! # Invariants
//! - **SL1 conserved** records in use + on the free list + never used = capacity, and there is memory for so many.
//!
//! Reserving is separate from taking. [`Slab::reserve`] is the only call that can fail, and, with shrinking, the only
//! one that calls the platform. [`Slab::take`] uses a reserved record. A caller that takes more than it reserved has a
//! wrong bound, which is a bug and stops the machine.

use core::ops::Range;
use va_base::{Meta, Next, PIECE_BYTES, PagedArray, Platform, Record, Supply};

/// The id of no record.
pub(crate) const NIL: u32 = va_base::NO_ID;

/// Lookups are one function, which finds paged records in place.
const SMALL: bool = cfg!(feature = "small");

/// First id of the array if there is a flat beginning: that of the second bucket.
const ARRAY: u32 = 1 << 27;

/// A record that can hold two ids while it is not in use.
pub(crate) trait Linked: Record + Copy {
    /// Returns the two ids that [`set_links`](Self::set_links) stored.
    fn links(&self) -> [u32; 2];
    /// Stores two ids in this unused record.
    fn set_links(&mut self, links: [u32; 2]);
}

/// A record that knows whether it is in use, so that others can move to unused ones.
pub(crate) trait Movable: Linked {
    /// Returns true if [`Linked::set_links`] was the last call to write here.
    fn is_free(&self) -> bool;
}

/// A set of records that grows and shrinks, `N` of them inline, the others in pieces from the platform; up to `FLAT`
/// in one.
pub(crate) struct Slab<T: Linked, const N: usize, const FLAT: usize = 0> {
    inline: [T; N],
    /// The flat beginning, or nothing: then the inline records are it.
    flat: Meta<&'static mut [T]>,
    array: PagedArray<T>,
    capacity: usize,
    used: usize,
    /// Head of the list of records that were used and freed; links are `[previous, next]`.
    freed: u32,
    /// Next record that was never used.
    fresh: u32,
}

/// The records of a slab with a flat beginning.
pub(crate) struct View<'a, T: Linked, const N: usize, const FLAT: usize> {
    flat: &'a [T],
    slab: &'a Slab<T, N, FLAT>,
}

impl<T: Linked, const N: usize, const FLAT: usize> Clone for View<'_, T, N, FLAT> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Linked, const N: usize, const FLAT: usize> Copy for View<'_, T, N, FLAT> {}

impl<'a, T: Linked, const N: usize, const FLAT: usize> View<'a, T, N, FLAT> {
    /// Record `id`, or `None` for [`NIL`].
    #[inline(always)]
    pub(crate) fn find(self, id: u32) -> Option<&'a T> {
        match self.flat.get(id as usize) {
            Some(record) => Some(record),
            None if id == NIL => None,
            None => Some(self.slab.get_far(id)),
        }
    }
}

/// The effect of one step of shrinking on the topmost record.
pub(crate) enum Last {
    /// It was not in use: the capacity is smaller.
    Dropped,
    /// It was in use and has a copy at `to`; the owner changes the references to `from`.
    Moved { from: u32, to: u32 },
}

impl<T: Linked, const N: usize, const FLAT: usize> Slab<T, N, FLAT> {
    pub(crate) const fn new() -> Self {
        // All inline records are in the first bucket, where an id is a number.
        const { assert!(N <= PIECE_BYTES / size_of::<T>() / 2) };
        Self {
            inline: [T::EMPTY; N],
            flat: Meta::new(&mut []),
            array: PagedArray::new(),
            capacity: N,
            used: 0,
            freed: NIL,
            fresh: 0,
        }
    }

    /// Records that can be used, and those that are.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Records in use.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the bytes of records held, inline ones and free ones too.
    pub(crate) fn bytes(&self) -> usize {
        self.held() * size_of::<T>()
    }

    /// Records before those of the array.
    #[inline]
    fn before_array(&self) -> usize {
        if !self.flat.is_empty() {
            return self.flat.len();
        }
        // Without a flat beginning the inline records are the array's first.
        if FLAT > 0 || self.array.is_empty() { N } else { 0 }
    }

    /// Records that there is memory for.
    fn held(&self) -> usize {
        self.before_array() + self.array.len()
    }

    /// Makes the capacity at least `want`, or returns how many records are missing. Pieces that were added before a
    /// failure stay: they are spare capacity, which changes no result.
    pub(crate) fn reserve(&mut self, want: usize, platform: &impl Platform) -> Result<(), usize> {
        while self.capacity < want {
            if self.capacity < self.held() {
                self.capacity = self.held();
                continue;
            }
            if let Some(len) = self.next_flat(want)
                && self.move_flat(len..usize::MAX, platform)
            {
                continue;
            }
            let missing = want - self.capacity;
            let supply = self.array.next().and_then(|next| next.alloc(platform)).ok_or(missing)?;
            // The supply is the one that the array requested, since nothing changed in between.
            if let Err(unused) = self.add(supply) {
                unused.free(platform);
                return Err(missing);
            }
        }
        Ok(())
    }

    /// Returns the length of the piece into which the flat beginning would move to make the capacity at least `want`: at
    /// least twice its own. `None` if it stays.
    pub(crate) fn next_flat(&self, want: usize) -> Option<usize> {
        if FLAT == 0 || !self.array.is_empty() {
            return None;
        }
        let len = (2 * self.held()).max(self.array.piece_len()).max(want.min(FLAT).next_power_of_two());
        (len <= FLAT).then_some(len)
    }

    /// Moves the flat records to a slab of at least `lens.start` and fewer than `lens.end` records, or returns `false`
    /// if the platform has none. A platform may return a longer slab than the requested one.
    fn move_flat(&mut self, lens: Range<usize>, platform: &impl Platform) -> bool {
        let Some(flat) = platform.alloc_meta::<T>(lens.start).map(Meta::new) else { return false };
        if !lens.contains(&flat.len()) {
            platform.free_meta(flat);
            return false;
        }
        let old = self.replace_flat(flat);
        if !old.is_empty() {
            platform.free_meta(old);
        }
        true
    }

    /// Moves the flat records to `flat`, and returns the piece in which they were.
    fn replace_flat(&mut self, flat: Meta<&'static mut [T]>) -> Meta<&'static mut [T]> {
        let old = core::mem::replace(&mut self.flat, flat);
        let from = if old.is_empty() { &self.inline[..] } else { &**old };
        let same = from.len().min(self.flat.len());
        self.flat[..same].copy_from_slice(&from[..same]);
        self.capacity = self.held();
        old
    }

    /// Moves the flat beginning into a longer piece, if it can still be used. Returns the piece that is left over; it
    /// may be empty.
    pub(crate) fn add_flat(&mut self, flat: Meta<&'static mut [T]>) -> Meta<&'static mut [T]> {
        if self.array.is_empty() && flat.len() > self.held() { self.replace_flat(flat) } else { flat }
    }

    /// Returns the first piece that would be requested from the platform to make the capacity at least `want`.
    pub(crate) fn next(&self, want: usize) -> Option<Next> {
        if self.held() < want { self.array.next() } else { None }
    }

    /// Uses one more piece.
    pub(crate) fn add(&mut self, supply: Supply<T>) -> Result<(), Supply<T>> {
        let first = FLAT == 0 && self.array.is_empty();
        self.array.add(supply)?;
        if first {
            for (id, record) in self.inline.iter().enumerate() {
                if let Some(place) = self.array.at_mut(id as u32) {
                    *place = *record;
                }
            }
        }
        self.capacity = self.held();
        Ok(())
    }

    /// Takes an unused record, or `None` if nothing was reserved. Its contents are unspecified.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.used == self.capacity {
            return None;
        }
        let id = if self.freed != NIL {
            let id = self.freed;
            let next = self.get(id).links()[1];
            self.freed = next;
            if next != NIL {
                self.relink(next, [Some(NIL), None]);
            }
            id
        } else {
            let id = self.fresh_id();
            self.fresh = if id < ARRAY && FLAT > 0 {
                id + 1
            } else {
                self.array.id_after(id - Self::OFFSET) + Self::OFFSET
            };
            id
        };
        self.used += 1;
        Some(id)
    }

    /// Returns the difference between an id here and the id in the array.
    const OFFSET: u32 = if FLAT > 0 { ARRAY } else { 0 };

    /// Returns the next record that was never used: after the flat beginning comes the array.
    fn fresh_id(&self) -> u32 {
        if FLAT > 0 && self.fresh as usize == self.before_array() { ARRAY } else { self.fresh }
    }

    /// Records that were ever used.
    fn begun(&self) -> usize {
        // In the flat beginning, or in the first bucket, where an id is a number.
        if self.fresh < ARRAY {
            return self.fresh as usize;
        }
        self.before_array() + self.array.number(self.fresh - Self::OFFSET) as usize
    }

    /// Adds record `id` to the unused ones.
    #[inline]
    pub(crate) fn put(&mut self, id: u32) {
        let head = core::mem::replace(&mut self.freed, id);
        self.get_mut(id).set_links([NIL, head]);
        if head != NIL {
            self.relink(head, [Some(id), None]);
        }
        self.used -= 1;
    }

    /// Changes one link of a free record, or both.
    #[inline]
    fn relink(&mut self, id: u32, [previous, next]: [Option<u32>; 2]) {
        let record = self.get_mut(id);
        let old = record.links();
        record.set_links([previous.unwrap_or(old[0]), next.unwrap_or(old[1])]);
    }

    /// Makes all records unused, without reading any, so that every piece beyond `keep` records can be freed.
    pub(crate) fn forget_all(&mut self, keep: usize) {
        (self.used, self.freed, self.fresh, self.capacity) = (0, NIL, 0, keep.clamp(N, self.held()));
    }

    /// Record `id`.
    // Inlined, a lookup is no call on the way of each step; where code must be small, one copy serves all.
    #[cfg_attr(feature = "small", inline(never))]
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn get(&self, id: u32) -> &T {
        if FLAT > 0 {
            return match self.flat.get(id as usize) {
                Some(record) => record,
                None => self.get_far(id),
            };
        }
        match self.array.at_whole(id) {
            Some(record) => record,
            None if (id as usize) < N => &self.inline[id as usize],
            None if SMALL => self.array.at_near(id).unwrap_or_else(|| self.get_far(id)),
            None => self.get_far(id),
        }
    }

    /// Record `id`, to change it.
    #[cfg_attr(feature = "small", inline(never))]
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        let Self { inline, flat, array, .. } = self;
        if FLAT > 0 {
            return match flat.get_mut(id as usize) {
                Some(record) => record,
                None => Self::far_mut(inline, array, id),
            };
        }
        // The usual path first; the second check of the length costs nothing.
        let record = if array.at_whole(id).is_some() {
            array.at_mut(id)
        } else if (id as usize) < N {
            None
        } else if SMALL && array.at_near(id).is_some() {
            array.at_near_mut(id)
        } else {
            return Self::far_mut(inline, array, id);
        };
        match record {
            Some(record) => record,
            None => &mut inline[id as usize],
        }
    }

    /// Returns true if record `id`, which is not in the flat beginning, is inline: there is no flat beginning yet.
    #[inline(always)]
    fn is_inline(id: u32) -> bool {
        FLAT > 0 && id < ARRAY
    }

    /// Record `id` of a paged bucket, or of the array behind a flat beginning, or an inline one before there is one.
    #[cold]
    #[inline(never)]
    fn get_far(&self, id: u32) -> &T {
        // First, since all lookups in a tree of few holes come here.
        if Self::is_inline(id) {
            return &self.inline[id as usize];
        }
        match self.array.at(id.wrapping_sub(Self::OFFSET)) {
            Some(record) => record,
            None => &self.inline[id as usize],
        }
    }

    #[cold]
    #[inline(never)]
    fn far_mut<'a>(inline: &'a mut [T; N], array: &'a mut PagedArray<T>, id: u32) -> &'a mut T {
        if Self::is_inline(id) {
            return &mut inline[id as usize];
        }
        match array.at_mut(id.wrapping_sub(Self::OFFSET)) {
            Some(record) => record,
            None => &mut inline[id as usize],
        }
    }

    /// Returns all records, for a walk over many: the address of the flat beginning stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, T, N, FLAT> {
        View { flat: &self.flat, slab: self }
    }

    /// Returns the length of the free list, O(free); `None` if its two directions differ, as they do if it has a loop
    /// (SL1).
    pub(crate) fn count_freed(&self) -> Option<usize> {
        let (mut id, mut before, mut count) = (self.freed, NIL, 0);
        while id != NIL {
            count += 1;
            let [previous, next] = self.get(id).links();
            if previous != before {
                return None;
            }
            (before, id) = (id, next);
        }
        Some(count)
    }

    /// Returns true if SL1 holds.
    pub(crate) fn is_conserved(&self) -> bool {
        let begun = self.begun();
        self.count_freed().is_some_and(|freed| freed + self.used == begun)
            && begun <= self.capacity
            && self.capacity <= self.held()
            && self.array.validate().is_ok()
    }

    /// Frees pieces above the capacity, each for one of `steps`; returns how many bytes those were.
    pub(crate) fn free_pieces(&mut self, steps: &mut usize, platform: &impl Platform) -> usize {
        let before = self.bytes();
        while *steps > 0
            && let Some(low) = self.without_last(self.capacity).filter(|&low| low >= self.capacity)
        {
            if let Some(supply) = self.remove_last(low) {
                supply.free(platform);
            } else if low > N {
                // A platform without a shorter slab retains the present one.
                if !self.move_flat(low..self.flat.len(), platform) {
                    break;
                }
            } else {
                let flat = core::mem::take(&mut self.flat);
                self.inline.copy_from_slice(&flat[..N]);
                platform.free_meta(flat);
            }
            // A failure is no step: a caller with many would repeat it for each.
            *steps -= 1;
            // Freed records are no capacity any more, and the surplus of a longer slab is none yet.
            self.capacity = self.capacity.min(low);
        }
        before - self.bytes()
    }

    /// Removes the last piece from the array.
    fn remove_last(&mut self, low: usize) -> Option<Supply<T>> {
        if FLAT == 0 && low == N {
            for (id, record) in self.inline.iter_mut().enumerate() {
                if let Some(place) = self.array.at(id as u32) {
                    *record = *place;
                }
            }
        }
        self.array.remove_last()
    }

    /// Records that there is memory for without the last piece; `None` if there is no piece. A flat beginning becomes
    /// as short as `need` allows at once, since the inline records need no memory, and a page may be all that there is.
    fn without_last(&self, need: usize) -> Option<usize> {
        if let Some(len) = self.array.len_without_last() {
            return Some(if FLAT > 0 { self.before_array() + len } else { len.max(N) });
        }
        match self.flat.len() {
            0 => None,
            _ if need <= N => Some(N),
            len => Some(need.next_power_of_two().max(self.array.piece_len())).filter(|&low| low < len),
        }
    }

    /// Returns to what capacity [`move_last`](Slab::move_last) must be repeated so that a piece can be freed while
    /// there are `need` records; `None` if every piece is needed.
    pub(crate) fn next_lower(&self, need: usize) -> Option<usize> {
        let need = need.max(self.used);
        self.without_last(need).filter(|&low| need <= low)
    }

    /// Frees pieces beyond those that `need` records take, and adds their bytes to `freed`.
    ///
    /// Stops at a record in the way, and returns the capacity to which [`move_last`](Slab::move_last) must bring the
    /// slab, which is one of the `steps`. `None` at the end.
    pub(crate) fn shrink_step(
        &mut self,
        need: usize,
        steps: &mut usize,
        freed: &mut usize,
        platform: &impl Platform,
    ) -> Option<usize> {
        while *steps > 0
            && let Some(low) = self.next_lower(need)
        {
            if self.capacity() > low {
                *steps -= 1;
                return Some(low);
            }
            match self.free_pieces(steps, platform) {
                // The platform has no shorter slab, and would not have one at the next step either.
                0 => return None,
                bytes => *freed += bytes,
            }
        }
        None
    }

    /// Frees all memory; the slab must not be used afterwards.
    pub(crate) fn return_all(&mut self, platform: &impl Platform) {
        self.array.clear(platform);
        let flat = core::mem::take(&mut self.flat);
        if !flat.is_empty() {
            platform.free_meta(flat);
        }
        self.forget_all(0);
    }
}

impl<T: Movable, const N: usize, const FLAT: usize> Slab<T, N, FLAT> {
    /// Lowers the capacity by one record, or in one step to `low` or to the first record that was never used. One that
    /// is in use moves to a free one, which there must be.
    pub(crate) fn move_last(&mut self, low: usize) -> Last {
        let begun = self.begun();
        if begun < self.capacity {
            self.capacity = begun.max(low);
            return Last::Dropped;
        }
        // `fresh` is never `ARRAY`: `take` goes past it, and the end of this function stays before it.
        let last = match self.fresh.checked_sub(Self::OFFSET) {
            Some(id) => self.array.id_before(id) + Self::OFFSET,
            None => self.fresh - 1,
        };
        let moved = if self.get(last).is_free() {
            let [previous, next] = self.get(last).links();
            match previous {
                NIL => self.freed = next,
                _ => self.relink(previous, [None, Some(next)]),
            }
            if next != NIL {
                self.relink(next, [Some(previous), None]);
            }
            Last::Dropped
        } else if let Some(to) = self.take() {
            *self.get_mut(to) = *self.get(last);
            self.used -= 1;
            Last::Moved { from: last, to }
        } else {
            return Last::Dropped;
        };
        // The first id of the array is valid only once the flat beginning has its final length.
        self.fresh = if FLAT > 0 && last == ARRAY { self.before_array() as u32 } else { last };
        self.capacity -= 1;
        moved
    }
}

#[cfg(test)]
mod tests;
