//! The trace event format of Chrome, which Perfetto reads: areas as slices by caller, bytes as counters.
//!
//! # Theory
//! The events of the kernel do not name the caller of an area. `/proc/vmallocinfo` does, for areas that are live when
//! it is read. So a slice is written when its area is freed, or at the end, when both tables are known. It is grouped
//! by the function in the table, or else by the task that ran. The order of lines has no meaning in this format. Live
//! areas are stored from their allocation until their free.
//!
//! An area that existed when recording began has a slice from the first event on. A table is read while events occur:
//! an area in the table that an event also allocates is the same area.

use super::Form;
use crate::jsonl::{AreaLine, Header, Item, When};
use crate::{Entry, Happening, Sink};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The most areas, and the most objects, that are stored at once: more than any machine has. Others are counted and
/// omitted.
const OUT_MAX: usize = 4_000_000;
/// Bytes of a page if the input has no header.
const PAGE_BYTES: u64 = 4096;
/// The process ids under which slices and instants are grouped.
const AREAS: u32 = 1;
const EVENTS: u32 = 2;
const CALLS: u32 = 3;

/// Writes slices, counters and instants.
pub(crate) struct Chrome {
    sink: Sink,
    any: bool,
    header: Header,
    /// Live areas, by address.
    out: HashMap<u64, Out>,
    /// Sizes of live objects of per-CPU memory, by chunk and offset.
    objects: HashMap<(u64, u64), u64>,
    /// Callers of the areas that are live at the end.
    at_end: HashMap<u64, String>,
    bytes: Bytes,
    slices: u64,
    left_out: u64,
    lost: u64,
    /// Time of the first event, and of the last.
    span: Option<(u64, u64)>,
}

/// Values of the counters.
#[derive(Clone, Copy, Default)]
struct Bytes {
    live: u64,
    lazy: u64,
    percpu: u64,
}

/// A live area.
struct Out {
    /// The time of its allocation; none if it existed before recording.
    since: Option<u64>,
    bytes: u64,
    name: String,
    cpu: u16,
}

impl Chrome {
    pub(crate) fn new(sink: Sink) -> Result<Self> {
        let mut chrome = Self {
            sink,
            any: false,
            header: Header::default(),
            out: HashMap::new(),
            objects: HashMap::new(),
            at_end: HashMap::new(),
            bytes: Bytes::default(),
            slices: 0,
            left_out: 0,
            lost: 0,
            span: None,
        };
        chrome.sink.line("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (process, name) in
            [(AREAS, "vmalloc areas, by caller"), (EVENTS, "events"), (CALLS, "calls, by thread")]
        {
            chrome
                .write(&json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}))?;
        }
        Ok(chrome)
    }

    fn write(&mut self, event: &Value) -> Result<()> {
        let comma = if std::mem::replace(&mut self.any, true) { "," } else { "" };
        self.sink.line(&format!("{comma}{event}"))
    }

    fn event(&mut self, entry: &Entry<'_>) -> Result<()> {
        // An event without a time cannot be drawn.
        let Some(ns) = entry.ns else {
            self.left_out += 1;
            return Ok(());
        };
        let (first, last) = self.span.unwrap_or((ns, ns));
        self.span = Some((first.min(ns), last.max(ns)));
        let cpu = entry.cpu.unwrap_or(0);
        match entry.happening {
            Happening::AllocArea { va_start, size, failed: 0, .. } => {
                let name = format!("task {}", entry.task.as_deref().unwrap_or("unknown"));
                self.came(va_start, Out { since: Some(ns), bytes: size, name, cpu }, ns)?;
                self.counters(ns)
            }
            Happening::AllocArea { size, align, .. } => {
                self.instant(entry, ns, &json!({"size": size, "align": align, "failed": 1}))
            }
            Happening::FreeArea { va_start, nr_lazy, .. } => {
                let bytes = match self.out.remove(&va_start) {
                    Some(out) => {
                        self.bytes.live = self.bytes.live.saturating_sub(out.bytes);
                        self.slice(va_start, &out, ns)?;
                        out.bytes
                    }
                    None => 0,
                };
                let counted = nr_lazy.and_then(|pages| pages.checked_mul(self.page_bytes()));
                self.bytes.lazy = counted.unwrap_or_else(|| self.bytes.lazy.saturating_add(bytes));
                self.counters(ns)
            }
            Happening::Purge { num_purged, .. } => {
                if num_purged > 0 {
                    self.bytes.lazy = 0;
                }
                self.instant(entry, ns, &json!({"purged": num_purged}))?;
                self.counters(ns)
            }
            Happening::AllocPercpu { base_addr, off, size, bytes_alloc, .. } => {
                let bytes = bytes_alloc.unwrap_or(size);
                if self.objects.len() < OUT_MAX {
                    self.objects.insert((base_addr, off), bytes);
                    self.bytes.percpu = self.bytes.percpu.saturating_add(bytes);
                } else {
                    self.left_out += 1;
                }
                self.counter(ns, "per-CPU bytes, since the beginning", &json!({"live": self.bytes.percpu}))
            }
            Happening::FreePercpu { base_addr, off, .. } => {
                let bytes = self.objects.remove(&(base_addr, off)).unwrap_or(0);
                self.bytes.percpu = self.bytes.percpu.saturating_sub(bytes);
                self.counter(ns, "per-CPU bytes, since the beginning", &json!({"live": self.bytes.percpu}))
            }
            Happening::CreateChunk { base_addr } | Happening::DestroyChunk { base_addr } => {
                self.instant(entry, ns, &json!({"chunk": format!("{base_addr:#x}")}))
            }
            Happening::FailPercpu { size, align, .. } => {
                self.instant(entry, ns, &json!({"size": size, "align": align}))
            }
            // Perfetto nests the slices of a thread by their times.
            Happening::Enter { ref function, .. } => self.edge("B", entry, ns, function),
            Happening::Leave { ref function, .. } => self.edge("E", entry, ns, function),
            // A mutex begins twice and ends once: no slice.
            Happening::LockBegin { lock, .. } | Happening::LockEnd { lock, .. } => {
                self.instant(entry, ns, &json!({"lock": format!("{lock:#x}")}))
            }
            Happening::Mark { ref text } => self.instant(entry, ns, &json!({"text": text})),
        }
    }

    /// Adds a live area. A previous area at its address was freed without an event, or is the same one.
    fn came(&mut self, at: u64, area: Out, ns: u64) -> Result<()> {
        if let Some(before) = self.out.remove(&at) {
            self.bytes.live = self.bytes.live.saturating_sub(before.bytes);
            if before.since.is_some() {
                self.slice(at, &before, ns)?;
            }
        }
        if self.out.len() < OUT_MAX {
            self.bytes.live = self.bytes.live.saturating_add(area.bytes);
            self.out.insert(at, area);
        } else {
            self.left_out += 1;
        }
        Ok(())
    }

    fn table_line(&mut self, area: &AreaLine<'_>) -> Result<()> {
        let (Some(start), Some(bytes)) = (area.start, area.bytes) else { return Ok(()) };
        if area.text.starts_with("unpurged") {
            if area.when == When::Begin {
                self.bytes.lazy = self.bytes.lazy.saturating_add(bytes.0);
            }
            return Ok(());
        }
        let name = caller(&area.text);
        match area.when {
            When::Begin => self.came(start.0, Out { since: None, bytes: bytes.0, name, cpu: 0 }, 0),
            When::End => {
                if self.at_end.len() < OUT_MAX {
                    self.at_end.insert(start.0, name);
                }
                Ok(())
            }
        }
    }

    /// Writes the slice of an area that ended at `end`.
    fn slice(&mut self, at: u64, area: &Out, end: u64) -> Result<()> {
        let begin = area.since.or(self.span.map(|(first, _)| first)).unwrap_or(end);
        self.slices += 1;
        let id = format!("{:#x}", self.slices);
        let common = |phase: &str, ns: u64| json!({"ph": phase, "cat": "vmalloc", "name": area.name, "id": id, "ts": micros(ns), "pid": AREAS, "tid": area.cpu});
        let mut first = common("b", begin);
        first["args"] = json!({"address": format!("{at:#x}"), "bytes": area.bytes});
        self.write(&first)?;
        self.write(&common("e", end))
    }

    fn instant(&mut self, entry: &Entry<'_>, ns: u64, args: &Value) -> Result<()> {
        let (name, cpu) = (entry.happening.name(), entry.cpu.unwrap_or(0));
        self.write(&json!({"ph": "i", "s": "p", "name": name, "ts": micros(ns), "pid": EVENTS, "tid": cpu, "args": args}))
    }

    /// Writes an end of a call.
    fn edge(&mut self, phase: &str, entry: &Entry<'_>, ns: u64, function: &str) -> Result<()> {
        let thread = entry.pid.unwrap_or(0);
        self.write(&json!({"ph": phase, "name": function, "ts": micros(ns), "pid": CALLS, "tid": thread}))
    }

    fn counters(&mut self, ns: u64) -> Result<()> {
        let Bytes { live, lazy, .. } = self.bytes;
        self.counter(ns, "vmalloc bytes", &json!({"live": live, "lazy": lazy}))
    }

    fn counter(&mut self, ns: u64, name: &str, values: &Value) -> Result<()> {
        self.write(&json!({"ph": "C", "name": name, "ts": micros(ns), "pid": EVENTS, "args": values}))
    }

    fn page_bytes(&self) -> u64 {
        match self.header.page_bytes.0 {
            0 => PAGE_BYTES,
            bytes => bytes,
        }
    }
}

/// Microseconds, the unit of the format. Only a number parsed from text keeps all digits.
fn micros(ns: u64) -> Value {
    let text = format!("{}.{:03}", ns / 1000, ns % 1000);
    text.parse::<serde_json::Number>().map_or(Value::Null, Value::Number)
}

/// Returns the function of `FUNCTION+0x12/0x34 words`; other words unchanged. Both are cut to 120 characters.
fn caller(text: &str) -> String {
    let word = text.split_whitespace().next().unwrap_or("unknown");
    word.split_once("+0x").map_or(word, |(function, _)| function).chars().take(120).collect()
}

impl Form for Chrome {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        match item {
            Item::Event(entry) => self.event(entry),
            Item::Area(area) => self.table_line(area),
            Item::Header(header) => {
                self.header = (**header).clone();
                Ok(())
            }
            Item::Lost(lost) => {
                self.lost = self.lost.saturating_add(lost.events.0);
                Ok(())
            }
            Item::Summary(summary) => {
                self.lost = self.lost.max(summary.lost.0);
                Ok(())
            }
            Item::Stats(_) | Item::Stack(_) => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let last = self.span.map_or(0, |(_, last)| last);
        let mut left: Vec<(u64, Out)> = std::mem::take(&mut self.out).into_iter().collect();
        left.sort_unstable_by_key(|&(at, _)| at);
        for (at, mut area) in left {
            if let Some(name) = self.at_end.remove(&at) {
                area.name = name;
            }
            self.slice(at, &area, last)?;
        }
        let mut other = Map::new();
        other.insert("kernel".into(), self.header.kernel.clone().into());
        other.insert("lost_events".into(), self.lost.into());
        other.insert("left_out".into(), self.left_out.into());
        self.sink.line(&format!("],\"otherData\":{}}}", Value::Object(other)))?;
        self.sink.finish()
    }
}
