//! A part of a trace, or a trace without names, for another form to write.

use super::Form;
use crate::Happening;
use crate::jsonl::Item;
use crate::stack::Unmatched;
use anyhow::Result;

/// The events that are written. Tables, counters, losses and the recorder's marks always are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// From this time on, nanoseconds of the trace's clock.
    pub from_ns: Option<u64>,
    /// Up to this time.
    pub to_ns: Option<u64>,
    /// Of this CPU.
    pub cpu: Option<u16>,
    /// Of a task of this name.
    pub task: Option<String>,
    /// Without the names and numbers of tasks, and without the command that was recorded.
    pub blank: bool,
}

impl Selection {
    /// Returns true if an item is written.
    fn has(&self, item: &Item<'_>) -> bool {
        let Item::Event(entry) = item else { return true };
        if matches!(entry.happening, Happening::Mark { .. }) {
            return true;
        }
        let at = |ok: &dyn Fn(u64) -> bool| entry.ns.is_some_and(ok);
        self.from_ns.is_none_or(|from| at(&|ns| ns >= from))
            && self.to_ns.is_none_or(|to| at(&|ns| ns <= to))
            && self.cpu.is_none_or(|cpu| entry.cpu == Some(cpu))
            && self.task.as_deref().is_none_or(|task| entry.task.as_deref() == Some(task))
    }
}

/// Passes a selection on.
pub struct Select {
    form: Box<dyn Form>,
    selection: Selection,
    /// For each event without its stack: whether it is written.
    unmatched: Unmatched<bool>,
}

impl Select {
    /// Creates a form that passes the selection on to another.
    pub fn new(form: Box<dyn Form>, selection: Selection) -> Self {
        Self { form, selection, unmatched: Unmatched::default() }
    }
}

impl Form for Select {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        let has = match item {
            // A stack is written if its event is.
            Item::Stack(stack) => self.unmatched.take(stack).unwrap_or(false),
            item => self.selection.has(item),
        };
        if let Item::Event(entry) = item
            && !matches!(entry.happening, Happening::Mark { .. })
        {
            self.unmatched.push(entry.cpu, entry.pid, has);
        }
        if !has {
            return Ok(());
        }
        if !self.selection.blank {
            return self.form.take(item);
        }
        let mut item = item.clone();
        match &mut item {
            Item::Header(header) => header.command.clear(),
            Item::Event(entry) => (entry.task, entry.pid) = (None, None),
            Item::Stack(stack) => stack.pid = None,
            Item::Area(_) | Item::Stats(_) | Item::Lost(_) | Item::Summary(_) => {}
        }
        self.form.take(&item)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.form.finish()
    }
}
