//! The handle that a caller holds, and the view that a lookup returns.

use crate::map::{Seen, State};
use va_base::{PAGE_SHIFT, Pages, Va, VaRange};

/// The handle of a busy area: a range of addresses that no other area overlaps.
///
/// It does **not** mean that anything is mapped there. Dropping it leaks the range: free it with `free`. The area can
/// also be freed by its first address alone (`free_at`); a free of this handle then fails.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an area that is dropped is never freed"]
pub struct Area {
    pub(crate) page: u64,
    pub(crate) pages: u64,
    pub(crate) generation: u32,
}

impl Area {
    /// Returns the first address.
    #[inline]
    #[must_use]
    pub fn start(&self) -> Va {
        Va::from_page(self.page)
    }

    /// Returns the size in pages.
    #[inline]
    #[must_use]
    pub fn size(&self) -> Pages {
        Pages::new(self.pages)
    }

    /// Returns the range of addresses.
    #[inline]
    #[must_use]
    pub fn range(&self) -> VaRange {
        range_of(self.page, self.pages)
    }
}

/// The handle of a detached area: lookups no longer find it, and its owner releases it.
///
/// Dropping it leaks the range.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an area that is dropped is never freed"]
pub struct DetachedArea {
    pub(crate) page: u64,
    pub(crate) pages: u64,
    pub(crate) generation: u32,
    pub(crate) note: Option<u64>,
}

impl DetachedArea {
    /// Returns its addresses.
    #[inline]
    #[must_use]
    pub fn range(&self) -> VaRange {
        range_of(self.page, self.pages)
    }

    /// Returns its note.
    #[inline]
    #[must_use]
    pub fn note(&self) -> Option<u64> {
        self.note
    }
}

/// The state of an area that a lookup read at one moment. The area may have been freed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaView {
    /// Its addresses.
    pub range: VaRange,
    /// Its state at that moment.
    pub state: State,
    /// The node that allocated it; `None` for one outside the default window, one taken at boot, and in a space without
    /// pools.
    pub owner: Option<u32>,
    /// Its note ([`note`](crate::VmapSpace::note)), if a lookup found it busy, at the moment that its word was read.
    /// `None` in an iteration over all areas.
    pub note: Option<u64>,
}

impl AreaView {
    pub(crate) fn of(seen: Seen) -> Option<Self> {
        let state = seen.word.state()?;
        Some(Self { range: range_of(seen.page, seen.pages), state, owner: seen.word.owner(), note: None })
    }
}

#[inline]
pub(crate) fn range_of(page: u64, pages: u64) -> VaRange {
    // In an extent, which ends by 2^64 - 1: no bit is shifted out.
    VaRange::from_size(Va::from_page(page), pages << PAGE_SHIFT).unwrap_or_default()
}
