//! The picture as a page of its own: the SVG, in which each area has its caller as tooltip, and the numbers as tables.
//! Its one script zooms. No network.

use super::Picture;
use super::measure::CallerRow;
use super::palette::is_state;
use super::svg::{Titles, draw};
use crate::shape::both;
use crate::zoom;
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, grouped};

const STYLE: &str = include_str!("../report/style.css");
/// Additions to the report's style. The shape that is not shown is there, hidden and without height. The hatches of both
/// are those of the first, and a browser draws none if that one is not displayed.
const MORE: &str = "body{max-width:1200px}figure.map{margin:1rem 0}\
    figure.map path:hover{stroke:currentColor;stroke-width:1.2}td.bar{min-width:7rem}\
    td.bar i{display:block;height:.7em;background:var(--busy);print-color-adjust:exact;-webkit-print-color-adjust:exact}\
    td.name{text-align:left}tr>td:first-child{font-weight:600}\
    .map .slim{display:block;height:0;overflow:hidden;visibility:hidden}\
    @media screen and (max-width:700px){td.bar{min-width:2rem}.map .slim{height:auto;visibility:visible}.map .broad{display:block;height:0;overflow:hidden;visibility:hidden}}\
    @media print{@page{size:A4 landscape;margin:12mm}figure.map svg{max-height:140mm}h2{break-before:auto}}";
/// The most callers in a table.
const CALLERS: usize = 20;

/// Renders the page.
pub fn page(picture: &Picture) -> String {
    let mut html = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}{MORE}</style></head><body>\
         <header><h1>{0}</h1><p>{1}.</p></header><figure class=\"map\">{2}<figcaption>Addresses run to the right, then down; each row begins at \
         a multiple of its size, whose first address stands before it. Rest on an area to see whose it is; + and -, and the wheel with Ctrl, zoom. Paler strips are areas smaller than a \
         pixel, together with what is free between them.</figcaption></figure>",
        escape(&picture.title),
        escape(&picture.summary()),
        both(|shape| format!("<div data-zoom>{}</div>", draw(picture, Titles::With, shape)))
    );
    if !picture.notes.is_empty() {
        html.push_str("<p class=\"dim note\">");
        for note in &picture.notes {
            let _ = write!(html, "{}<br>", escape(note));
        }
        html.push_str("</p>");
    }
    html.push_str("<h2>Holes</h2><div class=\"two\"><div>");
    aligned(&mut html, picture);
    html.push_str("</div><div>");
    sizes(&mut html, picture);
    html.push_str("</div></div><h2>Callers</h2><div class=\"two\"><div><h3>By bytes</h3>");
    let people: Vec<&CallerRow> = picture.numbers.callers.iter().filter(|row| !is_state(&row.name)).collect();
    callers(&mut html, &people, "bytes", |row| row.bytes);
    html.push_str("</div><div><h3>By holes kept apart</h3>");
    callers(&mut html, &picture.numbers.by_keeps_apart(), "keeps apart", |row| row.keeps_apart);
    html.push_str(
        "</div></div><p class=\"dim note\">A caller <b>keeps apart</b> the holes that would be one if none of its areas were there: of each group of \
         holes between which nothing but its own areas lie, all but the largest, in bytes. A hole counts for the caller on either side, so these may \
         be more than all holes together; <b>(lazy)</b> and <b>(pooled)</b> are what a purge would bring together.</p>",
    );
    windows(&mut html, picture);
    let _ = writeln!(
        html,
        "<footer>Written by vmlab {}.</footer><script>\"use strict\";\n{}</script></body></html>",
        env!("CARGO_PKG_VERSION"),
        zoom::SCRIPT
    );
    html
}

fn aligned(html: &mut String, picture: &Picture) {
    html.push_str(
        "<h3>Largest hole for each alignment</h3><div class=\"scroll\"><table><thead><tr><th>aligned to</th><th>largest</th><th>at</th>\
         <th>holes with room<br>for one</th></tr></thead><tbody>",
    );
    for row in &picture.numbers.aligned {
        let at = row.at.map_or("none".to_string(), |at| format!("<code>{at:016x}</code>"));
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{at}</td><td>{}</td></tr>",
            bytes(row.align),
            bytes(row.bytes),
            grouped(row.holes)
        );
    }
    html.push_str("</tbody></table></div>");
}

fn sizes(html: &mut String, picture: &Picture) {
    let counts = &picture.numbers.holes_by_size;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    html.push_str(
        "<h3>Holes by size</h3><div class=\"scroll\"><table><thead><tr><th>of at least</th><th>holes</th><th></th></tr></thead><tbody>",
    );
    for (log, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td class=\"bar\"><i style=\"width:{:.1}%\"></i></td></tr>",
            bytes(1 << log),
            grouped(count),
            100.0 * count as f64 / most as f64
        );
    }
    html.push_str("</tbody></table></div>");
}

fn callers(html: &mut String, rows: &[&CallerRow], by: &str, of: fn(&CallerRow) -> u64) {
    let most = rows.iter().map(|row| of(row)).max().unwrap_or(0).max(1);
    let _ = write!(
        html,
        "<div class=\"scroll\"><table><thead><tr><th>caller</th><th>{by}</th><th></th><th>areas</th><th>largest</th></tr></thead><tbody>"
    );
    for row in rows.iter().take(CALLERS) {
        let _ = write!(
            html,
            "<tr><td class=\"name\">{}</td><td>{}</td><td class=\"bar\"><i style=\"width:{:.1}%\"></i></td><td>{}</td><td>{}</td></tr>",
            escape(&row.name),
            bytes(of(row)),
            100.0 * of(row) as f64 / most as f64,
            grouped(row.areas),
            bytes(row.largest)
        );
    }
    html.push_str("</tbody></table></div>");
    if rows.len() > CALLERS {
        let _ =
            write!(html, "<p class=\"dim note\">and {} more.</p>", grouped((rows.len() - CALLERS) as u64));
    }
}

fn windows(html: &mut String, picture: &Picture) {
    html.push_str(
        "<h2>Windows</h2><div class=\"scroll\"><table><thead><tr><th>from</th><th>to</th><th>size</th><th>holes</th><th>free</th></tr></thead><tbody>",
    );
    for row in &picture.numbers.windows {
        let _ = write!(
            html,
            "<tr><td><code>{:016x}</code></td><td><code>{:016x}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>",
            row.start,
            row.end,
            bytes(row.end - row.start),
            grouped(row.holes),
            bytes(row.hole_bytes)
        );
    }
    html.push_str("</tbody></table></div><p class=\"dim note\">Holes are counted inside of windows only: where areas may lie.</p>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fold::Part;
    use crate::map::listing::Builder;
    use vmlab_replay::state::State;

    #[test]
    fn a_page_needs_nothing_else_and_names_are_escaped() {
        let mut builder = Builder::default();
        builder.add(Part { start: 0x1000, end: 0x3000 }, State::Busy, "<script>alert(1)</script>");
        builder.add(Part { start: 0x9000, end: 0xa000 }, State::Busy, "f&g");
        let picture = Picture::of("a < b", builder.finish(None), vec!["1 < 2".to_string()]);
        let html = page(&picture);
        assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (1, 1), "{html}");
        assert!(html.contains("&lt;script&gt;") && html.contains("f&amp;g"));
        assert!(html.contains("a &lt; b") && html.contains("1 &lt; 2"));
        // The only address on a page is the namespace of SVG.
        let outside = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains("http") && !outside.contains("@import") && !outside.contains("src="));
        assert!(html.contains("f&amp;g\n4 KiB at 0x9000-0xa000</title>"));
        for word in [
            "prefers-color-scheme:dark",
            "@media print",
            "Largest hole for each alignment",
            "By holes kept apart",
        ] {
            assert!(html.contains(word), "{word}");
        }
    }
}
