//! The tables of the page map: leaves of slots, and tables of tables above them.
//!
//! A table is lent by the machine the first time an area starts in it and stays until the space is dropped. It is set
//! once ([`OnceRef`]); of two that race to set it, one hands its table back.

use super::bits::Bits;
use super::word::Word;
use va_base::sync::OnceRef;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Broken, Machine, Table, Va};

/// What the map keeps for one page: used only while an area starts there (and for the size of a huge one before it).
pub(crate) struct Slot {
    /// See [`Word`](super::word::Word).
    word: AtomicU64,
    /// The first page of the next area in the list that this area is in; guarded by whoever holds the list.
    link: AtomicU64,
}

impl Slot {
    /// The word as it is now.
    #[inline(always)]
    pub(crate) fn word(&self) -> Word {
        // Pairs with the release stores of `put` and of `exchange`.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Writes the word of an area that the caller has to himself.
    #[inline(always)]
    pub(crate) fn put(&self, word: Word) {
        // Release: what was done to the area before is seen by whoever finds or frees it.
        self.word.store(word.bits(), Ordering::Release);
    }

    /// Replaces the word of a busy area, or returns what is there now.
    #[inline(always)]
    pub(crate) fn exchange(&self, from: Word, to: Word) -> Result<(), Word> {
        // Acquire: the freer owns the area from here on. Release: as in `put`.
        let done = self.word.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire);
        done.map(|_| ()).map_err(Word::from_bits)
    }

    /// The area next in a list; the caller holds the list.
    #[inline(always)]
    pub(crate) fn link(&self) -> u64 {
        self.link.load(Ordering::Relaxed)
    }

    /// Sets it.
    #[inline(always)]
    pub(crate) fn set_link(&self, next: u64) {
        self.link.store(next, Ordering::Relaxed);
    }
}

/// A subtree of the map. `at` is a page number relative to the subtree.
pub(crate) trait Subtree: Table {
    /// Binary logarithm of the pages covered.
    const LOG2: u32;

    /// The slot of a page, if its leaf was lent.
    fn slot(&'static self, at: u64) -> Option<&'static Slot>;

    /// Makes sure that the leaf of a page is there; `false` if the machine refuses a table.
    fn reserve(&self, at: u64, machine: &impl Machine) -> bool;

    /// Sets the start bit of a page whose leaf is there, under the lock of the free index.
    fn mark(&self, at: u64);

    /// Clears it under that lock; tells whether no start bit is left.
    fn unmark(&self, at: u64) -> bool;

    /// The lowest start at or above `at`.
    fn next(&self, at: u64) -> Option<u64>;

    /// The highest start at or below `at`, and its slot.
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Slot)>;

    /// Checks PM1 and PM2 below `first`, the page number of the subtree; tells whether any start bit is set.
    fn check(&self, first: u64) -> Result<bool, Broken>;

    /// Hands all tables below back.
    fn hand_back(&self, machine: &impl Machine);

    /// Tables below and this one.
    fn count(&self) -> u64;
}

/// Slots of consecutive pages and a bit for each at which an area starts.
pub(crate) struct Leaf<const W: usize, const N: usize> {
    starts: Bits<W>,
    slots: [Slot; N],
}

impl<const W: usize, const N: usize> Table for Leaf<W, N> {
    fn empty() -> Self {
        let slot = |_| Slot { word: AtomicU64::new(0), link: AtomicU64::new(0) };
        Self { starts: Bits::new(), slots: core::array::from_fn(slot) }
    }
}

impl<const W: usize, const N: usize> Subtree for Leaf<W, N> {
    const LOG2: u32 = N.ilog2();

    #[inline(always)]
    fn slot(&'static self, at: u64) -> Option<&'static Slot> {
        self.slots.get(at as usize)
    }

    fn reserve(&self, _at: u64, _machine: &impl Machine) -> bool {
        const { assert!(N.is_power_of_two() && N <= W * 64) };
        true
    }

    fn mark(&self, at: u64) {
        self.starts.set(at as usize);
    }

    fn unmark(&self, at: u64) -> bool {
        self.starts.clear(at as usize)
    }

    #[inline]
    fn next(&self, at: u64) -> Option<u64> {
        self.starts.next(at as usize).map(|at| at as u64)
    }

    #[inline(always)]
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Slot)> {
        let at = self.starts.prev(at as usize)?;
        Some((at as u64, self.slots.get(at)?))
    }

    fn check(&self, first: u64) -> Result<bool, Broken> {
        let (holds, any) = self.starts.check();
        let broken =
            Broken { rule: "PM1", at: Va::from_page(first), want: u64::from(any), got: u64::from(!any) };
        if holds { Ok(any) } else { Err(broken) }
    }

    fn hand_back(&self, _machine: &impl Machine) {}

    fn count(&self) -> u64 {
        1
    }
}

/// `N` subtrees, each lent when first needed, and a bit for each in which an area starts.
pub(crate) struct Branch<T: 'static, const W: usize, const N: usize> {
    starts: Bits<W>,
    children: [OnceRef<'static, T>; N],
}

impl<T: Subtree, const W: usize, const N: usize> Branch<T, W, N> {
    const MASK: u64 = (1 << T::LOG2) - 1;

    /// Which child, and where in it.
    #[inline(always)]
    fn place(at: u64) -> (usize, u64) {
        ((at >> T::LOG2) as usize, at & Self::MASK)
    }

    #[inline(always)]
    pub(crate) fn child(&self, index: usize) -> Option<&'static T> {
        self.children.get(index)?.get()
    }

    /// The highest start in a child below `index`, and its slot.
    #[inline(never)]
    fn prev_below(&'static self, mut index: usize) -> Option<(u64, &'static Slot)> {
        loop {
            index = self.starts.prev(index.checked_sub(1)?)?;
            // Empty only if its last area went away after the bit was read: go on.
            if let Some((found, slot)) = self.child(index).and_then(|child| child.prev(Self::MASK)) {
                return Some(((index as u64) << T::LOG2 | found, slot));
            }
        }
    }

    /// The child, lent now if it was not there; `None` if the machine refuses.
    pub(crate) fn ensure(&self, index: usize, machine: &impl Machine) -> Option<&'static T> {
        let cell = self.children.get(index)?;
        if let Some(child) = cell.get() {
            return Some(child);
        }
        let child = machine.lend_table::<T>()?;
        match cell.set(child) {
            Ok(()) => Some(child),
            Err(()) => {
                machine.take_back_table(child);
                cell.get()
            }
        }
    }
}

impl<T: Subtree, const W: usize, const N: usize> Table for Branch<T, W, N> {
    fn empty() -> Self {
        Self { starts: Bits::new(), children: core::array::from_fn(|_| OnceRef::new()) }
    }
}

impl<T: Subtree, const W: usize, const N: usize> Subtree for Branch<T, W, N> {
    const LOG2: u32 = N.ilog2() + T::LOG2;

    #[inline(always)]
    fn slot(&'static self, at: u64) -> Option<&'static Slot> {
        let (index, at) = Self::place(at);
        self.child(index)?.slot(at)
    }

    fn reserve(&self, at: u64, machine: &impl Machine) -> bool {
        const { assert!(N.is_power_of_two() && N <= W * 64) };
        let (index, at) = Self::place(at);
        self.ensure(index, machine).is_some_and(|child| child.reserve(at, machine))
    }

    fn mark(&self, at: u64) {
        let (index, at) = Self::place(at);
        if let Some(child) = self.child(index) {
            // Bottom up: whoever sees the bit here finds one below.
            child.mark(at);
            self.starts.set(index);
        }
    }

    fn unmark(&self, at: u64) -> bool {
        let (index, at) = Self::place(at);
        let empty = self.child(index).is_none_or(|child| child.unmark(at));
        empty && self.starts.clear(index)
    }

    #[inline]
    fn next(&self, at: u64) -> Option<u64> {
        let (mut index, at) = Self::place(at);
        if let Some(found) = self.child(index).and_then(|child| child.next(at)) {
            return Some((index as u64) << T::LOG2 | found);
        }
        loop {
            index = self.starts.next(index + 1)?;
            // Empty only if its last area went away after the bit was read: go on.
            if let Some(found) = self.child(index).and_then(|child| child.next(0)) {
                return Some((index as u64) << T::LOG2 | found);
            }
        }
    }

    #[inline(always)]
    fn prev(&'static self, at: u64) -> Option<(u64, &'static Slot)> {
        let (index, at) = Self::place(at);
        match self.child(index).and_then(|child| child.prev(at)) {
            Some((found, slot)) => Some(((index as u64) << T::LOG2 | found, slot)),
            None => self.prev_below(index),
        }
    }

    fn check(&self, first: u64) -> Result<bool, Broken> {
        let at = Va::from_page(first);
        let (holds, any) = self.starts.check();
        if !holds {
            return Err(Broken { rule: "PM1", at, want: u64::from(any), got: u64::from(!any) });
        }
        let mut marked = self.starts.next(0);
        for (index, child) in self.children.iter().enumerate() {
            let below = match child.get() {
                Some(child) => child.check(first | (index as u64) << T::LOG2)?,
                None => false,
            };
            let bit = marked == Some(index);
            if bit {
                marked = self.starts.next(index + 1);
            }
            if bit != below {
                return Err(Broken { rule: "PM2", at, want: u64::from(below), got: u64::from(bit) });
            }
        }
        Ok(any)
    }

    fn hand_back(&self, machine: &impl Machine) {
        for child in self.children.iter().filter_map(OnceRef::get) {
            child.hand_back(machine);
            machine.take_back_table(child);
        }
    }

    fn count(&self) -> u64 {
        1 + self.children.iter().filter_map(OnceRef::get).map(Subtree::count).sum::<u64>()
    }
}
