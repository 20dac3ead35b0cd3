//! Renders the page of every report.

use super::figures;
use super::film::{self, Film};
use super::heat::Picture;
use super::sheet::Sheet;
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, grouped};
use vmlab_replay::run::{Outcome, Row};

/// One section of the report.
#[derive(Debug)]
pub enum Part {
    /// A trace, replayed.
    Trace(Box<Chapter>),
    /// The areas of a vmallocinfo.
    Map(Map),
    /// Measurements.
    Sheet(Sheet),
    /// The call stacks of a recording.
    Flame(Flame),
    /// The durations of a recording.
    Durations(super::latency::Durations),
}

/// The call stacks of a recording, drawn.
#[derive(Debug)]
pub struct Flame {
    /// Its name.
    pub name: String,
    /// The graphs, as SVG.
    pub graphs: Vec<String>,
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

/// Renders the page.
pub fn page(title: &str, parts: Vec<Part>) -> String {
    let mut html = String::new();
    let chapters = || {
        parts.iter().enumerate().filter_map(|(number, part)| match part {
            Part::Trace(chapter) => Some((number, &**chapter)),
            Part::Map(_) | Part::Sheet(_) | Part::Flame(_) | Part::Durations(_) => None,
        })
    };
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body>\
         <header><h1>{0}</h1>",
        escape(title)
    );
    if chapters().next().is_some() {
        html.push_str(
            "<p>What a Linux kernel did to its virtual address space, replayed event by event on each \
             index. The figures show the kernel's own addresses; the tables say how each index answered the same requests, \
             and how fast.</p>",
        );
    }
    html.push_str("</header>");
    write_contents(&mut html, &parts);
    write_summary(&mut html, &chapters().collect::<Vec<_>>());
    let mut footer = String::new();
    write_footer(&mut footer, &chapters().map(|(_, chapter)| chapter).collect::<Vec<_>>());
    let films = parts.iter().filter(|part| matches!(part, Part::Trace(_) | Part::Map(_))).count();
    let film_bytes = (FILMS_BYTES / films.max(1)).max(FILM_BYTES_MIN);
    for (number, part) in parts.into_iter().enumerate() {
        match part {
            Part::Trace(chapter) => write_chapter(&mut html, number, *chapter, film_bytes),
            Part::Map(map) => {
                let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&map.name));
                write_notes(&mut html, &map.notes);
                film::write(&mut html, map.film, film_bytes);
                html.push_str("</section>");
            }
            Part::Sheet(sheet) => {
                let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&sheet.name));
                super::measures::write(&mut html, &sheet);
                html.push_str("</section>");
            }
            Part::Durations(durations) => {
                let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&durations.name));
                super::latency::write(&mut html, &durations);
                html.push_str("</section>");
            }
            Part::Flame(flame) => {
                let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&flame.name));
                for graph in flame.graphs {
                    let _ = write!(html, "<div class=\"scroll flame\">{graph}</div>");
                }
                html.push_str(
                    "<p class=\"dim note\">A box is a function, as wide as what was allocated through it. Callers are below, and the \
                     allocator is above. A box names its share when pointed at.</p></section>",
                );
            }
        }
    }
    html.push_str(&footer);
    if films > 0 {
        let _ = write!(html, "<script>{}</script>", film::SCRIPT);
    }
    html.push_str("</body></html>\n");
    html
}

/// Writes a link to each section, which stay in view. A page of one section needs none.
fn write_contents(html: &mut String, parts: &[Part]) {
    if parts.len() < 2 {
        return;
    }
    html.push_str("<nav class=\"toc\" aria-label=\"Sections\">");
    for (number, part) in parts.iter().enumerate() {
        let name = match part {
            Part::Trace(chapter) => &chapter.name,
            Part::Map(map) => &map.name,
            Part::Sheet(sheet) => &sheet.name,
            Part::Flame(flame) => &flame.name,
            Part::Durations(durations) => &durations.name,
        };
        let _ = write!(html, "<a href=\"#t{number}\">{}</a>", escape(name));
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

/// Writes all traces and indexes in one table.
fn write_summary(html: &mut String, chapters: &[(usize, &Chapter)]) {
    let Some((_, first)) = chapters.first() else { return };
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
    for (number, chapter) in chapters {
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

fn write_chapter(html: &mut String, number: usize, chapter: Chapter, film_bytes: usize) {
    let _ = write!(html, "<section><h2 id=\"t{number}\">{}</h2>", escape(&chapter.name));
    if !chapter.about.is_empty() {
        let _ = write!(html, "<p>{}</p>", escape(&chapter.about));
    }
    write_notes(html, &chapter.notes);
    write_table(html, &chapter.outcomes);
    film::write(html, chapter.film, film_bytes);
    figures::write(html, &chapter.picture, &chapter.outcomes);
    html.push_str("</section>");
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
    html.push_str("<div class=\"scroll\"><table><thead><tr>");
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
    let _ = write!(html, "</tbody></table></div><p class=\"dim note\">{}</p>", escape(&verdict(outcomes)));
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
            " An operation is a call on the index: allocate, allocate at an address, or free. Its time \
             is the median or the minimum of {} rounds over the whole trace on the machine that wrote this page, the cost of \
             the loop subtracted; the traces' own clock plays no part. Curves are sampled at up to {} moments.",
            if least >= most { most.to_string() } else { format!("{least} to {most}") },
            super::heat::COLUMNS
        );
    }
    html.push_str("</footer>");
}
