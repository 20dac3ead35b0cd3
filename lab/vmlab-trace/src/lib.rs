//! Event traces of a kernel's `vmalloc` and `percpu` events.
//!
//! The reader accepts three forms of text: tracefs `trace`, `trace-cmd report` and `perf script`. It distinguishes them
//! line by line, since they differ only before the event's name. It also accepts the recordings of `vmlab record`
//! ([`jsonl`]).
//!
//! # Memory
//! Input may be hostile, and a megabyte of gzip may expand to a gigabyte of text. The reader streams, and cuts a line
//! longer than [`LINE_MAX`]. It stores some 70 bytes for each event and a few lines of text, and stops at
//! [`EVENTS_MAX`] events. Lines without one of our events cost time only.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod allocinfo;
pub mod call;
pub mod calls;
pub mod convert;
mod entry;
mod event;
mod fields;
pub mod flame;
mod head;
mod items;
pub mod jsonl;
pub mod latency;
mod line;
pub mod live;
pub mod percpu;
pub mod record;
mod selection;
pub mod shipped;
mod sink;
mod source;
pub mod stack;
pub mod standing;
pub mod vmallocinfo;

pub use entry::{Entry, Happening};
pub use event::{Event, Line, Mark};
pub use head::{task, time_ns};
pub use items::{Census, Next, items};
pub(crate) use line::lost_at;
pub use line::{cpu, parse};
pub use selection::{Range, Selection, usual_window};
pub use sink::Sink;
pub use source::{Begun, decompress, of_known_version, open};

use jsonl::{Header, Item, Summary, When};
use standing::{Standing, standing};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use vmallocinfo::Table;

/// Longest line that is parsed, in bytes.
pub const LINE_MAX: usize = 16 * 1024;
/// The most events of one trace: ten times the content of a ring buffer of 64 MiB. A replay uses some 220 bytes for
/// each event (measured: 2.1 GiB for 9.9 million allocations), and no input uses much more.
pub const EVENTS_MAX: usize = 10_000_000;
/// The most bytes stored of a table in a recording: some 600,000 areas.
pub const TABLE_BYTES_MAX: usize = 64 << 20;
/// The most tasks that are distinguished; the kernel's names have at most 15 bytes.
const TASKS_MAX: usize = 4096;
const TASK_CHARS: usize = 64;
/// Number of unreadable lines whose line numbers are stored.
const BAD_LINES_MAX: usize = 8;

/// The content of a recording besides its events.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The recorder and the system.
    pub header: Header,
    /// The lines of `/proc/vmallocinfo` after recording began, as the kernel prints them.
    pub begin: String,
    /// The same, before recording ended.
    pub end: String,
    /// True if lines are missing in these tables, which had more than [`TABLE_BYTES_MAX`].
    pub tables_cut: bool,
    /// The last line of the recording; none if the recording is incomplete.
    pub summary: Option<Summary>,
}

impl Recording {
    /// Stores an item that is not an event.
    fn record(&mut self, item: Item<'_>) {
        match item {
            Item::Header(header) => self.header = *header,
            Item::Summary(summary) => self.summary = Some(*summary),
            Item::Area(area) => {
                let table = match area.when {
                    When::Begin => &mut self.begin,
                    When::End => &mut self.end,
                };
                if table.len() < TABLE_BYTES_MAX {
                    table.push_str(&format!("{area}\n"));
                } else {
                    self.tables_cut = true;
                }
            }
            Item::Stats(_) | Item::Lost(_) | Item::Event(_) | Item::Stack(_) => {}
        }
    }

    /// The better table for the sizes of percpu chunks: the one of the end, or else that of the beginning.
    pub fn table(&self) -> &str {
        if self.end.is_empty() { &self.begin } else { &self.end }
    }
}

/// The fields before the name of an event.
#[derive(Default)]
struct Head<'a> {
    cpu: u16,
    ns: u64,
    task: Cow<'a, str>,
}

impl<'a> Head<'a> {
    /// Only events that change the address space need the head.
    fn of_text(what: &Line, line: &'a str) -> Self {
        match what {
            Line::Event(_) => Self { cpu: cpu(line), ns: time_ns(line), task: Cow::Borrowed(task(line)) },
            _ => Self::default(),
        }
    }
}

/// The content of a trace.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The events that change the address space, in order.
    pub events: Vec<Event>,
    /// The CPU of each event, in the same order; 0 where the recorder named none.
    pub cpus: Vec<u16>,
    /// The recorder's clock at each event, nanoseconds, in the same order; 0 if the line has none.
    pub times_ns: Vec<u64>,
    /// The task of each event, as an index into `tasks`, in the same order.
    pub task_of: Vec<u16>,
    /// The names of the tasks, each once; the first is empty.
    pub tasks: Vec<String>,
    /// The index of each task in `tasks`.
    task_numbers: HashMap<String, u16>,
    /// The line, from 1, of each allocation among the events, in order.
    alloc_lines: Vec<u64>,
    /// The marks of the recorder, each with the number of events before it.
    pub marks: Vec<(usize, Mark)>,
    /// Release of the kernel; empty if unknown.
    pub release: String,
    /// The areas that stood before the first event ([`Self::stand_on`]).
    pub standing: Vec<Standing>,
    /// The callers of these areas, by their lines in the table.
    pub callers: Vec<String>,
    /// True for each event that is counted; empty if all are ([`Self::select`]).
    counted: Vec<bool>,
    /// Index of the first event of the selected time.
    begins: usize,
    /// Of the events that were removed.
    removed: selection::Removed,
    /// Lines read.
    pub lines: u64,
    /// Comment and empty lines.
    pub comments: u64,
    /// Lines of events that are not ours.
    pub others: u64,
    /// `percpu` events that do not change the address space.
    pub percpu: u64,
    /// Lines of our events that could not be understood.
    pub bad: u64,
    /// The first of them: number and text, cut short.
    pub bad_lines: Vec<(u64, String)>,
    /// Events that the recorder reports as lost: comparisons after the first loss mean little.
    pub lost: u64,
    /// The description in a recording, and the tables in it.
    pub recording: Option<Box<Recording>>,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
    /// True if reading ended because there were more than [`EVENTS_MAX`] events and marks.
    pub too_many: bool,
}

impl Trace {
    /// Reads a whole trace. Errors in the middle of the input end it early and are stored in `cut_short`.
    pub fn read(input: impl Read) -> Self {
        Self::read_at_most(input, EVENTS_MAX)
    }

    /// As [`Self::read`], but reads only the first `most` events and marks. If there are more, it sets `too_many`.
    pub fn read_at_most(input: impl Read, most: usize) -> Self {
        let mut trace = Self::default();
        let mut input = BufReader::with_capacity(1 << 16, input);
        let mut line = Vec::new();
        loop {
            match read_line(&mut input, &mut line) {
                Ok(false) => break,
                Ok(true) => trace.add(&line, most),
                Err(error) => {
                    trace.cut_short = Some(format!("after line {}: {error}", trace.lines));
                    break;
                }
            }
            if trace.too_many {
                break;
            }
        }
        trace
    }

    fn add(&mut self, line: &[u8], most: usize) {
        self.lines += 1;
        let text = String::from_utf8_lossy(line);
        let (line, head) = self.parse(&text);
        match line {
            Line::Event(_) | Line::Mark(_) if self.events.len() + self.marks.len() == most => {
                self.too_many = true;
            }
            Line::Event(event) => {
                if matches!(event, Event::Alloc { .. }) {
                    self.alloc_lines.push(self.lines);
                }
                self.events.push(event);
                self.cpus.push(head.cpu);
                self.times_ns.push(head.ns);
                let task = self.task_number(&head.task);
                self.task_of.push(task);
            }
            Line::Comment => self.comments += 1,
            Line::Percpu => self.percpu += 1,
            Line::Other => self.others += 1,
            Line::Mark(mark) => {
                self.others += 1;
                self.marks.push((self.events.len(), mark));
            }
            Line::Lost(events) => {
                self.comments += 1;
                self.lost = self.lost.saturating_add(events);
            }
            Line::Bad => {
                self.bad += 1;
                if self.bad_lines.len() < BAD_LINES_MAX {
                    self.bad_lines.push((self.lines, text.trim().chars().take(120).collect()));
                }
            }
        }
    }

    /// Parses a line, and returns the head of its event. Other lines of a recording are stored.
    fn parse<'a>(&mut self, text: &'a str) -> (Line, Head<'a>) {
        if !text.starts_with('{') {
            let line = parse(text);
            return (line, Head::of_text(&line, text));
        }
        let line = match Item::from_json(text) {
            Ok(Some(Item::Event(entry))) => {
                let line = entry.line();
                let head = Head {
                    cpu: entry.cpu.unwrap_or(0),
                    ns: entry.ns.unwrap_or(0),
                    task: entry.task.unwrap_or_default(),
                };
                return (line, head);
            }
            Ok(Some(Item::Lost(lost))) => Line::Lost(lost.events.0),
            Ok(Some(Item::Stack(_))) => Line::Other,
            Ok(Some(item)) => {
                if let Item::Header(header) = &item {
                    self.release.clone_from(&header.kernel);
                }
                // The summary counts all losses, including those without a line.
                if let Item::Summary(summary) = &item {
                    self.lost = self.lost.max(summary.lost.0);
                }
                self.recording.get_or_insert_default().record(item);
                Line::Comment
            }
            Ok(None) => Line::Other,
            // In text, the name of a task may also begin with `{`.
            Err(_) => match parse(text) {
                Line::Other if self.recording.is_some() => Line::Bad,
                line => return (line, Head::of_text(&line, text)),
            },
        };
        (line, Head::default())
    }

    /// Returns the index of a task in `tasks`, or that of the empty name if there are [`TASKS_MAX`] others.
    fn task_number(&mut self, name: &str) -> u16 {
        if self.tasks.is_empty() {
            self.tasks.push(String::new());
        }
        // Names are stored cut: cut the name before it is compared.
        let name = name.char_indices().nth(TASK_CHARS).map_or(name, |(end, _)| &name[..end]);
        // Consecutive events often have the same task, and there are few tasks.
        let last = self.task_of.last().copied().unwrap_or(0);
        if self.tasks[usize::from(last)] == name {
            return last;
        }
        if let Some(known) = self.task_numbers.get(name) {
            return *known;
        }
        if name.is_empty() || self.tasks.len() > TASKS_MAX {
            return 0;
        }
        let number = self.tasks.len() as u16;
        self.tasks.push(name.to_string());
        self.task_numbers.insert(name.to_string(), number);
        number
    }

    /// Returns the task of an event by its index; empty if the recorder named none.
    pub fn task_at(&self, event: usize) -> &str {
        let number = self.task_of.get(event).copied().unwrap_or(0);
        self.tasks.get(usize::from(number)).map_or("", String::as_str)
    }

    /// Returns a trace of the first events alone. Counts of lines are zero.
    pub fn first(&self, events: usize) -> Self {
        let events = events.min(self.events.len());
        let allocs =
            self.events[..events].iter().filter(|event| matches!(event, Event::Alloc { .. })).count();
        Self {
            events: self.events[..events].to_vec(),
            cpus: self.cpus[..events].to_vec(),
            times_ns: self.times_ns[..events].to_vec(),
            task_of: self.task_of[..events].to_vec(),
            tasks: self.tasks.clone(),
            task_numbers: self.task_numbers.clone(),
            alloc_lines: self.alloc_lines[..allocs].to_vec(),
            marks: self.marks.iter().copied().filter(|&(before, _)| before <= events).collect(),
            release: self.release.clone(),
            standing: self.standing.clone(),
            callers: self.callers.clone(),
            counted: self.counted[..events.min(self.counted.len())].to_vec(),
            begins: self.begins.min(events),
            removed: selection::Removed { cpu: self.last_cpu(), window: self.usual_window() },
            ..Self::default()
        }
    }

    /// Returns a trace with other events, each with the CPU, the time and the task of the one whose index is before it.
    pub fn with_events(&self, events: &[(usize, Event)]) -> Self {
        let mut other = self.first(0);
        for &(at, event) in events {
            other.begins += usize::from(at < self.begins);
            other.events.push(event);
            other.cpus.push(self.cpus.get(at).copied().unwrap_or(0));
            other.times_ns.push(self.times_ns.get(at).copied().unwrap_or(0));
            other.task_of.push(self.task_of.get(at).copied().unwrap_or(0));
            if matches!(event, Event::Alloc { .. }) {
                other.alloc_lines.push(0);
            }
            if !self.counted.is_empty() {
                other.counted.push(self.is_counted(at));
            }
        }
        other
    }

    /// Begins the trace with the areas of a table that was read before it. Removes the events before the mark that the
    /// recorder set when it opened the table: the table has them. Returns the number of these events.
    pub fn stand_on(&mut self, table: &Table) -> usize {
        let position = |mark| self.marks.iter().position(|&(_, other)| other == mark);
        let opens = position(Mark::Opens(When::Begin));
        let first = opens.map_or(0, |at| self.marks[at].0);
        let closes = position(Mark::Closes(When::Begin)).map_or(first, |at| self.marks[at].0.max(first));
        let rows = table.listed().map(|listed| (listed.start, listed.size, listed.lazy));
        self.standing = standing(rows, self.events[first..closes].iter().copied());
        let callers = table.listed().map(|listed| table.callers()[listed.caller as usize].clone());
        self.callers = callers.collect();
        let is_alloc = |event: &&Event| matches!(event, Event::Alloc { .. });
        let allocs = self.events[..first].iter().filter(is_alloc).count();
        self.alloc_lines.drain(..allocs);
        self.events.drain(..first);
        self.cpus.drain(..first);
        self.times_ns.drain(..first);
        self.task_of.drain(..first);
        self.marks.drain(..opens.unwrap_or(0));
        for (before, _) in &mut self.marks {
            *before -= first;
        }
        first
    }

    /// Returns the caller of an area that stood before the first event.
    pub fn caller_of(&self, area: &Standing) -> &str {
        self.callers.get(area.line).map_or("", String::as_str)
    }

    /// Returns the number of possible CPUs: the number in a recording's head, or one more than the highest CPU of an
    /// event, if that is greater. O(events).
    pub fn cpu_count(&self) -> u32 {
        let last = self.last_cpu();
        let recorded = self.recording.as_ref().map_or(0, |recording| recording.header.cpus.0);
        u32::try_from(recorded).unwrap_or(u32::MAX).max(u32::from(last) + 1)
    }

    /// Returns the highest CPU of an event, also of those that were removed.
    fn last_cpu(&self) -> u16 {
        self.cpus.iter().copied().max().unwrap_or(0).max(self.removed.cpu)
    }

    /// Allocations, failed attempts included.
    pub fn allocs(&self) -> u64 {
        self.alloc_lines.len() as u64
    }

    /// The line of an allocation; both count from 1.
    pub fn alloc_line(&self, number: u64) -> Option<u64> {
        self.alloc_lines.get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
    }
}

/// Reads a line without its end into `line`, at most [`LINE_MAX`] bytes; returns false at the end of the input.
///
/// # Errors
/// If it cannot be read.
pub fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let buffer = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if buffer.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let room = LINE_MAX - line.len();
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Passes each line to `each`, with its number from 1, until there is none or `each` gives a reason to end. Returns why
/// reading ended early, if it did.
pub fn each_line(
    input: impl Read,
    mut each: impl FnMut(u64, &str) -> ControlFlow<&'static str>,
) -> Option<String> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let (mut line, mut lines) = (Vec::new(), 0);
    let why = loop {
        match read_line(&mut input, &mut line) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(error) => break error.to_string(),
        }
        if let ControlFlow::Break(why) = each(lines + 1, &String::from_utf8_lossy(&line)) {
            break why.to_string();
        }
        lines += 1;
    };
    Some(format!("after line {lines}: {why}"))
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ALLOC: &str = "x-1 [000] ..... 1.0: alloc_vmap_area: va_start: 8192 size=8192 align=4096 vstart=0x1000 vend=0xffff000 failed=0\n";

    #[test]
    fn what_a_broken_stream_held_stays_and_its_end_is_reported() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(ALLOC.repeat(4000).as_bytes()).unwrap();
        let gz = gz.finish().unwrap();
        let whole = Trace::read(decompress(&gz[..]).unwrap());
        assert_eq!((whole.allocs(), whole.cut_short), (4000, None));
        let cut = Trace::read(decompress(&gz[..gz.len() / 2]).unwrap());
        assert!(cut.allocs() < 4000 && cut.cut_short.is_some());
    }

    #[test]
    fn events_that_the_recorder_lost_are_counted() {
        let text = format!(
            "# entries-in-buffer/entries-written: 10/14   #P:1\n{ALLOC}CPU:0 [LOST 3 EVENTS]\n{ALLOC}"
        );
        let trace = Trace::read(text.as_bytes());
        assert_eq!((trace.allocs(), trace.lost, trace.comments), (2, 7, 2));
    }

    #[test]
    fn a_line_without_end_is_cut_and_reading_goes_on() {
        let mut text = vec![b'x'; 5 * LINE_MAX];
        text.push(b'\n');
        text.extend_from_slice(ALLOC.as_bytes());
        let trace = Trace::read(&text[..]);
        assert_eq!((trace.lines, trace.others, trace.allocs()), (2, 1, 1));
    }

    #[test]
    fn every_event_has_a_time_and_a_task_and_a_hostile_trace_has_not_too_many() {
        let mut text = String::new();
        for n in 0..TASKS_MAX + 9 {
            text += &ALLOC.replace("x-1", &format!("t{n}-7"));
        }
        text += &ALLOC.replace("x-1", "t3-8");
        text += &ALLOC.replace("x-1 [000] ..... 1.0: ", "");
        let trace = Trace::read(text.as_bytes());
        let count = trace.events.len();
        assert_eq!(
            (trace.times_ns.len(), trace.task_of.len(), trace.tasks.len()),
            (count, count, TASKS_MAX + 1)
        );
        assert_eq!((trace.task_at(0), trace.task_at(count - 2), trace.task_at(count - 1)), ("t0", "t3", ""));
        assert_eq!((trace.times_ns[0], trace.times_ns[count - 1]), (1_000_000_000, 0));
    }

    #[test]
    fn a_name_that_is_cut_is_one_task() {
        let long = "ü".repeat(TASK_CHARS + 9);
        let event = |task: &str| {
            format!("{{\"event\":\"free_vmap_area_noflush\",\"task\":\"{task}\",\"va_start\":\"0x1000\"}}\n")
        };
        let text = [event(&long), event(&long), event("x"), event(&long)].concat();
        let trace = Trace::read(text.as_bytes());
        assert_eq!(trace.task_of, [1, 1, 2, 1]);
        assert_eq!(trace.tasks, ["", &long[..2 * TASK_CHARS], "x"]);
    }

    #[test]
    fn reading_ends_at_the_limit_and_reports_it() {
        let text = format!("{ALLOC}noise\n{ALLOC}noise\n{ALLOC}{ALLOC}noise\n");
        let trace = |most| Trace::read_at_most(text.as_bytes(), most);
        let whole = trace(4);
        assert_eq!((whole.allocs(), whole.lines, whole.too_many), (4, 7, false));
        for most in [0, 1, 2, 3] {
            let some = trace(most);
            assert_eq!((some.events.len(), some.allocs(), some.too_many), (most, most as u64, true));
        }
        // The rest is not read at all.
        assert_eq!(trace(2).lines, 5);
        let marks = "x-1 [000] ..... 1.0: tracing_mark_write: vmlab pools drained\n".repeat(9);
        let some = Trace::read_at_most(marks.as_bytes(), 3);
        assert_eq!((some.marks.len(), some.lines, some.too_many), (3, 4, true));
    }

    #[test]
    fn a_stored_event_is_small() {
        assert!(size_of::<Event>() <= 48);
    }

    #[test]
    fn bad_lines_are_counted_and_the_first_are_named() {
        let text = format!("# c\n{ALLOC}alloc_vmap_area: nonsense\n\nsched_switch: prev=1\n");
        let trace = Trace::read(text.as_bytes());
        assert_eq!((trace.comments, trace.bad, trace.others, trace.allocs()), (2, 1, 1, 1));
        assert_eq!(trace.bad_lines, [(3, "alloc_vmap_area: nonsense".to_string())]);
    }
}
