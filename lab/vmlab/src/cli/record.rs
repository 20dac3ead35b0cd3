//! `vmlab record`: the running kernel's events, in a file.

use super::print_note;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vmlab_base::text::{counted, duration, grouped};
use vmlab_trace::jsonl::Probes;
use vmlab_trace::record::{NotStarted, Options, Progress, Recorded, Watch, record};

/// The options of a recording.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Args {
    /// Destination; - is standard output; .gz is compressed
    #[arg(short, long, value_name = "FILE", default_value = "vmlab.jsonl.gz")]
    output: PathBuf,
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// End once the file has so many bytes (K, M, G allowed); the tables of the end follow
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_bytes: Option<u64>,
    /// KiB of the kernel's buffer for each CPU; what it cannot hold is lost, counted and said
    #[arg(long, value_name = "KIB", default_value = "8192", value_parser = clap::value_parser!(u32).range(4..=4 << 20))]
    buffer_kib: u32,
    /// Empty the kernel's pools of freed areas first, by its shrinkers (drop_caches): no table shows what is in them
    #[arg(long)]
    drain_pools: bool,
    /// Record the call stack of each event, for vmlab flame
    #[arg(long)]
    stacks: bool,
    /// Record how long the kernel's allocators take, for vmlab latency: probes at both ends of their functions
    #[arg(long)]
    latency: bool,
    /// Record waits for the allocators' locks, with their call stacks, for vmlab latency and vmlab flame
    #[arg(long)]
    locks: bool,
    /// Replace the file of an earlier recording
    #[arg(long)]
    overwrite: bool,
    /// Record while this runs (default: until ^C)
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Parses `65536`, `64K`, `3M`, `1G`.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let count = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift));
    count
        .filter(|&count| count > 0)
        .ok_or_else(|| "not a number of bytes such as 65536, 64K or 3M".to_string())
}

/// Records, and prints a summary.
///
/// # Errors
/// If recording is not possible here, or the command fails; the file has everything recorded before.
pub(super) fn run(args: &Args) -> Result<()> {
    // A recording cannot be made again. What is not a file, such as a pipe, has nothing to lose.
    let earlier = std::fs::metadata(&args.output).is_ok_and(|file| file.is_file() && file.len() > 0);
    if earlier && !args.overwrite {
        bail!("{} is there already: --overwrite replaces it, -o names another", args.output.display());
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let Args {
        output,
        seconds,
        max_bytes,
        buffer_kib,
        drain_pools,
        stacks,
        latency,
        locks,
        overwrite: _,
        command,
    } = args.clone();
    let options =
        Options { output, seconds, max_bytes, buffer_kib, drain_pools, stacks, latency, locks, command };
    // A wrong name is reported before the kernel is touched, and before an earlier recording is replaced.
    if let Some(program) = options.command.first()
        && !super::run::exists(&program.into())
    {
        print_note(&format!("there is no program {program}; nothing is recorded"));
        std::process::exit(super::run::NOT_FOUND);
    }
    let recorded = record(&options, &stop, &mut Bar(None));
    if let Err(error) = &recorded
        && let Some(why) = error.downcast_ref::<NotStarted>()
    {
        print_note(&format!("{error:#}; nothing is recorded"));
        std::process::exit(if why.is_absent() { super::run::NOT_FOUND } else { super::run::NOT_RUN });
    }
    let Recorded { events, calls, cpus, probes, summary, status } = recorded?;
    let shown = args.output.display();
    print_note(&format!(
        "{} in {:.1} s, ended by {}: {shown}",
        counted(events, "event"),
        Duration::from_nanos(summary.took_ns.0).as_secs_f64(),
        summary.ended,
    ));
    if let Some(probes) = &probes {
        print_note(&overhead(probes, calls, cpus, summary.took_ns.0));
    }
    match summary.lost.0 {
        0 => {}
        lost => print_note(&format!(
            "{} lost, since the buffers were full: more --buffer-kib than {} helps",
            counted(lost, "event"),
            args.buffer_kib
        )),
    }
    match status {
        Some(status) if !status.success() && summary.ended == "command" => {
            print_note(&format!("the command failed ({status}); the recording is whole"));
            super::run::end_as(status)
        }
        _ => Ok(()),
    }
}

/// Says what the probes of a recording cost.
fn overhead(probes: &Probes, calls: u64, cpus: u64, took_ns: u64) -> String {
    let all = counted(calls, "call");
    if probes.measured_calls.0 == 0 {
        return format!("{all} with two probes each ({}); what they cost was not measured", probes.kind);
    }
    let (plain, pair) = (probes.plain_ps.0 / 1000, probes.pair_ps.0 / 1000);
    let (cost, share) = probes.cost(calls, took_ns, cpus);
    format!(
        "{all} with two probes each ({}), which cost {} a call: getppid took {}, and {} with probes (medians, {} calls). \
         That is {} in all, {:.2} % of {}",
        probes.kind,
        duration(pair),
        duration(plain),
        duration(plain.saturating_add(pair)),
        grouped(probes.measured_calls.0),
        duration(cost),
        share,
        counted(cpus, "CPU")
    )
}

/// A line on stderr with the state of a recording, if stderr is a terminal. It begins with the first event.
struct Bar(Option<ProgressBar>);

impl Watch for Bar {
    fn note(&mut self, line: &str) {
        print_note(line);
    }

    fn progress(&mut self, now: &Progress) {
        let bar = self.0.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        if !bar.is_hidden() {
            let (events, bytes) = (grouped(now.events), grouped(now.bytes));
            let (seconds, lost) = (now.time.as_secs(), counted(now.lost, "event"));
            bar.set_message(format!("{events} events, {bytes} bytes, {seconds} s, {lost} lost; ^C ends it"));
            bar.tick();
        }
    }

    fn ends(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_probes_is_that_of_all_calls() {
        use vmlab_trace::jsonl::Number;
        let mut probes = Probes {
            kind: "fprobe".to_string(),
            measured_calls: Number(70_000),
            plain_ps: Number(100_000),
            pair_ps: Number(400_500),
            ..Probes::default()
        };
        let text = overhead(&probes, 1_000_000, 4, 1_000_000_000);
        assert_eq!(
            text,
            "1,000,000 calls with two probes each (fprobe), which cost 400 ns a call: getppid took 100 ns, and 500 ns \
             with probes (medians, 70,000 calls). That is 400 ms in all, 10.00 % of 4 CPUs"
        );
        probes.measured_calls = Number(0);
        assert!(overhead(&probes, 1, 4, 1).contains("was not measured"));
        probes.measured_calls = Number(1);
        assert!(overhead(&probes, u64::MAX, u64::MAX, 0).contains("% of"));
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, want) in
            [("65536", Some(65536)), ("64K", Some(65536)), ("3m", Some(3 << 20)), ("1G", Some(1 << 30))]
        {
            assert_eq!(bytes(text).ok(), want);
        }
        for wrong in ["", "0", "K", "-1", "1T", "1.5M", "99999999999G", "é"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
