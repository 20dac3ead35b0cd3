//! Runs the events of a trace through an index, and compares every address with the kernel's.
//!
//! # Rules
//! The space begins with the areas that stood before the trace, or empty, all of `[1, 2^64 - 1)`, as Linux's does. An
//! allocation is requested from the index with the
//! kernel's size, alignment and window. If the answers differ, ours is freed and the kernel's range is allocated
//! instead, so that one difference does not cause the next.
//!
//! A freed area becomes lazy and its range stays allocated. A purge frees as many as its event counts, the oldest, since
//! areas that were freed after it took its lists stay lazy. It frees them from the highest down: the
//! kernel walks them upward and prepends each to a list. (The order cannot change which ranges are free, but it
//! determines the shape of a tree, and with it Linux's aligned addresses.)
//!
//! # Inference
//! Facts that events do not report are inferred, and each inference is counted:
//! - a percpu chunk shows only its base; its size is in `vmallocinfo`, or assumed to be 2 MiB;
//! - a range that is freed without a recorded allocation existed before the trace, or is a `vm_map_ram` block;
//! - a range that the kernel allocates while we still hold it was freed on a path without events.

use crate::engine::{Attempt, Tally, Target, replay, steps};
use va_base::{Request, Va, VaRange};
use va_sim::areas::SpaceAreas;
use va_tree::{Congruent, FreeIndex};
use vmlab_trace::Trace;
use vmlab_trace::standing::Standing;
use vmlab_trace::vmallocinfo::Table;

/// A call on the index, as the replay made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Allocate the lowest fit.
    Alloc(Request),
    /// Allocate exactly this range.
    Take(VaRange),
    /// Free this range.
    Free(VaRange),
}

/// A replay in progress.
pub struct Replay<'a, I> {
    /// The index.
    pub index: I,
    /// The kernel's areas; the lazy ones with a number that grows with the time of their free.
    pub areas: SpaceAreas<(), u64>,
    /// The result so far.
    pub tally: Tally,
    /// Every call on the index that was meant to change it.
    pub calls: Vec<Call>,
    table: &'a Table,
    window: VaRange,
    frees: u64,
}

impl<I> std::fmt::Debug for Replay<'_, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl<'a, I: FreeIndex> Replay<'a, I> {
    /// Begins with an index of an empty space.
    pub fn new(index: I, window: VaRange, table: &'a Table) -> Self {
        Self {
            index,
            areas: SpaceAreas::default(),
            tally: Tally::default(),
            calls: Vec::new(),
            table,
            window,
            frees: 0,
        }
    }

    /// Replays all events of a trace.
    pub fn run(&mut self, trace: &Trace) {
        self.run_watched(trace, |_, _| {});
    }

    /// Replays all events of a trace. After each, calls `watch` with its index.
    pub fn run_watched(&mut self, trace: &Trace, watch: impl FnMut(usize, &Self)) {
        for &Standing { start, size, lazy, .. } in &trace.standing {
            self.put(start, size);
            if lazy {
                self.areas.free(start, |()| 0);
            }
        }
        replay(self, steps(trace), watch);
    }

    /// Makes `[start, start + size)` busy. First frees our areas there: the kernel freed them without an event.
    fn put(&mut self, start: u64, size: u64) {
        let Some(range) = VaRange::from_size(Va::new(start), size) else {
            self.tally.malformed += 1;
            return;
        };
        let (busy, lazy, _) = self.areas.take_overlaps(start, size);
        let busy = busy.into_iter().map(|(start, size, ())| (start, size));
        for (start, size) in busy.chain(lazy.into_iter().map(|(start, size, _)| (start, size))) {
            self.tally.inferred += 1;
            self.free_range(start, size);
        }
        self.calls.push(Call::Take(range));
        if self.index.take(range).is_ok() {
            self.insert(start, size);
        } else {
            self.tally.malformed += 1;
        }
    }

    /// Records an area that the index allocated.
    fn insert(&mut self, start: u64, size: u64) {
        let inserted = self.areas.busy.insert(start, size, ());
        // The index had allocated every range that this side holds.
        debug_assert!(inserted.is_ok(), "{inserted:?}");
    }

    fn free_range(&mut self, start: u64, size: u64) {
        if let Some(range) = VaRange::from_size(Va::new(start), size) {
            self.calls.push(Call::Free(range));
            // The index had allocated every range that this side holds: a failure is a bug, and shows as a difference
            // of counts.
            let back = self.index.free(range);
            debug_assert!(back.is_ok(), "{back:?}");
        }
    }

    /// Returns the largest free range inside the default window, in bytes.
    pub fn largest_in_window(&self) -> u64 {
        let window = self.window;
        let mut largest = 0;
        let mut at = window.start();
        while let Some(hole) = self.index.hole_after(at).filter(|hole| hole.start() < window.end()) {
            let (start, end) = (hole.start().max(window.start()), hole.end().min(window.end()));
            largest = largest.max(end.get().saturating_sub(start.get()));
            at = hole.end();
        }
        largest
    }
}

impl<I: FreeIndex> Target for Replay<'_, I> {
    fn alloc(&mut self, attempt: &Attempt) {
        let Some(request) = attempt.request else {
            self.tally.malformed += 1;
            // The index would fail, too.
            self.tally.compare(attempt, None);
            return;
        };
        self.calls.push(Call::Alloc(request));
        let ours = self.index.alloc(&request).ok().map(Va::get);
        match (self.tally.compare(attempt, ours), ours) {
            (false, Some(ours)) => self.insert(ours, attempt.size),
            (false, None) => {}
            (true, ours) => {
                if let Some(ours) = ours {
                    self.free_range(ours, attempt.size);
                }
                if let Some(kernel) = attempt.kernel {
                    self.put(kernel, attempt.size);
                }
            }
        }
    }

    fn free(&mut self, start: u64) {
        self.frees += 1;
        if self.areas.free(start, |()| self.frees).is_none() {
            self.tally.inferred += 1;
        }
    }

    fn purge(&mut self, _cpu: u16, purged: u64) {
        let mut out: Vec<_> = self.areas.lazy.take().collect();
        let purged = usize::try_from(purged).unwrap_or(usize::MAX);
        if purged < out.len() {
            out.sort_by_key(|&(.., freed)| freed);
            for (start, size, freed) in out.split_off(purged) {
                self.areas.lazy.replace(start, size, freed);
            }
            out.sort_by_key(|&(start, ..)| start);
        }
        for (start, size, _) in out.into_iter().rev() {
            self.free_range(start, size);
        }
    }

    fn chunk(&mut self, base: u64) {
        let size = self.tally.chunk_bytes(self.table, base);
        // The alignment of a chunk is its atom, which is no larger than the unit: the lowest set bit of the size.
        let areas = [(0, size)];
        let atom = 1 << size.trailing_zeros();
        if let Ok(request) = Congruent::new(&areas, atom) {
            let ours = self.index.find_congruent(&request.within(self.window));
            self.tally.chunks_equal += u64::from(ours == Ok(Va::new(base)));
        }
        self.put(base, size);
    }
}
