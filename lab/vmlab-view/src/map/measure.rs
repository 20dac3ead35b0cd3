//! The numbers of a picture: the amount of each state, the largest hole for each alignment, the largest callers, and
//! the fragmentation by caller.
//!
//! # Theory
//! **Largest hole for an alignment**: the most bytes that a request with this alignment could get, over all holes of
//! all windows.
//!
//! **Fragmentation by caller**: a caller *keeps apart* the holes that would be one without its areas. Without these
//! areas, the holes around them merge into groups. The largest hole of each group can be used as before. The others,
//! which cannot be used together with it or with each other, are kept apart by the caller. Their bytes are counted for
//! it:
//!
//! ```text
//!   |B|..3..|A|.1.|A|....6....|B|.2.|C|          A keeps 3 + 1 apart (of 3, 1, 6); the first B nothing,
//!                                                since no hole is before it; the second B keeps 2 (of 6, 2)
//! ```
//!
//! A hole counts for each caller beside it, so the sum over callers may be more than all holes. Lazy areas form a
//! caller of their own, `(lazy)`, and so do pooled ones: their number shows what a purge would merge.
//!
//! # Invariants
//! - **ME1 whole** the windows' bytes are the sum of holes and of busy, lazy and pooled areas, as far as these are in
//!   windows.

use super::fold::Part;
use super::listing::{Area, Listing};
use serde::{Serialize, Serializer};
use vmlab_replay::state::State;

/// Alignments that are reported: pages and huge pages of x86-64 and arm64, and sizes in between.
pub const ALIGNS: [u64; 9] =
    [4 << 10, 16 << 10, 64 << 10, 512 << 10, 2 << 20, 32 << 20, 1 << 30, 16 << 30, 512 << 30];

/// Areas and bytes of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Number of areas.
    pub areas: u64,
    /// The sum of their bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: u64) {
        self.areas += 1;
        self.bytes += bytes;
    }
}

/// The largest hole for an alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Largest {
    /// The alignment, bytes.
    pub align: u64,
    /// The most bytes available from an aligned address on; 0 if there is no such address.
    pub bytes: u64,
    /// The lowest such address.
    #[serde(serialize_with = "hex_if")]
    pub at: Option<u64>,
    /// Holes that fit a request whose size is the alignment, aligned.
    pub holes: u64,
}

/// The memory of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallerRow {
    /// Its name; `(lazy)` and `(pooled)` for areas that are not busy.
    pub name: String,
    /// Its index in [`Listing::callers`].
    #[serde(skip)]
    pub number: u32,
    /// Areas.
    pub areas: u64,
    /// The sum of their bytes.
    pub bytes: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// Bytes of holes that it keeps apart (module head).
    pub keeps_apart: u64,
}

/// A window, and its free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowRow {
    /// First address.
    #[serde(serialize_with = "hex")]
    pub start: u64,
    /// Address after the last.
    #[serde(serialize_with = "hex")]
    pub end: u64,
    /// Holes in it.
    pub holes: u64,
    /// Their bytes.
    pub hole_bytes: u64,
}

/// All numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Numbers {
    /// Busy areas.
    pub busy: Amount,
    /// Freed areas, not purged.
    pub lazy: Amount,
    /// Areas in pools.
    pub pooled: Amount,
    /// Holes of all windows.
    pub holes: Amount,
    /// Bytes of the two largest holes.
    pub largest_holes: [u64; 2],
    /// Holes by size: `[n]` counts those of `2^n` bytes up to twice that.
    pub holes_by_size: Vec<u64>,
    /// The windows of areas.
    pub windows: Vec<WindowRow>,
    /// The largest hole for each alignment.
    pub aligned: Vec<Largest>,
    /// Callers, in descending order of bytes.
    pub callers: Vec<CallerRow>,
}

/// Writes an address as text: as a number, many readers of JSON would round it.
fn hex<S: Serializer>(address: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{address:#x}"))
}

fn hex_if<S: Serializer>(address: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => hex(address, to),
        None => to.serialize_none(),
    }
}

impl Numbers {
    /// Measures a listing: one walk for each kind of number, O(n) each, and a sort of the callers.
    pub fn of(listing: &Listing) -> Self {
        let mut numbers = Self { holes_by_size: vec![0; 64], ..Self::default() };
        numbers.aligned = ALIGNS.map(|align| Largest { align, bytes: 0, at: None, holes: 0 }).to_vec();
        let row = |(number, name): (usize, &String)| CallerRow {
            name: name.clone(),
            number: number as u32,
            areas: 0,
            bytes: 0,
            largest: 0,
            keeps_apart: 0,
        };
        numbers.callers = listing.callers.iter().enumerate().map(row).collect();
        for area in &listing.areas {
            numbers.area(area);
        }
        for &Part { start, end } in &listing.windows {
            numbers.windows.push(WindowRow { start, end, holes: 0, hole_bytes: 0 });
        }
        let mut window = 0;
        listing.walk(|part, area| {
            while numbers.windows[window].end <= part.start {
                window += 1;
            }
            if area.is_none() {
                numbers.windows[window].holes += 1;
                numbers.windows[window].hole_bytes += part.bytes();
                numbers.hole(part);
            }
        });
        keeps_apart(listing, &mut numbers.callers);
        numbers.callers.retain(|row| row.areas > 0);
        numbers.callers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        while numbers.holes_by_size.last() == Some(&0) {
            numbers.holes_by_size.pop();
        }
        numbers
    }

    fn area(&mut self, area: &Area) {
        let bytes = area.part.bytes();
        match area.state {
            State::Busy => self.busy.add(bytes),
            State::Lazy => self.lazy.add(bytes),
            State::Pooled => self.pooled.add(bytes),
        }
        let row = &mut self.callers[area.caller as usize];
        row.areas += 1;
        row.bytes += bytes;
        row.largest = row.largest.max(bytes);
    }

    fn hole(&mut self, hole: Part) {
        let bytes = hole.bytes();
        self.holes.add(bytes);
        self.holes_by_size[bytes.ilog2() as usize] += 1;
        let [first, second] = self.largest_holes;
        self.largest_holes = if bytes > first { [bytes, first] } else { [first, second.max(bytes)] };
        for row in &mut self.aligned {
            let Some(at) = hole.start.checked_next_multiple_of(row.align).filter(|&at| at < hole.end) else {
                continue;
            };
            row.holes += u64::from(hole.end - at >= row.align);
            if hole.end - at > row.bytes {
                (row.bytes, row.at) = (hole.end - at, Some(at));
            }
        }
    }

    /// Returns the callers that keep bytes apart, in descending order.
    pub fn by_keeps_apart(&self) -> Vec<&CallerRow> {
        let mut rows: Vec<&CallerRow> = self.callers.iter().filter(|row| row.keeps_apart > 0).collect();
        rows.sort_by(|a, b| b.keeps_apart.cmp(&a.keeps_apart).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

/// The group of holes around neighbours of one caller, during the walk.
#[derive(Default)]
struct Group {
    caller: Option<u32>,
    sum: u64,
    largest: u64,
}

impl Group {
    fn hole(&mut self, bytes: u64) {
        self.sum += bytes;
        self.largest = self.largest.max(bytes);
    }

    fn close(&self, callers: &mut [CallerRow]) {
        if let Some(caller) = self.caller {
            callers[caller as usize].keeps_apart += self.sum - self.largest;
        }
    }
}

/// Computes the bytes that each caller keeps apart. Between two groups of one caller there is an area of another. So no
/// hole is in two groups of one caller, and one walk finds all groups.
fn keeps_apart(listing: &Listing, callers: &mut [CallerRow]) {
    let (mut group, mut window, mut before) = (Group::default(), 0, 0);
    listing.walk(|part, area| {
        while listing.windows[window].end <= part.start {
            window += 1;
            group.close(callers);
            (group, before) = (Group::default(), 0);
        }
        match area {
            None => {
                before = part.bytes();
                group.hole(before);
            }
            Some(area) => {
                if group.caller != Some(area.caller) {
                    group.close(callers);
                    group = Group { caller: Some(area.caller), sum: before, largest: before };
                }
                before = 0;
            }
        }
    });
    group.close(callers);
}

#[cfg(test)]
#[path = "measure/tests.rs"]
mod tests;
