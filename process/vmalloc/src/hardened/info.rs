//! Counts and lists of a hardened allocator, and the check of its invariants.

use super::Hard;
#[cfg(test)]
use super::State;
use super::granules::GRANULE_PAGES;
use super::tag::State as TagState;
#[cfg(test)]
use super::window::Wall;
use super::window::address;
use crate::PAGE_BYTES;
use crate::heap::Stats;
use core::fmt;
use core::sync::atomic::Ordering;
use vmalloc_os::os::Os;

impl<O: Os> Hard<O> {
    /// Copies the readable bytes at an address of the window, with zeros for the rest. Only open rooms are readable.
    pub(crate) fn vread(&self, at: usize, to: &mut [u8]) -> usize {
        to.fill(0);
        let first = address(self.window.first());
        let end = first + address(self.window.window_pages());
        let (mut from, until) = (at.max(first), at.saturating_add(to.len()).min(end));
        let mut read = 0;
        while from < until {
            // A granule at a time: others may have mapped something where one was released.
            let stop = until.min(first + (from - first + 1).next_multiple_of(address(GRANULE_PAGES)));
            if !self.window.is_released((from / PAGE_BYTES) as u64) {
                read += vmalloc_os::vread::peek(from, &mut to[from - at..stop - at]);
            }
            from = stop;
        }
        read
    }

    /// Returns true if no thread holds the lock that [`stats`](Self::stats) takes.
    pub(crate) fn is_free(&self) -> bool {
        self.state.try_lock().is_some()
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> Stats {
        let state = self.state.lock();
        Stats {
            arena_bytes: self.window.extent().len_bytes() as usize,
            committed_bytes: address(self.window.window_pages()),
            live_bytes: address(state.live_pages),
            cached_bytes: address(state.warm.pages()),
            record_bytes: self.host.mapped_bytes(),
            retired_bytes: address(state.retired_pages),
            purged_bytes: state.purged * PAGE_BYTES as u64,
            cache_hits: state.hits,
            quarantined_bytes: address(state.quarantine.pages()),
            quarantined_areas: state.quarantine.areas(),
            failed_purges: self.failed.load(Ordering::Relaxed),
            guards: state.live + state.warm.rooms(),
            ..Stats::default()
        }
    }

    /// Writes a line for each room, walls included, in the format of `/proc/vmallocinfo`.
    pub(crate) fn write_info(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut from = self.window.first();
        loop {
            // Nothing is written under the lock: the writer may allocate here.
            let state = self.state.lock();
            let Some(range) = state.places.above(from) else { return Ok(()) };
            let tag = self.window.get(range.start().page_floor() + 1);
            drop(state);
            let (page, end) = range.whole_pages();
            from = end;
            if self.window.is_released(page) {
                continue;
            }
            let (start, stop) = (address(page), address(end));
            write!(out, "{start:#018x}-{stop:#018x} {:>7}", stop - start)?;
            match tag.state() {
                TagState::Live => writeln!(out, " pages={} vmalloc", end - page - 2)?,
                TagState::Quarantined => writeln!(out, " quarantined vm_area")?,
                TagState::Released | TagState::Never => writeln!(out, " unpurged vm_area")?,
            }
        }
    }

    /// Checks every invariant with full walks. Must be called without concurrent calls.
    #[cfg(test)]
    pub(crate) fn validate(&self) -> Result<(), va_base::InvariantViolation> {
        use va_base::{InvariantViolation, Va};
        let state = self.state.lock();
        state.places.validate()?;
        if let Err((want, got)) = state.quarantine.check() {
            return Err(InvariantViolation { rule: "HQ1", at: Va::ZERO, expected: want, actual: got });
        }
        if let Err((want, got)) = state.warm.check() {
            return Err(InvariantViolation { rule: "HW1", at: Va::ZERO, expected: want, actual: got });
        }
        let (mut from, mut live, mut pages) = (self.window.first(), 0, 0);
        while let Some(range) = state.places.above(from) {
            let (page, end) = range.whole_pages();
            let tag = self.window.get(page + 1);
            if tag.state() == TagState::Live {
                live += 1;
                let want = end - page - 2;
                InvariantViolation::check(tag.pages() == want, "HD1", range.start(), want, tag.pages())?;
            }
            let mut rest = (page..end).filter(|&other| other != page + 1);
            let inside = rest.find(|&other| self.window.get(other).state() == TagState::Live);
            InvariantViolation::check(inside.is_none(), "HD1", range.start(), 0, 1)?;
            pages += end - page;
            from = end;
        }
        InvariantViolation::check(live == state.live, "HD3", Va::ZERO, state.live, live)?;
        self.validate_granules(&state)?;
        let counted = state.live_pages + 2 * state.live + state.quarantine.pages();
        let counted = counted + state.warm.pages() + 2 * state.warm.rooms() + state.retired_pages;
        InvariantViolation::check(counted == pages, "HD3", Va::ZERO, counted, pages)
    }

    /// Checks HG1 to HG3.
    #[cfg(test)]
    fn validate_granules(&self, state: &State<O>) -> Result<(), va_base::InvariantViolation> {
        if self.window.wall() == Wall::Protection {
            return Ok(());
        }
        let warm = state.warm.all().map(|held| held.page()..held.page() + held.pages());
        let (mut open, mut given) = (warm.collect::<Vec<_>>(), Vec::new());
        let mut from = self.window.first();
        while let Some(range) = state.places.above(from) {
            let (page, end) = range.whole_pages();
            if self.window.get(page + 1).state() == TagState::Live {
                open.push(page + 1..end - 1);
            }
            given.push(range);
            from = end;
        }
        let checked = state.granules.check(&self.window, &open, &given);
        checked.map_err(|(rule, at)| va_base::InvariantViolation {
            rule,
            at: va_base::Va::ZERO,
            expected: 0,
            actual: at,
        })
    }
}
