//! The porting contract of mappings: a page table, and a source of pages.
//!
//! # Theory
//! A page is a number (a page frame, an offset in a file, a handle); pages of consecutive numbers are contiguous. The
//! core makes these calls of the machine:
//!
//! | call | locks of the core held | may sleep | may fail |
//! |---|---|---|---|
//! | [`PageTable::map`] | none | yes | with what is done so far; smaller entries are tried for the rest, or it is undone |
//! | [`PageTable::unmap`] | none, or one that lets a purge sleep | if that lock lets it | no |
//! | [`PageTable::leaf`] | none, or one that lets a purge sleep | no | - |
//! | [`PageSource::alloc`], [`PageSource::alloc_run`] | none | yes | with fewer pages, or none |
//! | [`PageSource::free`], [`PageSource::clear`] | none | yes | no |
//! | [`PageSource::hide`], [`PageSource::set_direct`] | none | yes | no |
//! | [`Machine::flush`](va_base::Machine::flush), [`wait`](va_base::Machine::wait) | none, besides those of a space | yes | no |
//!
//! **Sizes of entries.** An entry maps `2^n` consecutive pages, at an address and from a page number that are multiples
//! of that. A machine has a ladder of such sizes ([`PageTable::LEAF_SIZES`]), and each entry written is as large as the
//! address, the page numbers and the length allow:
//!
//! ```text
//!   4 KiB pages           LEAF_SIZES        arm64: entries with the contiguous bit, blocks of 2 MiB and 1 GiB
//!   one size              [0]               RISC-V: Svnapot of 64 KiB, megapages, gigapages
//!   x86-64                [0, 9, 18]
//!   arm64, RISC-V         [0, 4, 9, 18]
//!
//!   page    30  31 | 32 .. 47 | 48 .. 511 | 512 .. 1023 | 1024 ..
//!   entry    1   1 |    16    | 29 of 16  |     512     |
//! ```
//!
//! **Stale translations.** After `unmap` CPUs may translate an address until a flush that covers it has ended. The
//! pages of an area are freed to the source before that, as in Linux: a caller that still uses a freed address reads or
//! writes another's page. The pages of an area with [`DirectMap::ResetOnFree`](crate::DirectMap) are freed after that
//! flush.

use va_base::{Meta, Va, VaRange};

/// The contents of new pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fill {
    /// Unspecified.
    #[default]
    Any,
    /// Zeros.
    Zeros,
}

/// The accesses that a mapping permits, in the machine's own bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Protection(pub u32);

/// Pages of consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    /// Number of the first.
    pub first: u64,
    /// The number of pages, at least one.
    pub pages: u64,
}

/// An entry of a page table: the pages at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    /// Number of the first page that it maps.
    pub first: u64,
    /// Binary logarithm of the number of pages that it maps: one of [`PageTable::LEAF_SIZES`].
    pub pages_log2: u32,
}

impl Leaf {
    /// Returns the pages that it maps.
    pub(crate) fn run(self) -> Run {
        Run { first: self.first, pages: 1 << self.pages_log2 }
    }
}

/// Entries of one size, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entries {
    /// The pages: a multiple of the size of an entry, and so is the number of the first.
    pub run: Run,
    /// Binary logarithm of the pages of each entry: one of [`PageTable::LEAF_SIZES`].
    pub pages_log2: u32,
    /// The permitted accesses to the pages.
    pub protection: Protection,
}

/// The properties of a request to a source, besides the number of pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageRequest {
    /// The contents of the pages.
    pub fill: Fill,
    /// The preferred NUMA node of the pages; any if there is none. A source without pages there allocates others.
    pub numa_id: Option<u32>,
}

/// Access to pages through the machine's own mapping of all pages, its direct map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DirectAccess {
    /// None: before the flush, so that no page is writable at one address and executable at another.
    Invalid,
    /// The access of every free page.
    Default,
}

/// The reason why a page table mapped no more pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PageTableError {
    /// No memory for a table.
    NoMemory,
    /// No entry of this size here: with this protection, for these pages, or at all. Never for single pages.
    NoLarge,
    /// A limit of the machine.
    Limit {
        /// The number that the call would reach.
        wanted: u64,
        /// The largest number allowed.
        limit: u64,
    },
    /// Another reason, by the machine's number.
    Other(i32),
}

impl core::fmt::Display for PageTableError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoMemory => f.write_str("no memory for the page table"),
            Self::NoLarge => f.write_str("no entry of this size here"),
            Self::Limit { wanted, limit } => write!(f, "{wanted} mappings are more than {limit}"),
            Self::Other(number) => write!(f, "error {number} of the machine"),
        }
    }
}

/// The progress of a call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stopped {
    /// Pages from the beginning that are mapped now.
    pub pages_done: u64,
    /// The reason why the next page is not mapped.
    pub why: PageTableError,
}

/// A page table, which maps pages at addresses. All ranges are whole pages inside the extent of a space.
pub trait PageTable {
    /// Sizes of entries: the binary logarithm of the pages that each maps, ascending, 0 first. At most
    /// [`LEAF_SIZES_MAX`] of them.
    const LEAF_SIZES: &'static [u32];

    /// Maps pages at `at`, where nothing is mapped, by entries of one size. The address is a multiple of that size.
    ///
    /// # Errors
    /// [`Stopped`], with whole entries done. The mapped entries remain; the caller maps the rest by smaller entries, or
    /// unmaps them.
    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped>;

    /// Unmaps all entries in `range`, and reports each to `gone` in address order. No entry is cut. CPUs may translate
    /// until the next flush.
    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf));

    /// Returns the entry that maps `at`.
    fn leaf(&self, at: Va) -> Option<Leaf>;
}

/// Sizes of entries that a machine may have.
pub const LEAF_SIZES_MAX: usize = 8;

/// The source of pages.
pub trait PageSource {
    /// True if [`hide`](Self::hide) and [`set_direct`](Self::set_direct) are implemented. Without them no area can be
    /// created whose pages have their permissions reset ([`DirectMap::ResetOnFree`](crate::DirectMap)).
    const RESETS: bool = false;

    /// Allocates pages for the core, up to the length of `frames`, and returns how many; 0 if there is none.
    fn alloc(&self, frames: &mut [u64], request: PageRequest) -> usize;

    /// Allocates `2^pages_log2` consecutive pages, the first a multiple of that; `None` if there are none. They may be
    /// freed one by one.
    fn alloc_run(&self, pages_log2: u32, request: PageRequest) -> Option<u64>;

    /// Frees pages of the core.
    fn free(&self, run: Run);

    /// Zeroes the bytes `[from, to)` of a page.
    fn clear(&self, frame: u64, from: u64, to: u64);

    /// Makes every entry of `range` inaccessible: not present, but with the page numbers still in it.
    /// [`PageTable::leaf`] and [`PageTable::unmap`] report these as before. CPUs may translate until the next flush.
    ///
    /// The core has no memory for a list of an area's pages, and needs them after the flush.
    fn hide(&self, range: VaRange) {
        _ = range;
    }

    /// Changes the access to pages in the direct map. Returns the addresses there that CPUs may translate as before
    /// until a flush; an empty range where nothing changed.
    fn set_direct(&self, run: Run, access: DirectAccess) -> VaRange {
        _ = (run, access);
        VaRange::default()
    }
}

impl<T: PageTable + ?Sized> PageTable for &T {
    const LEAF_SIZES: &'static [u32] = T::LEAF_SIZES;

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        (**self).map(at, entries)
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        (**self).unmap(range, gone);
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        (**self).leaf(at)
    }
}

/// A table whose memory may be freed while it is an argument, as by `drop` of what has it.
impl<T: PageTable + ?Sized> PageTable for Meta<&T> {
    const LEAF_SIZES: &'static [u32] = T::LEAF_SIZES;

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        (***self).map(at, entries)
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        (***self).unmap(range, gone);
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        (***self).leaf(at)
    }
}

impl<T: PageSource + ?Sized> PageSource for &T {
    const RESETS: bool = T::RESETS;

    fn alloc(&self, frames: &mut [u64], request: PageRequest) -> usize {
        (**self).alloc(frames, request)
    }

    fn alloc_run(&self, pages_log2: u32, request: PageRequest) -> Option<u64> {
        (**self).alloc_run(pages_log2, request)
    }

    fn free(&self, run: Run) {
        (**self).free(run);
    }

    fn clear(&self, frame: u64, from: u64, to: u64) {
        (**self).clear(frame, from, to);
    }

    fn hide(&self, range: VaRange) {
        (**self).hide(range);
    }

    fn set_direct(&self, run: Run, access: DirectAccess) -> VaRange {
        (**self).set_direct(run, access)
    }
}
