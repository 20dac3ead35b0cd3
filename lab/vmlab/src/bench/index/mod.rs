//! Measures indexes of holes.

pub(super) mod contenders;
mod kernel_lib;
mod peers;
mod print;
pub(super) mod workloads;

use super::print::{header, prepare, tables_to_terminal};
use super::{ROUNDS_MAX, measure, pin, workload};
use crate::cli::{out, print_note};
use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use std::path::{Path, PathBuf};

/// Options of `vmlab bench index`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    indexes: Vec<String>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Fewer and smaller workloads, three rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --indexes), which writes
    /// no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions ki_init, ki_alloc and ki_free, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
}

impl Args {
    /// Returns the folder for files. A partial run must not replace the files of a full one.
    fn files(&self) -> Option<&Path> {
        let part = self.quick || self.filter.is_some() || !self.indexes.is_empty();
        self.out.as_deref().or((!part).then_some(Path::new("results")))
    }
}

/// Runs the benchmark.
///
/// # Errors
/// If two exact indexes disagree, a library cannot be loaded, or results cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let rounds = if args.quick { 3 } else { args.rounds };
    // The run takes minutes: read the header first, before commits or edits, and before this thread is pinned.
    let header = header(rounds);
    if let Some(dir) = args.files() {
        prepare(dir, &print::csv_name())?;
    }
    pin();
    let mut contenders = contenders::all();
    if let Some(path) = &args.kern {
        contenders.push(kernel_lib::contender(path)?);
    }
    if let Some(unknown) = args.indexes.iter().find(|name| contenders.iter().all(|c| c.name != name.as_str()))
    {
        bail!("no contender is called {unknown}");
    }
    contenders.retain(|c| args.indexes.is_empty() || args.indexes.iter().any(|name| name == c.name));
    let workloads: Vec<&workload::Spec> = workloads::ALL
        .iter()
        .filter(|spec| args.filter.as_ref().is_none_or(|text| spec.name.contains(text.as_str())))
        .filter(|spec| !args.quick || spec.quick)
        .collect();
    if workloads.is_empty() {
        bail!("no workload's name contains {:?}", args.filter.as_deref().unwrap_or_default());
    }
    let mut cells = Vec::new();
    for spec in workloads {
        let workload = spec.make(rounds);
        print_note(&format!("{} ...", workload.name));
        cells.extend(measure(&workload, &contenders, rounds)?);
    }
    tables_to_terminal(print::tables(&cells))?;
    match args.files() {
        Some(dir) => print::files(&cells, dir, &header),
        None => out("no files are written of a part of the measurements: --out DIR writes them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 2;

    #[test]
    fn exact_indexes_agree_on_every_quick_workload() {
        for spec in workloads::ALL.iter().filter(|spec| spec.quick) {
            let workload = spec.make(ROUNDS);
            // The others need not return the same addresses, and some take seconds where these take milliseconds.
            let exact: Vec<_> = contenders::all().into_iter().filter(|c| c.exact(&workload)).collect();
            assert!(exact.iter().any(|c| c.name == "btree") && exact.len() >= 8, "{}", workload.name);
            let cells = measure(&workload, &exact, ROUNDS).unwrap();
            // Only contenders that ran every round were compared.
            assert_eq!(cells.len(), exact.len(), "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.rounds == ROUNDS), "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.min.is_finite() && cell.min <= cell.median));
        }
    }

    #[test]
    fn every_contender_runs_on_the_small_workloads() {
        let contenders = contenders::all();
        for spec in workloads::ALL.iter().filter(|spec| spec.n <= 100) {
            let workload = spec.make(ROUNDS);
            let cells = measure(&workload, &contenders, ROUNDS).unwrap();
            let able = contenders.iter().filter(|c| c.aligns || !workload.aligned).count();
            assert_eq!(cells.len(), able, "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.min.is_finite() && cell.min <= cell.median));
        }
    }
}
