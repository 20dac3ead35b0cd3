//! Figures of a file of measurements: ratios, growth, contention and latencies, as far as it has the columns.

use super::dots::{Dots, factor_text, rank};
use super::section::Section;
use super::sheet::{Row, Sheet};
use crate::shape::both;
use std::fmt::Write;
use vmlab_base::chart::{Chart, Scale, escape, short};
use vmlab_base::text::counted;

/// The most rows of a plot or a table.
const ROWS_SHOWN: usize = 80;
/// The most contenders that are drawn.
const CONTENDERS_SHOWN: usize = 12;
/// The most rows and columns of a table that are read.
const NAMES_MAX: usize = 2000;
const CONTENDERS_MAX: usize = 64;
/// The most curves of a kind, and those that are open: the others are one click away.
const CURVES_SHOWN: usize = 24;
const CURVES_OPEN: usize = 2;

/// The columns with the time of one operation, in order of preference.
const TIME: [&str; 10] = [
    "ns_min",
    "cpu_ns_min",
    "first_ns_min",
    "wall_ns_min",
    "ns_median",
    "loop_ns",
    "ns_per_call",
    "ns",
    "p50_ns",
    "p50",
];
/// The compared quantities besides the time of an operation.
const MORE: [(&str, &str); 6] = [
    ("free_ns_min", "Time of a free"),
    ("p99_ns", "Slowest of a hundred"),
    ("rss_mean", "Memory in use, on average"),
    ("locks_a_pair", "Locks taken, a pair"),
    ("contentions", "Contentions of a lock"),
    ("wait_total_ns", "Time waited for a lock"),
];
/// Percentiles, and the columns that hold them.
const SHARES: [(f64, &[&str]); 4] = [
    (50.0, &["p50_ns", "p50"]),
    (99.0, &["p99_ns", "p99"]),
    (99.9, &["p999_ns", "p99_9_ns", "p99.9_ns", "p99.9", "p999"]),
    (100.0, &["worst_ns", "max_ns", "worst", "max"]),
];

/// A table of one quantity, with rows in the order of the file.
struct Grid {
    names: Vec<String>,
    contenders: Vec<String>,
    cells: Vec<Vec<Option<f64>>>,
}

fn place(of: &mut Vec<String>, name: &str) -> usize {
    of.iter().position(|known| known == name).unwrap_or_else(|| {
        of.push(name.to_string());
        of.len() - 1
    })
}

/// Returns the name of a row with its counts, `fix_size, 2 nodes, 4 threads`, where rows differ in them.
fn full_name(row: &Row, several: (bool, bool)) -> String {
    let count = |number: Option<f64>, noun: &str, several: bool| {
        number
            .filter(|_| several)
            .map_or(String::new(), |number| format!(", {}", counted(number as u64, noun)))
    };
    format!("{}{}{}", row.name, count(row.nodes, "node", several.0), count(row.threads, "thread", several.1))
}

impl Grid {
    fn of(rows: &[&Row], column: usize) -> Self {
        let differ = |of: fn(&Row) -> Option<f64>| rows.iter().any(|row| of(row) != of(rows[0]));
        let several = (differ(|row| row.nodes), differ(|row| row.threads));
        // Nodes that always equal the threads need not be named.
        let several = (several.0 && rows.iter().any(|row| row.nodes != row.threads), several.1);
        let mut grid = Self { names: Vec::new(), contenders: Vec::new(), cells: Vec::new() };
        for row in rows {
            let Some(value) = row.values[column] else { continue };
            let name = place(&mut grid.names, &full_name(row, several));
            let contender = place(&mut grid.contenders, &row.contender);
            grid.names.truncate(NAMES_MAX);
            grid.contenders.truncate(CONTENDERS_MAX);
            if name >= NAMES_MAX || contender >= CONTENDERS_MAX {
                continue;
            }
            grid.cells.resize(grid.names.len(), Vec::new());
            if grid.cells[name].len() <= contender {
                grid.cells[name].resize(contender + 1, None);
            }
            grid.cells[name][contender] = Some(value);
        }
        for cells in &mut grid.cells {
            cells.resize(grid.contenders.len(), None);
        }
        grid
    }

    /// Returns the contender that the others are compared with: ours if present, else the first.
    fn base(&self) -> usize {
        self.contenders.iter().position(|contender| contender == "ours" || contender == "btree").unwrap_or(0)
    }
}

/// Writes all figures of a file.
pub(super) fn write(section: &mut Section, sheet: &Sheet) {
    let facts: Vec<String> = sheet.facts.iter().map(|fact| escape(fact)).collect();
    let unread = match sheet.bad {
        0 => String::new(),
        bad => format!(" {} could not be read.", counted(bad, "line")),
    };
    // Writing to a String cannot fail.
    let _ = write!(
        section.html,
        "<p class=\"dim note\">{}{}{}.{unread}</p>",
        facts.join("<br>"),
        if facts.is_empty() { "" } else { "<br>" },
        counted(sheet.rows.len() as u64, "measurement")
    );
    let mut kinds: Vec<String> = Vec::new();
    for row in &sheet.rows {
        place(&mut kinds, &row.kind);
    }
    for kind in kinds {
        let rows: Vec<&Row> = sheet.rows.iter().filter(|row| row.kind == kind).collect();
        if !kind.is_empty() {
            section.heading(&kind);
        }
        let html = &mut section.html;
        ratios(html, sheet, &rows);
        growth(html, sheet, &rows);
        contention(html, sheet, &rows);
        latencies(html, sheet, &rows);
    }
}

fn ratios(html: &mut String, sheet: &Sheet, rows: &[&Row]) {
    let time = sheet.column(&TIME);
    let more = MORE.iter().filter_map(|&(name, title)| Some((sheet.column(&[name])?, title)));
    let time = time.map(|column| (column, "Time of an operation"));
    for (column, title) in time.into_iter().chain(more.filter(|more| Some(more.0) != time.map(|time| time.0)))
    {
        let grid = Grid::of(rows, column);
        if grid.names.is_empty() {
            continue;
        }
        if grid.contenders.len() > 1 {
            plot(html, &grid, title);
        }
        table(html, &grid, &sheet.columns[column]);
    }
}

fn plot(html: &mut String, grid: &Grid, title: &str) {
    let base = grid.base();
    let mut order: Vec<usize> = (0..grid.contenders.len()).collect();
    // What is cut is a peer's.
    order.sort_by_key(|&contender| (contender != base, rank(&grid.contenders[contender])));
    order.truncate(CONTENDERS_SHOWN);
    let mut rows = Vec::new();
    for (name, cells) in grid.names.iter().zip(&grid.cells) {
        let Some(one) = cells[base].filter(|&one| one > 0.0) else { continue };
        let factors: Vec<Option<f64>> = order
            .iter()
            .map(|&contender| cells[contender].filter(|&cell| cell > 0.0).map(|cell| cell / one))
            .collect();
        if factors.iter().flatten().count() > 1 {
            rows.push((name.clone(), factors));
        }
    }
    if rows.is_empty() {
        return;
    }
    let (all, contenders) =
        (rows.len(), order.iter().map(|&contender| grid.contenders[contender].clone()).collect::<Vec<_>>());
    rows.truncate(ROWS_SHOWN);
    let title = format!("{title}, beside {}", grid.contenders[base]);
    let axis = format!("times what {} has: left of 1x is less", grid.contenders[base]);
    let mut caption = ratios_in_words(&rows, &contenders);
    if all > rows.len() {
        let _ = write!(caption, " The first {} of {all} rows are drawn.", rows.len());
    }
    if grid.contenders.len() > contenders.len() {
        let _ = write!(caption, " The first {} of {} are drawn.", contenders.len(), grid.contenders.len());
    }
    let dots = Dots { title: &title, axis: &axis, contenders: &contenders, rows };
    let _ = write!(
        html,
        "<figure class=\"wide\">{}<figcaption>{}</figcaption></figure>",
        both(|shape| dots.svg(shape)),
        escape(&caption)
    );
}

/// Describes the comparison with each other contender in a few words.
fn ratios_in_words(rows: &[(String, Vec<Option<f64>>)], contenders: &[String]) -> String {
    let mut phrases = Vec::new();
    for (at, name) in contenders.iter().enumerate().skip(1) {
        let mut factors: Vec<f64> = rows.iter().filter_map(|(_, factors)| factors[at]).collect();
        factors.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (factors.first(), factors.last()) else { continue };
        let middle = factors[factors.len() / 2];
        phrases.push(format!(
            "{name} {} in the middle ({} to {})",
            factor_text(middle),
            factor_text(*least),
            factor_text(*most)
        ));
    }
    format!("{}.", phrases.join("; "))
}

fn table(html: &mut String, grid: &Grid, unit: &str) {
    let _ = write!(
        html,
        "<details><summary>{} in numbers</summary><div class=\"scroll\"><table><thead><tr><th></th>",
        escape(unit)
    );
    for contender in &grid.contenders {
        let _ = write!(html, "<th>{}</th>", escape(contender));
    }
    html.push_str("</tr></thead><tbody>");
    for (name, cells) in grid.names.iter().zip(&grid.cells).take(ROWS_SHOWN) {
        let _ = write!(html, "<tr><th>{}</th>", escape(name));
        for cell in cells {
            let _ = match cell {
                Some(value) => write!(html, "<td>{}</td>", short(*value)),
                None => write!(html, "<td class=\"dim\">-</td>"),
            };
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></details>");
}

/// Parses the size in a name, such as `1k`, `64K` or `100`, and returns the name with a placeholder for it.
fn size_in(name: &str) -> Option<(String, f64)> {
    let mut found = None;
    for (at, word) in name.split('-').enumerate() {
        let (digits, factor) = match word.char_indices().last()? {
            (end, 'k' | 'K') => (&word[..end], 1e3),
            (end, 'M') => (&word[..end], 1e6),
            (end, 'G') => (&word[..end], 1e9),
            _ => (word, 1.0),
        };
        let Ok(number) = digits.parse::<u32>() else { continue };
        if found.replace((at, f64::from(number) * factor)).is_some() {
            // With two sizes, it is unclear which one grows.
            return None;
        }
    }
    let (place, size) = found.filter(|found| found.1 > 0.0)?;
    let words: Vec<&str> =
        name.split('-').enumerate().map(|(at, word)| if at == place { "N" } else { word }).collect();
    Some((words.join("-"), size))
}

/// Lines of one chart: a name and points for each.
type Lines = Vec<(String, Vec<(f64, f64)>)>;

fn add(lines: &mut Lines, contender: &str, point: (f64, f64)) {
    match lines.iter_mut().find(|(name, _)| name == contender) {
        Some((_, points)) => points.push(point),
        None => lines.push((contender.to_string(), vec![point])),
    }
}

/// Draws workloads that have several sizes as curves.
fn growth(html: &mut String, sheet: &Sheet, rows: &[&Row]) {
    let Some(column) = sheet.column(&TIME) else { return };
    let mut families: Vec<(String, Lines)> = Vec::new();
    for row in rows {
        let (Some((family, size)), Some(value)) = (size_in(&row.name), row.values[column]) else { continue };
        let at = families.iter().position(|(name, _)| *name == family).unwrap_or_else(|| {
            families.push((family, Vec::new()));
            families.len() - 1
        });
        add(&mut families[at].1, &row.contender, (size, value));
    }
    families.retain(|(_, lines)| lines.iter().any(|(_, points)| points.len() >= 3));
    let title = |family: &str| format!("Growth: {family}");
    let charts: Vec<(String, Lines)> =
        families.into_iter().map(|(family, lines)| (title(&family), lines)).collect();
    curves(html, charts, ("N", |_| "ns an operation"));
}

/// Writes the effect of more threads or nodes on time and locks.
fn contention(html: &mut String, sheet: &Sheet, rows: &[&Row]) {
    let mut charts = Vec::new();
    let several = |of: fn(&Row) -> Option<f64>| {
        let mut all: Vec<f64> = rows.iter().filter_map(|row| of(row)).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all.len() >= 3
    };
    let (of, x): (fn(&Row) -> Option<f64>, &str) = if several(|row| row.threads) {
        (|row| row.threads, "threads")
    } else if several(|row| row.nodes) {
        (|row| row.nodes, "nodes")
    } else {
        return;
    };
    for (columns, what) in
        [(&TIME[..], "time of an operation"), (&["locks_a_pair"][..], "locks taken, a pair")]
    {
        let Some(column) = sheet.column(columns) else { continue };
        for row in rows {
            let (Some(x), Some(value)) = (of(row), row.values[column]) else { continue };
            let title = format!("{}: {what}", row.name);
            let at = charts.iter().position(|(known, _): &(String, Lines)| *known == title);
            let at = at.unwrap_or_else(|| {
                charts.push((title, Vec::new()));
                charts.len() - 1
            });
            add(&mut charts[at].1, &row.contender, (x, value));
        }
    }
    charts.retain(|(_, lines)| lines.iter().any(|(_, points)| points.len() >= 3));
    let y = |title: &str| if title.ends_with("a pair") { "locks a pair" } else { "ns an operation" };
    curves(html, charts, (x, y));
}

/// Writes the percentiles of the calls' latencies.
fn latencies(html: &mut String, sheet: &Sheet, rows: &[&Row]) {
    let shares: Vec<(f64, usize)> =
        SHARES.iter().filter_map(|&(share, names)| Some((share, sheet.column(names)?))).collect();
    if shares.len() < 2 {
        return;
    }
    let mut charts: Vec<(String, Lines)> = Vec::new();
    let clocked = rows.iter().filter(|row| shares.iter().any(|&(_, column)| row.values[column] > Some(0.0)));
    for row in clocked {
        let title = format!("Latency: {}", full_name(row, (true, true)));
        let at = charts.iter().position(|(known, _)| *known == title).unwrap_or_else(|| {
            charts.push((title, Vec::new()));
            charts.len() - 1
        });
        for (place, &(_, column)) in shares.iter().enumerate() {
            if let Some(value) = row.values[column] {
                add(&mut charts[at].1, &row.contender, (place as f64, value));
            }
        }
    }
    let names: Vec<String> = shares
        .iter()
        .enumerate()
        .map(|(at, &(share, _))| {
            format!("{at}: {}", if share < 100.0 { format!("{share} %") } else { "the slowest".into() })
        })
        .collect();
    curves(html, charts, (&format!("share of the calls ({})", names.join(", ")), |_| "ns at most"));
}

fn curves(html: &mut String, charts: Vec<(String, Lines)>, (x, y): (&str, fn(&str) -> &'static str)) {
    if charts.is_empty() {
        return;
    }
    let all = charts.len();
    html.push_str("<div class=\"pair\">");
    for (nth, (title, mut lines)) in charts.into_iter().take(CURVES_SHOWN).enumerate() {
        if nth == CURVES_OPEN {
            let more = counted((all.min(CURVES_SHOWN) - nth) as u64, "curve");
            // Writing to a String cannot fail.
            let _ = write!(html, "</div><details><summary>{more} more</summary><div class=\"pair\">");
        }
        for (_, points) in &mut lines {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        // Ours comes first, in the first colour, and then Linux's.
        lines.sort_by_key(|(name, _)| (name != "ours", rank(name)));
        let left_out = lines.len().saturating_sub(CONTENDERS_SHOWN);
        lines.truncate(CONTENDERS_SHOWN);
        let spread = |of: fn(&(f64, f64)) -> f64| {
            let all = || lines.iter().flat_map(|(_, points)| points).map(of);
            all().fold(0.0, f64::max) / all().fold(f64::INFINITY, f64::min)
        };
        let scale =
            |spread: f64| if spread.is_finite() && spread > 20.0 { Scale::Log } else { Scale::Linear };
        let (x_scale, y_scale) = (scale(spread(|point| point.0)), scale(spread(|point| point.1)));
        let caption = match left_out {
            0 => ends(&lines),
            more => format!("{} {more} more are not drawn.", ends(&lines)),
        };
        let about: Vec<&str> =
            lines.iter().map(|(name, _)| name.as_str()).filter(|name| rank(name) < 2).collect();
        // Peers are grey, and then each line has its name at its end.
        let about = if about.len() < lines.len() { about.as_slice() } else { &[] };
        let chart = Chart {
            title: &title,
            x,
            y: y(&title),
            x_scale,
            y_scale,
            lines: lines.clone(),
            about,
            size: (460.0, 260.0),
        };
        let _ = write!(
            html,
            "<figure>{}<figcaption>{}</figcaption></figure>",
            chart.svg(false),
            escape(&caption)
        );
    }
    html.push_str(if all > CURVES_OPEN { "</div></details>" } else { "</div>" });
    if all > CURVES_SHOWN {
        let _ = write!(html, "<p class=\"dim note\">The first {CURVES_SHOWN} of {all} curves are drawn.</p>");
    }
}

/// Returns the ends of the lines.
fn ends(lines: &Lines) -> String {
    let end = |(name, points): &(String, Vec<(f64, f64)>)| {
        let &(x, y) = points.last()?;
        Some(format!("{name} {} at {}", short(y), short(x)))
    };
    format!("In the end: {}.", lines.iter().filter_map(end).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(csv: &str) -> String {
        let mut section = Section::new("t");
        write(&mut section, &Sheet::of_csv("s", csv.as_bytes()).unwrap());
        let html = section.html;
        for tag in ["figure", "table", "details", "svg", "div", "p", "figcaption"] {
            let opened =
                html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}: {html}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        html
    }

    #[test]
    fn ratios_are_relative_to_ours_and_in_words() {
        let html = drawn("workload,contender,ns_min\na,list,390\na,ours,10\nb,list,5\nb,ours,10\nc,<i>,1\n");
        assert!(
            html.contains("beside ours") && html.contains("list 39x in the middle (0.5x to 39x)"),
            "{html}"
        );
        assert!(html.contains("&lt;i&gt;") && !html.contains("<i>"));
    }

    #[test]
    fn sizes_are_found_in_names() {
        let all =
            ["rand-1k", "pair-64K-pages-1t", "mix-64K-4M", "frag", "slowest-free-128-random", "x-0", "-", ""];
        let found = all.map(|name| size_in(name).map(|(family, size)| format!("{family} {size}")));
        let want = [
            Some("rand-N 1000"),
            Some("pair-N-pages-1t 64000"),
            None,
            None,
            Some("slowest-free-N-random 128"),
            None,
            None,
            None,
        ];
        assert_eq!(found.each_ref().map(Option::as_deref), want);
    }

    #[test]
    fn growth_contention_and_latency_are_drawn_where_a_file_holds_them() {
        let mut csv = "kind,name,threads,contender,ns_min,p50_ns,p99_ns,worst_ns,locks_a_pair\n".to_string();
        for threads in [1, 2, 16] {
            csv += &format!("threads,fix,{threads},ours,{threads},1,2,3,0.1\n");
        }
        for size in ["1k", "10k", "1M"] {
            csv += &format!("grow,rand-{size},1,ours,5,1,2,3,\n");
        }
        let html = drawn(&csv);
        for title in [
            "fix: time of an operation",
            "fix: locks taken, a pair",
            "Growth: rand-N",
            "Latency: fix, 16 threads",
        ] {
            assert_eq!(html.matches(&format!("<title>{title}</title>")).count(), 1, "{title}");
        }
        assert!(!drawn("workload,contender,ns_min\na,ours,1\n").contains("Growth"));
    }

    #[test]
    fn linux_is_never_cut_and_peers_are_grey() {
        let mut csv = "workload,contender,ns_min\n".to_string();
        for size in [1, 10, 100] {
            for peer in 0..CONTENDERS_SHOWN + 3 {
                csv += &format!("rand-{size},peer{peer},{}\n", 5 * size + peer);
            }
            csv += &format!("rand-{size},ours,{size}\nrand-{size},kern,{size}\n");
        }
        let html = drawn(&csv);
        assert!(html.contains("kern 1x in the middle") && html.contains("kern 100 at 100"), "{html}");
        let cut = CONTENDERS_SHOWN + 5 - CONTENDERS_SHOWN;
        assert!(
            html.contains(&format!("The first {CONTENDERS_SHOWN} of {} are drawn", CONTENDERS_SHOWN + 5))
        );
        assert!(html.contains(&format!("{cut} more are not drawn")));
        let greys = html.matches("var(--dim,#566170)").count();
        assert_eq!(greys, (CONTENDERS_SHOWN - 2) * 4 * 2, "in the legend and in three rows, in both shapes");
        // Without ours and Linux's, no contender is a peer.
        assert!(!drawn("workload,contender,ns_min\na,x,1\na,y,2\n").contains("--dim"));
    }

    #[test]
    fn zeros_and_gaps_do_no_harm() {
        drawn("workload,contender,ns_min\na,ours,0\na,b,0\nb,ours,-5\nb,b,1e300\n");
        drawn("workload,contender,x\na,ours,\nb,ours,\n");
    }
}
