//! The tables of the page map above its leaves ([`leaf`](super::leaf)).
//!
//! The machine allocates a table the first time an area starts in it; of two threads that race to set it, one frees its
//! table. It remains until the space is dropped, except that the lowest tables return as leaves do. They refer to
//! leaves, which move between their entries.

use super::bits::Bits;
use super::leaf::{Leaf, SLOTS};
use va_base::sync::AtomicRef;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{InvariantViolation, Machine, Meta, Table, Va};

/// A subtree of the map. `at` is a page number relative to the subtree.
pub(crate) trait Subtree: Table {
    /// Binary logarithm of the pages covered.
    const LOG2: u32;
    /// A table of leaves.
    type Lowest: Table;

    /// Returns the reference to the leaf of a page, if the tables above were allocated.
    fn place(&'static self, at: u64) -> Option<&'static AtomicRef<Leaf>>;

    /// Ensures that there is an entry for the leaf of a page, and adds the tables that it allocates to `made`; `false` if
    /// the machine allocates none.
    fn reserve(&self, at: u64, made: &AtomicU64, machine: &impl Machine) -> bool;

    /// Sets start bits in the leaf of a page, which is in place, under the lock of the free index.
    fn mark(&self, at: u64, bits: u64);

    /// Clears the start bit under that lock; returns whether none is left.
    fn unmark(&self, at: u64) -> bool;

    /// Returns the lowest start at or above `at`.
    fn next(&self, at: u64) -> Option<u64>;

    /// Returns the lowest start at or above `at` of an area that is busy.
    fn next_busy(&self, at: u64) -> Option<u64>;

    /// Returns the highest start at or below `at`, and its leaf.
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Leaf)>;

    /// Looks for the lowest table of leaves that begins at or above `at`, the first page of one. Returns the table and its
    /// first page, or where to look next: the children of one table at each level are looked at.
    fn next_lowest(&'static self, at: u64) -> (u64, Option<&'static Self::Lowest>);

    /// Removes the table of leaves of a page, in which no area starts, under that lock; returns whether it is this one,
    /// which the table above then removes.
    fn remove_lowest(&self, at: u64) -> bool;

    /// Checks PM1, PM2 and PM4 below `first`, the page number of the subtree; returns whether any start bit is set.
    fn check(&self, first: u64) -> Result<bool, InvariantViolation>;

    /// Returns all tables below to the machine, except leaves.
    fn release_meta(&self, machine: &impl Machine);

    /// Returns the number of tables below and this one, except leaves.
    #[cfg(test)]
    #[cfg(not(loom))]
    fn count(&self) -> u64;
}

/// Entries for `N` consecutive leaves, and a bit for each in which an area starts.
pub(crate) struct Leaves<const W: usize, const N: usize> {
    starts: Bits<W>,
    /// The leaves that serve its entries. Protocol PR-LEAF.
    leaves: [AtomicRef<Leaf>; N],
}

impl<const W: usize, const N: usize> Leaves<W, N> {
    /// Returns the index of the leaf, and the offset in it.
    #[inline(always)]
    fn split(at: u64) -> (usize, u64) {
        ((at / SLOTS as u64) as usize, at % SLOTS as u64)
    }

    #[inline(always)]
    fn leaf(&self, index: usize) -> Option<&'static Leaf> {
        self.leaves.get(index)?.load()
    }

    /// Returns whether an area starts anywhere in it; the caller holds the lock.
    pub(crate) fn has_any(&self) -> bool {
        self.starts.any()
    }

    /// Returns the leaves that serve its entries.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &'static Leaf> {
        self.leaves.iter().filter_map(AtomicRef::load)
    }

    /// Returns the highest start in a leaf below `index`, and its leaf.
    #[inline(never)]
    fn prev_below(&self, mut index: usize) -> Option<(u64, &'static Leaf)> {
        loop {
            index = self.starts.prev(index.checked_sub(1)?)?;
            // Empty only if its last area ended after the bit was read: continue.
            if let Some(leaf) = self.leaf(index)
                && let Some(found) = leaf.prev(SLOTS as u64 - 1)
            {
                return Some(((index * SLOTS) as u64 | found, leaf));
            }
        }
    }

    /// Returns the lowest start at or above `at` that a leaf finds by `search`.
    #[inline(always)]
    fn search(&self, at: u64, search: impl Fn(&Leaf, u64) -> Option<u64>) -> Option<u64> {
        let (mut index, at) = Self::split(at);
        let mut found = self.leaf(index).and_then(|leaf| search(leaf, at));
        while found.is_none() {
            index = self.starts.next(index + 1)?;
            // Empty only if its last area ended after the bit was read: continue.
            found = self.leaf(index).and_then(|leaf| search(leaf, 0));
        }
        found.map(|found| (index * SLOTS) as u64 | found)
    }
}

impl<const W: usize, const N: usize> Table for Leaves<W, N> {
    va_base::empty_table!(Self { starts: Bits::new(), leaves: va_base::array_of![AtomicRef::new(); N] });
}

impl<const W: usize, const N: usize> Subtree for Leaves<W, N> {
    const LOG2: u32 = N.ilog2() + SLOTS.ilog2();
    type Lowest = Self;

    #[inline(always)]
    fn place(&'static self, at: u64) -> Option<&'static AtomicRef<Leaf>> {
        self.leaves.get(Self::split(at).0)
    }

    fn reserve(&self, _at: u64, _made: &AtomicU64, _machine: &impl Machine) -> bool {
        const { assert!(N.is_power_of_two() && N <= W * 64) };
        true
    }

    fn mark(&self, at: u64, bits: u64) {
        let (index, _) = Self::split(at);
        if let Some(leaf) = self.leaf(index) {
            // Bottom up: a thread that sees the bit here finds one below.
            leaf.mark(bits);
            self.starts.set(index);
        }
    }

    fn unmark(&self, at: u64) -> bool {
        let (index, at) = Self::split(at);
        let empty = self.leaf(index).is_none_or(|leaf| leaf.unmark(at));
        empty && self.starts.clear(index)
    }

    #[inline]
    fn next(&self, at: u64) -> Option<u64> {
        self.search(at, Leaf::next)
    }

    fn next_busy(&self, at: u64) -> Option<u64> {
        self.search(at, Leaf::next_busy)
    }

    #[inline(always)]
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Leaf)> {
        let (index, at) = Self::split(at);
        if let Some(leaf) = self.leaf(index)
            && let Some(found) = leaf.prev(at)
        {
            return Some(((index * SLOTS) as u64 | found, leaf));
        }
        self.prev_below(index)
    }

    fn next_lowest(&'static self, _at: u64) -> (u64, Option<&'static Self>) {
        (0, Some(self))
    }

    fn remove_lowest(&self, _at: u64) -> bool {
        true
    }

    fn check(&self, first: u64) -> Result<bool, InvariantViolation> {
        let (holds, any) = self.starts.check();
        InvariantViolation::check(holds, "PM1", Va::from_page(first), u64::from(any), u64::from(!any))?;
        let mut marked = self.starts.next(0);
        for (index, place) in self.leaves.iter().enumerate() {
            let page = first | (index * SLOTS) as u64;
            let below = match place.load() {
                Some(leaf) => leaf.check(page)?,
                None => false,
            };
            let bit = marked == Some(index);
            if bit {
                marked = self.starts.next(index + 1);
            }
            InvariantViolation::check(
                bit == below,
                "PM2",
                Va::from_page(page),
                u64::from(below),
                u64::from(bit),
            )?;
        }
        Ok(any)
    }

    fn release_meta(&self, _machine: &impl Machine) {}

    #[cfg(test)]
    #[cfg(not(loom))]
    fn count(&self) -> u64 {
        1
    }
}

/// `N` subtrees, each allocated when first needed, and a bit for each in which an area starts.
pub(crate) struct Branch<T: 'static, const W: usize, const N: usize> {
    starts: Bits<W>,
    /// Set without a lock, and removed under that of the free index. Protocol PR-REF.
    children: [AtomicRef<T>; N],
}

impl<T: Subtree, const W: usize, const N: usize> Branch<T, W, N> {
    const MASK: u64 = (1 << T::LOG2) - 1;

    /// Returns the index of the child, and the offset in it.
    #[inline(always)]
    fn split(at: u64) -> (usize, u64) {
        ((at >> T::LOG2) as usize, at & Self::MASK)
    }

    #[inline(always)]
    pub(crate) fn child(&self, index: usize) -> Option<&'static T> {
        self.children.get(index)?.load()
    }

    /// Returns whether an area starts anywhere in it; the caller holds the lock.
    #[inline(always)]
    pub(crate) fn has_any(&self) -> bool {
        self.starts.any()
    }

    /// Returns the highest start in a child below `index`, and its leaf.
    #[inline(never)]
    fn prev_below(&'static self, mut index: usize) -> Option<(u64, &'static Leaf)> {
        loop {
            index = self.starts.prev(index.checked_sub(1)?)?;
            // Empty only if its last area ended after the bit was read: continue.
            if let Some((found, leaf)) = self.child(index).and_then(|child| child.prev(Self::MASK)) {
                return Some(((index as u64) << T::LOG2 | found, leaf));
            }
        }
    }

    /// Returns the child, allocating it if there is none, which is counted in `made`; `None` if the machine allocates no
    /// table.
    pub(crate) fn ensure(
        &self,
        index: usize,
        made: &AtomicU64,
        machine: &impl Machine,
    ) -> Option<&'static T> {
        let cell = self.children.get(index)?;
        loop {
            if let Some(child) = cell.load() {
                return Some(child);
            }
            let child = machine.alloc_table::<T>()?;
            if let Err(unused) = cell.set(child) {
                // Again: the other thread's may have returned to the machine since.
                machine.free_table(Meta::new(unused));
                continue;
            }
            made.fetch_add(1, Ordering::Relaxed);
            return Some(child);
        }
    }
}

impl<T: Subtree, const W: usize, const N: usize> Table for Branch<T, W, N> {
    va_base::empty_table!(Self { starts: Bits::new(), children: va_base::array_of![AtomicRef::new(); N] });
}

impl<T: Subtree, const W: usize, const N: usize> Subtree for Branch<T, W, N> {
    const LOG2: u32 = N.ilog2() + T::LOG2;
    type Lowest = T::Lowest;

    #[inline(always)]
    fn place(&'static self, at: u64) -> Option<&'static AtomicRef<Leaf>> {
        let (index, at) = Self::split(at);
        self.child(index)?.place(at)
    }

    fn reserve(&self, at: u64, made: &AtomicU64, machine: &impl Machine) -> bool {
        const { assert!(N.is_power_of_two() && N <= W * 64) };
        let (index, at) = Self::split(at);
        self.ensure(index, made, machine).is_some_and(|child| child.reserve(at, made, machine))
    }

    fn mark(&self, at: u64, bits: u64) {
        let (index, at) = Self::split(at);
        if let Some(child) = self.child(index) {
            // Bottom up: a thread that sees the bit here finds one below.
            child.mark(at, bits);
            self.starts.set(index);
        }
    }

    fn unmark(&self, at: u64) -> bool {
        let (index, at) = Self::split(at);
        let empty = self.child(index).is_none_or(|child| child.unmark(at));
        empty && self.starts.clear(index)
    }

    #[inline]
    fn next(&self, at: u64) -> Option<u64> {
        let (mut index, at) = Self::split(at);
        if let Some(found) = self.child(index).and_then(|child| child.next(at)) {
            return Some((index as u64) << T::LOG2 | found);
        }
        loop {
            index = self.starts.next(index + 1)?;
            // Empty only if its last area ended after the bit was read: continue.
            if let Some(found) = self.child(index).and_then(|child| child.next(0)) {
                return Some((index as u64) << T::LOG2 | found);
            }
        }
    }

    fn next_busy(&self, at: u64) -> Option<u64> {
        let (mut index, at) = Self::split(at);
        let mut found = self.child(index).and_then(|child| child.next_busy(at));
        while found.is_none() {
            index = self.starts.next(index + 1)?;
            found = self.child(index).and_then(|child| child.next_busy(0));
        }
        found.map(|found| (index as u64) << T::LOG2 | found)
    }

    #[inline(always)]
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Leaf)> {
        let (index, at) = Self::split(at);
        match self.child(index).and_then(|child| child.prev(at)) {
            Some((found, leaf)) => Some(((index as u64) << T::LOG2 | found, leaf)),
            None => self.prev_below(index),
        }
    }

    fn next_lowest(&'static self, at: u64) -> (u64, Option<&'static T::Lowest>) {
        let (first, at) = Self::split(at);
        let Some((index, child)) = (first..N).find_map(|index| Some((index, self.child(index)?))) else {
            return (1 << Self::LOG2, None);
        };
        let (found, lowest) = child.next_lowest(if index == first { at } else { 0 });
        (((index as u64) << T::LOG2) + found, lowest)
    }

    fn remove_lowest(&self, at: u64) -> bool {
        let (index, at) = Self::split(at);
        if let Some(cell) = self.children.get(index)
            && cell.load().is_some_and(|child| child.remove_lowest(at))
        {
            cell.store(None);
        }
        false
    }

    fn check(&self, first: u64) -> Result<bool, InvariantViolation> {
        let at = Va::from_page(first);
        let (holds, any) = self.starts.check();
        if !holds {
            return Err(InvariantViolation {
                rule: "PM1",
                at,
                expected: u64::from(any),
                actual: u64::from(!any),
            });
        }
        let mut marked = self.starts.next(0);
        for (index, child) in self.children.iter().enumerate() {
            let below = match child.load() {
                Some(child) => child.check(first | (index as u64) << T::LOG2)?,
                None => false,
            };
            let bit = marked == Some(index);
            if bit {
                marked = self.starts.next(index + 1);
            }
            if bit != below {
                return Err(InvariantViolation {
                    rule: "PM2",
                    at,
                    expected: u64::from(below),
                    actual: u64::from(bit),
                });
            }
        }
        Ok(any)
    }

    fn release_meta(&self, machine: &impl Machine) {
        for child in self.children.iter().filter_map(AtomicRef::load) {
            child.release_meta(machine);
            machine.free_table(Meta::new(child));
        }
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    fn count(&self) -> u64 {
        1 + self.children.iter().filter_map(AtomicRef::load).map(Subtree::count).sum::<u64>()
    }
}
