//! Statistics: counters, a list of all areas, and a check that every page is accounted for.

use super::Heap;
use super::carve::Central;
use crate::PAGE_BYTES;
use crate::arena::address;
use crate::page_word::Word;
use core::fmt;
use core::sync::atomic::Ordering;
use va_base::{InvariantViolation, Va};
use va_tree::FreeIndex;
use vmalloc_os::os::Os;

/// Entries that are read under one acquisition of the lock.
const PART: usize = 64;

/// The memory of an allocator in bytes, and counters. The values are not one snapshot: each was read at its own time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Address space reserved for areas.
    pub arena_bytes: usize,
    /// The part of the address space below the frontier: readable and writable.
    pub committed_bytes: usize,
    /// Whole pages of live areas, guard pages included.
    pub live_bytes: usize,
    /// Freed runs that are cached unchanged in magazines.
    pub cached_bytes: usize,
    /// Freed runs that are cached as dirty runs, merged with their neighbours.
    pub dirty_bytes: usize,
    /// Mapped for the allocator's records.
    pub record_bytes: usize,
    /// Bytes of pages ever moved to other addresses by refills, instead of being released and faulted in.
    pub refilled_bytes: u64,
    /// Bytes ever released to the system.
    pub purged_bytes: u64,
    /// Areas ever allocated from a magazine. Approximate, since two threads may count at the same time.
    pub cache_hits: u64,
    /// Areas whose pages are a mapping of their own because they were moved to grow, or whose mappings the program
    /// changed ([`Vmalloc::renew_at_free`](crate::Vmalloc::renew_at_free)).
    pub moved_areas: u64,
    /// Areas that ever grew in place.
    pub grown_in_place: u64,
    /// Areas whose pages were ever moved to grow.
    pub grown_by_move: u64,
    /// Areas that were ever copied to be resized.
    pub copies: u64,
    /// Unusable address space: after a failed move, or where the system removes no guard or undoes no change.
    pub retired_bytes: usize,
    /// Number of times that the system failed to release pages.
    pub failed_purges: u64,
    /// Guard pages behind live areas and behind runs in magazines.
    pub guards: u64,
    /// Areas ever allocated without a guard because the system could not provide one.
    pub unguarded_areas: u64,
    /// Address space in quarantine, walls included; hardened only.
    pub quarantined_bytes: usize,
    /// Areas in quarantine; hardened only.
    pub quarantined_areas: u64,
}

/// The state of some pages below the frontier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// In use by a caller.
    Live,
    /// Freed: in a magazine, in a purge, or retired.
    Cached,
    /// A dirty run.
    Dirty,
}

/// A function that writes, after a space, the tag of the area that begins with a page.
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
            What::Cached | What::Dirty => writeln!(out, " unpurged vm_area"),
        }
    }
}

impl<O: Os> Heap<O> {
    /// Returns true if no lock that [`stats`](Self::stats) takes is held: by another thread, or by the caller, which a
    /// signal may have interrupted.
    pub(crate) fn is_free(&self) -> bool {
        self.magazines.iter().all(crate::magazine::Magazine::is_free)
            && self.zones().all(|zone| self.zone_at(zone).central.try_lock().is_some())
    }

    /// Returns the counters. Takes every lock, one after the other.
    pub(crate) fn stats(&self) -> Stats {
        let (mut cached, mut hits) = (0, 0);
        for held in self.magazines.iter().map(crate::magazine::Magazine::held) {
            (cached, hits) = (cached + held.pages, hits + held.hits);
        }
        let (mut dirty, mut elsewhere, mut busy, mut committed) = (0, 0, 0, 0);
        let (mut purged, mut refilled, mut failed, mut retired) = (0, 0, 0, 0);
        for zone in self.zones() {
            let central = self.zone(zone);
            dirty += central.dirty_pages();
            elsewhere += central.leaving + central.retired;
            busy += central.space.stats().busy_pages.get();
            committed += self.arena.committed_pages(zone);
            (purged, failed) = (purged + central.purged, failed + central.failed);
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
            failed_purges: failed,
            guards: self.guards.count(),
            unguarded_areas: self.guards.missing.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    /// Writes a line for each area, in the format of `/proc/vmallocinfo`.
    pub(crate) fn write_info(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.write_info_with(out, &|_, _| Ok(()))
    }

    /// Does the same, and calls `caller` at the end of the line of each area.
    pub(crate) fn write_info_with(&self, out: &mut dyn fmt::Write, caller: &WriteCaller<'_>) -> fmt::Result {
        for zone in self.zones_in_order() {
            let mut from = self.arena.extent(zone).start().page_floor();
            loop {
                let mut part = [Entry { page: 0, end: 0, what: What::Live }; PART];
                let mut count = 0;
                // No output is written under the lock: the writer may allocate here.
                let central = self.zone(zone);
                let walked = self.walk(&central, zone, from, |entry| {
                    part[count] = entry;
                    count += 1;
                    count < PART
                });
                drop(central);
                for entry in &part[..count] {
                    // Released addresses may belong to foreign mappings.
                    if !self.arena.get(entry.page).is_released() {
                        entry.write(out, caller)?;
                    }
                    from = entry.end;
                }
                match walked {
                    // Between two acquisitions of the lock, the entry at this address may have become part of a longer
                    // one.
                    Err(broken) => from = broken.at.page_floor() + 1,
                    Ok(()) if count < PART => break,
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }

    /// Visits every entry of a zone below its frontier that is not clean, in address order from page `from` on, until
    /// `visit` returns false.
    pub(super) fn walk(
        &self,
        central: &Central<O>,
        zone: usize,
        from: u64,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), InvariantViolation> {
        let mut page = from;
        let frontier = self.arena.frontier(zone);
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
                None => (
                    self.end_of(page, word, frontier),
                    if word.is_live() { What::Live } else { What::Cached },
                ),
            };
            // Checks VM1: an entry that is not dirty begins with a word that records its size.
            InvariantViolation::check(end > page && end <= frontier, "VM1", at, frontier - page, end - page)?;
            if !visit(Entry { page, end, what }) {
                return Ok(());
            }
            page = end;
        }
        Ok(())
    }

    /// Returns the end of the run that begins with this word; released runs beside each other are one.
    fn end_of(&self, page: u64, word: Word, frontier: u64) -> u64 {
        let mut end = page + word.pages();
        while word.is_released() && end < frontier && self.arena.get(end).is_released() {
            end += self.arena.get(end).pages();
        }
        end
    }

    /// Checks MZ3, and all other invariants by full walks. Requires that no other thread uses the heap.
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
        let unlisted = self.zones().try_fold(0, |cached, zone| Ok(cached + self.validate_zone(zone)?))?;
        InvariantViolation::check(unlisted == cached, "VM1", Va::ZERO, cached, unlisted)
    }

    /// Checks a zone. Returns the number of its cached pages outside the zone's own lists.
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
        // No word inside an area is live, nor one inside an unowned run.
        let spoiled = inside.unwrap_or(edge);
        InvariantViolation::check(inside.is_none(), "VM2", Va::from_page(spoiled), 0, 1)?;
        let [live, cached, dirty] = sums;
        let busy = central.space.stats().busy_pages.get();
        let at = Va::from_page(edge);
        InvariantViolation::check(busy == live + cached + dirty, "VM1", at, busy, live + cached + dirty)?;
        InvariantViolation::check(dirty == central.dirty_pages(), "VM1", at, central.dirty_pages(), dirty)?;
        central.check_paid(runs)?;
        self.check_cold(&central, zone)?;
        let own = central.leaving + central.retired;
        InvariantViolation::check(cached >= own, "VM1", at, own, cached)?;
        Ok(cached - own)
    }

    /// Checks CD1 against the dirty runs.
    #[cfg(test)]
    fn check_cold(&self, central: &Central<O>, zone: usize) -> Result<(), InvariantViolation> {
        let extent = self.arena.extent(zone);
        let first = extent.start().page_floor();
        let blocks = central.blocks_around(first, self.arena.frontier(zone));
        for block in blocks {
            let range = central.block(block);
            let whole = central.dirty.hole_below(range.start()).is_some_and(|hole| hole.encloses(range));
            let listed = central.cold.contains(block);
            InvariantViolation::check(whole == listed, "CD1", range.start(), whole.into(), listed.into())?;
        }
        Ok(())
    }
}
