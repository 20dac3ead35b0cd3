//! The input of a replay: a trace, the table of areas beside it, and the notes about both.

use super::print_note;
use super::selected::Selected;
use crate::reading::open;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use vmlab_base::text::{counted, grouped};
use vmlab_replay::Tally;
use vmlab_replay::policy::Policy;
use vmlab_trace::shipped::Shipped;
use vmlab_trace::vmallocinfo::Table;
use vmlab_trace::{Recording, Trace, decompress};

/// The reason why a table before a trace is of no use.
pub(super) const NO_ADDRESS: &str =
    "the table before has no address that can be used: read it as root, with kernel.kptr_restrict=1";

/// The tables of areas of a trace's machine, and its kernel.
#[derive(clap::Args, Debug, Default)]
pub(super) struct Tables {
    /// The machine's /proc/vmallocinfo before the trace, whose areas stand when it begins (default:
    /// NAME.before.vmallocinfo beside it, or in the recording)
    #[arg(long, value_name = "FILE")]
    pub(super) before: Option<PathBuf>,
    /// The machine's /proc/vmallocinfo after the trace, with callers and the size of percpu chunks (2 MiB without it;
    /// default: NAME.vmallocinfo beside it, or in the recording); for every trace
    #[arg(long, value_name = "FILE")]
    pub(super) vmallocinfo: Option<PathBuf>,
    /// Release of the kernel, whose pools changed with 6.16 (default: as the recording says, or 6.12)
    #[arg(long, value_name = "RELEASE")]
    pub(super) kernel: Option<String>,
}

impl Tables {
    /// Returns the file of the table before a trace, if there is one.
    pub(super) fn before(&self, file: &Path) -> Option<PathBuf> {
        self.before.clone().or_else(|| beside(file, "before.vmallocinfo"))
    }

    /// Returns the file of the table after a trace, if there is one.
    pub(super) fn after(&self, file: &Path) -> Option<PathBuf> {
        self.vmallocinfo.clone().or_else(|| beside(file, "vmallocinfo"))
    }

    /// Returns these files, and those of their tables.
    pub(super) fn inputs(&self, files: &[PathBuf]) -> Vec<PathBuf> {
        let tables = files.iter().flat_map(|file| [self.before(file), self.after(file)]);
        tables.flatten().chain(files.iter().cloned()).collect()
    }

    /// Returns true if an option names a table or a kernel.
    pub(super) fn is_some(&self) -> bool {
        self.before.is_some() || self.vmallocinfo.is_some() || self.kernel.is_some()
    }

    /// Fails if `--kernel` is no release.
    pub(super) fn check(&self) -> Result<()> {
        policy_of(self.kernel.as_deref().unwrap_or_default()).map(|_| ())
    }
}

/// Returns the policy of a release.
pub(super) fn policy_of(release: &str) -> Result<Policy> {
    Policy::of_release(release).with_context(|| format!("{release} is no release of a kernel, such as 6.18"))
}

/// A trace and its table, under the name that the results use.
pub(super) struct Input {
    pub(super) name: String,
    /// Description of the recording, if known.
    pub(super) about: &'static str,
    pub(super) trace: Trace,
    pub(super) table: Table,
    /// The counted part, in words; none if all is counted.
    pub(super) part: Option<String>,
    /// The addresses of areas that were touched after the end of the part, ascending.
    pub(super) later: Vec<u64>,
}

impl Input {
    /// Opens a trace that is built into the program.
    pub(super) fn shipped(shipped: &Shipped) -> Result<Self> {
        Ok(Self {
            name: shipped.name.to_string(),
            about: shipped.about,
            trace: Trace::read(decompress(shipped.trace)?),
            table: Table::read(shipped.vmallocinfo),
            part: None,
            later: Vec::new(),
        })
    }

    /// Reads a trace, and the tables of its two ends, as far as there are. Prints on stderr what could not be read.
    pub(super) fn read(file: &Path, tables: &Tables) -> Result<Self> {
        let shown = file.display();
        let trace = Trace::read(open(file).with_context(|| format!("cannot read {shown}"))?);
        Self::of(file, trace, tables)
    }

    /// The same, for a trace that is already read.
    pub(super) fn of(file: &Path, mut trace: Trace, tables: &Tables) -> Result<Self> {
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
        tables.check()?;
        if let Some(kernel) = &tables.kernel {
            trace.release.clone_from(kernel);
        }
        let recording = trace.recording.as_deref();
        let recorded = |of: fn(&Recording) -> &str| {
            let text = recording.map(of).filter(|text| !text.is_empty());
            text.map(|text| Table::read(text.as_bytes()))
        };
        let table = match tables.after(file) {
            Some(path) => read_table(&path, &mut trace.cut_short)?,
            None => recorded(Recording::table).unwrap_or_default(),
        };
        let before = match tables.before(file) {
            Some(path) => Some(read_table(&path, &mut trace.cut_short)?),
            None => recorded(|recording| &recording.begin),
        };
        if let Some(before) = before {
            if before.areas == 0 && before.bad > 0 {
                bail!("{shown}: {NO_ADDRESS}");
            }
            trace.stand_on(&before);
        }
        Ok(Self { name: stem(file), about: "", trace, table, part: None, later: Vec::new() })
    }

    /// The same, of which the selected events are counted. The trace ends with the selected time, and its table has what
    /// was there then, as far as it shows that.
    pub(super) fn part_of(self, file: &Path, selected: &Selected) -> Result<Self> {
        let Self { mut trace, mut table, .. } = self;
        let selection = selected.selection()?;
        let events = trace.events.len() as u64;
        let later = trace.narrow(&selection).with_context(|| file.display().to_string())?;
        table.forget(&later);
        let part = (!selection.is_all()).then(|| {
            let all = counted(events, "event");
            format!(
                "counted: {} of {all}, {selection}; the others are replayed",
                grouped(trace.counted_events())
            )
        });
        let mut later: Vec<u64> = later.into_iter().collect();
        later.sort_unstable();
        Ok(Self { trace, table, part, later, ..self })
    }

    /// Returns the counts of the trace's events.
    pub(super) fn census(&self) -> String {
        let trace = &self.trace;
        let stood = match trace.standing.len() {
            0 => String::new(),
            count => {
                let lazy = trace.standing.iter().filter(|area| area.lazy).count() as u64;
                format!(" {} stood before, {} of them lazy.", counted(count as u64, "area"), grouped(lazy))
            }
        };
        format!(
            "{}: {} that changed the address space, {} that did not, {}, {} that could not be read.{stood}",
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
            "more than {} vmalloc events and marks, the most that one replay takes; give it a part of the trace",
            grouped((trace.events.len() + trace.marks.len()) as u64)
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

/// Reads the table of a trace. If it ends early, the whole input does.
pub(super) fn read_table(path: &Path, cut_short: &mut Option<String>) -> Result<Table> {
    let table = Table::read(open(path).with_context(|| format!("cannot read {}", path.display()))?);
    note_bad(path, &table);
    if let Some(why) = &table.cut_short {
        cut_short.get_or_insert(format!("{} {why}", path.display()));
    }
    Ok(table)
}

/// Prints on stderr how many lines of a table could not be read.
pub(super) fn note_bad(path: &Path, table: &Table) {
    if table.bad > 0 {
        let lines = counted(table.bad, "line");
        print_note(&format!("{}: not of vmallocinfo, or without addresses: {lines}", path.display()));
    }
}

/// Returns true, and prints which part of the result is missing, if an input is no file: only a file can be read again.
pub(super) fn is_read_once(path: &Path, lacking: &str) -> bool {
    let once = !std::fs::metadata(path).is_ok_and(|file| file.is_file());
    if once {
        print_note(&format!(
            "{}: standard input and pipes are read once, and {lacking} need a second time: name a file to have them",
            path.display()
        ));
    }
    once
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

/// Returns the file `NAME.end` beside the trace, compressed or not.
fn beside(file: &Path, end: &str) -> Option<PathBuf> {
    let name = |packed: &str| file.with_file_name(format!("{}.{end}{packed}", stem(file)));
    ["", ".gz", ".zst"].map(name).into_iter().find(|path| path.is_file())
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
