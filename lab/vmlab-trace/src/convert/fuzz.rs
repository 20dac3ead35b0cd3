//! Converts arbitrary bytes into every form.

use super::{Form, Lacking, To, convert};
use crate::flame::{By, Stacks};
use crate::jsonl::Item;
use crate::latency::{Latencies, Of};
use crate::live::Live;
use crate::vmallocinfo::Table;
use crate::{Next, Sink, decompress, items};
use anyhow::Result;
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use vmlab_base::choice::Choice;

/// A buffer that outlives its sink.
#[derive(Clone, Default)]
pub(super) struct SharedBuffer(Rc<RefCell<Vec<u8>>>);

impl SharedBuffer {
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.take()
    }
}

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts an input to a form.
///
/// # Errors
/// Those of the form.
pub(super) fn converted(input: impl Read, to: To) -> Result<Vec<u8>> {
    let buffer = SharedBuffer::default();
    let form: Box<dyn Form> = to.form(Sink::to(buffer.clone(), "memory"))?;
    convert(input, form, &AtomicBool::new(false))?;
    Ok(buffer.take())
}

/// Returns the items of an input, as lines of a recording.
pub(crate) fn lines(input: impl Read) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    items(input, |item: Item<'_>| {
        lines.push(item.to_json()?);
        Ok(Next::Go)
    })?;
    Ok(lines)
}

/// The body of the fuzz target `trace_convert`: any bytes can be written in every form, and a written recording is read
/// back as the same items. A live state takes them, as events and as a table, and
/// each call is in one group of durations.
///
/// # Panics
/// If a form cannot be written into memory, a recording is read as something else, or LV1 or LV2 does not hold.
pub fn fuzz(data: &[u8]) {
    // A decompression bomb of a few bytes may expand to gigabytes: limit the input.
    let input = |data| decompress(data).map(|input| input.take(1 << 18)).ok();
    let Some(first) = input(data) else { return };
    let mut text = Vec::new();
    // The readable prefix of a broken stream is as good an input as a whole one.
    let _ = { first }.read_to_end(&mut text);
    let mut stacks = Stacks::of(None);
    let mut latencies = Latencies::default();
    let mut live = Live::new(data.len().is_multiple_of(2));
    live.stand_on(Table::read(&text[..]));
    live.expect(Table::read(&text[..]), "vmallocinfo begin");
    let taken = items(&text[..], |item| {
        live.take(&item);
        stacks.take(&item);
        latencies.take(&item);
        Ok(Next::Go)
    });
    assert!(taken.is_ok());
    assert_eq!(live.validate(), Ok(()));
    let _ = stacks.folded(By::TimeLive);
    latencies.finish();
    let counted =
        |of| latencies.call_rows(of).into_iter().map(|mut row| row.durations.figures().count).sum::<u64>();
    assert_eq!([Of::Caller, Of::Task].map(counted), [latencies.calls(); 2]);
    for &to in To::CHOICES {
        let written = match converted(&text[..], to) {
            Ok(written) => written,
            // An input without a table has none to write.
            Err(error) if error.is::<Lacking>() => continue,
            Err(error) => panic!("{to:?}: {error:#}"),
        };
        if to == To::Jsonl {
            let (before, after) = (lines(&text[..]), lines(&written[..]));
            let (before, mut after) = (before.unwrap_or_default(), after.unwrap_or_default());
            // The converter adds a header if there was none.
            if after.len() > before.len() {
                after.remove(0);
            }
            assert_eq!(before, after, "a recording is read as it was written");
        }
        if to == To::Perfetto {
            assert!(serde_json::from_slice::<serde_json::Value>(&written).is_ok(), "not JSON");
        }
    }
}
