//! Event traces of a kernel's `vmalloc` and `percpu` events.
//!
//! Three text shapes are read, told apart line by line, since they differ only in what stands before the event's name:
//! tracefs `trace`, `trace-cmd report` and `perf script`.
//!
//! # Memory
//! Input may be hostile, and a megabyte of gzip may stand for a gigabyte of text. Reading streams; a line longer than
//! [`LINE_MAX`] is cut; what is kept of a trace is some 60 bytes an event and a few lines of text, and reading ends at
//! [`EVENTS_MAX`] events. Lines that are no events of ours cost time only.

mod entry;
pub mod jsonl;
mod line;
pub mod percpu;
mod sink;
mod source;
pub mod vmallocinfo;

pub use entry::{Entry, Happening};
pub(crate) use line::lost_at;
pub use line::{Event, Line, cpu, parse};
pub use sink::Sink;
pub use source::{decompress, open};

use std::io::{self, BufRead, BufReader, Read};

/// Longest line that is looked at, in bytes.
pub const LINE_MAX: usize = 16 * 1024;
/// The most events of one trace: ten times what a ring buffer of 64 MiB holds. A replay takes some 220 bytes for each
/// (measured: 2.1 GiB for 9.9 million allocations), and no input much more than that.
pub const EVENTS_MAX: usize = 10_000_000;
/// How many unreadable lines are remembered by number.
const BAD_KEPT: usize = 8;

/// What a trace held.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The events that change the address space, in order.
    pub events: Vec<Event>,
    /// The CPU of each event, in the same order; 0 where the recorder named none.
    pub cpus: Vec<u16>,
    /// The line, from 1, of each allocation among the events, in order.
    alloc_lines: Vec<u64>,
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
    /// Events that the recorder says it lost: answers after the first of them mean little.
    pub lost: u64,
    /// Why reading ended early, if it did.
    pub cut_short: Option<String>,
    /// Whether reading ended because there were more than [`EVENTS_MAX`] events.
    pub too_many: bool,
}

impl Trace {
    /// Reads a whole trace. Errors in the middle of the input end it early and are kept in `cut_short`.
    pub fn read(input: impl Read) -> Self {
        Self::read_at_most(input, EVENTS_MAX)
    }

    /// As [`Self::read`]; the events after the first `most` are not read, and `too_many` tells that there are some.
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
        match parse(&text) {
            Line::Event(_) if self.events.len() == most => self.too_many = true,
            Line::Event(event) => {
                if matches!(event, Event::Alloc { .. }) {
                    self.alloc_lines.push(self.lines);
                }
                self.events.push(event);
                self.cpus.push(cpu(&text));
            }
            Line::Comment => self.comments += 1,
            Line::Percpu => self.percpu += 1,
            Line::Other => self.others += 1,
            Line::Lost(events) => {
                self.comments += 1;
                self.lost = self.lost.saturating_add(events);
            }
            Line::Bad => {
                self.bad += 1;
                if self.bad_lines.len() < BAD_KEPT {
                    self.bad_lines.push((self.lines, text.trim().chars().take(120).collect()));
                }
            }
        }
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

/// Reads a line without its end into `line`, at most [`LINE_MAX`] bytes of it; false at the end of the input.
pub(crate) fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
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

/// The body of the fuzz target `trace_text`: whatever the bytes are, reading and replaying them ends and says something.
pub fn fuzz(data: &[u8]) {
    let Ok(input) = decompress(data) else { return };
    // A bomb of a few bytes may stand for gigabytes: bound what a fuzz input may cost.
    let trace = Trace::read(input.take(1 << 20));
    let table = vmallocinfo::Table::read(data);
    crate::replay::fuzz(&trace, &table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ALLOC: &str = "x-1 [000] ..... 1.0: alloc_vmap_area: va_start: 8192 size=8192 align=4096 vstart=0x1000 vend=0xffff000 failed=0\n";

    #[test]
    fn what_a_broken_stream_held_is_kept_and_its_end_is_told() {
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
    fn reading_ends_at_the_most_events_and_says_so() {
        let text = format!("{ALLOC}noise\n{ALLOC}noise\n{ALLOC}{ALLOC}noise\n");
        let trace = |most| Trace::read_at_most(text.as_bytes(), most);
        let whole = trace(4);
        assert_eq!((whole.allocs(), whole.lines, whole.too_many), (4, 7, false));
        for most in [0, 1, 2, 3] {
            let some = trace(most);
            assert_eq!((some.events.len(), some.allocs(), some.too_many), (most, most as u64, true));
        }
        // What follows costs not even time: it is not read.
        assert_eq!(trace(2).lines, 5);
    }

    #[test]
    fn what_is_kept_of_an_event_is_small() {
        assert!(size_of::<Event>() <= 48 && size_of::<crate::replay::Call>() <= 48);
    }

    #[test]
    fn bad_lines_are_counted_and_the_first_are_named() {
        let text = format!("# c\n{ALLOC}alloc_vmap_area: nonsense\n\nsched_switch: prev=1\n");
        let trace = Trace::read(text.as_bytes());
        assert_eq!((trace.comments, trace.bad, trace.others, trace.allocs()), (2, 1, 1, 1));
        assert_eq!(trace.bad_lines, [(3, "alloc_vmap_area: nonsense".to_string())]);
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        fuzz(&bytes);
        fuzz(&[]);
        fuzz(&[0x1f, 0x8b]);
        fuzz(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
    }
}
