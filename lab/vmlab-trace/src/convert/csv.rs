//! Events as a table: one row for each, columns under the kernel's names.

use super::Form;
use crate::jsonl::Item;
use crate::{Entry, Happening, Sink};
use anyhow::{Context, Result, anyhow};
use csv::{QuoteStyle, Writer, WriterBuilder};

/// The columns. Addresses are hexadecimal, everything else decimal or text; `ns` is the clock of the trace.
pub(crate) const COLUMNS: [&str; 31] = [
    "event",
    "ns",
    "cpu",
    "task",
    "pid",
    "va_start",
    "size",
    "align",
    "vstart",
    "vend",
    "failed",
    "nr_lazy",
    "nr_lazy_max",
    "start",
    "end",
    "num_purged",
    "base_addr",
    "off",
    "ptr",
    "bytes_alloc",
    "reserved",
    "is_atomic",
    "call_site",
    "gfp_flags",
    "function",
    "caller",
    "lock",
    "flags",
    "ret",
    "text",
    "lost",
];

/// Writes events as rows.
pub(crate) struct Csv {
    out: Writer<Sink>,
}

impl Csv {
    pub(crate) fn new(sink: Sink) -> Result<Self> {
        let mut out = WriterBuilder::new().quote_style(QuoteStyle::Necessary).from_writer(sink);
        out.write_record(COLUMNS).context("cannot write")?;
        Ok(Self { out })
    }
}

impl Form for Csv {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        let row = match item {
            Item::Event(entry) => row(entry),
            // A gap is a row, too, so that the events around it do not appear consecutive.
            Item::Lost(lost) => {
                let mut row = Row::default();
                row.set("event", "lost".to_string());
                row.set("cpu", lost.cpu.map(|cpu| cpu.0.to_string()).unwrap_or_default());
                row.set("lost", lost.events.0.to_string());
                row
            }
            Item::Header(_) | Item::Area(_) | Item::Stats(_) | Item::Stack(_) | Item::Summary(_) => {
                return Ok(());
            }
        };
        self.out.write_record(&row.0).map_err(plain).with_context(|| self.out.get_ref().what())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        match self.out.into_inner() {
            Ok(sink) => sink.finish(),
            Err(error) => Err(error.into_error()).context("cannot write the last rows"),
        }
    }
}

/// Returns the error of the output as itself: a closed pipe is known by it.
fn plain(error: csv::Error) -> anyhow::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error.into(),
        other => anyhow!("{other:?}"),
    }
}

#[derive(Default)]
struct Row([String; COLUMNS.len()]);

impl Row {
    fn set(&mut self, column: &str, value: String) {
        if let Some(at) = COLUMNS.iter().position(|&name| name == column) {
            self.0[at] = value;
        }
    }
}

fn row(entry: &Entry<'_>) -> Row {
    let mut row = Row::default();
    let happening = &entry.happening;
    row.set("event", happening.name().to_string());
    row.set("ns", entry.ns.map(|ns| ns.to_string()).unwrap_or_default());
    row.set("cpu", entry.cpu.map(|cpu| cpu.to_string()).unwrap_or_default());
    row.set("task", entry.task.as_deref().unwrap_or_default().to_string());
    row.set("pid", entry.pid.map(|pid| pid.to_string()).unwrap_or_default());
    let mut number = |column, value: u64| row.set(column, value.to_string());
    match happening {
        &Happening::AllocArea { size, align, failed, .. } => {
            number("size", size);
            number("align", align);
            number("failed", failed);
        }
        &Happening::FreeArea { nr_lazy, nr_lazy_max, .. } => {
            nr_lazy.into_iter().for_each(|pages| number("nr_lazy", pages));
            nr_lazy_max.into_iter().for_each(|pages| number("nr_lazy_max", pages));
        }
        &Happening::Purge { num_purged, .. } => number("num_purged", num_purged),
        &Happening::AllocPercpu { size, align, off, reserved, is_atomic, bytes_alloc, .. } => {
            number("size", size);
            number("align", align);
            number("off", off);
            number("reserved", reserved);
            number("is_atomic", is_atomic);
            bytes_alloc.into_iter().for_each(|bytes| number("bytes_alloc", bytes));
        }
        &Happening::FreePercpu { off, .. } => number("off", off),
        &Happening::FailPercpu { size, align, reserved, is_atomic } => {
            number("size", size);
            number("align", align);
            number("reserved", reserved);
            number("is_atomic", is_atomic);
        }
        Happening::CreateChunk { .. }
        | Happening::DestroyChunk { .. }
        | Happening::Enter { .. }
        | Happening::Leave { .. }
        | Happening::LockBegin { .. }
        | Happening::LockEnd { .. }
        | Happening::Mark { .. } => {}
    }
    let mut address = |column, value: u64| row.set(column, format!("{value:#x}"));
    match happening {
        &Happening::AllocArea { va_start, vstart, vend, .. } => {
            address("va_start", va_start);
            address("vstart", vstart);
            address("vend", vend);
        }
        &Happening::FreeArea { va_start, .. } => address("va_start", va_start),
        &Happening::Purge { start, end, .. } => {
            start.into_iter().for_each(|at| address("start", at));
            end.into_iter().for_each(|at| address("end", at));
        }
        &Happening::AllocPercpu { base_addr, ptr, .. } => {
            address("base_addr", base_addr);
            address("ptr", ptr);
        }
        &Happening::FreePercpu { base_addr, ptr, .. } => {
            address("base_addr", base_addr);
            ptr.into_iter().for_each(|at| address("ptr", at));
        }
        &Happening::CreateChunk { base_addr } | &Happening::DestroyChunk { base_addr } => {
            address("base_addr", base_addr);
        }
        &Happening::LockBegin { lock, .. } | &Happening::LockEnd { lock, .. } => address("lock", lock),
        Happening::FailPercpu { .. }
        | Happening::Enter { .. }
        | Happening::Leave { .. }
        | Happening::Mark { .. } => {}
    }
    match happening {
        Happening::AllocPercpu { call_site, gfp_flags, .. } => {
            row.set("call_site", call_site.as_deref().unwrap_or_default().to_string());
            row.set("gfp_flags", gfp_flags.as_deref().unwrap_or_default().to_string());
        }
        Happening::Enter { function, .. } => row.set("function", function.to_string()),
        Happening::Leave { function, caller, .. } => {
            row.set("function", function.to_string());
            row.set("caller", caller.as_deref().unwrap_or_default().to_string());
        }
        Happening::LockBegin { flags, .. } => {
            row.set("flags", flags.as_deref().unwrap_or_default().to_string());
        }
        Happening::LockEnd { ret: Some(ret), .. } => row.set("ret", ret.to_string()),
        Happening::Mark { text } => row.set("text", text.to_string()),
        _ => {}
    }
    row
}
