//! `vmlab flame`: the allocations of a recording by call stack.

use super::input::stem;
use super::output::output;
use super::selected::Selected;
use super::{choice, lacks, lacks_or, latency, out};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmlab_base::choice::Choice;
use vmlab_base::text::printable;
use vmlab_trace::flame::{By, Stacks};
use vmlab_trace::latency::Latencies;
use vmlab_trace::live::Kind;
use vmlab_trace::{Next, Selection, items};
use vmlab_view::flame::draw;
use vmlab_view::shape::Shape;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A picture, which any browser shows
    Svg,
    /// A line for each stack: its functions, outermost first, joined by `;`, and its weight
    Folded,
}

impl Choice for Format {
    const CHOICES: &'static [Self] = &[Self::Svg, Self::Folded];

    fn choice(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Folded => "folded",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Svg => "A picture, which any browser shows",
            Self::Folded => {
                "A line for each stack: its functions, outermost first, joined by `;`, and its weight"
            }
        }
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A recording of vmlab record --stacks or --locks, or text of ftrace with call stacks; - is standard input
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,
    /// The weight of a stack
    #[arg(long, value_parser = choice::<By>(), value_name = "WEIGHT", default_value = "bytes")]
    by: By,
    /// Count this memory alone (default: both)
    #[arg(long, value_parser = choice::<Kind>(), value_name = "MEMORY")]
    memory: Option<Kind>,
    /// The form of the output
    #[arg(long, value_parser = choice::<Format>(), value_name = "FORMAT", default_value = "svg")]
    format: Format,
    /// Destination (default: standard output)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    selected: Selected,
}

/// Writes the graph, or the stacks.
///
/// # Errors
/// If the input has no call stack, or a file cannot be read or written.
pub(super) fn run(args: &Args) -> Result<()> {
    let shown = args.recording.display();
    let output = output(args.output.as_deref(), [&args.recording])?;
    let selection = args.selected.selection()?;
    let (folded, cut_short) = match args.by {
        By::LockTime if args.memory.is_some() => {
            bail!("--memory is of allocations, and --by lock-time counts waits for locks")
        }
        By::LockTime => of_locks(&args.recording, &selection)?,
        By::Fragmentation if args.memory == Some(Kind::Percpu) => {
            bail!("--by fragmentation counts the holes between areas, and --memory percpu has none")
        }
        by => of_allocations(&args.recording, by, args.memory, &selection)?,
    };
    let text = match args.format {
        Format::Svg => {
            let title = title(&args.recording, args.by, args.memory, &selection);
            draw(&title, &folded, args.by, Shape::Broad)
        }
        Format::Folded => {
            folded.iter().map(|(path, weight)| format!("{} {weight}\n", printable(path))).collect()
        }
    };
    match output {
        Some(file) => {
            let path = file.write(&text)?;
            out(&format!("{}: {}", args.format.choice(), path.canonicalize().unwrap_or(path).display()))?;
        }
        None => out(text.trim_end())?,
    }
    cut_short.map_or(Ok(()), |why| bail!("{shown}: the input ends early, {why}"))
}

/// Weights of stacks, and why the input ended early, if it did.
type Folded = (BTreeMap<String, u64>, Option<String>);

fn of_allocations(path: &Path, by: By, memory: Option<Kind>, selection: &Selection) -> Result<Folded> {
    let shown = path.display();
    let (stacks, cut_short) = read(path, memory, selection)?;
    let ended = cut_short.as_deref();
    if !stacks.has_stacks() {
        return Err(lacks_or(shown, "no call stack", ended, "vmlab record --stacks records them"));
    }
    let folded = stacks.folded(by);
    // Where nothing lives at the end, there is no hole below it: that is an answer.
    if folded.is_empty() && by != By::Fragmentation {
        return Err(lacks(shown, &format!("no allocation {selection}"), ended));
    }
    Ok((folded, cut_short))
}

fn of_locks(path: &Path, selection: &Selection) -> Result<Folded> {
    let shown = path.display();
    let (latencies, cut_short) = latency::read(path, selection)?;
    let ended = cut_short.as_deref();
    if !latencies.has_locks() {
        return Err(lacks_or(shown, "no wait for a lock", ended, "vmlab record --locks records them"));
    }
    let folded = lock_times(&latencies);
    if folded.is_empty() {
        let what = format!("no wait for a lock of the allocators {selection}");
        return Err(lacks(shown, &what, ended));
    }
    Ok((folded, cut_short))
}

/// Returns the nanoseconds of each stack that waited.
pub(super) fn lock_times(latencies: &Latencies) -> BTreeMap<String, u64> {
    latencies.lock_stacks().into_iter().map(|(path, (ns, _))| (path, ns)).collect()
}

/// Returns the allocations of an input, and why it ended early, if it did.
fn read(path: &Path, memory: Option<Kind>, selection: &Selection) -> Result<(Stacks, Option<String>)> {
    let mut stacks = Stacks::of(memory).within(selection.clone());
    let input = open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let census = items(input, |item| {
        stacks.take(&item);
        Ok(Next::Go)
    })?;
    Ok((stacks, census.cut_short))
}

/// Returns the title of a graph.
pub(super) fn title(path: &Path, by: By, memory: Option<Kind>, selection: &Selection) -> String {
    let part = if selection.is_all() { String::new() } else { format!(", {selection}") };
    let of = memory.map_or(String::new(), |memory| format!(", {} alone", memory.choice()));
    let what = match by {
        By::LockTime => "waits for locks",
        By::Fragmentation => "holes below live areas",
        By::Bytes | By::Count | By::TimeLive => "allocations",
    };
    format!("{}: {what} by call stack, {}{of}{part}", stem(path), by.choice())
}
