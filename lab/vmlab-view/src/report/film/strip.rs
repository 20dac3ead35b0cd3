//! Chosen moments as small pictures: for print, for a page without script, and as links to moments.

use super::{Film, Moment, Row, State};
use crate::map::palette::rgb;
use base64::Engine;

/// Pixels: the width and the height of a row, and the gap between two parts or for folded rows.
const WIDTH: u64 = 300;
const ROW: u64 = 4;
const BETWEEN: u64 = 3;
/// Number of chosen moments.
const CHOSEN: usize = 6;

/// Colours of all other holders, and of lazy and pooled areas: those of the light page.
const OTHER: [u8; 3] = [0x8a, 0x96, 0xa6];
pub(super) const LAZY: [u8; 3] = [0xe2, 0x87, 0x2b];
pub(super) const POOLED: [u8; 3] = [0xef, 0xcf, 0x73];

/// Returns the chosen moments: evenly spaced, the last among them.
pub(super) fn chosen(film: &Film) -> Vec<usize> {
    let last = film.moments.len().saturating_sub(1);
    let mut chosen: Vec<usize> = (0..CHOSEN).map(|at| last * (at + 1) / CHOSEN).collect();
    chosen.dedup();
    chosen
}

/// Returns a moment as a PNG in a data URI; free ranges are transparent.
pub(super) fn png_uri(film: &Film, moment: &Moment) -> Option<String> {
    let row_pages = film.row_pages();
    let colours: Vec<[u8; 3]> = film.colours.iter().map(|colour| rgb(colour)).collect();
    let mut rows = Vec::new();
    let mut top = 0;
    for row in film.rows(row_pages, usize::MAX) {
        if rows.last().is_some_and(|(before, _): &(Row, u64)| before.part != row.part) {
            top += BETWEEN;
        }
        rows.push((row, top));
        top += if row.folded { BETWEEN } else { ROW };
    }
    let height = top;
    if height == 0 || height > 4096 {
        return None;
    }
    let mut pixels = vec![0u8; (WIDTH * height * 4) as usize];
    // Free ranges have a light tint, which shows where a row ends.
    for &(row, top) in rows.iter().filter(|(row, _)| !row.folded) {
        fill(&mut pixels, (0, row.end - row.from), row_pages, top, [0x80, 0x90, 0xa0, 0x26]);
    }
    for (&from, area) in &moment.areas {
        let [r, g, b] = match area.state {
            State::Lazy => LAZY,
            State::Pooled => POOLED,
            State::Busy(holder) => colours.get(holder as usize).copied().unwrap_or(OTHER),
        };
        let end = from + area.pages;
        let first = rows.partition_point(|(row, _)| row.end <= from);
        for (row, top) in rows[first..].iter().take_while(|(row, _)| row.from < end && !row.folded) {
            let cut = (from.max(row.from) - row.from, end.min(row.end) - row.from);
            fill(&mut pixels, cut, row_pages, *top, [r, g, b, 0xff]);
        }
    }
    let mut data = Vec::new();
    let mut encoder = png::Encoder::new(&mut data, WIDTH as u32, height as u32);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&pixels).ok()?;
    writer.finish().ok()?;
    let text = base64::engine::general_purpose::STANDARD.encode(&data);
    Some(format!("data:image/png;base64,{text}"))
}

/// Fills pages `[from, end)` of a row, at least one pixel.
fn fill(pixels: &mut [u8], (from, end): (u64, u64), row_pages: u64, top: u64, colour: [u8; 4]) {
    let scale = WIDTH as f64 / row_pages as f64;
    let x = ((from as f64 * scale) as u64).min(WIDTH - 1);
    let wide = ((end - from) as f64 * scale).round() as u64;
    for y in top..top + ROW - 1 {
        for x in x..(x + wide.max(1)).min(WIDTH) {
            let at = ((y * WIDTH + x) * 4) as usize;
            if let Some(pixel) = pixels.get_mut(at..at + 4) {
                pixel.copy_from_slice(&colour);
            }
        }
    }
}
