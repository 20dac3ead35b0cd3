//! The differences between a kernel and a policy, and their causes.
//!
//! # Theory
//! ```text
//!   table before ---> busy, lazy            event ---> the policy answers
//!   mark "drained" -> pools are empty                  the kernel's answer, from the trace
//!                                                      not the same? one cause, from both ledgers; then the policy's
//!                                                      ledger gets the kernel's answer, unless `resync` is off
//! ```
//! The state before the trace comes from `vmallocinfo`: the busy areas, and the lazy ones, each in the node whose list
//! shows it. Facts that it does not have are reported, counted, and are a separate cause. They are pools (unless a mark
//! shows that they were emptied), the CPUs that allocated busy areas, and the shape of the tree of holes.
//!
//! With **resynchronising** one difference does not cause the next, so that all are independent. Without it, each side
//! continues with its own addresses, and consequences of an earlier difference are counted as such.
//!
//! # Purges
//! A purge empties a part of the pools, takes the lists of lazy areas, flushes, and only then prints its event, with the
//! number of areas. Areas that were freed meanwhile stay lazy. So if fewer areas were purged than are lazy, the purge
//! began before the free of the first area that is left. There the pools decay, and the areas return at the event. A
//! purge of nothing decays the pools, too (Linux 6.12, `mm/vmalloc.c`, `__purge_vmap_area_lazy`).
//!
//! Both ledgers are the reference model of a space, [`SpaceModel`], which can be corrected. Its property tests compare
//! it with the space itself.

pub mod cause;
pub mod follow;
pub mod offsets;
pub mod recording;
mod report;
mod why;

pub use report::{Divergence, EndCheck, Known, Report, VERSION};

use self::cause::Cause;
use self::recording::{Area, Recording};
use self::why::{Lesson, Why};
use crate::engine::{Attempt, CHUNK_BYTES, Step, Target, What, replay};
use crate::policy::{Linux616, Policy};
use anyhow::{Context as _, Result};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_sim::space_model::{Answer, Owner, Place, SpaceModel};
use va_space::config::{Config, Linux69, OneLock52, Standard};
use vmlab_machine::{LabMachine, PlainLock, Work, kernel_extent};
use vmlab_trace::Event;
use vmlab_trace::Mark;
use vmlab_trace::jsonl::When;
use vmlab_trace::standing::{Standing, nodes_of_lists, standing};

/// The options of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Correct the policy's ledger after each difference.
    pub resync: bool,
    /// CPUs of the machine: nodes of the kernel, and of the policy.
    pub cpus: u32,
    /// The most differences to list.
    pub differences_max: usize,
    /// The policy of the kernel.
    pub kernel: Policy,
}

/// Replays a recording under a policy.
///
/// # Errors
/// If a ledger cannot be created, or breaks its invariants at the end.
pub fn run(recording: &Recording, policy: Policy, options: Options) -> Result<Report> {
    let name = policy.name();
    let report = match options.kernel {
        Policy::OneLock52 => run_beside::<OneLock52>(recording, policy, options),
        Policy::Linux616 => run_beside::<Linux616>(recording, policy, options),
        // No release has our policy.
        Policy::Linux69 | Policy::Standard => run_beside::<Linux69>(recording, policy, options),
    };
    let mut report = report.with_context(|| format!("policy {name}"))?;
    // Of Linux's policies, which have one percpu policy, the kernel's own compares offsets.
    let linux = match policy {
        Policy::Standard => Some(false),
        Policy::Linux69 | Policy::Linux616 | Policy::OneLock52 => (policy == options.kernel).then_some(true),
    };
    let offsets = linux
        .filter(|_| recording.has_percpu())
        .map(|linux| offsets::run(recording, linux, options.differences_max));
    report.offsets = offsets.transpose().with_context(|| format!("percpu offsets under {name}"))?;
    Ok(report)
}

/// Replays a recording of a kernel of policy `K`.
fn run_beside<K: Config>(recording: &Recording, policy: Policy, options: Options) -> Result<Report> {
    let name = policy.name();
    match policy {
        Policy::Linux69 => run_on::<Linux69, K>(recording, name, options),
        Policy::Linux616 => run_on::<Linux616, K>(recording, name, options),
        Policy::OneLock52 => run_on::<OneLock52, K>(recording, name, options),
        Policy::Standard => run_on::<Standard, K>(recording, name, options),
    }
}

fn run_on<C: Config, K: Config>(
    recording: &Recording,
    policy: &'static str,
    options: Options,
) -> Result<Report> {
    let mut diff = Diff::<C, K>::new(recording, options)?;
    diff.report.policy = policy;
    diff.run();
    diff.report.causes_incomplete = diff.spent.get();
    diff.policy.validate().context("the policy's books are broken")?;
    diff.kernel.validate().context("the kernel's books are broken")?;
    let Report { columns, allocs, causes, .. } = &diff.report;
    columns.check(*allocs)?;
    // Checks DF1.
    let caused: u64 = causes.values().sum();
    anyhow::ensure!(caused == columns.differ(), "DF1: {caused} causes of {}", columns.differ());
    Ok(diff.report)
}

/// The ledger of a policy: the model of a space.
type Ledger<C> = SpaceModel<C, <C as Config>::Index<LabMachine<PlainLock>>>;

/// A comparison in progress.
struct Diff<'a, C: Config, K: Config> {
    recording: &'a Recording,
    options: Options,
    policy: Ledger<C>,
    kernel: Ledger<K>,
    /// The policy's address of an area that differs from the kernel's; `None` if its allocation failed.
    elsewhere: BTreeMap<u64, Option<u64>>,
    /// The steps before which a purge begins, the last first.
    begins: Vec<usize>,
    /// True if a purge has begun.
    begun: bool,
    /// Areas that were allocated before their events, which come later.
    early: BTreeSet<u64>,
    /// CPUs whose last attempt failed.
    failed: BTreeSet<u16>,
    /// The budget of steps that causes may still visit, so that a hostile recording of differences ends.
    looks: Cell<u64>,
    /// True if that budget did not suffice.
    spent: Cell<bool>,
    report: Report,
}

/// Steps that all causes of a replay may visit together.
const LOOKS_MAX: u64 = 1 << 30;

/// Creates the ledger of an empty space of `cpus` CPUs.
fn ledger<C: Config>(window: VaRange, cpus: u32) -> Result<Ledger<C>> {
    let machine = LabMachine::new(1, u32::MAX, Work::Elsewhere);
    Ok(SpaceModel::new(C::index(kernel_extent(), window, machine)?, cpus))
}

impl<'a, C: Config, K: Config> Diff<'a, C, K> {
    fn new(recording: &'a Recording, options: Options) -> Result<Self> {
        let window = recording.usual_window();
        let (policy, kernel) = (ledger::<C>(window, options.cpus)?, ledger::<K>(window, options.cpus)?);
        let report = Report { nodes: policy.nodes(), resync: options.resync, ..Report::default() };
        let (elsewhere, failed) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self {
            recording,
            options,
            policy,
            kernel,
            elsewhere,
            early: BTreeSet::new(),
            failed,
            begins: Vec::new(),
            begun: false,
            looks: Cell::new(LOOKS_MAX),
            spent: Cell::new(false),
            report,
        })
    }

    fn run(&mut self) {
        let first = self.begin();
        let steps = self.recording.steps.iter().copied().enumerate().skip(first);
        replay(self, steps, |_, _| {});
    }

    /// Loads the table before the trace, and returns the step at which it was read.
    fn begin(&mut self) -> usize {
        let steps = &self.recording.steps;
        let position = |mark| steps.iter().position(|step| step.what == What::Mark(mark));
        let opens = position(Mark::Opens(When::Begin));
        let first = opens.unwrap_or(0);
        let closes = position(Mark::Closes(When::Begin)).unwrap_or(first).max(first);
        // Pools are empty after a drain, until a purge fills them.
        let is_purge = |step: &&Step| matches!(step.what, What::Vm(Event::Purge { purged }) if purged > 0);
        let before = steps[..first].iter().rev().take_while(|step| !is_purge(step));
        self.begins = begins(steps, 0, 0);
        let Some(table) = &self.recording.begin else { return 0 };
        let known = &mut self.report.known;
        known.table = true;
        known.pools = before.clone().any(|step| step.what == What::Mark(Mark::Drained));
        known.unusable = table.bad;
        let events = steps[first..closes].iter().filter_map(|step| match step.what {
            What::Vm(event) => Some(event),
            What::Percpu(_) | What::Mark(_) => None,
        });
        let rows = table.areas.iter().map(|area| (area.start, area.size, area.lazy));
        let areas = standing(rows, events);
        self.stand_on(&areas, first);
        first
    }

    /// Puts the areas that stood before the first step, of this index, into both ledgers.
    fn stand_on(&mut self, areas: &[Standing], first: usize) {
        let lazy = areas.iter().filter(|area| area.lazy).count();
        self.begins = begins(&self.recording.steps, first, lazy);
        let node_of = nodes_of_lists(areas, self.kernel.nodes());
        let window = self.recording.usual_window();
        for area in areas {
            let &Standing { start, size, lazy, .. } = area;
            let node = node_of(area);
            let free = self.kernel.place(start, size) == Place::Hole;
            let owner = match node {
                Some(node) => Owner::Node(node),
                // Chunks, modules and the like have no owner.
                None if !window.contains(Va::new(start)) => Owner::NoNode,
                None => Owner::Unknown,
            };
            let put = free
                && if lazy {
                    self.kernel.put_lazy(start, size, node) && self.policy.put_lazy(start, size, node)
                } else {
                    self.kernel.put(start, size, owner).is_some()
                        && self.policy.put(start, size, owner).is_some()
                };
            let known = &mut self.report.known;
            match (put, !lazy) {
                (false, _) => known.unusable += 1,
                (true, true) => known.busy += 1,
                (true, false) => {
                    known.lazy += 1;
                    known.lazy_with_node += u64::from(node.is_some());
                }
            }
        }
    }

    /// Corrects an error of the ledgers, so that it is counted once.
    fn learn(&mut self, lesson: Lesson) {
        match lesson {
            Lesson::None => {}
            Lesson::Pool { node, size, until } => {
                self.kernel.forget(node, size, until);
                if self.options.resync && C::ORDER == K::ORDER && node < self.policy.nodes() {
                    self.policy.forget(node, size, until);
                }
            }
            Lesson::Taken { start, size } | Lesson::Early { start, size } => {
                if matches!(lesson, Lesson::Early { .. }) {
                    self.early.insert(start);
                }
                self.kernel.put(start, size, Owner::Unknown);
                if self.options.resync {
                    self.policy.put(start, size, Owner::Unknown);
                }
            }
        }
    }

    /// Frees an area that was allocated before its event, at its event: both sides are now asked for it.
    fn forget_early(&mut self, start: u64) {
        if !self.early.remove(&start) {
            return;
        }
        let answer = Answer { start, pool: None };
        self.kernel.undo(answer);
        if self.options.resync {
            self.policy.undo(answer);
        }
    }

    /// Records what both sides allocated.
    fn record_areas(&mut self, attempt: &Attempt, answer: Option<Answer>) {
        let &Attempt { cpu, size, .. } = attempt;
        let (Some(request), Some(kernel)) = (attempt.request, attempt.kernel) else { return };
        let owner = self.kernel.owner_for(cpu.into(), &request);
        if self.kernel.put(kernel, size, owner).is_none() {
            self.report.malformed += 1;
            return;
        }
        // An area that was here was freed without an event.
        if let Some(Some(stale)) = self.elsewhere.remove(&kernel) {
            self.policy.free(stale);
        }
        let ours = answer.map(|answer| answer.start);
        if ours == Some(kernel) {
            return;
        }
        let owner = self.policy.owner_for(cpu.into(), &request);
        if self.options.resync {
            // `undo` restored its ledger, which now also gets the kernel's address.
            self.policy.put(kernel, size, owner);
        } else {
            if let Some(ours) = ours {
                self.policy.put(ours, size, owner);
            }
            self.elsewhere.insert(kernel, ours);
        }
    }

    /// Returns the bytes of the chunk at `base`, by the table after or before.
    fn chunk_bytes(&self, base: u64) -> u64 {
        let tables = [&self.recording.end, &self.recording.begin];
        let mut areas = tables.into_iter().flatten().flat_map(|table| &table.areas);
        areas.find(|area| area.start == base).map_or(CHUNK_BYTES, |area| area.size)
    }

    /// Compares the kernel's ledger with the table after. Areas with events while it is read are excluded.
    fn end_check(&mut self, at: usize) {
        let Some(table) = self.recording.end.as_ref().filter(|_| !self.recording.cut) else { return };
        let mut moving = BTreeSet::new();
        for step in &self.recording.steps[at..] {
            match step.what {
                What::Vm(Event::Alloc { addr, .. } | Event::Free { addr }) => {
                    moving.insert(addr);
                }
                What::Mark(Mark::Closes(When::End)) => break,
                _ => {}
            }
        }
        let mut check = EndCheck::default();
        let mut seen = BTreeSet::new();
        let held = self.kernel.areas();
        for &Area { start, size, lazy } in table.areas.iter().filter(|area| !moving.contains(&area.start)) {
            check.areas += 1;
            seen.insert(start);
            let bytes = if lazy {
                held.lazy.get(start).map(|(bytes, _)| bytes)
            } else {
                held.busy.get(start).map(|(bytes, _)| bytes)
            };
            check.agree += u64::from(bytes == Some(size));
        }
        let starts = held.busy.iter().map(|(start, ..)| start);
        let starts = starts.chain(held.lazy.iter().map(|(start, ..)| start));
        check.only_in_ledger =
            starts.filter(|start| !seen.contains(start) && !moving.contains(start)).count() as u64;
        self.report.end = Some(check);
    }
}

/// Returns the steps before which the purges begin that free fewer areas than are lazy, the last first: areas that were
/// freed after a purge took its lists stay lazy. `lazy` is the number of lazy areas before the step `first`.
fn begins(steps: &[Step], first: usize, lazy: usize) -> Vec<usize> {
    let mut frees: VecDeque<usize> = std::iter::repeat_n(first, lazy).collect();
    let mut begins = Vec::new();
    for (at, step) in steps.iter().enumerate().skip(first) {
        match step.what {
            What::Vm(Event::Free { .. }) => frees.push_back(at),
            What::Vm(Event::Purge { purged }) if purged > 0 => {
                let purged = usize::try_from(purged).unwrap_or(usize::MAX);
                if purged < frees.len() {
                    begins.push(frees[purged]);
                }
                frees.drain(..purged.min(frees.len()));
            }
            _ => {}
        }
    }
    begins.reverse();
    begins
}

impl<C: Config, K: Config> Target for Diff<'_, C, K> {
    fn begin_step(&mut self, at: usize) {
        while self.begins.pop_if(|begins| *begins <= at).is_some() {
            self.kernel.begin_purge(false);
            self.policy.begin_purge(false);
            self.begun = true;
            self.report.purges_begun += 1;
        }
    }

    fn alloc(&mut self, attempt: &Attempt) {
        let &Attempt { number, line, ns, cpu, size, align, window, kernel, request, .. } = attempt;
        if let Some(kernel) = kernel {
            self.forget_early(kernel);
        }
        let answer = request.and_then(|request| self.policy.try_alloc(cpu.into(), &request));
        let ours = answer.map(|answer| answer.start);
        let report = &mut self.report;
        report.malformed += u64::from(request.is_none());
        if attempt.counted {
            report.allocs += 1;
            report.columns.count(kernel, ours);
            let is_pooled = answer.is_some_and(|answer| answer.pool.is_some());
            report.equal_from_pool += u64::from(ours == kernel && is_pooled);
        }
        if ours != kernel {
            // Looked up in the state before either side allocated.
            if let Some(answer) = answer {
                self.policy.undo(answer);
            }
            let room = self.report.divergences.len() < self.options.differences_max;
            let wanted = attempt.counted && room;
            let Why { cause, lesson, words } = self.why(attempt, answer);
            let why = wanted.then(words);
            self.learn(lesson);
            if attempt.counted {
                *self.report.causes.entry(cause).or_default() += 1;
            }
            self.report.divergences.extend(why.map(|why| {
                let policy = ours;
                Divergence { number, line, ns, cpu, size, align, window, kernel, policy, cause, why }
            }));
        }
        if kernel.is_none() {
            self.failed.insert(cpu);
        } else {
            self.failed.remove(&cpu);
        }
        self.record_areas(attempt, answer);
    }

    fn free(&mut self, start: u64) {
        self.early.remove(&start);
        let known = self.kernel.free(start);
        self.report.frees_unknown += u64::from(!known);
        let ours = self.elsewhere.remove(&start).unwrap_or(known.then_some(start));
        if let Some(ours) = ours {
            self.policy.free(ours);
        }
    }

    fn purge(&mut self, cpu: u16, purged: u64) {
        let full = self.failed.contains(&cpu);
        let most = if full { u64::MAX } else { purged };
        self.report.purges += u64::from(purged > 0);
        self.report.purged = self.report.purged.saturating_add(purged);
        // A purge of nothing decays the pools, too.
        if self.begun {
            self.begun = false;
        } else {
            self.kernel.begin_purge(full);
            self.policy.begin_purge(full);
        }
        self.report.purged_ledger += self.kernel.end_purge(full, most);
        self.policy.end_purge(full, most);
    }

    fn chunk(&mut self, base: u64) {
        let size = self.chunk_bytes(base);
        self.report.chunks += 1;
        self.report.chunks_equal += u64::from(self.policy.find_chunk(size) == Some(base));
        if self.kernel.put(base, size, Owner::NoNode).is_none()
            || self.policy.put(base, size, Owner::NoNode).is_none()
        {
            self.report.malformed += 1;
        }
    }

    fn mark(&mut self, at: usize, mark: Mark) {
        match mark {
            Mark::Drained => {
                self.policy.shrink();
                self.kernel.shrink();
            }
            Mark::Opens(When::End) => self.end_check(at),
            _ => {}
        }
    }

    fn end(&mut self) {
        if self.report.end.is_none() {
            self.end_check(self.recording.steps.len());
        }
    }
}

/// Returns the cause of an attempt's answer after a recording, and whether it corrects no ledger. For a test of the
/// cause that no policy of ours has.
///
/// # Errors
/// If a ledger cannot be created.
#[doc(hidden)]
pub fn cause_after(recording: &Recording, attempt: &Attempt, answer: Answer) -> Result<(Cause, bool)> {
    let options = Options { resync: true, cpus: 2, differences_max: 0, kernel: Policy::Linux616 };
    let mut diff = Diff::<OneLock52, Linux616>::new(recording, options)?;
    diff.run();
    let Why { cause, lesson, .. } = diff.why(attempt, Some(answer));
    Ok((cause, lesson == Lesson::None))
}

/// Replays a fuzzer's recording under every policy, with and without resynchronising, and checks the ledgers.
///
/// # Panics
/// If a check fails, or the columns do not add up.
pub fn fuzz(recording: &Recording) {
    for (policy, resync) in Policy::ALL.into_iter().flat_map(|policy| [(policy, true), (policy, false)]) {
        let options = Options { resync, cpus: 3, differences_max: 4, kernel: Policy::Linux616 };
        // A ledger of the whole extent can always be created, so every error is a broken rule.
        if let Err(error) = run(recording, policy, options) {
            panic!("{error:#}");
        }
    }
}

/// Converts a size to pages, for messages.
fn pages(size: u64) -> u64 {
    size / PAGE_SIZE
}
