//! A recording with its context: events with their time and CPU, marks, and the areas that were live at both ends.
//!
//! # Forms
//! Text of tracefs (marks among the events, tables in files beside it) or the lines of JSON that `vmlab record` writes
//! (tables inside). Reading streams and is bounded as in [`vmlab_trace`].
//!
//! # Marks
//! `vmallocinfo begin opens` and `closes` bound the time in which the table before was read, `vmallocinfo end ...` the
//! one after; `pools drained` records that the shrinkers just emptied the kernel's pools.

use std::io::{BufReader, Read};
use vmlab_trace::jsonl::{AreaLine, Item, When};
use vmlab_trace::percpu::PercpuEvent;
use vmlab_trace::{EVENTS_MAX, Entry, Event, Happening, Line, parse};

/// The most areas of a table that are stored.
const AREAS_MAX: usize = 1 << 20;

/// The event of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The address space changed.
    Vm(Event),
    /// An event inside percpu chunks.
    Percpu(PercpuEvent),
    /// The kernel's pools were just emptied.
    Drained,
    /// The recorder begins to read a table.
    Opens(When),
    /// The recorder has read the table.
    Closes(When),
}

/// An event or a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Line of the recording, from 1.
    pub line: u64,
    /// Nanoseconds of the trace's clock; 0 if there is none.
    pub ns: u64,
    /// The CPU; 0 if none is named.
    pub cpu: u16,
    /// The event.
    pub what: What,
}

/// An area of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Bytes, guard page included.
    pub size: u64,
    /// True if it is freed and not yet purged.
    pub lazy: bool,
}

/// The areas of `/proc/vmallocinfo`, in the kernel's order: the busy ones node by node, then the lazy ones node by
/// node.
#[derive(Clone, Debug, Default)]
pub struct Areas {
    /// The areas of the lines that were understood.
    pub areas: Vec<Area>,
    /// Lines that were not understood, including those with hashed addresses.
    pub bad: u64,
}

impl Areas {
    /// Reads a table in the kernel's format.
    pub fn read(input: impl Read) -> Self {
        let mut areas = Self::default();
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        while let Ok(true) = vmlab_trace::read_line(&mut input, &mut line) {
            let text = String::from_utf8_lossy(&line);
            if !text.trim().is_empty() {
                areas.add(&AreaLine::from_text(When::Begin, &text));
            }
        }
        areas
    }

    fn add(&mut self, line: &AreaLine<'_>) {
        let (Some(start), Some(end), Some(bytes)) = (line.start, line.end, line.bytes) else {
            self.bad += 1;
            return;
        };
        // The size must be the difference of the addresses, which is not so for hashes.
        if bytes.0 == 0 || end.0.checked_sub(start.0) != Some(bytes.0) || self.areas.len() == AREAS_MAX {
            self.bad += 1;
            return;
        }
        let lazy = line.text.starts_with("unpurged vm_area");
        self.areas.push(Area { start: start.0, size: bytes.0, lazy });
    }
}

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The events, in order.
    pub steps: Vec<Step>,
    /// The table before.
    pub begin: Option<Areas>,
    /// The table after.
    pub end: Option<Areas>,
    /// Text of `percpu_stats`, if it was recorded.
    pub percpu_stats: String,
    /// Release of the kernel; empty if unknown.
    pub kernel: String,
    /// Possible CPUs: the number in the head, or one more than the highest CPU of an event, if that is greater.
    pub cpus: u32,
    /// Events of ours that were not understood.
    pub bad: u64,
    /// Events that the recorder reports as lost.
    pub lost: u64,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

impl Recording {
    /// Reads a recording. Errors in the middle of the input end it early and are stored in `cut_short`.
    pub fn read(input: impl Read) -> Self {
        let mut recording = Self { cpus: 1, ..Self::default() };
        let mut input = BufReader::with_capacity(1 << 16, input);
        let mut line = Vec::new();
        let mut lines = 0;
        loop {
            match vmlab_trace::read_line(&mut input, &mut line) {
                Ok(false) => break,
                Ok(true) if recording.steps.len() < EVENTS_MAX => {
                    lines += 1;
                    recording.add(lines, &String::from_utf8_lossy(&line));
                }
                Ok(true) => {
                    recording.cut_short = Some(format!("after line {lines}: too many events"));
                    break;
                }
                Err(error) => {
                    recording.cut_short = Some(format!("after line {lines}: {error}"));
                    break;
                }
            }
        }
        recording
    }

    /// Returns the number of allocations of areas, failed attempts included.
    pub fn allocs(&self) -> u64 {
        let is_alloc = |step: &&Step| matches!(step.what, What::Vm(Event::Alloc { .. }));
        self.steps.iter().filter(is_alloc).count() as u64
    }

    /// Returns true if there are allocations in percpu chunks.
    pub fn has_percpu(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.what, What::Percpu(PercpuEvent::Alloc { .. })))
    }

    fn add(&mut self, number: u64, line: &str) {
        if line.trim_start().starts_with('{') {
            return match Item::from_json(line.trim()) {
                Ok(Some(item)) => self.add_item(number, &item),
                Ok(None) => {}
                Err(_) => self.bad += 1,
            };
        }
        match Entry::from_text(line) {
            Some(entry) => self.add_entry(number, &entry),
            None => match parse(line) {
                Line::Lost(events) => self.lost = self.lost.saturating_add(events),
                Line::Bad => self.bad += 1,
                Line::Event(_) | Line::Percpu | Line::Comment | Line::Other => {}
            },
        }
    }

    fn add_item(&mut self, number: u64, item: &Item<'_>) {
        match item {
            Item::Event(entry) => self.add_entry(number, entry),
            Item::Area(area) => {
                let table = match area.when {
                    When::Begin => &mut self.begin,
                    When::End => &mut self.end,
                };
                table.get_or_insert_default().add(area);
            }
            Item::Lost(lost) => self.lost = self.lost.saturating_add(lost.events.0),
            Item::Stats(stats) if stats.when == When::Begin && self.percpu_stats.len() < 1 << 20 => {
                self.percpu_stats.push_str(&stats.text);
                self.percpu_stats.push('\n');
            }
            Item::Header(header) => {
                self.kernel.clone_from(&header.kernel);
                self.cpus = self.cpus.max(u32::try_from(header.cpus.0).unwrap_or(u32::MAX));
            }
            Item::Stats(_) | Item::Summary(_) => {}
        }
    }

    fn add_entry(&mut self, line: u64, entry: &Entry<'_>) {
        let Some(what) = what(&entry.happening) else { return };
        let cpu = entry.cpu.unwrap_or(0);
        self.cpus = self.cpus.max(u32::from(cpu) + 1);
        self.steps.push(Step { line, ns: entry.ns.unwrap_or(0), cpu, what });
    }
}

/// Returns the step of an entry; `None` if a replay does not use it.
fn what(happening: &Happening<'_>) -> Option<What> {
    Some(match *happening {
        Happening::AllocArea { va_start, size, align, vstart, vend, failed } => {
            What::Vm(Event::Alloc { addr: va_start, size, align, vstart, vend, failed: failed != 0 })
        }
        Happening::FreeArea { va_start, .. } => What::Vm(Event::Free { addr: va_start }),
        Happening::Purge { num_purged, .. } => What::Vm(Event::Purge { purged: num_purged }),
        Happening::CreateChunk { base_addr } => What::Vm(Event::ChunkCreate { base: base_addr }),
        Happening::DestroyChunk { base_addr } => What::Vm(Event::ChunkDestroy { base: base_addr }),
        Happening::AllocPercpu { reserved, is_atomic, size, align, base_addr, off, ptr, .. } => {
            What::Percpu(PercpuEvent::Alloc {
                base: base_addr,
                off,
                ptr,
                size,
                align,
                reserved: reserved != 0,
                atomic: is_atomic != 0,
            })
        }
        Happening::FreePercpu { base_addr, off, .. } => {
            What::Percpu(PercpuEvent::Free { base: base_addr, off })
        }
        Happening::FailPercpu { .. } => return None,
        Happening::Mark { ref text } => mark(text)?,
    })
}

/// Returns the meaning of a mark.
fn mark(text: &str) -> Option<What> {
    let mut words = text.strip_prefix("vmlab")?.split_whitespace();
    match (words.next()?, words.next()?, words.next()) {
        ("pools", "drained", None) => Some(What::Drained),
        ("vmallocinfo", when, Some(side)) => {
            let when = [When::Begin, When::End].into_iter().find(|known| known.name() == when)?;
            match side {
                "opens" => Some(What::Opens(when)),
                "closes" => Some(What::Closes(when)),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_say_the_same() {
        let text = "x-1 [000] 1.000001: tracing_mark_write: vmlab pools drained\n\
            x-1 [000] 1.000002: tracing_mark_write: vmlab vmallocinfo begin opens\n\
            x-1 [001] 1.000003: alloc_vmap_area: va_start: 4096 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
            x-1 [000] 1.000004: free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=9\n\
            x-1 [000] 1.000004: free_vmap_area_noflush: va_start=\n\
            CPU:1 [LOST 3 EVENTS]\n";
        let read = Recording::read(text.as_bytes());
        assert_eq!((read.steps.len(), read.allocs(), read.cpus, read.bad, read.lost), (4, 1, 2, 1, 3));
        let first = Step { line: 1, ns: 1_000_001_000, cpu: 0, what: What::Drained };
        assert_eq!((read.steps[0], read.steps[1].what), (first, What::Opens(When::Begin)));
        let json: String = text
            .lines()
            .filter_map(|line| Item::Event(Entry::from_text(line)?).to_json().ok())
            .map(|line| line + "\n")
            .collect();
        let area = r#"{"area":{"when":"begin","start":"0x1000","end":"0x3000","bytes":8192,"text":"unpurged vm_area"}}"#;
        let same = Recording::read(format!("{json}{area}\n").as_bytes());
        assert_eq!(same.steps, read.steps);
        let areas = same.begin.unwrap().areas;
        assert_eq!(areas, [Area { start: 0x1000, size: 0x2000, lazy: true }]);
    }

    #[test]
    fn cpus_without_an_event_count_where_the_head_lists_them() {
        let event = r#"{"event":"free_vmap_area_noflush","cpu":0,"va_start":"0x1000"}"#;
        for (cpus, want) in [("4", 4), ("0", 1), ("\"18446744073709551615\"", u32::MAX)] {
            let text = format!("{{\"vmlab\":{{\"version\":1,\"cpus\":{cpus}}}}}\n{event}\n");
            let read = Recording::read(text.as_bytes());
            assert_eq!((read.steps.len(), read.bad, read.cpus), (1, 0, want), "{text}");
        }
    }

    #[test]
    fn hashed_addresses_are_no_areas() {
        let text = "0x00000000a3eb8df1-0x0000000040ab02d3   20480 irq_init+0xca/0x100 vmap\n\
                    0xffffc90000000000-0xffffc90000005000   20480 irq_init+0xca/0x100 vmap\n\n";
        let areas = Areas::read(text.as_bytes());
        assert_eq!((areas.areas.len(), areas.bad), (1, 1));
    }
}
