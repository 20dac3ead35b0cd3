//! Line charts as SVG.

use crate::text::picture;
use std::fmt::Write;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Logarithmic; values below the smallest positive value are drawn at that value.
    Log,
}

/// A chart.
#[derive(Debug)]
pub struct Chart<'a> {
    /// Title of the chart.
    pub title: &'a str,
    /// Quantity and unit.
    pub x: &'a str,
    /// Quantity and unit.
    pub y: &'a str,
    /// Scale of x.
    pub x_scale: Scale,
    /// Scale of y.
    pub y_scale: Scale,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// Names of the highlighted lines. If there are any, the others are thin and grey. Each of several lines has its
    /// name at its end.
    pub about: &'a [&'a str],
    /// Width and height in pixels.
    pub size: (f64, f64),
}

/// Colours that differ in lightness as well as in hue, for print and for the colour-blind.
pub const COLOURS: [&str; 10] = [
    "#1f5ea8", "#c2410c", "#15803d", "#7e22ce", "#b8860b", "#0e7490", "#be185d", "#4d7c0f", "#6b7280",
    "#111827",
];

/// An axis: the range of values, and the pixels that it covers.
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub(crate) from: f64,
    to: f64,
}

impl Axis {
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|&value| scale == Scale::Linear || value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if !low.is_finite() {
            (low, high) = (0.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                low = low.min(0.0);
                if high <= low {
                    high = low + 1.0;
                }
            }
            Scale::Log => {
                low = if low > 0.0 { low } else { 1.0 };
                if high < low * 2.0 {
                    (low, high) = (low / 1.5, high.max(low) * 1.5);
                }
            }
        }
        Self { scale, low, high, from, to }
    }

    /// Makes a logarithmic axis begin at a power of ten below all values, so that the least value is not on its edge.
    pub(crate) fn widen(&mut self) {
        self.low = 10f64.powf((self.low / 2.0).log10().floor());
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share * (self.to - self.from)
    }

    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|&step| step >= rough);
                let step = step.unwrap_or(rough);
                let first = (self.low / step).ceil() as i64;
                (first..).map(|n| n as f64 * step).take_while(|&tick| tick <= self.high).take(12).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let every = (decades / 6.0).ceil().max(1.0) as i32;
                let first = self.low.log10().ceil() as i32;
                let tens = (0..40).map(|n| 10f64.powi(first + n * every));
                let mut ticks: Vec<f64> = tens.take_while(|&tick| tick <= self.high).collect();
                if ticks.len() < 3 {
                    let start = first - 1;
                    ticks = (0..4)
                        .flat_map(|n| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(start + n)))
                        .filter(|&tick| tick >= self.low && tick <= self.high)
                        .collect();
                }
                ticks
            }
        }
    }
}

/// Formats a number in few characters: 1.5k, 20M.
pub fn short(value: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scaled, unit) = units
        .iter()
        .find(|&&(size, _)| value.abs() >= size)
        .map_or((value, ""), |&(size, unit)| (value / size, unit));
    let text = if scaled.abs() >= 100.0 || scaled == scaled.trunc() {
        format!("{scaled:.0}")
    } else if scaled.abs() >= 1.0 {
        format!("{scaled:.1}")
    } else {
        // Two digits that count: 0.35, 0.0001.
        let places = (1.0 - scaled.abs().max(1e-9).log10().floor()) as usize;
        format!("{scaled:.places$}").trim_end_matches('0').to_string()
    };
    format!("{text}{unit}")
}

/// Escapes text for HTML and SVG. Characters that XML 1.0 forbids are replaced by pictures of them.
pub fn escape(text: &str) -> String {
    let forbidden =
        |one| matches!(one, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}');
    let shown = |one| if forbidden(one) { picture(one) } else { one };
    let text: String = text.chars().map(shown).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the colour of a line. A page uses a variable, so that its dark mode may choose another.
fn colour(number: usize, standalone: bool) -> String {
    let colour = COLOURS[number % COLOURS.len()];
    if standalone { colour.to_string() } else { format!("var(--c{number},{colour})") }
}

/// Returns the dashes of a line. On a page, which has few lines, each line differs, for print without colours.
fn dash(number: usize, standalone: bool) -> &'static str {
    match number {
        _ if standalone && number < COLOURS.len() => "",
        1 => " stroke-dasharray=\"7 3\"",
        2 => " stroke-dasharray=\"2 2\"",
        3 => " stroke-dasharray=\"8 3 2 3\"",
        _ if number < COLOURS.len() => "",
        _ => " stroke-dasharray=\"5 3\"",
    }
}

/// The style of a line.
struct Look {
    colour: String,
    width: f64,
    dash: &'static str,
    about: bool,
}

/// The dashes of lines in the background, which all are grey and may cross.
const GREY_DASHES: [&str; 5] = [
    "",
    " stroke-dasharray=\"6 2\"",
    " stroke-dasharray=\"2 2\"",
    " stroke-dasharray=\"8 2 2 2\"",
    " stroke-dasharray=\"12 4\"",
];
const GREYS: [&str; 2] = ["#7b8694", "#a58f7b"];

/// Height of a name beside its line, and the most pixels of names beside a chart.
const NAME_PX: f64 = 12.5;
const NAMES_PX: f64 = 132.0;

/// Moves heights apart, so that names of [`NAME_PX`] do not overlap. The moves are the smallest that keep the order and
/// stay above `bottom`.
fn spread(heights: &mut [f64], bottom: f64) {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|&a, &b| heights[a].total_cmp(&heights[b]));
    // A run of names that touch is centred on the mean of their preferred heights.
    let mut runs: Vec<(f64, Vec<usize>)> = Vec::new();
    for at in order {
        runs.push((heights[at], vec![at]));
        while let [.., (above, first), (below, second)] = &mut runs[..] {
            let (n, m) = (first.len() as f64, second.len() as f64);
            if *below - *above >= (n + m) / 2.0 * NAME_PX {
                break;
            }
            let middle = (*above * n + *below * m) / (n + m);
            let second = std::mem::take(second);
            first.extend(second);
            *above = middle;
            runs.pop();
        }
    }
    let mut lowest = bottom;
    for (middle, run) in runs.iter().rev() {
        let half = run.len() as f64 / 2.0 * NAME_PX;
        let top = middle.min(lowest - half) - half;
        for (place, &at) in run.iter().enumerate() {
            heights[at] = top + (place as f64 + 0.5) * NAME_PX;
        }
        lowest = top;
    }
}

/// Returns about five round values from 0 to `high`.
pub fn round_ticks(high: f64) -> Vec<f64> {
    Axis::new(Scale::Linear, [0.0, high].into_iter(), 0.0, 1.0).ticks()
}

impl Chart<'_> {
    /// Returns the chart as an SVG element. `standalone` adds what a separate file needs.
    pub fn svg(&self, standalone: bool) -> String {
        let (width, height) = self.size;
        let named = self.lines.len() > 1;
        let longest = self.lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) as f64;
        let right = if named { (30.0 + 6.6 * longest).min(NAMES_PX) } else { 14.0 };
        let (left, top, bottom) = (66.0, 30.0, 44.0);
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = Axis::new(self.x_scale, points().map(|p| p.0), left, width - right);
        let y = Axis::new(self.y_scale, points().map(|p| p.1), height - bottom, top);
        let mut svg = String::new();
        let head = if standalone {
            "xmlns=\"http://www.w3.org/2000/svg\" style=\"background:#fff;color:#1f2937\" "
        } else {
            ""
        };
        // For viewers that do not support `background`.
        let paper = if standalone { "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<svg {head}viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui,sans-serif\" font-size=\"11\" fill=\"currentColor\"><title>{0}</title>{paper}\
             <text x=\"{left}\" y=\"16\" font-size=\"13\" font-weight=\"600\">{0}</text>",
            escape(self.title)
        );
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"currentColor\" stroke-opacity=\".14\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                width - right,
                left - 6.0,
                at + 4.0,
                short(tick)
            );
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            let _ = write!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"currentColor\" stroke-opacity=\".4\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                height - bottom,
                height - bottom + 4.0,
                height - bottom + 16.0,
                short(tick)
            );
        }
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\" stroke=\"currentColor\" stroke-opacity=\".5\"/>\
             <text x=\"{2}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\
             <text transform=\"translate(13 {5}) rotate(-90)\" text-anchor=\"middle\">{6}</text>",
            width - right,
            height - bottom,
            (left + width - right) / 2.0,
            height - 8.0,
            escape(self.x),
            (top + height - bottom) / 2.0,
            escape(self.y)
        );
        let looks = self.looks(standalone);
        // The highlighted lines are drawn last, on top of the rest.
        let mut order: Vec<usize> = (0..self.lines.len()).collect();
        order.sort_by_key(|&number| looks[number].about);
        for number in order {
            let points = &self.lines[number].1;
            let Look { colour, width: thick, dash, about } = &looks[number];
            let mut path = String::new();
            for &(px, py) in points {
                let _ = write!(path, "{:.1},{:.1} ", x.at(px), y.at(py));
            }
            let _ = write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" style=\"stroke:{colour}\" stroke-width=\"{thick}\" stroke-linejoin=\"round\"{dash}/>",
                path.trim_end()
            );
            if points.len() <= 12 && *about {
                for &(px, py) in points {
                    let _ = write!(
                        svg,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" style=\"fill:{colour}\"/>",
                        x.at(px),
                        y.at(py)
                    );
                }
            }
        }
        if named {
            self.names(&mut svg, &looks, (&x, &y), standalone);
        }
        svg.push_str("</svg>");
        svg
    }

    /// Returns the style of each line.
    fn looks(&self, standalone: bool) -> Vec<Look> {
        let (mut front, mut back) = (0, 0);
        let look = |(number, (name, _)): (usize, &(String, _))| {
            if self.about.is_empty() {
                let (colour, dash) = (colour(number, standalone), dash(number, standalone));
                Look { colour, width: 1.8, dash, about: true }
            } else if self.about.contains(&name.as_str()) {
                front += 1;
                Look { colour: colour(front - 1, standalone), width: 2.8, dash: "", about: true }
            } else {
                back += 1;
                let (dash, grey) = (GREY_DASHES[(back - 1) % 5], GREYS[(back - 1) / 5 % 2]);
                Look { colour: grey.to_string(), width: 1.1, dash, about: false }
            }
        };
        self.lines.iter().enumerate().map(look).collect()
    }

    /// Writes each line's name beside its end. Overlapping names are moved apart, and a thin line connects each with
    /// its end.
    fn names(&self, svg: &mut String, looks: &[Look], (x, y): (&Axis, &Axis), standalone: bool) {
        // A page may be dark.
        let (grey, paper) =
            if standalone { ("#4b5563", "#fff") } else { ("var(--dim,#4b5563)", "var(--card,#fff)") };
        let end = |number: usize| self.lines[number].1.last().map(|&(px, py)| (x.at(px), y.at(py)));
        let mut ends: Vec<(usize, f64, f64)> =
            (0..self.lines.len()).filter_map(|number| end(number).map(|(ex, ey)| (number, ex, ey))).collect();
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        // Names of lines that end near each other would overlap.
        for group in ends.chunk_by(|a, b| b.1 - a.1 < NAMES_PX / 2.0) {
            let mut heights: Vec<f64> = group.iter().map(|&(_, _, ey)| ey).collect();
            spread(&mut heights, y.from);
            for (&(number, ex, ey), at) in group.iter().zip(heights) {
                let Look { colour, about, .. } = &looks[number];
                let weight = if *about { "700" } else { "400" };
                // The halo keeps a name readable on top of another line. Writing to a String cannot fail.
                let _ = write!(
                    svg,
                    "<path d=\"M{:.1} {ey:.1}L{:.1} {at:.1}\" fill=\"none\" style=\"stroke:{colour}\" stroke-width=\".8\"/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"{weight}\" style=\"fill:{};stroke:{paper};stroke-width:3px;paint-order:stroke\">{}</text>",
                    ex + 3.0,
                    ex + 20.0,
                    ex + 23.0,
                    at + 4.0,
                    if *about { colour } else { grey },
                    escape(&self.lines[number].0)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> String {
        // A line without points has no end to name.
        let about: &[&str] = if scale == Scale::Log && !points.is_empty() { &["b"] } else { &[] };
        let lines = vec![("a<b".to_string(), points), ("b".to_string(), vec![])];
        let size = (600.0, 240.0);
        Chart { title: "t & u", x: "x", y: "y", x_scale: scale, y_scale: scale, lines, about, size }.svg(true)
    }

    #[test]
    fn what_xml_forbids_is_shown() {
        assert_eq!(escape("a<b\u{1b}\t\u{ffff}"), "a&lt;b\u{241b}\t\u{fffd}");
    }

    #[test]
    fn names_at_one_end_stay_apart_in_order_and_above_the_axis() {
        let mut heights = [100.0, 101.0, 20.0, 100.5, 298.0, 299.0];
        let wanted = heights;
        spread(&mut heights, 300.0);
        for (a, b) in (0..6).flat_map(|a| (0..6).map(move |b| (a, b))).filter(|&(a, b)| wanted[a] < wanted[b])
        {
            assert!(heights[b] - heights[a] > NAME_PX - 0.01, "{heights:?}");
        }
        assert!(heights.iter().all(|&at| at < 300.0 - NAME_PX / 2.0 + 0.01));
        assert!((heights[2], heights[3]) == (20.0, 100.5), "what is not crowded stays: {heights:?}");
    }

    #[test]
    fn what_a_chart_is_about_is_thick_and_on_top_and_every_line_looks_its_own_way() {
        let names = ["a", "us", "b", "c", "d", "e", "f", "g", "h", "i", "j", "we"];
        let lines: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.to_string(), vec![(1.0, n as f64), (9.0, 5.0)]))
            .collect();
        let (scale, size) = (Scale::Linear, (700.0, 400.0));
        let about = &["us", "we"][..];
        let svg = Chart { title: "t", x: "x", y: "y", x_scale: scale, y_scale: scale, lines, about, size }
            .svg(true);
        let looks: Vec<&str> = svg
            .split("<polyline ")
            .skip(1)
            .map(|line| line.split_once("fill").unwrap().1.split_once('>').unwrap().0)
            .collect();
        let different: std::collections::BTreeSet<_> = looks.iter().collect();
        assert_eq!((looks.len(), different.len()), (12, 12));
        let thick: Vec<bool> = looks.iter().map(|look| look.contains("\"2.8\"")).collect();
        assert_eq!(thick, [[false; 10].to_vec(), vec![true; 2]].concat());
        for name in names {
            assert_eq!(svg.matches(&format!(">{name}</text>")).count(), 1);
        }
    }

    #[test]
    fn numbers_are_drawn_and_never_nan() {
        for scale in [Scale::Linear, Scale::Log] {
            for points in
                [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (10.0, 5.0)], vec![(0.0, 1e18), (1e6, 0.5)]]
            {
                let named = !points.is_empty();
                let svg = chart(scale, points);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("t &amp; u") && svg.ends_with("</svg>"));
                assert_eq!(svg.contains("a&lt;b"), named, "a name is at the end of its line: {svg}");
            }
        }
    }

    #[test]
    fn short_numbers() {
        let given = [0.0, 0.25, 7.0, 7.53, 999.0, 1500.0, 2e6, 1.8e16];
        assert_eq!(given.map(short), ["0", "0.25", "7", "7.5", "999", "1.5k", "2M", "18P"]);
    }
}
