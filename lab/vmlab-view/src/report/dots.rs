//! Ratios as dots: a row for each quantity, a dot for each contender, on a logarithmic axis of factors.

use crate::shape::Shape;
use std::fmt::Write;
use vmlab_base::chart::{COLOURS, escape};

/// A plot.
pub(super) struct Dots<'a> {
    pub(super) title: &'a str,
    /// Label of the axis.
    pub(super) axis: &'a str,
    /// The contenders, in the order of the legend.
    pub(super) contenders: &'a [String],
    /// The name of each row, and one factor for each contender.
    pub(super) rows: Vec<(String, Vec<Option<f64>>)>,
}

const ROW: f64 = 18.0;
/// The width of a character of a name, about, in sizes of its letters.
const CHARACTER: f64 = 0.56;
/// The least pixels between two marks of the axis.
const TICK: f64 = 44.0;
/// A factor beyond these is drawn at the edge.
const FACTOR_MAX: f64 = 1e6;

impl Dots<'_> {
    /// Draws the plot.
    pub(super) fn svg(&self, shape: Shape) -> String {
        let width = shape.width();
        // The names of rows with the size of their letters, and the columns of the legend.
        let (label, letters, columns) = match shape {
            Shape::Broad => (190.0, 11.5, 6),
            Shape::Slim => (146.0, 10.5, 3),
        };
        let factors = || self.rows.iter().flat_map(|(_, factors)| factors.iter().flatten());
        let fold = |start: f64, pick: fn(f64, f64) -> f64| factors().copied().fold(start, pick);
        let low = fold(1.0, f64::min).clamp(1.0 / FACTOR_MAX, 1.0) / 1.2;
        let high = fold(1.0, f64::max).clamp(1.0, FACTOR_MAX) * 1.2;
        let across = |factor: f64| {
            let share = (factor.clamp(low, high) / low).ln() / (high / low).ln();
            label + share * (width - label - 16.0)
        };
        let legend_rows = self.contenders.len().div_ceil(columns) as f64;
        let top = 30.0 + legend_rows * 17.0;
        let bottom = top + self.rows.len() as f64 * ROW;
        let mut svg = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {width} {0:.0}\" width=\"{width}\" height=\"{0:.0}\" role=\"img\" \
             font-family=\"system-ui,sans-serif\" font-size=\"{letters}\" fill=\"currentColor\"><title>{1}</title>\
             <text x=\"0\" y=\"15\" font-size=\"13\" font-weight=\"600\">{1}</text>",
            bottom + 40.0,
            escape(self.title)
        )
        .and_then(|()| self.legend(&mut svg, (width, letters), columns))
        .and_then(|()| {
            for factor in ticks(low, high, (width - label - 16.0) / TICK) {
                let (x, faint) = (across(factor), if factor == 1.0 { ".75" } else { ".18" });
                write!(
                    svg,
                    "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"currentColor\" stroke-opacity=\"{faint}\"/>\
                     <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    bottom + 15.0,
                    factor_text(factor)
                )?;
            }
            write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                (label + width) / 2.0,
                bottom + 33.0,
                escape(self.axis)
            )?;
            for (number, (name, factors)) in self.rows.iter().enumerate() {
                let y = top + (number as f64 + 0.5) * ROW;
                write!(
                    svg,
                    "<line x1=\"{label}\" x2=\"{width}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"currentColor\" stroke-opacity=\".1\"/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    label - 8.0,
                    y + 4.0,
                    escape(&shortened(name, (label - 8.0) / letters))
                )?;
                // The first contender is drawn last, on top.
                for (contender, factor) in factors.iter().enumerate().rev() {
                    let Some(factor) = *factor else { continue };
                    write!(svg, "<g><title>{}: {}</title>", escape(&self.contenders[contender]), factor_text(factor))?;
                    mark(&mut svg, contender, self.is_grey(contender), (across(factor), y))?;
                    svg.push_str("</g>");
                }
            }
            Ok(())
        });
        svg.push_str("</svg>");
        svg
    }

    /// Returns true if a contender is a peer, where some contender is not.
    fn is_grey(&self, contender: usize) -> bool {
        let is_peer = |name: &String| rank(name) == 2;
        is_peer(&self.contenders[contender]) && !self.contenders.iter().all(is_peer)
    }

    fn legend(&self, svg: &mut String, (width, letters): (f64, f64), columns: usize) -> std::fmt::Result {
        let column = width / columns as f64;
        for (at, contender) in self.contenders.iter().enumerate() {
            let (x, y) = ((at % columns) as f64 * column + 6.0, 32.0 + (at / columns) as f64 * 17.0);
            mark(svg, at, self.is_grey(at), (x, y - 4.0))?;
            let name = escape(&shortened(contender, (column - 18.0) / letters));
            write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>", x + 10.0)?;
        }
        Ok(())
    }
}

/// Returns how a contender is ranked and drawn: 0 is ours, 1 is Linux's, and 2 is a peer's, which is grey.
pub(super) fn rank(contender: &str) -> u8 {
    let begins = |with: &[&str]| with.iter().any(|&with| contender.starts_with(with));
    if begins(&["ours", "btree"]) {
        0
    } else if begins(&["kern", "linux", "rb-linux", "onelock52"]) {
        1
    } else {
        2
    }
}

/// Draws the mark of a contender: its own colour and shape, for print without colours. Peers are grey.
fn mark(svg: &mut String, contender: usize, grey: bool, (x, y): (f64, f64)) -> std::fmt::Result {
    let colour = COLOURS[contender % COLOURS.len()];
    // The variables of the page provide colours for light and dark.
    let fill = match grey {
        true => "style=\"fill:var(--dim,#566170);fill-opacity:.55\"".to_string(),
        false => format!("style=\"fill:var(--c{contender},{colour})\""),
    };
    match contender % 4 {
        0 => write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.6\" {fill}/>"),
        1 => write!(svg, "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" {fill}/>", x - 4.0, y - 4.0),
        2 => write!(svg, "<path d=\"M{:.1} {:.1}l5 9h-10z\" {fill}/>", x, y - 5.5),
        _ => write!(svg, "<path d=\"M{:.1} {:.1}l5 5l-5 5l-5 -5z\" {fill}/>", x, y - 5.0),
    }
}

/// Returns the beginning and the end of a name, as much as fits in so many sizes of its letters.
fn shortened(name: &str, room: f64) -> String {
    let (all, most) = (name.chars().count(), (room / CHARACTER) as usize);
    if all <= most {
        return name.to_string();
    }
    let end = most / 2;
    let begin = name.chars().take(most.saturating_sub(end + 1));
    begin.chain(['…']).chain(name.chars().skip(all - end)).collect()
}

/// `1x`, `0.35x`, `39x`.
pub(super) fn factor_text(factor: f64) -> String {
    if factor >= 10.0 {
        format!("{factor:.0}x")
    } else if factor >= 1.0 {
        format!("{}x", format!("{factor:.1}").trim_end_matches(".0"))
    } else {
        // Two digits that count: 0.35, 0.0001.
        let places = (1.0 - factor.max(1e-9).log10().floor()) as usize;
        format!("{}x", format!("{factor:.places$}").trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Returns at most about `most` round factors between `low` and `high`, with 1 among them.
fn ticks(low: f64, high: f64, most: f64) -> Vec<f64> {
    let room = most / (high / low).log10();
    // Marks of a decade, and the decades from one mark to the next.
    let (steps, every): (&[f64], i32) = match room {
        room if room >= 4.0 => (&[1.0, 2.0, 5.0], 1),
        room if room >= 2.0 => (&[1.0, 3.0], 1),
        room if room >= 1.0 => (&[1.0], 1),
        room if room >= 0.5 => (&[1.0], 2),
        _ => (&[1.0], 4),
    };
    let powers = (-8..=8).filter(|power| power % every == 0);
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|&tick| tick >= low && tick <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_factor_has_a_dot_and_nothing_is_nan() {
        let contenders = ["ours", "a<b"].map(String::from);
        let rows = vec![
            ("r&1".to_string(), vec![Some(1.0), Some(39.0)]),
            ("r2".to_string(), vec![Some(1.0), None]),
            ("r3".to_string(), vec![Some(1e-12), Some(1e12)]),
        ];
        let dots = Dots { title: "t", axis: "x", contenders: &contenders, rows };
        for shape in [Shape::Broad, Shape::Slim] {
            let svg = dots.svg(shape);
            assert_eq!(svg.matches("<g>").count(), 5);
            assert!(svg.contains("a&lt;b: 39x") && svg.contains("r&amp;1"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert_eq!(shortened("slowest-free-128-random", 10.0), "slowest-…8-random");
        assert_eq!(shortened("slowest-free", 10.0), "slowest-free");
    }

    #[test]
    fn factors_are_short_and_one_is_always_a_tick() {
        assert_eq!([0.35, 0.5, 1.0, 1.26, 39.4].map(factor_text), ["0.35x", "0.5x", "1x", "1.3x", "39x"]);
        assert_eq!([0.01, 0.0001, 0.000123, 0.0].map(factor_text), ["0.01x", "0.0001x", "0.00012x", "0x"]);
        for (low, high) in [(0.8, 1.2), (0.01, 5.0), (1e-6, 1e6)] {
            for most in [5.0, 17.0] {
                let ticks = ticks(low, high, most);
                assert!(ticks.contains(&1.0) && ticks.len() as f64 <= most, "{low} {high}: {ticks:?}");
            }
        }
    }
}
