//! `vmlab convert`: a trace in another form.
//!
//! Lines are converted one by one. Only `chrome` stores more: the live areas and objects. So memory does not depend on
//! the size of a trace, and a conversion that is stopped leaves a readable file.

mod chrome;
mod csv;
mod fuzz;
mod select;
mod text;

pub use fuzz::fuzz;
#[cfg(test)]
pub(crate) use fuzz::lines;
pub use select::Select;

use crate::jsonl::{Item, When};
use crate::{Census, Next, Sink, items};
use anyhow::Result;
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use vmlab_base::choice::Choice;

/// Forms that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A recording, as `vmlab record` writes it
    Jsonl,
    /// Events, a row each
    Csv,
    /// Chrome's trace events, for ui.perfetto.dev: areas by who asked, bytes
    Perfetto,
    /// Text, as the kernel prints it
    Ftrace,
    /// The /proc/vmallocinfo of the recording's end
    Vmallocinfo,
    /// That of its beginning
    VmallocinfoBegin,
}

impl Choice for To {
    const CHOICES: &'static [Self] =
        &[Self::Jsonl, Self::Csv, Self::Perfetto, Self::Ftrace, Self::Vmallocinfo, Self::VmallocinfoBegin];

    fn choice(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Perfetto => "perfetto",
            Self::Ftrace => "ftrace",
            Self::Vmallocinfo => "vmallocinfo",
            Self::VmallocinfoBegin => "vmallocinfo-begin",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Jsonl => "A recording, as `vmlab record` writes it",
            Self::Csv => "Events, a row each",
            Self::Perfetto => "Chrome's trace events, for ui.perfetto.dev: areas by who asked, bytes",
            Self::Ftrace => "Text, as the kernel prints it",
            Self::Vmallocinfo => "The /proc/vmallocinfo of the recording's end",
            Self::VmallocinfoBegin => "That of its beginning",
        }
    }
}

/// An output form that receives items one by one.
pub trait Form {
    /// Writes an item.
    ///
    /// # Errors
    /// If it cannot be written.
    fn take(&mut self, item: &Item<'_>) -> Result<()>;

    /// Writes buffered output, so that the file can be read.
    ///
    /// # Errors
    /// If it cannot be written.
    fn finish(self: Box<Self>) -> Result<()>;
}

impl To {
    /// Returns a writer of the form.
    ///
    /// # Errors
    /// If its beginning cannot be written.
    pub fn form(self, sink: Sink) -> Result<Box<dyn Form>> {
        Ok(match self {
            Self::Jsonl => Box::new(text::Jsonl::new(sink)),
            Self::Csv => Box::new(csv::Csv::new(sink)?),
            Self::Perfetto => Box::new(chrome::Chrome::new(sink)?),
            Self::Ftrace => Box::new(text::Ftrace::new(sink)?),
            Self::Vmallocinfo => Box::new(text::Vmallocinfo::new(sink, When::End)),
            Self::VmallocinfoBegin => Box::new(text::Vmallocinfo::new(sink, When::Begin)),
        })
    }
}

/// The input has nothing of that which was asked for. The output is whole.
#[derive(Debug)]
pub struct Lacking {
    /// The clause that says so.
    pub(crate) what: String,
    /// The reason, or advice.
    pub(crate) why: String,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for Lacking {}

/// Passes every item to a form until the input ends, or `stop` is set.
///
/// # Errors
/// If the input cannot be read, or the form cannot be written, or the input is [`Lacking`] and `stop` is not set.
/// Everything read before is written.
pub fn convert(input: impl Read, mut form: Box<dyn Form>, stop: &AtomicBool) -> Result<Census> {
    let census = items(input, |item| {
        form.take(&item)?;
        Ok(if stop.load(Ordering::Relaxed) { Next::Stop } else { Next::Go })
    })?;
    let Err(error) = form.finish() else { return Ok(census) };
    let mut lacking: Lacking = error.downcast()?;
    if stop.load(Ordering::Relaxed) {
        return Ok(census);
    }
    if let Some(why) = &census.cut_short {
        lacking.why = format!("reading ended {why}");
    }
    Err(lacking.into())
}
