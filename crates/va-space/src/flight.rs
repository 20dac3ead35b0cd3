//! The only way from unflushed to flushed (SP2).
//!
//! ```text
//!   lazy of a node --board--> on board --begin: flush--> in flight --land: completed--> landed, taken list by list
//! ```
//! The rest of the crate cannot make an `AreaList<Flushed>` of an `AreaList<Unflushed>`. It boards what is lazy, node by
//! node; the machine is asked once to flush the hull of all; and when it says that the epoch is completed there is a
//! [`Landed`], without which nobody takes anything off board. There is one flight at a time, and nobody boards in between:
//! boarding needs the [`Boarding`] that the flight is made of. Checks SP2: nothing else compiles.

use crate::list::{AreaList, Flushed, Unflushed};
use crate::map::PageMap;
use crate::pool::Shelf;
use va_base::{Epoch, Machine, Va, VaRange};

/// Freed areas, and the hull of all that were put in since it was last emptied: those of the node by size, and others.
pub(crate) struct LazyAreas {
    pub(crate) sized: Shelf<Unflushed>,
    pub(crate) mixed: AreaList<Unflushed>,
    low: u64,
    high: u64,
}

impl LazyAreas {
    pub(crate) const fn new() -> Self {
        Self { sized: Shelf::new(), mixed: AreaList::new(), low: u64::MAX, high: 0 }
    }

    #[inline(always)]
    pub(crate) fn areas(&self) -> u64 {
        self.sized.areas() + self.mixed.areas()
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> u64 {
        self.sized.pages() + self.mixed.pages()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.areas() == 0
    }

    /// Notes that `[page, end)` is in it.
    #[inline(always)]
    pub(crate) fn cover(&mut self, page: u64, end: u64) {
        self.low = self.low.min(page);
        self.high = self.high.max(end);
    }

    /// Moves all of `other` here, before what is here.
    pub(crate) fn absorb(&mut self, map: &PageMap, other: &mut Self) {
        self.cover(other.low, other.high);
        (other.low, other.high) = (u64::MAX, 0);
        self.mixed.append(map, core::mem::replace(&mut other.mixed, AreaList::new()));
        move_all(map, &mut other.sized, &mut self.sized, &mut self.mixed);
    }
}

/// Moves a shelf into another, and what finds no list there to the end of `rest`.
fn move_all(
    map: &PageMap,
    from: &mut Shelf<Unflushed>,
    to: &mut Shelf<Unflushed>,
    rest: &mut AreaList<Unflushed>,
) {
    let mut class = 0;
    while let Some(at) = from.next_class(class) {
        let size = from.size(at);
        if let Err(list) = to.put_list(map, size, from.take_list(map, at, u64::MAX)) {
            rest.append(map, list);
        }
        class = at + 1;
    }
}

/// What of one node is on board, by size.
pub(crate) struct OnBoard(Shelf<Unflushed>);

impl OnBoard {
    pub(crate) const fn new() -> Self {
        Self(Shelf::new())
    }

    pub(crate) fn shelf(&self) -> &Shelf<Unflushed> {
        &self.0
    }
}

/// A flight that has not begun.
pub(crate) struct Boarding {
    mixed: AreaList<Unflushed>,
    low: u64,
    high: u64,
}

impl Boarding {
    pub(crate) const fn new() -> Self {
        Self { mixed: AreaList::new(), low: u64::MAX, high: 0 }
    }

    /// Takes all of `lazy` on board: what is sorted by size to the board of its node, the rest after what is there.
    pub(crate) fn board(&mut self, map: &PageMap, lazy: &mut LazyAreas, board: &mut OnBoard) {
        self.low = self.low.min(lazy.low);
        self.high = self.high.max(lazy.high);
        (lazy.low, lazy.high) = (u64::MAX, 0);
        self.mixed.append(map, core::mem::replace(&mut lazy.mixed, AreaList::new()));
        move_all(map, &mut lazy.sized, &mut board.0, &mut self.mixed);
    }

    /// Tells whether nobody is on board.
    pub(crate) fn is_empty(&self) -> bool {
        // Whoever put an area in said what it covers.
        self.high == 0
    }
}

/// Areas whose flush has begun.
pub(crate) struct Flight {
    mixed: AreaList<Unflushed>,
    epoch: Epoch,
}

impl Flight {
    /// Begins one flush over the hull of all on board.
    ///
    /// What was freed and unmapped before it became lazy is covered, since nobody boards any more.
    pub(crate) fn begin(boarding: Boarding, machine: &impl Machine) -> Self {
        let hull =
            VaRange::new(Va::from_page(boarding.low), Va::from_page(boarding.high)).unwrap_or(VaRange::ALL);
        let epoch = machine.flush(&[hull]);
        Self { mixed: boarding.mixed, epoch }
    }

    /// Returns what has landed if the flush has ended, or itself.
    pub(crate) fn land(self, machine: &impl Machine) -> Result<Landed, Self> {
        if machine.completed(self.epoch) { Ok(Landed { mixed: self.mixed.in_phase() }) } else { Err(self) }
    }

    pub(crate) fn mixed(&self) -> (u64, u64) {
        (self.mixed.areas(), self.mixed.pages())
    }
}

/// The flush of all that is on board has ended.
pub(crate) struct Landed {
    /// What is not sorted by size.
    pub(crate) mixed: AreaList<Flushed>,
}

impl Landed {
    /// The next class of one node that is on board, its size and its areas.
    pub(crate) fn next(
        &self,
        map: &PageMap,
        board: &mut OnBoard,
        class: usize,
    ) -> Option<(usize, u64, AreaList<Flushed>)> {
        let class = board.0.next_class(class)?;
        let size = board.0.size(class);
        Some((class, size, board.0.take_list(map, class, u64::MAX).in_phase()))
    }
}
