//! The part of a trace that is counted and shown.
//!
//! # Theory
//! An area that was allocated before the selected time may live in it, and an area of one CPU is freed on another. So a
//! selection decides which events are *counted*. All events up to its end are *replayed*:
//!
//! ```text
//!   events    1 . . . . . 40 . . . . . . . . 95 . . . . . 120
//!             replayed    | replayed         | removed
//!             not counted | those of the CPU |
//!                         | and task counted |
//!                        from                to
//! ```
//!
//! An area is counted if the event that allocated it is.

use crate::{Event, TASKS_MAX, Trace};
use anyhow::{Result, bail, ensure};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use vmlab_base::text::{counted, grouped, printable};

/// Tasks that an error names.
const TASKS_NAMED: usize = 4;

/// The events that are counted. By default all are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// From this time on, nanoseconds of the trace's clock.
    pub from_ns: Option<u64>,
    /// Up to this time.
    pub to_ns: Option<u64>,
    /// Of this CPU.
    pub cpu: Option<u16>,
    /// Of a task of this name.
    pub task: Option<String>,
}

impl Selection {
    /// Returns true if it selects all events.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if an event is counted. An event without the field that is asked for is not.
    pub fn has(&self, ns: Option<u64>, cpu: Option<u16>, task: Option<&str>) -> bool {
        self.from_ns.is_none_or(|from| ns.is_some_and(|ns| ns >= from))
            && self.to_ns.is_none_or(|to| ns.is_some_and(|ns| ns <= to))
            && self.cpu.is_none_or(|wanted| cpu == Some(wanted))
            && self.task.as_deref().is_none_or(|wanted| task == Some(wanted))
    }

    /// Fails if the time ends before it begins.
    ///
    /// # Errors
    /// With both times.
    pub fn check(&self) -> Result<()> {
        if let (Some(from), Some(to)) = (self.from_ns, self.to_ns) {
            ensure!(from <= to, "--from {} is after --to {}", seconds(from), seconds(to));
        }
        Ok(())
    }
}

/// The events in words: `from 12.5 s, up to 13 s, of CPU 0, of task modprobe`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.from_ns.map(|ns| format!("from {} s", seconds(ns))),
            self.to_ns.map(|ns| format!("up to {} s", seconds(ns))),
            self.cpu.map(|cpu| format!("of CPU {cpu}")),
            self.task.as_deref().map(|task| format!("of task {}", printable(task))),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Formats a time with the digits that it has.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Returns the window that most allocations name.
pub fn usual_window(events: impl IntoIterator<Item = Event>) -> Option<(u64, u64)> {
    let mut counts: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for event in events {
        if let Event::Alloc { vstart, vend, .. } = event {
            *counts.entry((vstart, vend)).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|&(window, count)| (count, window)).map(|(window, _)| window)
}

/// Facts of the machine from events that were removed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Removed {
    /// The highest CPU.
    pub(crate) cpu: u16,
    /// The window that most allocations name.
    pub(crate) window: Option<(u64, u64)>,
}

impl Trace {
    /// Marks the events that are counted ([`Self::is_counted`]), and returns the number of events up to the end of the
    /// selected time. Those of several CPUs may be slightly out of order: all up to the last one that is not later are
    /// before the end. To be called after [`Self::stand_on`]. O(events).
    ///
    /// # Errors
    /// If the selection has a time and the trace none, or the time ends before it begins.
    pub fn select(&mut self, selection: &Selection) -> Result<usize> {
        selection.check()?;
        let timed = selection.from_ns.or(selection.to_ns).is_some();
        if timed && self.times_ns.iter().all(|&ns| ns == 0) {
            bail!("names no times, so --from, --to and --at can name no moment; leave them out");
        }
        let has =
            |at: usize| selection.has(Some(self.times_ns[at]), Some(self.cpus[at]), Some(self.task_at(at)));
        // All before the end are counted, and the areas that stood before them.
        let whole = Selection { to_ns: None, ..selection.clone() }.is_all();
        self.counted = if whole { Vec::new() } else { (0..self.events.len()).map(has).collect() };
        let times = &self.times_ns;
        self.begins = selection
            .from_ns
            .map_or(0, |from| times.iter().position(|&ns| ns >= from).unwrap_or(times.len()));
        Ok(selection
            .to_ns
            .map_or(times.len(), |to| times.iter().rposition(|&ns| ns <= to).map_or(0, |at| at + 1)))
    }

    /// Selects events, and removes those after the selected time. Returns the addresses of areas that the removed events
    /// allocate or free: a table of a later time may show other areas there.
    ///
    /// # Errors
    /// As [`Self::select`], and if no event is counted.
    pub fn narrow(&mut self, selection: &Selection) -> Result<HashSet<u64>> {
        let until = self.select(selection)?;
        if self.counted_events_in(until) == 0 {
            bail!("no event {selection}: {}", self.range());
        }
        Ok(self.cut(until))
    }

    /// Removes the events from an index on, and returns the addresses of their areas.
    fn cut(&mut self, until: usize) -> HashSet<u64> {
        if until == self.events.len() {
            return HashSet::new();
        }
        self.removed = Removed { cpu: self.last_cpu(), window: self.usual_window() };
        let addresses = self.events[until..].iter().filter_map(|event| match *event {
            Event::Alloc { addr, failed: false, .. } | Event::Free { addr } => Some(addr),
            Event::ChunkCreate { base } | Event::ChunkDestroy { base } => Some(base),
            Event::Alloc { .. } | Event::Purge { .. } => None,
        });
        let addresses = addresses.collect();
        let is_alloc = |event: &&Event| matches!(event, Event::Alloc { .. });
        self.alloc_lines.truncate(self.events[..until].iter().filter(is_alloc).count());
        self.events.truncate(until);
        self.cpus.truncate(until);
        self.times_ns.truncate(until);
        self.task_of.truncate(until);
        self.counted.truncate(until);
        self.marks.retain(|&(before, _)| before <= until);
        addresses
    }

    /// Returns true if an event is counted.
    pub fn is_counted(&self, event: usize) -> bool {
        self.counted.get(event).copied().unwrap_or(true)
    }

    /// Returns true if all events are counted, and with them the areas that stood before.
    pub fn is_whole(&self) -> bool {
        self.counted.is_empty()
    }

    /// Returns the index of the first event of the selected time. Those before it are replayed, and not shown.
    pub fn begins(&self) -> usize {
        self.begins
    }

    /// Returns the number of events that are counted.
    pub fn counted_events(&self) -> u64 {
        self.counted_events_in(self.events.len())
    }

    fn counted_events_in(&self, until: usize) -> u64 {
        (0..until).filter(|&at| self.is_counted(at)).count() as u64
    }

    /// Returns the number of allocations that are counted, failed attempts included.
    pub fn counted_allocs(&self) -> u64 {
        let counts =
            |(at, event): &(usize, &Event)| matches!(event, Event::Alloc { .. }) && self.is_counted(*at);
        self.events.iter().enumerate().filter(counts).count() as u64
    }

    /// Returns the window that most allocations name, also those that were removed: the kernel's vmalloc range.
    pub fn usual_window(&self) -> Option<(u64, u64)> {
        self.removed.window.or_else(|| usual_window(self.events.iter().copied()))
    }

    /// Returns the events, for a selection that has none of them.
    fn range(&self) -> Range {
        let mut range = Range::default();
        for at in 0..self.events.len() {
            let ns = Some(self.times_ns[at]).filter(|&ns| ns > 0);
            range.add(ns, Some(self.cpus[at]), Some(self.task_at(at)));
        }
        range
    }
}

/// The times, CPUs and tasks of events, in words: `5 events from 1 to 4.5 s, of CPUs 0 to 2, of tasks b, a`.
#[derive(Clone, Debug, Default)]
pub struct Range {
    events: u64,
    /// The times of the first and the last.
    times: Option<(u64, u64)>,
    /// The highest CPU.
    cpu: u16,
    /// The events of each task, at most [`TASKS_MAX`].
    tasks: BTreeMap<String, u64>,
}

impl Range {
    /// Adds an event. O(log t) for t tasks.
    pub fn add(&mut self, ns: Option<u64>, cpu: Option<u16>, task: Option<&str>) {
        self.events += 1;
        if let Some(ns) = ns {
            let (first, last) = self.times.unwrap_or((ns, ns));
            self.times = Some((first.min(ns), last.max(ns)));
        }
        self.cpu = self.cpu.max(cpu.unwrap_or(0));
        let Some(task) = task.filter(|task| !task.is_empty()) else { return };
        if let Some(events) = self.tasks.get_mut(task) {
            *events += 1;
        } else if self.tasks.len() < TASKS_MAX {
            self.tasks.insert(task.to_string(), 1);
        }
    }

    /// Returns true if there is no event.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there are {}", counted(self.events, "event"))?;
        if let Some((first, last)) = self.times {
            write!(f, " from {} to {} s", seconds(first), seconds(last))?;
        }
        match self.cpu {
            0 => write!(f, ", of CPU 0")?,
            last => write!(f, ", of CPUs 0 to {last}")?,
        }
        let mut tasks: Vec<(&String, &u64)> = self.tasks.iter().collect();
        tasks.sort_by_key(|&(_, events)| std::cmp::Reverse(events));
        let shown: Vec<_> = tasks.iter().take(TASKS_NAMED).map(|(name, _)| printable(name)).collect();
        match tasks.len() {
            0 => Ok(()),
            count if count <= TASKS_NAMED => write!(f, ", of tasks {}", shown.join(", ")),
            count => {
                let others = grouped((count - TASKS_NAMED) as u64);
                write!(f, ", of tasks {} and {others} others", shown.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let mut text = String::new();
        for (task, cpu, time, addr) in
            [("a-1", 0, "1.0", 4096), ("b-2", 1, "2.0", 8192), ("a-1", 2, "3.5", 12288)]
        {
            text += &format!(
                "{task} [{cpu:03}] ..... {time}: alloc_vmap_area: va_start: {addr} size=4096 align=1 vstart=0x1000 vend=0xffff000 failed=0\n"
            );
        }
        text += "b-2 [001] ..... 4.0: free_vmap_area_noflush: va_start=0x2000 nr_lazy=1 nr_lazy_max=9\n";
        text += "b-2 [001] ..... 4.5: purge_vmap_area_lazy: start=0x1 end=0x2 num_purged=1\n";
        Trace::read(text.as_bytes())
    }

    #[test]
    fn each_field_selects_and_all_before_the_end_is_replayed() {
        let s = |seconds: f64| Some((seconds * 1e9) as u64);
        let all = Selection::default();
        for (selection, counted, replayed, begins) in [
            (all.clone(), vec![0, 1, 2, 3, 4], 5, 0),
            (Selection { from_ns: s(2.0), ..all.clone() }, vec![1, 2, 3, 4], 5, 1),
            (Selection { to_ns: s(3.5), ..all.clone() }, vec![0, 1, 2], 3, 0),
            (Selection { from_ns: s(1.5), to_ns: s(3.9), ..all.clone() }, vec![1, 2], 3, 1),
            (Selection { cpu: Some(1), ..all.clone() }, vec![1, 3, 4], 5, 0),
            (Selection { task: Some("a".into()), from_ns: s(3.0), ..all.clone() }, vec![2], 5, 2),
        ] {
            let mut trace = trace();
            let before = (trace.cpu_count(), trace.usual_window());
            trace.narrow(&selection).unwrap();
            let seen: Vec<usize> = (0..trace.events.len()).filter(|&at| trace.is_counted(at)).collect();
            assert_eq!(
                (seen, trace.events.len(), trace.begins()),
                (counted, replayed, begins),
                "{selection:?}"
            );
            let allocs = trace.allocs();
            assert_eq!(trace.alloc_line(allocs), Some(allocs), "lines are those of the events");
            assert_eq!(
                (trace.times_ns.len(), trace.cpus.len(), trace.task_of.len()),
                (replayed, replayed, replayed)
            );
            // What the whole trace said of the machine holds for a part.
            assert_eq!((trace.cpu_count(), trace.usual_window()), before);
        }
    }

    #[test]
    fn what_is_removed_is_named_for_the_tables_of_the_end() {
        let mut trace = trace();
        let later = trace.narrow(&Selection { to_ns: Some(2_000_000_000), ..Selection::default() }).unwrap();
        assert_eq!(later, HashSet::from([12288, 8192]));
        assert_eq!(trace.cpu_count(), 3);
    }

    #[test]
    fn a_selection_of_nothing_says_what_there_is() {
        let error = |selection: Selection| trace().narrow(&selection).unwrap_err().to_string();
        let all = Selection::default;
        assert_eq!(
            error(Selection { from_ns: Some(5_000_000_000), ..all() }),
            "no event from 5 s: there are 5 events from 1 to 4.5 s, of CPUs 0 to 2, of tasks b, a"
        );
        assert_eq!(
            error(Selection { task: Some("x\u{1b}".into()), cpu: Some(7), ..all() }),
            "no event of CPU 7, of task x\u{241b}: there are 5 events from 1 to 4.5 s, of CPUs 0 to 2, of tasks b, a"
        );
        let both = Selection { from_ns: Some(2_500_000_000), to_ns: Some(1), ..all() };
        assert_eq!(error(both), "--from 2.5 is after --to 0.000000001");
        let mut silent = Trace::read("free_vmap_area_noflush: va_start=0x1000\n".as_bytes());
        let error = silent.narrow(&Selection { from_ns: Some(0), ..all() }).unwrap_err();
        assert!(error.to_string().starts_with("names no times"), "{error}");
    }
}
