//! A listing from text in the format of `/proc/vmallocinfo`: a kernel's own, or the output of `Vmalloc::vmallocinfo`
//! and the C function `vmallocinfo`. A dump is read, too: its windows are those that the kernel has.
//!
//! Text may be hostile: a line is cut at 16 KiB, areas and callers have a limit (`super::listing`), and unreadable
//! lines are counted.

use super::fold::Part;
use super::listing::{Builder, Listing};
use std::io::Read;
use std::ops::ControlFlow;
use vmlab_replay::state::State;
use vmlab_trace::jsonl::Header;
use vmlab_trace::vmallocinfo::{Lines, POOLED, Row, Unreadable, caller, parse};

/// Number of unreadable lines that are stored.
const BAD_LINES_MAX: usize = 4;

/// The content of a text.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The areas.
    pub listing: Listing,
    /// Lines that describe an area.
    pub lines: u64,
    /// Lines with the form of an area, but whose addresses the kernel hid.
    pub hidden: u64,
    /// Other lines, except empty ones.
    pub bad: u64,
    /// The first of the other lines: number, from 1, and text, cut.
    pub bad_lines: Vec<(u64, String)>,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
    /// The head of a dump.
    pub dump: Option<Box<Header>>,
}

impl Text {
    /// Reads all of it. Areas are expected in `windows`, or else in those of a dump, or else in
    /// [`super::listing::inferred_windows`].
    ///
    /// Costs O(n log n) for n lines, and 24 bytes of memory for each area.
    pub fn read(input: impl Read, windows: Option<Vec<Part>>) -> Self {
        let mut text = Self::default();
        let mut builder = Builder::default();
        let mut lines = Lines::default();
        text.cut_short = vmlab_trace::each_line(input, |number, line| {
            let trimmed = line.trim();
            let row = lines.row(trimmed).filter(|row| !row.is_empty());
            let Some(row) = row else { return ControlFlow::Continue(()) };
            match parse(&row) {
                Ok(row) => {
                    text.lines += 1;
                    add(&mut builder, &row);
                }
                Err(Unreadable::Hidden) => text.hidden += 1,
                Err(Unreadable::Malformed) => {
                    text.bad += 1;
                    if text.bad_lines.len() < BAD_LINES_MAX {
                        text.bad_lines.push((number, trimmed.chars().take(100).collect()));
                    }
                }
            }
            ControlFlow::Continue(())
        });
        text.dump = lines.dump;
        text.listing = builder.finish(windows.or_else(|| text.dump_windows()));
        text
    }

    /// Returns the windows of a dump, if it has any.
    pub fn dump_windows(&self) -> Option<Vec<Part>> {
        let windows = &self.dump.as_ref()?.windows;
        let windows = windows.iter().filter(|one| one.start.0 < one.end.0);
        let windows: Vec<_> = windows.map(|one| Part { start: one.start.0, end: one.end.0 }).collect();
        (!windows.is_empty()).then_some(windows)
    }
}

fn add(builder: &mut Builder, row: &Row<'_>) {
    let part = Part { start: row.start, end: row.end };
    let state = match row.words {
        "unpurged vm_area" | "quarantined vm_area" => State::Lazy,
        POOLED => State::Pooled,
        _ => State::Busy,
    };
    builder.add(part, state, caller(row.words));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_any_order_and_what_cannot_be_is_counted() {
        let text = "0x9000-0xb000 8192 g+0x1/0x2 pages=1 vmalloc\n\
                    0x1000-0x3000 8192 f+0x1/0x2 pages=1 vmalloc\n\n\
                    0x3000-0x4000 4096 unpurged vm_area\n\
                    0x0000000000000000-0x0000000000000000 4096 f+0x1/0x2 vmap\n\
                    hello\n\
                    0x3000-0x5000 8192 quarantined vm_area\n";
        let text = Text::read(text.as_bytes(), None);
        assert_eq!((text.lines, text.hidden, text.bad), (4, 1, 1));
        assert_eq!(text.bad_lines, [(6, "hello".to_string())]);
        let areas: Vec<_> = text.listing.areas.iter().map(|area| (area.part.start, area.state)).collect();
        assert_eq!(areas, [(0x1000, State::Busy), (0x3000, State::Lazy), (0x9000, State::Busy)]);
        assert_eq!(text.listing.overlapping, 1);
    }

    #[test]
    fn a_dump_has_its_own_windows_and_pooled_areas() {
        let area = |start: u64, text: &str| {
            format!(
                "{{\"area\":{{\"when\":\"begin\",\"start\":\"{start:#x}\",\"end\":{},\"bytes\":4096,\"text\":\"{text}\"}}}}\n",
                start + 4096
            )
        };
        let head = "{\"vmlab\":{\"version\":1,\"kernel\":\"6.12\",\"dump\":\"drgn\",\"windows\":[{\"start\":\"0x1000\",\"end\":\"0x9000\"},{\"start\":\"0x9000\",\"end\":\"0x1\"}]}}\n";
        let lines = [head.to_string(), area(0x2000, "f vmalloc"), area(0x4000, "pooled vm_area")].concat();
        let text = Text::read(lines.as_bytes(), None);
        let areas: Vec<_> = text.listing.areas.iter().map(|area| (area.part.start, area.state)).collect();
        assert_eq!(areas, [(0x2000, State::Busy), (0x4000, State::Pooled)]);
        assert_eq!(text.listing.windows, [Part { start: 0x1000, end: 0x9000 }]);
        assert_eq!((text.lines, text.bad), (2, 0));
        // Windows that the caller names come first.
        let named = Text::read(lines.as_bytes(), Some(vec![Part { start: 0, end: 0x5000 }]));
        assert_eq!(named.listing.windows, [Part { start: 0, end: 0x5000 }]);
    }

    #[test]
    fn a_hundred_thousand_lines_are_read_measured_and_drawn() {
        let mut text = String::new();
        for n in 0..100_000u64 {
            let at = 0xffff_c900_0000_0000 + n * 0x5000 + ((n / 1000) << 30);
            text += &format!(
                "{at:#x}-{:#x} {:>7} f{}+0x1/0x2 pages=3 vmalloc N0=3\n",
                at + 0x4000,
                0x4000,
                n % 300
            );
        }
        let text = Text::read(text.as_bytes(), None);
        assert_eq!((text.lines, text.bad, text.listing.callers.len()), (100_000, 0, 300));
        assert_eq!(text.listing.areas.len(), 100_000);
        let drawing = super::super::fuzz_draw(&text.listing);
        // The size of a picture is limited, whatever the number of areas.
        assert!(drawing < 12 << 20, "{drawing} bytes");
    }
}
