//! `vmlab whatif`: traces under several policies, side by side.

use super::input::{Input, Tables};
use super::output::output;
use super::selected::Selected;
use super::table::{align, plain};
use super::{choice, out};
use anyhow::Result;
use comfy_table::Cell;
use serde::Serialize;
use std::path::PathBuf;
use vmlab_base::choice::Choice;
use vmlab_base::text::{bytes, counted, duration, grouped};
use vmlab_replay::run_space::{Policy, nodes_of};
use vmlab_replay::whatif::{AREA_NS, FLUSH_NS, Pinned, Row, pinned, record, run};
use vmlab_trace::Trace;
use vmlab_view::report::film::Film;
use vmlab_view::report::{Gain, Map, Part, page};

/// The version of the objects that `--json` prints.
const VERSION: u32 = 1;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Recordings and traces; - is standard input
    #[arg(required = true, value_name = "RECORDING")]
    files: Vec<PathBuf>,
    /// Policies to compare, the first with the others (default: Linux of the recording's version, onelock52, standard)
    #[arg(long, value_parser = choice::<Policy>(), value_delimiter = ',', value_name = "NAME")]
    policy: Vec<Policy>,
    /// CPUs of the machine, and nodes of the policies that have them (default: the CPUs of the trace)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(va_space::NODES_LIMIT)))]
    cpus: Option<u32>,
    /// Print one JSON object per recording instead of a table
    #[arg(long)]
    json: bool,
    /// Write a page with a film under each policy, which show the same time
    #[arg(long, value_name = "FILE")]
    films: Option<PathBuf>,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    tables: Tables,
}

/// A recording under the policies.
#[derive(Serialize)]
struct Compared {
    version: u32,
    recording: String,
    pinned: Pinned,
    policies: Vec<Row>,
    verdict: String,
    /// The counted part, in words; none if all is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<String>,
}

pub(super) fn run_all(args: &Args) -> Result<()> {
    let read = |file: &PathBuf| Input::read(file, &args.tables)?.part_of(file, &args.selected);
    let inputs = args.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let page = output(args.films.as_deref(), &args.tables.inputs(&args.files))?;
    let mut parts = Vec::new();
    for input in &inputs {
        let (trace, table) = (&input.trace, &input.table);
        let mut played = Vec::new();
        let compared = compare(input, &args.policy, args.cpus, |policy, cpus| {
            if page.is_none() {
                return run(trace, table, policy, cpus);
            }
            let (row, trace) = record(trace, table, policy, cpus)?;
            played.push((policy, trace));
            Ok(row)
        })?;
        let before = if inputs.len() > 1 { format!("{}: ", input.name) } else { String::new() };
        for ((policy, trace), row) in played.iter().zip(&compared.policies) {
            parts.push(film((*policy, trace), row, &compared.verdict, &before)?);
        }
        if args.json {
            out(&serde_json::to_string(&compared)?)?;
        } else {
            print(&compared)?;
        }
    }
    if let Some(page) = page {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        let path = page.write(&self::page(&format!("whatif: {}", names.join(", ")), parts))?;
        let films = format!("films: {}", path.canonicalize().unwrap_or(path).display());
        if args.json { super::print_note(&films) } else { out(&films)? }
    }
    super::ends_early(&inputs)
}

/// Returns the film of a recording under a policy, with its figures and the verdict of all. `before` is what stands
/// before the name of the policy.
fn film((policy, trace): (Policy, &Trace), row: &Row, verdict: &str, before: &str) -> Result<Part> {
    let figures = MEASURES.map(|(name, cell)| format!("{name} {}", cell(row)));
    let notes = vec![
        format!("The same requests under {}: {}.", row.policy, policy.about()),
        format!("{}.", figures.join(" · ")),
        verdict.to_string(),
    ];
    Ok(Part::Map(Map { name: format!("{before}{}", row.policy), film: Film::linked(trace, policy)?, notes }))
}

/// Runs a recording under policies, each once: those that are named, or the usual ones.
fn compare(
    input: &Input,
    named: &[Policy],
    cpus: Option<u32>,
    mut run: impl FnMut(Policy, u32) -> Result<Row>,
) -> Result<Compared> {
    let usual = Policy::of(&input.trace).usual();
    let cpus = cpus.unwrap_or_else(|| nodes_of(&input.trace));
    let mut policies: Vec<Row> = Vec::new();
    for &policy in if named.is_empty() { &usual[..] } else { named } {
        if policies.iter().all(|row| row.policy != policy.name()) {
            policies.push(run(policy, cpus)?);
        }
    }
    let verdict = verdict(&policies);
    Ok(Compared {
        version: VERSION,
        recording: input.name.clone(),
        pinned: pinned(&input.trace),
        policies,
        verdict,
        part: input.part.clone(),
    })
}

/// Returns a recording under the usual policies, for a report.
pub(super) fn gain(input: &Input) -> Result<Gain> {
    let Compared { recording, policies, verdict, .. } =
        compare(input, &[], None, |policy, cpus| run(&input.trace, &input.table, policy, cpus))?;
    Ok(Gain { name: recording, policies, verdict })
}

/// A measure of a policy: its name, and the cell of a row.
type Measure = (&'static str, fn(&Row) -> String);

const MEASURES: [Measure; 12] = [
    ("nodes", |row| row.nodes.to_string()),
    ("requests", |row| grouped(row.requests)),
    ("requests that failed", |row| grouped(row.failed)),
    ("failed in the kernel alone", |row| grouped(row.saved)),
    ("span at its peak", |row| bytes(row.span_bytes)),
    ("most holes", |row| grouped(row.holes)),
    ("kept apart, lazy and pooled, at its peak", |row| bytes(row.kept_bytes)),
    ("purges", |row| grouped(row.purges)),
    ("flushes of all CPUs", |row| grouped(row.flushes)),
    ("areas a flush", |row| per_flush(row)),
    ("modelled stall, all together", |row| duration(row.stall_ns)),
    ("modelled stall, the longest", |row| duration(row.longest_stall_ns)),
];

fn per_flush(row: &Row) -> String {
    match row.flushes {
        0 => "-".to_string(),
        flushes => format!("{:.1}", row.purged as f64 / flushes as f64),
    }
}

fn print(compared: &Compared) -> Result<()> {
    let Compared { recording, pinned, policies, verdict, .. } = compared;
    let mut table = plain();
    table.set_header([recording.as_str()].into_iter().chain(policies.iter().map(|row| row.policy)));
    for (name, cell) in MEASURES {
        table.add_row([Cell::new(name)].into_iter().chain(policies.iter().map(|row| Cell::new(cell(row)))));
    }
    align(&mut table, 1);
    out(&table.to_string())?;
    if pinned.areas > 0 {
        out(&format!(
            "pinned under every policy: {} from before the recording, {}, up to {} into the window",
            counted(pinned.areas, "area"),
            bytes(pinned.bytes),
            bytes(pinned.span_bytes)
        ))?;
    }
    if let Some(over) = policies.iter().map(|row| row.passed_over).max().filter(|&over| over > 0) {
        out(&format!("passed over: {} of areas that no event or table has", counted(over, "event")))?;
    }
    out(&format!(
        "a stall is modelled: {} us for each CPU of a flush and {AREA_NS} ns for each area that a purge returns",
        FLUSH_NS / 1000
    ))?;
    if let Some(part) = &compared.part {
        out(part)?;
    }
    out(&format!("verdict: {verdict}"))
}

/// Says in a sentence what another policy would have changed, beside the first.
fn verdict(policies: &[Row]) -> String {
    let Some((first, others)) = policies.split_first() else { return "no policy was run.".into() };
    // Spans that are alike, as far as five bits tell, do not decide.
    let coarse = |bytes: u64| {
        let low = bytes.checked_ilog2().unwrap_or(0).saturating_sub(4);
        bytes >> low << low
    };
    let score = |row: &Row| (row.failed, coarse(row.span_bytes), row.longest_stall_ns, row.stall_ns);
    let failures = match first.failed {
        0 => format!("no request fails under {}", first.policy),
        failed => format!("{} under {}", counted(failed, "request") + " fail", first.policy),
    };
    let Some(best) = others.iter().min_by_key(|row| score(row)) else { return failures + "." };
    let ratio = |ours: u64, theirs: u64| match (ours, theirs) {
        (ours, theirs) if ours.abs_diff(theirs) <= ours.max(theirs) / 20 => "as much".to_string(),
        (0, _) => "none".to_string(),
        (ours, theirs) if theirs >= ours => format!("{:.1} times less", theirs as f64 / ours as f64),
        (_, 0) => "more than none".to_string(),
        (ours, theirs) => format!("{:.1} times more", ours as f64 / theirs as f64),
    };
    let saved = match (first.failed, best.failed) {
        (0, 0) => failures,
        (first_failed, failed) if failed < first_failed => {
            format!(
                "{failures}, and {} of these are met under {}",
                grouped(first_failed - failed),
                best.policy
            )
        }
        (_, failed) => format!("{failures}, and {} under {}", grouped(failed), best.policy),
    };
    format!(
        "{saved}; {} needs {} address space at the peak ({}, {} under {}), {} of it kept apart, and its longest modelled \
         stall is {} ({}).",
        best.policy,
        ratio(best.span_bytes, first.span_bytes),
        bytes(best.span_bytes),
        bytes(first.span_bytes),
        first.policy,
        ratio(best.kept_bytes, first.kept_bytes),
        duration(best.longest_stall_ns),
        ratio(best.longest_stall_ns, first.longest_stall_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_failures_and_the_policy_with_the_least_span() {
        let row = |policy, failed, span_bytes, longest_stall_ns| Row {
            policy,
            failed,
            span_bytes,
            kept_bytes: 1 << 20,
            longest_stall_ns,
            ..Row::default()
        };
        let rows = [row("a", 0, 4 << 20, 9000), row("b", 0, 2 << 20, 9000), row("c", 1, 1 << 20, 0)];
        let text = verdict(&rows);
        assert!(text.starts_with("no request fails under a; b needs 2.0 times less address space"), "{text}");
        assert!(
            text.contains("(2 MiB, 4 MiB under a), as much of it kept apart")
                && text.contains("9.00 us (as much)")
        );
        let text = verdict(&[row("a", 3, 4, 1), row("b", 1, 4, 0)]);
        assert!(
            text.starts_with("3 requests fail under a, and 2 of these are met under b; b needs as much"),
            "{text}"
        );
        assert_eq!(verdict(&rows[..1]), "no request fails under a.");
    }
}
