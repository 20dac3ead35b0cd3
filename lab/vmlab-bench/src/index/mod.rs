//! Measures indexes of holes.

#[doc(hidden)]
pub mod contenders;
mod kernel_lib;
mod peers;
#[doc(hidden)]
pub mod print;
#[doc(hidden)]
pub mod workloads;

use crate::harness::{Run, folder, pin, select};
use crate::stream::measure;
use anyhow::Result;
use std::path::PathBuf;
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

/// Runs the benchmark.
///
/// # Errors
/// If two exact indexes disagree, a library cannot be loaded, or results cannot be written.
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let Options { filter, indexes, quick, .. } = options;
    let rounds = if *quick { 3 } else { options.rounds };
    let dir = folder(options.out.as_deref(), *quick || filter.is_some() || !indexes.is_empty());
    let mut run = Run::begin(filter.as_deref(), dir, &format!("{}.csv", print::stem()), out)?;
    pin();
    let mut contenders = contenders::all();
    if let Some(path) = &options.kern {
        contenders.push(kernel_lib::contender(path)?);
    }
    select(&mut contenders, indexes, |contender| contender.name)?;
    let specs = workloads::ALL.iter().filter(|spec| run.wants(spec.name) && (!quick || spec.quick));
    let specs: Vec<_> = specs.collect();
    run.check_found(!specs.is_empty(), "workload's")?;
    let mut cells = Vec::new();
    for spec in specs {
        run.progress(spec.name);
        cells.extend(measure(&spec.make(rounds), &contenders, rounds, run.out)?);
    }
    let report = print::report(&cells, run.header.pinned(rounds));
    run.end([report])
}
