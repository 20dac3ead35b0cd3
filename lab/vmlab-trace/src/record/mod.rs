//! Records the events of the running kernel's address space and per-CPU memory.
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
pub mod snapshot;
pub mod tracefs;

use crate::Sink;
use crate::jsonl::{AreaLine, Header, Item, Number, StatsLine, Summary, VERSION, When};
use anyhow::{Context, Result};
use pipe::Pipe;
use rustix::process::{Pid, Signal, kill_process};
use snapshot::Paths;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tracefs::Instance;

/// Pause while the buffers are empty.
const PAUSE: Duration = Duration::from_millis(20);
/// Interval at which the output is flushed for readers.
const FLUSH: Duration = Duration::from_secs(1);
/// Time that a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes of the command's words that are stored.
const COMMAND_BYTES: usize = 1024;

/// The options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Destination; `-` is standard output; `.gz` is compressed.
    pub output: PathBuf,
    /// End after so many seconds.
    pub seconds: Option<u32>,
    /// End once the file has so many bytes; the tables of the end follow.
    pub max_bytes: Option<u64>,
    /// KiB of the kernel's buffer for each CPU.
    pub buffer_kib: u32,
    /// Empty the kernel's pools of freed areas first, by its shrinkers: no table shows what is in them.
    pub drain_pools: bool,
    /// Record while this runs; without it, until the recording is stopped.
    pub command: Vec<String>,
}

/// The state of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Events that are written.
    pub events: u64,
    /// Bytes that are written.
    pub bytes: u64,
    /// Time since the recording began.
    pub time: Duration,
    /// Events that are lost, as far as the text says.
    pub lost: u64,
}

/// An observer of a recording.
pub trait Watch {
    /// Receives a warning.
    fn note(&mut self, line: &str);

    /// Receives the state, many times a second.
    fn progress(&mut self, now: &Progress);

    /// Is called when the last event is written, before the tables of the end.
    fn ends(&mut self);
}

/// The result of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Events that were written.
    pub events: u64,
    /// The last line of the recording.
    pub summary: Summary,
    /// The exit status of the command, if there was one.
    pub status: Option<ExitStatus>,
}

/// Records until the command or the time ends, or `stop` is set.
///
/// # Errors
/// If recording is not possible here; the file has everything recorded before.
pub fn record(options: &Options, stop: &AtomicBool, watch: &mut dyn Watch) -> Result<Recorded> {
    let instance = Instance::make()?;
    let mut recorder = Recorder::begin(options, &instance, watch)?;
    let status = recorder.record(options, stop)?;
    let (counts, summary) = recorder.end(&instance)?;
    Ok(Recorded { events: counts.events, summary, status })
}

/// A recording in progress.
struct Recorder<'w> {
    sink: Sink,
    pipe: Pipe<File>,
    watch: &'w mut dyn Watch,
    started: Instant,
    ended: &'static str,
    /// Time of the last flush of the file.
    flushed: Instant,
}

impl<'w> Recorder<'w> {
    /// Switches recording on, and writes the header and the tables of the beginning.
    fn begin(options: &Options, instance: &Instance, watch: &'w mut dyn Watch) -> Result<Self> {
        instance.set("tracing_on", "0")?;
        instance.set("buffer_size_kb", &options.buffer_kib.to_string())?;
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
        if options.drain_pools {
            std::fs::write("/proc/sys/vm/drop_caches", "2")
                .context("the kernel does not run its shrinkers")?;
            instance.set("trace_marker", "vmlab pools drained")?;
        }
        let table = Tables::read(instance, When::Begin)?;
        if table.hashed {
            watch.note("addresses of /proc/vmallocinfo are hashes here, so that it does not identify areas");
        }
        if let Some(why) = &table.no_stats {
            watch.note(why);
        }
        // Only after every step that may fail: this replaces an existing file.
        let mut sink = Sink::create(&options.output)?;
        sink.line(&Item::Header(Box::new(header(options, raw && !table.hashed))).to_json()?)?;
        table.write(When::Begin, &mut sink)?;
        Ok(Self { sink, pipe, watch, started, ended: "signal", flushed: started })
    }

    /// Writes events until the recording ends; returns the exit status of the command.
    fn record(&mut self, options: &Options, stop: &AtomicBool) -> Result<Option<ExitStatus>> {
        let mut child = Running::start(&options.command, options.output.as_os_str() == "-")?;
        let deadline = options.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        loop {
            let busy = self.pipe.step(&mut self.sink)?;
            self.show();
            if stop.load(Ordering::Relaxed) {
                self.ended = "signal";
            } else if deadline.is_some_and(|deadline| self.started.elapsed() >= deadline) {
                self.ended = "seconds";
            } else if options.max_bytes.is_some_and(|most| self.sink.bytes() >= most) {
                self.ended = "bytes";
            } else if !options.command.is_empty() && !child.lives()? {
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
        let pipe::Counts { events, lost, .. } = self.pipe.counts;
        let (bytes, time) = (self.sink.bytes(), self.started.elapsed());
        self.watch.progress(&Progress { events, bytes, time, lost });
    }

    /// Reads the tables again, switches recording off and writes the rest.
    fn end(mut self, instance: &Instance) -> Result<(pipe::Counts, Summary)> {
        self.watch.ends();
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

fn header(options: &Options, raw: bool) -> Header {
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
        buffer_kib: Some(Number(options.buffer_kib.into())),
        unix_time: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .map(|since| Number(since.as_secs())),
        command: options.command.iter().take_while(fits).cloned().collect(),
    }
}

/// Returns the number of CPUs of a kind; 0 if it cannot be read.
fn listed_cpus(which: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}")).unwrap_or_default();
    count_listed(&text)
}

/// Returns the number of CPUs in a list in sysfs, such as `0-3,8`.
pub fn count_listed(text: &str) -> u64 {
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
