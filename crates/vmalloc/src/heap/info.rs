//! Statistics: counts, a list of all areas, and a check that nothing is lost.

use super::Heap;
use super::carve::Central;
use crate::PAGE_BYTES;
use crate::arena::{ZONES, address};
use crate::os::Os;
use core::fmt;
use core::sync::atomic::Ordering;
use va_base::{InvariantViolation, Va};
use va_tree::FreeIndex;

/// Entries that are looked up under one hold of the lock.
const PART: usize = 64;

/// The memory of an allocator, in bytes, and counts. Each number was true at a moment of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Address space reserved for areas.
    pub arena_bytes: usize,
    /// Of it, below the frontier: readable and writable.
    pub committed_bytes: usize,
    /// Whole pages of areas that callers have, guard pages among them.
    pub live_bytes: usize,
    /// Freed and kept as they were, in magazines.
    pub cached_bytes: usize,
    /// Freed and kept, merged with their neighbours.
    pub dirty_bytes: usize,
    /// Mapped for the allocator's records.
    pub record_bytes: usize,
    /// Moved to where pages were wanted, ever, instead of being given back and faulted in.
    pub refilled_bytes: u64,
    /// Given back to the system, ever.
    pub purged_bytes: u64,
    /// Areas handed out again from a magazine, ever: about, since two threads may count at once.
    pub cache_hits: u64,
    /// Areas whose pages are a mapping of their own, since they were moved to grow, or whose mappings the program
    /// changed ([`Vmalloc::renew_at_free`](crate::Vmalloc::renew_at_free)).
    pub moved_areas: u64,
    /// Areas that grew where they were, ever.
    pub grown_in_place: u64,
    /// Areas whose pages moved to another place to grow, ever.
    pub grown_by_move: u64,
    /// Areas that were copied to get another size, ever.
    pub copies: u64,
    /// Address space that a failed move made useless, a guard that the system does not take away, or a change that it
    /// does not undo.
    pub retired_bytes: usize,
    /// Times that the system failed to take pages back, ever.
    pub refused_purges: u64,
    /// Guard pages behind areas that callers have, and behind what was freed and kept as it was.
    pub guards: u64,
    /// Areas that have none, though they were to have one, ever: the system had no more.
    pub unguarded_areas: u64,
    /// Address space in quarantine, walls included; hardened only.
    pub quarantined_bytes: usize,
    /// Areas in quarantine; hardened only.
    pub quarantined_areas: u64,
}

/// The use of some pages below the frontier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// A caller has it.
    Live,
    /// Freed: in a magazine, in the hands of a purge, or retired.
    Kept,
    /// A dirty run.
    Dirty,
}

/// Writes, after a space, who has the area that begins with a page.
type WriteCaller<'a> = dyn Fn(u64, &mut dyn fmt::Write) -> fmt::Result + 'a;

#[derive(Clone, Copy)]
pub(super) struct Entry {
    page: u64,
    end: u64,
    what: What,
}

impl Entry {
    fn write(&self, out: &mut dyn fmt::Write, caller: &WriteCaller<'_>) -> fmt::Result {
        let (start, end) = (address(self.page), address(self.end));
        write!(out, "{start:#018x}-{end:#018x} {:>7}", end - start)?;
        if self.what == What::Live {
            caller(self.page, out)?;
        }
        match self.what {
            What::Live => writeln!(out, " pages={} vmalloc", self.end - self.page),
            What::Kept | What::Dirty => writeln!(out, " unpurged vm_area"),
        }
    }
}

impl<O: Os> Heap<O> {
    /// Tells whether nobody has a lock that [`stats`](Self::stats) takes: no other thread, and not the caller, whom a
    /// signal may have interrupted with one.
    pub(crate) fn is_free(&self) -> bool {
        self.magazines.iter().all(crate::magazine::Magazine::is_free)
            && self.zones.iter().all(|zone| zone.central.try_lock().is_some())
    }

    /// Counts. Takes every lock, one after the other.
    pub(crate) fn stats(&self) -> Stats {
        let (mut cached, mut hits) = (0, 0);
        for held in self.magazines.iter().map(crate::magazine::Magazine::held) {
            (cached, hits) = (cached + held.pages, hits + held.hits);
        }
        let (mut dirty, mut elsewhere, mut busy, mut committed) = (0, 0, 0, 0);
        let (mut purged, mut refilled, mut refused, mut retired) = (0, 0, 0, 0);
        for zone in 0..ZONES {
            let central = self.zone(zone);
            dirty += central.dirty_pages();
            elsewhere += central.leaving + central.retired;
            busy += central.space.stats().busy_pages.get();
            committed += self.arena.committed_pages(zone);
            (purged, refused) = (purged + central.purged, refused + central.refused);
            refilled += central.refilled;
            retired += central.retired;
        }
        Stats {
            arena_bytes: self.arena.whole().len_bytes() as usize,
            committed_bytes: address(committed),
            live_bytes: address(busy.saturating_sub(dirty + elsewhere + cached)),
            cached_bytes: address(cached),
            dirty_bytes: address(dirty),
            record_bytes: self.host.mapped_bytes(),
            refilled_bytes: refilled * PAGE_BYTES as u64,
            purged_bytes: purged * PAGE_BYTES as u64,
            cache_hits: hits,
            moved_areas: self.moved.load(Ordering::Relaxed),
            grown_in_place: self.growth.in_place.load(Ordering::Relaxed),
            grown_by_move: self.growth.moved.load(Ordering::Relaxed),
            copies: self.growth.copied.load(Ordering::Relaxed),
            retired_bytes: address(retired),
            refused_purges: refused,
            guards: self.guards.count(),
            unguarded_areas: self.guards.missing.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    /// Writes a line for each area, as `/proc/vmallocinfo` has them.
    pub(crate) fn write_info(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.write_info_with(out, &|_, _| Ok(()))
    }

    /// The same, with what `caller` writes of the area that begins with a page.
    pub(crate) fn write_info_with(&self, out: &mut dyn fmt::Write, caller: &WriteCaller<'_>) -> fmt::Result {
        for zone in 0..ZONES {
            let mut from = self.arena.extent(zone).start().page_floor();
            loop {
                let mut part = [Entry { page: 0, end: 0, what: What::Live }; PART];
                let mut count = 0;
                // Nothing is written under the lock: the writer may allocate here.
                let central = self.zone(zone);
                let walked = self.walk(&central, zone, from, |entry| {
                    part[count] = entry;
                    count += 1;
                    count < PART
                });
                drop(central);
                for entry in &part[..count] {
                    // Others may have mapped what was released.
                    if !self.arena.get(entry.page).is_released() {
                        entry.write(out, caller)?;
                    }
                    from = entry.end;
                }
                match walked {
                    // Between two holds of the lock, what begins here may have become part of something longer.
                    Err(broken) => from = broken.at.page_floor() + 1,
                    Ok(()) if count < PART => break,
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }

    /// Visits everything of a zone below its frontier from page `from` on that is not clean, in address order, while
    /// `visit` wants more.
    pub(super) fn walk(
        &self,
        central: &Central<O>,
        zone: usize,
        from: u64,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), InvariantViolation> {
        let mut page = from;
        let frontier = self.arena.extent(zone).start().page_floor() + self.arena.committed_pages(zone);
        while page < frontier {
            let at = Va::from_page(page);
            let Some(area) = central.space.find_above(at) else { return Ok(()) };
            if !area.range.contains(at) {
                page = area.range.start().page_floor();
                continue;
            }
            let dirty = central.dirty.hole_below(at).filter(|hole| hole.contains(at));
            let word = self.arena.get(page);
            let (end, what) = match dirty {
                Some(hole) => (hole.end().page_floor(), What::Dirty),
                None => (page + word.pages(), if word.is_live() { What::Live } else { What::Kept }),
            };
            // Checks VM1: whoever is not dirty begins with a word that tells its size.
            InvariantViolation::check(end > page && end <= frontier, "VM1", at, frontier - page, end - page)?;
            if !visit(Entry { page, end, what }) {
                return Ok(());
            }
            page = end;
        }
        Ok(())
    }

    /// Checks MZ3, and every other invariant with full walks. Call it when nobody else calls.
    #[cfg(test)]
    pub(crate) fn validate(&self) -> Result<(), InvariantViolation> {
        if self.guards.tail > 0 {
            self.check_guards()?;
        }
        let mut cached = 0;
        for (cpu, magazine) in self.magazines.iter().enumerate() {
            let big = if self.with_big.has(cpu) { 0 } else { magazine.big_pages() };
            InvariantViolation::check(big == 0, "MZ3", Va::ZERO, 0, big)?;
            if let Err((small, large)) = magazine.check() {
                return Err(InvariantViolation { rule: "MZ2", at: Va::ZERO, expected: small, actual: large });
            }
            cached += magazine.held().pages;
        }
        let unlisted = (0..ZONES).try_fold(0, |kept, zone| Ok(kept + self.validate_zone(zone)?))?;
        InvariantViolation::check(unlisted == cached, "VM1", Va::ZERO, cached, unlisted)
    }

    /// Checks a zone; pages of it that are kept, and not in its own hands.
    #[cfg(test)]
    fn validate_zone(&self, zone: usize) -> Result<u64, InvariantViolation> {
        let central = self.zone(zone);
        central.space.validate()?;
        central.dirty.validate()?;
        central.cold.validate()?;
        let (mut sums, mut edge, mut inside, mut runs) = ([0; 3], 0, None, 0);
        self.walk(&central, zone, self.arena.extent(zone).start().page_floor(), |entry| {
            sums[entry.what as usize] += entry.end - entry.page;
            edge = entry.end;
            runs += u64::from(entry.what != What::Dirty);
            let mut rest = entry.page + 1..entry.end;
            inside = rest.find(|&page| self.arena.get(page).is_live());
            inside.is_none()
        })?;
        // Inside an area nothing is said to be live, nor in a run that is nobody's.
        let spoiled = inside.unwrap_or(edge);
        InvariantViolation::check(inside.is_none(), "VM2", Va::from_page(spoiled), 0, 1)?;
        let [live, kept, dirty] = sums;
        let busy = central.space.stats().busy_pages.get();
        let at = Va::from_page(edge);
        InvariantViolation::check(busy == live + kept + dirty, "VM1", at, busy, live + kept + dirty)?;
        InvariantViolation::check(dirty == central.dirty_pages(), "VM1", at, central.dirty_pages(), dirty)?;
        central.check_paid(runs)?;
        self.check_cold(&central, zone)?;
        let own = central.leaving + central.retired;
        InvariantViolation::check(kept >= own, "VM1", at, own, kept)?;
        Ok(kept - own)
    }

    /// Checks CD1 against the dirty runs themselves.
    #[cfg(test)]
    fn check_cold(&self, central: &Central<O>, zone: usize) -> Result<(), InvariantViolation> {
        let extent = self.arena.extent(zone);
        let first = extent.start().page_floor();
        let blocks = central.blocks_around(first, first + self.arena.committed_pages(zone));
        for block in blocks {
            let range = central.block(block);
            let whole = central.dirty.hole_below(range.start()).is_some_and(|hole| hole.encloses(range));
            let listed = central.cold.contains(block);
            InvariantViolation::check(whole == listed, "CD1", range.start(), whole.into(), listed.into())?;
        }
        Ok(())
    }
}
