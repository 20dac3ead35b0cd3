//! The notifications of a space to its lookup, a check that the two agree, and the stop at a wrong link of a list.

use super::VmapSpace;
use super::locks::{Heap, HeapGuard};
use crate::area::{AreaView, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::lookup::Lookup;
use crate::map::{PageMap, State};
use va_base::{Context, InvariantViolation, Machine, Va, VaRange};

/// The tables that the machine is asked for when an area begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tables {
    /// None, since the caller may not wait.
    None,
    /// Those that are missing.
    Missing,
    /// The same, and leaves first: there were too few a moment ago.
    Leaves,
}

impl Tables {
    /// Returns the same, with leaves first if `lacks` says that there are too few.
    pub(super) fn or_leaves(self, lacks: bool) -> Self {
        if lacks && self == Self::Missing { Self::Leaves } else { self }
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// True if the lookup finds areas by itself, so that each change is reported to it.
    pub(super) const NOTIFIES_LOOKUP: bool = <C::Lookup<P> as Lookup<P>>::FINDS;

    /// Allocates what an area needs that was just taken from the index: an entry for its leaf, and its record in the
    /// lookup. [`lock_with_slots`](Self::lock_with_slots) supplies the slot. The caller may sleep.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`], [`SpaceError::Index`] with `NoMeta`: the machine allocates nothing. Nothing has
    /// changed.
    pub(super) fn ready(&self, page: u64, pages: u64) -> Result<(), SpaceError> {
        if !self.map.reserve(page, &self.machine) {
            return Err(SpaceError::NoTable);
        }
        Ok(self.lookup.admit(range_of(page, pages), Context::Sleeping, &self.machine)?)
    }

    /// Takes `free` with slots for areas that start at `pages`, ascending, which have entries. An area begins at each of
    /// them before the lock is released, or [`release_slots`](Self::release_slots) is called.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`] if the machine allocates no leaf, or may not be asked for one.
    pub(super) fn lock_with_slots<I: Iterator<Item = u64>>(
        &self,
        pages: impl Fn() -> I,
        tables: Tables,
    ) -> Result<HeapGuard<'_, P, C>, SpaceError> {
        let mut allocated = if tables == Tables::Leaves { PageMap::alloc(&self.machine) } else { None };
        loop {
            let mut heap = self.lock_free();
            if let Some(leaves) = allocated.take() {
                self.map.add(&mut heap.marker, leaves);
            }
            if self.attach_slots(&mut heap, pages()) {
                return Ok(heap);
            }
            self.release_slots(&mut heap, pages());
            drop(heap);
            if tables == Tables::None {
                return Err(SpaceError::NoTable);
            }
            // A table without areas may have returned to the machine since there was an entry.
            if !PageMap::one_a_leaf(pages()).all(|page| self.map.reserve(page, &self.machine)) {
                return Err(SpaceError::NoTable);
            }
            allocated = Some(PageMap::alloc(&self.machine).ok_or(SpaceError::NoTable)?);
        }
    }

    /// Ensures that leaves serve `pages`, which ascend; `false` if one has no entry or no leaf is empty.
    #[inline(always)]
    pub(super) fn attach_slots(
        &self,
        heap: &mut Heap<C::Index<P>>,
        pages: impl Iterator<Item = u64>,
    ) -> bool {
        PageMap::one_a_leaf(pages).all(|page| self.map.attach(&mut heap.marker, page))
    }

    /// Allows the leaves of `pages`, which ascend, to move if no area begins there.
    #[inline(always)]
    pub(super) fn release_slots(&self, heap: &mut Heap<C::Index<P>>, pages: impl Iterator<Item = u64>) {
        PageMap::one_a_leaf(pages).for_each(|page| self.map.release(&mut heap.marker, page));
    }

    /// Undoes [`ready`](Self::ready).
    pub(super) fn unready(&self, page: u64) {
        let start = Va::from_page(page);
        self.lookup.remove(start, &self.machine);
        self.lookup.release(start);
    }

    /// Stops the machine if a list led to a page that is none of its areas (LI1). Called at the end of a list, before
    /// its areas are used.
    #[inline]
    pub(super) fn stop_if_lost(&self) {
        if let Some(page) = self.map.lost() {
            self.stop_lost(page);
        }
    }

    #[cold]
    fn stop_lost(&self, page: u64) -> ! {
        let word = self.map.word(page);
        let (at, state, pages) = (Va::from_page(page), word.state(), word.pages());
        self.machine.bug(
            format_args!("LI1: a list of idle areas leads to {at} (page {page:#x}), which is {state:?} of {pages:?} pages"),
            Some(InvariantViolation { rule: "LI1", at, expected: State::Idle as u64, actual: state.map_or(0, |state| state as u64) }),
        )
    }

    /// Returns the view of a range that a lookup found in records of its own.
    pub(super) fn view_of(&self, range: VaRange) -> AreaView {
        let page = range.start().page_floor();
        let seen = self.map.at(page).filter(|seen| seen.word.is_busy());
        let view = seen.and_then(|seen| self.view_noted(seen, range.start()));
        let view = view.filter(|view| view.range.start() == range.start());
        let (owner, note) = view.map_or((None, None), |view| (view.owner, view.note));
        AreaView { range, state: State::Busy, owner, note }
    }

    /// Checks LK1 and LK2: the lookup has the busy areas of the page map, and a record for each area out of the index.
    pub(super) fn check_lookup(&self) -> Result<(), InvariantViolation> {
        if !Self::NOTIFIES_LOOKUP {
            return Ok(());
        }
        let (areas, promised) = self.lookup.validate()?;
        let (mut busy, mut out) = (0, 0);
        for seen in self.areas() {
            out += 1;
            if seen.state == State::Busy {
                busy += 1;
                let found = self.lookup.find(seen.range.start(), &self.machine);
                let got = found.map_or(0, |range| range.end().get());
                let want = seen.range.end().get();
                InvariantViolation::check(got == want, "LK1", seen.range.start(), want, got)?;
            }
        }
        InvariantViolation::check(areas == busy, "LK1", Va::ZERO, busy, areas)?;
        InvariantViolation::check(promised == out, "LK2", Va::ZERO, out, promised)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::{Linux69, OneLock52, Standard};
    use crate::testing::TestMachine;
    use crate::{Purge, ReleaseError};
    use std::mem::ManuallyDrop;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::string::String;
    use std::vec::Vec;
    use va_base::Request;

    /// Returns the machine's report when three areas of one size are lazy or pooled, a link is corrupted, and `then` is
    /// called.
    fn panic_message<C: Config>(
        pooled: bool,
        spoil: impl Fn(&VmapSpace<&TestMachine, C>, &[u64]),
        then: impl Fn(&VmapSpace<&TestMachine, C>),
    ) -> Option<String> {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 1 << 16).unwrap();
        let space = VmapSpace::<_, C>::new(all, all, &machine).unwrap();
        let areas: Vec<_> = (0..4).map(|_| space.alloc(0, &Request::pages(2).unwrap()).unwrap()).collect();
        let starts: Vec<u64> = areas.iter().map(|area| area.start().page_floor()).collect();
        for area in areas.into_iter().skip(1) {
            assert_eq!(space.free(area), Ok::<_, ReleaseError>(()));
        }
        if pooled {
            space.purge(Purge::Drain);
        }
        assert_eq!(space.validate(), Ok(()));
        spoil(&space, &starts);
        let message = catch_unwind(AssertUnwindSafe(|| then(&space))).err()?;
        Some(message.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    /// Returns a fault that sets the links of all areas but the first to `page`.
    fn link_all<C: Config>(page: u64) -> impl Fn(&VmapSpace<&TestMachine, C>, &[u64]) {
        move |space, starts| starts.iter().skip(1).for_each(|&start| space.map.set_link(start, page))
    }

    /// Page 16 is a busy area, 17 is inside it, 9000 is in a table that was never allocated, and the last is no page.
    const WRONG: [u64; 4] = [16, 17, 9000, u64::MAX - 9];

    #[test]
    fn li1_a_list_that_leads_nowhere_stops_the_machine() {
        fn purges<C: Config>() {
            for page in WRONG {
                for how in [Purge::Drain, Purge::Full] {
                    let message = panic_message::<C>(false, link_all(page), |space| _ = space.purge(how));
                    let want = std::format!("page {page:#x}");
                    assert!(
                        message
                            .as_ref()
                            .is_some_and(|message| message.contains("LI1") && message.contains(&want)),
                        "{message:?}"
                    );
                }
            }
            assert_eq!(panic_message::<C>(false, |_, _| {}, |space| _ = space.purge(Purge::Full)), None);
        }
        purges::<Linux69>();
        purges::<OneLock52>();
        for page in WRONG {
            let stops = |message: Option<String>| {
                assert!(message.as_ref().is_some_and(|message| message.contains("LI1")), "{message:?}");
            };
            stops(panic_message::<Standard>(false, link_all(page), |space| _ = space.purge(Purge::Full)));
            stops(panic_message::<Standard>(true, link_all(page), |space| _ = space.shrink()));
            // The first area is right, but its link is not: no request gets the area at the link.
            let two = |space: &VmapSpace<&TestMachine, Standard>| {
                for _ in 0..2 {
                    let area = space.alloc(0, &Request::pages(2).unwrap()).unwrap();
                    assert_ne!(area.start().page_floor(), 16, "a busy area was allocated again");
                }
            };
            stops(panic_message::<Standard>(true, link_all(page), two));
            for available in [false, true] {
                let drained = |space: &VmapSpace<&TestMachine, Standard>| {
                    // A drop while the machine stops would find the same list again.
                    let mut magazine = ManuallyDrop::new(space.magazine(0).unwrap());
                    for _ in 0..3 {
                        let request = Request::pages(2).unwrap();
                        let got =
                            if available { magazine.try_alloc(&request) } else { magazine.alloc(&request) };
                        assert!(got.is_ok());
                    }
                };
                stops(panic_message::<Standard>(true, link_all(page), drained));
            }
        }
    }

    #[test]
    fn lk1_lk2_trees_that_miss_an_area_or_a_record_are_named() {
        fn broken(spoil: impl FnOnce(&VmapSpace<&TestMachine, Linux69>)) -> &'static str {
            let machine = TestMachine::default();
            let all = VaRange::from_pages(16, 1 << 16).unwrap();
            let space = VmapSpace::<_, Linux69>::new(all, all, &machine).unwrap();
            let first = space.alloc(0, &Request::pages(2).unwrap()).unwrap();
            let freed = space.alloc(1, &Request::pages(40).unwrap()).unwrap();
            space.free(freed).unwrap();
            assert_eq!((first.start(), space.validate()), (Va::from_page(16), Ok(())));
            spoil(&space);
            space.validate().map_err(|broken| broken.rule).err().unwrap_or("nothing")
        }
        assert_eq!(broken(|space| space.lookup.remove(Va::from_page(16), &space.machine)), "LK1");
        assert_eq!(broken(|space| space.lookup.release(Va::from_page(16))), "LK2");
        assert_eq!(broken(|space| space.lookup.release(Va::from_page(18))), "LK2");
        let more = |space: &VmapSpace<&TestMachine, Linux69>| {
            space.lookup.admit(range_of(900, 3), Context::Sleeping, &space.machine).unwrap();
        };
        assert_eq!(broken(more), "LK1");
    }
}
