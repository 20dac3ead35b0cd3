//! Runs the events of a trace through a whole space (nodes, pools, lazy areas, purges). Reports which addresses equal
//! the kernel's, and why the others cannot.
//!
//! # Rules
//! An allocation is requested from the space for the CPU of its event. A free makes an area lazy in its node. Each
//! purge of the trace is a drain, and no other drain occurs: the threshold is never reached. A failed attempt, the
//! kernel's purge after it, and its second attempt are one request to the space, which does the same three steps
//! internally.
//!
//! If the answers differ, ours is stored with the kernel's, so that each side continues with its own addresses. (The
//! replay on an index corrects each difference. A space cannot be corrected from outside: its areas would have to leave
//! the lazy state again.) So one difference may cause others, which is one of the reported reasons.
//!
//! # Invariants
//! - **RP2 one-reason** every answer that differs from the kernel's is counted under exactly one reason.
//!
//! # Inference
//! A space begins with the areas that stood before the trace. A busy one has no owner here, and an unknown one in the
//! kernel. After its free the kernel may have it in any pool, and a difference in its range is counted as that.
//! Otherwise as for an index, except for areas that the kernel allocates while they are busy in the trace. They were
//! freed without an event, at the latest by the last purge that freed areas, and they are freed here at that event.

use crate::engine::{Attempt, CHUNK_BYTES, Tally, Target, default_window, replay, steps};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_sim::areas::{AreaMap, SpaceAreas};
use va_space::config::Config;
use va_space::{Purge, Stats, VmapSpace};
use va_tree::Congruent;
use vmlab_machine::{LabMachine, PlainLock, Work, kernel_extent};
use vmlab_trace::Mark;
use vmlab_trace::standing::{Standing, nodes_of_lists};
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// Largest size that Linux pools, in pages.
const POOLED_PAGES_MAX: u64 = 256;

/// The reason why answers differ from the kernel's. RP2: their sum is the number of those that do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reasons {
    /// One side took an area from a pool and the other did not, or took another area of the same pool. Pools depend on
    /// the CPU of a thread when it allocated, which events do not always report.
    pub pool: u64,
    /// The kernel's range is in the pool of another CPU's node.
    pub other_cpu: u64,
    /// The kernel's range is still lazy here, or ours is there: events of other CPUs are recorded before or after a
    /// purge that they did not wait for.
    pub purge_time: u64,
    /// Alignment above a page, and no other reason: the search, or the shape of the tree that it descends.
    pub aligned: u64,
    /// From an earlier difference: on one side the range is, or was until its free, of an area that has another address
    /// on the other side.
    pub earlier: u64,
    /// The range of one is an area that stood before the trace and was freed since. The node that allocated it, whose
    /// pool gets it, is unknown.
    pub owner_unknown: u64,
    /// None of these: the sides have different holes.
    pub holes: u64,
}

impl Reasons {
    /// Returns the sum of all reasons.
    pub fn sum(&self) -> u64 {
        let Self { pool, other_cpu, purge_time, aligned, earlier, owner_unknown, holes } = self;
        pool + other_cpu + purge_time + aligned + earlier + owner_unknown + holes
    }
}

/// An attempt that failed, until the kernel tries again.
struct Failed {
    attempt: Attempt,
    /// True if the kernel has purged since.
    purged: bool,
}

/// A replay in progress.
pub struct SpaceReplay<'a, C: Config> {
    /// The space.
    pub space: VmapSpace<LabMachine<PlainLock>, C>,
    /// The comparison of results.
    pub tally: Tally,
    /// The reasons for differences.
    pub reasons: Reasons,
    /// Passes of the purge, and flushes, in the events that are counted.
    pub purges: u64,
    /// See `purges`.
    pub flushes: u64,
    table: &'a Table,
    window: VaRange,
    /// Our areas; true for those that have another address in the kernel, or none.
    ours: SpaceAreas<bool, bool, bool>,
    /// The kernel's: the busy ones with the address of ours, `None` if ours failed. The pooled ones were purged whole,
    /// may be in a pool, and were not allocated since; there are none if the trace has one CPU, where Linux has no
    /// pools. Freed ones have true if ours had another address.
    theirs: SpaceAreas<Option<u64>, bool, bool>,
    /// The areas that stood busy before the trace, until the kernel allocates there again.
    unowned: AreaMap,
    /// True if the kernel has pools.
    pools_there: bool,
    /// The failed attempt of each CPU.
    failed: BTreeMap<u16, Failed>,
    /// The areas that the kernel frees without an event, each with the step before which it does, the last first.
    silent: Vec<(usize, u64)>,
}

impl<C: Config> std::fmt::Debug for SpaceReplay<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceReplay").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl<'a, C: Config> SpaceReplay<'a, C> {
    /// Begins with an empty space, on a machine whose threshold is never reached.
    ///
    /// # Errors
    /// If the space cannot be created.
    pub fn new(trace: &Trace, table: &'a Table, nodes: u32) -> Result<Self> {
        let window = default_window(trace);
        // With this many CPUs online the threshold is never reached: the trace decides when to purge.
        let machine = LabMachine::<PlainLock>::new(nodes, u32::MAX, Work::Elsewhere);
        Ok(Self {
            space: VmapSpace::new(kernel_extent(), window, machine)?,
            tally: Tally::default(),
            reasons: Reasons::default(),
            table,
            window,
            ours: SpaceAreas::default(),
            theirs: SpaceAreas::default(),
            unowned: AreaMap::default(),
            purges: 0,
            flushes: 0,
            pools_there: false,
            failed: BTreeMap::new(),
            silent: Vec::new(),
        })
    }

    /// Replays all events of a trace.
    pub fn run(&mut self, trace: &Trace) {
        self.pools_there = trace.cpu_count() > 1;
        self.silent = silent_frees(trace, self.table);
        self.stand_on(&trace.standing);
        let (begun, mut uncounted) = (self.space.stats(), [0; 2]);
        let (mut last, whole) = (begun, trace.is_whole());
        replay(self, steps(trace), |at, replay| {
            // The statistics take longer than most requests.
            if !whole {
                let now = replay.space.stats();
                if !trace.is_counted(at) {
                    uncounted[0] += now.purges - last.purges;
                    uncounted[1] += now.flushes - last.flushes;
                }
                last = now;
            }
        });
        let Stats { purges, flushes, .. } = self.space.stats();
        self.purges = purges - begun.purges - uncounted[0];
        self.flushes = flushes - begun.flushes - uncounted[1];
    }

    /// Begins with these areas.
    fn stand_on(&mut self, areas: &[Standing]) {
        let node_of = nodes_of_lists(areas, self.space.nodes());
        let mut sorted: Vec<&Standing> = areas.iter().collect();
        sorted.sort_by_key(|area| area.start);
        let (mut below, mut fillers) = (self.window.start(), Vec::new());
        for area in sorted {
            let &Standing { start, size, lazy, .. } = area;
            let range = VaRange::from_size(Va::new(start), size).filter(|range| range.is_page_aligned());
            let inside = range.filter(|range| below <= range.start() && range.end() <= self.window.end());
            // An area has an owner only if the space chose its address: each hole below it is taken for the time.
            let filler = inside.and_then(|range| VaRange::new(below, range.start()));
            let filler = filler.filter(|filler| !filler.is_empty());
            fillers.extend(filler.and_then(|filler| self.space.alloc_at(filler).ok()));
            let taken = match (inside.and(node_of(area)), Request::new(size, PAGE_SIZE)) {
                (Some(node), Ok(request)) => self.space.alloc(node, &request).ok(),
                _ => range.and_then(|range| self.space.alloc_at(range).ok()),
            };
            let Some(taken) = taken else {
                self.tally.malformed += 1;
                continue;
            };
            debug_assert_eq!(taken.start().get(), start);
            below = below.max(taken.range().end());
            self.ours.busy.replace(start, size, false);
            self.theirs.busy.replace(start, size, Some(start));
            if !lazy && self.window.contains(taken.start()) {
                self.unowned.replace(start, size, ());
            }
        }
        for filler in fillers {
            let freed = self.space.free_at(filler.start());
            debug_assert!(freed.is_ok(), "{freed:?}");
            // One after the other: the shape of Linux's tree is then most like that of a space that was cut upward.
            self.space.purge(Purge::Full);
        }
        for area in areas.iter().filter(|area| area.lazy) {
            self.free_theirs(area.start);
        }
    }

    /// Compares a failed attempt without a second one.
    fn conclude_failed(&mut self, cpu: u16) {
        if let Some(Failed { attempt, purged }) = self.failed.remove(&cpu) {
            let ours = self.ask(&attempt, Some(purged)).0;
            self.compare(&attempt, ours);
            self.record_areas(&attempt, ours);
        }
    }

    /// Requests an area from the space; returns true as second value if the space purged for it. If the kernel purged
    /// after a failed attempt (`failed_there`; `None` if there was no such attempt), this purges too.
    fn ask(&mut self, attempt: &Attempt, failed_there: Option<bool>) -> (Option<u64>, bool) {
        let Some(request) = attempt.request else { return (None, false) };
        // The statistics take longer than most requests, and are needed for few.
        let before = failed_there.map(|_| self.space.stats().purges);
        let lazy = self.space.lazy_pages();
        let ours = self.space.alloc(u32::from(attempt.cpu), &request).ok().map(|area| area.start().get());
        let purged = match before {
            Some(before) => self.space.stats().purges > before,
            None => self.space.lazy_pages() < lazy,
        };
        let purged_there = failed_there == Some(true);
        if purged_there && !purged {
            self.space.purge(Purge::Full);
        }
        if purged_there || purged {
            self.note_purge();
        }
        (ours, purged)
    }

    /// Counts an answer.
    fn compare(&mut self, attempt: &Attempt, ours: Option<u64>) {
        if self.tally.compare(attempt, ours) && attempt.counted {
            *self.reason(attempt, ours) += 1;
        }
    }

    /// Returns the counter for a result that differs.
    fn reason(&mut self, attempt: &Attempt, ours: Option<u64>) -> &mut u64 {
        let &Attempt { cpu, size, align, kernel, .. } = attempt;
        fn overlaps<T>(areas: &AreaMap<T>, at: Option<u64>, size: u64) -> bool {
            at.is_some_and(|at| areas.overlap(at, size).is_some())
        }
        let is_pooled = |at: &u64| self.ours.pooled.get(*at).is_some();
        let node = u32::from(cpu) % self.space.nodes();
        // Only for pooled areas: the search for areas from an address on may take long.
        let owner = kernel.filter(is_pooled).and_then(|at| {
            let seen = self.space.areas_from(Va::new(at)).next()?;
            (seen.range.start().get() == at).then_some(seen.owner?)
        });
        let (here, there) = (&self.ours, &self.theirs);
        let kernel_pooled = overlaps(&here.pooled, kernel, size);
        let moved = |areas: &AreaMap<bool>, at: Option<u64>| {
            at.is_some_and(|at| areas.overlap(at, size).is_some_and(|(.., &moved)| moved))
        };
        let moved = moved(&here.lazy, kernel)
            || moved(&here.pooled, kernel)
            || moved(&there.lazy, ours)
            || moved(&there.pooled, ours);
        let reasons = &mut self.reasons;
        if overlaps(&here.busy, kernel, size) || overlaps(&there.busy, ours, size) || moved {
            &mut reasons.earlier
        } else if overlaps(&here.lazy, kernel, size) || overlaps(&there.lazy, ours, size) {
            &mut reasons.purge_time
        } else if overlaps(&self.unowned, kernel, size) || overlaps(&self.unowned, ours, size) {
            &mut reasons.owner_unknown
        } else if kernel_pooled && owner.is_some_and(|owner| owner != node) {
            &mut reasons.other_cpu
        } else if kernel_pooled
            || ours.as_ref().is_some_and(is_pooled)
            || kernel.is_some_and(|at| there.pooled.get(at).is_some_and(|(bytes, _)| bytes == size))
            || overlaps(&there.pooled, ours, size)
        {
            &mut reasons.pool
        } else if align > PAGE_SIZE {
            &mut reasons.aligned
        } else {
            &mut reasons.holes
        }
    }

    /// Records the areas that both sides allocated.
    fn record_areas(&mut self, attempt: &Attempt, ours: Option<u64>) {
        let size = attempt.size;
        if let Some(ours) = ours {
            self.ours.pooled.remove(ours);
            self.ours.busy.replace(ours, size, attempt.kernel != Some(ours));
        }
        let possible = |&at: &u64| VaRange::from_size(Va::new(at), size).is_some();
        let kernel = attempt.kernel.filter(possible);
        self.tally.malformed += u64::from(attempt.kernel != kernel);
        match (kernel, ours) {
            (Some(kernel), ours) => self.put_theirs(kernel, size, ours),
            (None, Some(ours)) => self.free_ours(ours),
            (None, None) => {}
        }
    }

    /// Makes a range that the kernel allocates busy there, after the areas in it were freed without an event.
    fn put_theirs(&mut self, start: u64, size: u64, ours: Option<u64>) {
        let (busy, lazy, _) = self.theirs.take_overlaps(start, size);
        self.tally.inferred += (busy.len() + lazy.len()) as u64;
        self.unowned.take_overlaps(start, size);
        for stale in busy.into_iter().filter_map(|(.., ours)| ours) {
            self.free_ours(stale);
        }
        self.theirs.busy.replace(start, size, ours);
    }

    /// Frees the area that has the kernel's address; returns false if its allocation is not recorded.
    fn free_theirs(&mut self, start: u64) -> bool {
        let Some(ours) = self.theirs.free(start, |&ours| ours != Some(start)) else { return false };
        if let Some(ours) = ours {
            self.free_ours(ours);
        }
        true
    }

    fn free_ours(&mut self, start: u64) {
        let freed = self.space.free_at(Va::new(start));
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.ours.free(start, |&moved| moved);
    }

    /// Updates our areas after a purge: none is lazy, and every area that is neither free nor busy is in a pool.
    fn note_purge(&mut self) {
        let lazy = self.ours.lazy.take();
        lazy.for_each(|(start, size, moved)| _ = self.ours.pooled.replace(start, size, moved));
        self.note_pools();
    }

    /// Removes from our pooled areas those that are in no pool.
    fn note_pools(&mut self) {
        for (start, size, moved) in self.ours.pooled.take() {
            let seen = self.space.areas_from(Va::new(start)).next();
            if seen.is_some_and(|seen| seen.range.start().get() == start) {
                self.ours.pooled.replace(start, size, moved);
            }
        }
    }
}

impl<C: Config> Target for SpaceReplay<'_, C> {
    fn begin_step(&mut self, at: usize) {
        while let Some((_, start)) = self.silent.pop_if(|(before, _)| *before <= at) {
            self.tally.inferred += 1;
            self.free_theirs(start);
        }
    }

    fn alloc(&mut self, attempt: &Attempt) {
        let cpu = attempt.cpu;
        if self.failed.get(&cpu).is_some_and(|before| before.attempt.request != attempt.request) {
            self.conclude_failed(cpu);
        }
        if attempt.request.is_none() {
            // No allocator accepts that: there is no area to record.
            self.tally.malformed += 1;
            self.compare(attempt, None);
            return;
        }
        if attempt.kernel.is_none() && !self.failed.contains_key(&cpu) {
            self.failed.insert(cpu, Failed { attempt: *attempt, purged: false });
            return;
        }
        let first = self.failed.remove(&cpu);
        let (ours, purged) = self.ask(attempt, first.as_ref().map(|first| first.purged));
        if let Some(first) = first {
            // The space tried twice, as the kernel did, if it purged in between or failed in the end.
            let alike = purged || ours.is_none();
            let once = if alike { None } else { ours };
            self.compare(&first.attempt, once);
            // Only the second answer is recorded as an area.
        }
        self.compare(attempt, ours);
        self.record_areas(attempt, ours);
    }

    fn free(&mut self, start: u64) {
        if !self.free_theirs(start) {
            self.tally.inferred += 1;
        }
    }

    fn purge(&mut self, cpu: u16, purged: u64) {
        if purged > 0 {
            for (start, size, moved) in self.theirs.lazy.take() {
                if self.pools_there && size <= POOLED_PAGES_MAX * PAGE_SIZE {
                    self.theirs.pooled.replace(start, size, moved);
                }
            }
        }
        match self.failed.get_mut(&cpu) {
            // The space itself purges during the repeated request.
            Some(failed) => failed.purged = true,
            None => {
                self.space.purge(Purge::Drain);
                self.note_purge();
            }
        }
    }

    fn chunk(&mut self, base: u64) {
        let size = self.tally.chunk_bytes(self.table, base);
        let Some(range) = VaRange::from_size(Va::new(base), size) else {
            self.tally.malformed += 1;
            return;
        };
        let areas = [(0, size)];
        let window = self.window;
        let found = Congruent::new(&areas, 1 << size.trailing_zeros())
            .ok()
            .and_then(|request| self.space.alloc_congruent(&request.within(window)).ok());
        let Some(mut at) = found.map(Va::get) else {
            self.tally.malformed += 1;
            return;
        };
        self.ours.busy.replace(at, size, at != base);
        if at == base {
            self.tally.chunks_equal += 1;
        } else if let Ok(request) = Request::new(size, PAGE_SIZE)
            && let Ok(area) = self.space.alloc(0, &request.within(range))
        {
            // It must be at the kernel's address, or it would overlap later areas.
            self.free_ours(at);
            at = area.start().get();
            self.ours.busy.replace(at, size, at != base);
        }
        self.put_theirs(base, size, Some(at));
    }

    fn mark(&mut self, _at: usize, mark: Mark) {
        if mark == Mark::Drained {
            self.space.shrink();
            self.note_pools();
            self.theirs.pooled = AreaMap::default();
        }
    }

    fn end(&mut self) {
        for cpu in self.failed.keys().copied().collect::<Vec<_>>() {
            self.conclude_failed(cpu);
        }
        debug_assert_eq!(self.reasons.sum(), self.tally.columns.differ(), "RP2");
    }
}

/// Returns the areas that the kernel allocates while they are busy in the trace, the last first. Each has the event
/// before which it was freed at the latest: the last purge that freed areas.
pub(crate) fn silent_frees(trace: &Trace, table: &Table) -> Vec<(usize, u64)> {
    let mut busy = AreaMap::default();
    for area in trace.standing.iter().filter(|area| !area.lazy) {
        busy.replace(area.start, area.size, 0);
    }
    let mut last_purge = 0;
    let mut silent = Vec::new();
    for (at, event) in trace.events.iter().enumerate() {
        let (start, size) = match *event {
            Event::Alloc { addr, size, failed: false, .. } => (addr, size),
            Event::ChunkCreate { base } => (base, table.chunk_bytes(base).unwrap_or(CHUNK_BYTES)),
            Event::Free { addr } => {
                busy.remove(addr);
                continue;
            }
            Event::Purge { purged } => {
                if purged > 0 {
                    last_purge = at;
                }
                continue;
            }
            Event::Alloc { .. } | Event::ChunkDestroy { .. } => continue,
        };
        for (start, _, began) in busy.replace(start, size, at) {
            silent.push((last_purge.max(began + 1), start));
        }
    }
    silent.sort_by_key(|&(at, _)| at);
    silent.reverse();
    silent
}
