//! The address space at one time as a picture: busy areas by caller, lazy areas, pooled areas, and holes.
//!
//! ```text
//!   /proc/vmallocinfo ── read ──┐                      ┌─ fold ─ rows ─┬─ svg ─ html
//!   a trace at a time ── replayed ─┼── listing ─┬─ palette ┘               └─ blocks (a terminal)
//!   mappings of a process ─ process ┘            └─ measure (numbers) ─ export (JSON, CSV), the tables of all
//! ```

pub mod blocks;
pub mod export;
pub mod fold;
pub mod html;
pub mod listing;
pub mod measure;
pub mod palette;
pub mod process;
pub mod read;
pub mod replayed;
pub mod rows;
pub mod svg;

use fold::Fold;
use listing::Listing;
use measure::Numbers;
use palette::{Ink, Palette};
use rows::Row;
use vmlab_base::text::printable;

/// Rows of a picture, about.
pub const ROWS: usize = 40;

/// A listing, with everything that its pictures need.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Title of the picture.
    pub title: String,
    /// The areas.
    pub listing: Listing,
    /// Measurements.
    pub numbers: Numbers,
    /// Colours of the callers.
    pub palette: Palette,
    /// The drawn part of the line of addresses.
    pub fold: Fold,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
}

impl Picture {
    /// Measures a listing and lays it out.
    pub fn of(title: &str, listing: Listing, mut notes: Vec<String>) -> Self {
        let numbers = Numbers::of(&listing);
        let palette = Palette::of(&numbers);
        let fold = rows::fold_of(&listing);
        for (count, why) in [
            (listing.overlapping, "overlap another and are left out: the table changed while it was read"),
            (listing.beyond, "are left out: more than one picture takes"),
        ] {
            if count > 0 {
                notes.push(format!("{} {why}.", vmlab_base::text::counted(count, "area")));
            }
        }
        // Both may quote a file.
        let notes = notes.iter().map(|note| printable(note).into_owned()).collect();
        Self { title: printable(title).into_owned(), listing, numbers, palette, fold, notes }
    }

    /// Returns about `most` rows.
    pub fn rows(&self, most: usize) -> Vec<Row> {
        rows::wrap(&self.fold, most)
    }

    /// Returns one line: areas and bytes of each state, and the holes.
    pub fn summary(&self) -> String {
        use vmlab_base::text::{bytes, counted};
        let Numbers { busy, lazy, pooled, holes, largest_holes, .. } = &self.numbers;
        let mut parts = vec![format!("{} busy ({})", counted(busy.areas, "area"), bytes(busy.bytes))];
        for (amount, name) in [(lazy, "lazy"), (pooled, "pooled")] {
            if amount.areas > 0 {
                parts.push(format!(
                    "{} {name} ({})",
                    vmlab_base::text::grouped(amount.areas),
                    bytes(amount.bytes)
                ));
            }
        }
        parts.push(counted(holes.areas, "hole"));
        if holes.areas > 0 {
            let second =
                if holes.areas > 1 { format!(", then {}", bytes(largest_holes[1])) } else { String::new() };
            parts.push(format!("the largest {}{second}", bytes(largest_holes[0])));
        }
        parts.join(", ")
    }

    /// Returns the legend: an ink, its name, and its amount. Callers first, those with most bytes first.
    pub fn legend(&self) -> Vec<(Ink, String, String)> {
        use vmlab_base::text::{bytes, grouped};
        let amount = |areas: u64, sum: u64| format!("{} in {}", bytes(sum), grouped(areas));
        let mut legend = Vec::new();
        let (mut others, mut other_areas, mut other_bytes) = (0, 0, 0);
        for row in self.numbers.callers.iter().filter(|row| !palette::is_state(&row.name)) {
            match self.palette.place(row.number) {
                None if row.name == palette::UNCOUNTED => {
                    legend.push((Ink::Other, row.name.clone(), amount(row.areas, row.bytes)));
                }
                Some(place) => {
                    legend.push((Ink::Caller(place), row.name.clone(), amount(row.areas, row.bytes)));
                }
                None => {
                    (others, other_areas, other_bytes) =
                        (others + 1, other_areas + row.areas, other_bytes + row.bytes);
                }
            }
        }
        if others > 0 {
            let name = vmlab_base::text::counted(others, "other caller");
            legend.push((Ink::Other, name, amount(other_areas, other_bytes)));
        }
        let Numbers { lazy, pooled, holes, .. } = &self.numbers;
        for (ink, name, of) in
            [(Ink::Lazy, "lazy: freed, not purged", lazy), (Ink::Pooled, "pooled: purged, kept", pooled)]
        {
            if of.areas > 0 {
                legend.push((ink, name.to_string(), amount(of.areas, of.bytes)));
            }
        }
        legend.push((Ink::Hole, "free".to_string(), amount(holes.areas, holes.bytes)));
        legend
    }

    /// Describes the range that a fold omits.
    pub fn fold_note(&self, fold: fold::Part) -> String {
        let size = vmlab_base::text::bytes(fold.bytes());
        let free =
            self.listing.windows.iter().any(|window| window.start <= fold.start && fold.end <= window.end);
        if free {
            format!("{size} free, not drawn")
        } else {
            format!("{size} up to the next window, not drawn")
        }
    }
}

/// Draws a listing in every format, for fuzzing and tests; returns the bytes of the largest picture.
pub fn fuzz_draw(listing: &Listing) -> usize {
    let picture = Picture::of("fuzz", listing.clone(), Vec::new());
    let numbers = &picture.numbers;
    let inside: u64 = numbers.windows.iter().map(|row| row.end - row.start).sum();
    assert!(numbers.holes.bytes <= inside, "ME1");
    for style in [blocks::Style::Ascii, blocks::Style::Unicode, blocks::Style::Colour] {
        let text = blocks::draw(&picture, blocks::Look { style, width: 80, rows: 20 });
        assert!(text.len() < 1 << 20, "{} bytes of text", text.len());
    }
    assert!(!export::csv(&picture).is_empty() && !export::json(&picture).is_empty());
    assert!(svg::draw(&picture, svg::Titles::Without, crate::shape::Shape::Broad).len() < 12 << 20);
    html::page(&picture).len()
}
