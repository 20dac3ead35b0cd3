//! Line charts as SVG.

use std::fmt::Write;

/// How an axis runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors; what is below the smallest positive value is drawn there.
    Log,
}

/// A chart.
pub struct Chart<'a> {
    /// What it shows.
    pub title: &'a str,
    /// Quantity and unit.
    pub x: &'a str,
    /// Quantity and unit.
    pub y: &'a str,
    /// How x runs.
    pub x_scale: Scale,
    /// How y runs.
    pub y_scale: Scale,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// Width and height in pixels.
    pub size: (f64, f64),
}

/// Colours that differ in lightness as well as in hue, for print and for the colour-blind.
pub const COLOURS: [&str; 10] = [
    "#1f5ea8", "#c2410c", "#15803d", "#7e22ce", "#b8860b", "#0e7490", "#be185d", "#4d7c0f", "#6b7280",
    "#111827",
];

/// An axis: what runs from where to where, on how many pixels.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
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

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
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

/// A number in few characters: 1.5k, 20M.
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
        format!("{scaled:.2}")
    };
    format!("{text}{unit}")
}

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The colour of a line. On a page it is a variable, so that a dark page may choose another.
fn colour(number: usize, standalone: bool) -> String {
    let colour = COLOURS[number % COLOURS.len()];
    if standalone { colour.to_string() } else { format!("var(--c{number},{colour})") }
}

/// The dashes of a line. On a page, where lines are few, each has its own, for print without colours.
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

/// Round values from 0 to `high`, about five.
pub(super) fn round_ticks(high: f64) -> Vec<f64> {
    Axis::new(Scale::Linear, [0.0, high].into_iter(), 0.0, 1.0).ticks()
}

impl Chart<'_> {
    /// The chart as an SVG element. `standalone` gives it what a file of its own needs.
    pub fn svg(&self, standalone: bool) -> String {
        let (width, height) = self.size;
        let legend_rows = if self.lines.len() > 1 { self.lines.len().div_ceil(5) as f64 } else { 0.0 };
        let (left, right, top, bottom) = (66.0, 14.0, 30.0 + 16.0 * legend_rows, 44.0);
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = Axis::new(self.x_scale, points().map(|p| p.0), left, width - right);
        let y = Axis::new(self.y_scale, points().map(|p| p.1), height - bottom, top);
        let mut svg = String::new();
        let head = if standalone {
            "xmlns=\"http://www.w3.org/2000/svg\" style=\"background:#fff;color:#1f2937\" "
        } else {
            ""
        };
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<svg {head}viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui,sans-serif\" font-size=\"11\" fill=\"currentColor\"><title>{0}</title>\
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
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let colour = colour(number, standalone);
            let dash = dash(number, standalone);
            let mut path = String::new();
            for &(px, py) in points {
                let _ = write!(path, "{:.1},{:.1} ", x.at(px), y.at(py));
            }
            let _ = write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" style=\"stroke:{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{dash}/>",
                path.trim_end()
            );
            if points.len() <= 12 {
                for &(px, py) in points {
                    let _ = write!(
                        svg,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" style=\"fill:{colour}\"/>",
                        x.at(px),
                        y.at(py)
                    );
                }
            }
            if self.lines.len() > 1 {
                let column = (width - left - right) / (self.lines.len().clamp(4, 5) as f64);
                let (lx, ly) = (left + (number % 5) as f64 * column, 32.0 + (number / 5) as f64 * 16.0);
                let _ = write!(
                    svg,
                    "<line x1=\"{lx:.1}\" x2=\"{:.1}\" y1=\"{ly}\" y2=\"{ly}\" style=\"stroke:{colour}\" stroke-width=\"2.4\"{dash}/>\
                     <text x=\"{:.1}\" y=\"{}\">{}</text>",
                    lx + 20.0,
                    lx + 25.0,
                    ly + 4.0,
                    escape(name)
                );
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> String {
        let lines = vec![("a<b".to_string(), points), ("b".to_string(), vec![])];
        Chart { title: "t & u", x: "x", y: "y", x_scale: scale, y_scale: scale, lines, size: (600.0, 240.0) }
            .svg(true)
    }

    #[test]
    fn numbers_are_drawn_and_never_nan() {
        for scale in [Scale::Linear, Scale::Log] {
            for points in
                [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (10.0, 5.0)], vec![(0.0, 1e18), (1e6, 0.5)]]
            {
                let svg = chart(scale, points);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u") && svg.ends_with("</svg>"));
            }
        }
    }

    #[test]
    fn short_numbers() {
        let given = [0.0, 0.25, 7.0, 7.53, 999.0, 1500.0, 2e6, 1.8e16];
        assert_eq!(given.map(short), ["0", "0.25", "7", "7.5", "999", "1.5k", "2M", "18P"]);
    }
}
