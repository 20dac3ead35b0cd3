//! `vmlab replay --percpu`: replays the allocations inside percpu chunks.

use super::input::{Tables, read_table, stem};
use super::table::{Columns, Shown};
use super::{Form, lacks, out};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use std::path::PathBuf;
use va_percpu::config::{Linux612, Runs, Scan};
use vmlab_base::text::counted;
use vmlab_replay::JSON_VERSION;
use vmlab_replay::percpu::{PercpuTally, replay as run};
use vmlab_trace::percpu::PercpuTrace;
use vmlab_trace::vmallocinfo::Table;

/// One trace under one policy.
#[derive(Serialize)]
struct Row {
    version: u32,
    trace: String,
    policy: &'static str,
    #[serde(flatten)]
    tally: PercpuTally,
}

/// Replays every trace under every policy, and prints a row for each.
pub(super) fn replay(files: &[PathBuf], tables: &Tables, form: Form) -> Result<()> {
    let (mut rows, mut short) = (Vec::new(), None);
    for file in files {
        let shown = file.display();
        let mut trace = PercpuTrace::read(open(file).with_context(|| format!("cannot read {shown}"))?);
        let table = match tables.after(file) {
            Some(path) => read_table(&path, &mut trace.cut_short)?,
            None => Table::read(trace.areas.as_bytes()),
        };
        let name = stem(file);
        let all = [
            ("linux612", run::<Linux612>(&trace, &table)),
            ("scan", run::<Scan>(&trace, &table)),
            ("runs", run::<Runs>(&trace, &table)),
        ];
        for (policy, tally) in all {
            rows.push(Row {
                version: JSON_VERSION,
                trace: name.clone(),
                policy,
                tally: tally
                    .map_err(|error| lacks(&shown, &format!("{error:#}"), trace.cut_short.as_deref()))?,
            });
        }
        if let Some(why) = trace.cut_short {
            short.get_or_insert(format!(
                "{name}: the input ends early, {why}; the results are of what was read"
            ));
        }
    }
    if form == Form::Json {
        for row in &rows {
            out(&serde_json::to_string(row)?)?;
        }
    } else {
        table(&rows, form == Form::Wide)?;
    }
    match short {
        Some(why) => bail!("{why}"),
        None => Ok(()),
    }
}

fn table(rows: &[Row], wide: bool) -> Result<()> {
    let head = [
        ("trace", Shown::Always),
        ("policy", Shown::Always),
        ("allocs", Shown::Always),
        ("equal", Shown::Always),
        ("share", Shown::Always),
        ("lower", Shown::Always),
        ("higher", Shown::Always),
        ("other\nchunk", Shown::Always),
        ("failed", Shown::Always),
        ("first\nchunk", Shown::Wide),
        ("of these\nequal", Shown::Wide),
        ("frees\nunknown", Shown::Wide),
        ("chunks", Shown::Wide),
    ];
    let mut table = Columns::new(wide, 2, head);
    for Row { trace, policy, tally, .. } in rows {
        let share = 100.0 * tally.equal as f64 / tally.allocs.max(1) as f64;
        table.row([
            Cell::new(trace),
            Cell::new(policy),
            Cell::new(tally.allocs),
            Cell::new(tally.equal),
            Cell::new(format!("{share:.2} %")),
            Cell::new(tally.lower),
            Cell::new(tally.higher),
            Cell::new(tally.elsewhere),
            Cell::new(tally.failed),
            Cell::new(tally.first),
            Cell::new(tally.first_equal),
            Cell::new(tally.frees_unknown),
            Cell::new(tally.chunks),
        ]);
    }
    table.print()?;
    let mut last = "";
    for Row { trace, tally, .. } in rows {
        if trace != last {
            out(&format!(
                "{trace}: what was allocated before the first event is not known; the first {} of the dynamic part are taken to be in use, \
                 and {} that the trace never allocated did nothing",
                counted(tally.assumed_bytes, "byte"),
                counted(tally.frees_unknown, "free")
            ))?;
        }
        last = trace;
    }
    Ok(())
}
