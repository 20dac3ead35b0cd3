//! The only way from unflushed to flushed (SP2).
//!
//! ```text
//!   lazy of a node --board--> on board --begin: flush--> in flight --land: completed--> landed, taken list by list
//!   round of a magazine --seal: ticket------------------------------> landed up to it: taken by its owner
//! ```
//! The rest of the crate cannot make an `AreaList<Flushed>` of an `AreaList<Unflushed>`. It boards what is lazy, node by
//! node; the machine is asked once to flush the hull of all; and when it says that the epoch is completed there is a
//! [`Landed`], without which nobody takes anything off board. There is one flight at a time, and nobody boards in between:
//! boarding needs the [`Boarding`] that the flight is made of. Checks SP2: nothing else compiles.
//!
//! What a magazine took back goes by [`Ticket`]: flights have numbers, and a node remembers the last that it boarded. Under
//! the lock of its lazy areas a magazine adds its hull to theirs and learns the number of the flight that will board the
//! node next; the areas stay where they are, so a round of any number of sizes is sealed in a few instructions. When
//! that flight has landed they are flushed ([`Landings`]).

use crate::list::{AreaList, Flushed, Loose, Unflushed};
use crate::map::PageMap;
use crate::pool::Shelf;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, Machine, Va, VaRange};

/// How many areas, and pages in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) areas: u64,
    pub(crate) pages: u64,
}

impl Amount {
    pub(crate) const NONE: Self = Self { areas: 0, pages: 0 };

    pub(crate) fn add(&mut self, more: Self) {
        self.areas += more.areas;
        self.pages += more.pages;
    }

    pub(crate) fn remove(&mut self, less: Self) {
        self.areas -= less.areas;
        self.pages -= less.pages;
    }
}

/// The number of the flight that something waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// For what waits for nothing.
    pub(crate) const USED: Self = Self(0);

    /// For a cell that tells of it.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// The number of the last flight that landed.
pub(crate) struct Landings(AtomicU64);

impl Landings {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes that everything up to the flight `number` has landed.
    fn note(&self, number: u64) {
        // Pairs with `have_reached`: whoever sees the number comes after the flush.
        self.0.store(number, Ordering::Release);
    }

    /// Tells whether the flight of this number has landed.
    #[inline]
    pub(crate) fn have_reached(&self, number: u64) -> bool {
        self.0.load(Ordering::Acquire) >= number
    }
}

/// Freed areas, and the hull of all that were put in since it was last emptied: those of the node by size, and others.
pub(crate) struct LazyAreas {
    pub(crate) sized: Shelf<Unflushed>,
    pub(crate) mixed: AreaList<Unflushed>,
    /// What magazines of the node keep, to fly with what is here.
    pub(crate) sealed: Amount,
    /// The number of the last flight that boarded here.
    boarded: u64,
    low: u64,
    high: u64,
}

impl LazyAreas {
    pub(crate) const fn new() -> Self {
        let sealed = Amount::NONE;
        Self { sized: Shelf::new(), mixed: AreaList::new(), sealed, boarded: 0, low: u64::MAX, high: 0 }
    }

    /// Those that are in lists here.
    pub(crate) fn areas(&self) -> u64 {
        self.sized.areas() + self.mixed.areas()
    }

    /// Their pages.
    pub(crate) fn pages(&self) -> u64 {
        self.sized.pages() + self.mixed.pages()
    }

    /// Notes that `[page, end)` is in it.
    #[inline(always)]
    pub(crate) fn cover(&mut self, page: u64, end: u64) {
        self.low = self.low.min(page);
        self.high = self.high.max(end);
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

/// What a magazine took back: the round that it fills, and those before, which wait for their flight or have landed.
pub(crate) struct Rounds {
    shelves: [Shelf<Unflushed>; 2],
    /// The shelf that is filled; the other is away.
    open: usize,
    low: u64,
    high: u64,
    ticket: Ticket,
}

impl Rounds {
    pub(crate) const fn new() -> Self {
        let shelves = [const { Shelf::new() }; 2];
        Self { shelves, open: 0, low: u64::MAX, high: 0, ticket: Ticket::USED }
    }

    /// What was taken back and is not sealed.
    #[inline(always)]
    pub(crate) fn open(&self) -> &Shelf<Unflushed> {
        &self.shelves[self.open & 1]
    }

    /// What is sealed.
    #[inline(always)]
    pub(crate) fn away(&self) -> &Shelf<Unflushed> {
        &self.shelves[self.open & 1 ^ 1]
    }

    /// What it waits for; used once its owner knows that it landed.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    fn both(&mut self) -> (&mut Shelf<Unflushed>, &mut Shelf<Unflushed>) {
        let [first, second] = &mut self.shelves;
        if self.open & 1 == 0 { (first, second) } else { (second, first) }
    }

    /// Puts a freed area into the round and tells what that holds, or gives it back if there is no list for its size.
    ///
    /// # Errors
    /// The area.
    #[inline(always)]
    pub(crate) fn put(&mut self, area: Loose<Unflushed>) -> Result<Amount, Loose<Unflushed>> {
        let (page, end) = (area.page, area.end());
        let shelf = &mut self.shelves[self.open & 1];
        shelf.put(area)?;
        let holds = Amount { areas: shelf.areas(), pages: shelf.pages() };
        // Branches, since the hull seldom grows.
        if page < self.low {
            self.low = page;
        }
        if end > self.high {
            self.high = end;
        }
        Ok(holds)
    }

    /// Tells whether what is away has landed, and that its ticket is used.
    #[inline]
    pub(crate) fn land(&mut self, landings: &Landings) -> bool {
        if self.ticket != Ticket::USED && landings.have_reached(self.ticket.0) {
            self.ticket = Ticket::USED;
        }
        self.ticket == Ticket::USED
    }

    /// Takes the areas of a class that have landed.
    #[inline]
    pub(crate) fn take(&mut self, map: &PageMap, class: usize) -> AreaList<Flushed> {
        if self.ticket != Ticket::USED {
            return AreaList::new();
        }
        self.both().1.take_list(map, class, u64::MAX).in_phase()
    }

    /// Ends the round, under the lock of the node's `lazy`. What it holds stays here and flies with them, with what is away
    /// already if that has not boarded; or goes into their lists, if that has, or would be more than `most` pages.
    pub(crate) fn seal(&mut self, map: &PageMap, lazy: &mut LazyAreas, most: u64) {
        self.tell_hull(lazy);
        let next = Ticket(lazy.boarded + 1);
        let (ticket, before) = (self.ticket, self.away().pages());
        let (open, away) = self.both();
        if ticket == Ticket::USED && before == 0 {
            lazy.sealed.add(Amount { areas: open.areas(), pages: open.pages() });
            self.ticket = next;
            self.open ^= 1;
        } else if ticket == next && before + open.pages() <= most {
            let (areas, pages) = (away.areas(), away.pages());
            move_all(map, open, away, &mut lazy.mixed);
            lazy.sealed.add(Amount { areas: away.areas() - areas, pages: away.pages() - pages });
        } else {
            move_all(map, open, &mut lazy.sized, &mut lazy.mixed);
        }
    }

    fn tell_hull(&mut self, lazy: &mut LazyAreas) {
        lazy.cover(self.low, self.high);
        (self.low, self.high) = (u64::MAX, 0);
    }

    /// Ends the round and puts what it holds into the node's lists, under their lock.
    pub(crate) fn hand_over(&mut self, map: &PageMap, lazy: &mut LazyAreas) {
        self.tell_hull(lazy);
        move_all(map, self.both().0, &mut lazy.sized, &mut lazy.mixed);
    }

    /// Gives what is away to the node: to its lazy areas if it has not boarded. Under the purge lock, and not if it has landed.
    /// Tells whether it has boarded and is still here.
    pub(crate) fn unseal(&mut self, map: &PageMap, lazy: &mut LazyAreas) -> bool {
        if self.ticket.0 <= lazy.boarded {
            return true;
        }
        self.ticket = Ticket::USED;
        let away = self.both().1;
        lazy.sealed.remove(Amount { areas: away.areas(), pages: away.pages() });
        move_all(map, away, &mut lazy.sized, &mut lazy.mixed);
        false
    }

    /// Gives what is away to its flight. Under the purge lock, which keeps the flight in the air.
    pub(crate) fn board(&mut self, map: &PageMap, flight: &mut Flight, board: &mut OnBoard) {
        self.ticket = Ticket::USED;
        let away = self.both().1;
        flight.sealed.remove(Amount { areas: away.areas(), pages: away.pages() });
        move_all(map, away, &mut board.0, &mut flight.mixed);
    }
}

/// A flight that has not begun.
pub(crate) struct Boarding {
    number: u64,
    mixed: AreaList<Unflushed>,
    sealed: Amount,
    low: u64,
    high: u64,
}

impl Boarding {
    /// Begins to board the flight after all others.
    pub(crate) fn new(flights: &mut u64) -> Self {
        *flights += 1;
        Self { number: *flights, mixed: AreaList::new(), sealed: Amount::NONE, low: u64::MAX, high: 0 }
    }

    /// Takes all of `lazy` on board: what is sorted by size to the board of its node, the rest after what is there.
    pub(crate) fn board(&mut self, map: &PageMap, lazy: &mut LazyAreas, board: &mut OnBoard) {
        self.low = self.low.min(lazy.low);
        self.high = self.high.max(lazy.high);
        (lazy.low, lazy.high) = (u64::MAX, 0);
        lazy.boarded = self.number;
        self.sealed.add(core::mem::replace(&mut lazy.sealed, Amount::NONE));
        self.mixed.append(map, core::mem::replace(&mut lazy.mixed, AreaList::new()));
        move_all(map, &mut lazy.sized, &mut board.0, &mut self.mixed);
    }

    /// Returns itself unless nobody is on board, in which case there is no flight.
    pub(crate) fn unless_empty(self, landings: &Landings) -> Option<Self> {
        // Whoever put an area in said what it covers.
        if self.high == 0 {
            landings.note(self.number);
            return None;
        }
        Some(self)
    }
}

/// Areas whose flush has begun.
pub(crate) struct Flight {
    number: u64,
    mixed: AreaList<Unflushed>,
    /// What flies without being in a list here.
    pub(crate) sealed: Amount,
    epoch: Epoch,
}

impl Flight {
    /// Begins one flush over the hull of all on board.
    ///
    /// What was freed and unmapped before it became lazy is covered, since nobody boards any more.
    pub(crate) fn begin(boarding: Boarding, machine: &impl Machine) -> Self {
        let Boarding { number, mixed, sealed, low, high } = boarding;
        let hull = VaRange::new(Va::from_page(low), Va::from_page(high)).unwrap_or(VaRange::ALL);
        Self { number, mixed, sealed, epoch: machine.flush(&[hull]) }
    }

    /// Returns what has landed if the flush has ended, or itself. Whoever waits for what is sealed sees it once `settled`
    /// was told of it: what can be given out is never counted as lazy.
    pub(crate) fn land(
        self,
        machine: &impl Machine,
        landings: &Landings,
        settled: impl FnOnce(Amount),
    ) -> Result<Landed, Self> {
        if !machine.completed(self.epoch) {
            return Err(self);
        }
        settled(self.sealed);
        landings.note(self.number);
        Ok(Landed { mixed: self.mixed.in_phase() })
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
