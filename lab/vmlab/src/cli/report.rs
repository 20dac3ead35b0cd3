//! `vmlab report`: one page of any number of inputs.

use super::input::{self, Input, Tables};
use super::selected::Selected;
use super::{OutputFile, flame, lacks_or, latency, map, out, output, run_all, whatif};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::path::{Path, PathBuf};
use vmlab_base::choice::Choice;
use vmlab_base::text::counted;
use vmlab_replay::index_kind::ALL;
use vmlab_replay::run::Outcome;
use vmlab_trace::allocinfo::Sites;
use vmlab_trace::flame::{By, Stacks};
use vmlab_trace::latency::Latencies;
use vmlab_trace::stack::NO_STACK;
use vmlab_trace::vmallocinfo::{Lines, Table};
use vmlab_trace::{Begun, Next, Selection, Trace, items};
use vmlab_view::flame::draw;
use vmlab_view::map::measure::Numbers;
use vmlab_view::map::palette::is_state;
use vmlab_view::map::replayed::{Ask, replay as replayed_map};
use vmlab_view::report::facts::Facts;
use vmlab_view::report::film::Film;
use vmlab_view::report::sheet::Sheet;
use vmlab_view::report::{Chapter, Map, Part, Picture, page};
use vmlab_view::shape::Shape;

/// Bytes from the beginning of a file that determine its kind.
const HEAD_BYTES: u64 = 16 << 10;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Traces, /proc/vmallocinfo, dumps of vmlab.kernel, CSV or JSON lines of measurements; plain, gzip or zstd; - is
    /// standard input
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// File for the report
    #[arg(short, long, value_name = "FILE", default_value = "vmlab-report.html")]
    output: PathBuf,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    tables: Tables,
    /// Print the figures of each trace as one JSON object instead
    #[arg(long, conflicts_with_all = ["output", "title"])]
    json: bool,
    /// The title of the page
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// The kind of a file, by its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Trace,
    Listing,
    /// /proc/allocinfo.
    Sites,
    Csv,
    Json,
}

/// An input that was read.
enum InputFile {
    Trace(Box<Input>),
    /// And why it ended early, if it did.
    Other(Box<Part>, Option<String>),
}

pub(super) fn run(args: &Args) -> Result<()> {
    if args.inputs.is_empty() {
        bail!("nothing to draw: name a trace, a vmallocinfo, or a CSV or JSON file that a benchmark wrote");
    }
    if args.json {
        return json(args);
    }
    let file = output::open(&args.output, &args.tables.inputs(&args.inputs))?;
    let read = |path: &PathBuf| read(path, &args.tables, &args.selected);
    let all = args.inputs.iter().map(read).collect::<Result<Vec<_>>>()?;
    let (mut traces, mut order, mut short) = (Vec::new(), Vec::new(), None);
    for (one, path) in all.into_iter().zip(&args.inputs) {
        match one {
            InputFile::Trace(input) => {
                traces.push(*input);
                order.push(None);
            }
            InputFile::Other(part, cut_short) => {
                order.push(Some(*part));
                short = short.or(cut_short.map(|why| (path, why)));
            }
        }
    }
    if traces.is_empty() && args.tables.is_some() {
        bail!("--before, --vmallocinfo and --kernel are of a trace, and no input is one");
    }
    if traces.is_empty() {
        args.selected.none_if_no_trace("and no input is one")?;
    }
    let mut chapters = chapters(&traces, run_all(&traces, &ALL, true)?)?.into_iter().zip(&traces);
    let mut parts = Vec::new();
    for (part, path) in order.into_iter().zip(&args.inputs) {
        match part {
            Some(part) => parts.push(part),
            None => {
                let Some((mut chapter, input)) = chapters.next() else { continue };
                // Stacks, durations and waits are among the others.
                if input.trace.others > 0 {
                    more(&mut chapter, path, &args.selected.selection()?)?;
                }
                parts.push(Part::Trace(Box::new(chapter)));
            }
        }
    }
    let names: Vec<String> = args.inputs.iter().map(|path| input::stem(path)).collect();
    let title = args.title.clone().unwrap_or_else(|| format!("vmalloc: {}", short_list(&names)));
    let path = file.write(&page(&title, parts))?;
    out(&format!("report: {}", path.canonicalize().unwrap_or(path).display()))?;
    super::ends_early(&traces)?;
    match short {
        Some((path, why)) => super::early(&path.display().to_string(), &why),
        None => Ok(()),
    }
}

/// Prints the figures of each trace.
fn json(args: &Args) -> Result<()> {
    let mut inputs = Vec::new();
    for path in &args.inputs {
        let InputFile::Trace(input) = read(path, &args.tables, &args.selected)? else {
            bail!("{}: no trace, and --json prints the figures of traces", path.display());
        };
        let trace = &input.trace;
        let picture = Picture::of(trace, &input.table)?;
        let mut text = map::end_text(&args.tables, path, trace)?;
        text.listing.areas.retain(|area| input.later.binary_search(&area.part.start).is_err());
        let ask = Ask::at_end(trace, &input.table, &text);
        let mut callers = Numbers::of(&replayed_map(ask)?.listing).callers;
        callers.retain(|row| !is_state(&row.name));
        out(&serde_json::to_string(&Facts::of(&input.name, trace, &picture, callers))?)?;
        inputs.push(*input);
    }
    super::ends_early(&inputs)
}

/// Adds the durations and the flame graphs of a trace, if it has any. It is read again, which only a file can be.
fn more(chapter: &mut Chapter, path: &Path, selection: &Selection) -> Result<()> {
    if input::is_read_once(path, "durations and call stacks") {
        return Ok(());
    }
    let mut latencies = Latencies::within(selection.clone());
    let mut stacks = Stacks::of(None).within(selection.clone());
    let input = open(path).with_context(|| format!("cannot read {}", path.display()))?;
    items(input, |item| {
        latencies.take(&item);
        stacks.take(&item);
        Ok(Next::Go)
    })?;
    latencies.finish();
    if latencies.has_calls() || latencies.has_locks() {
        chapter.durations = Some(latency::section(&input::stem(path), &latencies));
    }
    if !stacks.has_stacks() {
        return Ok(());
    }
    let folded = |by| match by {
        By::LockTime => flame::lock_times(&latencies),
        _ => stacks.clone().folded(by),
    };
    let graph = |&by: &By| {
        let folded = folded(by);
        // A recording may have stacks of waits alone.
        let known = folded.keys().any(|path| path != NO_STACK);
        let title = flame::title(path, by, None, selection);
        let shapes = [Shape::Broad, Shape::Slim];
        known.then(|| (title.clone(), shapes.map(|shape| draw(&title, &folded, by, shape))))
    };
    chapter.stacks = By::CHOICES.iter().filter_map(graph).collect();
    Ok(())
}

/// Formats names as `a, b and 3 more`.
fn short_list(names: &[String]) -> String {
    match names {
        [first, second, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second} and {} more", rest.len())
        }
        _ => names.join(" and "),
    }
}

/// Writes the report of a replay, and returns its path.
pub(super) fn replayed(file: OutputFile, title: &str, chapters: Vec<Chapter>) -> Result<String> {
    let parts = chapters.into_iter().map(|chapter| Part::Trace(Box::new(chapter))).collect();
    let path = file.write(&page(title, parts))?;
    Ok(path.canonicalize().unwrap_or(path).display().to_string())
}

/// Returns a section for each trace; the outcomes are those of the first trace, then of the second.
pub(super) fn chapters(inputs: &[Input], outcomes: Vec<Outcome>) -> Result<Vec<Chapter>> {
    let kinds = outcomes.len() / inputs.len().max(1);
    let mut outcomes = outcomes.into_iter();
    let mut chapters = Vec::with_capacity(inputs.len());
    for input in inputs {
        let outcomes: Vec<Outcome> = outcomes.by_ref().take(kinds).collect();
        let mut notes = vec![input.census()];
        notes.extend(input.part.iter().map(|part| format!("{part}. Times are of all calls.")));
        if let Some(first) = outcomes.first() {
            notes.extend(input::inferred(&first.tally).into_iter().map(|note| note + "."));
        }
        let picture = Picture::of(&input.trace, &input.table)?;
        let film = Film::of_trace(&input.trace, &input.table)?;
        let gain = Some(whatif::gain(input)?);
        let (name, about) = (input.name.clone(), input.about.to_string());
        let (durations, stacks) = (None, Vec::new());
        chapters.push(Chapter { name, about, picture, film, outcomes, notes, gain, durations, stacks });
    }
    Ok(chapters)
}

/// Opens a file, and returns its kind with all of its contents.
pub(super) fn opened(path: &Path) -> Result<(Kind, Begun<impl Read + use<>>)> {
    let input = open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = Begun::read(input, HEAD_BYTES);
    Ok((kind_of(whole.head()), whole))
}

fn read(path: &Path, tables: &Tables, selected: &Selected) -> Result<InputFile> {
    let shown = path.display();
    let (kind, whole) = opened(path)?;
    let name = input::stem(path);
    Ok(match kind {
        Kind::Trace => {
            let input = Input::of(path, Trace::read(whole), tables)?.part_of(path, selected)?;
            InputFile::Trace(Box::new(input))
        }
        Kind::Listing => {
            let table = Table::read(whole);
            if table.areas == 0 {
                let advice = "read it as root, or see kernel.kptr_restrict";
                return Err(lacks_or(shown, "no area with an address", table.cut_short.as_deref(), advice));
            }
            input::note_bad(path, &table);
            let mut notes = vec![format!("{} listed.", counted(table.areas, "area"))];
            notes.extend(table.cut_short.iter().map(|why| format!("It ends early, {why}.")));
            if table.bad > 0 {
                notes.push(format!("{} could not be read.", counted(table.bad, "line")));
            }
            let map = Map { name, film: Film::of_table(&table), notes };
            InputFile::Other(Box::new(Part::Map(map)), table.cut_short)
        }
        Kind::Sites => bail!("{shown}: of /proc/allocinfo: see vmlab sites, and vmlab compare"),
        Kind::Csv | Kind::Json => {
            let read =
                if kind == Kind::Csv { Sheet::of_csv(&name, whole) } else { Sheet::of_json(&name, whole) };
            InputFile::Other(Box::new(Part::Sheet(read.with_context(|| shown.to_string())?)), None)
        }
    })
}

/// Returns the kind of a file. A file of no other kind counts as a trace, whose reader reports the errors.
pub(super) fn kind_of(head: &[u8]) -> Kind {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(first) = lines.clone().next() else { return Kind::Trace };
    if first.starts_with('{') && Sheet::is_json_row(first) {
        return Kind::Json;
    }
    let listed = |line: &str| {
        let range = line.split_whitespace().next().unwrap_or("");
        range.split_once('-').is_some_and(|(start, end)| start.starts_with("0x") && end.starts_with("0x"))
    };
    let mut lines_of_dump = Lines::default();
    lines_of_dump.row(first);
    if Sites::begins(first) {
        return Kind::Sites;
    }
    if listed(first) || lines_of_dump.dump.is_some() {
        return Kind::Listing;
    }
    match lines.find(|line| !line.starts_with('#')) {
        Some(line) if Sheet::is_csv_head(line) => Kind::Csv,
        _ => Kind::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_recognised_by_its_beginning() {
        for (head, kind) in [
            ("", Kind::Trace),
            ("# tracer: nop\n#\nx-1 [000] 1.0: free_vmap_area_noflush: va_start=0x1\n", Kind::Trace),
            ("0xffa0000000000000-0xffa0000000005000   20480 f+0x1/0x2 vmap\n", Kind::Listing),
            ("\n0x(____ptrval____)-0x(____ptrval____) 8192 f\n", Kind::Listing),
            ("# command: x\nworkload,contender,ns_min\n", Kind::Csv),
            ("a,b,c\n1,2,3\n", Kind::Trace),
            ("{\"trace\":\"a\",\"index\":\"btree\",\"ns_min\":1.5}\n", Kind::Json),
            ("allocinfo - version: 1.0\n", Kind::Sites),
            ("{\"vmlab\":1}\n", Kind::Trace),
            ("{\"vmlab\":{\"version\":1}}\n", Kind::Trace),
            ("{\"vmlab\":{\"version\":1,\"dump\":\"drgn 1\"}}\n", Kind::Listing),
            ("\u{0}\u{1}garbage", Kind::Trace),
        ] {
            assert_eq!(kind_of(head.as_bytes()), kind, "{head}");
        }
    }

    #[test]
    fn a_title_names_few() {
        let names = ["a", "b", "c", "d"].map(String::from);
        let lists = [1, 2, 3, 4].map(|count| short_list(&names[..count]));
        assert_eq!(lists, ["a", "a and b", "a, b and 1 more", "a, b and 2 more"]);
    }
}
