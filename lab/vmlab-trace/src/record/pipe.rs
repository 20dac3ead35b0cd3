//! Reads the kernel's buffers during the recording: text of `trace_pipe` in, items out.

use super::ticks::Ticks;
use crate::jsonl::{Item, LostLine, Number};
use crate::stack::Reader;
use crate::{Entry, LINE_MAX, lost_at};
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of one read. The kernel returns a page at most.
const CHUNK_BYTES: usize = 1 << 16;

/// Receives the items.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&Item<'_>) -> Result<()>;

/// Counts of the data that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Events.
    pub(crate) events: u64,
    /// Events that the text reports as lost.
    pub(crate) lost: u64,
    /// Lines that are not our events.
    pub(crate) left_out: u64,
}

/// The read end. Each line is passed on once it is complete.
pub(crate) struct Pipe<R> {
    input: R,
    /// Input that is not yet a whole line.
    rest: Vec<u8>,
    chunk: Box<[u8]>,
    stacks: Reader,
    /// The clock of the kernel's lines, if it counts.
    ticks: Option<Ticks>,
    pub(crate) counts: Counts,
}

impl Pipe<File> {
    /// Opens the file; reads do not block.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn file(path: &Path) -> Result<File> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        file.context("tracefs: cannot read trace_pipe")
    }
}

impl<R: Read> Pipe<R> {
    pub(super) fn new(input: R, ticks: Option<Ticks>) -> Self {
        let chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
        Self { input, rest: Vec::new(), chunk, stacks: Reader::default(), ticks, counts: Counts::default() }
    }

    /// Passes on the available lines; returns true if any input was available.
    ///
    /// # Errors
    /// If reading from the kernel fails; those of `each`.
    pub(crate) fn step(&mut self, each: Each<'_>) -> Result<bool> {
        match self.input.read(&mut self.chunk) {
            Ok(0) => self.dry(each),
            Ok(read) => {
                let chunk = std::mem::take(&mut self.chunk);
                let written = self.take(&chunk[..read], each);
                self.chunk = chunk;
                written.map(|()| true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.dry(each),
            // There may be more input: an interrupted read does not mean that the pipe is empty.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error).context("tracefs: cannot read trace_pipe"),
        }
    }

    /// The kernel writes a stack at once, so that one without a further line has ended.
    fn dry(&mut self, each: Each<'_>) -> Result<bool> {
        if let Some(stack) = self.stacks.end() {
            each(&Item::Stack(stack))?;
        }
        Ok(false)
    }

    /// Passes whole lines on, and stores the rest.
    fn take(&mut self, mut bytes: &[u8], each: Each<'_>) -> Result<()> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                self.line(line, each)?;
            } else {
                self.append(line);
                let line = std::mem::take(&mut self.rest);
                self.line(&line, each)?;
            }
            bytes = after;
        }
        self.append(bytes);
        Ok(())
    }

    /// Appends to a line, up to the length that is parsed.
    fn append(&mut self, part: &[u8]) {
        let room = LINE_MAX - self.rest.len().min(LINE_MAX);
        self.rest.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn line(&mut self, line: &[u8], each: Each<'_>) -> Result<()> {
        let timed = self.ticks.as_ref().map_or(line.into(), |ticks| ticks.timed(line));
        let text = String::from_utf8_lossy(&timed);
        let taken = self.stacks.take(&text);
        if let Some(stack) = taken.ended {
            each(&Item::Stack(stack))?;
        }
        if taken.part {
            return Ok(());
        }
        if let Some(entry) = Entry::from_text(&text) {
            self.counts.events += 1;
            return each(&Item::Event(entry));
        }
        match lost_at(&text) {
            Some((events, cpu)) => {
                self.counts.lost = self.counts.lost.saturating_add(events);
                let cpu = cpu.map(|cpu| Number(cpu.into()));
                each(&Item::Lost(LostLine { events: Number(events), cpu }))
            }
            None => {
                self.counts.left_out += u64::from(!text.trim().is_empty() && !text.starts_with('#'));
                Ok(())
            }
        }
    }
}
