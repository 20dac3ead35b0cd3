//! Bar charts as SVG: groups of bars, a colour for each series, and several bars side by side for each series of a
//! group.

use super::chart::{Axis, COLOURS, Scale, escape, short};
use std::fmt::Write;

/// The bars over one name of the horizontal axis.
#[derive(Debug)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// The bars of each series, from left to right.
    pub series: Vec<Vec<f64>>,
}

/// A chart.
#[derive(Debug)]
pub struct Bars<'a> {
    /// Title of the chart.
    pub title: &'a str,
    /// Quantity and unit.
    pub y: &'a str,
    /// Names of the series.
    pub names: &'a [&'a str],
    /// The groups, from left to right.
    pub groups: Vec<Group>,
    /// True for a logarithmic y axis; a value of 0 then has no bar.
    pub log: bool,
    /// Index of the first series' colour.
    pub first_colour: usize,
    /// Width and height in pixels.
    pub size: (f64, f64),
}

impl Bars<'_> {
    /// Returns the chart as a standalone file.
    pub fn svg(&self) -> String {
        let (width, height) = self.size;
        let (left, right, top, bottom) = (66.0, 14.0, 50.0, 34.0);
        let values = || self.groups.iter().flat_map(|group| group.series.iter().flatten().copied());
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        let mut y = Axis::new(scale, values(), height - bottom, top);
        if self.log {
            y.widen();
        }
        let mut svg = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" style=\"background:#fff;color:#1f2937\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"11\" fill=\"#1f2937\">\
             <title>{0}</title><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
             <text x=\"{left}\" y=\"16\" font-size=\"13\" font-weight=\"600\">{0}</text>\
             <text transform=\"translate(13 {1}) rotate(-90)\" text-anchor=\"middle\">{2}{3}</text>",
            escape(self.title),
            (top + height - bottom) / 2.0,
            escape(self.y),
            if self.log { ", log scale" } else { "" }
        );
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#1f2937\" stroke-opacity=\".14\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                width - right,
                left - 6.0,
                at + 4.0,
                label(tick)
            );
        }
        for (number, name) in self.names.iter().enumerate() {
            let x = left + 150.0 * number as f64;
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"25\" width=\"11\" height=\"11\" fill=\"{}\"/><text x=\"{}\" y=\"34\">{}</text>",
                self.colour(number),
                x + 16.0,
                escape(name)
            );
        }
        let share = (width - left - right) / self.groups.len().max(1) as f64;
        for (number, group) in self.groups.iter().enumerate() {
            let from = left + share * number as f64;
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                from + share / 2.0,
                height - bottom + 18.0,
                escape(&group.name)
            );
            self.group(&mut svg, group, (from + share * 0.1, share * 0.8), &y);
        }
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\" stroke=\"#1f2937\" stroke-opacity=\".5\"/></svg>",
            width - right,
            height - bottom
        );
        svg
    }

    fn colour(&self, series: usize) -> &'static str {
        COLOURS[(self.first_colour + series) % COLOURS.len()]
    }

    /// Draws a group's bars, series after series, in `width` pixels from `from` on.
    fn group(&self, svg: &mut String, group: &Group, (from, width): (f64, f64), y: &Axis) {
        let count = group.series.iter().map(Vec::len).sum::<usize>();
        let each = width / count.max(1) as f64;
        // One pixel between bars, unless they are as thin as that.
        let thick = if each > 3.0 { each - 1.0 } else { each };
        let mut x = from;
        for (number, bars) in group.series.iter().enumerate() {
            for &value in bars {
                let at = y.at(value);
                if value > 0.0 {
                    let _ = write!(
                        svg,
                        "<rect class=\"bar\" x=\"{x:.2}\" y=\"{at:.1}\" width=\"{thick:.2}\" height=\"{:.1}\" fill=\"{}\"/>",
                        (y.from - at).max(0.5),
                        self.colour(number)
                    );
                }
                x += each;
            }
        }
    }
}

/// Formats a number of an axis. Below one hundredth, only powers of ten are short enough.
fn label(tick: f64) -> String {
    if tick > 0.0 && tick < 0.01 { format!("{tick:e}") } else { short(tick) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(log: bool, series: Vec<Vec<f64>>) -> String {
        let groups =
            vec![Group { name: "a<b".into(), series: series.clone() }, Group { name: "c".into(), series }];
        Bars { title: "t", y: "s", names: &["x", "y"], groups, log, first_colour: 0, size: (400.0, 200.0) }
            .svg()
    }

    #[test]
    fn every_value_but_zero_has_a_bar_inside_the_picture() {
        for log in [false, true] {
            let svg = bars(log, vec![vec![0.001, 5.0, 0.0], vec![2.0]]);
            assert_eq!(svg.matches("class=\"bar\"").count(), 6);
            for bar in svg.split("<rect class=\"bar\"").skip(1) {
                let field = |name: &str| -> f64 {
                    let rest = bar.split_once(&format!(" {name}=\"")).unwrap().1;
                    rest.split('"').next().unwrap().parse().unwrap()
                };
                assert!(field("x") >= 66.0 && field("x") + field("width") <= 400.0, "{bar}");
                assert!(field("y") >= 49.0 && field("y") + field("height") <= 167.0, "{bar}");
            }
            assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>"));
        }
    }

    #[test]
    fn a_chart_of_nothing_is_one() {
        assert!(bars(true, vec![]).ends_with("</svg>"));
        assert!(bars(false, vec![vec![]]).ends_with("</svg>"));
    }
}
