//! Inputs on which Linux behaves badly, on both libraries.

use super::Peers;
use crate::sh::{Cmd, Show};
use anyhow::Result;
use std::path::Path;

/// A number in the output of a scenario.
pub(super) struct Case {
    pub(super) what: &'static str,
    scenario: &'static str,
    /// Text of the line.
    line: &'static str,
    /// Text before the number in it.
    before: &'static str,
    pub(super) unit: &'static str,
    /// The greatest acceptable value.
    pub(super) goal: f64,
}

const fn case(
    what: &'static str,
    scenario: &'static str,
    line: &'static str,
    before: &'static str,
    unit: &'static str,
    goal: f64,
) -> Case {
    Case { what, scenario, line, before, unit, goal }
}

const CASES: [Case; 13] = [
    case(
        "request that can never fit, 40,000 areas pooled or lazy",
        "fail_cost",
        "64 TiB, pools",
        "(min ",
        "us",
        0.1,
    ),
    case("request larger than its window, the same", "fail_cost", "too small, pools", "(min ", "us", 0.1),
    case("request that can never fit, 128 nodes", "fail_cost", "nodes=128", "failing alloc ", "us", 0.1),
    case(
        "exact window, aligned, 64,000 holes",
        "exact_range",
        "holes=64000",
        "exact-range alloc ",
        "ns",
        1000.0,
    ),
    case("exact window, not aligned, the same", "exact_range", "holes=64000", "unaligned ", "ns", 1000.0),
    case("lookup of an address inside, 128 nodes", "find", "nodes=128", "interior address ", "ns", 20.0),
    case("lookup of a start, 128 nodes", "find", "nodes=128", "by start ", "ns", 20.0),
    case(
        "slowest free, 65,537 areas, 1 node, in order",
        "purge_spike",
        "cpus=128 nodes=1   65537 one-page areas freed in order",
        "slowest free() ",
        "us",
        100.0,
    ),
    case(
        "the same at random",
        "purge_spike",
        "cpus=128 nodes=1   65537 one-page areas freed randomly",
        "slowest free() ",
        "us",
        100.0,
    ),
    case(
        "slowest free, 65,537 areas, 128 nodes, in order",
        "purge_spike",
        "cpus=128 nodes=128 65537 one-page areas freed in order",
        "slowest free() ",
        "us",
        100.0,
    ),
    case(
        "the same at random",
        "purge_spike",
        "cpus=128 nodes=128 65537 one-page areas freed randomly",
        "slowest free() ",
        "us",
        100.0,
    ),
    case("four congruent areas under 32,000 holes", "areas", "under 32000", "range: ", "us", 5.0),
    case(
        "address space that 2,000 lasting pages pin among 1023:1 short ones",
        "vb",
        "2000 live pages",
        "pin ",
        "GiB",
        0.0625,
    ),
];

/// A case on both; `None` where a library lacks the function.
pub(super) struct Shown {
    pub(super) case: Case,
    pub(super) linux: Option<f64>,
    pub(super) ours: Option<f64>,
}

/// Runs each scenario on both in turn. Returns the least of each number.
pub(super) fn cases(root: &Path, peers: &Peers, rounds: usize) -> Result<Vec<Shown>> {
    let mut shown: Vec<Shown> = CASES.map(|case| Shown { case, linux: None, ours: None }).into();
    let mut scenarios: Vec<&str> = CASES.iter().map(|case| case.scenario).collect();
    scenarios.dedup();
    for scenario in scenarios {
        for _ in 0..rounds.max(1) {
            let linux = run(root, peers, &peers.linux, scenario)?;
            let ours = run(root, peers, &peers.ours, scenario)?;
            for shown in shown.iter_mut().filter(|shown| shown.case.scenario == scenario) {
                least(&mut shown.linux, number(&shown.case, &linux));
                least(&mut shown.ours, number(&shown.case, &ours));
            }
        }
        println!("{scenario}: done");
    }
    Ok(shown)
}

fn run(root: &Path, peers: &Peers, library: &Path, scenario: &str) -> Result<String> {
    let mut text = String::new();
    // A library that lacks a function ends the program: its lines are missing then.
    let _ended = Cmd::new(root, peers.programs.join("patho_va")).arg(library).arg(scenario).lines(
        Show::Nothing,
        |line| {
            text.push_str(line);
            text.push('\n');
        },
    )?;
    Ok(text)
}

fn least(of: &mut Option<f64>, number: Option<f64>) {
    *of = match (*of, number) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
}

fn number(case: &Case, text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(case.line))?;
    let (_, rest) = line.split_once(case.before)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_after_its_words_is_read() {
        let text = "fail_cost: 64 TiB, idle: one failing alloc 4.8 us (min 4.7)\n\
                    fail_cost: 64 TiB, pools+lazy holding 40000 areas: one failing alloc 4427.0 us (min 4248.1)\n";
        assert_eq!(number(&CASES[0], text), Some(4248.1));
        assert_eq!(number(&CASES[1], text), None);
        let text = "areas: pcpu_get_vm_areas(4 x 2 MiB) under 32000 one-page holes at the top of the range: 223.2 us\n";
        let areas = CASES.iter().find(|case| case.scenario == "areas").unwrap();
        assert_eq!(number(areas, text), Some(223.2));
    }

    #[test]
    fn the_minimum_of_all_runs_is_used() {
        let mut smallest = None;
        for number in [None, Some(3.0), Some(2.0), None, Some(4.0)] {
            least(&mut smallest, number);
        }
        assert_eq!(smallest, Some(2.0));
    }
}
