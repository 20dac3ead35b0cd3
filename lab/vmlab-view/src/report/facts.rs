//! The figures of a trace as one object, for programs.

use super::heat::{Peaks, Picture};
use crate::map::measure::{Amount, CallerRow};
use serde::Serialize;
use std::collections::BTreeMap;
use va_base::PAGE_SIZE;
use vmlab_trace::{Event, Trace};

/// The version of the object. It grows when a key changes its meaning or goes.
pub const VERSION: u32 = 1;

/// A maximum, and the number of events after which it is first reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The value.
    pub value: u64,
    /// Events before it; 0 for the state before the first.
    pub event: u64,
}

/// The maxima over the states before and after each event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeakFacts {
    /// Bytes of busy areas.
    pub busy_bytes: Peak,
    /// Busy areas.
    pub busy_areas: Peak,
    /// Pages of lazy areas.
    pub lazy_pages: Peak,
    /// Lazy areas.
    pub lazy_areas: Peak,
    /// Holes of the whole space.
    pub holes: Peak,
    /// Bytes of the window outside of its largest hole.
    pub span_bytes: Peak,
}

/// The state after the last event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndFacts {
    /// Busy areas.
    pub busy: Amount,
    /// Lazy areas.
    pub lazy: Amount,
    /// Holes of the whole space.
    pub holes: u64,
    /// Bytes of the largest hole in the window that most allocations name.
    pub largest_hole: u64,
}

/// The allocations of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskFacts {
    /// Its name; empty if the recorder named none.
    pub name: String,
    /// Allocations that did not fail.
    pub allocs: u64,
    /// Their bytes, guard pages included.
    pub bytes: u64,
}

/// The object. Its fields, in this order, are what `--json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The version of the object.
    pub version: u32,
    /// Name of the trace.
    pub trace: String,
    /// Counted events by their kernel's names.
    pub events: BTreeMap<&'static str, u64>,
    /// Areas that stood before the first event, busy and lazy.
    pub standing: u64,
    /// Attempts to allocate that failed.
    pub failed: u64,
    /// Bytes of all allocations, guard pages included.
    pub allocated_bytes: u64,
    /// Areas that purges returned.
    pub purged_areas: u64,
    /// The maxima.
    pub peaks: PeakFacts,
    /// The end.
    pub end: EndFacts,
    /// Busy areas at the end by caller, as a map names them, in descending order of bytes.
    pub callers: Vec<CallerRow>,
    /// Tasks, in descending order of bytes.
    pub tasks: Vec<TaskFacts>,
}

impl Facts {
    /// Collects the figures of a trace, of its picture, and of the callers of its map.
    pub fn of(name: &str, trace: &Trace, picture: &Picture, callers: Vec<CallerRow>) -> Self {
        let names = [
            "alloc_vmap_area",
            "free_vmap_area_noflush",
            "purge_vmap_area_lazy",
            "percpu_create_chunk",
            "percpu_destroy_chunk",
        ];
        let mut facts = Self {
            version: VERSION,
            trace: name.to_string(),
            events: names.iter().map(|&name| (name, 0)).collect(),
            standing: trace.standing.len() as u64,
            failed: 0,
            allocated_bytes: 0,
            purged_areas: 0,
            peaks: peaks(&picture.peaks, picture.window_bytes),
            end: picture.end(),
            callers,
            tasks: Vec::new(),
        };
        let mut tasks: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (at, event) in trace.events.iter().enumerate().filter(|&(at, _)| trace.is_counted(at)) {
            let number = match *event {
                Event::Alloc { size, failed, .. } => {
                    facts.failed += u64::from(failed);
                    if !failed {
                        facts.allocated_bytes = facts.allocated_bytes.saturating_add(size);
                        let task = tasks.entry(trace.task_at(at)).or_default();
                        *task = (task.0 + 1, task.1.saturating_add(size));
                    }
                    0
                }
                Event::Free { .. } => 1,
                Event::Purge { purged } => {
                    facts.purged_areas = facts.purged_areas.saturating_add(purged);
                    2
                }
                Event::ChunkCreate { .. } => 3,
                Event::ChunkDestroy { .. } => 4,
            };
            *facts.events.entry(names[number]).or_default() += 1;
        }
        let task =
            |(name, (allocs, bytes)): (&str, (u64, u64))| TaskFacts { name: name.to_string(), allocs, bytes };
        facts.tasks = tasks.into_iter().map(task).collect();
        facts.tasks.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        facts
    }
}

fn peaks(peaks: &Peaks, window_bytes: u64) -> PeakFacts {
    let peak = |(value, event): (u64, usize), scale: u64| Peak { value: value * scale, event: event as u64 };
    let (least, event) = peaks.least;
    PeakFacts {
        busy_bytes: peak(peaks.busy_pages, PAGE_SIZE),
        busy_areas: peak(peaks.busy_areas, 1),
        lazy_pages: peak(peaks.lazy_pages, 1),
        lazy_areas: peak(peaks.lazy_areas, 1),
        holes: peak(peaks.holes, 1),
        span_bytes: Peak { value: window_bytes.saturating_sub(least), event: event as u64 },
    }
}
