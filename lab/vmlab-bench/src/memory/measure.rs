//! Runs a child and observes it from outside.

use super::child::{END, GO};
use super::contenders::{Contender, last_line};
use super::task::{ChildReport, Spec, Task};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = 4096;
/// Interval at which resident memory is read.
const SAMPLE_EVERY: Duration = Duration::from_micros(500);
/// Time that a child may need beyond the measured time.
const PATIENCE: Duration = Duration::from_secs(60);

/// One run of one child.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// CPU time of an operation, in nanoseconds.
    pub cpu_ns: f64,
    /// Wall time of an operation of all threads together.
    pub wall_ns: f64,
    pub p99_ns: f64,
    pub faults: f64,
    /// Resident bytes: the mean over the measured time, the maximum in it, at its end, and the maximum ever.
    pub rss_mean: f64,
    /// The mean over operations that are the same for all; without such operations, over the measured time.
    pub rss_same: f64,
    pub rss_peak: f64,
    pub rss_end: f64,
    pub rss_ever: f64,
    /// Mappings at the end of the measured time.
    pub mappings: f64,
}

/// The reason why there is no sample.
#[derive(Debug)]
pub(super) enum Failure {
    /// The allocator cannot allocate the memory: a result.
    AllocFailed,
    /// The child crashed, hung, or printed an unexpected line: not a result.
    InvariantViolation(anyhow::Error),
}

/// Resident bytes of another process over time.
pub struct Resident {
    statm: File,
    last: Option<(Instant, f64)>,
    /// Integral of bytes over seconds, seconds, maximum of bytes.
    area: f64,
    seconds: f64,
    pub peak: f64,
}

impl Resident {
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/statm");
        let statm = File::open(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(Self { statm, last: None, area: 0.0, seconds: 0.0, peak: 0.0 })
    }

    /// Returns the current value.
    pub fn read(&self) -> Result<f64> {
        let mut buffer = [0; 128];
        let bytes = self.statm.read_at(&mut buffer, 0).context("cannot read statm")?;
        let text = String::from_utf8_lossy(&buffer[..bytes]);
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        Ok((pages.context("statm has no second number")? * PAGE_BYTES) as f64)
    }

    /// Adds the current resident memory.
    pub fn sample(&mut self) -> Result<f64> {
        let (now, bytes) = (Instant::now(), self.read()?);
        if let Some((then, before)) = self.last {
            let seconds = (now - then).as_secs_f64();
            self.area += (bytes + before) / 2.0 * seconds;
            self.seconds += seconds;
        }
        self.peak = self.peak.max(bytes);
        self.last = Some((now, bytes));
        Ok(bytes)
    }

    pub fn mean(&self) -> f64 {
        if self.seconds > 0.0 { self.area / self.seconds } else { self.peak }
    }
}

/// Returns the most bytes that were ever resident.
pub fn ever(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    Ok(kib.context("no VmHWM")? * 1024.0)
}

/// Returns the number of mappings of a process.
fn mappings(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/maps");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.lines().count() as f64)
}

/// Runs a child of a contender once.
pub(super) fn run(contender: &Contender, spec: &Spec, ms: u64, seed: u64) -> Result<Sample, Failure> {
    let (work, touch, threads) = (spec.work, spec.touch, spec.threads);
    let (how, library) = (contender.how, contender.library.clone());
    let task =
        Task { how, library, work, touch, threads, ms: ms * spec.times_ms, seed, same_ops: spec.same_ops() };
    child(contender, &task).map_err(|failure| match failure {
        Failure::InvariantViolation(error) => {
            Failure::InvariantViolation(error.context(format!("{} on {}", contender.name, spec.name)))
        }
        Failure::AllocFailed => Failure::AllocFailed,
    })
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::InvariantViolation(error)
    }
}

fn child(contender: &Contender, task: &Task) -> Result<Sample, Failure> {
    let text = serde_json::to_string(task).context("a task is no text")?;
    let mut child = contender.command(&text)?.spawn().context("no child")?;
    let watched = watch(&mut child, Duration::from_millis(task.ms));
    // The child must not outlive this function, whatever the outcome.
    let _ = child.kill();
    watched
}

/// The stage of a child.
enum Stage {
    Warming,
    Measuring,
    Ended { rss_end: f64, rss_ever: f64, mappings: f64 },
}

fn watch(child: &mut Child, time: Duration) -> Result<Sample, Failure> {
    let mut stdin = child.stdin.take().context("a child without stdin")?;
    let lines = lines_of(child)?;
    let mut resident = Resident::of(child.id())?;
    let mut stage = Stage::Warming;
    let end = Instant::now() + time + PATIENCE;
    loop {
        let line = match lines.recv_timeout(SAMPLE_EVERY) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                return Err(Failure::InvariantViolation(anyhow!("it hangs")));
            }
            Err(RecvTimeoutError::Timeout) => {
                if matches!(stage, Stage::Measuring) {
                    resident.sample()?;
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Err(ended(child)),
        };
        match (&stage, line.as_str()) {
            (Stage::Warming, GO) => {
                resident.sample()?;
                stage = Stage::Measuring;
                answer(&mut stdin, child)?;
            }
            (Stage::Measuring, END) => {
                stage = Stage::Ended {
                    rss_end: resident.sample()?,
                    rss_ever: ever(child.id())?,
                    mappings: mappings(child.id())?,
                };
                answer(&mut stdin, child)?;
            }
            (stage, line) => {
                let unknown = || format!("a child says {line:?}");
                let measured = match serde_json::from_str(line).with_context(unknown)? {
                    ChildReport::AllocFailed => return Err(Failure::AllocFailed),
                    ChildReport::Measured(measured) => measured,
                };
                let &Stage::Ended { rss_end, rss_ever, mappings } = stage else {
                    return Err(Failure::InvariantViolation(anyhow!(
                        "a child has results before it measured"
                    )));
                };
                // Memory is freed between this line and the end, so a crash there counts.
                let status = child.wait().context("no child to wait for")?;
                if !status.success() {
                    return Err(ended(child));
                }
                let ops = measured.ops.max(1) as f64;
                return Ok(Sample {
                    cpu_ns: measured.cpu_ns as f64 / ops,
                    wall_ns: measured.wall_ns as f64 / ops,
                    p99_ns: measured.p99_ns as f64,
                    faults: measured.faults as f64 / ops,
                    rss_mean: resident.mean(),
                    rss_same: measured.rss_same.unwrap_or(resident.mean()),
                    rss_peak: resident.peak,
                    rss_end,
                    rss_ever,
                    mappings,
                });
            }
        }
    }
}

/// Returns the child's lines as they arrive, from a thread that ends with the child.
fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let stdout = child.stdout.take().context("a child without stdout")?;
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    Ok(lines)
}

fn answer(stdin: &mut ChildStdin, child: &mut Child) -> Result<(), Failure> {
    writeln!(stdin).map_err(|_| ended(child))
}

/// Returns the reason why a child ended unexpectedly.
fn ended(child: &mut Child) -> Failure {
    let broken = |child: &mut Child| -> Result<()> {
        let status = child.wait().context("no child to wait for")?;
        let mut text = Vec::new();
        if let Some(stderr) = &mut child.stderr {
            stderr.read_to_end(&mut text)?;
        }
        bail!("the child ended with {status}{}", last_line(&text))
    };
    Failure::InvariantViolation(broken(child).err().unwrap_or_else(|| anyhow!("the child ended")))
}
