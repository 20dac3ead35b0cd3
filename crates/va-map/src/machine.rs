//! The porting contract of what is mapped: a page table, and where pages come from.
//!
//! # Theory
//! A page is a number (a page frame, an offset in a file, a handle); pages of consecutive numbers lie side by side. The machine is
//! asked for:
//!
//! | call | locks of the core held | may sleep | may fail |
//! |---|---|---|---|
//! | [`PageTable::map`] | none | yes | with what is done so far, which the caller undoes |
//! | [`PageTable::map_huge`] | none | yes | and nothing has changed; small pages are mapped instead |
//! | [`PageTable::unmap`] | none, or one that lets a purge sleep | if that lock lets it | no |
//! | [`PageTable::leaf`] | none | no | - |
//! | [`PageSource::take`], [`PageSource::take_huge`] | none | yes | with fewer pages, or none |
//! | [`PageSource::give_back`], [`PageSource::clear`] | none | yes | no |
//! | [`Machine::flush`](va_base::Machine::flush) | none, besides those of a space | yes | no |
//!
//! **Stale translations.** After `unmap` CPUs may translate an address until a flush that covers it has ended. Pages are given
//! back before that, as Linux does: whoever still uses a freed address reads or writes what is another's. A machine that wants
//! more keeps pages in its `give_back` until the next flush has ended.

use va_base::{Va, VaRange};

/// What may be done with what is mapped, in the machine's own bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Protection(pub u32);

/// Pages of consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    /// Number of the first.
    pub first: u64,
    /// How many, at least one.
    pub pages: u64,
}

/// An entry of a page table: what is behind an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    /// Number of the first page that it maps.
    pub first: u64,
    /// How many it maps, as a power of two: 0 for a small page, [`PageTable::HUGE_LOG2`] for a huge one.
    pub pages_log2: u32,
}

/// Why a page table maps no more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// No memory for a part of the page table.
    NoMemory,
    /// No huge mapping here: by this protection, for these pages, or at all.
    NoHuge,
    /// A limit of the machine.
    Limit {
        /// How many there would be.
        wanted: u64,
        /// How many there may be.
        limit: u64,
    },
    /// Another reason, by the machine's number.
    Other(i32),
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoMemory => f.write_str("no memory for the page table"),
            Self::NoHuge => f.write_str("no huge mapping here"),
            Self::Limit { wanted, limit } => write!(f, "{wanted} mappings are more than {limit}"),
            Self::Other(number) => write!(f, "error {number} of the machine"),
        }
    }
}

/// How far a call came that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stopped {
    /// Pages of the beginning that are mapped now.
    pub pages_done: u64,
    /// Why the next one is not.
    pub why: Refusal,
}

/// What puts pages at addresses. All ranges are whole pages inside the extent of a space.
pub trait PageTable {
    /// Pages of a huge mapping, as a power of two; 0 if there are none. A huge mapping begins at a multiple of its size, and
    /// so does the number of its first page.
    const HUGE_LOG2: u32;

    /// Maps pages one by one at `at`, where nothing is mapped.
    ///
    /// # Errors
    /// [`Stopped`]. What was done stays; the caller unmaps it.
    fn map(&self, at: Va, run: Run, protection: Protection) -> Result<(), Stopped>;

    /// Maps `2^HUGE_LOG2` pages at `at`, by one entry.
    ///
    /// # Errors
    /// A [`Refusal`], and nothing has changed.
    fn map_huge(&self, at: Va, first: u64, protection: Protection) -> Result<(), Refusal>;

    /// Unmaps what is mapped in `range`, and tells every entry to `gone` in address order. No huge mapping is cut. CPUs
    /// may translate until the next flush.
    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf));

    /// The entry that maps `at`.
    fn leaf(&self, at: Va) -> Option<Leaf>;
}

/// Where pages come from.
pub trait PageSource {
    /// Lends pages, zeros if `zeroed`, as many as `frames` has places or fewer, and returns how many; 0 if there is none.
    fn take(&self, frames: &mut [u64], zeroed: bool) -> usize;

    /// Lends `2^pages_log2` pages of consecutive numbers, the first a multiple of that, or refuses. They may come back one by one.
    fn take_huge(&self, pages_log2: u32, zeroed: bool) -> Option<u64>;

    /// Takes pages back.
    fn give_back(&self, run: Run);

    /// Makes zeros of the bytes `[from, to)` of a page.
    fn clear(&self, frame: u64, from: u64, to: u64);
}

impl<T: PageTable + ?Sized> PageTable for &T {
    const HUGE_LOG2: u32 = T::HUGE_LOG2;

    fn map(&self, at: Va, run: Run, protection: Protection) -> Result<(), Stopped> {
        (**self).map(at, run, protection)
    }

    fn map_huge(&self, at: Va, first: u64, protection: Protection) -> Result<(), Refusal> {
        (**self).map_huge(at, first, protection)
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        (**self).unmap(range, gone);
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        (**self).leaf(at)
    }
}

impl<T: PageSource + ?Sized> PageSource for &T {
    fn take(&self, frames: &mut [u64], zeroed: bool) -> usize {
        (**self).take(frames, zeroed)
    }

    fn take_huge(&self, pages_log2: u32, zeroed: bool) -> Option<u64> {
        (**self).take_huge(pages_log2, zeroed)
    }

    fn give_back(&self, run: Run) {
        (**self).give_back(run);
    }

    fn clear(&self, frame: u64, from: u64, to: u64) {
        (**self).clear(frame, from, to);
    }
}
