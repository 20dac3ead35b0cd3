//! The input of a replay: a trace, the table of areas beside it, and the notes about both.

use super::print_note;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use vmlab_base::text::{counted, grouped};
use vmlab_replay::Tally;
use vmlab_trace::shipped::Shipped;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Trace, decompress, open};

/// A trace and its table, under the name that the results use.
pub(super) struct Input {
    pub(super) name: String,
    /// Description of the recording, if known.
    pub(super) about: &'static str,
    pub(super) trace: Trace,
    pub(super) table: Table,
}

impl Input {
    /// Opens a trace that is built into the program.
    pub(super) fn shipped(shipped: &Shipped) -> Result<Self> {
        Ok(Self {
            name: shipped.name.to_string(),
            about: shipped.about,
            trace: Trace::read(decompress(shipped.trace)?),
            table: Table::read(shipped.vmallocinfo),
        })
    }

    /// Reads a trace, and `vmallocinfo` or else the table beside the trace. Prints on stderr what could not be read.
    pub(super) fn read(file: &Path, vmallocinfo: Option<&Path>) -> Result<Self> {
        let shown = file.display();
        let trace = Trace::read(open(file).with_context(|| format!("cannot read {shown}"))?);
        Self::of(file, trace, vmallocinfo)
    }

    /// The same, for a trace that is already read.
    pub(super) fn of(file: &Path, trace: Trace, vmallocinfo: Option<&Path>) -> Result<Self> {
        let shown = file.display();
        check_replayable(&trace).with_context(|| shown.to_string())?;
        if trace.lost > 0 {
            print_note(&format!(
                "{shown}: the recorder lost {}, so that answers after that mean little; use a larger buffer",
                counted(trace.lost, "event")
            ));
        }
        if trace.bad > 0 {
            print_note(&format!(
                "{shown}: {} cannot be read, the first of them:",
                counted(trace.bad, "event line")
            ));
            for (number, text) in &trace.bad_lines {
                print_note(&format!("{shown}: line {number}: {text}"));
            }
        }
        let table = match vmallocinfo.map(Path::to_path_buf).or_else(|| beside(file)) {
            Some(path) => read_table(&path)?,
            None => trace
                .recording
                .as_ref()
                .map_or_else(Table::default, |recording| Table::read(recording.table().as_bytes())),
        };
        Ok(Self { name: stem(file), about: "", trace, table })
    }

    /// Returns the counts of the trace's events.
    pub(super) fn census(&self) -> String {
        let trace = &self.trace;
        format!(
            "{}: {} that changed the address space, {} that did not, {}, {} that could not be read.",
            counted(trace.lines, "line"),
            counted(trace.events.len() as u64, "event"),
            counted(trace.percpu, "percpu event"),
            counted(trace.others + trace.comments, "other line"),
            counted(trace.bad, "event line")
        )
    }
}

/// Returns a sentence for each fact that a replay inferred, or could not use.
pub(super) fn inferred(tally: &Tally) -> Vec<String> {
    let mut notes = Vec::new();
    if tally.chunks > 0 {
        let size = match tally.chunks_guessed {
            0 => "size from vmallocinfo",
            _ => "size unknown and taken as 2 MiB, for lack of a vmallocinfo that lists one",
        };
        notes.push(format!(
            "{} inferred, {size}; the top-down search finds the same base for {}",
            counted(tally.chunks, "percpu chunk"),
            tally.chunks_equal
        ));
    }
    let silent = tally.inferred - tally.chunks;
    if silent > 0 {
        notes.push(format!(
            "{} freed or reused on a way without events: there before the trace, or a vm_map_ram block",
            counted(silent, "area")
        ));
    }
    if tally.malformed > 0 {
        notes.push(format!("{} with numbers that no allocator accepts", counted(tally.malformed, "event")));
    }
    notes
}

/// Fails for a trace that cannot be replayed: without an event, or with too many.
fn check_replayable(trace: &Trace) -> Result<()> {
    if trace.too_many {
        bail!(
            "more than {} vmalloc events, the most that one replay takes; give it a part of the trace",
            grouped(trace.events.len() as u64)
        );
    }
    if trace.events.is_empty() {
        bail!("no vmalloc event: {}", why_empty(trace));
    }
    Ok(())
}

fn why_empty(trace: &Trace) -> String {
    match (&trace.cut_short, trace.lines, trace.bad) {
        (Some(why), ..) => format!("reading ended {why}"),
        (None, 0, _) => "it is empty".to_string(),
        (None, lines, 0) => format!("{} read, and none is one", counted(lines, "line")),
        (None, lines, bad) => {
            format!(
                "{} read, {} of one that cannot be understood",
                counted(lines, "line"),
                counted(bad, "line")
            )
        }
    }
}

pub(super) fn read_table(path: &Path) -> Result<Table> {
    let shown = path.display();
    let table = Table::read(open(path).with_context(|| format!("cannot read {shown}"))?);
    if table.bad > 0 {
        print_note(&format!(
            "{shown}: not of vmallocinfo, or without addresses: {}",
            counted(table.bad, "line")
        ));
    }
    Ok(table)
}

/// Returns the file's name without `.gz`, `.zst`, `.ftrace`, `.txt`, `.jsonl`.
pub(super) fn stem(file: &Path) -> String {
    if file == Path::new("-") {
        return "stdin".to_string();
    }
    let mut name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    for end in [".gz", ".zst", ".ftrace", ".txt", ".jsonl"] {
        if let Some(short) = name.strip_suffix(end).filter(|short| !short.is_empty()) {
            name = short.to_string();
        }
    }
    name
}

/// Returns `NAME.vmallocinfo` beside the trace, if it exists.
pub(super) fn beside(file: &Path) -> Option<PathBuf> {
    let beside = file.with_file_name(format!("{}.vmallocinfo", stem(file)));
    beside.is_file().then_some(beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_too_many_events_is_reported_in_one_line() {
        let event = "free_vmap_area_noflush: va_start=0x1000\n".repeat(4);
        assert!(check_replayable(&Trace::read_at_most(event.as_bytes(), 4)).is_ok());
        let error = check_replayable(&Trace::read_at_most(event.as_bytes(), 3)).unwrap_err().to_string();
        assert!(error.starts_with("more than 3 vmalloc events") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn the_name_of_a_trace_is_the_file_name_without_extensions() {
        for (file, name) in [
            ("a/boot.ftrace.gz", "boot"),
            ("boot.zst", "boot"),
            ("boot.v2.txt", "boot.v2"),
            ("boot.jsonl.gz", "boot"),
            ("trace", "trace"),
            (".gz", ".gz"),
            ("-", "stdin"),
        ] {
            assert_eq!(stem(Path::new(file)), name);
        }
    }
}
