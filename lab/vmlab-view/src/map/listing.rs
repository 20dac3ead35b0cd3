//! The areas at one time, in address order, each with its state and its caller.
//!
//! # Invariants
//! - **ML1 ordered** areas are not empty, in address order, and do not overlap; an area that overlaps one before it is
//!   omitted and counted.

use super::fold::Part;
use std::collections::HashMap;
use vmlab_base::text::printable;
use vmlab_replay::state::State;

/// The most areas of one picture; more are counted and not drawn. A listing takes 24 bytes for each.
pub const AREAS_MAX: usize = 1 << 22;
/// The most callers that are distinguished; all others are drawn as one.
const CALLERS_MAX: usize = 1 << 16;
/// The most characters of a caller's name.
const NAME_MAX: usize = 120;

/// A range of addresses that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Its addresses.
    pub part: Part,
    /// Its caller, as an index into [`Listing::callers`].
    pub caller: u32,
    /// Its state.
    pub state: State,
}

/// The areas of a space.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// ML1: in address order.
    pub areas: Vec<Area>,
    /// Names, each once. Areas that are not busy have callers of their own: `(lazy)`, `(pooled)`.
    pub callers: Vec<String>,
    /// Windows of areas, ascending and disjoint: a range without an area is a hole.
    pub windows: Vec<Part>,
    /// Areas omitted because they overlap another.
    pub overlapping: u64,
    /// Areas omitted because there were too many.
    pub beyond: u64,
}

/// Collects the areas of a listing.
#[derive(Debug, Default)]
pub struct Builder {
    listing: Listing,
    numbers: HashMap<String, u32>,
}

impl Builder {
    /// Adds an area; an empty one is ignored. Control characters in the caller's name are shown as pictures.
    pub fn add(&mut self, part: Part, state: State, caller: &str) {
        if part.bytes() == 0 {
            return;
        }
        if self.listing.areas.len() == AREAS_MAX {
            self.listing.beyond += 1;
            return;
        }
        let caller = match state {
            State::Busy => self.number(&printable(caller)),
            State::Lazy => self.number("(lazy)"),
            State::Pooled => self.number("(pooled)"),
        };
        self.listing.areas.push(Area { part, caller, state });
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let full = self.listing.callers.len() >= CALLERS_MAX;
        let short: String =
            if full { "(other callers)".to_string() } else { name.chars().take(NAME_MAX).collect() };
        if short != name
            && let Some(&number) = self.numbers.get(&short)
        {
            return number;
        }
        let number = self.listing.callers.len() as u32;
        self.listing.callers.push(short.clone());
        self.numbers.insert(short, number);
        number
    }

    /// Returns the listing, in order (ML1). Without `windows` they are inferred: see [`inferred_windows`].
    pub fn finish(self, windows: Option<Vec<Part>>) -> Listing {
        let mut listing = self.listing;
        // Of two areas with one start the busy one is kept: it was read later, or is live.
        listing.areas.sort_by_key(|area| (area.part.start, area.state, area.part.end));
        let (before, mut end) = (listing.areas.len(), 0);
        listing.areas.retain(|area| {
            // Checks ML1.
            let apart = area.part.start >= end;
            if apart {
                end = area.part.end;
            }
            apart
        });
        listing.overlapping = (before - listing.areas.len()) as u64;
        listing.windows = windows.map_or_else(|| inferred_windows(&listing.areas), in_order);
        listing
    }
}

/// Start of the kernel's text and modules on x86-64, which are a separate window.
const TOP_WINDOW: u64 = 0xffff_ffff_8000_0000;

/// Infers windows from areas alone: from the first to the last of them, and another such range in the topmost 2 GiB.
/// The free addresses before the first area and after the last are unknown.
pub fn inferred_windows(areas: &[Area]) -> Vec<Part> {
    let split = areas.partition_point(|area| area.part.start < TOP_WINDOW);
    let (low, top) = areas.split_at(split);
    let around = |areas: &[Area]| match areas {
        [first, .., last] => Some(Part { start: first.part.start, end: last.part.end }),
        [one] => Some(one.part),
        [] => None,
    };
    in_order([around(low), around(top)].into_iter().flatten().collect())
}

/// Sorts windows and merges those that overlap or touch.
fn in_order(mut windows: Vec<Part>) -> Vec<Part> {
    windows.retain(|window| window.bytes() > 0);
    windows.sort_unstable();
    let mut joined: Vec<Part> = Vec::new();
    for window in windows {
        match joined.last_mut() {
            Some(last) if window.start <= last.end => last.end = last.end.max(window.end),
            _ => joined.push(window),
        }
    }
    joined
}

impl Listing {
    /// Sets the ranges that may contain areas.
    pub fn set_windows(&mut self, windows: Vec<Part>) {
        self.windows = in_order(windows);
    }

    /// Returns the name of an area's caller.
    pub fn caller(&self, area: &Area) -> &str {
        self.callers.get(area.caller as usize).map_or("", String::as_str)
    }

    /// Returns the areas that intersect a range.
    pub fn within(&self, range: Part) -> &[Area] {
        let first = self.areas.partition_point(|area| area.part.end <= range.start);
        let end = self.areas.partition_point(|area| area.part.start < range.end);
        self.areas.get(first..end).unwrap_or(&[])
    }

    /// Visits every window from its start to its end, in address order: holes, and areas cut to the window.
    pub fn walk(&self, mut visit: impl FnMut(Part, Option<&Area>)) {
        for window in &self.windows {
            let mut at = window.start;
            for area in self.within(*window) {
                let Some(cut) = area.part.cut(*window) else { continue };
                if at < cut.start {
                    visit(Part { start: at, end: cut.start }, None);
                }
                visit(cut, Some(area));
                at = cut.end;
            }
            if at < window.end {
                visit(Part { start: at, end: window.end }, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, end: u64) -> Part {
        Part { start, end }
    }

    #[test]
    fn ml1_areas_are_in_order_and_what_overlaps_is_counted() {
        let mut builder = Builder::default();
        for (start, end, state) in [
            (30, 40, State::Busy),
            (10, 20, State::Lazy),
            (10, 15, State::Busy),
            (35, 50, State::Busy),
            (50, 50, State::Busy),
            (15, 30, State::Pooled),
        ] {
            builder.add(part(start, end), state, "a");
        }
        let listing = builder.finish(None);
        let parts: Vec<_> = listing.areas.iter().map(|area| area.part).collect();
        assert_eq!(parts, [part(10, 15), part(15, 30), part(30, 40)]);
        assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!((listing.overlapping, listing.beyond), (2, 0));
        assert_eq!(
            listing.areas.iter().map(|area| listing.caller(area)).collect::<Vec<_>>(),
            ["a", "(pooled)", "a"]
        );
        assert_eq!(listing.windows, [part(10, 40)]);
    }

    #[test]
    fn the_topmost_addresses_are_a_window_of_their_own() {
        let mut builder = Builder::default();
        let (low, top) = (0xffff_c900_0000_0000, 0xffff_ffff_c000_0000);
        for start in [low, low + 0x9000, top, top + 0x5000] {
            builder.add(part(start, start + 0x1000), State::Busy, "f");
        }
        let listing = builder.finish(None);
        assert_eq!(listing.windows, [part(low, low + 0xa000), part(top, top + 0x6000)]);
        let mut seen = Vec::new();
        listing.walk(|part, area| seen.push((part.bytes() >> 12, area.is_some())));
        assert_eq!(seen, [(1, true), (8, false), (1, true), (1, true), (4, false), (1, true)]);
    }

    #[test]
    fn windows_cut_areas_and_are_joined_where_they_touch() {
        let mut builder = Builder::default();
        builder.add(part(5, 15), State::Busy, "f");
        builder.add(part(40, 60), State::Busy, "f");
        let listing = builder.finish(Some(vec![part(30, 50), part(10, 20), part(20, 30), part(9, 9)]));
        assert_eq!(listing.windows, [part(10, 50)]);
        let mut seen = Vec::new();
        listing.walk(|part, area| seen.push((part.start, part.end, area.is_some())));
        assert_eq!(seen, [(10, 15, true), (15, 40, false), (40, 50, true)]);
        assert_eq!(listing.within(part(15, 40)), []);
        assert_eq!(listing.within(part(14, 41)).len(), 2);
    }

    #[test]
    fn callers_are_numbered_once_and_a_hostile_listing_has_not_too_many() {
        let mut builder = Builder::default();
        let count = CALLERS_MAX as u64 + 50;
        for n in 0..count {
            builder.add(part(n * 2, n * 2 + 1), State::Busy, &format!("f{n}"));
        }
        builder.add(part(count * 2, count * 2 + 1), State::Busy, "f0");
        let long = "x".repeat(NAME_MAX + 9);
        let listing = builder.finish(None);
        assert_eq!(listing.callers.len(), CALLERS_MAX + 1);
        assert_eq!(listing.areas.last().map(|area| area.caller), Some(0));
        assert_eq!(listing.areas[CALLERS_MAX + 7].caller, CALLERS_MAX as u32);
        let mut builder = Builder::default();
        builder.add(part(0, 1), State::Busy, &long);
        builder.add(part(1, 2), State::Busy, &(long.clone() + "y"));
        assert_eq!(builder.finish(None).callers, ["x".repeat(NAME_MAX)]);
    }
}
