//! A recording with its context: events with their time and CPU, marks, and the areas that were live at both ends.
//!
//! # Forms
//! Text of tracefs (marks among the events, tables in files beside it) or the lines of JSON that `vmlab record` writes
//! (tables inside). Reading streams and is bounded as in [`vmlab_trace`].
//!
//! # Marks
//! `vmallocinfo begin opens` and `closes` bound the time in which the table before was read, `vmallocinfo end ...` the
//! one after; `pools drained` records that the shrinkers just emptied the kernel's pools.

use crate::engine::{Step, What, window_or_all};
use std::io::Read;
use std::ops::ControlFlow;
use va_base::VaRange;
use vmlab_trace::Mark;
use vmlab_trace::jsonl::{AreaLine, Item, When};
use vmlab_trace::percpu::PercpuEvent;
use vmlab_trace::{EVENTS_MAX, Entry, Event, Happening, Line, Selection, each_line, parse, usual_window};

/// The most areas of a table that are stored.
const AREAS_MAX: usize = 1 << 20;

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
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

impl Areas {
    /// Reads a table in the kernel's format.
    pub fn read(input: impl Read) -> Self {
        let mut areas = Self::default();
        areas.cut_short = each_line(input, |_, text| {
            if !text.trim().is_empty() {
                areas.add(&AreaLine::from_text(When::Begin, text));
            }
            ControlFlow::Continue(())
        });
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
    /// True if later steps were removed: the tables of the end are of a later time.
    pub cut: bool,
    /// The window that most allocations name, if steps were removed.
    pub window: Option<(u64, u64)>,
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
        Self::read_part(input, &Selection::default())
    }

    /// As [`Self::read`]. The steps of the selection are counted, all others are only replayed, and those after its end
    /// are removed.
    pub fn read_part(input: impl Read, selection: &Selection) -> Self {
        let mut recording = Self { cpus: 1, ..Self::default() };
        recording.cut_short = each_line(input, |number, line| {
            if recording.steps.len() == EVENTS_MAX {
                return ControlFlow::Break("too many events");
            }
            recording.add(number, line, selection);
            ControlFlow::Continue(())
        });
        if let Some(to) = selection.to_ns {
            recording.cut(to);
        }
        recording
    }

    /// Removes the steps after the last one that is not later than a time.
    fn cut(&mut self, to_ns: u64) {
        let until = self.steps.iter().rposition(|step| step.ns <= to_ns).map_or(0, |at| at + 1);
        if until < self.steps.len() {
            self.window = usual_window(self.vm());
            self.cut = true;
            self.steps.truncate(until);
        }
    }

    /// Iterates over the events that change the address space.
    fn vm(&self) -> impl Iterator<Item = Event> + '_ {
        self.steps.iter().filter_map(|step| match step.what {
            What::Vm(event) => Some(event),
            What::Percpu(_) | What::Mark(_) => None,
        })
    }

    /// Returns the window that most allocations name.
    pub(crate) fn usual_window(&self) -> VaRange {
        window_or_all(self.window.or_else(|| usual_window(self.vm())))
    }

    /// Returns the number of allocations of areas that are counted, failed attempts included.
    pub fn allocs(&self) -> u64 {
        let is_alloc = |step: &&Step| matches!(step.what, What::Vm(Event::Alloc { .. })) && step.counted;
        self.steps.iter().filter(is_alloc).count() as u64
    }

    /// Returns true if there are allocations in percpu chunks.
    pub fn has_percpu(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.what, What::Percpu(PercpuEvent::Alloc { .. })))
    }

    fn add(&mut self, number: u64, line: &str, selection: &Selection) {
        let json = line.trim_start().starts_with('{');
        match json.then(|| Item::from_json(line.trim())) {
            Some(Ok(Some(item))) => return self.add_item(number, &item, selection),
            Some(Ok(None)) => return,
            // In text, the name of a task may also begin with `{`.
            Some(Err(_)) | None => {}
        }
        match Entry::from_text(line) {
            Some(entry) => self.add_entry(number, &entry, selection),
            None if json => self.bad += 1,
            None => match parse(line) {
                Line::Lost(events) => self.lost = self.lost.saturating_add(events),
                Line::Bad => self.bad += 1,
                Line::Event(_) | Line::Percpu | Line::Comment | Line::Mark(_) | Line::Other => {}
            },
        }
    }

    fn add_item(&mut self, number: u64, item: &Item<'_>, selection: &Selection) {
        match item {
            Item::Event(entry) => self.add_entry(number, entry, selection),
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
            Item::Stats(_) | Item::Stack(_) | Item::Summary(_) => {}
        }
    }

    fn add_entry(&mut self, line: u64, entry: &Entry<'_>, selection: &Selection) {
        let Some(what) = what(&entry.happening) else { return };
        let cpu = entry.cpu.unwrap_or(0);
        self.cpus = self.cpus.max(u32::from(cpu) + 1);
        let counted = selection.has(entry.ns, entry.cpu, entry.task.as_deref());
        self.steps.push(Step { line, ns: entry.ns.unwrap_or(0), cpu, what, counted });
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
        Happening::FailPercpu { .. }
        | Happening::Enter { .. }
        | Happening::Leave { .. }
        | Happening::LockBegin { .. }
        | Happening::LockEnd { .. } => return None,
        Happening::Mark { ref text } => What::Mark(Mark::from_text(text)?),
    })
}
