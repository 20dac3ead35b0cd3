//! The page.

use super::chart::{Chart, Scale, escape};
use super::heat::Picture;
use crate::run::Row;
use std::fmt::Write;

/// One trace of the report.
pub struct Chapter {
    /// Its name.
    pub name: String,
    /// The space over time.
    pub picture: Picture,
    /// One row an index.
    pub rows: Vec<Row>,
    /// Nanoseconds of each call, by index.
    pub latency: Vec<(String, Vec<u32>)>,
    /// What was inferred, what could not be read.
    pub notes: Vec<String>,
}

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1f2937;--dim:#5b6472;--paper:#fff;--line:#d8dde5;--good:#15803d;--off:#b45309}
@media (prefers-color-scheme:dark){:root{--ink:#e5e7eb;--dim:#9aa4b2;--paper:#14181f;--line:#333b47;--good:#4ade80;--off:#fbbf24}}
@media print{:root{--ink:#000;--dim:#333;--paper:#fff;--line:#bbb;--good:#060;--off:#840}section{break-inside:avoid-page}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1040px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.4rem 0 .4rem;border-top:1px solid var(--line);padding-top:1.2rem}
p{margin:.3rem 0 .7rem;color:var(--dim)}table{border-collapse:collapse;font-size:13px;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.28rem .5rem;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--dim)}.ok{color:var(--good);font-weight:600}.off{color:var(--off)}
.scroll,figure{overflow-x:auto}figure{margin:.8rem 0 1rem}figcaption{font-size:12px;color:var(--dim)}
.heat{display:grid;grid-template-columns:max-content 1fr;column-gap:.5rem;font-size:10.5px;color:var(--dim);font-family:ui-monospace,monospace}
.heat .axis{position:relative;width:12.2em}.heat .axis span{position:absolute;right:0;white-space:nowrap}
.heat img{width:100%;image-rendering:pixelated;border:1px solid var(--line)}
.key i{display:inline-block;width:1em;height:.8em;margin:0 .3em 0 .9em;border:1px solid var(--line);vertical-align:-1px}
.pair{display:flex;flex-wrap:wrap;gap:1rem}svg{max-width:100%;height:auto}";

/// Renders the page.
pub fn page(title: &str, chapters: &[Chapter]) -> String {
    let mut html = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body>\
         <h1>{0}</h1><p>What a kernel did to its virtual address space, replayed event by event. Pictures show the \
         kernel's own addresses; the tables say how each index answered the same requests.</p>",
        escape(title)
    );
    for chapter in chapters {
        write_chapter(&mut html, chapter);
    }
    html.push_str("</body></html>\n");
    html
}

fn write_chapter(html: &mut String, chapter: &Chapter) {
    let _ = write!(html, "<section><h2>{}</h2>", escape(&chapter.name));
    for note in &chapter.notes {
        let _ = write!(html, "<p>{}</p>", escape(note));
    }
    write_heat(html, &chapter.picture);
    let moments = &chapter.picture.moments;
    let series = |name: &str, value: fn(&super::heat::Moment) -> f64| {
        (name.to_string(), moments.iter().map(|m| (m.event as f64, value(m))).collect::<Vec<_>>())
    };
    let over_time = |title, y, y_scale, lines| {
        Chart { title, x: "events", y, x_scale: Scale::Linear, y_scale, lines, size: (500.0, 220.0) }
            .svg(false)
    };
    let holes = over_time("Holes", "holes", Scale::Linear, vec![series("holes", |m| m.holes as f64)]);
    let used = over_time(
        "Pages in use",
        "pages",
        Scale::Linear,
        vec![series("busy", |m| m.busy_pages as f64), series("lazy", |m| m.lazy_pages as f64)],
    );
    let largest = over_time(
        "Missing from the largest hole",
        "MiB below its size at the start",
        Scale::Linear,
        vec![series_from_first(moments)],
    );
    let latency = Chart {
        title: "Time of a call",
        x: "ns a call (clock cost subtracted)",
        y: "% of calls",
        x_scale: Scale::Log,
        y_scale: Scale::Linear,
        lines: chapter.latency.iter().map(|(name, ns)| (name.clone(), histogram(ns))).collect(),
        size: (500.0, 220.0),
    };
    let _ = write!(html, "<div class=\"pair\">{holes}{used}{largest}{}</div>", latency.svg(false));
    write_table(html, &chapter.rows);
    html.push_str("</section>");
}

/// The largest hole of a 12.5 PiB window hardly moves on its own scale: what it has lost is what tells.
fn series_from_first(moments: &[super::heat::Moment]) -> (String, Vec<(f64, f64)>) {
    let most = moments.iter().map(|m| m.largest).max().unwrap_or(0);
    let points = moments.iter().map(|m| (m.event as f64, (most - m.largest) as f64 / f64::from(1 << 20)));
    ("largest hole".to_string(), points.collect())
}

fn write_heat(html: &mut String, picture: &Picture) {
    let Some(uri) = picture.png_uri() else { return };
    let rows = picture.rows();
    let height = rows * 3 / 2;
    let _ = write!(html, "<figure><div class=\"heat\"><div class=\"axis\" style=\"height:{height}px\">");
    for cluster in &picture.clusters {
        let at = |row: usize| row * height / rows;
        let (top, bottom) = (at(cluster.top_row), at(cluster.top_row + cluster.rows));
        let _ = write!(html, "<span style=\"top:{top}px\">{:#x}</span>", cluster.end);
        if bottom - top >= 26 {
            let _ = write!(html, "<span style=\"top:{}px\">{:#x}</span>", bottom - 14, cluster.start);
        }
    }
    let _ = write!(
        html,
        "</div><img alt=\"address space over time\" style=\"height:{height}px\" src=\"{uri}\"></div>\
         <figcaption class=\"key\">address (bottom to top, untouched stretches left out) over events (left to right)\
         <i style=\"background:#1f5ea8\"></i>busy<i style=\"background:#e67e22\"></i>lazy\
         <i style=\"background:#f4f6fa\"></i>free</figcaption></figure>"
    );
}

/// Share of calls per bin; eight bins to a factor of ten.
fn histogram(ns: &[u32]) -> Vec<(f64, f64)> {
    let bin = |ns: u32| (f64::from(ns.max(1)).log10() * 8.0).round() as usize;
    let mut bins = vec![0u64; 80];
    for &ns in ns {
        bins[bin(ns).min(79)] += 1;
    }
    let first = bins.iter().position(|&n| n > 0).unwrap_or(0);
    let last = bins.iter().rposition(|&n| n > 0).unwrap_or(0);
    let total = ns.len().max(1) as f64;
    (first..=last).map(|at| (10f64.powf(at as f64 / 8.0), bins[at] as f64 * 100.0 / total)).collect()
}

fn write_table(html: &mut String, rows: &[Row]) {
    html.push_str("<div class=\"scroll\"><table><tr>");
    for head in [
        "index",
        "allocations",
        "equal",
        "lower",
        "higher",
        "failed both",
        "failed differs",
        "inferred",
        "ns/op median",
        "ns/op min",
        "holes at end",
        "largest hole",
    ] {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr>");
    for row in rows {
        let class = if row.equal + row.failed_both == row.allocs { "ok" } else { "off" };
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td class=\"{class}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>",
            row.index,
            row.allocs,
            row.equal,
            row.lower,
            row.higher,
            row.failed_both,
            row.failed_differs,
            row.inferred,
            row.ns_median,
            row.ns_min,
            row.holes,
            crate::run::bytes(row.largest_hole)
        );
    }
    html.push_str("</table></div>");
}
