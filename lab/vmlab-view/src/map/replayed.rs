//! A listing of the space at one time of a trace, with the kernel's addresses.
//!
//! A trace has the busy areas and the lazy ones, besides those that stood before it. No event reports which purged areas
//! are in pools: the policy decides, so a replay supplies these. The table at the end of the trace names the callers of
//! areas that are live until then, and the table before it those of older areas. For other areas the trace has the task
//! that ran, which is then their caller: `task modprobe`.

use super::fold::Part;
use super::listing::{Builder, Listing};
use super::palette::UNCOUNTED;
use super::read::Text;
use anyhow::Result;
use std::collections::{HashMap, HashSet};
use va_base::PAGE_SIZE;
use vmlab_replay::Columns;
use vmlab_replay::diff::follow::follow;
use vmlab_replay::run_space::{Policy, nodes_of};
use vmlab_replay::state::State;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// The replay to run.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The whole trace.
    pub trace: &'a Trace,
    /// The percpu chunks in its table.
    pub table: &'a Table,
    /// The areas of the same table, with their callers.
    pub text: &'a Text,
    /// Number of events to replay.
    pub events: usize,
    /// The policy of the pools.
    pub policy: Policy,
    /// Its nodes.
    pub nodes: u32,
}

impl<'a> Ask<'a> {
    /// Asks for the end of a trace under the policy of its kernel.
    pub fn at_end(trace: &'a Trace, table: &'a Table, text: &'a Text) -> Self {
        let (policy, nodes) = (Policy::of(trace), nodes_of(trace));
        Self { trace, table, text, events: trace.events.len(), policy, nodes }
    }
}

/// The result.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The areas.
    pub listing: Listing,
    /// The policy's answers beside the kernel's.
    pub columns: Columns,
}

/// Replays the events with the kernel's addresses, and lists the areas that are not free afterwards.
///
/// # Errors
/// If a ledger cannot be created.
pub fn replay(ask: Ask<'_>) -> Result<Replayed> {
    let trace = ask.trace;
    let mut builder = Builder::default();
    let names = Names::of(ask);
    let mut add = |start: u64, bytes, state, name: &str| {
        builder.add(Part { start, end: start.saturating_add(bytes) }, state, name);
    };
    let first = trace.first(ask.events);
    let followed = follow(&first, ask.table, ask.policy, ask.nodes, |_, _| {})?;
    let areas = &followed.areas;
    areas
        .busy
        .iter()
        .for_each(|(start, bytes, _)| add(start, bytes, State::Busy, &names.of_area(start, bytes, trace)));
    areas.lazy.iter().for_each(|(start, bytes, _)| add(start, bytes, State::Lazy, ""));
    areas.pooled.iter().for_each(|(start, bytes, _)| add(start, bytes, State::Pooled, ""));
    Ok(Replayed { listing: builder.finish(Some(windows(trace))), columns: followed.columns })
}

/// Returns the windows that allocations of the whole trace name, rounded to whole pages.
fn windows(trace: &Trace) -> Vec<Part> {
    let mut windows = HashSet::new();
    for event in &trace.events {
        if let Event::Alloc { vstart, vend, .. } = *event {
            windows.insert((vstart, vend));
        }
    }
    let whole = |(start, end): (u64, u64)| {
        let start = start.checked_next_multiple_of(PAGE_SIZE)?;
        Some(Part { start, end: end / PAGE_SIZE * PAGE_SIZE }).filter(|part| part.start < part.end)
    };
    windows.into_iter().filter_map(whole).collect()
}

/// The known callers.
struct Names {
    /// By start and bytes: the table's callers of areas without a later event.
    table: HashMap<(u64, u64), String>,
    /// The event that allocated an area, by its start.
    events: HashMap<u64, usize>,
    chunks: HashSet<u64>,
    /// By start: the callers of areas that stood before the trace.
    standing: HashMap<u64, String>,
}

impl Names {
    fn of(ask: Ask<'_>) -> Self {
        let (mut events, mut chunks, mut later) = (HashMap::new(), HashSet::new(), HashSet::new());
        for (at, event) in ask.trace.events.iter().enumerate() {
            match *event {
                Event::Alloc { addr, failed: false, .. } | Event::Free { addr } if at >= ask.events => {
                    later.insert(addr);
                }
                Event::Alloc { addr, failed: false, .. } => {
                    events.insert(addr, at);
                    chunks.remove(&addr);
                }
                Event::ChunkCreate { base } if at < ask.events => {
                    events.insert(base, at);
                    chunks.insert(base);
                }
                _ => {}
            }
        }
        let listing = &ask.text.listing;
        let busy = listing
            .areas
            .iter()
            .filter(|area| area.state == State::Busy && !later.contains(&area.part.start));
        let table = busy
            .map(|area| ((area.part.start, area.part.bytes()), listing.caller(area).to_string()))
            .collect();
        let standing = &ask.trace.standing;
        let standing =
            standing.iter().map(|area| (area.start, ask.trace.caller_of(area).to_string())).collect();
        Self { table, events, chunks, standing }
    }

    fn of_area(&self, kernel: u64, bytes: u64, trace: &Trace) -> String {
        // An area is counted if the event that allocated it is.
        let counted = match self.events.get(&kernel) {
            Some(&event) => trace.is_counted(event),
            None => trace.is_whole(),
        };
        if !counted {
            return UNCOUNTED.to_string();
        }
        if let Some(name) = self.table.get(&(kernel, bytes)) {
            return name.clone();
        }
        if self.chunks.contains(&kernel) {
            return "(percpu chunk)".to_string();
        }
        let task = self.events.get(&kernel).map(|&event| trace.task_at(event));
        match (task, self.standing.get(&kernel)) {
            (Some(task), _) if !task.is_empty() => format!("task {task}"),
            (None, Some(caller)) => caller.clone(),
            _ => "(unnamed)".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlab_trace::Selection;

    const TRACE: &str = "\
        a-1 [000] ..... 1.0: alloc_vmap_area: va_start: 1048576 size=8192 align=4096 vstart=0x100000 vend=0x1ffffff failed=0\n\
        b-2 [000] ..... 2.0: alloc_vmap_area: va_start: 1056768 size=8192 align=4096 vstart=0x100000 vend=0x1ffffff failed=0\n\
        a-1 [000] ..... 3.0: free_vmap_area_noflush: va_start=0x100000 nr_lazy=2 nr_lazy_max=9\n\
        a-1 [000] ..... 4.0: purge_vmap_area_lazy: start=0x100000 end=0x102000 num_purged=1\n";
    const INFO: &str = "0x0000000000102000-0x0000000000104000    8192 last_caller+0x1/0x2 pages=1 vmalloc\n\
        0x0000000000100000-0x0000000000102000    8192 never+0x1/0x2 pages=1 vmalloc\n";

    fn at(seconds: u64, task: Option<&str>) -> Vec<(u64, State, String)> {
        let mut trace = Trace::read(TRACE.as_bytes());
        let (table, text) = (Table::read(INFO.as_bytes()), Text::read(INFO.as_bytes(), None));
        let to_ns = Some(seconds * 1_000_000_000);
        let events = trace
            .select(&Selection { to_ns, task: task.map(str::to_string), ..Selection::default() })
            .unwrap();
        let ask =
            Ask { trace: &trace, table: &table, text: &text, events, policy: Policy::Linux69, nodes: 2 };
        let listing = replay(ask).unwrap().listing;
        assert_eq!(listing.windows, [Part { start: 0x10_0000, end: 0x1ff_f000 }]);
        let row = |area: &super::super::listing::Area| {
            (area.part.start, area.state, listing.caller(area).to_string())
        };
        listing.areas.iter().map(row).collect()
    }

    #[test]
    fn a_trace_at_a_time_has_the_live_areas_and_their_callers() {
        let last = || (0x10_2000, State::Busy, "last_caller".to_string());
        assert_eq!(at(0, None), []);
        // The table's caller of an area that is freed later is that of another area.
        assert_eq!(at(1, None), [(0x10_0000, State::Busy, "task a".to_string())]);
        assert_eq!(at(2, None), [(0x10_0000, State::Busy, "task a".to_string()), last()]);
        assert_eq!(at(3, None), [(0x10_0000, State::Lazy, "(lazy)".to_string()), last()]);
        // With two nodes Linux's policy caches it in a pool.
        assert_eq!(at(4, None), [(0x10_0000, State::Pooled, "(pooled)".to_string()), last()]);
    }

    #[test]
    fn areas_of_others_are_one_caller_and_stay_in_their_places() {
        let other = |start| (start, State::Busy, UNCOUNTED.to_string());
        assert_eq!(at(2, Some("b")), [other(0x10_0000), (0x10_2000, State::Busy, "last_caller".to_string())]);
        assert_eq!(at(2, Some("a")), [(0x10_0000, State::Busy, "task a".to_string()), other(0x10_2000)]);
        assert_eq!(at(4, Some("a")), [(0x10_0000, State::Pooled, "(pooled)".to_string()), other(0x10_2000)]);
    }
}
