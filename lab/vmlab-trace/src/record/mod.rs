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

mod overhead;
mod pipe;
pub mod probes;
mod recorder;
pub mod snapshot;
mod source;
mod ticks;
pub mod tracefs;

use recorder::listed_cpus;
pub use recorder::{BEGIN, Recorder, Tables, count_listed};
pub use source::{Settings, Source};

use crate::jsonl::{Probes, Summary};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause while the buffers are empty.
const PAUSE: Duration = Duration::from_millis(20);
/// Time that a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

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
    /// Record the call stack of each event.
    pub stacks: bool,
    /// Record the durations of the kernel's functions.
    pub latency: bool,
    /// Record waits for the allocators' locks.
    pub locks: bool,
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
    /// Calls that returned, of the functions with probes.
    pub calls: u64,
    /// CPUs in use.
    pub cpus: u64,
    /// The probes, if there were any.
    pub probes: Option<Probes>,
    /// The last line of the recording.
    pub summary: Summary,
    /// The exit status of the command, if there was one.
    pub status: Option<ExitStatus>,
}

/// The command of a recording could not be started.
#[derive(Debug)]
pub struct NotStarted {
    program: String,
    why: io::Error,
}

impl NotStarted {
    /// Returns true if there is no such program.
    pub fn is_absent(&self) -> bool {
        self.why.kind() == io::ErrorKind::NotFound
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run {}", self.program)
    }
}

impl std::error::Error for NotStarted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// Records until the command or the time ends, or `stop` is set.
///
/// # Errors
/// If recording is not possible here; the file has everything recorded before. If the command cannot be started
/// ([`NotStarted`]), the file is removed.
pub fn record(options: &Options, stop: &AtomicBool, watch: &mut dyn Watch) -> Result<Recorded> {
    let mut source = Source::open(Settings {
        buffer_kib: options.buffer_kib,
        stacks: options.stacks,
        latency: options.latency,
        locks: options.locks,
    })?;
    if options.stacks && !source.stacks() {
        bail!("this kernel writes no call stacks: they take CONFIG_STACKTRACE");
    }
    let started = source.started();
    if options.drain_pools {
        fs::write("/proc/sys/vm/drop_caches", "2").context("the kernel does not run its shrinkers")?;
        source.mark("vmlab pools drained")?;
    }
    let mut note = |line: &str| watch.note(line);
    let mut recorder = Recorder::begin(&options.output, &source, &options.command, started, &mut note)?;
    let (ended, status) = match until_the_end(options, &mut source, &mut recorder, stop, watch) {
        Err(error) if error.is::<NotStarted>() => {
            drop(recorder);
            discard(&options.output);
            return Err(error);
        }
        ended => ended?,
    };
    watch.ends();
    let table = Tables::read(&source, recorder::END)?;
    source.off()?;
    while source.step(&mut |item| recorder.take(item))? {}
    let (events, calls, probes) = (recorder.events(), recorder.calls(), source.probes());
    let summary = recorder.finish(&source, &table, ended)?;
    Ok(Recorded { events, calls, cpus: listed_cpus("online"), probes, summary, status })
}

/// Removes a recording that never began. A pipe stays, and so does a link, such as `/dev/stdout`, with its file.
fn discard(output: &Path) {
    if fs::symlink_metadata(output).is_ok_and(|file| file.is_file()) {
        // The error that is reported is that of the command.
        let _ = fs::remove_file(output);
    }
}

/// Writes events until the recording ends; returns the reason, and the exit status of the command.
fn until_the_end(
    options: &Options,
    source: &mut Source,
    recorder: &mut Recorder,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<(&'static str, Option<ExitStatus>)> {
    let mut step = |recorder: &mut Recorder| {
        let busy = source.step(&mut |item| recorder.take(item))?;
        recorder.flush();
        watch.progress(&Progress {
            events: recorder.events(),
            bytes: recorder.bytes(),
            time: recorder.time(),
            lost: recorder.lost(),
        });
        Ok::<_, anyhow::Error>(busy)
    };
    let mut child = Running::start(&options.command, options.output.as_os_str() == "-")?;
    let deadline = options.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let ended = loop {
        let busy = step(recorder)?;
        if stop.load(Ordering::Relaxed) {
            break "signal";
        }
        if deadline.is_some_and(|deadline| recorder.time() >= deadline) {
            break "seconds";
        }
        if options.max_bytes.is_some_and(|most| recorder.bytes() >= most) {
            break "bytes";
        }
        if !options.command.is_empty() && !child.lives()? {
            break "command";
        }
        if !busy {
            std::thread::sleep(PAUSE);
        }
    };
    child.ask_to_end()?;
    // The command's events until it exits belong to the recording, and must not overflow the buffers.
    while child.lives()? {
        if !step(recorder)? {
            std::thread::sleep(PAUSE);
        }
    }
    Ok((ended, child.status()?))
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
        let child = child.map_err(|why| NotStarted { program: program.clone(), why })?;
        Ok(Self { child: Some(child), asked_to_end: None })
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
    fn a_command_that_cannot_start_says_why_and_its_file_is_removed() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "no program").unwrap();
        for (program, is_absent) in [(dir.path().join("absent"), true), (path.clone(), false)] {
            let program = program.display().to_string();
            let error = Running::start(std::slice::from_ref(&program), false).err().unwrap();
            assert_eq!(error.downcast_ref::<NotStarted>().map(NotStarted::is_absent), Some(is_absent));
            assert!(format!("{error:#}").starts_with(&format!("cannot run {program}: ")), "{error:#}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        discard(&link);
        assert!(path.exists() && link.exists());
        discard(&path);
        discard(Path::new("-"));
        discard(dir.path());
        assert!(!path.exists() && dir.path().exists());
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
}
