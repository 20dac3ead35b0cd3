//! `vmlab record`: records the events of the running kernel's address space and per-CPU memory.
//!
//! # Theory
//! ```text
//!   recording on | table read | the command, the seconds, until ^C        | table read | off, buffers emptied
//!                ^            ^                                           ^            ^
//!                mark         mark                                        mark         mark
//! ```
//! Both tables are read while events are recorded, between marks in the same buffer. An event before the second mark
//! may be in the first table or not; a later one is not. So a replay can determine where to begin. The recorder's own
//! events are included, since they occurred. No table has the areas in the pools of nodes; so these can be emptied
//! before the first.

mod pipe;
pub(crate) mod snapshot;
pub(crate) mod tracefs;

use crate::cli::print_note;
use crate::trace::Sink;
use crate::trace::jsonl::{AreaLine, Header, Item, Number, StatsLine, Summary, VERSION, When};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pipe::Pipe;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use snapshot::Paths;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tracefs::Instance;
use vmlab_base::text::{counted, grouped};

/// Pause while the buffers are empty.
const PAUSE: Duration = Duration::from_millis(20);
/// Interval at which the output is flushed for readers.
const FLUSH: Duration = Duration::from_secs(1);
/// Time that a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of the command's words that are stored.
const COMMAND_BYTES: usize = 1024;

/// The options of a recording.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
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
pub(crate) fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot take signals")?;
    }
    let instance = Instance::make()?;
    let mut recorder = Recorder::begin(args, &instance)?;
    let status = recorder.record(args, &stop)?;
    let (counts, summary) = recorder.end(&instance)?;
    let shown = args.output.display();
    print_note(&format!(
        "{} in {:.1} s, ended by {}: {shown}",
        counted(counts.events, "event"),
        Duration::from_nanos(summary.took_ns.0).as_secs_f64(),
        summary.ended,
    ));
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
            bail!("the command failed ({status}); the recording is whole")
        }
        _ => Ok(()),
    }
}

/// A recording in progress.
struct Recorder {
    sink: Sink,
    pipe: Pipe<File>,
    bar: ProgressBar,
    started: Instant,
    ended: &'static str,
    /// Time of the last flush of the file.
    flushed: Instant,
}

impl Recorder {
    /// Switches recording on, and writes the header and the tables of the beginning.
    fn begin(args: &Args, instance: &Instance) -> Result<Self> {
        instance.set("tracing_on", "0")?;
        instance.set("buffer_size_kb", &args.buffer_kib.to_string())?;
        // One clock for all CPUs: by default each CPU has its own.
        instance.set("trace_clock", "mono")?;
        // Linux 5.12 and later. Without it pointers are hashes, unless the kernel was booted with no_hash_pointers.
        let raw = instance.set("trace_options", "nohash-ptr").is_ok();
        let pipe = Pipe::open(&instance.file("trace_pipe"))?;
        for group in ["vmalloc", "percpu"] {
            instance.set(&format!("events/{group}/enable"), "1")?;
        }
        let started = Instant::now();
        instance.set("tracing_on", "1")?;
        if args.drain_pools {
            std::fs::write("/proc/sys/vm/drop_caches", "2")
                .context("the kernel does not run its shrinkers")?;
            instance.set("trace_marker", "vmlab pools drained")?;
        }
        let table = Tables::read(instance, When::Begin)?;
        if table.hashed {
            print_note("addresses of /proc/vmallocinfo are hashes here, so that it does not identify areas");
        }
        if let Some(why) = &table.no_stats {
            print_note(why);
        }
        // Only after every step that may fail: this replaces an existing file.
        let mut sink = Sink::create(&args.output)?;
        sink.line(&Item::Header(Box::new(header(args, raw && !table.hashed))).to_json()?)?;
        table.write(When::Begin, &mut sink)?;
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Ok(Self { sink, pipe, bar, started, ended: "signal", flushed: started })
    }

    /// Writes events until the recording ends; returns the exit status of the command.
    fn record(&mut self, args: &Args, stop: &AtomicBool) -> Result<Option<ExitStatus>> {
        let mut child = Running::start(&args.command, args.output.as_os_str() == "-")?;
        let deadline = args.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        loop {
            let busy = self.pipe.step(&mut self.sink)?;
            self.show();
            if stop.load(Ordering::Relaxed) {
                self.ended = "signal";
            } else if deadline.is_some_and(|deadline| self.started.elapsed() >= deadline) {
                self.ended = "seconds";
            } else if args.max_bytes.is_some_and(|most| self.sink.bytes() >= most) {
                self.ended = "bytes";
            } else if !args.command.is_empty() && !child.lives()? {
                self.ended = "command";
            } else {
                if !busy {
                    std::thread::sleep(PAUSE);
                }
                continue;
            }
            break;
        }
        child.ask_to_end()?;
        // The command's events until it exits belong to the recording, and must not overflow the buffers.
        while child.lives()? {
            if !self.pipe.step(&mut self.sink)? {
                std::thread::sleep(PAUSE);
            }
            self.show();
        }
        child.status()
    }

    fn show(&mut self) {
        if self.flushed.elapsed() >= FLUSH {
            self.flushed = Instant::now();
            // An error will be reported by the next write.
            let _ = self.sink.flush();
        }
        if !self.bar.is_hidden() {
            let seconds = self.started.elapsed().as_secs();
            let (events, bytes) = (grouped(self.pipe.counts.events), grouped(self.sink.bytes()));
            let lost = counted(self.pipe.counts.lost, "event");
            self.bar
                .set_message(format!("{events} events, {bytes} bytes, {seconds} s, {lost} lost; ^C ends it"));
            self.bar.tick();
        }
    }

    /// Reads the tables again, switches recording off and writes the rest.
    fn end(mut self, instance: &Instance) -> Result<(pipe::Counts, Summary)> {
        self.bar.finish_and_clear();
        let table = Tables::read(instance, When::End)?;
        instance.set("tracing_on", "0")?;
        let took = self.started.elapsed();
        while self.pipe.step(&mut self.sink)? {}
        let counts = self.pipe.counts;
        table.write(When::End, &mut self.sink)?;
        let summary = Summary {
            events: Number(counts.events),
            // The kernel's counters include losses after the last event; the text includes those before a counter
            // wrapped.
            lost: Number(instance.lost()?.max(counts.lost)),
            left_out: Number(counts.left_out),
            ended: self.ended.to_string(),
            took_ns: Number(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
        };
        self.sink.line(&Item::Summary(Box::new(summary.clone())).to_json()?)?;
        self.sink.finish()?;
        Ok((counts, summary))
    }
}

/// The tables at one end of a recording.
struct Tables {
    areas: String,
    hashed: bool,
    stats: String,
    no_stats: Option<String>,
}

impl Tables {
    fn read(instance: &Instance, when: When) -> Result<Self> {
        let mark =
            |what: &str| instance.set("trace_marker", &format!("vmlab vmallocinfo {} {what}", when.name()));
        mark("opens")?;
        let areas = snapshot::vmallocinfo(&Paths::default())?;
        mark("closes")?;
        let (stats, no_stats) = match snapshot::percpu_stats() {
            Ok(stats) => (stats, None),
            Err(why) => (String::new(), Some(format!("{why:#}"))),
        };
        Ok(Self { areas: areas.text, hashed: areas.hashed, stats, no_stats })
    }

    fn write(&self, when: When, sink: &mut Sink) -> Result<()> {
        for line in self.areas.lines().filter(|line| !line.trim().is_empty()) {
            sink.line(&Item::Area(AreaLine::from_text(when, line)).to_json()?)?;
        }
        for line in self.stats.lines() {
            sink.line(&Item::Stats(StatsLine { when, text: line.into() }).to_json()?)?;
        }
        Ok(())
    }
}

fn header(args: &Args, raw: bool) -> Header {
    let system = rustix::system::uname();
    let mut room = COMMAND_BYTES;
    let fits = |word: &&String| {
        room = room.saturating_sub(word.len());
        room > 0
    };
    Header {
        version: Number(VERSION),
        kernel: system.release().to_string_lossy().into_owned(),
        build: system.version().to_string_lossy().into_owned(),
        machine: system.machine().to_string_lossy().into_owned(),
        cpus: Number(listed_cpus("possible")),
        online: Number(listed_cpus("online")),
        page_bytes: Number(rustix::param::page_size() as u64),
        clock: "mono".to_string(),
        pointers: if raw { "raw" } else { "hashed" }.to_string(),
        buffer_kib: Some(Number(args.buffer_kib.into())),
        unix_time: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .map(|since| Number(since.as_secs())),
        command: args.command.iter().take_while(fits).cloned().collect(),
    }
}

/// Returns the number of CPUs of a kind; 0 if it cannot be read.
fn listed_cpus(which: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}")).unwrap_or_default();
    count_listed(&text)
}

/// Returns the number of CPUs in a list in sysfs, such as `0-3,8`.
pub(crate) fn count_listed(text: &str) -> u64 {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    text.trim().split(',').filter_map(count).fold(0, u64::saturating_add)
}

/// The command, which may still run.
struct Running {
    child: Option<Child>,
    /// Time at which SIGTERM was sent.
    asked_to_end: Option<Instant>,
}

impl Running {
    /// Starts the command, if there is one. Its output does not mix with a recording on stdout.
    fn start(command: &[String], to_stdout: bool) -> Result<Self> {
        let Some((program, words)) = command.split_first() else {
            return Ok(Self { child: None, asked_to_end: None });
        };
        let stdout = if to_stdout { Stdio::from(std::io::stderr()) } else { Stdio::inherit() };
        let child = Command::new(program).args(words).stdout(stdout).spawn();
        Ok(Self { child: Some(child.with_context(|| format!("cannot run {program}"))?), asked_to_end: None })
    }

    /// Returns true if there is a command that has not exited. A command that got SIGTERM longer than [`GRACE`] ago is
    /// killed.
    fn lives(&mut self) -> Result<bool> {
        let Some(child) = &mut self.child else { return Ok(false) };
        if child.try_wait().context("cannot wait for the command")?.is_some() {
            return Ok(false);
        }
        if self.asked_to_end.is_some_and(|asked_to_end| asked_to_end.elapsed() >= GRACE) {
            child.kill().context("cannot kill the command")?;
        }
        Ok(true)
    }

    /// Sends SIGTERM to the command, if it still runs, and does not wait.
    fn ask_to_end(&mut self) -> Result<()> {
        if self.lives()?
            && let Some(child) = &self.child
        {
            // It may have exited just now.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            self.asked_to_end = Some(Instant::now());
        }
        Ok(())
    }

    /// Waits for the command, and returns its exit status, if there is one.
    fn status(mut self) -> Result<Option<ExitStatus>> {
        let Some(mut child) = self.child.take() else { return Ok(None) };
        Ok(Some(child.wait().context("cannot wait for the command")?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After an error, the command must not outlive the recording.
        let _ = self.ask_to_end();
        while let Ok(true) = self.lives() {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

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

    #[test]
    fn a_command_is_asked_to_end_and_may_live_on_meanwhile() {
        let none = Running::start(&[], false).unwrap();
        assert!(none.status().unwrap().is_none());

        let command = ["sleep", "600"].map(str::to_string);
        let mut running = Running::start(&command, false).unwrap();
        assert!(running.lives().unwrap() && running.asked_to_end.is_none());
        running.ask_to_end().unwrap();
        assert!(running.asked_to_end.is_some());
        while running.lives().unwrap() {
            std::thread::sleep(PAUSE);
        }
        assert_eq!(running.status().unwrap().unwrap().signal(), Some(libc::SIGTERM));

        let command = ["sh", "-c", "exit 3"].map(str::to_string);
        let mut running = Running::start(&command, false).unwrap();
        while running.lives().unwrap() {
            std::thread::sleep(PAUSE);
        }
        running.ask_to_end().unwrap();
        assert!(running.asked_to_end.is_none(), "it had ended by itself");
        assert_eq!(running.status().unwrap().unwrap().code(), Some(3));
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        for (text, want) in
            [("0-3,8\n", 5), ("0\n", 1), ("", 0), ("x,2-1,0-0", 1), ("0-18446744073709551615", 0)]
        {
            assert_eq!(count_listed(text), want, "{text}");
        }
    }
}
