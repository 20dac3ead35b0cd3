//! Each test of `lib/test_vmalloc.c` on both kernels, with few loops and with many.
//!
//! # Theory
//! QEMU counts instructions (`-icount shift=0`), so a microsecond that a test reports is a thousand instructions of all
//! four CPUs. With few loops a test pays for what it finds: a kernel that has just booted, empty pools, tables that are
//! made. With many it pays for the purges. What a test does besides, pages and page tables, is the same on both.

use super::{COUNTED, Run, boot, in_turn, page, write_above_sections};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::path::Path;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The most loops of a test; a tenth, a hundredth and a thousandth of them are run as well
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1000..))]
    most: u32,
    /// Boots of each kernel
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long)]
    out: bool,
}

/// A test and its loops, in the order of the runs.
type Case = (String, u32);

/// Boots both kernels in turn, and prints the median of each test, or writes it.
pub(super) fn main(root: &Path, &Args { most, rounds, out }: &Args) -> Result<()> {
    let runs = in_turn(rounds, |kind| {
        let lines = boot(root, kind, &Run::of("loops", most), COUNTED)?;
        Ok(lines.iter().filter_map(|line| summary(line)).collect())
    })?;
    let table = table(&runs)?;
    println!("{table}");
    if out {
        let command = format!("loops --most {most} --rounds {rounds}");
        let page = page(root, "Linux's own tests on both kernels", &command, &format!("{HEAD}\n\n{table}"));
        write_above_sections(root, "linux-loops.md", &page)?;
    }
    Ok(())
}

/// The text above the table.
const HEAD: &str = "Each test of `lib/test_vmalloc.c` alone, one thread, 6.12 with the core against 6.12 as it comes: thousands of\n\
instructions of all CPUs (`-icount shift=0`), the median of the boots, which take turns. The last column is the ratio of\n\
the medians, and its least and most of any two boots.";

/// Reads `Summary: NAME passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 100 avg: 4321 usec`.
fn summary(line: &str) -> Option<(Case, u64)> {
    let mut words = line.strip_prefix("Summary: ")?.split_whitespace();
    let name = words.next()?.trim_end_matches("_test").to_string();
    let rest: Vec<&str> = words.collect();
    let after = |key| rest.iter().position(|word| *word == key).and_then(|at| rest.get(at + 1));
    Some(((name, after("loops:")?.parse().ok()?), after("avg:")?.parse().ok()?))
}

/// Returns the table of all runs of both kernels.
fn table(runs: &[Vec<Vec<(Case, u64)>>; 2]) -> Result<String> {
    let [stock, ours] = runs;
    let Some(cases) = stock.first().filter(|cases| !cases.is_empty()) else { bail!("no run said anything") };
    let times = |runs: &[Vec<(Case, u64)>], case: &Case| -> Result<Vec<u64>> {
        let mut times = Vec::new();
        for run in runs {
            let before = times.len();
            // A boot runs each test twice.
            times.extend(run.iter().filter(|(of, _)| of == case).map(|(_, time)| *time));
            if times.len() == before {
                bail!("a run lacks {} with {} loops", case.0, case.1);
            }
        }
        times.sort_unstable();
        Ok(times)
    };
    let mut table = String::from("| test | loops | stock | ours | ratio |\n|---|---:|---:|---:|---:|\n");
    let (median, ends) =
        (|times: &[u64]| times[times.len() / 2], |times: &[u64]| (times[0], times[times.len() - 1]));
    let mut shown: Vec<&Case> = Vec::new();
    for (case, _) in cases {
        if shown.contains(&case) {
            continue;
        }
        shown.push(case);
        let (stock, ours) = (&times(stock, case)?, &times(ours, case)?);
        let ((least, most), (our_least, our_most)) = (ends(stock), ends(ours));
        let ratio = |ours: u64, stock: u64| ours as f64 / stock.max(1) as f64;
        writeln!(
            table,
            "| {} | {} | {} | {} | {:.2} ({:.2} to {:.2}) |",
            case.0,
            case.1,
            median(stock),
            median(ours),
            ratio(median(ours), median(stock)),
            ratio(our_least, most),
            ratio(our_most, least)
        )?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "Summary: fix_size_alloc_test passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 100 avg: 4321 usec";

    #[test]
    fn a_summary_has_a_name_its_loops_and_its_time() {
        assert_eq!(summary(LINE), Some((("fix_size_alloc".to_string(), 100), 4321)));
        assert_eq!(summary("All test took worker0=12345 cycles"), None);
        assert_eq!(summary(&LINE.replace("avg:", "time:")), None);
    }

    #[test]
    fn a_row_has_medians_and_a_run_that_lacks_a_test_is_an_error() {
        let run = |time| vec![(("fix_size_alloc".to_string(), 100), time)];
        let text = table(&[vec![run(90), run(100), run(200)], vec![run(70), run(50), run(60)]]).unwrap();
        assert!(text.contains("| fix_size_alloc | 100 | 100 | 60 | 0.60 (0.25 to 0.78) |"), "{text}");
        assert!(table(&[vec![run(90)], vec![vec![]]]).is_err());
        assert!(table(&[vec![], vec![]]).is_err());
    }
}
