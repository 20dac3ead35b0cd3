//! Ratios as dots: a row for each quantity, a dot for each contender, on a logarithmic axis of factors.

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

const WIDTH: f64 = 960.0;
const LABEL: f64 = 190.0;
const ROW: f64 = 18.0;
/// A factor beyond these is drawn at the edge.
const FACTOR_MAX: f64 = 1e6;

impl Dots<'_> {
    pub(super) fn svg(&self) -> String {
        let factors = || self.rows.iter().flat_map(|(_, factors)| factors.iter().flatten());
        let fold = |start: f64, pick: fn(f64, f64) -> f64| factors().copied().fold(start, pick);
        let low = fold(1.0, f64::min).clamp(1.0 / FACTOR_MAX, 1.0) / 1.2;
        let high = fold(1.0, f64::max).clamp(1.0, FACTOR_MAX) * 1.2;
        let across = |factor: f64| {
            let share = (factor.clamp(low, high) / low).ln() / (high / low).ln();
            LABEL + share * (WIDTH - LABEL - 16.0)
        };
        let legend_rows = self.contenders.len().div_ceil(6) as f64;
        let top = 30.0 + legend_rows * 17.0;
        let bottom = top + self.rows.len() as f64 * ROW;
        let mut svg = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {WIDTH} {0:.0}\" width=\"{WIDTH}\" height=\"{0:.0}\" role=\"img\" \
             font-family=\"system-ui,sans-serif\" font-size=\"11.5\" fill=\"currentColor\"><title>{1}</title>\
             <text x=\"0\" y=\"15\" font-size=\"13\" font-weight=\"600\">{1}</text>",
            bottom + 40.0,
            escape(self.title)
        )
        .and_then(|()| self.legend(&mut svg))
        .and_then(|()| {
            for factor in ticks(low, high) {
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
                (LABEL + WIDTH) / 2.0,
                bottom + 33.0,
                escape(self.axis)
            )?;
            for (number, (name, factors)) in self.rows.iter().enumerate() {
                let y = top + (number as f64 + 0.5) * ROW;
                write!(
                    svg,
                    "<line x1=\"{LABEL}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"currentColor\" stroke-opacity=\".1\"/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LABEL - 8.0,
                    y + 4.0,
                    escape(&shortened(name))
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

    fn legend(&self, svg: &mut String) -> std::fmt::Result {
        for (at, contender) in self.contenders.iter().enumerate() {
            let (x, y) = ((at % 6) as f64 * (WIDTH / 6.0) + 6.0, 32.0 + (at / 6) as f64 * 17.0);
            mark(svg, at, self.is_grey(at), (x, y - 4.0))?;
            write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + 10.0, escape(&shortened(contender)))?;
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

fn shortened(name: &str) -> String {
    if name.chars().count() > 26 { name.chars().take(25).chain(['…']).collect() } else { name.to_string() }
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

/// Returns round factors between `low` and `high`, with 1 among them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (-7..8).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
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
        let svg = Dots { title: "t", axis: "x", contenders: &contenders, rows }.svg();
        assert_eq!(svg.matches("<g>").count(), 5);
        assert!(svg.contains("a&lt;b: 39x") && svg.contains("r&amp;1"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn factors_are_short_and_one_is_always_a_tick() {
        assert_eq!([0.35, 0.5, 1.0, 1.26, 39.4].map(factor_text), ["0.35x", "0.5x", "1x", "1.3x", "39x"]);
        assert_eq!([0.01, 0.0001, 0.000123, 0.0].map(factor_text), ["0.01x", "0.0001x", "0.00012x", "0x"]);
        for (low, high) in [(0.8, 1.2), (0.01, 5.0), (1e-6, 1e6)] {
            assert!(ticks(low, high).contains(&1.0) && ticks(low, high).len() < 20);
        }
    }
}
