//! Call stacks and their weights as a flame graph: an SVG that needs no script.
//!
//! # Theory
//! A box is a function, and is as wide as the weight of all stacks through it. Callers are below, and the functions
//! that they call above them, in the order of their names. So a box above another is a share of it. Boxes narrower than
//! half a pixel are not drawn; the tooltip of a box has its weight and its share.

use crate::map::palette::colour_of;
use crate::shape::Shape;
use std::collections::BTreeMap;
use std::fmt::Write;
use vmlab_base::chart::escape;
use vmlab_base::text::{bytes, duration, grouped};
use vmlab_trace::flame::By;
use vmlab_trace::stack::without_module;

/// Pixels of the border and of a row.
const BORDER: f64 = 10.0;
const ROW: f64 = 17.0;
/// Pixels above the boxes.
const HEAD: f64 = 44.0;
/// Pixels of a character, about.
const CHARACTER: f64 = 6.6;
/// The narrowest box that is drawn.
const NARROW: f64 = 0.5;
/// The most rows: deeper frames are not drawn.
const ROWS_MAX: usize = 64;

/// A function, called by those below.
#[derive(Default)]
struct Node<'a> {
    weight: u64,
    above: BTreeMap<&'a str, Node<'a>>,
}

impl Node<'_> {
    fn rows(&self) -> usize {
        self.above.values().map(|node| 1 + node.rows()).max().unwrap_or(0)
    }
}

/// Formats a weight.
fn shown(weight: u64, by: By) -> String {
    match by {
        By::Bytes | By::Fragmentation => bytes(weight),
        By::Count => vmlab_base::text::counted(weight, "allocation"),
        By::TimeLive if weight < 10_000 => format!("{} us", grouped(weight)),
        By::TimeLive => format!("{:.3} s", weight as f64 / 1e6),
        By::LockTime => duration(weight),
    }
}

/// Returns the width of a graph.
fn width_of(shape: Shape) -> f64 {
    match shape {
        Shape::Broad => 1120.0,
        Shape::Slim => 394.0,
    }
}

/// Draws the graph of stacks, which are frames joined by `;`, outermost first.
pub fn draw(title: &str, stacks: &BTreeMap<String, u64>, by: By, shape: Shape) -> String {
    let mut all = Node::default();
    for (path, &weight) in stacks {
        let mut node = &mut all;
        node.weight = node.weight.saturating_add(weight);
        for frame in path.split(';').take(ROWS_MAX) {
            node = node.above.entry(frame).or_default();
            node.weight = node.weight.saturating_add(weight);
        }
    }
    let rows = all.rows() + 1;
    let height = HEAD + rows as f64 * ROW + BORDER;
    let width = width_of(shape);
    let about = format!(
        "{} in {}; callers below, the allocator above",
        shown(all.weight, by),
        vmlab_base::text::counted(stacks.len() as u64, "stack")
    );
    // The lines of the head are as large as fits.
    let size = |text: &str, most: f64| {
        ((width - 2.0 * BORDER) / (text.chars().count() as f64 * 0.62)).clamp(6.0, most)
    };
    let mut svg = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" font-family=\"ui-monospace,monospace\" \
         font-size=\"11\"><style>.f-p{{fill:#fff}}.f-t{{fill:#1b2430}}.f-d{{fill:#566170}}.f-n{{fill:#fff}}.f-b{{stroke:#fff;stroke-width:.6}}\
         @media(prefers-color-scheme:dark){{.f-p{{fill:#12171e}}.f-t{{fill:#e4e9ef}}.f-d{{fill:#a3aebb}}.f-b{{stroke:#12171e}}}}</style>\
         <rect class=\"f-p\" width=\"100%\" height=\"100%\"/>\
         <text class=\"f-t\" x=\"{BORDER}\" y=\"18\" font-size=\"{:.1}\" font-weight=\"600\">{}</text>\
         <text class=\"f-d\" x=\"{BORDER}\" y=\"35\" font-size=\"{:.1}\">{}</text>",
        size(title, 15.0),
        escape(title),
        size(&about, 11.0),
        escape(&about),
    );
    let graph =
        Graph { all: all.weight.max(1), by, width: width - 2.0 * BORDER, bottom: height - BORDER - ROW };
    graph.write(&mut svg, "all", &all, 0, BORDER);
    svg.push_str("</svg>\n");
    svg
}

struct Graph {
    all: u64,
    by: By,
    /// Of the lowest row, which is as wide as the weight of all.
    width: f64,
    /// Of the lowest row, its upper edge.
    bottom: f64,
}

impl Graph {
    /// Writes a box and those above it.
    fn write(&self, svg: &mut String, name: &str, node: &Node<'_>, row: usize, left: f64) {
        let width = node.weight as f64 / self.all as f64 * self.width;
        if width < NARROW {
            return;
        }
        let top = self.bottom - row as f64 * ROW;
        let share = 100.0 * node.weight as f64 / self.all as f64;
        let colour = if row == 0 { "#5d6875" } else { colour_of(without_module(name)) };
        let _ = write!(
            svg,
            "<g><title>{}: {}, {share:.2} %</title><rect class=\"f-b\" x=\"{left:.2}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{ROW}\" \
             fill=\"{colour}\"/>",
            escape(name),
            escape(&shown(node.weight, self.by)),
        );
        let room = ((width - 6.0) / CHARACTER) as usize;
        if room >= 3 {
            let text: String = match name.chars().count() {
                count if count <= room => name.to_string(),
                _ => name.chars().take(room - 1).chain(['\u{2026}']).collect(),
            };
            let _ = write!(
                svg,
                "<text class=\"f-n\" x=\"{:.2}\" y=\"{:.1}\">{}</text>",
                left + 3.0,
                top + 12.5,
                escape(&text)
            );
        }
        svg.push_str("</g>");
        let mut at = left;
        for (name, above) in &node.above {
            self.write(svg, name, above, row + 1, at);
            at += above.weight as f64 / self.all as f64 * self.width;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|&(path, weight)| (path.to_string(), weight)).collect()
    }

    /// Name, left edge, upper edge and width of each box.
    fn boxes(svg: &str) -> Vec<(String, f64, f64, f64)> {
        let number = |text: &str, key: &str| {
            let at = text.find(key).map(|at| at + key.len()).unwrap_or(0);
            text[at..].split('"').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN)
        };
        svg.split("<g><title>")
            .skip(1)
            .map(|text| {
                let name = text.split(':').next().unwrap_or("").to_string();
                (name, number(text, " x=\""), number(text, " y=\""), number(text, " width=\""))
            })
            .collect()
    }

    #[test]
    fn a_box_is_as_wide_as_the_stacks_through_it_and_above_its_caller() {
        let svg = draw(
            "t",
            &stacks(&[("a;b", 300), ("a;c", 100), ("a", 100), ("d", 500)]),
            By::Bytes,
            Shape::Broad,
        );
        let boxes = boxes(&svg);
        let names: Vec<&str> = boxes.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["all", "a", "b", "c", "d"]);
        let whole = width_of(Shape::Broad) - 2.0 * BORDER;
        for ((_, left, top, width), (want_left, row, share)) in boxes.iter().zip([
            (0.0, 0.0, 1.0),
            (0.0, 1.0, 0.5),
            (0.0, 2.0, 0.3),
            (0.3, 2.0, 0.1),
            (0.5, 1.0, 0.5),
        ]) {
            assert!((left - BORDER - want_left * whole).abs() < 0.02, "{svg}");
            assert!((width - share * whole).abs() < 0.02);
            assert!((boxes[0].2 - top - row * ROW).abs() < 0.2);
        }
        assert!(svg.contains("<title>a: 500 B, 50.00 %</title>"));
    }

    #[test]
    fn names_are_escaped_and_what_is_narrow_or_deep_is_not_drawn() {
        let deep = vec!["f"; 5000].join(";");
        let svg = draw(
            "<t>",
            &stacks(&[("<script>", 1 << 40), ("narrow", 1), (&deep, 1 << 40)]),
            By::Count,
            Shape::Slim,
        );
        assert!(!svg.contains("<script>") && !svg.contains("narrow") && svg.contains("&lt;script&gt;"));
        assert_eq!(boxes(&svg).len(), 2 + ROWS_MAX);
        assert!(boxes(&draw("", &stacks(&[]), By::TimeLive, Shape::Slim)).is_empty());
        let huge = draw("t", &stacks(&[("a", u64::MAX), ("b", u64::MAX)]), By::Bytes, Shape::Slim);
        assert!(boxes(&huge).iter().all(|(_, left, top, width)| (left + top + width).is_finite()));
    }
}
