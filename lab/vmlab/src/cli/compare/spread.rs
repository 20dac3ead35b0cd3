//! Durations of two recordings, each with the interval that its figure has by chance.

use super::Side;
use crate::cli::input::is_read_once;
use crate::cli::table::{align, plain};
use crate::cli::{latency, out};
use anyhow::Result;
use comfy_table::Cell;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use vmlab_base::text::duration;
use vmlab_trace::Selection;
use vmlab_trace::call::Call;
use vmlab_trace::latency::{Durations, Interval, Of};

/// The durations of a kind of call.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Spread {
    count: u64,
    median_ns: u64,
    /// With 95 % of certainty the median of all such calls is between these; null if these are too few to show it.
    median_interval_ns: Interval,
    p99_ns: u64,
    p99_interval_ns: Interval,
    max_ns: u64,
}

/// The durations of a recording by kind of call.
pub(super) type Spreads = BTreeMap<&'static str, Spread>;

/// The percentiles of the durations of an allocation that are measures, and their shares of a thousand.
pub(super) const PERCENTILES: [(&str, usize); 3] = [("p50", 500), ("p99", 990), ("p999", 999)];

/// Reads the durations of a recording, and those percentiles of its allocations. A pipe cannot be read again.
pub(super) fn read(path: &Path, side: &mut Side) -> Result<()> {
    side.once = is_read_once(path, "durations");
    if side.once {
        return Ok(());
    }
    let (latencies, _) = latency::read(path, &Selection::default())?;
    let mut calls: BTreeMap<Call, Durations> = BTreeMap::new();
    for row in latencies.call_rows(Of::Function) {
        calls.entry(row.call).or_default().append(&row.durations);
    }
    for (call, mut durations) in calls {
        let figures = durations.figures();
        side.durations.insert(
            call.name(),
            Spread {
                count: figures.count,
                median_ns: figures.median,
                median_interval_ns: durations.interval(500),
                p99_ns: figures.p99,
                p99_interval_ns: durations.interval(990),
                max_ns: figures.max,
            },
        );
        if call == Call::Alloc {
            let measures =
                PERCENTILES.map(|(name, per_mille)| (name, durations.percentile(per_mille) as f64));
            side.measures.extend(measures);
        }
    }
    Ok(())
}

/// Prints the durations of both sides, if they have any.
pub(super) fn print(before: &Spreads, after: &Spreads) -> Result<()> {
    let both: Vec<_> = before.iter().filter_map(|(call, a)| Some((call, a, after.get(call)?))).collect();
    if both.is_empty() {
        return Ok(());
    }
    let mut table = plain();
    table.set_header(["duration", "A (95 %)", "B (95 %)", "change"]);
    for (call, a, b) in both {
        let median = |one: &Spread| (one.median_ns, one.median_interval_ns);
        let p99 = |one: &Spread| (one.p99_ns, one.p99_interval_ns);
        for (name, a, b) in [("median", median(a), median(b)), ("p99", p99(a), p99(b))] {
            let cells = [format!("{call} {name}"), text(a), text(b), change(a, b)];
            table.add_row(cells.map(Cell::new));
        }
    }
    align(&mut table, 1);
    out(&table.to_string())?;
    out(
        "a change is shown where the intervals of A and B, each of 95 % certainty, have nothing in common; ?: too few calls",
    )
}

/// Formats `24.2 us (23.9-24.6)`, or `24.2 us (23.9-?)` of too few calls.
fn text((ns, (low, high)): (u64, Interval)) -> String {
    let text = duration(ns);
    let Some((number, unit)) = text.split_once(' ') else { return text };
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    let one = match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        _ => 1.0,
    };
    let end = |ns: Option<u64>| ns.map_or("?".to_string(), |ns| format!("{:.places$}", ns as f64 / one));
    format!("{text} ({}-{})", end(low), end(high))
}

/// Returns the growth in percent; nothing if it may be by chance.
fn change((a, (a_low, a_high)): (u64, Interval), (b, (b_low, b_high)): (u64, Interval)) -> String {
    let below = |high: Option<u64>, low: Option<u64>| high.zip(low).is_some_and(|(high, low)| high < low);
    if !below(a_high, b_low) && !below(b_high, a_low) {
        return String::new();
    }
    format!("{:+.1} %", 100.0 * (b as f64 / a.max(1) as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_unit_of_its_figure_and_a_change_is_none_by_chance() {
        assert_eq!(text((24_200, (Some(23_900), Some(124_600)))), "24.2 us (23.9-124.6)");
        assert_eq!(text((812, (Some(9), Some(5_000)))), "812 ns (9-5000)");
        assert_eq!(text((3_400, (None, None))), "3.40 us (?-?)");
        let [a, b, c] = [(100, 90, 110), (120, 110, 130), (50, 40, 60)]
            .map(|(ns, low, high)| (ns, (Some(low), Some(high))));
        assert_eq!([change(a, b), change(a, c), change(c, a)], ["", "-50.0 %", "+100.0 %"]);
        let few = (50, (Some(40), None));
        assert_eq!([change(few, a), change(c, few), change(a, few)], ["", "", ""]);
    }
}
