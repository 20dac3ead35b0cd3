//! The requests of a caller.

use crate::machine::{Fill, Protection, Run};
use va_base::{Align, VaRange};

/// The page after the last usable one, if any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Guard {
    /// At least one page without a mapping.
    #[default]
    Page,
    /// No guard: any mapping may follow (`VM_NO_GUARD`).
    None,
}

impl Guard {
    pub(crate) const fn pages(self) -> u64 {
        match self {
            Self::Page => 1,
            Self::None => 0,
        }
    }
}

/// The sizes of the entries that map an area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Leaves {
    /// One for each page.
    #[default]
    Small,
    /// As large as the size, the source and the page table allow (`VM_ALLOW_HUGE_VMAP`).
    LargeWherePossible,
}

/// The permissions of an area's pages in the machine's direct map when the area is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DirectMap {
    /// Unchanged while the pages were allocated.
    #[default]
    Unchanged,
    /// To be reset before the pages are used again, since the area was made read-only or executable
    /// (`VM_FLUSH_RESET_PERMS`).
    ResetOnFree,
}

/// A request for an area with pages of its own.
///
/// ```
/// use va_map::{AreaRequest, Fill, Guard};
/// let request = AreaRequest::new(10_000).range_bytes(1 << 20).fill(Fill::Zeros);
/// assert_eq!((request.bytes, request.range_bytes, request.guard), (10_000, 1 << 20, Guard::Page));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct AreaRequest {
    /// Bytes that will be used.
    pub bytes: u64,
    /// Bytes of address range to grow into without a move, including `bytes`; a smaller number has no effect.
    pub range_bytes: u64,
    /// Alignment of the first byte.
    pub align: Align,
    /// The window of the area; the default window of the space if there is none.
    pub window: Option<VaRange>,
    /// The guard page.
    pub guard: Guard,
    /// The entries that map it.
    pub leaves: Leaves,
    /// The contents of its pages.
    pub fill: Fill,
    /// The permitted accesses to its pages.
    pub protection: Protection,
    /// The permissions of its pages when it is freed.
    pub direct_map: DirectMap,
    /// The preferred NUMA node of its pages, not of its record; any if there is none.
    pub numa_id: Option<u32>,
    /// The caller, in the machine's own terms; returned by [`info`](crate::MapSpace::info).
    pub caller: u64,
}

impl AreaRequest {
    /// Requests `bytes` bytes, page-aligned, with a guard page, in small pages with unspecified contents.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            range_bytes: 0,
            align: Align::PAGE,
            window: None,
            guard: Guard::Page,
            leaves: Leaves::Small,
            fill: Fill::Any,
            protection: Protection(0),
            direct_map: DirectMap::Unchanged,
            numa_id: None,
            caller: 0,
        }
    }

    /// Sets the bytes that will be used.
    #[must_use]
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the bytes of address range to grow into without a move.
    #[must_use]
    pub const fn range_bytes(mut self, range_bytes: u64) -> Self {
        self.range_bytes = range_bytes;
        self
    }

    /// Sets the alignment of the first byte.
    #[must_use]
    pub const fn align(mut self, align: Align) -> Self {
        self.align = align;
        self
    }

    /// Sets the window of the area.
    #[must_use]
    pub const fn window(mut self, window: VaRange) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets the guard page.
    #[must_use]
    pub const fn guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }

    /// Sets the sizes of the entries that map it.
    #[must_use]
    pub const fn leaves(mut self, leaves: Leaves) -> Self {
        self.leaves = leaves;
        self
    }

    /// Sets the contents of its pages.
    #[must_use]
    pub const fn fill(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// Sets the permitted accesses to its pages.
    #[must_use]
    pub const fn protection(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// Sets the permissions of its pages when it is freed.
    #[must_use]
    pub const fn direct_map(mut self, direct_map: DirectMap) -> Self {
        self.direct_map = direct_map;
        self
    }

    /// Sets the preferred NUMA node of its pages.
    #[must_use]
    pub const fn numa_id(mut self, numa_id: u32) -> Self {
        self.numa_id = Some(numa_id);
        self
    }

    /// Sets the caller, in the machine's own terms.
    #[must_use]
    pub const fn caller(mut self, caller: u64) -> Self {
        self.caller = caller;
        self
    }
}

/// Page numbers in an order that a caller chose, with repetitions.
pub trait PageList {
    /// Returns the number of pages.
    fn count(&self) -> u64;

    /// Returns the page number at an index below [`count`](Self::count).
    fn page(&self, place: u64) -> u64;

    /// Returns the longest run of consecutive numbers from an index on.
    fn run(&self, place: u64) -> Run {
        let first = self.page(place);
        let follows = |&next: &u64| first.checked_add(next - place) == Some(self.page(next));
        let more = (place + 1..self.count()).take_while(follows).count() as u64;
        Run { first, pages: 1 + more }
    }
}

impl PageList for [u64] {
    fn count(&self) -> u64 {
        self.len() as u64
    }

    fn page(&self, place: u64) -> u64 {
        self[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_long_as_numbers_follow() {
        let list: &[u64] = &[5, 6, 7, 7, 8, 2, u64::MAX, 0];
        let runs = [(0, 5, 3), (1, 6, 2), (3, 7, 2), (5, 2, 1), (6, u64::MAX, 1), (7, 0, 1)];
        for (place, first, pages) in runs {
            assert_eq!(list.run(place), Run { first, pages }, "from place {place}");
        }
    }
}
