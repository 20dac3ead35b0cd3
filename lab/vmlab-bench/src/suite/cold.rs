//! Cold starts: the time of one execution of each test, including the construction of its target.
//!
//! # Theory
//! A test that loops a million times hides the cost of a target whose caches are cold: its tables, its nodes, the first
//! search of everything. Here a target is created for one execution of one test, at loop counts from 1 to 10,000, and
//! the clock starts before its creation. The targets alternate in each round, and the result is the median of the
//! rounds.

use super::case::Case;
use super::driver;
use super::params::Params;
use super::target::{Entry, Setup};
use crate::print::{Captioned, number, right};
use anyhow::Result;
use comfy_table::Table;
use std::time::Instant;

/// Loop counts of an execution; the table has rows for each.
pub const LOOPS: [u32; 5] = [1, 10, 100, 1_000, 10_000];
/// Rounds.
pub const ROUNDS: usize = 9;
/// The targets: ours, and Linux's policies and library. A target that walks a list takes minutes for one test, and is
/// omitted.
const TARGETS: [&str; 5] = ["space", "one-lock", "hashed", "nodes", "linux"];

/// Measures the available targets of `entries` on the calling thread, and returns one table.
///
/// # Errors
/// If a target cannot be created.
pub fn measure(entries: &[Entry], setup: &Setup, params: &Params, seed: u64) -> Result<Captioned> {
    let wanted = |entry: &&Entry| {
        TARGETS.contains(&entry.name) && (entry.name != "linux" || setup.kernel_lib.is_some())
    };
    let entries: Vec<&Entry> = entries.iter().filter(wanted).collect();
    let mut table = Table::new();
    let names = entries.iter().map(|entry| entry.name);
    table.set_header(["loops", "bit", "test"].into_iter().chain(names).chain(["ours / fastest of Linux"]));
    for loops in LOOPS {
        let params =
            Params { test_loop_count: loops, nr_pcpu_objects: loops, test_repeat_count: 1, ..*params };
        for case in params.cases() {
            let mut times = vec![Vec::new(); entries.len()];
            for _ in 0..ROUNDS {
                for (entry, times) in entries.iter().zip(&mut times) {
                    let begun = Instant::now();
                    let target = (entry.make)(setup)?;
                    if target.supports(case) && driver::once(&*target, &params, case, setup.cpus, seed) {
                        times.push(begun.elapsed().as_nanos() as f64);
                    }
                }
            }
            table.add_row(row(loops, case, &mut times));
        }
    }
    right(&mut table, 3);
    let caption = format!("Microseconds from the construction of a target on, median of {ROUNDS}");
    Ok(Captioned { caption, table })
}

/// Returns the row of one test at one loop count; the first of `times` is ours.
fn row(loops: u32, case: Case, times: &mut [Vec<f64>]) -> Vec<String> {
    let medians: Vec<Option<f64>> = times
        .iter_mut()
        .map(|times| {
            times.sort_unstable_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        })
        .collect();
    let linux = medians.iter().skip(1).flatten().copied().reduce(f64::min);
    let ratio = medians.first().copied().flatten().zip(linux).map(|(ours, linux)| ours / linux);
    let mut row = vec![loops.to_string(), case.bit().to_string(), case.name().to_string()];
    row.extend(medians.iter().map(|time| time.map_or("-".to_string(), |ns| number(ns / 1000.0))));
    row.push(ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}")));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_of_each_and_the_ratio_to_the_fastest_of_linux() {
        let mut times = [vec![3000.0, 1000.0, 2000.0], vec![9000.0, 1000.0, 4000.0], vec![5000.0], vec![]];
        let row = row(10, Case::FullFit, &mut times);
        assert_eq!(row[..3], ["10", "2", "full_fit_alloc_test"]);
        assert_eq!((row[6].as_str(), row[7].as_str()), ("-", "0.50"));
    }
}
