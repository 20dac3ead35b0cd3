//! Charts of the time of each test on each worker, as in the talk: before, after, and both.

use super::{Compared, Measured, Part};
use crate::harness::Drawn;
use crate::suite::case::Case;
use vmlab_base::bars::{Bars, Group};

/// Returns a test's name without the common suffix.
fn short(case: Case) -> &'static str {
    let name = case.name();
    name.strip_suffix("_alloc_test").or(name.strip_suffix("_test")).unwrap_or(name)
}

/// Returns the seconds of a test on each worker.
fn times(measured: &Measured, case: Case) -> Vec<f64> {
    measured.ran.workers.iter().map(|worker| worker.counts[case.index()].time.as_secs_f64()).collect()
}

/// Returns the targets before and after: those of the scenario's document, or else the first and the last.
fn sides(part: &Part) -> Option<(&Measured, &Measured)> {
    let named = match part.scenario.name {
        "all" => part.of("list").zip(part.of("one-lock")),
        "crowd" => part.of("one-lock").zip(part.of("nodes")),
        _ => None,
    };
    named.or_else(|| match &part.measured[..] {
        [first, .., last] => Some((first, last)),
        _ => None,
    })
}

/// Draws three charts of each scenario with more than one worker and more than one target.
pub(super) fn all(compared: &Compared) -> Vec<Drawn> {
    let mut all = Vec::new();
    for part in compared.parts.iter().filter(|part| part.scenario.params.nr_threads > 1) {
        let cases: Vec<Case> = part.scenario.params.cases().collect();
        // A single test has no chart.
        let Some((before, after)) = sides(part).filter(|_| cases.len() > 1) else { continue };
        let scenario = part.scenario.name;
        let workers = part.scenario.params.nr_threads;
        for (which, shown) in [("before", &[before][..]), ("after", &[after]), ("both", &[before, after])] {
            let names: Vec<&str> = shown.iter().map(|one| one.target.as_str()).collect();
            let title =
                format!("Time of each test on each of {workers} workers: {} ({which})", names.join(" and "));
            let group = |&case: &Case| Group {
                name: short(case).to_string(),
                series: shown.iter().map(|one| times(one, case)).collect(),
            };
            let bars = Bars {
                title: &title,
                y: "seconds",
                names: &names,
                groups: cases.iter().map(group).collect(),
                log: which == "both",
                // A target has the same colour in all three.
                first_colour: usize::from(which == "after"),
                size: (900.0, 380.0),
            };
            all.push(Drawn { file: format!("test-compare-{scenario}-{which}.svg"), svg: bars.svg() });
        }
    }
    all
}
