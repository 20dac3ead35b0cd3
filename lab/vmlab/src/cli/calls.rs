//! `vmlab replay --calls`: the calls of a core inside a kernel, on the same core here.

use super::input::stem;
use super::{Form, out};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use vmlab_base::text::{counted, grouped};
use vmlab_replay::calls::{CallsRow, replay as run};
use vmlab_trace::calls;

/// Replays every recording, and prints how many addresses are the kernel's. Fails if anything differs.
pub(super) fn replay(files: &[PathBuf], form: Form) -> Result<()> {
    let mut first = None;
    for file in files {
        let shown = file.display();
        let name = stem(file);
        let lines = calls::read(open(file).with_context(|| format!("cannot read {shown}"))?);
        let row = lines.and_then(|lines| run(&name, lines)).with_context(|| shown.to_string())?;
        if form == Form::Json {
            out(&serde_json::to_string(&row)?)?;
        } else {
            text(&row, form == Form::Wide)?;
        }
        let failed = failed(&row).map(|why| format!("{name}: {why}"));
        first = first.or(failed);
    }
    match first {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

/// Returns the reason why a recording is not replayed as it was.
fn failed(row: &CallsRow) -> Option<String> {
    if row.differences > 0 {
        return Some(format!(
            "{} between the kernel's core and this one",
            counted(row.differences, "difference")
        ));
    }
    let cut = "the recording has no end: the kernel's buffer was full, or the file was cut";
    (!row.complete).then(|| cut.to_string())
}

/// Prints what was compared, and the first differences.
fn text(row: &CallsRow, wide: bool) -> Result<()> {
    let equal = match row.equal {
        all if all == row.addresses => "all equal".to_string(),
        some => format!("{} equal", grouped(some)),
    };
    let (cpus, calls) = (counted(row.cpus, "CPU"), counted(row.calls, "call"));
    let (addresses, requests) = (grouped(row.addresses), counted(row.requests, "request"));
    out(&format!(
        "{}: {cpus}, {calls}, {addresses} addresses, {equal}; {requests} of the core",
        row.recording
    ))?;
    if wide {
        for (call, &count) in &row.by_call {
            out(&format!("{}: {call}: {}", row.recording, grouped(count)))?;
        }
        for (cpu, &count) in row.by_cpu.iter().enumerate() {
            out(&format!("{}: on CPU {cpu}: {}", row.recording, grouped(count)))?;
        }
    }
    row.first.iter().try_for_each(|difference| out(&format!("{}: {difference}", row.recording)))
}
