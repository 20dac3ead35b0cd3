//! A part of a trace, or a trace without names, for another form to write.

use super::{Form, Lacking};
use crate::jsonl::Item;
use crate::stack::Unmatched;
use crate::{Happening, Range, Selection};
use anyhow::{Result, ensure};

/// Returns true if an item is written. Tables, counters, losses and the recorder's marks always are.
fn has(selection: &Selection, item: &Item<'_>) -> bool {
    match item {
        Item::Event(entry) if matches!(entry.happening, Happening::Mark { .. }) => true,
        Item::Event(entry) => selection.has(entry.ns, entry.cpu, entry.task.as_deref()),
        _ => true,
    }
}

/// Passes a selection on.
pub struct Select {
    form: Box<dyn Form>,
    selection: Selection,
    /// Without the names and numbers of tasks, and without the command that was recorded.
    blank: bool,
    /// For each event without its stack: whether it is written.
    unmatched: Unmatched<bool>,
    /// True once an event was selected.
    any: bool,
    /// The events before that.
    others: Range,
}

impl std::fmt::Debug for Select {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Select").field("blank", &self.blank).finish_non_exhaustive()
    }
}

impl Select {
    /// Creates a form that passes the selection on to another, without names of tasks if it is `blank`.
    pub fn new(form: Box<dyn Form>, selection: Selection, blank: bool) -> Self {
        Self { form, selection, blank, unmatched: Unmatched::default(), any: false, others: Range::default() }
    }
}

impl Form for Select {
    fn take(&mut self, item: &Item<'_>) -> Result<()> {
        let has = match item {
            // A stack is written if its event is.
            Item::Stack(stack) => self.unmatched.take(stack).unwrap_or(false),
            item => has(&self.selection, item),
        };
        if let Item::Event(entry) = item
            && !matches!(entry.happening, Happening::Mark { .. })
        {
            self.unmatched.push(entry.cpu, entry.pid, has);
            self.any |= has;
            if !self.any {
                self.others.add(entry.ns, entry.cpu, entry.task.as_deref());
            }
        }
        if !has {
            return Ok(());
        }
        if !self.blank {
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
        self.form.finish()?;
        ensure!(
            self.any || self.others.is_empty(),
            Lacking { what: format!("no event {}", self.selection), why: self.others.to_string() }
        );
        Ok(())
    }
}
