//! The picture as text for a terminal: blocks in colours, letters, or plain ASCII.
//!
//! A line is a row of the picture, and a character is a cell of it. Its shape shows how much of the cell is in use, and
//! its colour or its letter shows by what most of that is.

use super::Picture;
use super::palette::{Ink, rgb};
use super::rows::{Cell, Row, cells};
use std::fmt::Write;
use va_base::PAGE_SIZE;
use vmlab_base::text::bytes;

/// The characters of the picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Letters for callers, and ASCII for all else.
    Ascii,
    /// Letters for callers, and shades.
    Unicode,
    /// Blocks as high as the cell is full, in the colours of the SVG.
    Colour,
}

/// The size and the style of the picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The characters.
    pub style: Style,
    /// Columns of the terminal.
    pub width: usize,
    /// Lines of the picture, about.
    pub rows: usize,
}

/// Columns before a row: its address and two blanks.
const LEFT: usize = 18;
/// The least and the most columns of a row: the least to show anything, the most to limit memory.
const CELLS_MIN: usize = 16;
const CELLS_MAX: usize = 1024;

/// Draws the picture and its legend.
pub fn draw(picture: &Picture, look: Look) -> String {
    let count = look.width.saturating_sub(LEFT).clamp(CELLS_MIN, CELLS_MAX);
    // A power of two, or one and a half of one, so that cells are whole pages, or thirds of pages.
    let power = 1 << count.ilog2();
    let count = if power + power / 2 <= count { power + power / 2 } else { power };
    let rows = picture.rows(look.rows);
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "{}\n{}\n", picture.title, picture.summary());
    let mut before: Option<usize> = None;
    for part in rows.chunk_by(|a, b| a.part == b.part) {
        let Some(&first) = part.first() else { continue };
        if let Some(fold) = before.and_then(|number| picture.fold.folds().nth(number)) {
            let note = format!(" {} ", picture.fold_note(fold));
            let _ = writeln!(text, "{:LEFT$}{note:~^count$}", "");
        }
        before = Some(first.part);
        let _ = writeln!(text, "{:LEFT$}{}", "", ruler(first.bytes, count));
        for &row in part {
            let _ = write!(text, "{:016x}  ", row.start);
            let mut line = String::new();
            for cell in cells(row, &picture.fold, &picture.listing, &picture.palette, count) {
                draw_cell(&mut line, picture, look.style, cell);
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let _ = writeln!(text, "{:LEFT$}{}", "", scale(first, count));
    }
    legend(&mut text, picture, look);
    text
}

/// Returns the line above the rows of a part: how far each quarter of a row is from its address.
fn ruler(row_bytes: u64, count: usize) -> String {
    let quarter = count / 4;
    let label = |number: u64| match number {
        0 => "+0".to_string(),
        number => format!("+{}", bytes(row_bytes / 4 * number)),
    };
    let labels: Vec<String> = (0..4).map(label).collect();
    let fit = labels.iter().all(|label| label.len() < quarter);
    let line = labels.iter().enumerate().map(|(at, label)| match (fit, at) {
        (true, _) => format!("{label:<quarter$}"),
        // The middle alone.
        (false, 0 | 2) => format!("{label:<half$}", half = 2 * quarter),
        (false, _) => String::new(),
    });
    line.collect::<String>().trim_end().to_string()
}

/// Describes the rows and cells of a part in whole pages.
fn scale(row: Row, count: usize) -> String {
    // A row has a power of two bytes; of cells there may be three times a power of two.
    let group = if count.is_power_of_two() { 1 } else { 3 };
    let group_bytes = row.bytes / (count / group) as u64;
    let cells = match (group, group_bytes) {
        (1, size) if size >= PAGE_SIZE => format!("{} a cell", bytes(size)),
        (_, size) if size > PAGE_SIZE => format!("{} for each three cells", bytes(size)),
        (group, size) => format!("{} cells a page", group as u64 * (PAGE_SIZE / size)),
    };
    format!("{} a row, {cells}", bytes(row.bytes))
}

fn draw_cell(text: &mut String, picture: &Picture, style: Style, cell: Option<Cell>) {
    match (style, cell) {
        (_, None) => text.push(' '),
        (Style::Colour, Some(Cell { ink: Ink::Hole, .. })) => text.push('\u{b7}'),
        (Style::Colour, Some(Cell { ink, used })) => {
            let [r, g, b] = rgb(picture.palette.colour(ink));
            let _ = write!(text, "\x1b[38;2;{r};{g};{b}m{}\x1b[0m", block(used));
        }
        (style, Some(cell)) => text.push(letter(style, cell)),
    }
}

/// Returns the block that is as high as a cell is full, in eighths, at least one.
fn block(used: f64) -> char {
    const EIGHTHS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    EIGHTHS[((used * 8.0).ceil() as usize).clamp(1, 8) - 1]
}

/// Returns the character of a cell without colour. The first of two is for a cell of which at least half is in use.
fn letter(style: Style, Cell { ink, used }: Cell) -> char {
    let of = |full: char, less: char| if used >= 0.5 { full } else { less };
    match (ink, style) {
        (Ink::Caller(place), _) => {
            let place = place.min(25);
            of(char::from(b'A' + place), char::from(b'a' + place))
        }
        (Ink::Hole, Style::Ascii) => '.',
        (Ink::Hole, _) => '\u{b7}',
        (Ink::Lazy, Style::Ascii) => of('~', '-'),
        (Ink::Lazy, _) => of('\u{2592}', '\u{2591}'),
        (Ink::Pooled, _) => of('%', ':'),
        (Ink::Other, _) => of('#', '+'),
    }
}

fn legend(text: &mut String, picture: &Picture, look: Look) {
    text.push('\n');
    for (ink, name, amount) in picture.legend() {
        text.push_str("  ");
        draw_cell(text, picture, look.style, Some(Cell { ink, used: 1.0 }));
        let _ = writeln!(text, " {name}: {amount}");
    }
    let shape = match look.style {
        Style::Colour => "is as high as it is full, in the colour of what most of its areas are",
        Style::Ascii => {
            "shows what most of its areas are, as a small letter, - : or + if\n  less than half of it is in use"
        }
        Style::Unicode => {
            "shows what most of its areas are, as a small letter, \u{2591} : or + if\n  less than half of it is in use"
        }
    };
    let _ = writeln!(text, "  A cell {shape}.\n  It is free only if all of it is.");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fold::Part;
    use crate::map::listing::Builder;
    use vmlab_replay::state::State;

    fn picture() -> Picture {
        let mut builder = Builder::default();
        let (low, far) = (0xffff_c900_0000_0000_u64, 0xffff_d900_0000_0000);
        for (at, pages, state, name) in [
            (low, 4, State::Busy, "big"),
            (low + 0x6000, 2, State::Lazy, ""),
            (low + 0x8000, 1, State::Pooled, ""),
            (low + 0xf000, 1, State::Busy, "small"),
            (far, 1, State::Busy, "small"),
        ] {
            builder.add(Part { start: at, end: at + pages * 4096 }, state, name);
        }
        Picture::of("a title", builder.finish(None), Vec::new())
    }

    #[test]
    fn letters_name_the_owner_of_each_page() {
        let text = draw(&picture(), Look { style: Style::Ascii, width: LEFT + 16, rows: 4 });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a title");
        assert_eq!(lines[3], "                  +0      +32 KiB");
        assert_eq!(lines[4], "ffffc90000000000  AAAA..~~%......B");
        assert_eq!(lines[5].trim(), "64 KiB a row, 4 KiB a cell");
        assert!(lines[6].contains("16 TiB free, not drawn"), "{}", lines[6]);
        assert_eq!(lines[8], "ffffd90000000000  B");
        assert!(text.contains("  A big: 16 KiB in 1\n  B small: 8 KiB in 2\n"), "{text}");
    }

    #[test]
    fn shapes_show_how_full_a_cell_is_and_colours_only_where_they_are_wanted() {
        // Four pages a cell: three of them in use, one, one, and all.
        let part = |from: u64, to: u64| Part { start: from << 12, end: to << 12 };
        let mut builder = Builder::default();
        for (from, to, state, name) in [
            (0, 2, State::Busy, "big"),
            (3, 4, State::Lazy, ""),
            (4, 5, State::Pooled, ""),
            (8, 9, State::Busy, "small"),
            (12, 128, State::Lazy, ""),
        ] {
            builder.add(part(from, to), state, name);
        }
        let picture = Picture::of("t", builder.finish(None), Vec::new());
        let line = |style| {
            let text = draw(&picture, Look { style, width: LEFT + 16, rows: 1 });
            text.lines().nth(4).map(str::to_string).unwrap()
        };
        assert_eq!(line(Style::Ascii), "0000000000000000  A:b~~~~~~~~~~~~~");
        assert_eq!(line(Style::Unicode), "0000000000000000  A:b▒▒▒▒▒▒▒▒▒▒▒▒▒");
        let colour = line(Style::Colour);
        let shapes: String =
            colour.chars().filter(|shape| ('\u{2581}'..='\u{2588}').contains(shape)).collect();
        assert_eq!(shapes, format!("▆▂▂{}", "█".repeat(13)), "{colour:?}");
        assert!(!line(Style::Unicode).contains('\u{1b}') && colour.contains("\u{1b}[38;2;"));
        let plain = draw(&self::picture(), Look { style: Style::Unicode, width: 80, rows: 4 });
        // The summary may be longer.
        assert!(plain.lines().skip(2).all(|line| line.chars().count() <= 80), "{plain}");
    }

    #[test]
    fn a_scale_is_in_whole_pages() {
        let row = |bytes| Row { part: 0, start: 0, bytes };
        for (bytes, count, want) in [
            (512 << 10, 64, "512 KiB a row, 8 KiB a cell"),
            (512 << 10, 48, "512 KiB a row, 32 KiB for each three cells"),
            (64 << 10, 48, "64 KiB a row, 3 cells a page"),
            (64 << 10, 96, "64 KiB a row, 6 cells a page"),
            (64 << 10, 16, "64 KiB a row, 4 KiB a cell"),
            (64 << 10, 64, "64 KiB a row, 4 cells a page"),
        ] {
            assert_eq!(scale(row(bytes), count), want);
        }
        assert_eq!(ruler(512 << 10, 64), "+0              +128 KiB        +256 KiB        +384 KiB");
    }
}
