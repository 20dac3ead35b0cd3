//! Forms with one line for each item.

use super::{Form, Lacking};
use crate::Sink;
use crate::jsonl::{Header, Item, Number, VERSION, When};
use anyhow::{Result, ensure};
use std::borrow::Cow;

/// A recording.
pub(crate) struct Jsonl {
    sink: Sink,
    any: bool,
}

impl Jsonl {
    pub(crate) fn new(sink: Sink) -> Self {
        Self { sink, any: false }
    }
}

impl Form for Jsonl {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        if !std::mem::replace(&mut self.any, true) && !matches!(item, Item::Header(_)) {
            // Text may begin without a header. Only the version is known.
            let header = Header { version: Number(VERSION), ..Header::default() };
            self.sink.line(&Item::Header(Box::new(header)).to_json()?)?;
        }
        self.sink.line(&item.to_json()?)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.sink.finish()
    }
}

/// Replaces control characters: strings in JSON may contain line feeds, and text cannot.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// Text, as the kernel prints it.
pub(crate) struct Ftrace {
    sink: Sink,
}

impl Ftrace {
    pub(crate) fn new(mut sink: Sink) -> Result<Self> {
        sink.line("# tracer: nop\n#")?;
        Ok(Self { sink })
    }
}

impl Form for Ftrace {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        match item {
            Item::Event(entry) => self.sink.line(&one_line(&entry.to_string())),
            Item::Stack(stack) => self.sink.line(&stack.to_string()),
            Item::Lost(lost) => {
                let cpu = lost.cpu.map_or(0, |cpu| cpu.0);
                self.sink.line(&format!("CPU:{cpu} [LOST {} EVENTS]", lost.events.0))
            }
            Item::Header(header) if header.cpus.0 > 0 => {
                self.sink.line(&format!("# kernel {}   #P:{}", one_line(&header.kernel), header.cpus.0))
            }
            Item::Header(_) | Item::Area(_) | Item::Stats(_) | Item::Summary(_) => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.sink.finish()
    }
}

/// One of the tables of areas.
pub(crate) struct Vmallocinfo {
    sink: Sink,
    when: When,
    lines: u64,
}

impl Vmallocinfo {
    pub(crate) fn new(sink: Sink, when: When) -> Self {
        Self { sink, when, lines: 0 }
    }
}

impl Form for Vmallocinfo {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        match item {
            Item::Area(area) if area.when == self.when => {
                self.lines += 1;
                self.sink.line(&one_line(&area.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.sink.finish()?;
        let end = match self.when {
            When::Begin => "beginning",
            When::End => "end",
        };
        ensure!(
            self.lines > 0,
            Lacking {
                what: format!("the input has no /proc/vmallocinfo of its {end}"),
                why: "text of ftrace has none, and `vmlab record` writes both".to_string(),
            }
        );
        Ok(())
    }
}
