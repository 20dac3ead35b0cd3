//! Chosen moments as small pictures: for print, for a page without script, and as links to moments.

use super::{Film, Moment, State, part_pages};
use crate::map::palette::rgb;
use base64::Engine;

/// Pixels: the width and the height of a row, and the gap between two parts.
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
    let (row_pages, colours) = (film.row_pages(), film.colours());
    let colours: Vec<[u8; 3]> = colours.into_iter().map(rgb).collect();
    let mut parts = Vec::new();
    let (mut from, mut top) = (0, 0);
    for part in film.fold.parts() {
        let pages = part_pages(*part);
        parts.push((from, pages, top));
        from += pages;
        top += pages.div_ceil(row_pages) * ROW + BETWEEN;
    }
    let height = top.saturating_sub(BETWEEN);
    if height == 0 || height > 4096 {
        return None;
    }
    let mut pixels = vec![0u8; (WIDTH * height * 4) as usize];
    // Free ranges have a light tint, which shows where a row ends.
    for &(_, pages, top) in &parts {
        fill(&mut pixels, (0, pages), row_pages, top, [0x80, 0x90, 0xa0, 0x26]);
    }
    for (&from, area) in &moment.areas {
        let Some(&(start, pages, top)) = parts.iter().rev().find(|part| part.0 <= from) else { continue };
        let [r, g, b] = match area.state {
            State::Lazy => LAZY,
            State::Pooled => POOLED,
            State::Busy(holder) => colours.get(holder as usize).copied().unwrap_or(OTHER),
        };
        let end = (from - start + area.pages).min(pages);
        fill(&mut pixels, (from - start, end), row_pages, top, [r, g, b, 0xff]);
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

/// Fills pages `[from, end)` of a part, at least one pixel.
fn fill(pixels: &mut [u8], (from, end): (u64, u64), row_pages: u64, top: u64, colour: [u8; 4]) {
    let scale = WIDTH as f64 / row_pages as f64;
    for row in from / row_pages..end.div_ceil(row_pages) {
        let (left, right) = (from.max(row * row_pages), end.min((row + 1) * row_pages));
        let x = ((left - row * row_pages) as f64 * scale) as u64;
        let wide = ((right - left) as f64 * scale).round() as u64;
        let x = x.min(WIDTH - 1);
        for y in top + row * ROW..top + row * ROW + ROW - 1 {
            for x in x..(x + wide.max(1)).min(WIDTH) {
                let at = ((y * WIDTH + x) * 4) as usize;
                if let Some(pixel) = pixels.get_mut(at..at + 4) {
                    pixel.copy_from_slice(&colour);
                }
            }
        }
    }
}
