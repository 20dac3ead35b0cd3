//! The picture as SVG: a standalone file, or an element of a page.

use super::Picture;
use super::fold::Part;
use super::palette::{Ink, LAZY, OTHER, POOLED};
use super::rows::{Row, Strip, paint};
use crate::shape::Shape;
use std::collections::BTreeMap;
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, grouped};
use vmlab_replay::state::State;

const ROW: f64 = 13.0;
const STEP: f64 = 16.0;
/// Pixels above the rows of a part.
const HEAD: f64 = 20.0;
/// Pixels of a fold.
const FOLD: f64 = 26.0;
const LEGEND_ROW: f64 = 17.0;
/// Longest name of the legend, in characters.
const NAME: usize = 25;

/// The choice of tooltips: one for each area shows its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Titles {
    /// With tooltips: for a page, which has its own title.
    With,
    /// Without tooltips: strips of one colour are one path, and the file is small.
    Without,
}

/// The sizes of a picture that its shape decides.
struct Layout {
    /// Pixels of the total width.
    width: f64,
    /// Start of rows: after their addresses.
    left: f64,
    /// Pixels of a row, which are its cells.
    cells: usize,
    /// Pixels of the letters of an address.
    address: f64,
    /// Entries of the legend side by side.
    columns: usize,
}

impl Layout {
    fn of(shape: Shape) -> Self {
        match shape {
            Shape::Broad => Self { width: 1120.0, left: 134.0, cells: 960, address: 10.5, columns: 4 },
            Shape::Slim => Self { width: 394.0, left: 94.0, cells: 296, address: 8.6, columns: 1 },
        }
    }
}

/// Draws the picture.
pub fn draw(picture: &Picture, titles: Titles, shape: Shape) -> String {
    let layout = &Layout::of(shape);
    let &Layout { width, columns, .. } = layout;
    let rows = picture.rows(super::ROWS);
    let legend = picture.legend();
    let mut svg = String::new();
    let mut body = String::new();
    // The legend is below the two lines of the head, if there is one.
    let mut at = if titles == Titles::With { 8.0 } else { 46.0 };
    let column = (width - 24.0) / columns as f64;
    for (number, (ink, name, amount)) in legend.iter().enumerate() {
        let (x, y) = (12.0 + (number % columns) as f64 * column, at + (number / columns) as f64 * LEGEND_ROW);
        let border = if *ink == Ink::Hole { " m-e" } else { "" };
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            body,
            "<path class=\"{}{border}\" d=\"M{x:.0} {y:.0}h16v11h-16z\"/><text class=\"m-t\" x=\"{:.0}\" y=\"{:.1}\">{}\
             <tspan class=\"m-d\" dx=\"6\">{}</tspan></text>",
            class(*ink),
            x + 22.0,
            y + 9.5,
            escape(&shortened(name, NAME)),
            escape(amount)
        );
        if matches!(ink, Ink::Lazy | Ink::Pooled) {
            let _ = write!(body, "<path class=\"{}x\" d=\"M{x:.0} {y:.0}h16v11h-16z\"/>", class(*ink));
        }
    }
    at += legend.len().div_ceil(columns) as f64 * LEGEND_ROW + 6.0;
    let mut before: Option<usize> = None;
    for &row in &rows {
        if before != Some(row.part) {
            if let Some(fold) = before.and_then(|part| picture.fold.folds().nth(part)) {
                draw_fold(&mut body, layout, at, &picture.fold_note(fold));
                at += FOLD;
            }
            draw_head(&mut body, layout, picture, row, at);
            at += HEAD;
            before = Some(row.part);
        }
        draw_row(&mut body, layout, picture, (row, at), titles);
        at += STEP;
    }
    let height = at + 8.0;
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" height=\"{height:.0}\" role=\"img\" \
         font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif\" font-size=\"11.5\"><title>{0}</title>{1}\
         <rect class=\"m-paper\" width=\"100%\" height=\"100%\"/>",
        escape(&picture.title),
        style(picture)
    );
    if titles == Titles::Without {
        let _ = write!(
            svg,
            "<text class=\"m-t\" x=\"12\" y=\"20\" font-size=\"15\" font-weight=\"600\">{}</text><text class=\"m-d\" x=\"12\" y=\"36\">{}</text>",
            escape(&picture.title),
            escape(&picture.summary())
        );
    }
    svg.push_str(&body);
    svg.push_str("</svg>\n");
    svg
}

/// Returns the CSS classes of a picture. Colours are literal, since some viewers do not support variables.
fn style(picture: &Picture) -> String {
    let mut css = String::from(
        "<style>.m-paper{fill:#fff}.m-t{fill:#1b2430}.m-d{fill:#566170}.m-h{fill:#edf0f4}.m-e{stroke:#b9c2cd;stroke-width:.8}\
         .m-f{fill:none;stroke:#8b95a3;stroke-width:1.2}.m-g{stroke:#1b2430;stroke-opacity:.16;stroke-width:.7}\
         .m-lx{fill:url(#m-lazy)}.m-px{fill:url(#m-pooled)}.m-lx,.m-px{pointer-events:none}.m-a{font-family:ui-monospace,'SF Mono',Consolas,'DejaVu Sans Mono',monospace}",
    );
    for place in 0..picture.palette.len() as u8 {
        let _ = write!(css, ".m-k{place}{{fill:{}}}", picture.palette.colour(Ink::Caller(place)));
    }
    let _ = write!(
        css,
        ".m-o{{fill:{OTHER}}}.m-l{{fill:{LAZY};fill-opacity:.38}}.m-p{{fill:{POOLED};fill-opacity:.38}}@media screen and (prefers-color-scheme:dark){{.m-paper{{fill:#12161c}}.m-t{{fill:#e6e9ee}}.m-d{{fill:#a3adba}}\
         .m-h{{fill:#232b36}}.m-e{{stroke:#4a5563}}.m-g{{stroke:#e6e9ee}}}}\
         @media print{{svg{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}</style>\
         <defs visibility=\"visible\"><pattern id=\"m-lazy\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <rect width=\"2\" height=\"5\" fill=\"{LAZY}\"/></pattern>\
         <pattern id=\"m-pooled\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\">\
         <circle cx=\"2\" cy=\"2\" r=\"1.1\" fill=\"{POOLED}\"/></pattern></defs>"
    );
    css
}

/// Returns the CSS class of an ink.
fn class(ink: Ink) -> String {
    match ink {
        Ink::Caller(place) => format!("m-k{place}"),
        Ink::Other => "m-o".to_string(),
        Ink::Lazy => "m-l".to_string(),
        Ink::Pooled => "m-p".to_string(),
        Ink::Hole => "m-h".to_string(),
    }
}

/// Draws the head above the rows of a part, and the columns of its rows.
fn draw_head(svg: &mut String, layout: &Layout, picture: &Picture, row: Row, at: f64) {
    let &Layout { left, cells, .. } = layout;
    let part = picture.fold.parts()[row.part];
    let head = format!("{} drawn, {} a row", bytes(part.bytes()), bytes(row.bytes));
    let _ = write!(svg, "<text class=\"m-d\" x=\"{left}\" y=\"{:.1}\">{head}</text>", at + HEAD - 6.0);
    // Not those that the head would cover.
    let covered = 6.4 * head.chars().count() as f64 + 28.0;
    for quarter in (1..4_u64).filter(|&quarter| cells as f64 * quarter as f64 / 4.0 > covered) {
        let _ = write!(
            svg,
            "<text class=\"m-d\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"middle\">+{}</text>",
            left + cells as f64 * quarter as f64 / 4.0,
            at + HEAD - 6.0,
            bytes(row.bytes / 4 * quarter)
        );
    }
}

fn draw_fold(svg: &mut String, layout: &Layout, at: f64, note: &str) {
    let (left, width) = (layout.left, layout.cells as f64);
    let middle = at + FOLD / 2.0 + 2.0;
    let mut wave = format!("M{left} {middle:.1}");
    let words = 8.0 + 6.4 * note.chars().count() as f64;
    let mut x = left;
    while x + 8.0 <= left + width {
        // The note is in the middle, where the line is interrupted.
        let inside = (x + 4.0 - left - width / 2.0).abs() < words / 2.0;
        wave.push_str(if inside { "m8 0" } else { "l2 -4l4 8l2 -4" });
        x += 8.0;
    }
    let _ = write!(
        svg,
        "<path class=\"m-f\" d=\"{wave}\"/><text class=\"m-d\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        left + width / 2.0,
        middle + 4.0,
        escape(note)
    );
}

fn draw_row(svg: &mut String, layout: &Layout, picture: &Picture, (row, at): (Row, f64), titles: Titles) {
    let &Layout { left, cells, address, .. } = layout;
    let range = row.range(&picture.fold);
    let scale = cells as f64 / row.bytes as f64;
    let (from, width) = ((range.start - row.start) as f64 * scale, range.bytes() as f64 * scale);
    let _ = write!(
        svg,
        "<text class=\"m-d m-a\" font-size=\"{address}\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{:016x}</text><g transform=\"translate({left} {at:.1})\">\
         <path class=\"m-h\" d=\"M{from:.1} 0h{width:.1}v{ROW}h-{width:.1}z\"/>",
        left - 8.0,
        at + ROW - 3.0,
        row.start
    );
    let strips = paint(row, &picture.fold, &picture.listing, &picture.palette, cells);
    match titles {
        Titles::With => {
            for strip in &strips {
                let (class, shade) = (class(strip.ink), opacity(shade(strip, scale)));
                let title = escape(&title(picture, strip));
                let _ = write!(
                    svg,
                    "<path class=\"{class}\"{shade} d=\"{}\"><title>{title}</title></path>",
                    shape(strip)
                );
            }
        }
        Titles::Without => {
            let mut paths: BTreeMap<(Ink, u8), String> = BTreeMap::new();
            for strip in &strips {
                paths.entry((strip.ink, shade(strip, scale))).or_default().push_str(&shape(strip));
            }
            for ((ink, shade), path) in paths {
                let _ = write!(svg, "<path class=\"{}\"{} d=\"{path}\"/>", class(ink), opacity(shade));
            }
        }
    }
    // One hatched path for each row: printing draws each pattern stripe by stripe.
    for ink in [Ink::Lazy, Ink::Pooled] {
        let path: String = strips.iter().filter(|strip| strip.ink == ink).map(shape).collect();
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"{}x\" d=\"{path}\"/>", class(ink));
        }
    }
    for quarter in 1..4 {
        let x = cells / 4 * quarter;
        let _ = write!(svg, "<path class=\"m-g\" d=\"M{x} 0v{ROW}\"/>");
    }
    svg.push_str("</g>");
}

/// Returns the outline of a strip; a small gap separates neighbours.
fn shape(strip: &Strip) -> String {
    let width = if strip.width > 2.5 { strip.width - 0.6 } else { strip.width };
    format!("M{:.1} 0h{width:.1}v{ROW}h-{width:.1}z", strip.from)
}

/// Returns the fill of a strip, in thirds from 1 to 3.
fn shade(strip: &Strip, scale: f64) -> u8 {
    let full = strip.bytes as f64 * scale / strip.width;
    if full > 0.66 { 3 } else { 1 + u8::from(full > 0.33) }
}

fn opacity(shade: u8) -> &'static str {
    match shade {
        1 => " fill-opacity=\".55\"",
        2 => " fill-opacity=\".78\"",
        _ => "",
    }
}

/// Returns the tooltip of a strip.
fn title(picture: &Picture, strip: &Strip) -> String {
    let Some(area) = strip.alone.and_then(|at| picture.listing.areas.get(at)) else {
        return format!("{} areas, {} together", grouped(strip.areas), bytes(strip.bytes));
    };
    let Part { start, end } = area.part;
    let holder = match area.state {
        State::Busy => picture.listing.caller(area),
        State::Lazy => "lazy: freed, not purged",
        State::Pooled => "pooled: purged, kept for its size",
    };
    format!("{holder}\n{} at {start:#x}-{end:#x}", bytes(area.part.bytes()))
}

fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_string();
    }
    name.chars().take(most - 1).chain(['\u{2026}']).collect()
}
