//! Renders the page of every report.

use super::figures;
use super::film::{self, Film};
use super::heat::Picture;
use super::latency::Durations;
use super::section::Section;
use super::sheet::Sheet;
use crate::map::palette::Shared;
use crate::zoom;
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, duration, grouped};
use vmlab_replay::run::{Outcome, Row};
use vmlab_replay::whatif;

/// One section of the report.
#[derive(Debug)]
pub enum Part {
    /// A trace, replayed.
    Trace(Box<Chapter>),
    /// The areas of a vmallocinfo.
    Map(Map),
    /// Measurements.
    Sheet(Sheet),
}

/// One trace of the report.
#[derive(Debug)]
pub struct Chapter {
    /// Its name.
    pub name: String,
    /// Description of the recording, if known.
    pub about: String,
    /// The space over time.
    pub picture: Picture,
    /// The space at chosen moments.
    pub film: Film,
    /// One for each index, the same indexes in every chapter.
    pub outcomes: Vec<Outcome>,
    /// Notes about inferred and unreadable data.
    pub notes: Vec<String>,
    /// The same requests under other policies, if they were replayed.
    pub gain: Option<Gain>,
    /// The durations of the recording, if it has any.
    pub durations: Option<Durations>,
    /// Its call stacks, drawn: titles, and graphs as SVG in both shapes.
    pub stacks: Vec<(String, [String; 2])>,
}

/// A trace under several policies.
#[derive(Debug)]
pub struct Gain {
    /// The name of the trace.
    pub name: String,
    /// A row for each policy.
    pub policies: Vec<whatif::Row>,
    /// The difference between them, in a sentence.
    pub verdict: String,
}

/// The areas of a vmallocinfo.
#[derive(Debug)]
pub struct Map {
    /// Its name.
    pub name: String,
    /// The picture.
    pub film: Film,
    /// Notes about unreadable data.
    pub notes: Vec<String>,
}

const STYLE: &str = include_str!("style.css");
/// The content security policy of a page: only its own content.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
/// Bytes of all films of a page together, about.
const FILMS_BYTES: usize = 4 << 20;
/// The least bytes of each film.
const FILM_BYTES_MIN: usize = 64 << 10;

/// The scripts of a page, besides that of zoom. They load nothing, keep nothing, and know only what is on the page.
const FILMS: &str = include_str!("script/film.js");
const TABS: &str = include_str!("script/tabs.js");

impl Part {
    fn name(&self) -> &str {
        match self {
            Self::Trace(chapter) => &chapter.name,
            Self::Map(map) => &map.name,
            Self::Sheet(sheet) => &sheet.name,
        }
    }

    fn chapter(&self) -> Option<&Chapter> {
        match self {
            Self::Trace(chapter) => Some(chapter),
            Self::Map(_) | Self::Sheet(_) => None,
        }
    }

    fn film(&mut self) -> Option<&mut Film> {
        match self {
            Self::Trace(chapter) => Some(&mut chapter.film),
            Self::Map(map) => Some(&mut map.film),
            Self::Sheet(_) => None,
        }
    }
}

/// Renders the page.
pub fn page(title: &str, mut parts: Vec<Part>) -> String {
    let mut shared = Shared::default();
    let mut films = 0;
    for film in parts.iter_mut().filter_map(Part::film) {
        film.share(&mut shared);
        films += 1;
    }
    let film_bytes = (FILMS_BYTES / films.max(1)).max(FILM_BYTES_MIN);
    let mut html = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body>\
         <header><h1>{0}</h1>",
        escape(title)
    );
    if parts.iter().any(|part| part.chapter().is_some()) {
        html.push_str(
            "<p>What a Linux kernel did to its virtual address space, replayed event by event. The figures show the kernel's own \
             addresses; the tables say what other policies and indexes do with the same requests.</p>",
        );
    }
    html.push_str("</header>");
    let chapters: Vec<(usize, &Chapter)> =
        parts.iter().enumerate().filter_map(|(number, part)| Some((number, part.chapter()?))).collect();
    let summary = (chapters.len() > 1).then(|| summary(&chapters));
    write_tabs(&mut html, summary.is_some(), &parts);
    let mut footer = String::new();
    write_footer(&mut footer, &chapters.into_iter().map(|(_, chapter)| chapter).collect::<Vec<_>>());
    if let Some(summary) = summary {
        summary.write_to(&mut html, ALL);
    }
    for (number, part) in parts.into_iter().enumerate() {
        let (name, mut section) = (part.name().to_string(), Section::new(&format!("t{number}")));
        match part {
            Part::Trace(chapter) => write_chapter(&mut section, *chapter, film_bytes),
            Part::Map(map) => {
                write_notes(&mut section.html, &map.notes);
                film::write(&mut section, map.film, film_bytes);
            }
            Part::Sheet(sheet) => super::measures::write(&mut section, &sheet),
        }
        section.write_to(&mut html, &name);
    }
    html.push_str(&footer);
    let _ = write!(html, "<script>\"use strict\";\n{}{FILMS}{TABS}</script></body></html>\n", zoom::SCRIPT);
    html
}

/// The name of the tab of all traces.
const ALL: &str = "All results";

/// Writes a tab for each section; they stay in view. A page of one section needs none.
fn write_tabs(html: &mut String, summary: bool, parts: &[Part]) {
    let tab = |html: &mut String, id: &str, name: &str| {
        let name = escape(name);
        let _ = write!(html, "<a role=\"tab\" aria-controls=\"{id}\" href=\"#{id}\">{name}</a>");
    };
    if parts.len() < 2 {
        return;
    }
    html.push_str("<nav class=\"tabs\" role=\"tablist\" aria-label=\"Sections\">");
    if summary {
        tab(html, "all", ALL);
    }
    for (number, part) in parts.iter().enumerate() {
        tab(html, &format!("t{number}"), part.name());
    }
    html.push_str("</nav>");
}

fn write_notes(html: &mut String, notes: &[String]) {
    let notes: Vec<String> = notes.iter().map(|note| escape(note)).collect();
    let _ = write!(html, "<p class=\"dim note\">{}</p>", notes.join("<br>"));
}

/// Returns the number of answers that equal the kernel's: the same address, or failure of both.
fn alike(row: &Row) -> u64 {
    row.columns.same()
}

fn class(row: &Row) -> &'static str {
    if alike(row) == row.allocs { "ok" } else { "off" }
}

/// Returns the section of all traces: what other policies need, and what the indexes answer.
fn summary(chapters: &[(usize, &Chapter)]) -> Section {
    let mut section = Section::new("all");
    let gains: Vec<(usize, &Gain)> =
        chapters.iter().filter_map(|(number, chapter)| Some((*number, chapter.gain.as_ref()?))).collect();
    if !gains.is_empty() {
        section.heading("What one gains");
        let html = &mut section.html;
        html.push_str("<ul>");
        for (number, gain) in &gains {
            let _ = write!(
                html,
                "<li><a href=\"#t{number}\">{}</a>: {}</li>",
                escape(&gain.name),
                escape(&gain.verdict)
            );
        }
        html.push_str("</ul>");
    }
    write_answers(&mut section, chapters);
    section
}

/// Writes the answers of all traces and indexes, and beside them the times.
fn write_answers(section: &mut Section, chapters: &[(usize, &Chapter)]) {
    section.heading("What the indexes answer");
    let html = &mut section.html;
    html.push_str("<div class=\"two\">");
    let answers = |row: &Row| format!("<td class=\"{}\">{}</td>", class(row), grouped(alike(row)));
    write_indexes(html, chapters, "answers that are the kernel's", Some(|row| grouped(row.allocs)), answers);
    let times = |row: &Row| format!("<td>{:.1}</td>", row.ns_median);
    write_indexes(html, chapters, "ns per operation, median", None, times);
    html.push_str("</div>");
    html.push_str(
        "<p class=\"dim note\">An answer is the kernel's if it is the same address, or nothing where the kernel found nothing. \
         Green: all of them. <b>rb-linux</b> searches as Linux does; <b>rb-exact</b> and <b>btree</b> always give the \
         lowest fit, which Linux misses for some aligned requests; <b>list</b> is the design that Linux left with 5.2.</p>",
    );
}

/// Writes a table with a row for each trace, and a column for each index below a title. Before these is one for the
/// allocations, if `allocs` formats them.
fn write_indexes(
    html: &mut String,
    chapters: &[(usize, &Chapter)],
    title: &str,
    allocs: Option<fn(&Row) -> String>,
    cell: fn(&Row) -> String,
) {
    let Some(first) = chapters.first().map(|(_, first)| &first.outcomes) else { return };
    let [above, head] = if allocs.is_some() { ["<th></th>", "<th>allocs</th>"] } else { [""; 2] };
    let _ = write!(
        html,
        "<div class=\"scroll\"><table><thead><tr><th></th>{above}<th class=\"group\" colspan=\"{}\">{title}</th></tr><tr><th>trace</th>{head}",
        first.len()
    );
    for outcome in first {
        let _ = write!(html, "<th>{}</th>", escape(&outcome.row.index));
    }
    html.push_str("</tr></thead><tbody>");
    for (number, chapter) in chapters {
        let _ = write!(html, "<tr><th><a href=\"#t{number}\">{}</a></th>", escape(&chapter.name));
        if let (Some(allocs), Some(outcome)) = (allocs, chapter.outcomes.first()) {
            let _ = write!(html, "<td>{}</td>", allocs(&outcome.row));
        }
        for outcome in &chapter.outcomes {
            html.push_str(&cell(&outcome.row));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
}

fn write_chapter(section: &mut Section, chapter: Chapter, film_bytes: usize) {
    if !chapter.about.is_empty() {
        let _ = write!(section.html, "<p>{}</p>", escape(&chapter.about));
    }
    write_notes(&mut section.html, &chapter.notes);
    film::write(section, chapter.film, film_bytes);
    figures::write(section, &chapter.picture, &chapter.outcomes);
    section.heading("Policies and indexes");
    if let Some(gain) = &chapter.gain {
        write_gain(&mut section.html, gain);
    }
    write_table(&mut section.html, &chapter.outcomes);
    if let Some(durations) = &chapter.durations {
        section.heading("Durations");
        super::latency::write(&mut section.html, durations);
    }
    if !chapter.stacks.is_empty() {
        section.heading("Call stacks");
        write_stacks(&mut section.html, &chapter.stacks);
    }
}

/// Writes the graphs of call stacks, of which the first is open.
fn write_stacks(html: &mut String, graphs: &[(String, [String; 2])]) {
    for (nth, (title, [broad, slim])) in graphs.iter().enumerate() {
        let open = if nth == 0 { " open" } else { "" };
        let _ = write!(
            html,
            "<details{open}><summary>{}</summary><div class=\"broad\"><div data-zoom>{broad}</div></div>\
             <div class=\"slim\"><div data-zoom>{slim}</div></div></details>",
            escape(title)
        );
    }
    html.push_str(
        "<p class=\"dim note\">A box is a function, as wide as what was allocated through it. Callers are below, and the \
         allocator is above. A box names its share when pointed at.</p>",
    );
}

/// A measure of a policy: its name, and the cell of a row.
type Measure = (&'static str, fn(&whatif::Row) -> String);

const MEASURES: [Measure; 7] = [
    ("requests that failed", |row| grouped(row.failed)),
    ("span at its peak", |row| bytes(row.span_bytes)),
    ("kept apart at its peak", |row| bytes(row.kept_bytes)),
    ("most holes", |row| grouped(row.holes)),
    ("purges", |row| grouped(row.purges)),
    ("flushes", |row| grouped(row.flushes)),
    ("longest stall, modelled", |row| duration(row.longest_stall_ns)),
];

/// Writes the policies of a trace as a table, a column for each.
fn write_gain(html: &mut String, gain: &Gain) {
    html.push_str("<div class=\"scroll\"><table><thead><tr><th>policy</th>");
    for row in &gain.policies {
        let _ = write!(html, "<th>{}</th>", escape(row.policy));
    }
    html.push_str("</tr></thead><tbody>");
    for (name, cell) in MEASURES {
        let _ = write!(html, "<tr><th>{name}</th>");
        for row in &gain.policies {
            let _ = write!(html, "<td>{}</td>", cell(row));
        }
        html.push_str("</tr>");
    }
    let _ = write!(html, "</tbody></table></div><p class=\"note\">{}</p>", escape(&gain.verdict));
}

/// The heads of the table of a chapter.
const HEADS: [&str; 12] = [
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
];

/// Returns the cells below [`HEADS`]: the class of each, and its text.
fn cells(row: &Row) -> [(&'static str, String); HEADS.len()] {
    let plain = |count: u64| ("", grouped(count));
    let odd = |count: u64| (if count > 0 { "off" } else { "" }, grouped(count));
    [
        ("", escape(&row.index)),
        plain(row.allocs),
        (class(row), grouped(row.columns.equal)),
        odd(row.columns.lower),
        odd(row.columns.higher),
        plain(row.columns.failed_both),
        odd(row.columns.failed_differs),
        plain(row.inferred),
        ("", format!("{:.1}", row.ns_median)),
        ("", format!("{:.1}", row.ns_min)),
        plain(row.holes),
        ("", bytes(row.largest_hole)),
    ]
}

fn write_table(html: &mut String, outcomes: &[Outcome]) {
    let _ = write!(
        html,
        "<p class=\"note\">{}</p><details><summary>The indexes in numbers</summary><div class=\"scroll\"><table><thead><tr>",
        escape(&verdict(outcomes))
    );
    for head in HEADS {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for Outcome { row, .. } in outcomes {
        html.push_str("<tr>");
        for (at, (class, text)) in cells(row).into_iter().enumerate() {
            // The name of a row is a head, too.
            let _ = match at {
                0 => write!(html, "<th>{text}</th>"),
                _ => write!(html, "<td class=\"{class}\">{text}</td>"),
            };
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></details>");
}

/// Summarises the table in a sentence or two.
fn verdict(outcomes: &[Outcome]) -> String {
    let (same, differ): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| alike(&outcome.row) == outcome.row.allocs);
    let mut sentences = Vec::new();
    if !same.is_empty() {
        let names: Vec<&str> = same.iter().map(|outcome| outcome.row.index.as_str()).collect();
        let verb = if names.len() == 1 { "answers" } else { "answer" };
        sentences.push(format!("{} {verb} every request as the kernel did.", listed(&names)));
    }
    // Indexes with the same differences share a sentence.
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
        sentences.push(format!("{} {verb} in {text}.", listed(&names)));
    }
    sentences.join(" ")
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn write_footer(html: &mut String, chapters: &[&Chapter]) {
    let _ = write!(html, "<footer>Written by vmlab {}.", env!("CARGO_PKG_VERSION"));
    if !chapters.is_empty() {
        let rounds = chapters.iter().flat_map(|chapter| &chapter.outcomes).map(|outcome| outcome.rounds);
        let (least, most) = rounds.fold((u32::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
        let _ = write!(
            html,
            "<details><summary>How times are taken</summary>An operation is a call on the index: allocate, allocate at an \
             address, or free. Its time is the median or the minimum of {} rounds over the whole trace on the machine that wrote \
             this page, the cost of the loop subtracted; the traces' own clock plays no part. Curves are sampled at up to {} \
             moments.</details>",
            if least >= most { most.to_string() } else { format!("{least} to {most}") },
            super::heat::COLUMNS
        );
    }
    html.push_str("</footer>");
}
