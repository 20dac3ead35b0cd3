//! The page `results/peer.md`.

use super::bench::{Both, Measured, Shared, median};
use super::patho::Shown;
use super::replay::{Backlog, Replayed};
use crate::machine::{commit, machine, model};
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;

/// Required ratio to Linux's throughput with many threads.
const THREADS_BAR: f64 = 4.0;
/// Cores of the machine of the goal; with more threads, ours must not be slower.
const THREADS_MAX: u32 = 2;
/// Acquisitions of shared locks that a pair may have.
const LOCKS_BAR: f64 = 0.05;
/// Locked read-modify-writes that a pair may have.
const LOCKED_BAR: f64 = 2.0;

/// Returns all measurements as one page.
pub(super) fn page(
    root: &Path,
    (runs, rounds, ms): (usize, usize, u32),
    replays: &[Replayed],
    rows: &[Measured],
    threads: &[Shared],
    cases: &[Shown],
    backlogs: &[Backlog],
) -> Result<String> {
    let mut page = format!(
        "# The space beside Linux 6.12\n\n\
         - command: `cargo xtask peer --runs {runs} --rounds {rounds} --ms {ms}`\n- commit: {}\n- machine: {}\n\
         - processor: {}\n\n\
         Linux is its `mm/vmalloc.c` built as a library: page tables and flushes are counted no-ops for both, lazy areas and\n\
         purges are really done by both, at the same threshold, on the calling thread unless said otherwise. Each row ran on both\n\
         in turn, {rounds} times; a time is the median of the rounds' least batches, in nanoseconds of CPU time a pair, and a\n\
         ratio the median of the rounds' ratios. Runs of all rows: {runs}; the figures are of the middle one, with the range of\n\
         the ratios of all. Other load on the machine moves nanoseconds; the ratio is what is claimed.\n\n",
        commit(root),
        machine(root),
        model()
    );
    self::replays(&mut page, replays)?;
    self::rows(&mut page, rows)?;
    self::backlogs(&mut page, backlogs)?;
    self::threads(&mut page, threads)?;
    self::cases(&mut page, cases)?;
    Ok(page)
}

fn met(met: bool) -> &'static str {
    if met { "yes" } else { "**no**" }
}

fn replays(page: &mut String, replays: &[Replayed]) -> Result<()> {
    page.push_str(
        "## Addresses\n\n\
         Policy `linux`, generated scripts with purges, drains, shrinks and moves between CPUs, on 1, 2 and 4 nodes with the drain on\n\
         the caller: every address and every hole equal. Those of per-CPU memory are run with units of 256 KiB and of 64 KiB: every\n\
         chunk and offset equal.\n\n\
         | profile | replays | operations |\n|---|---:|---:|\n",
    );
    for Replayed { profile, scripts, operations } in replays {
        writeln!(page, "| {profile} | {scripts} | {operations} |")?;
    }
    Ok(())
}

fn rows(page: &mut String, rows: &[Measured]) -> Result<()> {
    page.push_str(
        "\n## One thread, two nodes, default policy\n\n\
         `locks` is takings of shared locks a pair, counted; purges are those of one run, set-up included, each with one flush.\n\n\
         | pattern | pages | Linux min | ours min | ratio | range | aim | met | Linux median | ours median | Linux purges | ours purges | locks |\n\
         |---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|\n",
    );
    for Measured { row, runs, counted } in rows {
        let (test, pages, aim) = (row.test, row.pages, row.aim);
        let Some((Both { linux, ours, ratio }, low, high)) = middle(runs) else {
            writeln!(
                page,
                "| {test} | {pages} | - | not there yet | - | - | {aim} | **no** | - | - | - | - | - |"
            )?;
            continue;
        };
        let per_run = |purges: u64, wall: f64| purges as f64 * wall;
        // Purges for equal work: ours completes more pairs in the same time.
        let (theirs, mine) = (per_run(linux.purges, linux.wall_ns), per_run(ours.purges, ours.wall_ns));
        let relative = if theirs > 0.0 { mine / theirs } else { 0.0 };
        let locks = counted.map_or(0.0, |run| run.counts.locks as f64 / run.pairs.max(1.0));
        writeln!(
            page,
            "| {test} | {pages} | {:.1} | {:.1} | {ratio:.2} | {low:.2} to {high:.2} | {aim} | {} | {:.1} | {:.1} | {} | {} ({relative:.2} a pair of Linux's) | {locks:.3} |",
            linux.min_ns,
            ours.min_ns,
            met(ratio >= aim),
            linux.median_ns,
            ours.median_ns,
            linux.purges,
            ours.purges,
        )?;
    }
    Ok(())
}

/// Returns the run with the median ratio, and the least and the largest ratio of all.
fn middle(runs: &[Both]) -> Option<(Both, f64, f64)> {
    let ratios = || runs.iter().map(|run| run.ratio);
    let middle = median(ratios())?;
    let run = runs.iter().find(|run| run.ratio.total_cmp(&middle).is_eq())?;
    Some((*run, ratios().min_by(f64::total_cmp)?, ratios().max_by(f64::total_cmp)?))
}

fn backlogs(page: &mut String, backlogs: &[Backlog]) -> Result<()> {
    page.push_str(
        "\n60,000 pairs, looked at every 37: the most that was lazy, and the purges, each of which flushed once.\n\n\
         | pairs of | Linux lazy pages | ours | Linux purges | ours | at most twice the pages, no more purges |\n|---|---:|---:|---:|---:|---|\n",
    );
    for Backlog { what, linux, ours } in backlogs {
        let met = met(ours.pages_max <= 2 * linux.pages_max && ours.purges <= linux.purges);
        let (theirs, mine) = (linux.pages_max, ours.pages_max);
        writeln!(page, "| {what} | {theirs} | {mine} | {} | {} | {met} |", linux.purges, ours.purges)?;
    }
    Ok(())
}

fn threads(page: &mut String, threads: &[Shared]) -> Result<()> {
    writeln!(
        page,
        "\n## Many threads, a node each, drained by a helper\n\n\
         Time a pair of all threads together, the median of the rounds. With {THREADS_MAX} threads the bar is {THREADS_BAR} times Linux's\n\
         throughput, and on the hot ones (`fix_size`, `random_size`) {LOCKS_BAR} locks and {LOCKED_BAR} locked read-modify-writes a pair, of\n\
         which a free has one and each lock two. More threads than cores show what waiting costs: there ours is not to be slower.\n\n\
         | pattern | threads | Linux ns | ours ns | ratio | bar | met | locks | locked |\n|---|---:|---:|---:|---:|---:|---|---:|---:|"
    )?;
    for Shared { test, threads, linux, ours, counted } in threads {
        let ratio = linux.wall_ns / ours.wall_ns;
        let locks = counted.counts.locks as f64 / counted.pairs.max(1.0);
        let locked = 1.0 + 2.0 * locks;
        let fits = *threads <= THREADS_MAX;
        let hot = fits && *test != "churn_mix";
        let bar = if fits { THREADS_BAR } else { 1.0 };
        let met = met(ratio >= bar && (!hot || locks <= LOCKS_BAR && locked <= LOCKED_BAR));
        let (theirs, mine) = (linux.wall_ns, ours.wall_ns);
        writeln!(
            page,
            "| {test} | {threads} | {theirs:.1} | {mine:.1} | {ratio:.2} | {bar:.0} | {met} | {locks:.3} | {locked:.2} |"
        )?;
    }
    Ok(())
}

fn cases(page: &mut String, cases: &[Shown]) -> Result<()> {
    page.push_str(
        "\n## Where Linux is not flat\n\n| case | unit | Linux | ours | goal | met |\n|---|---|---:|---:|---:|---|\n",
    );
    for Shown { case, linux, ours } in cases {
        let shown = |number: &Option<f64>| number.map_or("-".to_string(), |number| format!("{number}"));
        let met = met(ours.is_some_and(|ours| ours <= case.goal));
        let (theirs, mine) = (shown(linux), shown(ours));
        writeln!(page, "| {} | {} | {theirs} | {mine} | {} | {met} |", case.what, case.unit, case.goal)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::bench::Run;

    #[test]
    fn the_middle_run_is_shown_with_the_range_of_all() {
        let of = |ratio| Both { linux: Run::default(), ours: Run { min_ns: ratio, ..Run::default() }, ratio };
        let (both, low, high) = middle(&[of(5.0), of(4.0), of(7.0)]).unwrap();
        assert_eq!((both.ours.min_ns, low, high), (5.0, 4.0, 7.0));
        assert_eq!(middle(&[]), None);
    }
}
