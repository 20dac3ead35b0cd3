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
use crate::harness::{Summary, Table, dash, in_turn, number};
use anyhow::Result;
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
pub fn measure(entries: &[Entry], setup: &Setup, params: &Params, seed: u64) -> Result<Table> {
    let wanted = |entry: &&Entry| {
        TARGETS.contains(&entry.name) && (entry.name != "linux" || setup.kernel_lib.is_some())
    };
    let entries: Vec<&Entry> = entries.iter().filter(wanted).collect();
    let names = entries.iter().map(|entry| entry.name);
    let head = ["loops", "bit", "test"].into_iter().chain(names).chain(["ours / fastest of Linux"]);
    let caption = format!("Microseconds from the construction of a target on, median of {ROUNDS}");
    let mut table = Table::new(caption, 3, head);
    for loops in LOOPS {
        let params =
            Params { test_loop_count: loops, nr_pcpu_objects: loops, test_repeat_count: 1, ..*params };
        for case in params.cases() {
            let times = in_turn(ROUNDS, &entries, |_, entry| {
                let begun = Instant::now();
                let target = (entry.make)(setup)?;
                let ran = target.supports(case) && driver::once(&*target, &params, case, setup.cpus, seed);
                Ok(ran.then(|| begun.elapsed().as_nanos() as f64))
            })?;
            table.push(row(loops, case, times));
        }
    }
    Ok(table)
}

/// Returns the row of one test at one loop count; the first of `times` is ours.
#[doc(hidden)]
pub fn row(loops: u32, case: Case, times: Vec<Vec<f64>>) -> Vec<String> {
    let medians: Vec<Option<f64>> = times.into_iter().map(|times| Some(Summary::of(times)?.median)).collect();
    let linux = medians.iter().skip(1).flatten().copied().reduce(f64::min);
    let ratio = medians.first().copied().flatten().zip(linux).map(|(ours, linux)| ours / linux);
    let mut row = vec![loops.to_string(), case.bit().to_string(), case.name().to_string()];
    row.extend(medians.iter().map(|time| dash(time.map(|ns| number(ns / 1000.0)))));
    row.push(dash(ratio.map(|ratio| format!("{ratio:.2}"))));
    row
}
