//! Counts of all pages and blocks, and the check of all invariants.

use super::Blocks;
use crate::block::{Block, List, Place, ones};
use crate::config::{Config, Spread};
use crate::strip::STRIP_PAGES;
use va_base::sync::atomic::Ordering;
use va_base::{InvariantViolation, Machine, Pages};
use va_space::State;

/// Counts of the pages of blocks by their state; exact while no other thread calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Blocks present.
    pub blocks: u64,
    /// Blocks in lanes, among them.
    pub laned: u64,
    /// Pages that can be allocated.
    pub free_pages: Pages,
    /// Pages of live mappings, including those consumed by rounding up.
    pub live_pages: Pages,
    /// Pages that were freed and not yet flushed.
    pub dead_pages: Pages,
    /// Collections ended.
    pub collections: u64,
    /// Flushes that they requested.
    pub flushes: u64,
    /// Pages that they recycled (lanes recycled more).
    pub recycled_pages: Pages,
    /// Blocks that they released to the space.
    pub released: u64,
}

/// Pages of one block: free, live, dead.
struct Shares {
    free: u32,
    live: u32,
    dead: u32,
}

impl<P: Machine + Clone, C: Config> Blocks<P, C> {
    /// Returns the counts. Cost: O(all blocks that there ever were).
    pub fn stats(&self) -> Stats {
        let collection = self.lock_collection();
        let mut stats = Stats {
            collections: collection.done,
            flushes: collection.flushes,
            recycled_pages: Pages::new(collection.recycled),
            released: collection.released,
            ..Stats::default()
        };
        drop(collection);
        let (mut free, mut live, mut dead) = (0, 0, 0);
        for block in self.lookup.each() {
            let (_queue, place) = self.lock_home(block);
            if place == Place::Absent {
                continue;
            }
            stats.blocks += 1;
            stats.laned += u64::from(place == Place::Laned);
            if let Ok(shares) = self.check_block(block) {
                (free, live, dead) = (
                    free + u64::from(shares.free),
                    live + u64::from(shares.live),
                    dead + u64::from(shares.dead),
                );
            }
        }
        (stats.free_pages, stats.live_pages, stats.dead_pages) =
            (Pages::new(free), Pages::new(live), Pages::new(dead));
        stats
    }

    /// Checks VB1 to VB9 with full walks, and the space below.
    ///
    /// Call it while no other thread calls: a change during the walk may look like a violation.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let (mut open, mut blocks, mut touched) = (0, 0, 0);
        for block in self.lookup.each() {
            touched += u64::from(block.is_touched());
            let place = block.place();
            if place == Place::Absent {
                continue;
            }
            blocks += 1;
            if C::REUSE && !block.is_touched() && block.is_dead() {
                return Err(InvariantViolation {
                    rule: "VB8",
                    at: self.va(block, 0),
                    expected: 1,
                    actual: 0,
                });
            }
            open += u64::from(place == Place::Open);
            let shares = self.check_block(block)?;
            let at = self.va(block, 0);
            if place == Place::Full && shares.free > 0 {
                return Err(InvariantViolation {
                    rule: "VB7",
                    at,
                    expected: 0,
                    actual: u64::from(shares.free),
                });
            }
            let area = self.space().find(at).filter(|seen| seen.state == State::Busy);
            let size = area.map_or(0, |seen| seen.range.len_bytes() / va_base::PAGE_SIZE);
            if size != u64::from(self.pages) {
                return Err(InvariantViolation {
                    rule: "VB6",
                    at,
                    expected: u64::from(self.pages),
                    actual: size,
                });
            }
        }
        let balance = self.balance();
        let lanes = self.lock_collection().lanes.count();
        let counted = self.lanes.load(Ordering::Relaxed);
        for (want, got) in [(blocks, balance.present()), (touched, balance.touched()), (lanes, counted)] {
            if want != got {
                return Err(InvariantViolation {
                    rule: "VB8",
                    at: self.space().extent().start(),
                    expected: want,
                    actual: got,
                });
            }
        }
        for (bucket, cpu) in self.each_cpu() {
            let is_here = |block: &&Block| {
                block.place() != Place::Absent && C::Spread::bucket(block.index(), self.cpu_count) == bucket
            };
            let got = *cpu.present.lock();
            // A bucket that counts none is skipped, since the sum is compared below.
            let want = if got == 0 { 0 } else { self.lookup.each().filter(is_here).count() as u64 };
            blocks = blocks.saturating_sub(got);
            if got != want {
                return Err(InvariantViolation {
                    rule: "VB5",
                    at: self.space().extent().start(),
                    expected: want,
                    actual: got,
                });
            }
            let shown = self.cpus.shown(bucket);
            let queue = self.lock_queue(bucket);
            if shown != queue.largest() {
                return Err(InvariantViolation {
                    rule: "VB9",
                    at: self.space().extent().start(),
                    expected: u64::from(queue.largest()),
                    actual: u64::from(shown),
                });
            }
            for block in queue.each(&self.lookup) {
                let at = self.va(block, 0);
                if block.place() != Place::Open || !core::ptr::eq(self.cpu(block.cpu()), cpu) || open == 0 {
                    return Err(InvariantViolation {
                        rule: "VB7",
                        at,
                        expected: Place::Open as u64,
                        actual: block.place() as u64,
                    });
                }
                open -= 1;
            }
        }
        if blocks != 0 {
            return Err(InvariantViolation {
                rule: "VB5",
                at: self.space().extent().start(),
                expected: blocks,
                actual: 0,
            });
        }
        if open != 0 {
            return Err(InvariantViolation {
                rule: "VB7",
                at: self.space().extent().start(),
                expected: 0,
                actual: open,
            });
        }
        self.check_lists()?;
        self.space().validate()
    }

    /// Checks that the lists of the collection end, and that their blocks are marked as listed.
    fn check_lists(&self) -> Result<(), InvariantViolation> {
        let collection = self.lock_collection();
        for (list, name) in collection.lists() {
            let mut left = self.lookup.each().filter(|block| block.list() == name).count();
            for block in list.each(&self.lookup) {
                let in_flight = block.flush_state() == crate::block::FlushState::Begun;
                if left == 0 || block.list() != name || (name == List::InFlight) != in_flight {
                    let at = self.va(block, 0);
                    return Err(InvariantViolation {
                        rule: "VB3",
                        at,
                        expected: 1,
                        actual: block.flush_state() as u64,
                    });
                }
                left -= 1;
            }
            if left != 0 {
                let at = self.space().extent().start();
                return Err(InvariantViolation { rule: "VB3", at, expected: 0, actual: left as u64 });
            }
        }
        Ok(())
    }

    /// Checks VB1 to VB4 for one block.
    fn check_block(&self, block: &Block) -> Result<Shares, InvariantViolation> {
        let broken = |rule, page: u32, want: u32, got: u32| {
            Err(InvariantViolation {
                rule,
                at: self.va(block, page),
                expected: u64::from(want),
                actual: u64::from(got),
            })
        };
        let mut shares = Shares { free: 0, live: 0, dead: 0 };
        let (run_start, run_end) = block.run();
        let mut expect = 0;
        while expect < self.pages {
            let (strip, bit) = (&block.strips()[(expect / STRIP_PAGES) as usize], expect % STRIP_PAGES);
            let (marks, is_free) = (strip.marks(), strip.free() & 1 << bit != 0);
            let in_run = (run_start..run_end).contains(&expect);
            let ways = u32::from(marks.has_head(bit)) + u32::from(is_free) + u32::from(in_run);
            if ways != 1 {
                return broken("VB1", expect, 1, ways);
            }
            if !marks.has_head(bit) {
                // Not in a mapping, so no mapping may end here.
                if marks.tails() & 1 << bit != 0 {
                    return broken("VB2", expect, 0, 1);
                }
                shares.free += 1;
                expect += 1;
                continue;
            }
            let Some(size) = self.size_at(block, expect) else { return broken("VB2", expect, 1, 0) };
            let consumed = C::consumed(size);
            if expect + consumed > self.pages {
                return broken("VB2", expect, self.pages, expect + consumed);
            }
            for page in expect + 1..expect + consumed {
                let (strip, bit) = (&block.strips()[(page / STRIP_PAGES) as usize], page % STRIP_PAGES);
                let (marks, is_free) = (strip.marks(), strip.free() & 1 << bit != 0);
                let is_tail = marks.tails() & 1 << bit != 0;
                if is_free || (run_start..run_end).contains(&page) {
                    return broken("VB1", page, 1, 2);
                }
                if marks.has_head(bit) || is_tail != (page == expect + size - 1) {
                    return broken("VB2", page, expect + size - 1, page);
                }
            }
            if strip.gone().has(bit) {
                shares.dead += consumed;
            } else {
                shares.live += consumed;
            }
            expect += consumed;
        }
        self.check_bits(block)?;
        let sum = shares.free + shares.live + shares.dead;
        if sum != self.pages || shares.free != block.free_pages() {
            return broken("VB1", 0, block.free_pages(), shares.free);
        }
        if !C::REUSE && block.dead_counted() != shares.dead {
            return broken("VB4", 0, shares.dead, block.dead_counted());
        }
        Ok(shares)
    }

    /// Checks VB3.
    fn check_bits(&self, block: &Block) -> Result<(), InvariantViolation> {
        for (index, strip) in block.strips().iter().enumerate() {
            let (heads, gone, flushed) = (strip.marks().heads(), strip.gone().bits(), strip.flushed());
            if let Some(bit) = ones(gone & !heads | flushed & !gone).next() {
                let at = self.va(block, index as u32 * STRIP_PAGES + bit);
                return Err(InvariantViolation {
                    rule: "VB3",
                    at,
                    expected: u64::from(heads & gone),
                    actual: u64::from(gone | flushed),
                });
            }
        }
        Ok(())
    }

    /// Returns the pages from a head to the first tail.
    fn size_at(&self, block: &Block, head: u32) -> Option<u32> {
        (head..self.pages.min(head + 64))
            .find(|page| {
                let strip = &block.strips()[(page / STRIP_PAGES) as usize];
                strip.marks().tails() & 1 << (page % STRIP_PAGES) != 0
            })
            .map(|tail| tail - head + 1)
    }
}
