//! Dirty blocks in the order in which they became dirty: the coldest are released, or moved, first.
//!
//! # Theory
//! ```text
//!   pages    |...live..|~~~~~~~~ dirty run ~~~~~~~~~~~~|.live.|      a zone, cut into blocks of one size
//!   blocks   |    0    |    1    |    2    |    3    |    4   |      1, 2 and 3 are wholly dirty
//!   list     coldest  2 - 3 - 1  newest                              each has the epoch in which it became so
//! ```
//! Pages become dirty a run at a time and are allocated from anywhere in a run, so runs have no age; blocks have one. A
//! block is in the list while all of its pages are dirty. Its list entry has a link to either neighbour and is found by
//! the block's number, so adding, removing and finding the coldest block are O(1). Blocks that
//! became dirty together are neighbours in the list, so a run of them is removed at once. Only whole blocks are released or
//! moved: for a part of a huge page the kernel would split it and release nothing.
//!
//! No clock is read: callers that let time pass raise the epoch.
//!
//! Of a block that was hardly touched, few pages are resident. The system is asked once how many, when more pages seem
//! to be cached than the budget allows. The coldest blocks are measured first, so the measured blocks are the first
//! ones of the list. A block that was not measured counts as wholly resident.
//!
//! # Invariants
//! - **CD1 whole** a block is in the list if and only if all of its pages are dirty.
//! - **CD2 in-order** epochs in the list, from the coldest on, do not fall, and none is in the future.
//! - **CD3 absent** the count of absent pages is the sum over the measured blocks in the list.
//!
//! # Locking
//! None here: `&mut self`, under the lock of a zone.
//! # Source
//! Our own; Linux ages pages by lists as well (`mm/vmscan.c`), its vmalloc areas by a count of decays.

#[cfg(test)]
use va_base::{InvariantViolation, Va};
use va_base::{Platform, Record};

/// Entries of the first segment; each next one has twice as many.
const FIRST: u32 = 512;
const SEGMENTS: usize = 23;
/// The entry at which the list begins and ends: blocks are counted from 1.
const ENDS: u32 = 0;

#[derive(Clone, Copy)]
struct Entry {
    colder: u32,
    newer: u32,
    /// The epoch in which the block became dirty, above its number of absent pages plus one, or above 0 if it was not
    /// measured. 0 for a block that is not in the list.
    age: u64,
}

/// Bits of the lower part.
const ABSENT_BITS: u32 = 10;

impl Entry {
    fn epoch(&self) -> u64 {
        self.age >> ABSENT_BITS
    }

    fn absent(&self) -> u64 {
        (self.age & ((1 << ABSENT_BITS) - 1)).saturating_sub(1)
    }
}

impl Record for Entry {
    const EMPTY: Self = Self { colder: ENDS, newer: ENDS, age: 0 };
}

/// The list, and an entry for each block below the frontier.
pub(super) struct Cold<P: Platform> {
    platform: P,
    segments: [Option<&'static mut [Entry]>; SEGMENTS],
    coldest: u32,
    newest: u32,
    /// The coldest block that was not measured.
    unmeasured: u32,
    len: u64,
    absent: u64,
    epoch: u64,
}

/// Returns the segment of a block, and its index in the segment.
fn place_of(block: u32) -> (usize, usize) {
    let from = u64::from(block) + u64::from(FIRST);
    let segment = (from / u64::from(FIRST)).ilog2();
    (segment as usize, (from - (u64::from(FIRST) << segment)) as usize)
}

impl<P: Platform> Cold<P> {
    pub(super) const fn new(platform: P) -> Self {
        Self {
            platform,
            segments: [const { None }; SEGMENTS],
            coldest: ENDS,
            newest: ENDS,
            unmeasured: ENDS,
            len: 0,
            absent: 0,
            epoch: 1,
        }
    }

    /// Sets the platform from which an empty list allocates.
    pub(super) fn set_platform(&mut self, platform: P) {
        self.platform = platform;
    }

    /// Allocates entries for the blocks below `end`. Returns false if no memory is available.
    pub(super) fn reserve(&mut self, end: u64) -> bool {
        let Ok(last) = u32::try_from(end) else { return false };
        let (segment, _) = place_of(last);
        let Some(wanted) = self.segments.get_mut(..=segment) else { return false };
        for (log2, place) in wanted.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
            let Some(slab) = self.platform.alloc_meta::<Entry>((FIRST as usize) << log2) else {
                return false;
            };
            *place = Some(slab);
        }
        true
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        let (segment, at) = place_of(index);
        self.segments.get(segment)?.as_ref()?.get(at)
    }

    fn change(&mut self, index: u32, change: impl FnOnce(&mut Entry)) {
        let (segment, at) = place_of(index);
        if let Some(Some(entries)) = self.segments.get_mut(segment)
            && let Some(entry) = entries.get_mut(at)
        {
            change(entry);
        }
    }

    /// Calls `each` with the entries of the blocks `[start, end)` whose segments exist: for each segment the index of the
    /// first entry, and the entries.
    fn each_part(&mut self, start: u32, end: u32, mut each: impl FnMut(u32, &mut [Entry])) {
        let mut from = start;
        while from < end {
            let (segment, at) = place_of(from);
            let Some(Some(entries)) = self.segments.get_mut(segment) else { return };
            let len = entries.len().saturating_sub(at).min((end - from) as usize);
            let Some(part) = entries.get_mut(at..at + len).filter(|part| !part.is_empty()) else { return };
            each(from, part);
            from += len as u32;
        }
    }

    /// Adds blocks that became dirty, as the newest, in ascending order.
    pub(super) fn add(&mut self, blocks: core::ops::Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let (start, end) = (blocks.start as u32 + 1, blocks.end as u32 + 1);
        let (age, mut colder) = (self.epoch << ABSENT_BITS, self.newest);
        self.each_part(start, end, |first, entries| {
            for (index, entry) in (first..).zip(entries) {
                debug_assert!(entry.age == 0, "CD1: a block is dirty twice");
                *entry = Entry { colder, newer: index + 1, age };
                colder = index;
            }
        });
        self.change(end - 1, |entry| entry.newer = ENDS);
        match self.newest {
            ENDS => self.coldest = start,
            newest => self.change(newest, |entry| entry.newer = start),
        }
        self.newest = end - 1;
        if self.unmeasured == ENDS {
            self.unmeasured = start;
        }
        self.len += u64::from(end - start);
    }

    /// Removes those of these blocks that are in the list.
    ///
    /// Blocks that became dirty together follow each other in the list, so a chain of them is removed at once.
    pub(super) fn remove(&mut self, blocks: core::ops::Range<u64>) {
        let (mut from, end) = (blocks.start as u32 + 1, blocks.end as u32 + 1);
        while from < end {
            let Some(&Entry { colder, age: 1.., .. }) = self.entry(from) else {
                from += 1;
                continue;
            };
            let (mut newer, mut next, mut absent, unmeasured) = (from, from, 0, self.unmeasured);
            let mut was_next = false;
            self.each_part(from, end, |_, entries| {
                for entry in entries {
                    if newer != next {
                        return;
                    }
                    absent += entry.absent();
                    was_next |= unmeasured == next;
                    newer = entry.newer;
                    next += 1;
                    *entry = Entry::EMPTY;
                }
            });
            if was_next {
                self.unmeasured = newer;
            }
            match colder {
                ENDS => self.coldest = newer,
                colder => self.change(colder, |entry| entry.newer = newer),
            }
            match newer {
                ENDS => self.newest = colder,
                newer => self.change(newer, |entry| entry.colder = colder),
            }
            self.absent -= absent;
            self.len -= u64::from(next - from);
            from = next;
        }
    }

    /// Returns the coldest block, if it became dirty in epoch `until` or before.
    pub(super) fn coldest(&self, until: u64) -> Option<u64> {
        let entry = self.entry(self.coldest).filter(|_| self.coldest != ENDS)?;
        (entry.epoch() <= until).then(|| u64::from(self.coldest) - 1)
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.entry(block as u32 + 1).is_some_and(|entry| entry.age > 0)
    }

    /// Returns the coldest block that was not measured, and its epoch. The caller measures the block.
    pub(super) fn next_unmeasured(&mut self) -> Option<(u64, u64)> {
        let index = self.unmeasured;
        let entry = *self.entry(index).filter(|_| index != ENDS)?;
        self.change(index, |entry| entry.age |= 1);
        self.unmeasured = entry.newer;
        Some((u64::from(index) - 1, entry.epoch()))
    }

    /// Records the absent pages of a block that became dirty in this epoch, unless it left the list meanwhile.
    pub(super) fn note_absent(&mut self, block: u64, epoch: u64, absent: u64) {
        let index = block as u32 + 1;
        let age = epoch << ABSENT_BITS | 1;
        if absent > 0 && self.entry(index).is_some_and(|entry| entry.age == age) {
            self.change(index, |entry| entry.age += absent);
            self.absent += absent;
        }
    }

    /// Returns the number of pages of blocks in the list that are known to be absent.
    pub(super) fn absent(&self) -> u64 {
        self.absent
    }

    /// Returns the number of blocks in the list.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the epoch of blocks that become dirty now.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Advances the epoch by this many turns.
    pub(super) fn pass(&mut self, turns: u64) {
        self.epoch = self.epoch.saturating_add(turns);
    }

    /// Checks CD2 and CD3, and that the links of both directions agree.
    #[cfg(test)]
    pub(super) fn validate(&self) -> Result<(), InvariantViolation> {
        let (mut index, mut before, mut epoch, mut count) = (self.coldest, ENDS, 1, 0);
        let mut absent = 0;
        while let Some(entry) = self.entry(index).filter(|_| index != ENDS) {
            let at = Va::from_page(u64::from(index));
            InvariantViolation::check(entry.epoch() >= epoch, "CD2", at, epoch, entry.epoch())?;
            InvariantViolation::check(entry.colder == before, "CD2", at, before.into(), entry.colder.into())?;
            absent += entry.absent();
            (before, epoch, count, index) = (index, entry.epoch(), count + 1, entry.newer);
        }
        InvariantViolation::check(absent == self.absent, "CD3", Va::ZERO, self.absent, absent)?;
        InvariantViolation::check(epoch <= self.epoch, "CD2", Va::ZERO, self.epoch, epoch)?;
        InvariantViolation::check(
            (before, count) == (self.newest, self.len),
            "CD2",
            Va::ZERO,
            self.len,
            count,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmalloc_os::os::shim::Shim;
    use vmalloc_os::records::Host;

    #[test]
    fn cd2_the_coldest_is_the_one_that_a_plain_queue_has_first() {
        let mut cold = Cold::new(Host::open(Shim::default()).unwrap());
        assert!(cold.reserve(3000) && !cold.reserve(1 << 40));
        let mut model: Vec<(u64, u64)> = Vec::new();
        let mut state = 3u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = (state >> 33) % 2990;
            let blocks = block..block + 1 + (state >> 21) % 10;
            let count = model.iter().filter(|(block, _)| blocks.contains(block)).count();
            assert_eq!(count, blocks.clone().filter(|&block| cold.contains(block)).count());
            cold.remove(blocks.clone());
            model.retain(|(block, _)| !blocks.contains(block));
            if count <= blocks.clone().count() / 2 {
                model.extend(blocks.clone().map(|block| (block, cold.epoch())));
                cold.add(blocks);
            }
            if step % 3 == 0
                && let Some((block, epoch)) = cold.next_unmeasured()
            {
                assert!(model.contains(&(block, epoch)));
                // A block that left the list meanwhile is not recorded, even if it came back.
                if step % 2 == 0 {
                    let (before, absent) = (cold.absent(), 1 + step % 512);
                    cold.note_absent(block, epoch + 1, 7);
                    cold.note_absent(block, epoch - 1, 7);
                    assert_eq!(cold.absent(), before);
                    cold.note_absent(block, epoch, absent);
                    cold.note_absent(block, epoch, 512);
                    assert_eq!(cold.absent(), before + absent);
                }
            }
            if step % 50 == 0 {
                cold.pass(1);
            }
            let until = cold.epoch().saturating_sub(step % 7);
            let want = model.first().filter(|(_, epoch)| *epoch <= until).map(|&(block, _)| block);
            assert_eq!((cold.coldest(until), cold.len()), (want, model.len() as u64));
            if step % 100 == 0 {
                assert_eq!(cold.validate(), Ok(()));
            }
        }
        // The check finds a wrong order.
        let oldest = cold.coldest;
        cold.change(oldest, |entry| entry.age = u64::MAX << ABSENT_BITS);
        assert_eq!(cold.validate().unwrap_err().rule, "CD2");
    }
}
