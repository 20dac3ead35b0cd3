//! The events of the running kernel, item by item, from an instance of our own.

use super::overhead::{Cost, measure};
use super::pipe::{Counts, Pipe};
use super::probes::{self, Probes};
use super::ticks::{self, Ticks};
use super::tracefs::{Instance, own_name};
use crate::jsonl::{self, Address, Item, LockName, Number};
use crate::latency::LOCKS;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::Read;
use std::time::{Duration, Instant};

/// The events that are switched on.
const GROUPS: [&str; 2] = ["vmalloc", "percpu"];
/// The clock whose count is printed, and the time for which it is measured.
const COUNTER: &str = "x86-tsc";
const CLOCK_TIME: Duration = Duration::from_millis(200);
/// The mark that is written to measure the clock.
const CLOCK_MARK: &str = "vmlab clock";
/// Nanoseconds of a step of the kernel's text, if its clock does not count.
const TEXT_STEP_NS: u64 = 1000;

/// The options of a source.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// KiB of the kernel's buffer for each CPU.
    pub buffer_kib: u32,
    /// Have the kernel write the call stack of each event, if it can.
    pub stacks: bool,
    /// Add probes of the functions of [`Call`](crate::call::Call).
    pub latency: bool,
    /// Record waits for locks.
    pub locks: bool,
}

/// The events of the running kernel, switched on. They are switched off when this is dropped.
pub struct Source {
    // Before `instance`: the kernel does not remove an instance that is being read.
    pipe: Pipe<File>,
    instance: Instance,
    // After `instance`: the kernel does not remove a probe that an instance has switched on.
    probes: Option<Probes>,
    settings: Settings,
    locks: Vec<LockName>,
    raw: bool,
    stacks: bool,
    resolution_ns: u64,
    cost: Cost,
    notes: Vec<String>,
    started: Instant,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("raw", &self.raw).field("stacks", &self.stacks).finish_non_exhaustive()
    }
}

impl Source {
    /// Switches the events on.
    ///
    /// # Errors
    /// If recording is not possible here: the message has a remedy.
    pub fn open(settings: Settings) -> Result<Self> {
        // Declared before the instance, so that an error drops them after it.
        let mut probes = None;
        let instance = Instance::make()?;
        probes::remove_left(instance.root());
        instance.set("tracing_on", "0")?;
        instance.set("buffer_size_kb", &settings.buffer_kib.to_string())?;
        if settings.latency {
            probes = Some(Probes::offered(instance.root(), &own_name()?)?);
        }
        let counts = (settings.latency || settings.locks)
            && counter_is_good()
            && instance.set("trace_clock", COUNTER).is_ok();
        if !counts {
            // One clock for all CPUs: by default each CPU has its own.
            instance.set("trace_clock", "mono")?;
        }
        // Linux 5.12 and later. Without it pointers are hashes, unless the kernel was booted with no_hash_pointers.
        let raw = instance.set("trace_options", "nohash-ptr").is_ok();
        let mut file = Pipe::file(&instance.file("trace_pipe"))?;
        let ticks = if counts { Some(clock(&instance, &mut file)?) } else { None };
        let mut notes = Vec::new();
        let mut cost = Cost::default();
        // The kernel takes long to write them.
        let symbols = if settings.latency || settings.locks { probes::symbols() } else { Ok(String::new()) };
        let locks = match &symbols {
            Ok(symbols) if settings.locks => named_locks(symbols),
            _ => Vec::new(),
        };
        if let Some(probes) = &mut probes {
            let symbols = symbols?;
            match measure(&instance, probes, &symbols, &mut file, ticks.as_ref()) {
                Ok(measured) => cost = measured,
                Err(why) => notes.push(format!("the cost of probes is not measured: {why:#}")),
            }
            probes.remove()?;
            let lacks = probes.add_all(&symbols)?;
            if !lacks.is_empty() {
                notes.push(format!("this kernel has no function {}", probes::names(&lacks)));
            }
            instance.set(&format!("events/{}/enable", probes.group()), "1")?;
        }
        if settings.locks {
            lock_events(&instance)?;
        }
        let pipe = Pipe::new(file, ticks);
        let stacks = settings.stacks && triggers(&instance)?;
        for group in GROUPS {
            instance.set(&format!("events/{group}/enable"), "1")?;
        }
        let started = Instant::now();
        instance.set("tracing_on", "1")?;
        let resolution_ns = ticks.map_or(TEXT_STEP_NS, |ticks| ticks.resolution_ns());
        Ok(Self { pipe, instance, probes, settings, locks, raw, stacks, resolution_ns, cost, notes, started })
    }

    /// Passes the items on that the kernel has written; returns true if there was any input.
    ///
    /// # Errors
    /// If the kernel's buffer cannot be read; those of `each`.
    pub fn step(&mut self, each: &mut dyn FnMut(&Item<'_>) -> Result<()>) -> Result<bool> {
        self.pipe.step(each)
    }

    /// Returns the counts of the items.
    pub(super) fn counts(&self) -> Counts {
        self.pipe.counts
    }

    /// Returns the events lost so far: overwritten before they were read, or dropped.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn lost(&self) -> Result<u64> {
        // The kernel's counters include losses after the last event; the text includes those before a counter wrapped.
        Ok(self.instance.lost()?.max(self.pipe.counts.lost))
    }

    /// Writes a mark among the events.
    pub(super) fn mark(&self, text: &str) -> Result<()> {
        self.instance.set("trace_marker", text)
    }

    /// Switches recording off; what is in the buffers can still be read.
    pub(super) fn off(&self) -> Result<()> {
        self.instance.set("tracing_on", "0")
    }

    /// Returns true if addresses are printed as they are.
    pub(super) fn raw(&self) -> bool {
        self.raw
    }

    /// Returns true if call stacks are written.
    pub fn stacks(&self) -> bool {
        self.stacks
    }

    /// Returns the options.
    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns what could not be done, each in a sentence.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Describes the probes.
    pub(super) fn probes(&self) -> Option<jsonl::Probes> {
        let probes = self.probes.as_ref()?;
        Some(jsonl::Probes {
            kind: probes.kind().name().to_string(),
            functions: probes.functions().to_vec(),
            resolution_ns: Number(self.resolution_ns),
            measured_calls: Number(self.cost.calls),
            plain_ps: Number(self.cost.plain_ps),
            pair_ps: Number(self.cost.pair_ps),
            floor_ns: Number(self.cost.floor_ns),
        })
    }

    /// Returns the locks whose names the kernel shows, if their waits are recorded.
    pub(super) fn locks(&self) -> Vec<LockName> {
        self.locks.clone()
    }

    /// Returns the time at which the events were switched on.
    pub(super) fn started(&self) -> Instant {
        self.started
    }
}

/// Returns the locks of the allocators among the kernel's symbols.
fn named_locks(symbols: &str) -> Vec<LockName> {
    let lock = |line: &str| {
        let mut words = line.split_whitespace();
        let at = u64::from_str_radix(words.next()?, 16).ok().filter(|&at| at > 0)?;
        let name = words.nth(1).filter(|name| LOCKS.contains(name))?;
        words.next().is_none().then(|| LockName { name: name.to_string(), at: Address(at) })
    };
    symbols.lines().filter_map(lock).collect()
}

/// Returns true if the count of all CPUs is one clock: the system keeps its time by it.
fn counter_is_good() -> bool {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.unwrap_or_default().trim() {
        "tsc" => true,
        "kvm-clock" => {
            let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let flags = about.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            ["constant_tsc", "nonstop_tsc"]
                .iter()
                .all(|flag| flags.split_whitespace().any(|word| word == *flag))
        }
        _ => false,
    }
}

/// Measures the clock that counts.
fn clock(instance: &Instance, pipe: &mut File) -> Result<Ticks> {
    instance.set("tracing_on", "1")?;
    let first = moment(instance, pipe)?;
    std::thread::sleep(CLOCK_TIME);
    let second = moment(instance, pipe)?;
    instance.set("tracing_on", "0")?;
    Ticks::between(first, second).with_context(|| format!("the clock {COUNTER} does not run"))
}

/// Returns a count and its time: of some marks the one that was written in the shortest time.
fn moment(instance: &Instance, pipe: &mut File) -> Result<(u64, u64)> {
    let mut best: Option<(u64, (u64, u64))> = None;
    for _ in 0..5 {
        let before = ticks::now();
        instance.set("trace_marker", CLOCK_MARK)?;
        let took = ticks::now().saturating_sub(before);
        let mut text = vec![0; 1 << 16];
        let mut count = None;
        // The pipe has the mark, unless a signal interrupts.
        for _ in 0..100 {
            let bytes = pipe.read(&mut text).unwrap_or(0);
            let lines = text[..bytes].split(|&byte| byte == b'\n');
            count = lines.rev().find_map(ticks::count).map(|(count, _)| count);
            if count.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(count) = count else { bail!("tracefs: the clock {COUNTER} is not in trace_pipe") };
        if best.is_none_or(|(least, _)| took < least) {
            best = Some((took, (count, before + took / 2)));
        }
    }
    best.map(|(_, moment)| moment).context("no mark was written")
}

/// Switches the events of locks on.
fn lock_events(instance: &Instance) -> Result<()> {
    if !instance.file("events/lock/contention_begin").is_dir() {
        bail!("this kernel has no events of lock waits: they came with Linux 5.19, and take CONFIG_TRACING");
    }
    if instance.set("events/lock/contention_begin/trigger", "stacktrace").is_err() {
        bail!("this kernel writes no call stacks, which tell whose lock it is: they take CONFIG_STACKTRACE");
    }
    for event in ["contention_begin", "contention_end"] {
        instance.set(&format!("events/lock/{event}/enable"), "1")?;
    }
    Ok(())
}

/// Sets the trigger of each event; returns false if the kernel has no call stacks.
fn triggers(instance: &Instance) -> Result<bool> {
    for group in GROUPS {
        let events = instance.file(&format!("events/{group}"));
        for event in
            std::fs::read_dir(&events).with_context(|| format!("cannot read {}", events.display()))?
        {
            let trigger = event?.path().join("trigger");
            if trigger.is_file() && std::fs::write(&trigger, "stacktrace").is_err() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_named_by_their_symbols() {
        let symbols = "ffffffff82a00040 b vmap_purge_lock\nffffffff82a00050 d pcpu_lock [m]\n\
            0000000000000000 d pcpu_lock\nffffffff82a00060 D other_lock\nx\n";
        let lock = LockName { name: "vmap_purge_lock".to_string(), at: Address(0xffff_ffff_82a0_0040) };
        assert_eq!(named_locks(symbols), [lock]);
    }
}
