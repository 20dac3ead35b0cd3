//! Measures indexes of holes.

pub(super) mod contenders;
mod kernel_lib;
mod peers;
mod print;
pub(super) mod workloads;

use super::print::{header, prepare, show};
use super::{measure, pin, workload};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use vmlab_base::output::Output;

/// Options of `vmlab bench index`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only workloads whose name contains this
    pub filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    pub indexes: Vec<String>,
    /// Rounds, 1 to 1000
    pub rounds: usize,
    /// Fewer and smaller workloads, three rounds
    pub quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --indexes), which writes
    /// no files by default
    pub out: Option<PathBuf>,
    /// A shared library with the C functions ki_init, ki_alloc and ki_free, measured as `kern`
    pub kern: Option<PathBuf>,
}

impl Options {
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
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let rounds = if options.quick { 3 } else { options.rounds };
    // The run takes minutes: read the header first, before commits or edits, and before this thread is pinned.
    let header = header(rounds);
    if let Some(dir) = options.files() {
        prepare(dir, &print::csv_name())?;
    }
    pin();
    let mut contenders = contenders::all();
    if let Some(path) = &options.kern {
        contenders.push(kernel_lib::contender(path)?);
    }
    if let Some(unknown) =
        options.indexes.iter().find(|name| contenders.iter().all(|c| c.name != name.as_str()))
    {
        bail!("no contender is called {unknown}");
    }
    contenders.retain(|c| options.indexes.is_empty() || options.indexes.iter().any(|name| name == c.name));
    let workloads: Vec<&workload::Spec> = workloads::ALL
        .iter()
        .filter(|spec| options.filter.as_ref().is_none_or(|text| spec.name.contains(text.as_str())))
        .filter(|spec| !options.quick || spec.quick)
        .collect();
    if workloads.is_empty() {
        bail!("no workload's name contains {:?}", options.filter.as_deref().unwrap_or_default());
    }
    let mut cells = Vec::new();
    for spec in workloads {
        let workload = spec.make(rounds);
        out.note(&format!("{} ...", workload.name));
        cells.extend(measure(&workload, &contenders, rounds, out)?);
    }
    show(print::tables(&cells), out)?;
    match options.files() {
        Some(dir) => print::files(&cells, dir, &header, out),
        None => out.line("no files are written of a part of the measurements: --out DIR writes them"),
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
            let cells = measure(&workload, &exact, ROUNDS, &mut Vec::new()).unwrap();
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
            let cells = measure(&workload, &contenders, ROUNDS, &mut Vec::new()).unwrap();
            let able = contenders.iter().filter(|c| c.aligns || !workload.aligned).count();
            assert_eq!(cells.len(), able, "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.min.is_finite() && cell.min <= cell.median));
        }
    }
}
