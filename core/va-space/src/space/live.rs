//! The magazines that live: all that a walk over magazines passes.
//!
//! # Theory
//! A process may have had 8,000 threads, each with a magazine, and have one left. A request that fails asks every
//! magazine what it holds; it should ask one then, not 8,000. And a thread that begins should not search 8,000 cells
//! for a free one.
//!
//! So cells are in a row of **places**, one for each cell that the machine ever allocated. The cells of magazines are in
//! the first places, up to the **top**. The free ones are behind it. For example, there are six cells, and four
//! magazines, the second of which ends. Its cell and the last live one change places, and the top is one lower:
//!
//! ```text
//!   place   0  1  2  3 | 4  5             0  1  2 | 3  4  5
//!   cell    a  b  c  d | e  f     --->    a  d  c | b  e  f
//! ```
//!
//! The next magazine that begins moves the top up by one, and has the cell there: `b`, which was used last. Both take a
//! few loads and stores, under `free`.
//!
//! A walk takes no lock and goes **down** from the top. A cell that lives moves only down, and is in its new place
//! before it leaves the old one. So a walk meets each magazine that lives from its begin to its end. It may meet one
//! twice, and one that ends or begins meanwhile. It has no more steps than magazines lived when it began.
//!
//! # Invariants
//! - **MG3 placed** each cell is in one place, which it names; the numbers of places ascend by one from 0.
//!
//! # Locking
//! `free` for who begins or ends. None for a walk: protocol PR-LIVE.

use super::CachePadded;
use va_base::sync::atomic::{AtomicU32, Ordering};
use va_base::sync::{AtomicRef, OnceRef};
use va_base::{InvariantViolation, Machine, Meta, Table, Va};

/// The memory of a magazine, which has a place in a row.
pub(crate) trait Placed: Table + Sized {
    /// Returns where the cell is. Under `free`. Protocol PR-LOCK.
    fn at(&self) -> &AtomicRef<Place<Self>>;

    /// Returns the place that is in its memory.
    fn place(&self) -> &Place<Self>;
}

/// Magazines that are compared with their share when one begins.
pub(crate) const COMPARED: usize = 16;

/// A place in the row of cells. It is in the memory of a cell, and holds that one at first.
pub(crate) struct Place<T: 'static> {
    /// The cell that is here. Protocol PR-LIVE.
    cell: AtomicRef<T>,
    /// The places before it. Written once, before the place is in the row. Protocol PR-LOCK.
    number: AtomicU32,
    // Set once.
    memory: OnceRef<'static, T>,
    below: OnceRef<'static, Place<T>>,
    above: OnceRef<'static, Place<T>>,
}

impl<T: Placed> Place<T> {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            let (below, above) = (OnceRef::new(), OnceRef::new());
            let (cell, number, memory) = (AtomicRef::new(), AtomicU32::new(0), OnceRef::new());
            Self { cell, number, memory, below, above }
        }
    }

    fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }
}

/// The cells of a space, in their places.
pub(crate) struct Live<T: 'static> {
    /// The last place with the cell of a magazine. Protocol PR-LIVE.
    top: CachePadded<AtomicRef<Place<T>>>,
    /// The last place of all. Under `free`. Protocol PR-LOCK.
    last: AtomicRef<Place<T>>,
    /// The place of the next cell to compare with its share; the top if there is none. Under `free`. Protocol PR-LOCK.
    compared: AtomicRef<Place<T>>,
    /// Set once.
    first: OnceRef<'static, Place<T>>,
}

/// A walk down over the cells of magazines.
pub(crate) struct Walk<T: 'static>(Option<&'static Place<T>>);

impl<T: Placed> Walk<T> {
    /// Returns the place of the next step, for another walk that continues there.
    pub(crate) fn place(&self) -> Option<&'static Place<T>> {
        self.0
    }
}

impl<T: Placed> Iterator for Walk<T> {
    type Item = &'static T;

    /// Acquire, in the loads of the top and of each cell: who misses a magazine that ended sees where its areas are.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let place = self.0?;
        self.0 = place.below.get();
        place.cell.load()
    }
}

impl<T: Placed> Live<T> {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            let (last, compared) = (AtomicRef::new(), AtomicRef::new());
            Self { top: CachePadded(AtomicRef::new()), last, compared, first: OnceRef::new() }
        }
    }

    /// Returns the number of magazines.
    #[inline(always)]
    pub(crate) fn magazines(&self) -> usize {
        self.top.0.load().map_or(0, |top| 1 + top.number() as usize)
    }

    /// Returns the cells of magazines, from the top down.
    #[inline]
    pub(crate) fn live(&self) -> Walk<T> {
        Walk(self.top.0.load())
    }

    /// Returns the cells of magazines from a place down, or from the top if the place is above that by now.
    pub(crate) fn live_from(&self, from: Option<&'static Place<T>>) -> Walk<T> {
        let top = self.top.0.load();
        let lives = |place: &&Place<T>| top.is_some_and(|top| place.number() <= top.number());
        Walk(from.filter(lives).or(top))
    }

    /// Returns every place, from the first on.
    fn places(&self) -> impl Iterator<Item = &'static Place<T>> + use<T> {
        core::iter::successors(self.first.get(), |place| place.above.get())
    }

    /// Returns every cell, and whether a magazine has it.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static T, bool)> + use<T> {
        let magazines = self.magazines();
        self.places().filter_map(move |at| Some((at.cell.load()?, (at.number() as usize) < magazines)))
    }

    /// Gives the lowest free cell to a magazine; `None` if all have one. Under `free`.
    pub(crate) fn begin(&self) -> Option<&'static T> {
        let place = match self.top.0.load() {
            Some(top) => top.above.get(),
            None => self.first.get(),
        }?;
        self.top.0.store(Some(place));
        place.cell.load()
    }

    /// Adds the memory of a cell, which is free. Under `free`.
    pub(crate) fn add(&self, cell: &'static T) {
        let place = cell.place();
        place.cell.store(Some(cell));
        cell.at().store(Some(place));
        // Each is set for the first time.
        let _new = place.memory.set(cell);
        let _end = match self.last.load() {
            Some(last) => {
                place.number.store(last.number() + 1, Ordering::Relaxed);
                let _new = place.below.set(last);
                last.above.set(place)
            }
            None => self.first.set(place),
        };
        self.last.store(Some(place));
    }

    /// Frees the empty cell of a magazine that ends; returns whether it had one. Under `free`.
    pub(crate) fn end(&self, cell: &'static T) -> bool {
        let (Some(top), Some(place)) = (self.top.0.load(), cell.at().load()) else { return false };
        let Some(last) = top.cell.load().filter(|_| place.number() <= top.number()) else { return false };
        // First the last one moves down: a walk that misses it at the top, or begins lower, meets it in its new place.
        place.cell.store(Some(last));
        top.cell.store(Some(cell));
        self.top.0.store(top.below.get());
        last.at().store(Some(place));
        cell.at().store(Some(top));
        true
    }

    /// Returns the next few cells of magazines in turn, each once. Under `free`.
    pub(crate) fn next_compared(&self) -> [Option<&'static T>; COMPARED] {
        let mut walk = self.live_from(self.compared.load());
        let mut cells = [None; COMPARED];
        for cell in cells.iter_mut().take(self.magazines()) {
            if walk.place().is_none() {
                walk = self.live();
            }
            *cell = walk.next();
        }
        self.compared.store(walk.place());
        cells
    }

    /// Checks MG3. No magazine begins or ends.
    pub(crate) fn check_places(&self) -> Result<(), InvariantViolation> {
        for (place, number) in self.places().zip(0..) {
            let named = place.cell.load().and_then(|cell| cell.at().load());
            let is_here = named.is_some_and(|named| core::ptr::eq(named, place));
            let got = if is_here { place.number() } else { u32::MAX };
            InvariantViolation::check(got == number, "MG3", Va::ZERO, u64::from(number), u64::from(got))?;
        }
        Ok(())
    }

    /// Returns the memory of all cells. No magazine is left.
    pub(crate) fn release_meta(&self, machine: &impl Machine) {
        let mut next = self.first.get();
        while let Some(place) = next {
            next = place.above.get();
            if let Some(cell) = place.memory.get() {
                machine.free_table(Meta::new(cell));
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::VmapSpace;
    use crate::config::Standard;
    use crate::testing::TestMachine;
    use std::vec::Vec;
    use va_base::VaRange;
    use va_sim::op::Rng;

    type Space<'m> = VmapSpace<&'m TestMachine, Standard>;

    fn space(machine: &TestMachine) -> Space<'_> {
        let all = VaRange::from_pages(16, 1 << 16).unwrap();
        Space::new(all, all, machine).unwrap()
    }

    fn addresses<'c, T: 'c>(cells: impl Iterator<Item = &'c T>) -> Vec<usize> {
        let mut found: Vec<_> = cells.map(|cell| core::ptr::from_ref(cell).addr()).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn mg3_a_walk_meets_each_magazine_that_lives_once() {
        let machine = TestMachine::default();
        let (space, mut rng) = (space(&machine), Rng::new(7));
        let (mut live, mut most) = (Vec::new(), 0);
        for step in 0..400 {
            if live.is_empty() || rng.below(100) < if step < 200 { 60 } else { 45 } {
                live.push(space.magazine(0).unwrap());
            } else {
                live.swap_remove(rng.below(live.len() as u64) as usize);
            }
            most = most.max(live.len());
            assert_eq!(addresses(space.cells.live()), addresses(live.iter().map(|own| own.cell)));
            assert_eq!((space.cells.magazines(), space.cells.each().count()), (live.len(), most));
            assert_eq!(space.cells.check_places(), Ok(()));
        }
        assert!(most > 30, "{most}");
    }

    #[test]
    fn one_magazine_that_is_left_of_many_is_met_in_one_step() {
        let machine = TestMachine::default();
        let space = space(&machine);
        let mut all: Vec<_> = (0..300).map(|cpu| space.magazine(cpu).unwrap()).collect();
        all.drain(..299);
        assert_eq!((space.cells.live().count(), space.cells.each().count()), (1, 300));
        // The next ones have the memory of those that ended.
        all.extend((0..299).map(|cpu| space.magazine(cpu).unwrap()));
        assert_eq!((space.cells.live().count(), space.cells.each().count()), (300, 300));
    }

    #[test]
    fn magazines_are_compared_in_turn_each_once() {
        let machine = TestMachine::default();
        let space = space(&machine);
        let mut all: Vec<_> = (0..5).map(|_| space.magazine(0).unwrap()).collect();
        let next = || addresses(space.cells.next_compared().into_iter().flatten());
        assert_eq!([next(), next()], [(); 2].map(|()| addresses(space.cells.live())));
        all.extend((5..40).map(|_| space.magazine(0).unwrap()));
        // Of those that are added each has compared the next ones already.
        let mut met: Vec<_> = (0..3).flat_map(|_| next()).collect();
        assert_eq!(met.len(), 3 * COMPARED);
        met.sort_unstable();
        met.dedup();
        assert_eq!(met, addresses(space.cells.live()));
        // The place at which the next comparison begins is free by then.
        all.truncate(3);
        assert_eq!(next(), addresses(space.cells.live()));
    }
}
