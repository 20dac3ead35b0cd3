//! The only way from unflushed to flushed (SP2).
//!
//! ```text
//!   lazy of a node --board--> on board --begin: flush--> in flight --land: completed--> landed, taken list by list
//!   round of a magazine --seal: ticket------------------------------> landed up to it: taken by its owner
//! ```
//! The rest of the crate cannot make an `AreaList<Flushed>` of an `AreaList<Unflushed>`. A purge
//! collects the lazy areas of each node in a flush batch, and asks the machine once to flush the
//! hull of all. When the machine reports that the epoch is completed, there is a [`Landed`],
//! without which no area leaves the batch. There is one batch at a time, and no area joins it once
//! its flush has begun: joining needs the [`Boarding`] that the flight is made of. Checks SP2:
//! nothing else compiles.
//!
//! Areas that were freed into a magazine go by [`Ticket`]: flush batches have numbers, and a node
//! remembers the last that took its lazy areas. Under the lock of those areas, a magazine adds its
//! hull to theirs and learns the number of the batch that will take them. The areas stay where they
//! are, so a round of any number of sizes is sealed in a few instructions. When that batch is
//! completed they are flushed ([`Landings`]).
//!
//! A flush serves callers too that hold unmapped pages of their own ([`Dirty`]): their ranges go to the machine beside the
//! hull, in the flush of the next flight. The open round of a magazine is such a range. Its hull is published in [`Hull`],
//! so that a purge reads it without the magazine's lock.

use crate::area::range_of;
use crate::dirty::Dirty;
use crate::list::{AreaList, Flushed, Unflushed, UnlinkedArea};
use crate::map::PageMap;
use crate::pool::Shelf;
use crate::space::{Budget, Cost};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, Machine, Va, VaRange};

/// A number of areas, and the number of pages in them.
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
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
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

/// The hull of a magazine's open round, published by its owner; a purge that flushes aliases reads it.
///
/// The owner stores each end when it grows, and resets both after the lazy areas of the node cover them. So whoever
/// reads an end that was reset, or stored after that, finds the round before it covered by the node's next flight.
pub(crate) struct Hull {
    /// The lowest page, its bits inverted, so that none at all is 0.
    below: AtomicU64,
    high: AtomicU64,
}

impl Hull {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self { below: AtomicU64::new(0), high: AtomicU64::new(0) }
        }
    }

    /// Notes that the round begins again. Called after the node covers the hull.
    pub(crate) fn reset(&self) {
        // Release pairs with `read`, as the stores of `Rounds::put` do: who reads this comes after the cover.
        self.below.store(0, Ordering::Release);
        self.high.store(0, Ordering::Release);
    }

    /// Returns what the round covers; all that was put in before, unless the node covers it already.
    pub(crate) fn read(&self) -> Option<VaRange> {
        let (low, high) = (!self.below.load(Ordering::Acquire), self.high.load(Ordering::Acquire));
        if low < high { VaRange::new(Va::from_page(low), Va::from_page(high)) } else { None }
    }
}

/// Freed areas, and the hull of all that were put in since it was last emptied: those of the node by size, and others.
pub(crate) struct LazyAreas {
    pub(crate) sized: Shelf<Unflushed>,
    pub(crate) mixed: AreaList<Unflushed>,
    /// Sealed areas that stay in magazines of the node, to be flushed with the areas here.
    pub(crate) sealed: Amount,
    /// The number of the last flight that boarded here.
    boarded: u64,
    /// The lowest page, its bits inverted, so that none at all is 0.
    below: u64,
    high: u64,
}

impl LazyAreas {
    pub(crate) const fn new() -> Self {
        let sealed = Amount::NONE;
        Self { sized: Shelf::new(), mixed: AreaList::new(), sealed, boarded: 0, below: 0, high: 0 }
    }

    /// Begins as if the flight of this number had boarded here: what is sealed next flies with the one after it.
    pub(crate) fn begin_after(&mut self, flight: u64) {
        self.boarded = flight;
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
        self.below = self.below.max(!page);
        self.high = self.high.max(end);
    }
}

/// Ranges that the machine is told of at a time, when areas were flushed.
const SETTLED_RANGES: usize = 16;

/// Makes areas flushed ones, and tells the machine of each, if it wants to know, while nobody can allocate them.
fn flushed(map: &PageMap, machine: &impl Machine, list: AreaList<Unflushed>) -> AreaList<Flushed> {
    if machine.hears_settled() {
        let mut ranges = [VaRange::default(); SETTLED_RANGES];
        let (mut next, mut left) = (list.first(), list.areas());
        while left > 0 {
            let count = left.min(SETTLED_RANGES as u64) as usize;
            for range in &mut ranges[..count] {
                let seen = next.and_then(|page| map.at(page));
                *range = seen.map_or(VaRange::default(), |seen| range_of(seen.page, seen.pages));
                next = next.map(|page| map.link(page));
            }
            machine.settled(&ranges[..count]);
            left -= count as u64;
        }
    }
    list.in_phase()
}

/// Returns the number of areas of a list that may change their phase in one step: all, unless the
/// machine is notified of each.
fn step_of(machine: &impl Machine, budget: &mut Budget, areas: u64) -> u64 {
    if !machine.hears_settled() {
        return u64::MAX;
    }
    let count = areas.min(budget.steps(Cost::SETTLED));
    budget.spend_each(Cost::SETTLED, count);
    count
}

/// Moves a shelf into another, list by list until the budget ends, and what finds no list there to the end of `rest`.
fn move_lists(
    map: &PageMap,
    from: &mut Shelf<Unflushed>,
    to: &mut Shelf<Unflushed>,
    rest: &mut AreaList<Unflushed>,
    budget: &mut Budget,
) {
    let mut class = 0;
    while budget.is_left()
        && let Some(at) = from.next_class(class)
    {
        budget.spend(Cost::LIST);
        let size = from.size(at);
        if let Err(list) = to.put_list(map, size, from.take_list(map, at, u64::MAX)) {
            rest.append(map, list);
        }
        class = at + 1;
    }
}

/// The areas of one node that are in the flush batch, by size.
pub(crate) struct OnBoard(Shelf<Unflushed>);

impl OnBoard {
    pub(crate) const fn new() -> Self {
        Self(Shelf::new())
    }

    pub(crate) fn shelf(&self) -> &Shelf<Unflushed> {
        &self.0
    }
}

/// The areas that were freed into a magazine: the open round, and earlier rounds, which wait for
/// their flush batch or are flushed.
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
        // All zeros; see `begin`.
        Self { shelves, open: 0, low: 0, high: 0, ticket: Ticket::USED }
    }

    /// Begins a round; nothing is open.
    pub(crate) fn begin(&mut self) {
        (self.low, self.high) = (u64::MAX, 0);
    }

    /// Returns the areas that were freed and are not sealed.
    #[inline(always)]
    pub(crate) fn open(&self) -> &Shelf<Unflushed> {
        &self.shelves[self.open & 1]
    }

    /// Returns the sealed areas.
    #[inline(always)]
    pub(crate) fn away(&self) -> &Shelf<Unflushed> {
        &self.shelves[self.open & 1 ^ 1]
    }

    /// Returns the ticket that the sealed areas wait for; used once the owner knows that it landed.
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
    pub(crate) fn put(
        &mut self,
        area: UnlinkedArea<Unflushed>,
        hull: &Hull,
    ) -> Result<Amount, UnlinkedArea<Unflushed>> {
        let (page, end) = (area.page, area.end());
        let shelf = &mut self.shelves[self.open & 1];
        shelf.put(area)?;
        let holds = Amount { areas: shelf.areas(), pages: shelf.pages() };
        // Branches, since the hull seldom grows.
        if page < self.low {
            self.low = page;
            hull.below.store(!page, Ordering::Release);
        }
        if end > self.high {
            self.high = end;
            hull.high.store(end, Ordering::Release);
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

    /// Takes up to `most` areas of a class that have landed; a few of them, if the machine is told of each.
    #[inline]
    pub(crate) fn take(
        &mut self,
        map: &PageMap,
        machine: &impl Machine,
        class: usize,
        most: u64,
    ) -> AreaList<Flushed> {
        if self.ticket != Ticket::USED {
            return AreaList::new();
        }
        let count = if machine.hears_settled() { most.min(SETTLED_RANGES as u64) } else { most };
        flushed(map, machine, self.both().1.take_list(map, class, count))
    }

    /// Ends the round, under the lock of the node's `lazy`. Its areas stay here, to be flushed with
    /// the lazy ones. They join the areas that are sealed already, if the flush batch has not taken
    /// those. They go into the lists of `lazy` instead if it has, or if both would be more than
    /// `most` pages. If the budget ends first, only some of the lists move: the round has ended
    /// when nothing is [`open`](Self::open). Returns the pages that were sealed.
    pub(crate) fn seal(
        &mut self,
        map: &PageMap,
        lazy: &mut LazyAreas,
        most: u64,
        budget: &mut Budget,
    ) -> u64 {
        let next = Ticket(lazy.boarded + 1);
        let (ticket, before, pages) = (self.ticket, self.away().pages(), self.open().pages());
        // All of it, whatever part of it boards next.
        lazy.cover(self.low, self.high);
        let (open, away) = self.both();
        if ticket == Ticket::USED && before == 0 {
            lazy.sealed.add(Amount { areas: open.areas(), pages });
            self.ticket = next;
            self.open ^= 1;
        } else if ticket == next && before + pages <= most {
            let (areas, pages) = (away.areas(), away.pages());
            move_lists(map, open, away, &mut lazy.mixed, budget);
            lazy.sealed.add(Amount { areas: away.areas() - areas, pages: away.pages() - pages });
        } else {
            move_lists(map, open, &mut lazy.sized, &mut lazy.mixed, budget);
        }
        let left = self.open().pages();
        if left == 0 {
            self.begin();
        }
        pages - left
    }

    /// Ends the round and puts what it holds into the node's lists, under their lock.
    pub(crate) fn hand_over(&mut self, map: &PageMap, lazy: &mut LazyAreas) {
        lazy.cover(self.low, self.high);
        self.begin();
        move_lists(map, self.both().0, &mut lazy.sized, &mut lazy.mixed, &mut Budget::unbounded());
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
        move_lists(map, away, &mut lazy.sized, &mut lazy.mixed, &mut Budget::unbounded());
        false
    }

    /// Gives what is away to its flight. Under the purge lock, which keeps the flight in the air.
    pub(crate) fn board(&mut self, map: &PageMap, batch: &mut Batch, board: &mut OnBoard) {
        self.ticket = Ticket::USED;
        let away = self.both().1;
        batch.sealed.remove(Amount { areas: away.areas(), pages: away.pages() });
        move_lists(map, away, &mut board.0, &mut batch.mixed, &mut Budget::unbounded());
    }
}

/// Everything that one flush serves, but for what is on board of nodes.
pub(crate) struct Batch {
    pub(crate) mixed: AreaList<Unflushed>,
    /// Sealed areas that stay in magazines, and are in no list here.
    pub(crate) sealed: Amount,
}

/// A flight that has not begun.
pub(crate) struct Boarding {
    number: u64,
    pub(crate) batch: Batch,
    low: u64,
    high: u64,
}

impl Boarding {
    /// Begins to board the flight after all others.
    pub(crate) fn new(flights: &mut u64) -> Self {
        *flights += 1;
        let batch = Batch { mixed: AreaList::new(), sealed: Amount::NONE };
        Self { number: *flights, batch, low: u64::MAX, high: 0 }
    }

    /// Takes `lazy` on board: what is sorted by size to the board of its node, from `class` on, then the rest after what is
    /// there. Returns the class to go on with if the budget ends first; the node has boarded when it returns none.
    pub(crate) fn board(
        &mut self,
        map: &PageMap,
        lazy: &mut LazyAreas,
        board: &mut OnBoard,
        mut class: usize,
        budget: &mut Budget,
    ) -> Option<usize> {
        self.low = self.low.min(!lazy.below);
        self.high = self.high.max(lazy.high);
        while let Some(at) = lazy.sized.next_class(class) {
            if !budget.is_left() {
                return Some(at);
            }
            budget.spend(Cost::LIST);
            let (size, list) = (lazy.sized.size(at), lazy.sized.take_list(map, at, u64::MAX));
            if let Err(list) = board.0.put_list(map, size, list) {
                self.batch.mixed.append(map, list);
            }
            class = at + 1;
        }
        // What was freed meanwhile into a class that had boarded flies with the next, and its hull with it.
        if lazy.sized.areas() == 0 {
            (lazy.below, lazy.high) = (0, 0);
        }
        lazy.boarded = self.number;
        self.batch.sealed.add(core::mem::replace(&mut lazy.sealed, Amount::NONE));
        self.batch.mixed.append(map, core::mem::replace(&mut lazy.mixed, AreaList::new()));
        None
    }

    /// Returns itself unless there is nothing to flush, in which case there is no flight.
    pub(crate) fn unless_empty(self, dirty: &Dirty, landings: &Landings) -> Option<Self> {
        // Whoever put an area in said what it covers.
        if self.high == 0 && dirty.ranges().is_empty() {
            landings.note(self.number);
            return None;
        }
        Some(self)
    }
}

/// Areas whose flush has begun.
pub(crate) struct Flight {
    number: u64,
    pub(crate) batch: Batch,
    epoch: Epoch,
}

impl Flight {
    /// Begins one flush over the hull of all on board, and over what callers added to `dirty`, which is empty afterwards.
    ///
    /// What was freed and unmapped before it became lazy is covered, since nobody boards any more.
    pub(crate) fn begin(boarding: Boarding, dirty: &mut Dirty, machine: &impl Machine) -> Self {
        let Boarding { number, batch, low, high } = boarding;
        if high > 0 {
            dirty.add(VaRange::new(Va::from_page(low), Va::from_page(high)).unwrap_or(VaRange::ALL));
        }
        let epoch = machine.flush(dirty.ranges());
        dirty.clear();
        Self { number, batch, epoch }
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
        settled(self.batch.sealed);
        landings.note(self.number);
        Ok(Landed { unsettled: self.batch.mixed, mixed: AreaList::new() })
    }

    /// The end of its flush.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// The flush of all that is on board has ended.
pub(crate) struct Landed {
    /// Areas that are not sorted by size and have not changed their phase yet.
    unsettled: AreaList<Unflushed>,
    /// Flushed areas that are not sorted by size.
    pub(crate) mixed: AreaList<Flushed>,
}

impl Landed {
    /// Areas and pages that are not sorted by size.
    pub(crate) fn mixed(&self) -> Amount {
        let areas = self.unsettled.areas() + self.mixed.areas();
        Amount { areas, pages: self.unsettled.pages() + self.mixed.pages() }
    }

    /// Adds to `mixed` what is not sorted by size, as much as the budget lets the machine be told of.
    pub(crate) fn settle_mixed(&mut self, map: &PageMap, machine: &impl Machine, budget: &mut Budget) {
        if !machine.hears_settled() {
            self.mixed.append(map, core::mem::replace(&mut self.unsettled, AreaList::new()).in_phase());
            return;
        }
        while budget.is_left()
            && let Some(area) = self.unsettled.pop_any(map)
        {
            budget.spend(Cost::SETTLED);
            let mut one = AreaList::new();
            one.push_front(area);
            self.mixed.append(map, flushed(map, machine, one));
        }
    }

    /// Takes areas of the next class of one node that is on board: the class, the size, and the areas; all of them, unless
    /// the machine is told of each.
    pub(crate) fn next(
        &self,
        map: &PageMap,
        machine: &impl Machine,
        board: &mut OnBoard,
        class: usize,
        budget: &mut Budget,
    ) -> Option<(usize, u64, AreaList<Flushed>)> {
        let class = board.0.next_class(class)?;
        let size = board.0.size(class);
        let count = step_of(machine, budget, board.0.len(class));
        Some((class, size, flushed(map, machine, board.0.take_list(map, class, count))))
    }
}
