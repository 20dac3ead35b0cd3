//! The command line: its options, and the order of the work.

#[cfg(feature = "measure")]
mod bench;
mod calls;
mod compare;
mod convert;
mod diff;
mod flame;
mod input;
mod latency;
mod man;
mod map;
mod offsets;
mod output;
mod percpu;
mod record;
mod report;
mod run;
mod selected;
mod sites;
mod space;
mod table;
#[cfg(feature = "measure")]
mod test;
mod top;
mod whatif;

pub use crate::terminal::print_note;

use vmlab_replay::index_kind::{ALL, IndexKind};
use vmlab_replay::timing::Budget;

#[cfg(feature = "measure")]
use crate::terminal::Terminal;
use crate::terminal::out;
use anyhow::{Result, anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use input::{Input, Tables};
use selected::Selected;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vmlab_base::choice::Choice;
use vmlab_base::file::OutputFile;
use vmlab_replay::run::{Options, Outcome};
use vmlab_replay::run_space::Policy;
use vmlab_trace::shipped::TRACES;

/// The laboratory of vmalloc: replays, compares, times and draws the address spaces of real kernels.
#[derive(Parser, Debug)]
#[command(
    name = "vmlab",
    version,
    after_help = "Examples:\n  \
        vmlab                                        the shipped traces, and a report\n  \
        vmlab replay trace.gz --index btree,rb-linux  a trace of your own, two indexes\n  \
        vmlab report trace.gz -o report.html         a film of the address space\n  \
        vmlab replay trace.zst --json | jq .equal    an object per trace and index\n  \
        vmlab map                                    the running kernel's address space, as root"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Replay the five traces that come with vmlab on every index and write a report to look at (the default)
    #[command(after_help = "Example:\n  vmlab demo --report report.html")]
    Demo(DemoArgs),
    /// Replay traces of your own: recordings, or ftrace, trace-cmd or perf text, plain, gzip or zstd
    #[command(after_help = "Examples:\n  \
        vmlab replay trace.ftrace.gz --report out.html\n  \
        vmlab replay trace --vmallocinfo info --index btree,rb-linux\n  \
        vmlab replay trace --space --nodes 4\n  \
        vmlab replay recording --diff --policy linux69\n  \
        vmlab replay trace --from 0.5 --to 2 --task kthreadd --cpu 0\n  \
        trace-cmd report | vmlab replay - --json | jq .equal\n\n\
        As root, vmlab record writes such a trace, with the tables of both ends; ftrace's and perf's text do as well.\n\n\
        NAME.vmallocinfo beside NAME, NAME.ftrace or NAME.txt (.gz, .zst) is read, too.")]
    Replay(ReplayArgs),
    /// Compare what a recording's address space would have been under other policies, and say which is better
    #[command(
        name = "whatif",
        after_help = "Examples:\n  \
        vmlab whatif recording.jsonl.gz\n  \
        vmlab whatif trace.gz --policy linux69,onelock52,standard --cpus 64\n  \
        vmlab whatif trace.gz --json | jq -r .verdict\n\n\
        Each policy decides by itself: where an area goes, and when to purge. docs/book/src/laboratory.md says what is modelled."
    )]
    WhatIf(whatif::Args),
    /// Compare two recordings, tables of areas, dumps or texts of /proc/allocinfo: growth by caller, leaks by age, holes
    #[command(after_help = "Examples:\n  \
        vmlab compare before.jsonl.gz after.jsonl.gz\n  \
        vmlab compare monday.vmallocinfo tuesday.vmallocinfo\n  \
        vmlab compare monday.allocinfo tuesday.allocinfo --top 20\n  \
        vmlab compare before.jsonl.gz after.jsonl.gz --fail-if 'equal<100 || lazy>64M || busy.growth>1M'\n\n\
        The exit status is 3 if a condition of --fail-if holds.")]
    Compare(compare::Args),
    /// Draw one HTML file of traces, of vmallocinfo, of what benchmarks wrote: films, ratios, growth, contention
    #[command(after_help = "Examples:\n  \
        vmlab report trace.ftrace.gz -o report.html\n  \
        vmlab report /proc/vmallocinfo -o now.html\n  \
        vmlab report results/index-baseline.csv results/space-baseline.csv -o measured.html\n  \
        vmlab replay trace.gz --json | vmlab report - -o replayed.html\n  \
        vmlab report trace.gz --json | jq .peaks\n\n\
        The file loads nothing: it may be mailed, opened from a disk, printed.")]
    Report(report::Args),
    /// Draw the address space: of the running kernel, a table, a trace at a time, or a process
    #[command(after_help = "Examples:\n  \
        vmlab map                                    the running kernel, as root with kernel.kptr_restrict=1\n  \
        vmlab map saved.vmallocinfo --html map.html  a page to look at\n  \
        vmlab map --trace trace.gz --at 12.5         the areas at that time, lazy and pooled ones too\n  \
        vmlab map dump.jsonl.gz                      what lab/python/vmlab/kernel.py read by drgn, with all pools\n  \
        vmlab map --pid 4242                         the mappings of a process\n\n\
        The areas of a process that uses vmalloc: have it write the text of Vmalloc::vmallocinfo, or of the C\n\
        function vmallocinfo, to a file, and name that file.")]
    Map(map::Args),
    /// List the places of the kernel's source that allocate, by /proc/allocinfo: live bytes and calls
    #[command(after_help = "Examples:\n  \
        vmlab sites                                  the running kernel's, as root\n  \
        vmlab sites monday.allocinfo --all --top 30\n  \
        vmlab sites monday.allocinfo --dump dump.jsonl.gz --json\n\n\
        The kernel must be 6.10 or later, with CONFIG_MEM_ALLOC_PROFILING and vm.mem_profiling=1. It counts each page of vmalloc as a call, and\n\
        nothing in the first chunk of per-CPU memory.")]
    Sites(sites::Args),
    /// Record what the running kernel does to its address space and its per-CPU memory (root)
    #[command(after_help = "Examples:\n  \
        vmlab record -- unshare -n true\n  \
        vmlab record -o boot.jsonl.gz --seconds 3\n  \
        vmlab record --latency --locks -o slow.jsonl.gz -- unshare -n true\n  \
        vmlab replay vmlab.jsonl.gz --space\n\n\
        The exit status is the command's; 127 if there is none, 126 if it cannot run, and then no file is left. The form is described in docs/formats.md. A recording removes its instance and its probes of tracefs when it ends, and restores \
        kernel.kptr_restrict, which is 1 while /proc/vmallocinfo is read.")]
    Record(record::Args),
    /// Show what the running kernel does to its address space and its per-CPU memory, live (root)
    #[command(after_help = "Examples:\n  \
        vmlab top\n  \
        vmlab top --sort bytes --caller kernel_clone\n  \
        vmlab top --once --for 2 > now.txt\n  \
        vmlab top recording.jsonl.gz --at 51302.5\n\n\
        Keys: q quit, s sort, / filter, space freeze, w record, or end the recording.")]
    Top(top::Args),
    /// Draw a recording by call stack: bytes, counts, how long allocations lived, holes below them, or waits for locks
    #[command(after_help = "Examples:\n  \
        vmlab record --stacks -o r.jsonl.gz -- unshare -n true\n  \
        vmlab flame r.jsonl.gz --by bytes > bytes.svg\n  \
        vmlab flame r.jsonl.gz --by time-live --memory area -o live.svg\n  \
        vmlab flame r.jsonl.gz --by fragmentation -o holes.svg\n  \
        vmlab flame slow.jsonl.gz --by lock-time -o locks.svg\n  \
        vmlab flame r.jsonl.gz --format folded | sort -t ' ' -k 2 -n")]
    Flame(flame::Args),
    /// Show how long the kernel's allocators take, and who waits for which of their locks
    #[command(after_help = "Examples:\n  \
        vmlab record --latency --locks -o slow.jsonl.gz -- unshare -n true\n  \
        vmlab latency slow.jsonl.gz\n  \
        vmlab latency slow.jsonl.gz --by caller --top 10\n  \
        vmlab latency slow.jsonl.gz --json | jq '.calls[] | select(.p99_ns > 50000)'\n\n\
        The kernel must have CONFIG_FPROBE_EVENTS or CONFIG_KPROBE_EVENTS.")]
    Latency(latency::Args),
    /// Write a trace in another form: JSON lines, CSV, Perfetto, ftrace text
    #[command(after_help = "Examples:\n  \
        vmlab convert vmlab.jsonl.gz --as perfetto -o trace.json.gz   for ui.perfetto.dev\n  \
        vmlab convert trace.ftrace.gz --as jsonl | jq -r .event\n  \
        vmlab convert vmlab.jsonl.gz --as csv -o events.csv\n  \
        vmlab convert vmlab.jsonl.gz --as vmallocinfo -o end.vmallocinfo\n  \
        vmlab convert vmlab.jsonl.gz --as jsonl --from 1.5 --to 2 --cpu 0\n  \
        vmlab convert vmlab.jsonl.gz --as jsonl --blank -o for-others.jsonl.gz\n\n\
        docs/formats.md describes the forms.")]
    Convert(convert::Args),
    /// Run an unmodified program with libvmalloc_preload.so, and print statistics of its large memory
    #[command(after_help = "Examples:\n  \
        vmlab run -- python3 program.py\n  \
        vmlab run --conf threshold:64K,decay:1s -- sort big.txt\n\n\
        The exit status is the program's; 127 if there is none, 126 if it cannot run, 125 if vmlab failed. The keys of --conf are in vmalloc(3).")]
    Run(run::Args),
    /// List the features of this system, and the code paths of the library and the recorder that use them
    #[command(after_help = "Examples:\n  \
        vmlab doctor\n  \
        vmlab doctor --json | jq -r '.facts[] | select(.verdict != \"good\") | .name'\n\n\
        Fails only where the library cannot work at all.")]
    Doctor(crate::doctor::Args),
    /// Measure indexes or spaces side by side
    #[cfg(feature = "measure")]
    #[command(subcommand, after_help = "Example:\n  vmlab bench index --quick")]
    Bench(bench::Command),
    /// Run the kernel's test suite of vmalloc on our allocators, and on Linux's own code from a C library
    #[cfg(feature = "measure")]
    #[command(after_help = "Examples:\n  \
        vmlab test smoke\n  \
        vmlab test run_test_mask=7 nr_threads=4 --target process\n  \
        vmlab test --suite 6.12 performance --target all --table\n  \
        vmlab test run_test_mask=1024 nr_pages=5 --target linux --kern libkvmalloc.so\n  \
        vmlab test --compare --out results\n  \
        vmlab test --compare list,nodes,space nr_threads=4 test_loop_count=1000\n\n\
        Lines are those that the kernel's module prints. The exit status is not 0 if a test failed unexpectedly. ^C ends the run\n\
        with the summaries so far.")]
    Test(test::Args),
    /// Report how to build the commands that measure, which this build lacks
    #[cfg(not(feature = "measure"))]
    #[command(hide = true, name = "bench", alias = "test", disable_help_flag = true)]
    NotBuilt {
        /// The arguments of the command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
    /// Print shell completions
    #[command(after_help = "Examples:\n  \
        vmlab completions bash > ~/.local/share/bash-completion/completions/vmlab\n  \
        vmlab completions zsh > ~/.zfunc/_vmlab\n  \
        vmlab completions fish > ~/.config/fish/completions/vmlab.fish")]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    #[command(hide = true)]
    Man {
        /// Destination folder, made if it does not exist
        dir: PathBuf,
    },
}

#[derive(clap::Args, Debug)]
struct DemoArgs {
    /// File for the report
    #[arg(long, value_name = "FILE", default_value = "vmlab-report.html")]
    report: PathBuf,
}

/// The options that `--diff` conflicts with. An option that requires `--diff` names them too: the parser does not ask for
/// a required option that conflicts with a given one.
const NOT_DIFF: [&str; 5] = ["index", "report", "space", "percpu", "calls"];

#[derive(clap::Args, Debug)]
struct ReplayArgs {
    /// Traces; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Indexes to replay on (default: all)
    #[arg(long, value_parser = choice::<IndexKind>(), value_delimiter = ',', value_name = "NAME")]
    index: Vec<IndexKind>,
    /// Print one JSON object per trace and index instead of a table
    #[arg(long)]
    json: bool,
    /// Show all columns; without, a table fits 80
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    /// Write a report to look at
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Replay on a whole space (nodes, pools, lazy areas, purges, the CPU of each event) instead of an index
    #[arg(long, conflicts_with_all = ["index", "report"], group = "whole")]
    space: bool,
    /// List the differences between the kernel and the policies, and their causes: the first N of each (10 if no N is
    /// given, or all). Percpu offsets too, chunk by chunk, as far as the events prove which places were free
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", require_equals = true, group = "whole",
        conflicts_with_all = NOT_DIFF)]
    diff: Option<diff::ListedMax>,
    /// After a difference, continue each side with its own addresses, instead of correcting the policy's
    #[arg(long, requires = "diff", conflicts_with_all = NOT_DIFF)]
    no_resync: bool,
    /// Write what was found to NAME.md in this directory
    #[arg(long, value_name = "DIR", requires = "diff", conflicts_with_all = NOT_DIFF)]
    out: Option<PathBuf>,
    /// Replay the allocations inside percpu chunks instead: offsets, under each policy that searches as Linux does
    #[arg(long, conflicts_with_all = ["index", "report", "space", "before", "kernel"])]
    percpu: bool,
    /// Replay the calls of a core inside a kernel on the same core: all of the files are such recordings (`cargo xtask
    /// linux replay`). Any difference is a failure
    #[arg(long, conflicts_with_all = ["index", "report", "space", "percpu", "before", "vmallocinfo", "kernel"])]
    calls: bool,
    /// Policy of the space (default: that of the trace's kernel; --diff also compares two others)
    #[arg(long, value_parser = choice::<Policy>(), value_name = "NAME", requires = "whole")]
    policy: Option<Policy>,
    /// Nodes of the space (default: a node for each CPU of the trace)
    #[arg(long, value_name = "N", requires = "whole",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(va_space::NODES_LIMIT)))]
    nodes: Option<u32>,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    tables: Tables,
}

/// The form of the results of a replay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A table of 80 columns.
    Table,
    /// A table with all its columns.
    Wide,
    Json,
}

impl ReplayArgs {
    fn form(&self) -> Form {
        match (self.json, self.wide) {
            (true, _) => Form::Json,
            (false, true) => Form::Wide,
            (false, false) => Form::Table,
        }
    }
}

/// Runs the command line.
///
/// # Errors
/// The first failure, as one line.
pub fn main(cli: &Cli) -> Result<()> {
    match &cli.command {
        None => demo(Path::new("vmlab-report.html")),
        Some(Command::Demo(args)) => demo(&args.report),
        Some(Command::Replay(args)) => replay(args),
        Some(Command::WhatIf(args)) => whatif::run_all(args),
        Some(Command::Compare(args)) => compare::run(args),
        Some(Command::Report(args)) => report::run(args),
        Some(Command::Map(args)) => map::run(args),
        Some(Command::Sites(args)) => sites::run(args),
        Some(Command::Convert(args)) => convert::run(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Doctor(args)) => crate::doctor::run(args),
        Some(Command::Record(args)) => record::run(args),
        Some(Command::Top(args)) => top::run(args),
        Some(Command::Flame(args)) => flame::run(args),
        Some(Command::Latency(args)) => latency::run(args),
        #[cfg(feature = "measure")]
        Some(Command::Bench(args)) => bench::run(args),
        #[cfg(feature = "measure")]
        Some(Command::Test(args)) => test::run(args, &vmlab_bench::suite::target::targets()),
        #[cfg(not(feature = "measure"))]
        Some(Command::NotBuilt { .. }) => {
            bail!("this build measures nothing: cargo run --profile dist --features measure -- bench")
        }
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "vmlab", &mut script);
            out(String::from_utf8(script)?.trim_end())
        }
        Some(Command::Man { dir }) => man::write(Cli::command(), dir),
    }
}

fn demo(report: &Path) -> Result<()> {
    let report = OutputFile::open(report)?;
    let inputs = TRACES.iter().map(Input::shipped).collect::<Result<Vec<_>>>()?;
    let outcomes = run_all(&inputs, &ALL, true)?;
    table::print(&outcomes, false)?;
    for note in notes(&inputs, &outcomes) {
        out(&note)?;
    }
    let chapters = report::chapters(&inputs, outcomes)?;
    for gain in chapters.iter().filter_map(|chapter| chapter.gain.as_ref()) {
        out(&format!("{}: {}", gain.name, gain.verdict))?;
    }
    let shown = report::replayed(report, "vmalloc: five traces of a real kernel", chapters)?;
    out(&format!("report: {shown}"))
}

fn replay(args: &ReplayArgs) -> Result<()> {
    if args.percpu {
        args.selected.none_if_no_trace("and --percpu replays the whole life of each chunk")?;
        return percpu::replay(&args.files, &args.tables, args.form());
    }
    if args.calls {
        args.selected.none_if_no_trace("and --calls replays all that the space did")?;
        return calls::replay(&args.files, args.form());
    }
    if let Some(differences) = args.diff {
        return diff::replay(args, differences);
    }
    if args.tables.kernel.is_some() && !args.space && args.report.is_none() {
        bail!("--kernel is of pools, which an index has not: it is for --space, --diff and --report");
    }
    let report = output::output(args.report.as_deref(), &args.tables.inputs(&args.files))?;
    let read = |file: &PathBuf| Input::read(file, &args.tables)?.part_of(file, &args.selected);
    let inputs = args.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    if args.space {
        space::replay(&inputs, args.policy, args.nodes, args.form())?;
        parts(&inputs, args.json)?;
        return ends_early(&inputs);
    }
    let mut kinds = Vec::new();
    for &kind in if args.index.is_empty() { &ALL[..] } else { &args.index } {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let outcomes = run_all(&inputs, &kinds, report.is_some())?;
    // With --json, stdout has the objects only.
    let print = |line: &str| {
        if args.json {
            print_note(line);
            Ok(())
        } else {
            out(line)
        }
    };
    if args.json {
        for outcome in &outcomes {
            out(&serde_json::to_string(&outcome.row)?)?;
        }
    } else {
        table::print(&outcomes, args.wide)?;
        table::print_differences(&outcomes)?;
    }
    for note in notes(&inputs, &outcomes) {
        print(&note)?;
    }
    parts(&inputs, args.json)?;
    if let Some(report) = report {
        let chapters = report::chapters(&inputs, outcomes)?;
        let shown = report::replayed(report, "vmalloc: replay", chapters)?;
        print(&format!("report: {shown}"))?;
    }
    ends_early(&inputs)
}

/// Says which part of each input is counted.
fn parts(inputs: &[Input], json: bool) -> Result<()> {
    for (name, part) in inputs.iter().filter_map(|input| Some((&input.name, input.part.as_ref()?))) {
        let line = format!("{name}: {part}");
        if json { print_note(&line) } else { out(&line)? }
    }
    Ok(())
}

/// Fails if an input ended early. Its replay was shown, but a script must notice that the input is incomplete.
fn ends_early(inputs: &[Input]) -> Result<()> {
    match inputs.iter().find_map(|input| Some((&input.name, input.trace.cut_short.as_ref()?))) {
        Some((name, why)) => early(name, why),
        None => Ok(()),
    }
}

/// Fails since an input ended early.
fn early(name: &str, why: &str) -> Result<()> {
    bail!("{name}: the input ends early, {why}; the results are of what was read")
}

/// Returns the error of an input that lacks something. The reason is that reading it ended early, if it did.
fn lacks(name: impl fmt::Display, what: &str, cut_short: Option<&str>) -> anyhow::Error {
    let ended = cut_short.map_or(String::new(), |why| format!(": reading ended {why}"));
    anyhow!("{name}: {what}{ended}")
}

/// The same, with advice for an input that was read to its end.
fn lacks_or(name: impl fmt::Display, what: &str, cut_short: Option<&str>, advice: &str) -> anyhow::Error {
    let error = lacks(name, what, cut_short);
    if cut_short.is_some() { error } else { anyhow!("{error}: {advice}") }
}

/// Replays every trace on every index. Returns the outcomes of the first trace, in the order of `kinds`, then of the
/// second.
fn run_all(inputs: &[Input], kinds: &[IndexKind], latency: bool) -> Result<Vec<Outcome>> {
    // The bar is drawn on stderr, only if that is a terminal.
    let bar = ProgressBar::new((inputs.len() * kinds.len()) as u64);
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(120));
    let options = Options { budget: Budget::default(), latency };
    let mut outcomes = Vec::with_capacity(inputs.len() * kinds.len());
    for input in inputs {
        for &kind in kinds {
            bar.set_message(format!("{} on {}", input.name, kind.name()));
            outcomes.push(vmlab_replay::run::run(&input.name, &input.trace, &input.table, kind, options)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(outcomes)
}

/// Returns each inference once, with the traces for which it holds.
fn notes(inputs: &[Input], outcomes: &[Outcome]) -> Vec<String> {
    let mut notes: Vec<(String, Vec<&str>)> = Vec::new();
    for (input, outcomes) in inputs.iter().zip(outcomes.chunks(outcomes.len() / inputs.len())) {
        for note in input::inferred(&outcomes[0].tally) {
            match notes.iter_mut().find(|(known, _)| *known == note) {
                Some((_, names)) => names.push(&input.name),
                None => notes.push((note, vec![&input.name])),
            }
        }
    }
    let line = |(note, names): (String, Vec<&str>)| match names.len() {
        len if len > 1 && len == inputs.len() => format!("each trace: {note}"),
        _ => format!("{}: {note}", names.join(", ")),
    };
    notes.into_iter().map(line).collect()
}

/// Returns a parser of numbers in a range.
#[cfg(feature = "measure")]
fn ranged<T>(range: std::ops::RangeInclusive<u64>) -> clap::builder::RangedU64ValueParser<T>
where
    T: TryFrom<u64> + Clone + Send + Sync,
{
    clap::builder::RangedU64ValueParser::new().range(range)
}

/// Returns a parser of the names of a set of values.
fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let value = |one: &T| PossibleValue::new(one.choice()).help(one.about()).aliases(one.aliases());
    PossibleValuesParser::new(T::CHOICES.iter().map(value)).try_map(|name| {
        // The parser accepts these names alone.
        T::named(&name).ok_or("no such name")
    })
}
