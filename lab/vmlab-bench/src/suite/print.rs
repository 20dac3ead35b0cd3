//! The output of the suite: exactly the kernel's lines, and a table of targets.
//!
//! # Source
//! Linux `lib/test_vmalloc.c` (6.12, 7.1), for the form of the lines, which scripts read.

use super::case::{Case, Suite};
use super::driver::{Counts, Ran};
use crate::harness::{Table, dash, number};

/// Returns the lines of a run: for each worker its tests by their bits, and its cycles.
pub fn lines(ran: &Ran) -> Vec<String> {
    let mut lines = Vec::new();
    for (worker, found) in ran.workers.iter().enumerate() {
        for case in ran.params.cases() {
            lines.push(summary(ran, case, &found.counts[case.index()]));
        }
        lines.push(format!("All test took worker{worker}={} cycles", found.cycles));
    }
    lines
}

fn summary(ran: &Ran, case: Case, counts: &Counts) -> String {
    let Counts { passed, failed, xfailed, .. } = counts;
    let xfailed = match ran.params.suite {
        Suite::V7_1 => format!(" xfailed: {xfailed}"),
        Suite::V6_12 => String::new(),
    };
    format!(
        "Summary: {} passed: {passed} failed: {failed}{xfailed} repeat: {} loops: {} avg: {} usec",
        case.name(),
        ran.params.test_repeat_count,
        ran.params.test_loop_count,
        counts.average_us(),
    )
}

/// Returns the number of loops of a test in an execution.
fn loops(ran: &Ran, case: Case) -> f64 {
    f64::from(match case {
        Case::AlignShift => 1,
        Case::Pcpu => ran.params.nr_pcpu_objects,
        _ => ran.params.test_loop_count,
    })
}

/// Returns the nanoseconds of one loop, over all workers; `None` if the test was not executed.
pub fn mean_ns(ran: &Ran, case: Case) -> Option<f64> {
    let of = ran.workers.iter().map(|found| &found.counts[case.index()]);
    let executions: u32 = of.clone().map(Counts::executions).sum();
    let time: f64 = of.map(|counts| counts.time.as_nanos() as f64).sum();
    (executions > 0).then(|| time / f64::from(executions) / loops(ran, case))
}

/// Returns a table with a row for each test and a column for each target.
pub fn table(runs: &[(&str, Ran)]) -> Table {
    let caption = "Nanoseconds of a loop, mean over workers and executions: what a loop allocates, writes and frees. pcpu_alloc_test by \
        objects, align_shift_alloc_test (64 alignments, of which the large ones are expected to fail: !) by executions; - where a target \
        has no such thing.";
    let head = ["bit", "test"].into_iter().chain(runs.iter().map(|&(name, _)| name));
    let mut table = Table::new(caption, 2, head);
    for case in Case::ALL {
        if runs.iter().all(|(_, ran)| mean_ns(ran, case).is_none()) {
            continue;
        }
        let mut row = vec![case.bit().to_string(), case.name().to_string()];
        row.extend(runs.iter().map(|(_, ran)| {
            let failed: u32 = ran
                .workers
                .iter()
                .map(|found| found.counts[case.index()])
                .map(|counts| counts.failed + counts.xfailed)
                .sum();
            let mark = if failed > 0 { " !" } else { "" };
            dash(mean_ns(ran, case).map(|ns| number(ns) + mark))
        }));
        table.push(row);
    }
    let mut row = vec![String::new(), "all, million cycles of a worker".to_string()];
    row.extend(runs.iter().map(|(_, ran)| {
        let cycles: f64 = ran.workers.iter().map(|found| found.cycles as f64).sum();
        number(cycles / ran.workers.len().max(1) as f64 / 1e6)
    }));
    table.push(row);
    table
}
