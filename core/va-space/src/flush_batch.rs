//! The only path from unflushed to flushed (SP2).
//!
//! ```text
//!   lazy of a node --add--> open batch --begin: flush--> in flight --complete--> completed, taken list by list
//!   round of a magazine --seal: batch number--------------------> completed up to it: taken by its owner
//! ```
//! The rest of the crate cannot convert an `AreaList<Unflushed>` to an `AreaList<Flushed>`. A purge collects the lazy
//! areas of each node in a flush batch, and requests one flush of the hull of all from the machine. When the machine
//! reports that the epoch is completed, there is a [`CompletedBatch`], without which no area leaves the batch. There is
//! one batch at a time, and no area joins it once its flush has begun: joining needs the [`OpenBatch`] that the flush
//! takes. Checks SP2: nothing else compiles.
//!
//! Areas that were freed into a magazine are ordered by [`BatchNumber`]: flush batches have numbers, and a node stores
//! the last that took its lazy areas. Under the lock of those areas, a magazine adds its hull to theirs and reads the
//! number of the batch that will take them. The areas themselves do not move, so a round of any number of sizes is
//! sealed in a few instructions. When that batch is completed they are flushed ([`CompletedBatches`]).
//!
//! A flush also serves callers that hold unmapped pages of their own ([`Dirty`]): their ranges are passed to the
//! machine beside the hull, in the flush of the next batch. The open round of a magazine is such a range. Its hull is
//! published in [`Hull`], so that a purge reads it without the magazine's lock.

use crate::area::range_of;
use crate::budget::{Budget, Cost};
use crate::dirty::Dirty;
use crate::list::{AreaList, Flushed, Unflushed, UnlinkedArea};
use crate::map::PageMap;
use crate::pool::SizeLists;
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

/// The number of the flush batch that sealed areas wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BatchNumber(u64);

impl BatchNumber {
    /// The number of areas that wait for no batch.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the number, to be published in a cell.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// The number of the last flush batch that is completed. Protocol PR-DONE.
pub(crate) struct CompletedBatches(AtomicU64);

impl CompletedBatches {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Records that every batch up to `number` is completed.
    fn note(&self, number: u64) {
        // Pairs with `have_reached`: a thread that sees the number comes after the flush.
        self.0.store(number, Ordering::Release);
    }

    /// Returns whether the batch of this number is completed.
    #[inline]
    pub(crate) fn have_reached(&self, number: u64) -> bool {
        self.0.load(Ordering::Acquire) >= number
    }
}

/// The hull of a magazine's open round, published by its owner; a purge that flushes aliases reads it.
///
/// The owner stores each end when it grows, and resets both after the lazy areas of the node cover them. So a thread
/// that reads an end that was reset, or stored after that, finds the round before it covered by the node's next batch.
/// Protocol PR-HULL.
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

    /// Empties the hull for the next round. Called after the node covers it.
    pub(crate) fn reset(&self) {
        // Release pairs with `read`, as in the stores of `Rounds::put`: a thread that reads this comes after the cover.
        self.below.store(0, Ordering::Release);
        self.high.store(0, Ordering::Release);
    }

    /// Returns the range of the round: all areas that were put in before, unless the node covers them already.
    pub(crate) fn read(&self) -> Option<VaRange> {
        let (low, high) = (!self.below.load(Ordering::Acquire), self.high.load(Ordering::Acquire));
        if low < high { VaRange::new(Va::from_page(low), Va::from_page(high)) } else { None }
    }
}

/// Freed areas, by size and others, and the hull of all that were put in since they were last emptied.
pub(crate) struct LazyAreas {
    pub(crate) sized: SizeLists<Unflushed>,
    pub(crate) mixed: AreaList<Unflushed>,
    /// Sealed areas in magazines of the node, to be flushed with the areas here.
    pub(crate) sealed: Amount,
    /// The number of the last batch that took the areas here.
    last_batch: u64,
    /// The lowest page, its bits inverted, so that none at all is 0.
    below: u64,
    high: u64,
}

impl LazyAreas {
    pub(crate) const fn new() -> Self {
        let sealed = Amount::NONE;
        Self { sized: SizeLists::new(), mixed: AreaList::new(), sealed, last_batch: 0, below: 0, high: 0 }
    }

    /// Begins as if the batch of this number had taken the areas here: areas sealed next join the batch after it.
    pub(crate) fn begin_after(&mut self, batch: u64) {
        self.last_batch = batch;
    }

    /// Returns the number of areas in lists here.
    pub(crate) fn areas(&self) -> u64 {
        self.sized.areas() + self.mixed.areas()
    }

    /// Returns their pages.
    pub(crate) fn pages(&self) -> u64 {
        self.sized.pages() + self.mixed.pages()
    }

    /// Extends the hull by `[page, end)`.
    #[inline(always)]
    pub(crate) fn cover(&mut self, page: u64, end: u64) {
        self.below = self.below.max(!page);
        self.high = self.high.max(end);
    }
}

/// Ranges that are reported to the machine at a time, when areas were flushed.
const SETTLED_RANGES: usize = 16;

/// Converts areas to flushed ones, and reports each to a machine that asks for it, while no caller can allocate them.
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

/// Returns the number of areas of a list that may change their phase in one step: all, unless the machine is notified
/// of each.
fn step_of(machine: &impl Machine, budget: &mut Budget, areas: u64) -> u64 {
    if !machine.hears_settled() {
        return u64::MAX;
    }
    let count = areas.min(budget.steps(Cost::SETTLED));
    budget.spend_each(Cost::SETTLED, count);
    count
}

/// Moves lists into others, one by one until the budget ends. Areas without a list there go to the end of `rest`.
fn move_lists(
    map: &PageMap,
    from: &mut SizeLists<Unflushed>,
    to: &mut SizeLists<Unflushed>,
    rest: &mut AreaList<Unflushed>,
    budget: &mut Budget,
) {
    let mut class = 0;
    while budget.is_left()
        && let Some(at) = from.next_class(class)
    {
        budget.spend(Cost::LIST);
        let size = from.size(at);
        if let Err(list) = to.put_class(map, at, size, from.take_all(at)) {
            rest.append(map, list);
        }
        class = at + 1;
    }
}

/// The areas of one node that are in the flush batch, by size.
pub(crate) struct Batched(SizeLists<Unflushed>);

impl Batched {
    pub(crate) const fn new() -> Self {
        Self(SizeLists::new())
    }

    pub(crate) fn lists(&self) -> &SizeLists<Unflushed> {
        &self.0
    }
}

/// The areas that were freed into a magazine: the open round, and earlier rounds, which wait for
/// their flush batch or are flushed.
// What each call reads is first.
#[repr(C)]
pub(crate) struct Rounds {
    /// The index of the lists that are filled; the others are sealed.
    open: usize,
    low: u64,
    high: u64,
    batch_number: BatchNumber,
    lists: [SizeLists<Unflushed>; 2],
}

impl Rounds {
    pub(crate) const fn new() -> Self {
        let lists = [const { SizeLists::new() }; 2];
        // All zeros; see `begin`.
        Self { lists, open: 0, low: 0, high: 0, batch_number: BatchNumber::NONE }
    }

    /// Begins a round; no area is open.
    pub(crate) fn begin(&mut self) {
        (self.low, self.high) = (u64::MAX, 0);
    }

    /// Returns the areas that were freed and are not sealed.
    #[inline(always)]
    pub(crate) fn open(&self) -> &SizeLists<Unflushed> {
        &self.lists[self.open & 1]
    }

    /// Returns the sealed areas.
    #[inline(always)]
    pub(crate) fn sealed(&self) -> &SizeLists<Unflushed> {
        &self.lists[self.open & 1 ^ 1]
    }

    /// Returns the batch that the sealed areas wait for; none once the owner has seen that it is completed.
    pub(crate) fn batch_number(&self) -> BatchNumber {
        self.batch_number
    }

    fn both(&mut self) -> (&mut SizeLists<Unflushed>, &mut SizeLists<Unflushed>) {
        let [first, second] = &mut self.lists;
        if self.open & 1 == 0 { (first, second) } else { (second, first) }
    }

    /// Returns the list of the round that has room for an area of `pages`, if there is one.
    #[inline(always)]
    pub(crate) fn class_for(&self, pages: u64) -> Option<usize> {
        self.open().present_class_for(pages, pages)
    }

    /// Does the same where a list may have to become one of that size first.
    pub(crate) fn new_class_for(&mut self, pages: u64) -> Option<usize> {
        self.lists[self.open & 1].class_for(pages, pages)
    }

    /// Puts a freed area into its list of the round, and returns the pages of the round.
    #[inline(always)]
    pub(crate) fn put_in(&mut self, class: usize, area: UnlinkedArea<Unflushed>, hull: &Hull) -> u64 {
        let (page, end) = (area.page, area.end());
        let lists = &mut self.lists[self.open & 1];
        lists.put_in(class, area);
        let pages = lists.pages();
        // Branches, since the hull seldom grows.
        if page < self.low {
            self.low = page;
            hull.below.store(!page, Ordering::Release);
        }
        if end > self.high {
            self.high = end;
            hull.high.store(end, Ordering::Release);
        }
        pages
    }

    /// Returns whether the batch of the sealed areas is completed; clears its number if so.
    #[inline]
    pub(crate) fn poll_completed(&mut self, completed_batches: &CompletedBatches) -> bool {
        if self.batch_number != BatchNumber::NONE && completed_batches.have_reached(self.batch_number.0) {
            self.batch_number = BatchNumber::NONE;
        }
        self.batch_number == BatchNumber::NONE
    }

    /// Takes up to `most` areas of a class whose batch is completed; a few of them, if the machine is notified of each.
    #[inline]
    pub(crate) fn take(
        &mut self,
        map: &PageMap,
        machine: &impl Machine,
        class: usize,
        most: u64,
    ) -> AreaList<Flushed> {
        if self.batch_number != BatchNumber::NONE {
            return AreaList::new();
        }
        let count = if machine.hears_settled() { most.min(SETTLED_RANGES as u64) } else { most };
        flushed(map, machine, self.both().1.take_list(map, class, count))
    }

    /// Ends the round, under the lock of the node's `lazy`. Its areas remain here, to be flushed with the lazy ones.
    /// They join the sealed areas, if the flush batch has not taken those. They go into the lists of `lazy` instead if
    /// it has, or if both would be more than `most` pages. If the budget ends first, only some of the lists move: the
    /// round has ended when [`open`](Self::open) is empty. Returns the pages that were sealed.
    pub(crate) fn seal(
        &mut self,
        map: &PageMap,
        lazy: &mut LazyAreas,
        most: u64,
        budget: &mut Budget,
    ) -> u64 {
        let next = BatchNumber(lazy.last_batch + 1);
        let (number, before, pages) = (self.batch_number, self.sealed().pages(), self.open().pages());
        // The whole range, whichever of its areas the next batch takes.
        lazy.cover(self.low, self.high);
        let (open, sealed) = self.both();
        if number == BatchNumber::NONE && before == 0 {
            lazy.sealed.add(Amount { areas: open.areas(), pages });
            self.batch_number = next;
            self.open ^= 1;
        } else if number == next && before + pages <= most {
            let (areas, pages) = (sealed.areas(), sealed.pages());
            move_lists(map, open, sealed, &mut lazy.mixed, budget);
            lazy.sealed.add(Amount { areas: sealed.areas() - areas, pages: sealed.pages() - pages });
        } else {
            move_lists(map, open, &mut lazy.sized, &mut lazy.mixed, budget);
        }
        let left = self.open().pages();
        if left == 0 {
            self.begin();
        }
        pages - left
    }

    /// Ends the round and moves its areas into the node's lists, under their lock.
    pub(crate) fn move_open(&mut self, map: &PageMap, lazy: &mut LazyAreas) {
        lazy.cover(self.low, self.high);
        self.begin();
        move_lists(map, self.both().0, &mut lazy.sized, &mut lazy.mixed, &mut Budget::unbounded());
    }

    /// Moves the sealed areas to the lazy areas of the node, if no batch has taken them. Under the purge lock, and not
    /// if their batch is completed. Returns whether a batch has taken them: then they are still here.
    pub(crate) fn unseal(&mut self, map: &PageMap, lazy: &mut LazyAreas) -> bool {
        if self.batch_number.0 <= lazy.last_batch {
            return true;
        }
        self.batch_number = BatchNumber::NONE;
        let sealed = self.both().1;
        lazy.sealed.remove(Amount { areas: sealed.areas(), pages: sealed.pages() });
        move_lists(map, sealed, &mut lazy.sized, &mut lazy.mixed, &mut Budget::unbounded());
        false
    }

    /// Moves the sealed areas into their batch. Under the purge lock, so that it is not completed meanwhile.
    pub(crate) fn join_batch(&mut self, map: &PageMap, areas: &mut BatchAreas, batched: &mut Batched) {
        self.batch_number = BatchNumber::NONE;
        let sealed = self.both().1;
        areas.sealed.remove(Amount { areas: sealed.areas(), pages: sealed.pages() });
        move_lists(map, sealed, &mut batched.0, &mut areas.mixed, &mut Budget::unbounded());
    }
}

/// All areas that one flush serves, except those in the lists of nodes ([`Batched`]).
pub(crate) struct BatchAreas {
    pub(crate) mixed: AreaList<Unflushed>,
    /// Sealed areas in magazines, which are in no list here.
    pub(crate) sealed: Amount,
}

/// A flush batch whose flush has not begun.
pub(crate) struct OpenBatch {
    number: u64,
    pub(crate) areas: BatchAreas,
    low: u64,
    high: u64,
}

impl OpenBatch {
    /// Opens the batch after all others.
    pub(crate) fn new(last_batch: &mut u64) -> Self {
        *last_batch += 1;
        let areas = BatchAreas { mixed: AreaList::new(), sealed: Amount::NONE };
        Self { number: *last_batch, areas, low: u64::MAX, high: 0 }
    }

    /// Adds `lazy`: areas by size to the lists of its node, from `class` on, then the rest to the end of the mixed
    /// list. Returns the class to continue with if the budget ends first, or `None` if all of the node was added.
    pub(crate) fn add(
        &mut self,
        map: &PageMap,
        lazy: &mut LazyAreas,
        batched: &mut Batched,
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
            let (size, list) = (lazy.sized.size(at), lazy.sized.take_all(at));
            if let Err(list) = batched.0.put_list(map, size, list) {
                self.areas.mixed.append(map, list);
            }
            class = at + 1;
        }
        // Areas freed meanwhile into a class that was taken join the next batch, with their hull.
        if lazy.sized.areas() == 0 {
            (lazy.below, lazy.high) = (0, 0);
        }
        lazy.last_batch = self.number;
        self.areas.sealed.add(core::mem::replace(&mut lazy.sealed, Amount::NONE));
        self.areas.mixed.append(map, core::mem::replace(&mut lazy.mixed, AreaList::new()));
        None
    }

    /// Returns the batch unless it is empty, in which case no flush is needed.
    pub(crate) fn unless_empty(self, dirty: &Dirty, completed_batches: &CompletedBatches) -> Option<Self> {
        // The hull covers every area that was added.
        if self.high == 0 && dirty.ranges().is_empty() {
            completed_batches.note(self.number);
            return None;
        }
        Some(self)
    }
}

/// A flush batch whose flush has begun.
pub(crate) struct FlushBatch {
    number: u64,
    pub(crate) areas: BatchAreas,
    epoch: Epoch,
}

impl FlushBatch {
    /// Begins one flush over the hull of the batch, and over what callers added to `dirty`, which is empty afterwards.
    ///
    /// Areas that were unmapped before they became lazy are covered, since the batch is closed.
    pub(crate) fn begin(open_batch: OpenBatch, dirty: &mut Dirty, machine: &impl Machine) -> Self {
        let OpenBatch { number, areas, low, high } = open_batch;
        if high > 0 {
            dirty.add(VaRange::new(Va::from_page(low), Va::from_page(high)).unwrap_or(VaRange::ALL));
        }
        let epoch = machine.flush(dirty.ranges());
        dirty.clear();
        Self { number, areas, epoch }
    }

    /// Returns the completed batch if the flush has ended, or the batch itself. `settled` is called before the
    /// completion is published: areas that can be allocated are never counted as lazy.
    pub(crate) fn complete(
        self,
        machine: &impl Machine,
        completed_batches: &CompletedBatches,
        settled: impl FnOnce(Amount),
    ) -> Result<CompletedBatch, Self> {
        if !machine.completed(self.epoch) {
            return Err(self);
        }
        settled(self.areas.sealed);
        completed_batches.note(self.number);
        Ok(CompletedBatch { unsettled: self.areas.mixed, mixed: AreaList::new() })
    }

    /// Returns the epoch that ends its flush.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// A flush batch whose flush has ended.
pub(crate) struct CompletedBatch {
    /// Areas that are not sorted by size and have not changed their phase yet.
    unsettled: AreaList<Unflushed>,
    /// Flushed areas that are not sorted by size.
    pub(crate) mixed: AreaList<Flushed>,
}

impl CompletedBatch {
    /// Areas and pages that are not sorted by size.
    pub(crate) fn mixed(&self) -> Amount {
        let areas = self.unsettled.areas() + self.mixed.areas();
        Amount { areas, pages: self.unsettled.pages() + self.mixed.pages() }
    }

    /// Moves unsettled areas to `mixed`, as many as the budget allows to report to the machine.
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

    /// Takes areas of the next class of one node in the batch and returns the class, the size, and the areas. It takes
    /// all of them, unless the machine is notified of each.
    pub(crate) fn next(
        &self,
        map: &PageMap,
        machine: &impl Machine,
        batched: &mut Batched,
        class: usize,
        budget: &mut Budget,
    ) -> Option<(usize, u64, AreaList<Flushed>)> {
        let class = batched.0.next_class(class)?;
        let size = batched.0.size(class);
        let count = step_of(machine, budget, batched.0.len(class));
        Some((class, size, flushed(map, machine, batched.0.take_list(map, class, count))))
    }
}
