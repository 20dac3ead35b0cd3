//! Reads every line of a trace or a recording, in order, in constant memory.

use super::jsonl::{Header, Item, LostLine, Number, VERSION};
use super::stack::Reader;
use super::{Entry, LINE_MAX, lost_at, read_line};
use anyhow::Result;
use std::io::{BufReader, Read};

/// Returned by the caller after each item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read the next item.
    Go,
    /// Read no more.
    Stop,
}

/// The counts of the items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Lines.
    pub lines: u64,
    /// Items among them.
    pub items: u64,
    /// Comments, empty lines and events that are not ours.
    pub others: u64,
    /// Lines of our events, or of a recording, that are not understood.
    pub bad: u64,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

/// Reads text of any tool, or a recording, and passes each item to `each`.
///
/// # Errors
/// Those of `each`. Errors of the input end it early and are reported in the census.
pub fn items(input: impl Read, mut each: impl FnMut(Item<'_>) -> Result<Next>) -> Result<Census> {
    let mut census = Census::default();
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut line = Vec::with_capacity(LINE_MAX);
    let mut stacks = Reader::default();
    loop {
        match read_line(&mut input, &mut line) {
            Ok(true) => {}
            end => {
                let why = end.err().map(|error| format!("after line {}: {error}", census.lines));
                census.cut_short = why;
                if let Some(stack) = stacks.end() {
                    census.items += 1;
                    each(Item::Stack(stack))?;
                }
                return Ok(census);
            }
        }
        census.lines += 1;
        let text = String::from_utf8_lossy(&line);
        let taken = stacks.take(&text);
        if let Some(stack) = taken.ended {
            census.items += 1;
            if each(Item::Stack(stack))? == Next::Stop {
                return Ok(census);
            }
        }
        if taken.part {
            continue;
        }
        if let Some(cpus) = text.strip_prefix('#').and_then(cpus) {
            let header = Header { version: Number(VERSION), cpus: Number(cpus), ..Header::default() };
            if each(Item::Header(Box::new(header)))? == Next::Stop {
                return Ok(census);
            }
        }
        match item(&text) {
            Understood::Item(item) => {
                census.items += 1;
                if each(*item)? == Next::Stop {
                    return Ok(census);
                }
            }
            Understood::Other => census.others += 1,
            Understood::Bad => census.bad += 1,
        }
    }
}

/// `#P:4`, the CPUs in the head of a text.
fn cpus(comment: &str) -> Option<u64> {
    comment.split_once("#P:")?.1.trim().parse().ok()
}

/// The meaning of a line.
enum Understood<'a> {
    Item(Box<Item<'a>>),
    Other,
    Bad,
}

/// The longest accepted line of text, and of a recording. An accepted line of text fits `JSON_MAX` as JSON, even if
/// each byte becomes an escape of six. A line of a recording is at most [`LINE_MAX`]. The kernel's lines have about 500
/// bytes.
const TEXT_MAX: usize = JSON_MAX / 8;
const JSON_MAX: usize = LINE_MAX / 2;

fn item(text: &str) -> Understood<'_> {
    let begins = text.trim_start().starts_with('{');
    if text.len() > if begins { JSON_MAX } else { TEXT_MAX } {
        let ours = begins || super::fields::split(text.trim()).is_some();
        return if ours { Understood::Bad } else { Understood::Other };
    }
    let json = if begins { Some(Item::from_json(text)) } else { None };
    match json {
        Some(Ok(Some(item))) => return Understood::Item(Box::new(item)),
        Some(Ok(None)) => return Understood::Other,
        _ => {}
    }
    // This may also be a line of text: the name of its task may begin with `{`.
    if text.len() > TEXT_MAX {
        return Understood::Bad;
    }
    if let Some(entry) = Entry::from_text(text) {
        return Understood::Item(Box::new(Item::Event(entry)));
    }
    if let Some((events, cpu)) = lost_at(text) {
        let cpu = cpu.map(|cpu| Number(cpu.into()));
        return Understood::Item(Box::new(Item::Lost(LostLine { events: Number(events), cpu })));
    }
    let ours = !text.trim_start().starts_with('#') && super::fields::split(text.trim()).is_some();
    if ours || json.is_some() { Understood::Bad } else { Understood::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_an_item_or_counted() {
        let text = "# entries-in-buffer/entries-written: 10/14   #P:1\n\
            # tracer: nop\n\
            x-1 [000] ..... 1.0: free_vmap_area_noflush: va_start=0x1000\n\
            CPU:3 [LOST 42 EVENTS]\n\
            x-1 [000] ..... 1.0: free_vmap_area_noflush: nonsense\n\
            x-1 [000] ..... 1.0: sched_switch: prev=1\n\
            {\"event\":\"free_vmap_area_noflush\",\"va_start\":\"0x1000\"}\n\
            {\"event\":\"free_vmap_area_noflush\"}\n\
            {\"event\":\"sched_switch\"}\n\
            {\"something\":1}\n\
            {\"broken\n\
            {x}-1 [000] ..... 1.0: free_vmap_area_noflush: va_start=0x1000\n";
        let mut seen = Vec::new();
        let census = items(text.as_bytes(), |item| {
            seen.push(match item {
                Item::Event(_) => 'e',
                Item::Lost(lost) if lost.events.0 == 42 => 'l',
                Item::Lost(_) => 'o',
                Item::Header(header) if header.cpus.0 == 1 => 'h',
                _ => '?',
            });
            Ok(Next::Go)
        })
        .unwrap();
        assert_eq!(seen.iter().collect::<String>(), "hoelee");
        assert_eq!((census.lines, census.items, census.others, census.bad), (12, 5, 4, 3));
    }

    #[test]
    fn the_longest_text_is_read_again_as_it_was_written() {
        let marks = |bytes: usize, task: &str| {
            let head = format!("{task}-1 [000] ..... 1.000000: tracing_mark_write: ");
            let text = format!("{head}{}", "\u{1}".repeat(bytes - head.len()));
            let mut lines = Vec::new();
            let census = items(text.as_bytes(), |item| {
                lines.push(item.to_json()?);
                Ok(Next::Go)
            });
            (lines, census.unwrap().bad)
        };
        let (lines, bad) = marks(TEXT_MAX, "x");
        assert!(lines.len() == 1 && bad == 0 && lines[0].len() <= JSON_MAX, "{lines:?}");
        let mut again = Vec::new();
        let census = items(lines[0].as_bytes(), |item| {
            again.push(item.to_json()?);
            Ok(Next::Go)
        });
        assert_eq!((again, census.unwrap().bad), (lines, 0));
        for task in ["x", "{x}"] {
            assert!(marks(TEXT_MAX + 1, task).0.is_empty(), "one byte more is not taken");
        }
    }

    #[test]
    fn who_reads_may_stop() {
        let text = "free_vmap_area_noflush: va_start=0x1000\n".repeat(9);
        let mut left = 3;
        let census = items(text.as_bytes(), |_| {
            left -= 1;
            Ok(if left == 0 { Next::Stop } else { Next::Go })
        });
        assert_eq!(census.unwrap().lines, 3);
    }
}
