//! The address space over time.

use super::facts::EndFacts;
use crate::map::measure::Amount;
use base64::Engine;
use std::collections::BTreeMap;
use va_base::{AllocError, PAGE_SIZE, Request, VaRange};
use va_sim::areas::{AreaMap, SpaceAreas};
use va_sim::platform::HeapPlatform;
use va_tree::rb::Linux;
use va_tree::{FreeIndex, RbIndex};
use vmlab_machine::kernel_extent;
use vmlab_replay::{Replay, default_window};
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Event, Trace};

/// The most columns of the picture.
pub(super) const COLUMNS: usize = 420;
/// Rows of the picture, shared among the clusters of addresses.
const ROWS: usize = 180;
/// Fewest rows of a cluster: its four lines of labels need them.
const ROWS_MIN: usize = 34;
/// Untouched bytes that separate two clusters.
const CLUSTER_GAP: u64 = 16 << 20;

/// The most panels, unless no two neighbours are of one region.
const PANELS: usize = 6;
/// Neighbours below one in this many of the drawn bytes share a panel.
const SMALL_PART: u64 = 8;

/// Addresses that the trace touches, drawn as one panel.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Ranges of addresses, each `[start, end)`, ascending; the gaps between them are not drawn.
    pub runs: Vec<(u64, u64)>,
    /// First row, from the top; the lowest address is at the bottom.
    pub top_row: usize,
    /// Rows.
    pub rows: usize,
    /// The region.
    pub region: Region,
}

/// The use of a cluster of addresses, as far as events show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// Inside the window that most allocations name.
    Vmalloc,
    /// Inside that window, with percpu chunks.
    Percpu,
    /// Outside that window: on x86-64, modules.
    Elsewhere,
}

impl Cluster {
    /// First address.
    pub fn start(&self) -> u64 {
        self.runs.first().map_or(0, |run| run.0)
    }

    /// Address after the last.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.1)
    }

    /// Bytes that the panel shows.
    pub fn span(&self) -> u64 {
        self.runs.iter().map(|run| run.1 - run.0).sum()
    }

    /// Returns the height at which `at` is drawn, in bytes; `None` if it is not drawn.
    fn height_of(&self, at: u64) -> Option<u64> {
        let mut below = 0;
        for &(start, end) in &self.runs {
            if at < end {
                return (at >= start).then(|| below + (at - start));
            }
            below += end - start;
        }
        None
    }
}

impl Region {
    /// The name shown to readers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmalloc => "vmalloc range",
            Self::Percpu => "percpu chunks",
            Self::Elsewhere => "other window",
        }
    }
}

/// One moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Events so far.
    pub event: usize,
    /// Holes in the whole space.
    pub holes: u64,
    /// Largest free range in the window, bytes.
    pub largest: u64,
    /// Pages that are busy.
    pub busy_pages: u64,
    /// Pages that are lazy.
    pub lazy_pages: u64,
}

/// The extremes of the states before the first event and after each, with the number of events before the first state
/// that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The most busy pages.
    pub busy_pages: (u64, usize),
    /// The most busy areas.
    pub busy_areas: (u64, usize),
    /// The most lazy pages.
    pub lazy_pages: (u64, usize),
    /// The most lazy areas.
    pub lazy_areas: (u64, usize),
    /// The most holes.
    pub holes: (u64, usize),
    /// Bytes of the largest free range in the window at its smallest.
    pub least: (u64, usize),
    /// Its bytes before the first event.
    pub first: u64,
}

impl Peaks {
    /// Measures a replay after an event, from 1. `grew` is true if the event freed ranges.
    fn note(
        &mut self,
        event: usize,
        grew: bool,
        largest: &mut u64,
        replay: &Replay<'_, impl FreeIndex>,
        window: VaRange,
    ) {
        let most = |peak: &mut (u64, usize), value: u64| {
            if value > peak.0 {
                *peak = (value, event);
            }
        };
        most(&mut self.busy_pages, replay.areas.busy.bytes() / PAGE_SIZE);
        most(&mut self.lazy_pages, replay.areas.lazy.bytes() / PAGE_SIZE);
        most(&mut self.busy_areas, replay.areas.busy.len() as u64);
        most(&mut self.lazy_areas, replay.areas.lazy.len() as u64);
        most(&mut self.holes, replay.index.hole_count());
        *largest = largest_from(*largest, grew, replay, window);
        if *largest < self.least.0 {
            self.least = (*largest, event);
        }
    }
}

/// Returns the bytes of the largest free range of whole pages in the window, which had `before` bytes. It grows only if
/// ranges were freed. O(log n) if it did not change.
fn largest_from(before: u64, grew: bool, replay: &Replay<'_, impl FreeIndex>, window: VaRange) -> u64 {
    let fits = |bytes: u64| {
        bytes == 0
            || Request::new(bytes, PAGE_SIZE)
                .is_ok_and(|request| replay.index.would_fit(&request.within(window)).is_ok())
    };
    let (mut low, mut high) = (0, before / PAGE_SIZE);
    if fits(before) {
        if !grew || !fits(before + PAGE_SIZE) {
            return before;
        }
        (low, high) = (before / PAGE_SIZE + 1, window.len_bytes() / PAGE_SIZE);
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle * PAGE_SIZE) { low = middle } else { high = middle - 1 }
    }
    low * PAGE_SIZE
}

/// The state of the space.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The panels, from high to low addresses.
    pub clusters: Vec<Cluster>,
    /// Moments, one for each column.
    pub moments: Vec<Moment>,
    /// Events before the first that is shown.
    pub begins: usize,
    /// The extremes of all events that are shown, also of those between moments.
    pub peaks: Peaks,
    /// Bytes of the window that most allocations name.
    pub window_bytes: u64,
    /// Busy and lazy areas at the last moment.
    areas: [u64; 2],
    /// Busy and lazy shares, `[row][column]`, 0 to 255.
    cells: Vec<Vec<[u8; 2]>>,
}

impl Picture {
    /// Draws a trace by replaying it on the index that searches as Linux does.
    ///
    /// # Errors
    /// If the index does not accept the space, or has no memory for its records.
    pub fn of(trace: &Trace, table: &Table) -> Result<Self, AllocError> {
        let window = default_window(trace);
        let make = || RbIndex::<Linux, _>::new(kernel_extent(), window, HeapPlatform::default());
        let events = &trace.events;
        let begins = trace.begins();
        let shown = events.len() - begins;
        let columns = shown.clamp(1, COLUMNS);
        // The first pass finds the addresses that are used.
        let mut replay = Replay::new(make()?, window, table);
        // Before the first event that is shown there are the areas that stood then.
        let mut begin = Replay::new(make()?, window, table);
        begin.run(&trace.first(begins));
        let SpaceAreas { busy, lazy, .. } = &begin.areas;
        let held = busy.iter().map(|(start, size, _)| (start, size));
        let held = held.chain(lazy.iter().map(|(start, size, _)| (start, size)));
        let ends = |(start, size): (u64, u64)| (start, start.saturating_add(size));
        let (mut touched, mut before) = (held.map(ends).collect::<Vec<_>>(), 0);
        let first = largest_from(window.len_bytes(), false, &begin, window);
        let (mut largest, mut peaks) = (first, Peaks { first, least: (u64::MAX, 0), ..Peaks::default() });
        peaks.note(begins, false, &mut largest, &begin, window);
        replay.run_watched(trace, |at, replay| {
            if at < begins {
                return;
            }
            let grew = matches!(events[at], Event::Purge { .. });
            peaks.note(at + 1, grew, &mut largest, replay, window);
            let busy = &replay.areas.busy;
            if busy.len() > before || touched.is_empty() {
                touched.extend(latest(&events[at], busy));
            }
            before = busy.len();
        });
        let chunks = events.iter().filter_map(|event| match *event {
            Event::ChunkCreate { base } => Some(base),
            _ => None,
        });
        let clusters = clusters(touched, window, &chunks.collect::<Vec<_>>());
        let rows = clusters.last().map_or(0, |cluster| cluster.top_row + cluster.rows);
        let cells = vec![vec![[0; 2]; columns]; rows];
        let (window_bytes, areas) = (window.len_bytes(), [0; 2]);
        let mut picture = Self { clusters, moments: Vec::new(), begins, peaks, window_bytes, areas, cells };
        let mut replay = Replay::new(make()?, window, table);
        // Many areas live for less than a column: draw every area allocated in it.
        let mut busy = BTreeMap::new();
        replay.run_watched(trace, |at, replay| {
            if at < begins {
                return;
            }
            busy.extend(latest(&events[at], &replay.areas.busy).map(|(start, end)| (start, end - start)));
            if at + 1 - begins == shown * (picture.moments.len() + 1) / columns {
                picture.add_column(at + 1, std::mem::take(&mut busy), replay);
            }
        });
        if events.is_empty() {
            picture.add_column(0, busy, &replay);
        }
        Ok(picture)
    }

    /// Adds the column of the moment after `event` events, with the areas in `busy` beside those of the replay.
    fn add_column(
        &mut self,
        event: usize,
        mut busy: BTreeMap<u64, u64>,
        replay: &Replay<'_, impl FreeIndex>,
    ) {
        let SpaceAreas { busy: held, lazy, .. } = &replay.areas;
        fn sizes<T>(areas: &AreaMap<T>) -> Vec<(u64, u64)> {
            areas.iter().map(|(start, size, _)| (start, size)).collect()
        }
        let column = self.moments.len();
        self.areas = [held.len() as u64, lazy.len() as u64];
        self.moments.push(Moment {
            event,
            holes: replay.index.hole_count(),
            largest: replay.largest_in_window(),
            busy_pages: held.bytes() / PAGE_SIZE,
            lazy_pages: lazy.bytes() / PAGE_SIZE,
        });
        busy.extend(sizes(held));
        self.paint(column, 0, busy);
        self.paint(column, 1, sizes(lazy));
    }

    /// Adds areas to a column of the picture, to the share of index `share`.
    fn paint(&mut self, column: usize, share: usize, areas: impl IntoIterator<Item = (u64, u64)>) {
        let mut sums = vec![0f64; self.cells.len()];
        for (start, size) in areas {
            let place = self.clusters.iter().find_map(|cluster| Some((cluster, cluster.height_of(start)?)));
            let Some((cluster, height)) = place else { continue };
            let per_row = cluster.span() as f64 / cluster.rows as f64;
            let (from, to) = (height as f64 / per_row, (height + size) as f64 / per_row);
            let mut at = from;
            while at < to {
                let row = (at.floor() as usize).min(cluster.rows - 1);
                let next = (row as f64 + 1.0).min(to);
                // The lowest address is at the bottom.
                sums[cluster.top_row + cluster.rows - 1 - row] += (next - at).max(0.0);
                at = if next > at { next } else { to };
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            self.cells[row][column][share] = (sum.min(1.0) * 255.0).round() as u8;
        }
    }

    /// Returns the state at the last moment.
    pub fn end(&self) -> EndFacts {
        let last = self.moments.last().copied().unwrap_or_default();
        let [busy, lazy] = self.areas;
        EndFacts {
            busy: Amount { areas: busy, bytes: last.busy_pages * PAGE_SIZE },
            lazy: Amount { areas: lazy, bytes: last.lazy_pages * PAGE_SIZE },
            holes: last.holes,
            largest_hole: last.largest,
        }
    }

    /// Returns one cluster as a PNG in a data URI. Free ranges are transparent, so that it suits any background.
    pub fn png_uri(&self, cluster: &Cluster) -> Option<String> {
        let cells = self.cells.get(cluster.top_row..cluster.top_row + cluster.rows)?;
        let mut data = Vec::new();
        let mut encoder = png::Encoder::new(&mut data, self.moments.len() as u32, cluster.rows as u32);
        encoder.set_color(png::ColorType::Rgba);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().ok()?;
        let pixels: Vec<u8> = cells.iter().flatten().flat_map(|&[busy, lazy]| colour(busy, lazy)).collect();
        writer.write_image_data(&pixels).ok()?;
        writer.finish().ok()?;
        let text = base64::engine::general_purpose::STANDARD.encode(&data);
        Some(format!("data:image/png;base64,{text}"))
    }
}

/// Returns blue for busy, orange for lazy, transparent for free. Shares are raised, so that small ones stay visible.
fn colour(busy: u8, lazy: u8) -> [u8; 4] {
    const BUSY: [f64; 3] = [47.0, 111.0, 190.0];
    const LAZY: [f64; 3] = [226.0, 135.0, 43.0];
    let lift = |share: u8| if share == 0 { 0.0 } else { 0.2 + 0.8 * (f64::from(share) / 255.0).powf(0.7) };
    let (busy, lazy) = (lift(busy), lift(lazy));
    let used = busy + lazy;
    if used == 0.0 {
        return [0; 4];
    }
    let mix = |at: usize| ((busy * BUSY[at] + lazy * LAZY[at]) / used).round() as u8;
    [mix(0), mix(1), mix(2), (used.min(1.0) * 255.0).round() as u8]
}

/// Returns the area that an event allocated.
fn latest(event: &Event, busy: &AreaMap) -> Option<(u64, u64)> {
    let at = match *event {
        Event::Alloc { addr, failed: false, .. } => addr,
        Event::ChunkCreate { base } => base,
        _ => return None,
    };
    busy.get(at).map(|(size, ())| (at, at.saturating_add(size)))
}

/// Groups nearby ranges into panels, and divides the rows among them by the root of their span.
fn clusters(mut touched: Vec<(u64, u64)>, window: VaRange, chunks: &[u64]) -> Vec<Cluster> {
    touched.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (start, end) in touched {
        match runs.last_mut() {
            Some(last) if start.saturating_sub(last.1) < CLUSTER_GAP => last.1 = last.1.max(end),
            _ => runs.push((start, end)),
        }
    }
    let region = |&(start, end): &(u64, u64)| {
        if chunks.iter().any(|base| (start..end).contains(base)) {
            Region::Percpu
        } else if start >= window.start().get() && start < window.end().get() {
            Region::Vmalloc
        } else {
            Region::Elsewhere
        }
    };
    let cluster = |run: &(u64, u64)| Cluster { runs: vec![*run], top_row: 0, rows: 0, region: region(run) };
    let mut clusters: Vec<Cluster> = runs.iter().map(cluster).collect();
    // Neighbours of one region share a panel if both are small compared to the total, or if there are too many panels.
    let total: u64 = clusters.iter().map(Cluster::span).sum();
    while let Some(at) = (1..clusters.len())
        .filter(|&at| clusters[at - 1].region == clusters[at].region)
        .min_by_key(|&at| clusters[at - 1].span() + clusters[at].span())
        .filter(|&at| {
            let small = |at: usize| clusters[at].span() < total / SMALL_PART;
            small(at - 1) && small(at) || clusters.len() > PANELS
        })
    {
        let upper = clusters.remove(at);
        clusters[at - 1].runs.extend(upper.runs);
    }
    clusters.reverse();
    let weight = |cluster: &Cluster| (cluster.span() as f64).sqrt();
    let weights: f64 = clusters.iter().map(weight).sum();
    let mut top_row = 0;
    for cluster in &mut clusters {
        cluster.top_row = top_row;
        cluster.rows = ((weight(cluster) / weights * ROWS as f64) as usize).max(ROWS_MIN);
        top_row += cluster.rows;
    }
    clusters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_far_apart_are_drawn_apart_and_nothing_is_lost() {
        let window = VaRange::from_pages(0, 1 << 20).unwrap();
        let touched =
            vec![(0, 4096), (8192, 1 << 20), (1 << 31, (1 << 31) + 4096), (1 << 40, (1 << 40) + 4096)];
        let clusters = clusters(touched, window, &[1 << 31]);
        let regions: Vec<Region> = clusters.iter().map(|cluster| cluster.region).collect();
        assert_eq!(regions, [Region::Elsewhere, Region::Percpu, Region::Vmalloc]);
        assert_eq!((clusters[0].start(), clusters[2].end()), (1 << 40, 1 << 20));
        assert_eq!(clusters[1].top_row, clusters[0].rows);
    }

    #[test]
    fn many_small_ranges_share_a_panel_and_each_has_its_place_in_it() {
        let window = VaRange::from_pages(0, 1 << 40).unwrap();
        let small = (1..40u64).map(|n| (n << 32, (n << 32) + 8192));
        let clusters = clusters(small.chain([(0, 1 << 24)]).collect(), window, &[]);
        let runs: Vec<usize> = clusters.iter().map(|cluster| cluster.runs.len()).collect();
        assert_eq!(runs, [39, 1], "the large one keeps its panel");
        let cluster = &clusters[0];
        assert_eq!(cluster.height_of(cluster.runs[1].0 + 4096), Some(8192 + 4096));
        assert_eq!((cluster.height_of(cluster.runs[0].1), cluster.height_of(cluster.end())), (None, None));
        let large = (1..40u64).map(|n| (n << 32, (n << 32) + (1 << 24)));
        let clusters = super::clusters(large.collect(), window, &[]);
        assert!((2..=PANELS).contains(&clusters.len()));
        assert_eq!(clusters.iter().map(|cluster| cluster.runs.len()).sum::<usize>(), 39);
    }

    #[test]
    fn peaks_are_those_of_every_event_and_not_of_the_moments() {
        let alloc = |at: u64| {
            let at = 0x10_0000 + at * 8192;
            format!(
                "alloc_vmap_area: va_start: {at} size=8192 align=1 vstart=0x100000 vend=0x200fff failed=0\n"
            )
        };
        let free = |at: u64| {
            format!("free_vmap_area_noflush: va_start={:#x} nr_lazy=2 nr_lazy_max=9\n", 0x10_0000 + at * 8192)
        };
        let purge = |purged: u64| format!("purge_vmap_area_lazy: start=0x0 end=0x0 num_purged={purged}\n");
        let pair = (0..COLUMNS as u64 * 4).map(|_| alloc(0) + &free(0) + &purge(1)).collect::<String>();
        // Between two moments: five areas, of which two are freed apart.
        let five = (0..5).map(alloc).collect::<String>() + &free(1) + &free(3) + &purge(2);
        let rest = [0, 2, 4].map(free).concat() + &purge(3);
        let text = pair.clone() + &five + &rest + &pair;
        let picture = Picture::of(&Trace::read(text.as_bytes()), &Table::default()).unwrap();
        let events = COLUMNS * 4 * 3;
        let Peaks { busy_pages, lazy_pages, busy_areas, lazy_areas, holes, least, first } = picture.peaks;
        assert_eq!((busy_areas, lazy_areas), ((5, events + 5), (3, events + 11)));
        assert_eq!((busy_pages, lazy_pages), ((10, events + 5), (6, events + 11)));
        // The space below the window, two holes in it and the rest.
        assert_eq!((holes, first), ((4, events + 8), 0x10_0000));
        assert_eq!(least, (0x10_0000 - 10 * 4096, events + 5));
        // What stood before the first event counts.
        let mut silent = Trace::read((free(0) + &purge(1)).as_bytes());
        silent.stand_on(&Table::read("0x100000-0x110000 65536 f+0x1/0x2 vmalloc\n".as_bytes()));
        assert_eq!(Picture::of(&silent, &Table::default()).unwrap().peaks.busy_pages, (16, 0));
        let drawn = picture.moments.iter().map(|moment| moment.busy_pages).max();
        assert!(drawn < Some(10), "{drawn:?}");
    }

    #[test]
    fn a_picture_shows_what_is_busy_and_what_is_lazy() {
        let text = "alloc_vmap_area: va_start: 1048576 size=8192 align=1 vstart=0x100000 vend=0x200fff failed=0\n\
                    alloc_vmap_area: va_start: 1056768 size=8192 align=1 vstart=0x100000 vend=0x200fff failed=0\n\
                    free_vmap_area_noflush: va_start=0x100000 nr_lazy=2 nr_lazy_max=9\n";
        let picture = Picture::of(&Trace::read(text.as_bytes()), &Table::default()).unwrap();
        assert_eq!(picture.moments.len(), 3);
        let last = picture.moments[2];
        assert_eq!((last.busy_pages, last.lazy_pages), (2, 2));
        let column = |at: usize| (picture.cells[0][at], picture.cells[picture.cells.len() - 1][at]);
        // The high half is busy, the low half was busy and became lazy.
        assert_eq!(column(1), ([255, 0], [255, 0]));
        assert_eq!(column(2), ([255, 0], [0, 255]));
        let uri = picture.png_uri(&picture.clusters[0]).unwrap();
        assert!(uri.starts_with("data:image/png;base64,iVBOR"));
        assert_eq!((colour(255, 0)[3], colour(0, 255)[3], colour(0, 0)[3]), (255, 255, 0));
    }

    #[test]
    fn an_empty_trace_has_no_picture() {
        let picture = Picture::of(&Trace::default(), &Table::default()).unwrap();
        assert!(picture.clusters.is_empty() && picture.moments.iter().all(|m| m.busy_pages == 0));
    }
}
