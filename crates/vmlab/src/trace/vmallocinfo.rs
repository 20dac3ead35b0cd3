//! `/proc/vmallocinfo`: one line an area, of which the percpu chunks are kept.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

/// How many chunks are kept, at most: no machine has that many, and a hostile table ends there.
const CHUNKS_MAX: usize = 1 << 16;

/// An area, as its line tells it.
struct Area {
    /// First address.
    start: u64,
    /// Bytes, guard page included.
    size: u64,
    /// Whether it is part of a percpu chunk.
    chunk: bool,
}

/// What a table tells about percpu chunks.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Bytes of each chunk, by its first address.
    chunks: BTreeMap<u64, u64>,
    /// Bytes of the first of them.
    first: Option<u64>,
    /// Lines that were understood.
    pub areas: u64,
    /// Lines that were not.
    pub bad: u64,
}

impl Table {
    /// Reads a whole table.
    pub fn read(input: impl Read) -> Self {
        let mut table = Self::default();
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        while let Ok(true) = super::read_line(&mut input, &mut line) {
            let text = String::from_utf8_lossy(&line);
            if text.trim().is_empty() {
                continue;
            }
            match parse(text.trim()) {
                Some(area) => table.add(&area),
                None => table.bad += 1,
            }
        }
        // A read error leaves what was read; an unreadable tail is as bad as a bad line.
        table.bad += u64::from(input.fill_buf().is_err());
        table
    }

    fn add(&mut self, area: &Area) {
        self.areas += 1;
        if area.chunk {
            self.first.get_or_insert(area.size);
            if self.chunks.len() < CHUNKS_MAX {
                self.chunks.entry(area.start).or_insert(area.size);
            }
        }
    }

    /// Bytes of the percpu chunk at `base`, or of any, since all chunks of a machine are of one size.
    pub fn chunk_bytes(&self, base: u64) -> Option<u64> {
        self.chunks.get(&base).copied().or(self.first)
    }
}

fn parse(line: &str) -> Option<Area> {
    let (range, rest) = line.split_once(char::is_whitespace)?;
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let (size, words) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
    let size: u64 = size.parse().ok()?;
    // The three numbers say the same thing twice.
    (end.checked_sub(start)? == size && size > 0).then(|| Area {
        start,
        size,
        chunk: words.trim_start().starts_with("pcpu_get_vm_areas"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_its_own_size_or_else_the_first_ones_and_so_many_are_kept() {
        let line = |at: u64, size: u64| {
            format!("{at:#x}-{:#x} {size} pcpu_get_vm_areas+0x0/0x1 vmalloc\n", at + size)
        };
        let mut text = line(0x1000, 0x1000) + &line(0x9000, 0x3000) + &line(0x9000, 0x4000);
        let table = Table::read(text.as_bytes());
        assert_eq!([0x1000, 0x9000, 1].map(|at| table.chunk_bytes(at)), [0x1000, 0x3000, 0x1000].map(Some));
        for at in 0..CHUNKS_MAX as u64 {
            text += &line(0x10_0000 + at * 0x1000, 0x2000);
        }
        let table = Table::read(text.as_bytes());
        assert_eq!((table.areas, table.chunks.len()), (3 + CHUNKS_MAX as u64, CHUNKS_MAX));
        assert_eq!(table.chunk_bytes(0x10_0000 + 0xffff * 0x1000), Some(0x1000));
    }

    #[test]
    fn lines_are_read_and_nonsense_is_counted() {
        let text = "0xffa0000000000000-0xffa0000000005000   20480 irq_init+0xf4/0x130 vmap\n\
                    0xffd1ffffffc00000-0xffd1ffffffe00000 2097152 pcpu_get_vm_areas+0x0/0x1040 vmalloc\n\
                    0xffa0000000000000-0xffa0000000005000   4096 sizes disagree\n\
                    0x2000-0x1000 4096 x\n\n(null)\n\
                    0x1000-0x3000    8192\n";
        let table = Table::read(text.as_bytes());
        assert_eq!((table.areas, table.bad), (3, 3));
        assert_eq!(table.chunk_bytes(0xffd1_ffff_ffc0_0000), Some(2 << 20));
        assert_eq!(table.chunk_bytes(1), Some(2 << 20));
        assert_eq!(Table::default().chunk_bytes(1), None);
    }
}
