//! `vmlab convert`: a trace in another form.

use super::{choice, output, print_note};
use crate::reading::open_until;
use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmlab_base::text::counted;
use vmlab_trace::convert::{Lacking, Select, To, convert};
use vmlab_trace::{Selection, Sink};

/// The input to convert, and the output form.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// A recording, or text of ftrace, trace-cmd report or perf script, plain, gzip or zstd; - is standard input
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// The form
    #[arg(long = "as", value_parser = choice::<To>(), value_name = "FORM")]
    form: To,
    /// Destination; - is standard output; .gz is compressed
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Write the events from this time of the trace's clock on, seconds
    #[arg(long, value_name = "TIME", value_parser = super::selected::seconds)]
    from: Option<u64>,
    /// Write the events up to this time, seconds
    #[arg(long, value_name = "TIME", value_parser = super::selected::seconds)]
    to: Option<u64>,
    /// Write the events of this CPU
    #[arg(long, value_name = "N")]
    cpu: Option<u16>,
    /// Write the events of the tasks of this name
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Write no names and numbers of tasks, and no command: for a recording that others may see
    #[arg(long)]
    blank: bool,
}

/// Converts, and reports the lines that could not be read.
///
/// # Errors
/// If the input cannot be read, or holds nothing or nothing that is selected, the output cannot be written, or a signal arrived. Everything read
/// before a signal is written.
pub(super) fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal ends the conversion in order, at the next line or while there is none. The second ends it
        // at once.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .context("cannot take signals")?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let shown = args.input.display();
    if args.output != Path::new("-") {
        output::check(&args.output, [&args.input])?;
    }
    let input = open_until(&args.input, &stop).with_context(|| format!("cannot read {shown}"))?;
    let selection = Selection { from_ns: args.from, to_ns: args.to, cpu: args.cpu, task: args.task.clone() };
    selection.check()?;
    // A table has no events to select.
    let is_table = matches!(args.form, To::Vmallocinfo | To::VmallocinfoBegin);
    let selection = if is_table { Selection::default() } else { selection };
    let form = args.form.form(Sink::create(&args.output)?)?;
    let form = Box::new(Select::new(form, selection, args.blank));
    let converted = convert(input, form, &stop);
    let census = match converted {
        // The reader of the output has read enough.
        Err(error) if args.output == Path::new("-") && is_closed_pipe(&error) => return Ok(()),
        // Other errors name the output.
        Err(error) if error.is::<Lacking>() => return Err(error.context(shown.to_string())),
        other => other?,
    };
    if census.bad > 0 {
        print_note(&format!("{shown}: {} cannot be read, and not converted", counted(census.bad, "line")));
    }
    if stop.load(Ordering::Relaxed) {
        bail!("{shown}: stopped by a signal after {}, which are converted", counted(census.lines, "line"));
    }
    if let Some(why) = &census.cut_short {
        bail!("{shown}: the input ends early, {why}; what was read is converted");
    }
    if census.items == 0 {
        bail!("{shown}: no event of vmalloc or percpu in {}", counted(census.lines, "line"));
    }
    Ok(())
}

/// Returns true if a pipe was closed by its reader.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
