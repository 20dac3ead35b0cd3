//! The live areas after each event.

use super::listing::Names;
use super::{Area, Areas, Line, Moment, State};
use crate::map::fold::Part;
use std::collections::{BTreeMap, HashMap};
use va_base::PAGE_SIZE;
use va_sim::areas::{AreaMap, SpaceAreas};
use vmlab_replay::CHUNK_BYTES;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// The event of areas that stood before the first one.
const BEFORE: usize = usize::MAX;

/// The kernel's areas, busy and lazy.
pub(super) struct Scene<'a> {
    /// Busy areas have their holder, and the event that allocated them.
    areas: SpaceAreas<(u32, usize)>,
    /// The names of the holders.
    pub(super) names: Names,
    table: &'a Table,
}

/// The result of a first pass over a trace.
pub(super) struct Watched {
    /// The ranges of areas.
    pub(super) touched: Vec<Part>,
    /// The most areas at any time.
    pub(super) most: usize,
    /// Start and size of each area that is busy at the end, by the event that allocated it.
    last: HashMap<usize, (u64, u64)>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        Self { areas: SpaceAreas::default(), names: Names::new(table), table }
    }

    /// Returns the areas of a table.
    pub(super) fn of_table(table: &'a Table) -> Self {
        let mut scene = Self::new(table);
        for listed in table.listed() {
            scene.insert(listed.start, listed.size, (listed.caller, 0));
            if listed.lazy {
                scene.areas.free(listed.start, |_| ());
            }
        }
        scene
    }

    /// Returns the areas that stood before the first event of a trace.
    pub(super) fn of_trace(trace: &Trace, table: &'a Table) -> Self {
        let mut scene = Self::new(table);
        for area in &trace.standing {
            if area.start.checked_add(area.size).is_none() {
                continue;
            }
            let holder = match trace.is_whole() {
                true => scene.names.caller(trace.caller_of(area)),
                false => scene.names.uncounted(),
            };
            scene.insert(area.start, area.size, (holder, BEFORE));
            if area.lazy {
                scene.areas.free(area.start, |_| ());
            }
        }
        scene
    }

    /// Makes a first pass over a whole trace.
    pub(super) fn watch(trace: &Trace, table: &Table) -> Watched {
        let mut scene = Scene::of_trace(trace, table);
        let (mut touched, mut most) = (scene.parts().collect::<Vec<_>>(), scene.len());
        // What is gone before the selected time is not drawn.
        for (at, event) in trace.events.iter().enumerate() {
            if at == trace.begins() {
                (touched, most) = (scene.parts().collect(), scene.len());
            }
            if let Some((start, size)) = scene.step(at, event, 0) {
                let part = Part { start, end: start.saturating_add(size) };
                // Addresses mostly grow: most areas begin in or directly after the last range.
                match touched.last_mut() {
                    Some(Part { start, end }) if part.start >= *start && part.start <= *end => {
                        *end = part.end.max(*end);
                    }
                    _ => touched.push(part),
                }
                most = most.max(scene.len());
            }
        }
        let last = scene.areas.busy.iter().map(|(start, size, &(_, born))| (born, (start, size)));
        let last = last.filter(|&(born, _)| born != BEFORE).collect();
        Watched { touched, most, last }
    }

    pub(super) fn len(&self) -> usize {
        self.areas.busy.len() + self.areas.lazy.len()
    }

    /// Iterates over the ranges of areas.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.all().map(|(start, size, _)| Part { start, end: start.saturating_add(size) })
    }

    /// Iterates over the areas: first address, bytes, state.
    fn all(&self) -> impl Iterator<Item = (u64, u64, State)> + '_ {
        let SpaceAreas { busy, lazy, .. } = &self.areas;
        let busy = busy.iter().map(|(start, size, &(holder, _))| (start, size, State::Busy(holder)));
        busy.chain(lazy.iter().map(|(start, size, ())| (start, size, State::Lazy)))
    }

    /// Applies an event; returns the area that it allocated.
    pub(super) fn step(&mut self, at: usize, event: &Event, holder: u32) -> Option<(u64, u64)> {
        let (start, size, holder) = match *event {
            Event::Alloc { addr, size, failed: false, .. } => (addr, size, holder),
            Event::ChunkCreate { base } => {
                (base, self.table.chunk_bytes(base).unwrap_or(CHUNK_BYTES), self.names.chunk(holder))
            }
            Event::Free { addr } => {
                self.areas.free(addr, |_| ());
                return None;
            }
            Event::Purge { purged } => {
                if purged > 0 {
                    self.areas.lazy = AreaMap::default();
                }
                return None;
            }
            Event::Alloc { .. } | Event::ChunkDestroy { .. } => return None,
        };
        // An impossible range, which no allocator returns, is not drawn.
        if size == 0 || start.checked_add(size).is_none() {
            return None;
        }
        self.insert(start, size, (holder, at));
        Some((start, size))
    }

    /// Sets the lazy areas: a purge leaves those that were freed after it began.
    pub(super) fn set_lazy<T>(&mut self, lazy: &AreaMap<T>) {
        self.areas.lazy = AreaMap::default();
        for (start, size, _) in lazy.iter() {
            self.areas.lazy.replace(start, size, ());
        }
    }

    /// Inserts a busy area. Older areas in its range were freed without an event.
    fn insert(&mut self, start: u64, size: u64, holder_and_event: (u32, usize)) {
        self.areas.take_overlaps(start, size);
        self.areas.busy.replace(start, size, holder_and_event);
    }

    /// Returns the moment after an event.
    pub(super) fn moment(
        &self,
        line: &Line,
        together_pages: u64,
        (event, time_ns): (usize, Option<u64>),
        pooled: &AreaMap<Option<u32>>,
    ) -> Moment {
        let mut moment = Moment { event, time_ns, ..Moment::default() };
        let SpaceAreas { busy, lazy, .. } = &self.areas;
        let free = |&(start, size, _): &(u64, u64, &Option<u32>)| {
            busy.overlap(start, size).is_none() && lazy.overlap(start, size).is_none()
        };
        let pooled = pooled.iter().filter(free).map(|(start, size, _)| (start, size, State::Pooled));
        let mut all: Vec<(u64, u64, State)> = Vec::new();
        for (start, size, state) in self.all().chain(pooled) {
            let Some((from, pages)) = line.place(start, size) else { continue };
            let kind = match state {
                State::Busy(_) => 0,
                State::Lazy => 1,
                State::Pooled => 2,
            };
            moment.pages[kind] += size / PAGE_SIZE;
            moment.count += 1;
            all.push((from, pages, state));
        }
        all.sort_unstable_by_key(|&(from, ..)| from);
        moment.areas = if together_pages > 1 { together(&all, together_pages) } else { apart(&all) };
        moment
    }
}

fn apart(all: &[(u64, u64, State)]) -> Areas {
    all.iter().map(|&(from, pages, state)| (from, Area { pages, state })).collect()
}

/// Returns the areas in order. Those smaller than a cell are merged with others that begin in the same cell; the state
/// with the most pages wins.
fn together(all: &[(u64, u64, State)], cell_pages: u64) -> Areas {
    let mut areas = Areas::new();
    let mut cell: Vec<(u64, u64, State)> = Vec::new();
    let close = |cell: &mut Vec<(u64, u64, State)>, areas: &mut Areas| {
        let (Some(first), Some(end)) = (cell.first(), cell.iter().map(|area| area.0 + area.1).max()) else {
            return;
        };
        let mut sums: BTreeMap<State, u64> = BTreeMap::new();
        for area in cell.iter() {
            *sums.entry(area.2).or_default() += area.1;
        }
        if let Some((&state, _)) = sums.iter().max_by_key(|(state, pages)| (**pages, **state)) {
            areas.insert(first.0, Area { pages: end - first.0, state });
        }
        cell.clear();
    };
    for &(from, pages, state) in all {
        if cell.first().is_some_and(|first| first.0 / cell_pages != from / cell_pages) {
            close(&mut cell, &mut areas);
        }
        if pages < cell_pages {
            cell.push((from, pages, state));
        } else {
            close(&mut cell, &mut areas);
            areas.insert(from, Area { pages, state });
        }
    }
    close(&mut cell, &mut areas);
    areas
}

impl Watched {
    /// Returns the caller of each area that is live at the end, by event, as far as the table lists it. The table
    /// cannot name the callers of areas that were freed before.
    pub(super) fn owners(&self, table: &Table) -> HashMap<usize, u32> {
        let listed: HashMap<(u64, u64), u32> =
            table.listed().map(|listed| ((listed.start, listed.size), listed.caller)).collect();
        self.last.iter().filter_map(|(&event, area)| Some((event, *listed.get(area)?))).collect()
    }
}
