//! The page, the CSV and the charts.

use super::{Compared, charts, locks, origins, tables};
use crate::harness::{Header, Report};

/// The name of the files.
pub(super) const STEM: &str = "test-compare";

/// Returns the description of the machine and the run.
pub(super) fn about(common: &Header, rounds: u64, limit_s: u64, cpus: u32) -> String {
    // Other load on the machine affects every figure.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    // Workers are not bound to a CPU; the suite's are not either.
    common.with(&format!(
        "load before: {load}\ncores: {cpus}, so at most {cpus} workers run at a time, whatever their number\nrounds: {rounds}, \
         targets in turn, the fastest counts; a run is stopped after {limit_s} s"
    ))
}

/// Returns the results in all forms.
pub(super) fn report(compared: &Compared, header: String) -> Report {
    let charts = charts::all(compared);
    let mut texts = locks::all(compared);
    if !texts.is_empty() {
        let about = "Locks in the form of `lock_stat`, microseconds: of each class the places where it was waited for, then those that held it. \
             Spin locks that count, in a run of its own. A place is a line of this commit. Under our own ways (`space`) lookups and frees \
             meet in the page map, which has no lock. The lock of per-CPU memory is not among them: what waiting for it takes counts as \
             work.";
        texts.insert(0, about.to_string());
    }
    Report {
        csv: [tables::csv(compared), origins::csv(compared.hints.as_ref())].concat(),
        notes: charts.iter().map(|chart| format!("![{0}]({0})", chart.file)).collect(),
        charts,
        texts,
        ..Report::new(STEM, "The kernel's test suite on targets side by side", header, tables::all(compared))
    }
}
