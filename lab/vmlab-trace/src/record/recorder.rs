//! A recording that is being written.

use super::pipe::Counts;
use super::snapshot::{self, Paths};
use super::source::Source;
use crate::event::Mark;
use crate::jsonl::{AreaLine, Header, Item, Number, StatsLine, Summary, VERSION, When};
use crate::{Happening, Sink};
use anyhow::Result;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Interval at which the output is flushed for readers.
const FLUSH: Duration = Duration::from_secs(1);
/// Bytes of the command's words that are stored.
const COMMAND_BYTES: usize = 1024;

/// The names of the marks around the tables of a recording.
pub const BEGIN: &str = "vmallocinfo begin";
pub(super) const END: &str = "vmallocinfo end";

/// A recording that is being written: the items of a [`Source`] from a time on.
pub struct Recorder {
    sink: Sink,
    counts: Counts,
    calls: u64,
    /// The source's counts at the beginning.
    lost_before: u64,
    left_out_before: u64,
    started: Instant,
    /// Time of the last flush of the file.
    flushed: Instant,
    /// True once the mark behind the table of the end was taken.
    closed: bool,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Reads the table of the beginning, and writes it and the header. Passes warnings to `note`.
    ///
    /// # Errors
    /// If a table cannot be read, or the file cannot be written.
    pub fn begin(
        output: &Path,
        source: &Source,
        command: &[String],
        started: Instant,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let table = Tables::read(source, BEGIN)?;
        if table.hashed {
            note("addresses of /proc/vmallocinfo are hashes here, so that it does not identify areas");
        }
        if let Some(why) = &table.no_stats {
            note(why);
        }
        source.notes().iter().for_each(|why| note(why));
        // Only after every step that may fail: this replaces an existing file.
        let mut sink = Sink::create(output)?;
        sink.line(&Item::Header(Box::new(header(source, command, !table.hashed))).to_json()?)?;
        table.write(When::Begin, &mut sink)?;
        let counts = source.counts();
        Ok(Self {
            sink,
            counts: Counts::default(),
            calls: 0,
            lost_before: counts.lost,
            left_out_before: counts.left_out,
            started,
            flushed: Instant::now(),
            closed: false,
        })
    }

    /// Writes an item of the source.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn take(&mut self, item: &Item<'_>) -> Result<()> {
        match item {
            Item::Event(entry) => {
                self.counts.events += 1;
                match &entry.happening {
                    Happening::Leave { .. } => self.calls += 1,
                    Happening::Mark { text } => {
                        self.closed |= Mark::from_text(text) == Some(Mark::Closes(When::End));
                    }
                    _ => {}
                }
            }
            Item::Lost(lost) => self.counts.lost = self.counts.lost.saturating_add(lost.events.0),
            _ => {}
        }
        self.sink.line(&item.to_json()?)
    }

    /// Writes buffered lines, once a second, so that the file can be read.
    pub fn flush(&mut self) {
        if self.flushed.elapsed() >= FLUSH {
            self.flushed = Instant::now();
            // An error will be reported by the next write.
            let _ = self.sink.flush();
        }
    }

    /// Returns the events that are written.
    pub fn events(&self) -> u64 {
        self.counts.events
    }

    /// Returns the calls that returned.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns the bytes that are written.
    pub fn bytes(&self) -> u64 {
        self.sink.bytes()
    }

    /// Returns the time since the recording began.
    pub fn time(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the events that are lost, as far as the text says.
    pub(super) fn lost(&self) -> u64 {
        self.counts.lost
    }

    /// Ends a recording whose source goes on: reads the tables of the end, and writes the items up to them. `each`
    /// receives these items, too.
    ///
    /// # Errors
    /// If a table cannot be read, or the file cannot be written; those of `each`.
    pub fn end(
        mut self,
        source: &mut Source,
        each: &mut dyn FnMut(&Item<'_>) -> Result<()>,
    ) -> Result<Summary> {
        let table = Tables::read(source, END)?;
        loop {
            let any = source.step(&mut |item| {
                self.take(item)?;
                each(item)
            })?;
            if self.closed || !any {
                break;
            }
        }
        self.finish(source, &table, "key")
    }

    /// Writes the tables of the end and the summary.
    pub(super) fn finish(mut self, source: &Source, table: &Tables, ended: &str) -> Result<Summary> {
        table.write(When::End, &mut self.sink)?;
        let summary = Summary {
            events: Number(self.counts.events),
            lost: Number(source.lost()?.saturating_sub(self.lost_before).max(self.counts.lost)),
            left_out: Number(source.counts().left_out - self.left_out_before),
            ended: ended.to_string(),
            took_ns: Number(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        };
        self.sink.line(&Item::Summary(Box::new(summary.clone())).to_json()?)?;
        self.sink.finish()?;
        Ok(summary)
    }
}

/// The tables at one time, read between marks.
#[derive(Debug)]
pub struct Tables {
    areas: String,
    hashed: bool,
    stats: String,
    no_stats: Option<String>,
}

impl Tables {
    /// Reads the tables, between marks of that name in the source.
    ///
    /// # Errors
    /// If the table of areas cannot be read.
    pub fn read(source: &Source, name: &str) -> Result<Self> {
        let mark = |what: &str| source.mark(&format!("vmlab {name} {what}"));
        mark("opens")?;
        let areas = snapshot::vmallocinfo(&Paths::default())?;
        mark("closes")?;
        let (stats, no_stats) = match snapshot::percpu_stats() {
            Ok(stats) => (stats, None),
            Err(why) => (String::new(), Some(format!("{why:#}"))),
        };
        Ok(Self { areas: areas.text, hashed: areas.hashed, stats, no_stats })
    }

    /// The text of `/proc/vmallocinfo`; none if its addresses are hashes.
    pub fn areas(&self) -> Option<&str> {
        (!self.hashed).then_some(&self.areas)
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

fn header(source: &Source, command: &[String], raw_table: bool) -> Header {
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
        pointers: if source.raw() && raw_table { "raw" } else { "hashed" }.to_string(),
        buffer_kib: Some(Number(source.settings().buffer_kib.into())),
        unix_time: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .map(|since| Number(since.as_secs())),
        probes: source.probes(),
        locks: if source.raw() { source.locks() } else { Vec::new() },
        command: command.iter().take_while(fits).cloned().collect(),
        ..Header::default()
    }
}

/// Returns the number of CPUs of a kind; 0 if it cannot be read.
pub(super) fn listed_cpus(which: &str) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (text, want) in
            [("0-3,8\n", 5), ("0\n", 1), ("", 0), ("x,2-1,0-0", 1), ("0-18446744073709551615", 0)]
        {
            assert_eq!(count_listed(text), want, "{text}");
        }
    }
}
