//! A folded line of addresses wrapped into rows, and the strips that are painted in each.
//!
//! # Theory
//! In one row a page would have a thousandth of a pixel. So each part of a fold is wrapped, like text:
//!
//! ```text
//!   ffa0000000000000  |AAAA.BB......CCCCCC....|      a row has a power of two bytes and begins at a multiple
//!   ffa0000000100000  |CC....DDDDDDDDDDDDDDDDD|      of them: each address has its column, alignment is an edge
//!   ~~~ 49.9 TiB ~~~                                 a fold
//!   ffd1ffffffc00000  |EEEEEEEEEEEEEEEEEEEEEEE|
//! ```
//!
//! All parts have rows of equally many bytes, except those too small to fill one, which have shorter rows with their
//! own scale. Areas smaller than a cell share it with their neighbours; the cell is painted as what most of it is.
//!
//! # Invariants
//! - **RO1 all-rows** the rows of a part cover it, each once, ascending.
//! - **RO2 all-bytes** the strips painted in the rows have as many bytes as the areas.

use super::fold::{Fold, Part};
use super::listing::{Area, Listing};
use super::palette::{Ink, Palette};
use vmlab_replay::state::State;

/// Bytes of the shortest row.
const ROW_MIN: u64 = 64 << 10;

/// A row of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the part.
    pub part: usize,
    /// First address: a multiple of `bytes`, which may be before the part.
    pub start: u64,
    /// Bytes of the row.
    pub bytes: u64,
}

impl Row {
    /// Returns the range of the part in this row.
    pub fn range(self, fold: &Fold) -> Part {
        let whole = Part { start: self.start, end: self.start.saturating_add(self.bytes) };
        fold.parts()[self.part].cut(whole).unwrap_or(Part { start: self.start, end: self.start })
    }
}

/// Wraps the parts of a fold into about `rows_max` rows, with as few bytes for each row as that allows. Each part has
/// at least one row, and two if a multiple of their size is inside the part.
pub fn wrap(fold: &Fold, rows_max: usize) -> Vec<Row> {
    let count = |part: &Part, bytes: u64| {
        let bytes = scale(part, bytes);
        (part.end - 1) / bytes - part.start / bytes + 1
    };
    let most = rows_max.max(2 * fold.parts().len()) as u64;
    let mut bytes = ROW_MIN;
    while bytes < 1 << 63
        && fold.parts().iter().map(|part| count(part, bytes)).fold(0, u64::saturating_add) > most
    {
        bytes *= 2;
    }
    let mut rows = Vec::new();
    for (number, part) in fold.parts().iter().enumerate() {
        let own = scale(part, bytes);
        // Checks RO1: from the row of the first byte to that of the last.
        let numbers = part.start / own..=(part.end - 1) / own;
        rows.extend(numbers.map(|row| Row { part: number, start: row * own, bytes: own }));
    }
    rows
}

/// Returns the bytes of the rows of a part, if most parts have `bytes`.
fn scale(part: &Part, bytes: u64) -> u64 {
    let own = part.bytes().checked_next_power_of_two().unwrap_or(1 << 63);
    own.clamp(ROW_MIN, bytes.max(ROW_MIN))
}

/// A painted strip of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strip {
    /// Start, in cells from the row's start.
    pub from: f64,
    /// Width in cells.
    pub width: f64,
    /// Ink of the majority.
    pub ink: Ink,
    /// Bytes of areas in it.
    pub bytes: u64,
    /// Areas in it.
    pub areas: u64,
    /// The index in [`Listing::areas`], if the strip is a single area.
    pub alone: Option<usize>,
}

/// Paints a row of `cells` cells. An area of at least a cell is one strip; smaller ones are merged with others of their
/// cell. At most two strips for each cell, however many areas there are.
pub fn paint(row: Row, fold: &Fold, listing: &Listing, palette: &Palette, cells: usize) -> Vec<Strip> {
    let range = row.range(fold);
    let scale = cells as f64 / row.bytes as f64;
    let mut strips = Vec::new();
    let (mut crowd, mut given) = (Crowd::default(), 0);
    let first = listing.areas.partition_point(|area| area.part.end <= range.start);
    for (offset, area) in listing.areas[first..].iter().enumerate() {
        if area.part.start >= range.end {
            break;
        }
        let Some(cut) = area.part.cut(range) else { continue };
        given += cut.bytes();
        let from = (cut.start - row.start) as f64 * scale;
        let width = cut.bytes() as f64 * scale;
        let ink = palette.ink(area);
        if width >= 1.0 {
            crowd.close(&mut strips);
            strips.push(Strip {
                from,
                width,
                ink,
                bytes: cut.bytes(),
                areas: 1,
                alone: Some(first + offset),
            });
        } else {
            // The cell that contains its middle.
            let cell = (from + width / 2.0) as usize;
            if crowd.cell != Some(cell) {
                crowd.close(&mut strips);
                crowd.cell = Some(cell);
            }
            crowd.add(ink, cut.bytes(), first + offset);
        }
    }
    crowd.close(&mut strips);
    debug_assert_eq!(strips.iter().map(|strip| strip.bytes).sum::<u64>(), given, "RO2");
    strips
}

/// Areas that share a cell.
#[derive(Default)]
struct Crowd {
    cell: Option<usize>,
    inks: Vec<(Ink, u64)>,
    areas: u64,
    last: usize,
}

impl Crowd {
    fn add(&mut self, ink: Ink, bytes: u64, area: usize) {
        self.areas += 1;
        self.last = area;
        match self.inks.iter_mut().find(|(known, _)| *known == ink) {
            Some((_, sum)) => *sum += bytes,
            None => self.inks.push((ink, bytes)),
        }
    }

    fn close(&mut self, strips: &mut Vec<Strip>) {
        let bytes = self.inks.iter().map(|(_, bytes)| bytes).sum();
        let most = self.inks.iter().copied().max_by_key(|&(ink, bytes)| (bytes, std::cmp::Reverse(ink)));
        if let (Some(cell), Some((ink, _))) = (self.cell.take(), most) {
            let alone = (self.areas == 1).then_some(self.last);
            strips.push(Strip { from: cell as f64, width: 1.0, ink, bytes, areas: self.areas, alone });
        }
        (self.areas, self.last) = (0, 0);
        self.inks.clear();
    }
}

/// A cell of a picture of characters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Ink of what most of its areas are; a hole only if all of it is free, so that every area is visible.
    pub ink: Ink,
    /// The share of its bytes that is not free, more than 0 unless it is a hole.
    pub used: f64,
}

/// Returns the cells of a row. `None` is outside the part.
pub fn cells(row: Row, fold: &Fold, listing: &Listing, palette: &Palette, count: usize) -> Vec<Option<Cell>> {
    let range = row.range(fold);
    let edge = |cell: usize| row.start + (u128::from(row.bytes) * cell as u128 / count as u128) as u64;
    let mut inks: Vec<(Ink, u64)> = Vec::new();
    let cell = |cell: usize| {
        let end = if cell + 1 == count { row.start.saturating_add(row.bytes) } else { edge(cell + 1) };
        let here = Part { start: edge(cell), end }.cut(range)?;
        inks.clear();
        for area in listing.within(here) {
            let bytes = area.part.cut(here).map_or(0, Part::bytes);
            let ink = palette.ink(area);
            match inks.iter_mut().find(|(known, _)| *known == ink) {
                Some((_, sum)) => *sum += bytes,
                None => inks.push((ink, bytes)),
            }
        }
        let most = inks.iter().copied().max_by_key(|&(ink, bytes)| (bytes, std::cmp::Reverse(ink)));
        let used: u64 = inks.iter().map(|(_, bytes)| bytes).sum();
        let share = used as f64 / here.bytes().max(1) as f64;
        Some(Cell { ink: most.map_or(Ink::Hole, |(ink, _)| ink), used: share })
    };
    (0..count).map(cell).collect()
}

/// Folds the areas of a listing, not its windows, whose ends may be far away.
pub fn fold_of(listing: &Listing) -> Fold {
    Fold::of(listing.areas.iter().map(|area: &Area| area.part), super::fold::Rule::default())
}

/// Returns the states that occur in a listing.
pub fn states(listing: &Listing) -> Vec<State> {
    let has = |&state: &State| listing.areas.iter().any(|area| area.state == state);
    State::ALL.into_iter().filter(has).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::listing::Builder;
    use crate::map::measure::Numbers;
    use va_sim::op::Rng;

    fn listing(rng: &mut Rng) -> Listing {
        let mut builder = Builder::default();
        let mut at = rng.next_u64() >> (12 + rng.below(30));
        for _ in 0..=rng.below(300) {
            at += [1, 2, 9, 300, 1 << 20][rng.below(5) as usize] << 12;
            let size = [1, 2, 5, 40, 3000][rng.below(5) as usize] << 12;
            let name = ["a", "b", "c"][rng.below(3) as usize];
            builder.add(Part { start: at, end: at + size }, State::ALL[rng.below(3) as usize], name);
            at += size;
        }
        builder.finish(None)
    }

    #[test]
    fn ro1_rows_cover_the_parts_and_ro2_what_is_painted_is_all_there_is() {
        let mut rng = Rng::new(11);
        for round in 0..300 {
            let listing = listing(&mut rng);
            let palette = Palette::of(&Numbers::of(&listing));
            let fold = fold_of(&listing);
            let most = 1 + rng.below(60) as usize;
            let rows = wrap(&fold, most);
            assert!(rows.len() <= most.max(2 * fold.parts().len()));
            for (number, part) in fold.parts().iter().enumerate() {
                let mut at = part.start;
                for row in rows.iter().filter(|row| row.part == number) {
                    let range = row.range(&fold);
                    assert_eq!((range.start, row.start % row.bytes), (at, 0), "RO1");
                    assert!(row.bytes.is_power_of_two() && range.bytes() <= row.bytes);
                    at = range.end;
                }
                assert_eq!(at, part.end, "RO1");
            }
            let cells_a_row = [1, 7, 120, 960][round % 4];
            let mut painted = 0;
            for &row in &rows {
                let strips = paint(row, &fold, &listing, &palette, cells_a_row);
                assert!(strips.len() <= 2 * cells_a_row + 2);
                for strip in &strips {
                    assert!(
                        strip.from >= 0.0 && strip.from + strip.width <= cells_a_row as f64 + 1e-6,
                        "{strip:?}"
                    );
                    assert_eq!(strip.alone.is_some(), strip.areas == 1);
                    painted += strip.bytes;
                }
                // A cell is a hole only if no area is in it, and `None` only outside the part.
                let range = row.range(&fold);
                let cells = cells(row, &fold, &listing, &palette, cells_a_row);
                let free = cells.iter().flatten().all(|cell| cell.ink == Ink::Hole);
                assert!(cells.iter().flatten().all(|cell| (cell.used > 0.0) == (cell.ink != Ink::Hole)));
                assert!(cells.iter().flatten().all(|cell| cell.used <= 1.0));
                assert_eq!(free, listing.within(range).is_empty());
                assert!(range.bytes() < row.bytes || cells.iter().all(Option::is_some));
            }
            let all: u64 = listing.areas.iter().map(|area| area.part.bytes()).sum();
            assert_eq!(painted, all, "RO2");
        }
    }

    #[test]
    fn a_part_too_small_for_a_row_has_smaller_rows() {
        let mib = |start: u64, end: u64| Part { start: start << 20, end: end << 20 };
        let fold = Fold::of_parts(vec![mib(0, 640), mib(1 << 20, (1 << 20) + 1)]).unwrap();
        let rows = wrap(&fold, 20);
        assert_eq!((rows.len(), rows[0].bytes, rows[9].bytes), (11, 64 << 20, 64 << 20));
        assert_eq!(rows[10], Row { part: 1, start: 1 << 40, bytes: 1 << 20 });
        // The whole line of addresses has at most two rows.
        let all = Fold::of_parts(vec![Part { start: 1, end: u64::MAX }]).unwrap();
        assert_eq!(wrap(&all, 1).len(), 2);
    }
}
