//! The lines of a recording in order, and the comparison with them.

use serde::Serialize;
use std::fmt;
use vmlab_trace::calls::{Answer, Line, Request};

/// Differences that are kept.
const FIRST_MAX: usize = 8;

/// A place where the core here did something else than in the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Line of the recording, from 1.
    pub line: u64,
    /// The call.
    pub call: String,
    /// The line of the recording.
    pub kernel: String,
    /// The line that the core here would have written.
    pub here: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, call, kernel, here } = self;
        write!(f, "line {line}, {call}: kernel {kernel:?}, here {here:?}")
    }
}

/// The lines, and how far the replay has come.
#[derive(Debug, Default)]
pub(super) struct Script {
    lines: Vec<Line>,
    next: usize,
    /// The call that is replayed.
    call: String,
    /// Requests that were compared.
    pub(super) requests: u64,
    pub(super) differences: u64,
    pub(super) first: Vec<Difference>,
    /// Line of a call within a request, which no replay makes.
    pub(super) nested: Option<u64>,
    /// True if requests are no longer compared.
    pub(super) is_over: bool,
}

impl Script {
    pub(super) fn new(lines: Vec<Line>) -> Self {
        Self { lines, ..Self::default() }
    }

    /// Returns the next line.
    pub(super) fn next(&mut self) -> Option<Line> {
        let line = self.lines.get(self.next).copied()?;
        self.next += 1;
        Some(line)
    }

    /// Returns the number of the line that was returned last.
    pub(super) fn line(&self) -> u64 {
        number(self.next) - 1
    }

    pub(super) fn begin(&mut self, call: String) {
        self.call = call;
    }

    /// Returns the answer to a request, and compares it with the next line. If that has another, the answer is the usual
    /// one, and the line is left to the end of the call.
    pub(super) fn answer(&mut self, here: Request) -> u64 {
        let usual = u64::from(!matches!(here, Request::Reclaimed { .. }));
        if self.is_over {
            return usual;
        }
        let at = self.next;
        let kernel = match self.lines.get(at) {
            Some(&Line::Request(kernel)) => kernel,
            other => {
                let ends = matches!(other, Some(Line::Answer(_)) | None);
                self.nested = self.nested.or((!ends).then_some(number(at)));
                self.differs(at, "nothing", &here);
                return usual;
            }
        };
        if kernel.word() != here.word() {
            self.differs(at, &kernel, &here);
            return usual;
        }
        self.next += 1;
        self.requests += 1;
        let (is_same, answer) = match (kernel, here) {
            (Request::Pages { bytes, supplied }, Request::Pages { bytes: asked, .. }) => {
                (bytes == asked, supplied)
            }
            // The kernel's tables have other locks, and so other sizes.
            (Request::Table { supplied, .. }, _) => (true, supplied),
            (Request::Free { .. }, Request::Free { bytes: 0 }) => (true, usual),
            (Request::Reclaimed { pages }, _) => (true, pages),
            _ => (kernel == here, usual),
        };
        if !is_same {
            self.differs(at, &kernel, &here);
        }
        answer
    }

    /// Ends a call, and returns its result in the kernel. None if the recording ends before.
    pub(super) fn end(&mut self) -> Option<u64> {
        while let Some(&line) = self.lines.get(self.next) {
            match line {
                Line::Request(kernel) => self.differs(self.next, &kernel, "nothing"),
                Line::Answer(Answer::Returned { value }) => {
                    self.next += 1;
                    return Some(value);
                }
                _ => {
                    self.nested = self.nested.or(Some(number(self.next)));
                    break;
                }
            }
            self.next += 1;
        }
        None
    }

    /// Compares what the line that was returned last says with what is here.
    pub(super) fn compare(&mut self, kernel: Answer, here: Answer) {
        if kernel != here {
            self.differs(self.next - 1, &kernel, &here);
        }
    }

    /// Counts a difference at the line of an index.
    fn differs(
        &mut self,
        at: usize,
        kernel: &(impl fmt::Display + ?Sized),
        here: &(impl fmt::Display + ?Sized),
    ) {
        self.differences += 1;
        if self.first.len() < FIRST_MAX {
            let call = self.call.clone();
            let (kernel, here) = (kernel.to_string(), here.to_string());
            self.first.push(Difference { line: number(at), call, kernel, here });
        }
    }
}

/// Returns the number of the line of an index: the head is line 1.
fn number(at: usize) -> u64 {
    at as u64 + 2
}
