//! The one loop of all replays: it reads the steps of a trace, and drives a target.
//!
//! # Theory
//! ```text
//!   trace, recording --steps--> replay() --alloc, free, purge, chunk, mark--> a target
//!                                   `-----after each step--> an observer: a film, a picture, or none
//! ```
//! | target | asks | shown by |
//! |---|---|---|
//! | [`Replay`](crate::Replay) | an index of holes | `vmlab replay`, with times |
//! | [`SpaceReplay`](crate::space::SpaceReplay) | a whole space | `--space`: the summary |
//! | `Diff` of [`diff`](crate::diff) | the model of a policy, beside one of the kernel | `--diff`: the detail |
//!
//! A target decides what it asks, and what follows from an answer that differs. The loop decodes and numbers the
//! attempts, and [`Columns`] counts the answers of each.
//!
//! # Invariants
//! - **RP1 one-column** every counted allocation of the trace is counted as exactly one of equal, lower, higher, failed-both
//!   and failed-differs, whatever the trace contains.

use serde::Serialize;
use std::cmp::Ordering;
use va_base::{Request, Va, VaRange};
use vmlab_machine::kernel_extent;
use vmlab_trace::Mark;
use vmlab_trace::percpu::PercpuEvent;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// Bytes of a percpu chunk's area if its size is unknown.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Number of differences that are stored.
const FIRST_DIFFERENCES_MAX: usize = 32;

/// The event of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The address space changed.
    Vm(Event),
    /// An event inside percpu chunks.
    Percpu(PercpuEvent),
    /// A mark of the recorder.
    Mark(Mark),
}

/// An event or a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Line of the trace, from 1; of a [`Trace`] only allocations have one, and others have 0.
    pub line: u64,
    /// Nanoseconds of the trace's clock; 0 if there is none.
    pub ns: u64,
    /// The CPU; 0 if none is named.
    pub cpu: u16,
    /// The event.
    pub what: What,
    /// True if it is counted, and false if it is only replayed.
    pub counted: bool,
}

/// An attempt of the kernel to allocate an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Its number among the attempts, from 1.
    pub number: u64,
    /// Index of its step.
    pub at: usize,
    /// Line of the trace.
    pub line: u64,
    /// Nanoseconds of the trace's clock.
    pub ns: u64,
    /// Its CPU.
    pub cpu: u16,
    /// Requested bytes.
    pub size: u64,
    /// Requested alignment.
    pub align: u64,
    /// The window: first address, and the one after its last.
    pub window: (u64, u64),
    /// The kernel's answer; `None` if it failed.
    pub kernel: Option<u64>,
    /// The request; `None` if no allocator accepts it.
    pub request: Option<Request>,
    /// True if the answer is counted, and false if it is only replayed.
    pub counted: bool,
}

/// A replay in progress, which the loop drives.
pub trait Target {
    /// Begins the step of index `at`.
    fn begin_step(&mut self, _at: usize) {}

    /// Compares an attempt to allocate.
    fn alloc(&mut self, attempt: &Attempt);

    /// Frees the area that has the kernel's address.
    fn free(&mut self, start: u64);

    /// Purges, as the kernel did on this CPU; `purged` is the number of its lazy areas.
    fn purge(&mut self, cpu: u16, purged: u64);

    /// Creates a percpu chunk. (A destroyed chunk becomes lazy by free events of its own.)
    fn chunk(&mut self, base: u64);

    /// Notes a mark of the recorder, with the index of its step.
    fn mark(&mut self, _at: usize, _mark: Mark) {}

    /// Ends the replay.
    fn end(&mut self) {}
}

/// Replays steps, each with its index, on a target. Calls `observe` after each event, with the index.
pub fn replay<T: Target>(
    target: &mut T,
    steps: impl IntoIterator<Item = (usize, Step)>,
    mut observe: impl FnMut(usize, &T),
) {
    let mut number = 0;
    for (at, Step { line, ns, cpu, what, counted }) in steps {
        target.begin_step(at);
        match what {
            What::Vm(Event::Alloc { addr, size, align, vstart, vend, failed }) => {
                number += 1;
                let window = VaRange::new(Va::new(vstart), Va::new(vend));
                let request = window.and_then(|window| Some(Request::new(size, align).ok()?.within(window)));
                let kernel = (!failed).then_some(addr);
                let window = (vstart, vend);
                let attempt =
                    Attempt { number, at, line, ns, cpu, size, align, window, kernel, request, counted };
                target.alloc(&attempt);
            }
            What::Vm(Event::Free { addr }) => target.free(addr),
            What::Vm(Event::Purge { purged }) => target.purge(cpu, purged),
            What::Vm(Event::ChunkCreate { base }) => target.chunk(base),
            What::Vm(Event::ChunkDestroy { .. }) | What::Percpu(_) => {}
            What::Mark(mark) => {
                target.mark(at, mark);
                continue;
            }
        }
        observe(at, target);
    }
    target.end();
}

/// Iterates over the steps of a trace, each with the index of its event; a mark has the index of the next event.
pub fn steps(trace: &Trace) -> impl Iterator<Item = (usize, Step)> + '_ {
    let (mut allocs, mut marks) = (0, trace.marks.iter().peekable());
    let mut step = move |at: usize| {
        let event = trace.events[at];
        let line = match event {
            Event::Alloc { .. } => {
                allocs += 1;
                trace.alloc_line(allocs).unwrap_or(0)
            }
            _ => 0,
        };
        let (ns, cpu, counted) = (trace.times_ns[at], trace.cpus[at], trace.is_counted(at));
        Step { line, ns, cpu, what: What::Vm(event), counted }
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        if let Some(&(_, mark)) = marks.next_if(|&&(before, _)| before <= at) {
            return Some((at, Step { line: 0, ns: 0, cpu: 0, what: What::Mark(mark), counted: true }));
        }
        let next = (at < trace.events.len()).then(|| (at, step(at)));
        at += 1;
        next
    })
}

/// Returns the window that most allocations of the trace name: the kernel's vmalloc range.
pub fn default_window(trace: &Trace) -> VaRange {
    window_or_all(trace.usual_window())
}

/// Returns a window, or the whole extent if it is none.
pub(crate) fn window_or_all(window: Option<(u64, u64)>) -> VaRange {
    window.and_then(|(start, end)| VaRange::new(Va::new(start), Va::new(end))).unwrap_or(kernel_extent())
}

/// The answers beside the kernel's. RP1: every allocation is in exactly one column. The fields, in this order, are part
/// of the objects that `--json` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Columns {
    /// The address was the kernel's.
    pub equal: u64,
    /// The address was lower.
    pub lower: u64,
    /// The address was higher.
    pub higher: u64,
    /// Both failed.
    pub failed_both: u64,
    /// Exactly one failed.
    pub failed_differs: u64,
}

impl Columns {
    /// Counts an answer.
    pub fn count(&mut self, kernel: Option<u64>, ours: Option<u64>) {
        *match (ours, kernel) {
            (None, None) => &mut self.failed_both,
            (Some(ours), Some(kernel)) => match ours.cmp(&kernel) {
                Ordering::Less => &mut self.lower,
                Ordering::Equal => &mut self.equal,
                Ordering::Greater => &mut self.higher,
            },
            (Some(_), None) | (None, Some(_)) => &mut self.failed_differs,
        } += 1;
    }

    /// Returns the number of answers that are the kernel's.
    pub fn same(&self) -> u64 {
        self.equal + self.failed_both
    }

    /// Returns the number of answers that differ.
    pub fn differ(&self) -> u64 {
        self.lower + self.higher + self.failed_differs
    }

    /// Checks RP1: the columns have this number of answers.
    ///
    /// # Errors
    /// If they have another.
    pub fn check(&self, allocs: u64) -> anyhow::Result<()> {
        let sum = self.same() + self.differ();
        anyhow::ensure!(sum == allocs, "RP1: {sum} of {allocs} allocations in columns");
        Ok(())
    }
}

/// The comparison of results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The answers.
    pub columns: Columns,
    /// Facts that events do not report and that were inferred.
    pub inferred: u64,
    /// Inferred facts about percpu chunks.
    pub chunks: u64,
    /// Chunks whose size was unknown and assumed to be 2 MiB.
    pub chunks_guessed: u64,
    /// Chunks whose base equals the one that the index finds.
    pub chunks_equal: u64,
    /// Events whose numbers no allocator would accept (sizes that are not pages, inverted windows).
    pub malformed: u64,
    /// The first answers that differ, as many as there is room for.
    pub first_differences: Vec<Differs>,
}

/// One answer that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    /// Number of the allocation, from 1.
    pub number: u64,
    /// Line of the trace, from 1.
    pub line: u64,
    /// Requested bytes.
    pub size: u64,
    /// Requested alignment.
    pub align: u64,
    /// The kernel's result.
    pub kernel: Option<u64>,
    /// Our result.
    pub ours: Option<u64>,
}

impl Tally {
    /// Counts an answer, unless its event is only replayed. Returns true if it differs.
    pub fn compare(&mut self, attempt: &Attempt, ours: Option<u64>) -> bool {
        let &Attempt { number, line, size, align, kernel, .. } = attempt;
        if !attempt.counted {
            return ours != kernel;
        }
        self.columns.count(kernel, ours);
        if ours != kernel && self.first_differences.len() < FIRST_DIFFERENCES_MAX {
            self.first_differences.push(Differs { number, line, size, align, kernel, ours });
        }
        ours != kernel
    }

    /// Counts a percpu chunk, and returns its bytes.
    pub(crate) fn chunk_bytes(&mut self, table: &Table, base: u64) -> u64 {
        let known = table.chunk_bytes(base);
        self.inferred += 1;
        self.chunks += 1;
        self.chunks_guessed += u64::from(known.is_none());
        known.unwrap_or(CHUNK_BYTES)
    }
}
