//! The only way from unflushed to flushed (SP2).
//!
//! The rest of the crate cannot make an `AreaList<Flushed>` of an `AreaList<Unflushed>`; it hands the list in here, the
//! machine is asked to flush the hull, and the list comes out when the machine says that the epoch is completed. Checks SP2:
//! nothing else compiles.

use crate::list::{AreaList, Flushed, InFlush, Unflushed};
use crate::map::PageMap;
use va_base::{Epoch, Machine, Va, VaRange};

/// Freed areas of one node and the hull of all that were put in since it was last emptied.
pub(crate) struct LazyAreas {
    pub(crate) list: AreaList<Unflushed>,
    low: u64,
    high: u64,
}

impl LazyAreas {
    pub(crate) const fn new() -> Self {
        Self { list: AreaList::new(), low: u64::MAX, high: 0 }
    }

    /// Notes that `[page, end)` is in the list.
    #[inline]
    pub(crate) fn cover(&mut self, page: u64, end: u64) {
        self.low = self.low.min(page);
        self.high = self.high.max(end);
    }

    /// Moves all of `other` to the end of this.
    pub(crate) fn append(&mut self, map: &PageMap, other: Self) {
        self.cover(other.low, other.high);
        self.list.append(map, other.list);
    }

    /// Empties this and returns what was in it.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }
}

/// Areas whose flush has begun.
pub(crate) struct Flight {
    list: AreaList<InFlush>,
    epoch: Epoch,
}

impl Flight {
    /// Begins one flush over the hull of `lazy`.
    ///
    /// The machine's `flush` comes before the areas change their type, so an area that was freed and unmapped before it
    /// went into `lazy` is covered.
    pub(crate) fn begin(lazy: LazyAreas, machine: &impl Machine) -> Self {
        let hull = VaRange::new(Va::from_page(lazy.low), Va::from_page(lazy.high)).unwrap_or(VaRange::ALL);
        let epoch = machine.flush(&[hull]);
        Self { list: lazy.list.in_phase(), epoch }
    }

    /// Returns the areas if the flush has ended, or itself.
    pub(crate) fn land(self, machine: &impl Machine) -> Result<AreaList<Flushed>, Self> {
        if machine.completed(self.epoch) { Ok(self.list.in_phase()) } else { Err(self) }
    }

    pub(crate) fn areas(&self) -> u64 {
        self.list.areas()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.list.pages()
    }
}
