//! The address space as a film: the busy areas with their holders, and the lazy, pooled and free ranges, at chosen
//! moments of a trace.
//!
//! # Theory
//! A trace is some hundred thousand small changes; a film of it is some hundred moments. Each moment is the list of
//! areas after an event. The page contains the whole list for one moment in [`KEY`], and the removed and added areas
//! for those between. So any moment is some twenty small steps away:
//!
//! ```text
//!   events    1 . . . . 40 . . . . 80 . . . . 120 ...
//!   moments             0          1          2            n
//!   carried         whole list   -gone +new  -gone +new ... whole list ...
//! ```
//!
//! Addresses are those of the folded line ([`Fold`]): pages from the start of the first part, without the folded
//! ranges. Busy and lazy areas are the kernel's own, from the events. No event reports pooled areas: these are those of
//! Linux's policy, which is given the kernel's addresses, where the kernel has no area.
//!
//! # Invariants
//! - **FM1 replayable** the list that a page reaches by its steps is that of the moment.
//! - **FM2 bounded** a film has at most the given number of bytes, unless two moments alone have more.
//!
//! # Cost
//! Two passes over the events, and a list for each moment, of at most some ten thousand areas. If there are more, those
//! smaller than a cell of the picture are merged, and the page says so.

mod encode;
mod html;
mod listing;
mod scene;
mod strip;

pub use encode::encode;
pub(super) use html::write;

use crate::map::fold::{Fold, Part, Rule};
use crate::map::palette::{COLOURS, Shared, UNCOUNTED};
use anyhow::Result;
use scene::Scene;
use std::collections::BTreeMap;
use va_base::PAGE_SIZE;
use va_sim::areas::AreaMap;
use vmlab_replay::diff::follow::follow;
use vmlab_replay::run_space::Policy;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// One moment in this many has its whole list.
pub const KEY: usize = 24;
/// The most moments of a film.
const MOMENTS: usize = 240;
/// The most areas of a moment, before small ones are merged.
const AREAS_MAX: usize = 8192;
/// Cells of the line in which small areas are merged.
const CELLS: u64 = 4096;
/// The most parts of the line: each begins a row.
const PARTS: usize = 12;
/// Rows of the picture, about.
const ROWS: u64 = 34;

/// The state of an area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// Freed, not reusable before a purge.
    Lazy,
    /// Purged, and cached by size in the pool of a node.
    Pooled,
    /// In use. The number is the index of its holder in the names of the film.
    Busy(u32),
}

/// An area on the folded line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Pages, at least 1.
    pub pages: u64,
    /// Its state.
    pub state: State,
}

/// The areas after an event, by pages from the start of the line.
pub type Areas = BTreeMap<u64, Area>;

/// One moment.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// Events so far.
    pub event: usize,
    /// The recorder's clock, nanoseconds since the first event; none if the recorder printed none.
    pub time_ns: Option<u64>,
    /// The areas drawn.
    pub areas: Areas,
    /// Pages that are busy, lazy, pooled.
    pub pages: [u64; 3],
    /// Number of busy, lazy or pooled areas, before merging.
    pub count: usize,
}

/// A holder of areas.
#[derive(Clone, Debug)]
pub struct Holder {
    /// A caller, or the task that allocated.
    pub name: String,
    /// The most pages busy at a moment of the film.
    pub peak_pages: u64,
    /// Pages busy at the last moment.
    pub end_pages: u64,
    /// Areas busy at the last moment.
    pub end_areas: u64,
}

/// A film, or a picture if it has one moment.
#[derive(Clone, Debug, Default)]
pub struct Film {
    /// The ranges that are drawn.
    pub fold: Fold,
    /// The use of each part of the line.
    pub labels: Vec<&'static str>,
    /// The holders of areas, those with the most first.
    pub holders: Vec<Holder>,
    /// The moments.
    pub moments: Vec<Moment>,
    /// Events of the trace; 0 if it is no trace.
    pub events: usize,
    /// Areas smaller than this many pages are merged; 0 if none are.
    pub together_pages: u64,
    /// True if an area was pooled at any moment.
    pub pooled: bool,
    /// True if it shows the same time as the others of its page that are linked.
    pub linked: bool,
    /// The colours of the first holders; all others share one.
    pub colours: Vec<&'static str>,
    /// The ranges of the line in which an area is at any moment, ascending and apart.
    used: Vec<(u64, u64)>,
}

impl Film {
    /// Creates the film of a trace. The table has the size of percpu chunks, and the callers of the areas at the end.
    ///
    /// # Errors
    /// If the space that replays the trace cannot be created.
    pub fn of_trace(trace: &Trace, table: &Table) -> Result<Self> {
        Self::under(trace, table, Policy::of(trace))
    }

    /// Creates the film of a trace that a space of this policy left. It shows the time that the other films of its page
    /// show.
    ///
    /// # Errors
    /// As [`Self::of_trace`].
    pub fn linked(trace: &Trace, policy: Policy) -> Result<Self> {
        Ok(Self { linked: true, ..Self::under(trace, &Table::default(), policy)? })
    }

    fn under(trace: &Trace, table: &Table, policy: Policy) -> Result<Self> {
        let first = Scene::watch(trace, table);
        let rule = Rule { parts_max: PARTS, ..Rule::default() };
        let fold = Fold::of(first.touched.iter().copied(), rule);
        let window = vmlab_replay::default_window(trace);
        let labels = labels(&fold, trace, (window.start().get(), window.end().get()));
        let together_pages =
            if first.most > AREAS_MAX { line_pages(&fold).div_ceil(CELLS).max(1) } else { 0 };
        let owners = first.owners(table);
        let (events, begins) = (trace.events.len(), trace.begins());
        let shown = events - begins;
        let count = shown.min(MOMENTS);
        let mut film = Self { fold, labels, events, together_pages, ..Self::default() };
        let line = Line::of(&film.fold);
        let mut scene = Scene::of_trace(trace, table);
        let start_ns = trace.times_ns.first().copied().unwrap_or(0);
        let timed = trace.times_ns.iter().any(|&ns| ns > 0);
        let mut moments = Vec::with_capacity(count);
        let nodes = vmlab_replay::run_space::nodes_of(trace);
        follow(trace, table, policy, nodes, |at, areas| {
            let owner = owners.get(&at).copied().filter(|_| trace.is_counted(at));
            let holder = owner.unwrap_or_else(|| match trace.is_counted(at) {
                true => scene.names.task(trace.task_at(at)),
                false => scene.names.uncounted(),
            });
            scene.step(at, &trace.events[at], holder);
            // The moments follow events e(1) to e(count) of those that are shown, evenly spaced.
            if at >= begins && (at + 1 - begins) * count / shown > moments.len() {
                let time_ns = timed.then(|| trace.times_ns[at].saturating_sub(start_ns));
                scene.set_lazy(&areas.lazy);
                moments.push(scene.moment(&line, together_pages, (at + 1, time_ns), &areas.pooled));
            }
        })?;
        film.moments = moments;
        film.settle(scene.names.into_vec());
        Ok(film)
    }

    /// Creates the picture of the areas in a table.
    pub fn of_table(table: &Table) -> Self {
        let scene = Scene::of_table(table);
        let fold = Fold::of(scene.parts(), Rule { parts_max: PARTS, ..Rule::default() });
        let together_pages =
            if scene.len() > AREAS_MAX { line_pages(&fold).div_ceil(CELLS).max(1) } else { 0 };
        let mut pooled = AreaMap::default();
        for &(start, size) in table.pooled() {
            pooled.replace(start, size, None);
        }
        let moment = scene.moment(&Line::of(&fold), together_pages, (0, None), &pooled);
        let labels = vec![""; fold.parts().len()];
        let mut film = Self { fold, labels, moments: vec![moment], together_pages, ..Self::default() };
        film.settle(scene.names.into_vec());
        film
    }

    /// Counts the pages of each holder, and renumbers the holders by size, the largest first. What is not counted is last.
    fn settle(&mut self, names: Vec<String>) {
        self.pooled = self.moments.iter().any(|moment| moment.pages[2] > 0);
        let mut holders: Vec<Holder> = names
            .into_iter()
            .map(|name| Holder { name, peak_pages: 0, end_pages: 0, end_areas: 0 })
            .collect();
        for moment in &self.moments {
            let mut held = vec![(0, 0); holders.len()];
            for area in moment.areas.values() {
                if let State::Busy(holder) = area.state {
                    let held = &mut held[holder as usize];
                    *held = (held.0 + area.pages, held.1 + 1);
                }
            }
            for (holder, (pages, areas)) in holders.iter_mut().zip(held) {
                holder.peak_pages = holder.peak_pages.max(pages);
                (holder.end_pages, holder.end_areas) = (pages, areas);
            }
        }
        let mut order: Vec<usize> = (0..holders.len()).collect();
        order.sort_by(|&a, &b| {
            let rank = |at: usize| (holders[at].name == UNCOUNTED, std::cmp::Reverse(holders[at].peak_pages));
            rank(a).cmp(&rank(b)).then_with(|| holders[a].name.cmp(&holders[b].name))
        });
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new as u32;
        }
        for area in self.moments.iter_mut().flat_map(|moment| moment.areas.values_mut()) {
            if let State::Busy(holder) = &mut area.state {
                *holder = place[*holder as usize];
            }
        }
        self.holders =
            order.into_iter().map(|at| holders[at].clone()).filter(|one| one.peak_pages > 0).collect();
        self.share(&mut Shared::default());
        let areas = self.moments.iter().flat_map(|moment| &moment.areas);
        let mut all: Vec<(u64, u64)> = areas.map(|(&from, area)| (from, from + area.pages)).collect();
        all.sort_unstable();
        for (from, end) in all {
            match self.used.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(end),
                _ => self.used.push((from, end)),
            }
        }
    }

    /// Assigns the colours of the holders, as other pictures of the page have them. Alone, a name has the colour that it
    /// has in a map.
    pub fn share(&mut self, shared: &mut Shared) {
        let holders = self.holders.iter().filter(|holder| holder.name != UNCOUNTED);
        let colours = shared.assign(holders.map(|holder| holder.name.as_str()));
        self.colours = colours.into_iter().map(|at| COLOURS[at]).collect();
    }

    /// Returns the moment with the most lazy pages, the last of them; the film opens there.
    pub(super) fn opens(&self) -> usize {
        (0..self.moments.len()).max_by_key(|&at| self.moments[at].pages[1]).unwrap_or(0)
    }

    /// Removes every second moment except the last.
    pub(super) fn thin(&mut self) {
        let last = self.moments.len().saturating_sub(1);
        let mut at = 0;
        self.moments.retain(|_| {
            at += 1;
            (last + 1 - at).is_multiple_of(2)
        });
    }

    /// Returns the pages of the folded line.
    pub fn line_pages(&self) -> u64 {
        line_pages(&self.fold)
    }

    /// Returns the pages of a row of the picture, so that there are about `ROWS` rows. Each part begins a row.
    pub fn row_pages(&self) -> u64 {
        let most = ROWS.max(self.fold.parts().len() as u64) as usize;
        let (mut low, mut high) = (1, self.line_pages().max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.rows(middle, most).len() <= most { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// Returns the rows of `row_pages` each, or the first `most` and one more. Two or more that are free at every moment
    /// are folded into one.
    fn rows(&self, row_pages: u64, most: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut used = self.used.iter().peekable();
        let mut end = 0;
        for (part, pages) in self.fold.parts().iter().map(|part| part_pages(*part)).enumerate() {
            end += pages;
            let mut from = rows.last().map_or(0, |row: &Row| row.end);
            while from < end && rows.len() <= most {
                while used.next_if(|used| used.1 <= from).is_some() {}
                let next = used.peek().map_or(end, |used| used.0.clamp(from, end));
                let empty =
                    if next < end { (next - from) / row_pages } else { (end - from).div_ceil(row_pages) };
                let count = if empty > 1 { empty } else { 1 };
                let row = Row { part, from, end: end.min(from + count * row_pages), folded: count > 1 };
                from = row.end;
                rows.push(row);
            }
        }
        rows
    }
}

/// A row of the picture, or several that are free at every moment.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The number of its part.
    part: usize,
    /// Pages from the start of the line.
    from: u64,
    end: u64,
    folded: bool,
}

/// Returns the pages of a part. Partial pages at its ends count as whole.
pub(super) fn part_pages(part: Part) -> u64 {
    part.end.div_ceil(PAGE_SIZE) - part.start / PAGE_SIZE
}

fn line_pages(fold: &Fold) -> u64 {
    fold.parts().iter().map(|part| part_pages(*part)).sum()
}

/// The starts of the parts of a folded line, in pages.
struct Line<'a> {
    fold: &'a Fold,
    starts: Vec<u64>,
}

impl<'a> Line<'a> {
    fn of(fold: &'a Fold) -> Self {
        let mut from = 0;
        let starts = fold.parts().iter().map(|part| {
            let start = from;
            from += part_pages(*part);
            start
        });
        Self { starts: starts.collect(), fold }
    }

    /// Returns the position of `[start, start + size)` on the line, and its pages; `None` if it is not drawn.
    fn place(&self, start: u64, size: u64) -> Option<(u64, u64)> {
        let number = self.fold.part_of(start)?;
        let part = self.fold.parts()[number];
        let end = start.saturating_add(size).min(part.end);
        let from = start / PAGE_SIZE - part.start / PAGE_SIZE;
        let pages = (end.div_ceil(PAGE_SIZE) - start / PAGE_SIZE).max(1);
        Some((self.starts[number] + from, pages))
    }
}

/// Returns the use of each part, as far as events show it.
fn labels(fold: &Fold, trace: &Trace, (start, end): (u64, u64)) -> Vec<&'static str> {
    let chunks: Vec<u64> = trace
        .events
        .iter()
        .filter_map(|event| match *event {
            Event::ChunkCreate { base } => Some(base),
            _ => None,
        })
        .collect();
    let label = |part: &Part| {
        if chunks.iter().any(|base| (part.start..part.end).contains(base)) {
            "percpu chunks"
        } else if part.start >= start && part.start < end {
            "vmalloc range"
        } else {
            "other window"
        }
    };
    fold.parts().iter().map(label).collect()
}

#[cfg(test)]
mod tests;
