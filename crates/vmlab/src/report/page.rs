//! The page.

use super::chart::escape;
use super::figures;
use super::heat::Picture;
use crate::run::{Outcome, Row, bytes, grouped};
use std::fmt::Write;

/// One trace of the report.
pub struct Chapter {
    /// Its name.
    pub name: String,
    /// What was recorded, if known.
    pub about: String,
    /// The space over time.
    pub picture: Picture,
    /// One an index, the same indexes in every chapter.
    pub outcomes: Vec<Outcome>,
    /// What was inferred, what could not be read.
    pub notes: Vec<String>,
}

const STYLE: &str = include_str!("style.css");

/// Renders the page.
pub fn page(title: &str, chapters: &[Chapter]) -> String {
    let mut html = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body>\
         <header><h1>{0}</h1><p>What a Linux kernel did to its virtual address space, replayed event by event on each \
         index. The figures show the kernel's own addresses; the tables say how each index answered the same requests, \
         and how fast.</p></header>",
        escape(title)
    );
    write_summary(&mut html, chapters);
    for (number, chapter) in chapters.iter().enumerate() {
        write_chapter(&mut html, number, chapter);
    }
    write_footer(&mut html, chapters);
    html.push_str("</body></html>\n");
    html
}

/// Answers that are the kernel's: its address, or nothing where it found nothing.
fn alike(row: &Row) -> u64 {
    row.equal + row.failed_both
}

fn class(row: &Row) -> &'static str {
    if alike(row) == row.allocs { "ok" } else { "off" }
}

/// All traces and indexes in one table.
fn write_summary(html: &mut String, chapters: &[Chapter]) {
    let Some(first) = chapters.first() else { return };
    let kinds = first.outcomes.len();
    let _ = write!(
        html,
        "<h3>All results</h3><div class=\"scroll\"><table><thead><tr><th rowspan=\"2\">trace</th><th rowspan=\"2\">allocations</th>\
         <th class=\"group rule\" colspan=\"{kinds}\">answers that are the kernel's</th>\
         <th class=\"group rule\" colspan=\"{kinds}\">ns per operation, median</th></tr><tr>"
    );
    for _ in 0..2 {
        for (at, outcome) in first.outcomes.iter().enumerate() {
            let rule = if at == 0 { " class=\"rule\"" } else { "" };
            let _ = write!(html, "<th{rule}>{}</th>", escape(&outcome.row.index));
        }
    }
    html.push_str("</tr></thead><tbody>");
    for (number, chapter) in chapters.iter().enumerate() {
        let allocs = chapter.outcomes.first().map_or(0, |outcome| outcome.row.allocs);
        let _ = write!(
            html,
            "<tr><th><a href=\"#t{number}\">{}</a></th><td>{}</td>",
            escape(&chapter.name),
            grouped(allocs)
        );
        for (at, Outcome { row, .. }) in chapter.outcomes.iter().enumerate() {
            let rule = if at == 0 { " rule" } else { "" };
            let _ = write!(html, "<td class=\"{}{rule}\">{}</td>", class(row), grouped(alike(row)));
        }
        for (at, Outcome { row, .. }) in chapter.outcomes.iter().enumerate() {
            let rule = if at == 0 { " class=\"rule\"" } else { "" };
            let _ = write!(html, "<td{rule}>{:.1}</td>", row.ns_median);
        }
        html.push_str("</tr>");
    }
    html.push_str(
        "</tbody></table></div><p class=\"dim note\">An answer is the kernel's if it is the same address, or nothing where the kernel found nothing. \
         Green: all of them. <b>rb-linux</b> searches as Linux does; <b>rb-exact</b> and <b>btree</b> always give the \
         lowest fit, which Linux misses for some aligned requests; <b>list</b> is the design that Linux left with 5.2.</p>",
    );
}

fn write_chapter(html: &mut String, number: usize, chapter: &Chapter) {
    let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&chapter.name));
    if !chapter.about.is_empty() {
        let _ = write!(html, "<p>{}</p>", escape(&chapter.about));
    }
    let notes: Vec<String> = chapter.notes.iter().map(|note| escape(note)).collect();
    let _ = write!(html, "<p class=\"dim note\">{}</p>", notes.join("<br>"));
    write_table(html, &chapter.outcomes);
    figures::write(html, &chapter.picture, &chapter.outcomes);
    html.push_str("</section>");
}

fn write_table(html: &mut String, outcomes: &[Outcome]) {
    html.push_str("<div class=\"scroll\"><table><thead><tr>");
    for head in [
        "index",
        "allocations",
        "equal",
        "lower",
        "higher",
        "failed<br>both",
        "failed<br>differs",
        "inferred",
        "ns/op<br>median",
        "ns/op<br>minimum",
        "holes<br>at end",
        "largest<br>hole",
    ] {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for Outcome { row, .. } in outcomes {
        let _ = write!(html, "<tr><th>{}</th>", escape(&row.index));
        let odd = |count: u64| if count > 0 { "off" } else { "" };
        for (class, count) in [
            ("", row.allocs),
            (class(row), row.equal),
            (odd(row.lower), row.lower),
            (odd(row.higher), row.higher),
            ("", row.failed_both),
            (odd(row.failed_differs), row.failed_differs),
            ("", row.inferred),
        ] {
            let _ = write!(html, "<td class=\"{class}\">{}</td>", grouped(count));
        }
        let _ = write!(
            html,
            "<td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>",
            row.ns_median,
            row.ns_min,
            grouped(row.holes),
            bytes(row.largest_hole)
        );
    }
    let _ = write!(html, "</tbody></table></div><p class=\"dim note\">{}</p>", escape(&verdict(outcomes)));
}

/// What the table says, in a sentence or two.
fn verdict(outcomes: &[Outcome]) -> String {
    let (same, differ): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| alike(&outcome.row) == outcome.row.allocs);
    let mut said = Vec::new();
    if !same.is_empty() {
        let names: Vec<&str> = same.iter().map(|outcome| outcome.row.index.as_str()).collect();
        let verb = if names.len() == 1 { "answers" } else { "answer" };
        said.push(format!("{} {verb} every request as the kernel did.", listed(&names)));
    }
    // Indexes that differ alike share a sentence.
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for Outcome { row, tally, .. } in differ {
        let share = 100.0 * (row.allocs - alike(row)) as f64 / row.allocs.max(1) as f64;
        let first = tally.first_differences.first().map_or(String::new(), |first| {
            let (number, size, align) = (grouped(first.number), bytes(first.size), bytes(first.align));
            format!(", first at allocation {number} ({size}, align {align})")
        });
        let text = format!("{share:.2} % of the answers{first}");
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(&row.index),
            None => groups.push((text, vec![&row.index])),
        }
    }
    for (text, names) in groups {
        let verb = if names.len() == 1 { "differs" } else { "differ" };
        said.push(format!("{} {verb} in {text}.", listed(&names)));
    }
    said.join(" ")
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn write_footer(html: &mut String, chapters: &[Chapter]) {
    let rounds = chapters.iter().flat_map(|chapter| &chapter.outcomes).map(|outcome| outcome.rounds);
    let (least, most) = rounds.fold((u32::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
    let _ = write!(
        html,
        "<footer>Written by vmlab {}. An operation is a call on the index: allocate, take exactly, or give back. Its time \
         is the median or the minimum of {} rounds over the whole trace on the machine that wrote this page, the cost of \
         the loop subtracted; the traces' own clock plays no part. Curves are sampled at up to {} moments.</footer>",
        env!("CARGO_PKG_VERSION"),
        if least >= most { most.to_string() } else { format!("{least} to {most}") },
        super::heat::COLUMNS
    );
}
