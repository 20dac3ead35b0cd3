//! Durations of the kernel's functions, and waits for its locks, in a report.

use crate::map::palette::colour_of;
use crate::shape::{Shape, both};
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{duration, grouped};
use vmlab_trace::latency::{Figures, lowest};

/// Pixels below the strips.
const AXIS: f64 = 22.0;
/// The least pixels from the beginning of one label of the axis to the next.
const LABEL: f64 = 56.0;
/// The most rows of a table.
const ROWS_SHOWN: usize = 20;

/// The durations of a function.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The figures.
    pub figures: Figures,
    /// The number of durations from `2^k` to `2^(k+1)` nanoseconds, for each `k` that has any, ascending.
    pub histogram: Vec<(u32, u64)>,
}

/// The durations and waits of a recording.
#[derive(Debug)]
pub struct Durations {
    /// The functions.
    pub calls: Vec<Row>,
    /// The locks and who waits; their histograms are not drawn.
    pub locks: Vec<Row>,
    /// Notes about what the figures are of.
    pub notes: Vec<String>,
}

/// Writes the section of a recording.
pub(super) fn write(html: &mut String, durations: &Durations) {
    if !durations.calls.is_empty() {
        histogram(html, &durations.calls);
        table(html, "function", "calls", &durations.calls);
    }
    if !durations.locks.is_empty() {
        table(html, "lock, and who waits", "waits", &durations.locks);
    }
    let notes: Vec<String> = durations.notes.iter().map(|note| escape(note)).collect();
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        html,
        "<details><summary>What the figures are of</summary><p class=\"dim note\">{}</p></details>",
        notes.join("<br>")
    );
}

/// Draws a strip for each function: its bars are as high as the share of its calls that took so long.
fn histogram(html: &mut String, rows: &[Row]) {
    let buckets = || rows.iter().flat_map(|row| &row.histogram).map(|&(bucket, _)| bucket);
    let (Some(first), Some(last)) = (buckets().min(), buckets().max()) else { return };
    let _ = write!(
        html,
        "<figure class=\"wide\">{}<figcaption>Calls by duration: each bar is of durations twice as long as those of the bar \
         before it, and as high as its share of the function's calls. A bar names its calls when pointed at.</figcaption></figure>",
        both(|shape| strips(rows, first, last, shape))
    );
}

/// Draws the strips of durations from `2^first` to `2^(last+1)` nanoseconds.
fn strips(rows: &[Row], first: u32, last: u32, shape: Shape) -> String {
    let width = shape.width();
    // The names beside the strips or above them, and the height of a strip and of its bars.
    let (names, strip, bars) = match shape {
        Shape::Broad => (190.0, 54.0, 46.0),
        Shape::Slim => (0.0, 44.0, 28.0),
    };
    let bar = ((width - names) / f64::from(last - first + 1)).min(48.0);
    let left = |bucket: u32| names + f64::from(bucket - first) * bar;
    let bottom = rows.len() as f64 * strip;
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg viewBox=\"0 0 {width:.0} {:.0}\" width=\"{width:.0}\" font-size=\"11\" fill=\"currentColor\" role=\"img\" \
         aria-label=\"durations by function\">",
        bottom + AXIS
    );
    for (nth, row) in rows.iter().enumerate() {
        let base = (nth + 1) as f64 * strip;
        let name = match shape {
            Shape::Broad => base - 6.0,
            Shape::Slim => base - bars - 4.0,
        };
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{name:.1}\">{}</text><line x1=\"{names}\" x2=\"{width:.0}\" y1=\"{base:.1}\" y2=\"{base:.1}\" \
             stroke=\"currentColor\" stroke-opacity=\".25\"/>",
            escape(&row.name)
        );
        let most = row.histogram.iter().map(|&(_, count)| count).max().unwrap_or(1).max(1);
        for &(bucket, count) in &row.histogram {
            let height = (count as f64 / most as f64 * bars).max(1.0);
            let _ = write!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"><title>{}: {} from {} up to {}\
                 </title></rect>",
                left(bucket) + bar / 36.0,
                base - height,
                bar * 17.0 / 18.0,
                colour_of(&row.name),
                escape(&row.name),
                grouped(count),
                duration(lowest(bucket)),
                duration(lowest(bucket.saturating_add(1))),
            );
        }
    }
    // A label begins where its bar does; the last must fit, too.
    let labelled = (first..=last).step_by((LABEL / bar).ceil() as usize);
    for bucket in labelled.filter(|&bucket| left(bucket) + LABEL < width + 12.0) {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left(bucket),
            bottom + AXIS - 6.0,
            duration(lowest(bucket))
        );
    }
    svg.push_str("</svg>");
    svg
}

fn table(html: &mut String, what: &str, count: &str, rows: &[Row]) {
    let _ = write!(
        html,
        "<div class=\"scroll\"><table class=\"tall\"><thead><tr><th>{what}</th><th>{count}</th><th>median</th><th>p90</th><th>p99</th>\
         <th>p99.9</th><th>max</th><th>total</th></tr></thead><tbody>"
    );
    for Row { name, figures, .. } in rows.iter().take(ROWS_SHOWN) {
        let _ = write!(html, "<tr><td>{}</td><td>{}</td>", escape(name), grouped(figures.count));
        let Figures { median, p90, p99, p999, max, total, .. } = *figures;
        for ns in [median, p90, p99, p999, max, total] {
            let _ = write!(html, "<td>{}</td>", duration(ns));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    if rows.len() > ROWS_SHOWN {
        let _ =
            write!(html, "<p class=\"dim note\">and {} more</p>", grouped((rows.len() - ROWS_SHOWN) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, histogram: &[(u32, u64)]) -> Row {
        let figures = Figures { count: 7, median: 1500, max: 2500, ..Figures::default() };
        Row { name: name.to_string(), figures, histogram: histogram.to_vec() }
    }

    #[test]
    fn a_section_has_a_bar_for_each_range_and_a_row_for_each_function() {
        let durations = Durations {
            calls: vec![row("a<b", &[(0, 1), (63, 6)]), row("c", &[])],
            locks: (0..25).map(|n| row(&format!("lock {n}"), &[])).collect(),
            notes: vec!["so & so".to_string()],
        };
        let mut html = String::new();
        write(&mut html, &durations);
        assert_eq!(html.matches("<rect").count(), 4, "two in each shape");
        assert!(html.contains("a&lt;b: 1 from 0 ns up to 2 ns") && !html.contains("a<b"), "{html}");
        assert_eq!(html.matches("<tr><td>").count(), 2 + ROWS_SHOWN);
        assert!(
            html.contains("and 5 more") && html.contains("so &amp; so") && html.contains("1.50 us"),
            "{html}"
        );
        let mut none = String::new();
        let calls = vec![row("c", &[])];
        write(&mut none, &Durations { calls, locks: Vec::new(), notes: Vec::new() });
        assert!(!none.contains("<svg") && none.contains("<td>c</td>"), "{none}");
    }
}
