//! The address space over time.

use crate::replay::{Replay, default_window, kernel_extent, largest_in};
use crate::trace::Trace;
use crate::trace::vmallocinfo::Table;
use base64::Engine;
use va_base::{AllocError, PAGE_SIZE};
use va_sim::platform::HeapPlatform;
use va_tree::rb::Linux;
use va_tree::{FreeIndex, RbIndex};

/// Columns of the picture, at most.
const COLUMNS: usize = 420;
/// Rows of the picture, shared among the clusters of addresses.
const ROWS: usize = 200;
/// Untouched bytes that separate two clusters.
const CLUSTER_GAP: u64 = 256 << 20;

/// A run of addresses that the trace touches, and its rows.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// First row, from the top; the lowest address is at the bottom.
    pub top_row: usize,
    /// Rows.
    pub rows: usize,
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

/// What the space looked like.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Runs of addresses, from high to low.
    pub clusters: Vec<Cluster>,
    /// Moments, one a column.
    pub moments: Vec<Moment>,
    /// Busy and lazy shares, `[row][column]`, 0 to 255.
    cells: Vec<Vec<[u8; 2]>>,
}

impl Picture {
    /// Draws a trace by replaying it on the faithful index.
    ///
    /// # Errors
    /// If the index refuses the space or its records.
    pub fn of(trace: &Trace, table: &Table) -> Result<Self, AllocError> {
        let window = default_window(trace);
        let make = || RbIndex::<Linux, _>::new(kernel_extent(), window, HeapPlatform::default());
        let events = &trace.events;
        let columns = events.len().clamp(1, COLUMNS);
        // The first pass learns which addresses matter.
        let mut replay = Replay::new(make()?, window, table);
        let mut touched: Vec<(u64, u64)> = Vec::new();
        for event in events {
            let before = replay.busy.len();
            replay.step(event);
            if replay.busy.len() > before || touched.is_empty() {
                touched.extend(latest(event, &replay.busy));
            }
        }
        let clusters = clusters(touched);
        let rows = clusters.last().map_or(0, |cluster| cluster.top_row + cluster.rows);
        let mut picture = Self { clusters, moments: Vec::new(), cells: vec![vec![[0; 2]; columns]; rows] };
        let mut replay = Replay::new(make()?, window, table);
        let mut done = 0;
        for column in 0..columns {
            let upto = events.len() * (column + 1) / columns;
            for event in &events[done..upto] {
                replay.step(event);
            }
            done = upto;
            let pages = |held: &std::collections::BTreeMap<u64, u64>| held.values().sum::<u64>() / PAGE_SIZE;
            picture.moments.push(Moment {
                event: done,
                holes: replay.index.hole_count(),
                largest: largest_in(&replay.index, window),
                busy_pages: pages(&replay.busy),
                lazy_pages: pages(&replay.lazy),
            });
            picture.paint(column, 0, replay.busy.iter());
            picture.paint(column, 1, replay.lazy.iter());
        }
        Ok(picture)
    }

    /// Adds areas to a column of the picture, into the given share.
    fn paint<'a>(&mut self, column: usize, share: usize, areas: impl Iterator<Item = (&'a u64, &'a u64)>) {
        let mut sums = vec![0f64; self.cells.len()];
        for (&start, &size) in areas {
            let Some(cluster) = self.clusters.iter().find(|c| c.start <= start && start < c.end) else {
                continue;
            };
            let per_row = (cluster.end - cluster.start) as f64 / cluster.rows as f64;
            let (from, to) =
                ((start - cluster.start) as f64 / per_row, (start - cluster.start + size) as f64 / per_row);
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

    /// The picture as a PNG in a data URI; `None` where there is nothing to see.
    pub fn png_uri(&self) -> Option<String> {
        let (height, width) = (self.cells.len(), self.moments.len());
        if height == 0 || width == 0 {
            return None;
        }
        let mut data = Vec::new();
        let mut encoder = png::Encoder::new(&mut data, width as u32, height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().ok()?;
        let pixels: Vec<u8> =
            self.cells.iter().flatten().flat_map(|&[busy, lazy]| colour(busy, lazy)).collect();
        writer.write_image_data(&pixels).ok()?;
        writer.finish().ok()?;
        let text = base64::engine::general_purpose::STANDARD.encode(&data);
        Some(format!("data:image/png;base64,{text}"))
    }

    /// Rows of the picture.
    pub fn rows(&self) -> usize {
        self.cells.len()
    }
}

/// White where free, blue where busy, orange where lazy. A trace of something must be seen: shares are raised.
fn colour(busy: u8, lazy: u8) -> [u8; 3] {
    let lift = |share: u8| if share == 0 { 0.0 } else { 0.18 + 0.82 * (f64::from(share) / 255.0).powf(0.7) };
    let (busy, lazy) = (lift(busy), lift(lazy));
    let scale = if busy + lazy > 1.0 { 1.0 / (busy + lazy) } else { 1.0 };
    let (busy, lazy) = (busy * scale, lazy * scale);
    let free = 1.0 - busy - lazy;
    let mix = |free_part: f64, busy_part: f64, lazy_part: f64| {
        (free * free_part + busy * busy_part + lazy * lazy_part).round().clamp(0.0, 255.0) as u8
    };
    [mix(244.0, 31.0, 230.0), mix(246.0, 94.0, 126.0), mix(250.0, 168.0, 34.0)]
}

/// The area that an event brought.
fn latest(event: &crate::trace::Event, busy: &std::collections::BTreeMap<u64, u64>) -> Option<(u64, u64)> {
    let at = match *event {
        crate::trace::Event::Alloc { addr, failed: false, .. } => addr,
        crate::trace::Event::ChunkCreate { base } => base,
        _ => return None,
    };
    busy.get(&at).map(|&size| (at, at.saturating_add(size)))
}

/// Groups ranges that lie near each other, and shares the rows among the groups by the root of their span.
fn clusters(mut touched: Vec<(u64, u64)>) -> Vec<Cluster> {
    touched.sort_unstable();
    let mut groups: Vec<(u64, u64)> = Vec::new();
    for (start, end) in touched {
        match groups.last_mut() {
            Some(last) if start.saturating_sub(last.1) < CLUSTER_GAP => last.1 = last.1.max(end),
            _ => groups.push((start, end)),
        }
    }
    let weight = |&(start, end): &(u64, u64)| ((end - start) as f64).sqrt();
    let total: f64 = groups.iter().map(weight).sum();
    let mut top_row = 0;
    groups
        .iter()
        .rev()
        .map(|group| {
            let rows = ((weight(group) / total * ROWS as f64) as usize).max(10);
            let cluster = Cluster { start: group.0, end: group.1, top_row, rows };
            top_row += rows;
            cluster
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_far_apart_are_drawn_apart_and_nothing_is_lost() {
        let clusters = clusters(vec![(0, 4096), (8192, 1 << 20), (1 << 40, (1 << 40) + 4096)]);
        assert_eq!(clusters.len(), 2);
        assert_eq!((clusters[0].start, clusters[1].end), (1 << 40, 1 << 20));
        assert_eq!(clusters[1].top_row, clusters[0].rows);
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
        let column = |at: usize| (picture.cells[0][at], picture.cells[picture.rows() - 1][at]);
        // The high half is busy, the low half was busy and became lazy.
        assert_eq!(column(1), ([255, 0], [255, 0]));
        assert_eq!(column(2), ([255, 0], [0, 255]));
        assert!(picture.png_uri().unwrap().starts_with("data:image/png;base64,iVBOR"));
    }

    #[test]
    fn an_empty_trace_has_no_picture() {
        let picture = Picture::of(&Trace::default(), &Table::default()).unwrap();
        assert!(picture.png_uri().is_none());
    }
}
