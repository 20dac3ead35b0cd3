//! The child: runs one task with one allocator, and reports its cost.
//!
//! # Theory
//! A child prints `go` after its warm-up and waits for a line. Then it measures, prints `end` and waits again. So its
//! parent can read the resident memory from outside, at these times and in between. Its last line has the measurements,
//! as JSON. Then another stretch of the same work is timed call by call. Reading the clock costs more than a cached
//! pair, so the first stretch excludes it. The lines are a protocol, so they go to standard output, not to the caller.

use super::driver::{Driver, Held, Kvs, Malloc, Mmap};
use super::measure::Resident;
use super::ops::{Calloc, Exchange, Grow, Memset, Mix, Pair, Producer, Sizes, ThreadOps, consume};
use super::sys;
use super::task::{ChildReport, How, Measured, Task, Touch, Ways, Work};
use crate::harness::{pin, pin_apart};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use vmalloc::{HugePages, Options, Vmalloc};

/// Lines that a child prints before it measures, and after.
pub(super) const GO: &str = "go";
pub(super) const END: &str = "end";

/// Requests only the version of the allocator.
pub(super) const IDENTIFY: &str = "who";

/// Runs a task, or prints the version of the allocator.
///
/// # Errors
/// If the text is not a task, `malloc` is not the library's, our allocator cannot be created, or the parent does not
/// listen.
pub fn main(text: &str) -> Result<()> {
    if text == IDENTIFY {
        let library = sys::malloc_library().context("malloc is nowhere")?;
        let version = sys::version().or_else(sys::libc_version).unwrap_or_default();
        return print_line(&format!("{}\n{version}", library.display()));
    }
    let task: Task = serde_json::from_str(text).context("no task")?;
    if let Some(library) = &task.library {
        let real = sys::malloc_library().context("malloc is nowhere")?;
        let same = real.canonicalize().ok() == library.canonicalize().ok();
        if !same {
            bail!("malloc comes from {}, not from {}", real.display(), library.display());
        }
    }
    let report = match task.how {
        How::Malloc => work(&Malloc, &task),
        How::LargeAlloc => work(&Kvs, &task),
        How::Mmap => work(&Mmap, &task),
        How::Vmalloc { cache_bytes_max, ways } => {
            let mut options = Options::default();
            options.cache_bytes_max = cache_bytes_max.unwrap_or(options.cache_bytes_max);
            match ways {
                Ways::Default => {}
                Ways::SmallPages => options.huge_pages = HugePages::Never,
                Ways::Guards => options.guards = true,
            }
            work(&Vmalloc::new(options)?, &task)
        }
    }?;
    print_line(&serde_json::to_string(&report)?)
}

fn print_line(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).context("no reader")
}

/// Prints a line and waits for one.
fn meet(line: &str) -> Result<()> {
    print_line(line)?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer).context("no answer")?;
    if read == 0 {
        bail!("no answer");
    }
    Ok(())
}

/// Runs a task's work with a driver.
fn work<H: Driver>(driver: &H, task: &Task) -> Result<ChildReport> {
    let touch = task.touch;
    let seed = |thread: usize| task.seed.wrapping_mul(1000).wrapping_add(thread as u64);
    match task.work {
        Work::Pair { bytes } => many(task, 2, |_| Pair { driver, bytes, align: None, touch }),
        Work::Aligned { bytes, align } => {
            many(task, 2, |_| Pair { driver, bytes, align: Some(align), touch })
        }
        Work::Mix { low, high, live } => {
            many(task, 4 * live as u64, |thread| Mix::new(driver, touch, (low, high), live, seed(thread)))
        }
        Work::Calloc { bytes } => many(task, 2, |_| Calloc { driver, bytes }),
        Work::Memset { bytes } => many(task, 2, |_| Memset::new(driver, bytes)),
        Work::Grow { low, high, growth } => many(task, 1, |_| Grow { driver, low, high, growth }),
        Work::Trim { count, bytes } => trim(driver, count, bytes),
        Work::Many { count, bytes } => hoard(driver, count, bytes),
        Work::Flow { bytes } => flow(driver, bytes, task),
        Work::Exchange { low, high, live } => {
            let slots: Vec<_> = (0..live).map(|_| Mutex::new(None)).collect();
            many(task, 2 * live as u64, |thread| Exchange {
                driver,
                touch,
                sizes: Sizes::new((low, high), seed(thread)),
                slots: &slots,
            })
        }
        Work::Burst { count, bytes, idle_ms } => {
            burst(driver, (count, bytes), touch, Duration::from_millis(idle_ms))
        }
    }
}

/// Number of allocations in transit from one thread to the other.
const ON_THE_WAY: usize = 16;

fn flow<H: Driver>(driver: &H, bytes: usize, task: &Task) -> Result<ChildReport> {
    let (to, from) = std::sync::mpsc::sync_channel::<Held<H>>(ON_THE_WAY);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Otherwise the scheduler may run both threads on one core for the whole task, and not for other
            // contenders.
            pin_apart();
            consume(driver, &from);
        });
        let to = Mutex::new(Some(to));
        let alone = Task { threads: 1, ..task.clone() };
        many(&alone, 4 * ON_THE_WAY as u64, |_| {
            // One thread creates one producer, so it is there. Without it, the consumer ends at once, and so does the
            // producer.
            let to = to.lock().ok().and_then(|mut to| to.take());
            let to = to.unwrap_or_else(|| std::sync::mpsc::sync_channel(1).0);
            Producer { driver, bytes, touch: task.touch, to }
        })
    })
}

/// Histogram of times by logarithm: 16 steps for each doubling.
#[doc(hidden)]
pub struct Times(Vec<u32>);

const STEPS: usize = 16;

impl Default for Times {
    fn default() -> Self {
        Self(vec![0; 64 * STEPS])
    }
}

impl Times {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let ns = (time.as_nanos() as u64).max(1);
        let log2 = ns.ilog2() as usize;
        let step = ((u128::from(ns) * STEPS as u128) >> log2) as usize - STEPS;
        self.0[log2 * STEPS + step] += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the upper end of the step that contains the 99th percentile; `None` if empty.
    pub fn p99(&self) -> Option<u64> {
        let all: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let mut below = all - all / 100;
        let at = self.0.iter().position(|&count| {
            let found = u64::from(count) >= below && below > 0;
            below = below.saturating_sub(u64::from(count));
            found
        })?;
        let (log2, step) = (at / STEPS, at % STEPS);
        Some((((STEPS + step + 1) as u128) << log2).div_euclid(STEPS as u128) as u64)
    }
}

/// The data that threads share.
struct Crowd<'a> {
    task: &'a Task,
    warm_up_ops: u64,
    meeting: Barrier,
    ops: AtomicU64,
    failed: AtomicBool,
    times: Mutex<Times>,
}

/// Runs the threads of a task, one of them the calling thread, each with its own operations.
fn many<J: ThreadOps>(
    task: &Task,
    warm_up_ops: u64,
    thread_ops: impl Fn(usize) -> J + Sync,
) -> Result<ChildReport> {
    if task.threads == 1 {
        pin();
    }
    let crowd = Crowd {
        task,
        warm_up_ops,
        meeting: Barrier::new(task.threads),
        ops: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        times: Mutex::new(Times::default()),
    };
    let (crowd, thread_ops) = (&crowd, &thread_ops);
    let measured = std::thread::scope(|scope| {
        for thread in 1..task.threads {
            scope.spawn(move || crowd.run(thread_ops(thread), None, |_| Ok(())));
        }
        crowd.lead(thread_ops(0))
    })?;
    if crowd.failed.load(Ordering::Relaxed) {
        return Ok(ChildReport::AllocFailed);
    }
    Ok(ChildReport::Measured(measured))
}

/// Mean RSS over operations.
struct Average {
    resident: Resident,
    bytes: f64,
    count: u64,
}

impl Average {
    fn new() -> Result<Self> {
        Ok(Self { resident: Resident::of(std::process::id())?, bytes: 0.0, count: 0 })
    }

    /// Adds the current resident memory. A failed read is not counted.
    fn add(&mut self) {
        if let Ok(bytes) = self.resident.read() {
            self.bytes += bytes;
            self.count += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.bytes / self.count as f64)
    }
}

/// The stages at which threads meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    WarmUp,
    Measured,
}

impl Crowd<'_> {
    /// Runs the first thread, which communicates for all.
    fn lead(&self, thread_ops: impl ThreadOps) -> Result<Measured> {
        let mut before = (Instant::now(), 0, 0);
        let mut measured = None;
        let mut statm = Average::new()?;
        self.run(thread_ops, Some(&mut statm), |stage| {
            match stage {
                Stage::WarmUp => {
                    meet(GO)?;
                    before = (Instant::now(), sys::process_cpu_ns(), sys::faults());
                }
                Stage::Measured => {
                    let (started, cpu_ns, faults) = before;
                    measured = Some(Measured {
                        ops: self.ops.load(Ordering::Relaxed),
                        cpu_ns: sys::process_cpu_ns() - cpu_ns,
                        wall_ns: started.elapsed().as_nanos() as u64,
                        p99_ns: 0,
                        faults: sys::faults() - faults,
                        rss_same: None,
                    });
                    meet(END)?;
                }
            }
            Ok(())
        })?;
        let mut measured = measured.context("nothing was measured")?;
        let p99 = self.times.lock().ok().and_then(|times| times.p99());
        measured.p99_ns = p99.unwrap_or(measured.wall_ns / measured.ops.max(1));
        measured.rss_same = statm.mean();
        Ok(measured)
    }

    /// Runs any thread. Even after a failure it meets the other threads, which would otherwise wait for ever.
    fn run(
        &self,
        mut thread_ops: impl ThreadOps,
        memory: Option<&mut Average>,
        mut alone: impl FnMut(Stage) -> Result<()>,
    ) -> Result<()> {
        let time = Duration::from_millis(self.task.ms);
        self.for_a_while(&mut thread_ops, time / 8, self.warm_up_ops);
        self.meeting.wait();
        let mut result = alone(Stage::WarmUp);
        self.meeting.wait();
        let ops = self.for_a_while(&mut thread_ops, time, 1);
        self.ops.fetch_add(ops, Ordering::Relaxed);
        self.meeting.wait();
        if result.is_ok() {
            result = alone(Stage::Measured);
        }
        self.meeting.wait();
        // If calls take that long, the counts suffice.
        if ops >= 8 {
            self.time_calls(&mut thread_ops, time / 4);
        }
        if self.task.same_ops > 0 {
            self.same_ops(&mut thread_ops, memory);
        }
        thread_ops.finish();
        result
    }

    /// Runs the operations that are the same for every contender, and averages the resident memory: a slow contender
    /// has run fewer operations before, and by chance smaller or larger ones.
    fn same_ops(&self, thread_ops: &mut impl ThreadOps, mut memory: Option<&mut Average>) {
        self.meeting.wait();
        thread_ops.restart();
        self.meeting.wait();
        for op in 0..self.task.same_ops + self.warm_up_ops {
            if self.ended(thread_ops) {
                break;
            }
            if let Some(memory) = memory.as_mut().filter(|_| op >= self.warm_up_ops) {
                memory.add();
            }
        }
        // No thread frees memory before all are done.
        self.meeting.wait();
    }

    fn ended(&self, thread_ops: &mut impl ThreadOps) -> bool {
        if self.failed.load(Ordering::Relaxed) || !thread_ops.step() {
            self.failed.store(true, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Works until a time has passed and at least `least` operations are done; returns their number.
    fn for_a_while(&self, thread_ops: &mut impl ThreadOps, time: Duration, least: u64) -> u64 {
        let end = Instant::now() + time;
        let (mut ops, mut batch) = (0, 1u64);
        loop {
            let started = Instant::now();
            if started >= end && ops >= least {
                return ops;
            }
            for _ in 0..batch {
                if self.ended(thread_ops) {
                    return ops;
                }
            }
            ops += batch;
            // Long enough that reading the clock does not matter, short enough that all end at the same time.
            let took = started.elapsed();
            match batch {
                _ if took < Duration::from_micros(50) => batch *= 2,
                2.. if took > Duration::from_micros(400) => batch /= 2,
                _ => {}
            }
        }
    }

    fn time_calls(&self, thread_ops: &mut impl ThreadOps, time: Duration) {
        let mut times = Times::default();
        let mut now = Instant::now();
        let end = now + time;
        while now < end && !self.ended(thread_ops) {
            let then = Instant::now();
            times.add(then - now);
            now = then;
        }
        if let Ok(mut all) = self.times.lock() {
            all.merge(&times);
        }
    }
}

/// Fills, frees and idles; its purpose is the memory that is resident at the end.
fn burst<H: Driver>(
    driver: &H,
    (count, bytes): (usize, usize),
    touch: Touch,
    idle: Duration,
) -> Result<ChildReport> {
    let mut times = Times::default();
    let mut held = Vec::with_capacity(count);
    meet(GO)?;
    let (started, cpu_ns, faults) = (Instant::now(), sys::process_cpu_ns(), sys::faults());
    for _ in 0..count {
        let now = Instant::now();
        let Some(mut more) = driver.alloc(bytes) else {
            return Ok(ChildReport::AllocFailed);
        };
        more.touch(touch);
        held.push(more);
        times.add(now.elapsed());
    }
    held.drain(..).for_each(|held| driver.free(held));
    let wall_ns = started.elapsed().as_nanos() as u64;
    std::thread::sleep(idle);
    // The release of memory during the idle time is part of the cost.
    let (cpu_ns, faults) = (sys::process_cpu_ns() - cpu_ns, sys::faults() - faults);
    let p99_ns = times.p99().unwrap_or_default();
    meet(END)?;
    Ok(ChildReport::Measured(Measured { ops: count as u64, cpu_ns, wall_ns, p99_ns, faults, rss_same: None }))
}

/// Allocates and touches many, frees every second one and trims; its purpose is the memory that is resident then.
fn trim<H: Driver>(driver: &H, count: usize, bytes: usize) -> Result<ChildReport> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(mut more) = driver.alloc(bytes) else {
            return Ok(ChildReport::AllocFailed);
        };
        more.touch(Touch::Pages);
        held.push(Some(more));
    }
    meet(GO)?;
    let (started, cpu_ns, faults) = (Instant::now(), sys::process_cpu_ns(), sys::faults());
    held.iter_mut().step_by(2).filter_map(Option::take).for_each(|held| driver.free(held));
    driver.trim();
    let wall_ns = started.elapsed().as_nanos() as u64;
    let (cpu_ns, faults) = (sys::process_cpu_ns() - cpu_ns, sys::faults() - faults);
    meet(END)?;
    held.drain(..).flatten().for_each(|held| driver.free(held));
    let ops = count as u64 / 2;
    Ok(ChildReport::Measured(Measured {
        ops,
        cpu_ns,
        wall_ns,
        p99_ns: wall_ns / ops.max(1),
        faults,
        rss_same: None,
    }))
}

/// Allocates many, and frees them after the parent has counted mappings.
fn hoard<H: Driver>(driver: &H, count: usize, bytes: usize) -> Result<ChildReport> {
    let mut held = Vec::with_capacity(count);
    meet(GO)?;
    let (started, cpu_ns, faults) = (Instant::now(), sys::process_cpu_ns(), sys::faults());
    for _ in 0..count {
        let Some(more) = driver.alloc(bytes) else {
            return Ok(ChildReport::AllocFailed);
        };
        held.push(more);
    }
    let wall_ns = started.elapsed().as_nanos() as u64;
    let (cpu_ns, faults) = (sys::process_cpu_ns() - cpu_ns, sys::faults() - faults);
    meet(END)?;
    held.drain(..).for_each(|held| driver.free(held));
    let p99_ns = wall_ns / count.max(1) as u64;
    Ok(ChildReport::Measured(Measured { ops: count as u64, cpu_ns, wall_ns, p99_ns, faults, rss_same: None }))
}
