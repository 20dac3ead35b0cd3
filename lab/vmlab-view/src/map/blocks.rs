//! The picture as text for a terminal: half blocks, with or without colour, or plain ASCII.
//!
//! A line of half blocks shows two rows of the picture, the upper halves first; a line of ASCII shows one.

use super::Picture;
use super::palette::Ink;
use super::rows::{Row, cells};
use std::fmt::Write;

/// The characters of the picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Letters for callers.
    Ascii,
    /// Half blocks without colour: they show the state, but not the caller.
    Unicode,
    /// Half blocks in the colours of the SVG.
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
    let half = look.style != Style::Ascii;
    let count = look.width.saturating_sub(LEFT).clamp(CELLS_MIN, CELLS_MAX);
    // A power of two, or one and a half of one, so that cells are whole pages, or thirds of pages.
    let power = 1 << count.ilog2();
    let count = if power + power / 2 <= count { power + power / 2 } else { power };
    let rows = picture.rows(if half { 2 * look.rows } else { look.rows });
    let paint = |row: &Row| cells(*row, &picture.fold, &picture.listing, &picture.palette, count);
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "{}\n{}\n", picture.title, picture.summary());
    let mut before: Option<usize> = None;
    for part in rows.chunk_by(|a, b| a.part == b.part) {
        if let Some(fold) = before.and_then(|number| picture.fold.folds().nth(number)) {
            let note = format!(" {} ", picture.fold_note(fold));
            let _ = writeln!(text, "{:LEFT$}{note:~^count$}", "");
        }
        before = part.first().map(|row| row.part);
        for pair in part.chunks(if half { 2 } else { 1 }) {
            let (Some(upper), lower) = (pair.first(), pair.get(1)) else { continue };
            let cell = |row: Option<&Row>| row.map_or_else(|| vec![None; count], paint);
            let (top, bottom) = (cell(Some(upper)), cell(lower));
            let _ = write!(text, "{:016x}  ", upper.start);
            draw_line(&mut text, picture, look.style, &top, &bottom);
        }
        if let Some(row) = part.first() {
            let (cell, row) =
                (vmlab_base::text::bytes(row.bytes / count as u64), vmlab_base::text::bytes(row.bytes));
            let _ = writeln!(text, "{:LEFT$}{row} a row, {cell} a cell", "");
        }
    }
    legend(&mut text, picture, look);
    text
}

fn draw_line(
    text: &mut String,
    picture: &Picture,
    style: Style,
    top: &[Option<Ink>],
    bottom: &[Option<Ink>],
) {
    let start = text.len();
    for (&upper, &lower) in top.iter().zip(bottom) {
        match style {
            Style::Ascii => text.push(letter(upper)),
            Style::Unicode => text.push(block(upper, lower)),
            Style::Colour => colour(text, picture, upper, lower),
        }
    }
    if style != Style::Colour {
        let len = text.trim_end_matches(' ').len().max(start);
        text.truncate(len);
    }
    text.push('\n');
}

fn letter(ink: Option<Ink>) -> char {
    match ink {
        None => ' ',
        Some(Ink::Hole) => '.',
        Some(Ink::Lazy) => '~',
        Some(Ink::Pooled) => ':',
        Some(Ink::Other) => '#',
        Some(Ink::Caller(place)) => char::from(b'A' + place.min(25)),
    }
}

/// Returns the character without colour: the busy half; shades for lazy or pooled areas; a dot for free ranges.
fn block(upper: Option<Ink>, lower: Option<Ink>) -> char {
    let busy = |ink| matches!(ink, Some(Ink::Caller(_) | Ink::Other));
    let either = |wanted| upper == Some(wanted) || lower == Some(wanted);
    match (busy(upper), busy(lower)) {
        (true, true) => '\u{2588}',
        (true, false) => '\u{2580}',
        (false, true) => '\u{2584}',
        (false, false) if either(Ink::Lazy) => '\u{2592}',
        (false, false) if either(Ink::Pooled) => '\u{2591}',
        (false, false) if either(Ink::Hole) => '\u{b7}',
        (false, false) => ' ',
    }
}

/// Writes an upper half block in one colour on another.
fn colour(text: &mut String, picture: &Picture, upper: Option<Ink>, lower: Option<Ink>) {
    let seen =
        |ink: Option<Ink>| ink.filter(|&ink| ink != Ink::Hole).map(|ink| rgb(picture.palette.colour(ink)));
    let _ = match (seen(upper), seen(lower)) {
        (None, None) => {
            text.push(if upper.is_some() || lower.is_some() { '\u{b7}' } else { ' ' });
            Ok(())
        }
        (Some([r, g, b]), None) => write!(text, "\x1b[38;2;{r};{g};{b}m\u{2580}\x1b[0m"),
        (None, Some([r, g, b])) => write!(text, "\x1b[38;2;{r};{g};{b}m\u{2584}\x1b[0m"),
        (Some([r, g, b]), Some([x, y, z])) => {
            write!(text, "\x1b[38;2;{r};{g};{b};48;2;{x};{y};{z}m\u{2580}\x1b[0m")
        }
    };
}

/// Parses the numbers of `#rrggbb`.
fn rgb(colour: &str) -> [u8; 3] {
    [1, 3, 5].map(|at| colour.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0))
}

fn legend(text: &mut String, picture: &Picture, look: Look) {
    text.push('\n');
    for (ink, name, amount) in picture.legend() {
        match look.style {
            Style::Ascii => {
                let _ = write!(text, "  {}", letter(Some(ink)));
            }
            // Without colours, busy areas look alike: their callers are not shown.
            Style::Unicode => {
                let _ = write!(text, "  {}", block(Some(ink), Some(ink)));
            }
            Style::Colour => {
                text.push_str("  ");
                colour(text, picture, Some(ink), Some(ink));
            }
        }
        let _ = writeln!(text, " {name}: {amount}");
    }
    text.push_str("  A cell is free only if all of it is; otherwise it shows what most of its areas are.\n");
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
        assert_eq!(lines[3], "ffffc90000000000  AAAA..~~:......B");
        assert_eq!(lines[4].trim(), "64 KiB a row, 4 KiB a cell");
        assert!(lines[5].contains("16 TiB free, not drawn"), "{}", lines[5]);
        assert_eq!(lines[6], "ffffd90000000000  B");
        assert!(text.contains("  A big: 16 KiB in 1\n  B small: 8 KiB in 2\n"), "{text}");
    }

    #[test]
    fn half_blocks_show_the_contents_and_colours_only_where_they_are_wanted() {
        let plain = draw(&picture(), Look { style: Style::Unicode, width: 80, rows: 4 });
        assert!(plain.contains("ffffc90000000000  ▀▀▀▀▀▀▀▀▀▀▀▀······▒▒▒▒▒▒░░░"), "{plain}");
        assert!(!plain.contains('\u{1b}'));
        let colour = draw(&picture(), Look { style: Style::Colour, width: 80, rows: 4 });
        assert!(colour.contains("\u{1b}[38;2;"));
        assert!(plain.lines().all(|line| line.chars().count() <= 120));
    }
}
