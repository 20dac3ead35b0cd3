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
//! As for an index, except for areas that the kernel allocates while they are busy in the trace. They were freed
//! without an event, at the latest by the last purge that freed areas, and they are freed here at that event.

use super::{CHUNK_BYTES, Differs, FIRST_DIFFERENCES_MAX, Tally};
use crate::state::State;
use serde::Serialize;
use std::collections::BTreeMap;
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_space::config::Config;
use va_space::{Purge, VmapSpace};
use va_tree::Congruent;
use vmlab_machine::{LabMachine, PlainLock};
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
    /// An earlier difference allocated the range to another area on one side.
    pub earlier: u64,
    /// None of these: the sides have different holes.
    pub holes: u64,
}

impl Reasons {
    /// Returns the sum of all reasons.
    pub fn sum(&self) -> u64 {
        let Self { pool, other_cpu, purge_time, aligned, earlier, holes } = self;
        pool + other_cpu + purge_time + aligned + earlier + holes
    }
}

/// Ranges by their start; none overlap.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn overlaps(&self, start: u64, size: u64) -> bool {
        let end = start.saturating_add(size);
        self.0.range(..end).next_back().is_some_and(|(&at, &len)| at.saturating_add(len) > start)
    }

    /// Removes all ranges that overlap, and returns their starts.
    fn take_overlaps(&mut self, start: u64, size: u64) -> Vec<u64> {
        let end = start.saturating_add(size);
        let mut gone = Vec::new();
        while let Some((&at, &len)) = self.0.range(..end).next_back()
            && at.saturating_add(len) > start
        {
            self.0.remove(&at);
            gone.push(at);
        }
        gone
    }
}

/// The areas of one side that are not free in its index.
#[derive(Default)]
struct SideAreas {
    busy: Ranges,
    lazy: Ranges,
    /// Ours: the areas in pools. The kernel's: the areas that were purged whole, may be in a pool, and were not
    /// allocated since. Empty if the trace has one CPU, where Linux has no pools.
    pooled: Ranges,
}

/// An attempt that failed, until the kernel tries again.
struct Failed {
    event: Event,
    number: u64,
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
    table: &'a Table,
    window: VaRange,
    /// The kernel's areas, with the address of ours; `None` if ours failed.
    held: BTreeMap<u64, Option<u64>>,
    ours: SideAreas,
    theirs: SideAreas,
    /// True if the kernel has pools.
    pools_there: bool,
    /// The failed attempt of each CPU.
    failed: BTreeMap<u16, Failed>,
    allocs: u64,
}

impl<'a, C: Config> SpaceReplay<'a, C> {
    /// Begins with an empty space, on a machine whose threshold is never reached.
    pub fn new(space: VmapSpace<LabMachine<PlainLock>, C>, window: VaRange, table: &'a Table) -> Self {
        Self {
            space,
            tally: Tally::default(),
            reasons: Reasons::default(),
            table,
            window,
            held: BTreeMap::new(),
            ours: SideAreas::default(),
            theirs: SideAreas::default(),
            pools_there: false,
            failed: BTreeMap::new(),
            allocs: 0,
        }
    }

    /// Replays all events of a trace.
    pub fn run(&mut self, trace: &Trace) {
        self.run_watched(trace, |_, _| {});
    }

    /// Replays all events of a trace. After each, calls `watch` with its index and the pooled areas, start to size.
    pub fn run_watched(&mut self, trace: &Trace, mut watch: impl FnMut(usize, &BTreeMap<u64, u64>)) {
        self.pools_there = trace.cpu_count() > 1;
        let silent = silent_frees(trace, self.table);
        let mut silent = silent.iter().peekable();
        for (at, (event, &cpu)) in trace.events.iter().zip(&trace.cpus).enumerate() {
            while let Some((_, start)) = silent.next_if(|(before, _)| *before <= at) {
                self.tally.inferred += 1;
                self.free(*start);
            }
            self.step(event, cpu);
            watch(at, &self.ours.pooled.0);
        }
        for cpu in self.failed.keys().copied().collect::<Vec<_>>() {
            self.conclude_failed(cpu);
        }
        for differs in &mut self.tally.first_differences {
            differs.line = trace.alloc_line(differs.number);
        }
        let tally = &self.tally;
        debug_assert_eq!(self.reasons.sum(), tally.lower + tally.higher + tally.failed_differs, "RP2");
    }

    /// Iterates over the kernel's areas in ascending order, with the address of ours; `None` if ours failed.
    pub fn held(&self) -> impl Iterator<Item = (u64, Option<u64>)> + '_ {
        self.held.iter().map(|(&kernel, &ours)| (kernel, ours))
    }

    /// Visits the areas that are not free in our index: first address, bytes and state.
    pub fn visit(&self, mut visit: impl FnMut(u64, u64, State)) {
        let SideAreas { busy, lazy, pooled } = &self.ours;
        for (ranges, state) in [(busy, State::Busy), (lazy, State::Lazy), (pooled, State::Pooled)] {
            for (&start, &bytes) in &ranges.0 {
                visit(start, bytes, state);
            }
        }
    }

    fn step(&mut self, event: &Event, cpu: u16) {
        match *event {
            Event::Alloc { failed, .. } => {
                self.allocs += 1;
                if self.failed.get(&cpu).is_some_and(|before| !same_request(&before.event, event)) {
                    self.conclude_failed(cpu);
                }
                if failed && request_of(event).is_some() && !self.failed.contains_key(&cpu) {
                    let before = Failed { event: *event, number: self.allocs, purged: false };
                    self.failed.insert(cpu, before);
                } else {
                    self.alloc(event, cpu);
                }
            }
            Event::Free { addr } => {
                if !self.free(addr) {
                    self.tally.inferred += 1;
                }
            }
            Event::Purge { purged } => {
                for start in std::mem::take(&mut self.theirs.lazy.0) {
                    if purged == 0 {
                        self.theirs.lazy.0.insert(start.0, start.1);
                    } else if self.pools_there && start.1 <= POOLED_PAGES_MAX * PAGE_SIZE {
                        self.theirs.pooled.0.insert(start.0, start.1);
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
            Event::ChunkCreate { base } => self.chunk(base),
            Event::ChunkDestroy { .. } => {}
        }
    }

    /// Compares a failed attempt without a second one.
    fn conclude_failed(&mut self, cpu: u16) {
        if let Some(Failed { event, number, purged }) = self.failed.remove(&cpu) {
            let ours = self.ask(&event, cpu, Some(purged)).0;
            self.compare(&event, cpu, number, ours);
            self.record_areas(&event, ours);
        }
    }

    fn alloc(&mut self, event: &Event, cpu: u16) {
        if request_of(event).is_none() {
            // No allocator accepts that: there is no area to record.
            self.tally.malformed += 1;
            self.compare(event, cpu, self.allocs, None);
            return;
        }
        let first = self.failed.remove(&cpu);
        let (ours, purged) = self.ask(event, cpu, first.as_ref().map(|first| first.purged));
        if let Some(first) = first {
            // The space tried twice, as the kernel did, if it purged in between or failed in the end.
            let alike = purged || ours.is_none();
            let once = if alike { None } else { ours };
            self.compare(&first.event, cpu, first.number, once);
            // Only the second answer is recorded as an area.
        }
        self.compare(event, cpu, self.allocs, ours);
        self.record_areas(event, ours);
    }

    /// Requests an area from the space; returns true as second value if the space purged for it. If the kernel purged
    /// after a failed attempt (`failed_there`; `None` if there was no such attempt), this purges too.
    fn ask(&mut self, event: &Event, cpu: u16, failed_there: Option<bool>) -> (Option<u64>, bool) {
        let Some(request) = request_of(event) else { return (None, false) };
        // The statistics take longer than most requests, and are needed for few.
        let before = failed_there.map(|_| self.space.stats().purges);
        let lazy = self.space.lazy_pages();
        let ours = self.space.alloc(u32::from(cpu), &request).ok().map(|area| area.start().get());
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
    fn compare(&mut self, event: &Event, cpu: u16, number: u64, ours: Option<u64>) {
        let Event::Alloc { addr, size, align, failed, .. } = *event else { return };
        let kernel = (!failed).then_some(addr);
        let tally = &mut self.tally;
        match (ours, kernel) {
            (None, None) => tally.failed_both += 1,
            (Some(ours), Some(kernel)) if ours == kernel => tally.equal += 1,
            (Some(ours), Some(kernel)) if ours < kernel => tally.lower += 1,
            (Some(_), Some(_)) => tally.higher += 1,
            (Some(_), None) | (None, Some(_)) => tally.failed_differs += 1,
        }
        if ours != kernel {
            if tally.first_differences.len() < FIRST_DIFFERENCES_MAX {
                tally.first_differences.push(Differs { number, line: None, size, align, kernel, ours });
            }
            *self.reason(cpu, (size, align), ours, kernel) += 1;
        }
    }

    /// Returns the counter for a result that differs.
    fn reason(
        &mut self,
        cpu: u16,
        (size, align): (u64, u64),
        ours: Option<u64>,
        kernel: Option<u64>,
    ) -> &mut u64 {
        let here = |ranges: &Ranges| kernel.is_some_and(|at| ranges.overlaps(at, size));
        let there = |ranges: &Ranges| ours.is_some_and(|at| ranges.overlaps(at, size));
        let from_pool = ours.is_some_and(|at| self.ours.pooled.0.contains_key(&at));
        let node = u32::from(cpu) % self.space.nodes();
        // Only for pooled areas: the search for areas from an address on may take long.
        let owner = kernel.filter(|at| self.ours.pooled.0.contains_key(at)).and_then(|at| {
            let seen = self.space.areas_from(Va::new(at)).next()?;
            (seen.range.start().get() == at).then_some(seen.owner?)
        });
        let reasons = &mut self.reasons;
        if here(&self.ours.busy) || there(&self.theirs.busy) {
            &mut reasons.earlier
        } else if here(&self.ours.lazy) || there(&self.theirs.lazy) {
            &mut reasons.purge_time
        } else if here(&self.ours.pooled) && owner.is_some_and(|owner| owner != node) {
            &mut reasons.other_cpu
        } else if here(&self.ours.pooled)
            || from_pool
            || kernel.is_some_and(|at| self.theirs.pooled.0.get(&at) == Some(&size))
            || there(&self.theirs.pooled)
        {
            &mut reasons.pool
        } else if align > PAGE_SIZE {
            &mut reasons.aligned
        } else {
            &mut reasons.holes
        }
    }

    /// Records the areas that both sides allocated.
    fn record_areas(&mut self, event: &Event, ours: Option<u64>) {
        let Event::Alloc { addr, size, failed, .. } = *event else { return };
        if let Some(ours) = ours {
            self.ours.pooled.0.remove(&ours);
            self.ours.busy.0.insert(ours, size);
        }
        let possible = VaRange::from_size(Va::new(addr), size).is_some();
        self.tally.malformed += u64::from(!failed && !possible);
        if failed || !possible {
            if let Some(ours) = ours {
                self.free_ours(ours);
            }
            return;
        }
        self.kernel_took(addr, size);
        self.held.insert(addr, ours);
        self.theirs.busy.0.insert(addr, size);
    }

    /// Removes the areas in a range that the kernel allocates from the kernel's ledger.
    fn kernel_took(&mut self, start: u64, size: u64) {
        self.theirs.pooled.take_overlaps(start, size);
        for gone in [self.theirs.busy.take_overlaps(start, size), self.theirs.lazy.take_overlaps(start, size)]
            .concat()
        {
            self.tally.inferred += 1;
            if let Some(Some(ours)) = self.held.remove(&gone) {
                self.free_ours(ours);
            }
        }
    }

    /// Frees the area that has the kernel's address; returns false if its allocation is not recorded.
    fn free(&mut self, start: u64) -> bool {
        let Some(ours) = self.held.remove(&start) else { return false };
        if let Some(size) = self.theirs.busy.0.remove(&start) {
            self.theirs.lazy.0.insert(start, size);
        }
        if let Some(ours) = ours {
            self.free_ours(ours);
        }
        true
    }

    fn free_ours(&mut self, start: u64) {
        let freed = self.space.free_at(Va::new(start));
        debug_assert!(freed.is_ok(), "{freed:?}");
        if let Some(size) = self.ours.busy.0.remove(&start) {
            self.ours.lazy.0.insert(start, size);
        }
    }

    /// Updates our areas after a purge: none is lazy, and every area that is neither free nor busy is in a pool.
    fn note_purge(&mut self) {
        let mut out = std::mem::take(&mut self.ours.lazy.0);
        out.append(&mut self.ours.pooled.0);
        let pooled = |start: &u64| {
            let seen = self.space.areas_from(Va::new(*start)).next();
            seen.is_some_and(|seen| seen.range.start().get() == *start)
        };
        out.retain(|start, _| pooled(start));
        self.ours.pooled.0 = out;
    }

    fn chunk(&mut self, base: u64) {
        let known = self.table.chunk_bytes(base);
        let size = known.unwrap_or(CHUNK_BYTES);
        self.tally.inferred += 1;
        self.tally.chunks += 1;
        self.tally.chunks_guessed += u64::from(known.is_none());
        if VaRange::from_size(Va::new(base), size).is_none() {
            self.tally.malformed += 1;
            return;
        }
        let areas = [(0, size)];
        let window = self.window;
        let found = Congruent::new(&areas, 1 << size.trailing_zeros())
            .ok()
            .and_then(|request| self.space.alloc_congruent(&request.within(window)).ok());
        let Some(mut at) = found.map(Va::get) else {
            self.tally.malformed += 1;
            return;
        };
        self.ours.busy.0.insert(at, size);
        if at == base {
            self.tally.chunks_equal += 1;
        } else if let (Ok(request), Some(range)) =
            (Request::new(size, PAGE_SIZE), VaRange::from_size(Va::new(base), size))
            && let Ok(area) = self.space.alloc(0, &request.within(range))
        {
            // It must be at the kernel's address, or it would overlap later areas.
            self.free_ours(at);
            at = area.start().get();
            self.ours.busy.0.insert(at, size);
        }
        self.kernel_took(base, size);
        self.held.insert(base, Some(at));
        self.theirs.busy.0.insert(base, size);
    }
}

/// Returns the request of an event; `None` if no allocator accepts it.
fn request_of(event: &Event) -> Option<Request> {
    let Event::Alloc { size, align, vstart, vend, .. } = *event else { return None };
    let window = VaRange::new(Va::new(vstart), Va::new(vend))?;
    Some(Request::new(size, align).ok()?.within(window))
}

/// Returns true if a second attempt may follow a first one.
fn same_request(one: &Event, other: &Event) -> bool {
    request_of(one) == request_of(other)
}

/// Returns the areas that the kernel allocates while they are busy in the trace, in the order of the events. Each has
/// the event before which it was freed at the latest: the last purge that freed areas.
fn silent_frees(trace: &Trace, table: &Table) -> Vec<(usize, u64)> {
    let mut busy = Ranges::default();
    let mut began = BTreeMap::new();
    let mut last_purge = 0;
    let mut silent = Vec::new();
    for (at, event) in trace.events.iter().enumerate() {
        let taken = match *event {
            Event::Alloc { addr, size, failed: false, .. } => (addr, size),
            Event::ChunkCreate { base } => (base, table.chunk_bytes(base).unwrap_or(CHUNK_BYTES)),
            Event::Free { addr } => {
                busy.0.remove(&addr);
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
        for start in busy.take_overlaps(taken.0, taken.1) {
            let after = began.get(&start).map_or(0, |at| at + 1);
            silent.push((last_purge.max(after), start));
        }
        busy.0.insert(taken.0, taken.1);
        began.insert(taken.0, at);
    }
    silent.sort_by_key(|&(at, _)| at);
    silent
}

/// Replays a fuzzer's trace under every policy, and checks that the counts add up (RP1, RP2).
pub fn fuzz(trace: &Trace, table: &Table) {
    use crate::run_space::{Policy, run};
    for policy in [Policy::Linux, Policy::Default, Policy::OneLock] {
        let Ok(outcome) = run("fuzz", trace, table, policy, 3) else { continue };
        let row = &outcome.row;
        let differ = row.lower + row.higher + row.failed_differs;
        assert_eq!(row.equal + row.failed_both + differ, row.allocs, "RP1");
        assert_eq!(row.why.sum(), differ, "RP2");
    }
}

#[cfg(test)]
mod tests;
