//! A trace under another policy: what its address space would have been.
//!
//! # Theory
//! The requests and frees of a trace go to a whole space, which decides by itself: where, and when to purge. Nothing is
//! corrected, and no address is compared. A purge of the trace is repeated only if fewer pages were lazy there than the
//! threshold: a caller asked for it, and would ask every policy. A failed attempt, the purge after it and the second
//! attempt are one request.
//!
//! After each event the space is measured, so that peaks are those of every event. All that is outside of the trace's
//! windows is taken first: the largest hole is then the largest in a window.
//!
//! # The model of a stall
//! No trace has the time of a flush, and an emulated processor's would mean nothing. So a stall is modelled:
//! [`FLUSH_NS`] for each CPU of a flush, which interrupts it, and [`AREA_NS`] for each area that a purge returns. A
//! policy that purges in slices releases its lock between them, so that its longest stall has the areas of one slice.

use crate::engine::{Attempt, CHUNK_BYTES, Target, default_window, replay, steps};
use crate::policy::{Linux616, Policy};
use crate::space::silent_frees;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_sim::areas::AreaMap;
use va_space::config::{Config, Linux69, OneLock52, Standard};
use va_space::{NODES_LIMIT, Purge, Stats, VmapSpace};
use va_tree::Congruent;
use vmlab_machine::{LabMachine, PlainLock, Work, kernel_extent};
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// Modelled nanoseconds of a flush for each CPU.
pub const FLUSH_NS: u64 = 2_000;
/// Modelled nanoseconds of an area that a purge returns.
pub const AREA_NS: u64 = 150;

/// A trace under one policy. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Name of the policy.
    pub policy: &'static str,
    /// Nodes of the space.
    pub nodes: u32,
    /// Requests: a failed attempt and its repetition are one.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that failed in the kernel, and not here.
    pub saved: u64,
    /// The most bytes of the window outside of its largest hole.
    pub span_bytes: u64,
    /// Bytes of the largest hole at its smallest.
    pub hole_bytes: u64,
    /// The most holes.
    pub holes: u64,
    /// The most bytes that were kept apart: lazy, and in pools.
    pub kept_bytes: u64,
    /// Purges.
    pub purges: u64,
    /// Flushes, each of all CPUs.
    pub flushes: u64,
    /// Areas that purges returned.
    pub purged: u64,
    /// Modelled nanoseconds of all stalls.
    pub stall_ns: u64,
    /// Modelled nanoseconds of the longest stall.
    pub longest_stall_ns: u64,
    /// Frees of areas from before the trace, and events that no space accepts.
    pub passed_over: u64,
}

/// The areas that no policy moves: those that stood before the trace and stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// Areas in the window.
    pub areas: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes from the start of the window to the end of the highest that is not a percpu chunk at its top.
    pub span_bytes: u64,
}

/// Returns the areas that stand from before the trace to its end.
pub fn pinned(trace: &Trace) -> Pinned {
    let window = default_window(trace);
    let freed: BTreeSet<u64> = trace
        .events
        .iter()
        .filter_map(|event| match *event {
            Event::Free { addr } => Some(addr),
            _ => None,
        })
        .collect();
    let mut pinned = Pinned::default();
    let middle = window.start().get() + window.len_bytes() / 2;
    for area in trace.standing.iter().filter(|area| !area.lazy && !freed.contains(&area.start)) {
        if !window.contains(Va::new(area.start)) {
            continue;
        }
        pinned.areas += 1;
        pinned.bytes += area.size;
        if area.start < middle {
            pinned.span_bytes = pinned.span_bytes.max(area.start + area.size - window.start().get());
        }
    }
    pinned
}

/// Runs a trace under a policy.
///
/// # Errors
/// If the space cannot be created, or a check of its invariants fails at the end.
pub fn run(trace: &Trace, table: &Table, policy: Policy, nodes: u32) -> Result<Row> {
    Ok(run_as(trace, table, policy, nodes, Record::Nothing)?.0)
}

/// Runs a trace under a policy, and returns also the trace that it would have left: its own addresses and purges.
///
/// # Errors
/// As [`run`].
pub fn record(trace: &Trace, table: &Table, policy: Policy, nodes: u32) -> Result<(Row, Trace)> {
    let (row, events) = run_as(trace, table, policy, nodes, Record::Events)?;
    Ok((row, trace.with_events(&events)))
}

/// The record that a run leaves beside its figures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    Nothing,
    Events,
}

/// Events, each after the index of the trace's event that led to it.
type Events = Vec<(usize, Event)>;

fn run_as(trace: &Trace, table: &Table, policy: Policy, nodes: u32, record: Record) -> Result<(Row, Events)> {
    let done = match policy {
        Policy::Linux69 => run_on::<Linux69>(trace, table, nodes, record),
        Policy::Linux616 => run_on::<Linux616>(trace, table, nodes, record),
        Policy::OneLock52 => run_on::<OneLock52>(trace, table, nodes, record),
        Policy::Standard => run_on::<Standard>(trace, table, nodes, record),
    };
    let (row, events) = done.with_context(|| format!("policy {}", policy.name()))?;
    Ok((Row { policy: policy.name(), ..row }, events))
}

fn run_on<C: Config>(trace: &Trace, table: &Table, nodes: u32, record: Record) -> Result<(Row, Events)> {
    let mut run = Run::<C>::new(trace, table, nodes)?;
    run.recorded = (record == Record::Events).then(Vec::new);
    replay(&mut run, steps(trace), |_, _| {});
    run.space.validate().context("the space is broken")?;
    Ok((run.row, run.recorded.unwrap_or_default()))
}

/// A run in progress.
struct Run<'a, C: Config> {
    trace: &'a Trace,
    /// True if the step is counted, and if it is in the selected time.
    counted: bool,
    shown: bool,
    space: VmapSpace<LabMachine<PlainLock>, C>,
    cpus: u32,
    table: &'a Table,
    window: VaRange,
    /// Our address and the size of each of the kernel's areas, by its address; `None` if ours failed.
    areas: BTreeMap<u64, Option<(u64, u64)>>,
    /// The request of each CPU whose last attempt failed, and whether it is counted.
    failed: BTreeMap<u16, (Request, bool)>,
    /// Pages that are lazy in the kernel.
    lazy: u64,
    silent: Vec<(usize, u64)>,
    last: Stats,
    row: Row,
    /// The index of the event, and what the policy does; none if it is not recorded.
    at: usize,
    recorded: Option<Events>,
}

impl<'a, C: Config> Run<'a, C> {
    fn new(trace: &'a Trace, table: &'a Table, nodes: u32) -> Result<Self> {
        let window = default_window(trace);
        let cpus = nodes.clamp(1, NODES_LIMIT);
        let machine = LabMachine::<PlainLock>::new(cpus, cpus, Work::Here);
        let space = VmapSpace::new(kernel_extent(), window, machine)?;
        let mut run = Self {
            trace,
            counted: trace.is_whole(),
            shown: trace.begins() == 0,
            cpus,
            table,
            window,
            areas: BTreeMap::new(),
            failed: BTreeMap::new(),
            lazy: 0,
            silent: silent_frees(trace, table),
            last: Stats::default(),
            row: Row { nodes: space.nodes(), hole_bytes: u64::MAX, ..Row::default() },
            at: 0,
            recorded: None,
            space,
        };
        run.stand_on(trace);
        Ok(run)
    }

    /// Takes the areas from before the trace, and all that is outside of its windows.
    fn stand_on(&mut self, trace: &Trace) {
        let mut lazy = Vec::new();
        for area in &trace.standing {
            let range = VaRange::from_size(Va::new(area.start), area.size);
            if range.is_none_or(|range| self.space.alloc_at(range).is_err()) {
                self.row.passed_over += 1;
                continue;
            }
            self.areas.insert(area.start, Some((area.start, area.size)));
            if area.lazy {
                lazy.push(area.start);
            }
        }
        let mut windows = AreaMap::<()>::default();
        for event in &trace.events {
            if let Event::Alloc { vstart, vend, .. } = *event
                && windows.overlap(vstart, 1).is_none_or(|(start, size, _)| start + size < vend)
                && vstart < vend
            {
                let (mut start, mut end) = (vstart, vend);
                for (at, size, ()) in windows.take_overlaps(vstart, vend - vstart) {
                    (start, end) = (start.min(at), end.max(at.saturating_add(size)));
                }
                windows.replace(start, end - start, ());
            }
        }
        if windows.is_empty() {
            windows.replace(self.window.start().get(), self.window.len_bytes(), ());
        }
        let (low, high) = kernel_extent().whole_pages();
        let mut below = low * PAGE_SIZE;
        let ends = windows.iter().map(|(start, size, _)| (start, start.saturating_add(size)));
        for (start, end) in ends.chain([(high * PAGE_SIZE, u64::MAX)]).collect::<Vec<_>>() {
            self.take_holes(below, start / PAGE_SIZE * PAGE_SIZE);
            below = below.max(end / PAGE_SIZE * PAGE_SIZE);
        }
        self.last = self.space.stats();
        for start in lazy {
            self.free(start);
        }
    }

    /// Takes what is free in a range.
    fn take_holes(&mut self, start: u64, end: u64) {
        let mut at = Va::new(start);
        while at.get() < end {
            let next =
                self.space.find_above(at).map(|area| area.range).filter(|area| area.start().get() < end);
            let hole = VaRange::new(at, next.map_or(Va::new(end), |area| area.start().max(at)));
            if let Some(hole) = hole.filter(|hole| !hole.is_empty()) {
                let taken = self.space.alloc_at(hole);
                debug_assert!(taken.is_ok(), "{taken:?}");
            }
            let Some(next) = next else { break };
            at = next.end();
        }
    }

    fn record(&mut self, event: Event) {
        let at = self.at;
        if let Some(recorded) = &mut self.recorded {
            recorded.push((at, event));
        }
    }

    /// Measures the space after a call.
    fn measure(&mut self) {
        let stats = self.space.stats();
        let Stats { largest_hole, holes, lazy_pages, pooled_pages, purges, flushes, purged_areas, .. } =
            stats;
        let last = std::mem::replace(&mut self.last, stats);
        if purged_areas > last.purged_areas {
            self.record(Event::Purge { purged: purged_areas - last.purged_areas });
        }
        let row = &mut self.row;
        let hole = largest_hole.get() * PAGE_SIZE;
        if self.shown {
            row.hole_bytes = row.hole_bytes.min(hole);
            row.span_bytes = row.span_bytes.max(self.window.len_bytes().saturating_sub(hole));
            row.holes = row.holes.max(holes);
            row.kept_bytes = row.kept_bytes.max((lazy_pages.get() + pooled_pages.get()) * PAGE_SIZE);
        }
        if !self.counted {
            return;
        }
        let flushed = flushes - last.flushes;
        let areas = purged_areas - last.purged_areas;
        row.purges += purges - last.purges;
        row.flushes += flushed;
        row.purged += areas;
        let flush = FLUSH_NS * u64::from(self.cpus);
        row.stall_ns += flushed * flush + areas * AREA_NS;
        let longest = flushed.min(1) * flush + areas.min(C::SLICE_AREAS) * AREA_NS;
        row.longest_stall_ns = row.longest_stall_ns.max(longest);
    }

    /// Frees ours of the kernel's area, and returns its bytes.
    fn free_ours(&mut self, start: u64) -> Option<u64> {
        let (ours, size) = self.areas.remove(&start)??;
        let freed = self.space.free_at(Va::new(ours));
        debug_assert!(freed.is_ok(), "{freed:?}");
        self.record(Event::Free { addr: ours });
        Some(size)
    }

    fn request(&mut self, cpu: u16, request: &Request, kernel: Option<u64>) {
        let counted = u64::from(self.counted);
        self.row.requests += counted;
        let size = request.size().get() * PAGE_SIZE;
        let ours = self.space.alloc(cpu.into(), request).ok().map(|area| area.start().get());
        self.row.failed += counted * u64::from(ours.is_none());
        match (kernel, ours) {
            (Some(kernel), ours) => {
                self.free_ours(kernel);
                self.areas.insert(kernel, ours.map(|ours| (ours, size)));
                if let (Some(ours), Some(&Event::Alloc { size, align, vstart, vend, .. })) =
                    (ours, self.trace.events.get(self.at))
                {
                    self.record(Event::Alloc { addr: ours, size, align, vstart, vend, failed: false });
                }
            }
            (None, Some(ours)) => {
                self.row.saved += counted;
                // The trace goes on as if the request had failed.
                let freed = self.space.free_at(Va::new(ours));
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
            (None, None) => {}
        }
    }

    fn conclude_failed(&mut self, cpu: u16) {
        if let Some((request, counted)) = self.failed.remove(&cpu) {
            let now = std::mem::replace(&mut self.counted, counted);
            self.request(cpu, &request, None);
            self.counted = now;
        }
    }
}

impl<C: Config> Target for Run<'_, C> {
    fn begin_step(&mut self, at: usize) {
        self.at = at;
        let shown = at >= self.trace.begins();
        if shown && !self.shown {
            // The state in which the selected time begins.
            self.shown = true;
            self.measure();
        }
        self.counted = self.trace.is_counted(at);
        while let Some((_, start)) = self.silent.pop_if(|(before, _)| *before <= at) {
            self.free_ours(start);
        }
    }

    fn alloc(&mut self, attempt: &Attempt) {
        let cpu = attempt.cpu;
        let Some(request) = attempt.request else {
            self.row.passed_over += 1;
            return;
        };
        if self.failed.get(&cpu).is_some_and(|(before, _)| *before == request) {
            self.failed.remove(&cpu);
        } else {
            self.conclude_failed(cpu);
            if attempt.kernel.is_none() {
                self.failed.insert(cpu, (request, attempt.counted));
                return;
            }
        }
        self.request(cpu, &request, attempt.kernel);
        self.measure();
    }

    fn free(&mut self, start: u64) {
        let lazy = self.space.lazy_pages();
        match self.free_ours(start) {
            Some(size) => self.lazy += size / PAGE_SIZE,
            None => self.row.passed_over += 1,
        }
        let now = self.space.lazy_pages();
        if now < lazy {
            self.measure();
        } else {
            // No purge: nothing else changed, and statistics take longer than most calls.
            let kept = (now.get() + self.last.pooled_pages.get()) * PAGE_SIZE;
            self.row.kept_bytes = self.row.kept_bytes.max(if self.shown { kept } else { 0 });
        }
    }

    fn purge(&mut self, cpu: u16, purged: u64) {
        // The kernel's own purges, by its threshold or for a failed attempt, are the policy's to decide.
        let own = self.lazy > va_space::lazy::lazy_max_pages(self.cpus).get();
        if purged > 0 {
            self.lazy = 0;
        }
        if !own && !self.failed.contains_key(&cpu) {
            self.space.purge(Purge::Drain);
            self.measure();
        }
    }

    fn chunk(&mut self, base: u64) {
        let size = self.table.chunk_bytes(base).unwrap_or(CHUNK_BYTES);
        let areas = [(0, size)];
        let found = Congruent::new(&areas, 1 << size.trailing_zeros().min(63))
            .ok()
            .and_then(|request| self.space.alloc_congruent(&request.within(self.window)).ok());
        self.row.requests += u64::from(self.counted);
        self.row.failed += u64::from(self.counted && found.is_none());
        self.free_ours(base);
        self.areas.insert(base, found.map(|at| (at.get(), size)));
        if let Some(at) = found {
            self.record(Event::ChunkCreate { base: at.get() });
        }
        self.measure();
    }

    fn end(&mut self) {
        for cpu in self.failed.keys().copied().collect::<Vec<_>>() {
            self.conclude_failed(cpu);
        }
        self.measure();
    }
}
