//! `vmlab replay --diff`: the differences between the kernel and the policies, and their causes.

use super::input::{NO_ADDRESS, policy_of, stem};
use super::table::{Columns, Shown, align, plain};
use super::{OutputFile, ReplayArgs, lacks, offsets, out, print_note};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;
use va_space::NODES_LIMIT;
use vmlab_base::text::{counted, grouped};
use vmlab_replay::diff::cause::{CAUSES, Cause};
use vmlab_replay::diff::recording::{Areas, Recording};
use vmlab_replay::diff::{Divergence, Options, Report, VERSION, run};

/// The most differences to list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedMax(usize);

/// The most differences that one replay lists, some 200 bytes each.
const LISTED_LIMIT: usize = 1 << 20;

impl FromStr for ListedMax {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self(LISTED_LIMIT)),
            _ => text
                .parse()
                .map(|count: usize| Self(count.min(LISTED_LIMIT)))
                .map_err(|_| format!("{text} is neither a number nor all")),
        }
    }
}

/// One recording under one policy, as `--json` prints it.
#[derive(Serialize)]
struct Row<'a> {
    version: u32,
    recording: &'a str,
    #[serde(flatten)]
    report: &'a Report,
    differ: u64,
    unknowable: u64,
}

/// Replays every recording under every selected policy.
pub(super) fn replay(args: &ReplayArgs, differences: ListedMax) -> Result<()> {
    let mut short = None;
    for file in &args.files {
        let recording = read(args, file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = stem(file);
        if recording.allocs() == 0 {
            let selection = args.selected.selection()?;
            let of = if selection.is_all() { "among its events".to_string() } else { selection.to_string() };
            let what = format!("no allocation {of}");
            return Err(lacks(file.display(), &what, recording.cut_short.as_deref()));
        }
        let page = args.out.as_ref().map(|dir| page_file(dir, &name)).transpose()?;
        let options = Options {
            resync: !args.no_resync,
            cpus: args.nodes.unwrap_or(recording.cpus).clamp(1, NODES_LIMIT),
            differences_max: differences.0,
            kernel: policy_of(args.tables.kernel.as_deref().unwrap_or(&recording.kernel))?,
        };
        let policies = args.policy.map_or(options.kernel.usual().to_vec(), |policy| vec![policy]);
        let reports =
            policies.iter().map(|&policy| run(&recording, policy, options)).collect::<Result<Vec<_>>>()?;
        if args.json {
            for report in &reports {
                let row = Row {
                    version: VERSION,
                    recording: &name,
                    report,
                    differ: report.columns.differ(),
                    unknowable: report.unknowable(),
                };
                out(&serde_json::to_string(&row)?)?;
            }
        } else {
            print(&name, &recording, &reports, args.wide)?;
        }
        let selection = args.selected.selection()?;
        if !selection.is_all() {
            let allocs = counted(recording.allocs(), "allocation");
            let line = format!("{name}: counted: {allocs}, {selection}; the others are replayed");
            if args.json { print_note(&line) } else { out(&line)? }
        }
        if let Some(page) = page {
            let path = page.write(&markdown(&name, &recording, &reports))?;
            let written = format!("written: {}", path.display());
            if args.json { print_note(&written) } else { out(&written)? }
        }
        if let Some(why) = recording.cut_short {
            short.get_or_insert(format!(
                "{name}: the input ends early, {why}; the results are of what was read"
            ));
        }
    }
    short.map_or(Ok(()), |why| bail!("{why}"))
}

fn page_file(dir: &Path, name: &str) -> Result<OutputFile> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    OutputFile::open(&dir.join(format!("{name}.md")))
}

/// Reads a recording, and the tables beside it unless it contains them.
fn read(args: &ReplayArgs, file: &Path) -> Result<Recording> {
    let selection = args.selected.selection()?;
    let mut recording = Recording::read_part(open(file)?, &selection);
    let shown = file.display();
    if recording.lost > 0 {
        print_note(&format!(
            "{shown}: the recorder lost {}, so that answers after that mean little",
            counted(recording.lost, "event")
        ));
    }
    if recording.bad > 0 {
        print_note(&format!("{shown}: {} cannot be read", counted(recording.bad, "line")));
    }
    if let Some(path) = args.tables.before(file) {
        recording.begin = Some(table(&path, &mut recording.cut_short)?);
    }
    if let Some(path) = args.tables.after(file) {
        recording.end = Some(table(&path, &mut recording.cut_short)?);
    }
    let hashed = |areas: &Areas| areas.areas.is_empty() && areas.bad > 0;
    if recording.begin.as_ref().is_some_and(hashed) {
        bail!("{NO_ADDRESS}");
    }
    Ok(recording)
}

/// Reads a table; if it ends early, the whole input does.
fn table(path: &Path, cut_short: &mut Option<String>) -> Result<Areas> {
    let areas = Areas::read(open(path).with_context(|| path.display().to_string())?);
    if let Some(why) = &areas.cut_short {
        cut_short.get_or_insert(format!("{} {why}", path.display()));
    }
    Ok(areas)
}

/// Returns the share of equal answers among those that a recording can determine.
fn share(report: &Report) -> String {
    let knowable = report.allocs - report.unknowable();
    let same = report.columns.same();
    format!("{:.2} %", 100.0 * same as f64 / knowable.max(1) as f64)
}

const HEAD: [(&str, Shown); 10] = [
    ("policy", Shown::Always),
    ("nodes", Shown::Wide),
    ("allocs", Shown::Always),
    ("equal", Shown::Always),
    ("from\na pool", Shown::Always),
    ("lower", Shown::Always),
    ("higher", Shown::Always),
    ("failed", Shown::Always),
    ("not\nknowable", Shown::Always),
    ("equal of\nthe rest", Shown::Always),
];

fn cells(report: &Report) -> [String; 10] {
    [
        report.policy.to_string(),
        report.nodes.to_string(),
        grouped(report.allocs),
        grouped(report.columns.equal),
        grouped(report.equal_from_pool),
        grouped(report.columns.lower),
        grouped(report.columns.higher),
        format!("{}+{}", report.columns.failed_both, report.columns.failed_differs),
        grouped(report.unknowable()),
        share(report),
    ]
}

/// Returns the causes that occur in any report.
fn causes(reports: &[Report]) -> impl Iterator<Item = Cause> {
    CAUSES.into_iter().filter(|cause| reports.iter().any(|report| report.causes.contains_key(cause)))
}

fn count(report: &Report, cause: Cause) -> String {
    grouped(report.causes.get(&cause).copied().unwrap_or(0))
}

/// Returns the category of a cause.
fn kind(cause: Cause) -> &'static str {
    match (cause.is_policy(), cause.is_unknowable()) {
        (true, _) => "policy",
        (_, true) => "not knowable",
        _ => "open",
    }
}

fn print(name: &str, recording: &Recording, reports: &[Report], wide: bool) -> Result<()> {
    let mut table = Columns::new(wide, 1, HEAD);
    for report in reports {
        table.row(cells(report).map(Cell::new));
    }
    table.print()?;
    let mut table = plain();
    let names = reports.iter().map(|report| report.policy);
    table.set_header(["cause", "of"].into_iter().chain(names));
    for cause in causes(reports) {
        let counts = reports.iter().map(|report| count(report, cause));
        table.add_row([cause.text().to_string(), kind(cause).to_string()].into_iter().chain(counts));
    }
    align(&mut table, 2);
    out(&table.to_string())?;
    for line in notes(recording, reports) {
        out(&format!("{name}: {line}"))?;
    }
    offsets::print(name, reports)?;
    for report in reports {
        for divergence in &report.divergences {
            out(&format!("{name}: {}: {}", report.policy, shown(divergence)))?;
        }
        let left = report.columns.differ() - report.divergences.len() as u64;
        if left > 0 {
            out(&format!(
                "{name}: {}: {} more; --diff=all lists all",
                report.policy,
                counted(left, "difference")
            ))?;
        }
    }
    Ok(())
}

/// Formats a difference as a line.
fn shown(divergence: &Divergence) -> String {
    let Divergence { number, line, ns, cpu, size, align, kernel, policy, why, .. } = divergence;
    let at = |address: &Option<u64>| address.map_or("nothing".into(), |at| format!("{at:#x}"));
    let (seconds, micros) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
    format!(
        "allocation {number} (line {line}, {seconds}.{micros:06} s, CPU {cpu}): {size} bytes aligned to {align}: kernel {}, policy {}: {why}",
        at(kernel),
        at(policy)
    )
}

/// Returns sentences about known and unknown facts.
fn notes(recording: &Recording, reports: &[Report]) -> Vec<String> {
    let Some(report) = reports.first() else { return Vec::new() };
    let known = &report.known;
    let mut notes = Vec::new();
    if reports.iter().any(|report| report.causes_incomplete) {
        notes.push(
            "too many differences to look for the causes of all: those of the later ones may be others"
                .into(),
        );
    }
    if known.table {
        notes.push(format!(
            "before the trace: {} and {} lazy, the node of {} of these by the order of the lines; {} not usable",
            counted(known.busy, "busy area"),
            grouped(known.lazy),
            grouped(known.lazy_with_node),
            counted(known.unusable, "line")
        ));
        let pools = if known.pools {
            "pools were empty, as a mark says"
        } else {
            "what the pools held is not known, and taken to be nothing; vmlab record --drain-pools empties them first"
        };
        notes.push(format!(
            "{pools}; who allocated the busy areas, the shape of the tree of holes and the inside of vmap blocks are not known"
        ));
    } else {
        notes.push(
            "no table before the trace: the space is taken to be empty; vmlab record writes one, and --before names one"
                .into(),
        );
    }
    notes.push(format!(
        "{} returned {} by the events, {} by the ledger; {} of unknown areas; {} with numbers that no allocator accepts",
        counted(report.purges, "purge"),
        counted(report.purged, "area"),
        grouped(report.purged_ledger),
        counted(report.frees_unknown, "free"),
        counted(report.malformed, "event")
    ));
    if report.purges_begun > 0 {
        notes.push(format!(
            "supplied: the beginning of {}, at the free that the count of areas shows",
            counted(report.purges_begun, "purge")
        ));
    }
    if report.chunks > 0 {
        notes.push(format!(
            "{} created; the top-down search finds the base of {}",
            counted(report.chunks, "percpu chunk"),
            report.chunks_equal
        ));
    }
    if let Some(end) = &report.end {
        notes.push(format!(
            "of {} in the table after, {} stand so in the books of the kernel, and {} in these alone",
            counted(end.areas, "area"),
            grouped(end.agree),
            grouped(end.only_in_ledger)
        ));
    }
    if recording.lost > 0 {
        notes.push(format!("{} lost by the recorder", counted(recording.lost, "event")));
    }
    let how = if report.resync {
        "after each difference the policy is put right"
    } else {
        "each side goes on with what it allocated"
    };
    notes.push(how.into());
    notes
}

/// Returns the page for `results`.
fn markdown(name: &str, recording: &Recording, reports: &[Report]) -> String {
    let mut page = format!("# {name}: a kernel and the policies, address by address\n\n");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let _ = writeln!(page, "Computed by `vmlab {}`; nothing in it is timed.\n", words.join(" "));
    for line in notes(recording, reports) {
        let _ = writeln!(page, "- {line}");
    }
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let line =
        |columns: usize, left: usize| format!("|{}{}\n", "---|".repeat(left), "---:|".repeat(columns - left));
    page += "\n## Addresses\n\n";
    page += &row(&HEAD.map(|(head, _)| head.replace('\n', " ")));
    page += &line(HEAD.len(), 1);
    for report in reports {
        page += &row(&cells(report));
    }
    page += "\n## Causes of the answers that differ\n\n";
    let names = reports.iter().map(|report| report.policy.to_string());
    page += &row(&["cause".to_string(), "of".to_string()].into_iter().chain(names).collect::<Vec<_>>());
    page += &line(2 + reports.len(), 2);
    for cause in causes(reports) {
        let counts = reports.iter().map(|report| count(report, cause));
        let head = [cause.text().to_string(), kind(cause).to_string()];
        page += &row(&head.into_iter().chain(counts).collect::<Vec<_>>());
    }
    for report in reports.iter().filter(|report| !report.divergences.is_empty()) {
        let _ = write!(page, "\n## The first differences of `{}`\n\n", report.policy);
        for divergence in &report.divergences {
            let _ = writeln!(page, "- {}", shown(divergence));
        }
    }
    page += &offsets::markdown(reports);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_differences_or_all() {
        assert_eq!(["0", "7", "all"].map(|text| text.parse::<ListedMax>().unwrap().0), [0, 7, LISTED_LIMIT]);
        assert!("some".parse::<ListedMax>().is_err());
    }
}
