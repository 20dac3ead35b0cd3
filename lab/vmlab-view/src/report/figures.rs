//! The figures of a chapter, each with a sentence that explains it.

use super::dots::rank;
use super::heat::{Moment, Picture};
use super::section::Section;
use std::fmt::Write;
use va_base::PAGE_SIZE;
use vmlab_base::chart::{Chart, Scale, round_ticks};
use vmlab_base::text::{bytes, grouped};
use vmlab_replay::run::Outcome;

/// Size of a chart in its own units; the page scales it.
const SIZE: (f64, f64) = (460.0, 240.0);
/// CSS pixels of a row of the heat map.
const ROW_PX: f64 = 1.6;

/// Writes all figures of a chapter.
pub(super) fn write(section: &mut Section, picture: &Picture, outcomes: &[Outcome]) {
    section.heading("The address space over time");
    let html = &mut section.html;
    heat(html, picture);
    html.push_str("<div class=\"pair\">");
    pages(html, picture);
    holes(html, picture);
    largest(html, picture);
    latency(html, outcomes);
    html.push_str("</div>");
}

fn series(name: &str, picture: &Picture, value: impl Fn(&Moment) -> f64) -> (String, Vec<(f64, f64)>) {
    let point = |moment: &Moment| ((moment.event - picture.begins) as f64, value(moment));
    (name.to_string(), picture.moments.iter().map(point).collect())
}

/// Returns the name of the axis of events.
fn since(picture: &Picture) -> String {
    match picture.begins {
        0 => "events since the trace began".to_string(),
        before => format!("events after the first {} of the trace", grouped(before as u64)),
    }
}

fn figure(html: &mut String, chart: &Chart, caption: &str) {
    // Writing to a String cannot fail.
    let _ = write!(html, "<figure>{}<figcaption>{caption}</figcaption></figure>", chart.svg(false));
}

fn over_time<'a>(title: &'a str, x: &'a str, y: &'a str, lines: Vec<(String, Vec<(f64, f64)>)>) -> Chart<'a> {
    Chart { title, x, y, x_scale: Scale::Linear, y_scale: Scale::Linear, lines, about: &[], size: SIZE }
}

fn heat(html: &mut String, picture: &Picture) {
    html.push_str(
        "<figure><div class=\"key\">\
         <span><i style=\"background:var(--busy)\"></i>busy</span>\
         <span><i style=\"background:var(--lazy)\"></i>lazy: freed, not reusable before a purge</span>\
         <span><i style=\"background:var(--card)\"></i>free</span></div>",
    );
    for cluster in &picture.clusters {
        let Some(uri) = picture.png_uri(cluster) else { continue };
        let _ = write!(
            html,
            "<div class=\"panel\"><div class=\"label\"><code>{:#x}</code><span><b>{}</b> {}{}</span><code>{:#x}</code></div>\
             <img alt=\"{} over time\" style=\"height:{:.0}px\" src=\"{uri}\"></div>",
            cluster.end(),
            cluster.region.name(),
            bytes(cluster.span()),
            if cluster.runs.len() > 1 {
                format!("<br>in {} runs", cluster.runs.len())
            } else {
                String::new()
            },
            cluster.start(),
            cluster.region.name(),
            cluster.rows as f64 * ROW_PX
        );
    }
    let events = picture.moments.last().map_or(0, |moment| moment.event - picture.begins);
    html.push_str("<div class=\"panel\"><div class=\"gutter\"></div><div><div class=\"ticks\">");
    for tick in round_ticks(events as f64) {
        let share = 100.0 * tick / events.max(1) as f64;
        // The last label would not fit if it were centred at the right edge.
        let class = if share > 97.0 { " class=\"last\"" } else { "" };
        let _ = write!(html, "<span{class} style=\"left:{share:.2}%\">{}</span>", grouped(tick as u64));
    }
    let _ = write!(html, "</div><div class=\"xname\">{}</div></div></div>", since(picture));
    let end = picture.moments.last().copied().unwrap_or_default();
    let _ = write!(
        html,
        "<figcaption>In the end {} are busy and {} lazy.</figcaption></figure><details><summary>How to read the heat map</summary>\
         <p class=\"dim note\">Addresses upwards, each panel on its own scale; stretches that no event touches are left out. A column \
         shows what is busy at its end or was allocated in it, and what is lazy at its end.</p></details>",
        bytes(end.busy_pages * PAGE_SIZE),
        bytes(end.lazy_pages * PAGE_SIZE),
    );
}

fn pages(html: &mut String, picture: &Picture) {
    let peaks = &picture.peaks;
    let lines = vec![
        series("busy", picture, |m| m.busy_pages as f64),
        series("lazy", picture, |m| m.lazy_pages as f64),
    ];
    let ((busy, busy_at), (lazy, lazy_at)) = (peaks.busy_pages, peaks.lazy_pages);
    let lazily = match lazy {
        0 => "nothing is lazy after any event".to_string(),
        _ => format!(
            "lazy pages reach {} at event {}, and fall where a purge returns them",
            grouped(lazy),
            grouped(lazy_at as u64)
        ),
    };
    let caption =
        format!("Busy pages reach {} at event {}; {lazily}.", grouped(busy), grouped(busy_at as u64));
    figure(html, &over_time("Pages in use", &since(picture), "pages of 4 KiB", lines), &caption);
}

fn holes(html: &mut String, picture: &Picture) {
    let Picture { moments, peaks, .. } = picture;
    let (holes, at) = peaks.holes;
    let end = moments.last().map_or(0, |m| m.holes);
    let caption = format!(
        "The free space is in at most {} pieces, at event {}, and in {} at the end: the size of the index.",
        grouped(holes),
        grouped(at as u64),
        grouped(end)
    );
    let lines = vec![series("holes", picture, |m| m.holes as f64)];
    figure(html, &over_time("Holes", &since(picture), "holes in the whole space", lines), &caption);
}

/// The largest hole of a 12.5 PiB window hardly changes on its own scale: the chart shows how much it has lost.
fn largest(html: &mut String, picture: &Picture) {
    let Picture { moments, peaks, .. } = picture;
    let start = moments.iter().map(|m| m.largest).max().unwrap_or(0).max(peaks.first);
    let lost = peaks.first.saturating_sub(peaks.least.0);
    let (unit, name) = if lost >= 1 << 20 { (1u64 << 20, "MiB") } else { (1 << 10, "KiB") };
    let caption = match lost {
        0 => format!("The largest hole keeps its {} all the time.", bytes(start)),
        _ => format!(
            "The largest hole has {} at first and loses at most {} of them, at event {}.",
            bytes(peaks.first),
            bytes(lost),
            grouped(peaks.least.1 as u64)
        ),
    };
    let y = format!("{name} lost");
    let lines = vec![series("largest hole", picture, |m| (start - m.largest) as f64 / unit as f64)];
    figure(html, &over_time("Lost from the largest hole", &since(picture), &y, lines), &caption);
}

fn latency(html: &mut String, outcomes: &[Outcome]) {
    let mut lines = Vec::new();
    let mut phrases = Vec::new();
    for outcome in outcomes {
        let mut ns = outcome.latency.clone();
        ns.sort_unstable();
        let at = |share: f64| ns.get(((ns.len() as f64 * share) as usize).min(ns.len().saturating_sub(1)));
        if let (Some(half), Some(most), Some(worst)) = (at(0.5), at(0.99), ns.last()) {
            let [half, most, worst] = [half, most, worst].map(|&ns| grouped(u64::from(ns)));
            phrases.push(format!("{} {half} / {most} / {worst}", outcome.row.index));
        }
        lines.push((outcome.row.index.clone(), slowest(&ns)));
    }
    // Ours comes first, in the first colour, and then Linux's.
    lines.sort_by_key(|(name, _)| rank(name));
    let names: Vec<String> = lines.iter().map(|(name, _)| name.clone()).collect();
    let about: Vec<&str> = names.iter().map(String::as_str).filter(|name| rank(name) < 2).collect();
    let chart = Chart {
        title: "Time of a call",
        x: "the slowest call of so many",
        y: "ns a call",
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        lines,
        about: &about,
        size: SIZE,
    };
    let caption = format!(
        "Each call timed on its own, once, the clock's own cost subtracted: half of the calls, 99 % of them and all take at \
         most (ns): {}.",
        phrases.join("; ")
    );
    figure(html, &chart, &caption);
}

/// Returns the time that one call in 2, in 4, and so on reaches, and of the slowest of all. `ns` is sorted.
fn slowest(ns: &[u32]) -> Vec<(f64, f64)> {
    let all = ns.len();
    let of = |calls: usize| (calls as f64, f64::from(ns[all - all / calls]));
    let mut points: Vec<_> = (1..).map(|n| 1 << n).take_while(|&calls| calls < all).map(of).collect();
    points.extend(ns.last().map(|&most| (all as f64, f64::from(most))));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_the_slowest_of_so_many_calls() {
        let ns: Vec<u32> = (1..=16).collect();
        assert_eq!(slowest(&ns), [(2.0, 9.0), (4.0, 13.0), (8.0, 15.0), (16.0, 16.0)]);
        assert_eq!(
            (slowest(&[7]), slowest(&[7, 9]), slowest(&[])),
            (vec![(1.0, 7.0)], vec![(2.0, 9.0)], vec![])
        );
        for ns in [vec![1, 1, 2, 40, 41, 900], vec![u32::MAX; 3], (0..5000).collect()] {
            let points = slowest(&ns);
            assert!(points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1), "{points:?}");
        }
    }
}
