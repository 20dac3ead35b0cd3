//! The events of the running kernel, item by item, from an instance of our own.

use super::pipe::{Counts, Pipe};
use super::tracefs::Instance;
use crate::jsonl::Item;
use anyhow::{Context, Result};
use std::fs::File;
use std::time::Instant;

/// The events that are switched on.
const GROUPS: [&str; 2] = ["vmalloc", "percpu"];

/// The options of a source.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// KiB of the kernel's buffer for each CPU.
    pub buffer_kib: u32,
    /// Have the kernel write the call stack of each event, if it can.
    pub stacks: bool,
}

/// The events of the running kernel, switched on. They are switched off when this is dropped.
pub struct Source {
    // Before `instance`: the kernel does not remove an instance that is being read.
    pipe: Pipe<File>,
    instance: Instance,
    settings: Settings,
    raw: bool,
    stacks: bool,
    started: Instant,
}

impl Source {
    /// Switches the events on.
    ///
    /// # Errors
    /// If recording is not possible here: the message has a remedy.
    pub fn open(settings: Settings) -> Result<Self> {
        let instance = Instance::make()?;
        instance.set("tracing_on", "0")?;
        instance.set("buffer_size_kb", &settings.buffer_kib.to_string())?;
        // One clock for all CPUs: by default each CPU has its own.
        instance.set("trace_clock", "mono")?;
        // Linux 5.12 and later. Without it pointers are hashes, unless the kernel was booted with no_hash_pointers.
        let raw = instance.set("trace_options", "nohash-ptr").is_ok();
        let pipe = Pipe::open(&instance.file("trace_pipe"))?;
        let stacks = settings.stacks && triggers(&instance)?;
        for group in GROUPS {
            instance.set(&format!("events/{group}/enable"), "1")?;
        }
        let started = Instant::now();
        instance.set("tracing_on", "1")?;
        Ok(Self { pipe, instance, settings, raw, stacks, started })
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

    /// Returns the time at which the events were switched on.
    pub(super) fn started(&self) -> Instant {
        self.started
    }
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
