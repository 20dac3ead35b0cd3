//! `/proc/vmallocinfo`: one line an area.

use std::io::{BufRead, BufReader, Read};

/// One area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address after the last, guard page included.
    pub end: u64,
    /// What the line says besides: caller, pages, kind.
    pub words: String,
}

impl Area {
    /// Tells whether the area is part of a percpu chunk.
    pub fn is_percpu_chunk(&self) -> bool {
        self.words.starts_with("pcpu_get_vm_areas")
    }
}

/// All lines that could be read.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The areas, as they stood.
    pub areas: Vec<Area>,
    /// Lines that were not understood.
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
                Some(area) => table.areas.push(area),
                None => table.bad += 1,
            }
        }
        // A read error leaves what was read; an unreadable tail is as bad as a bad line.
        table.bad += u64::from(input.fill_buf().is_err());
        table
    }

    /// Bytes of the percpu chunk at `base`, or of any, since all chunks of a machine are of one size.
    pub fn chunk_bytes(&self, base: u64) -> Option<u64> {
        let chunk = |area: &&Area| area.is_percpu_chunk();
        let exact = self.areas.iter().filter(chunk).find(|area| area.start == base);
        exact.or_else(|| self.areas.iter().find(chunk)).map(|area| area.end - area.start)
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
        end,
        words: words.trim().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_nonsense_is_counted() {
        let text = "0xffa0000000000000-0xffa0000000005000   20480 irq_init+0xf4/0x130 vmap\n\
                    0xffd1ffffffc00000-0xffd1ffffffe00000 2097152 pcpu_get_vm_areas+0x0/0x1040 vmalloc\n\
                    0xffa0000000000000-0xffa0000000005000   4096 sizes disagree\n\
                    0x2000-0x1000 4096 x\n\n(null)\n\
                    0x1000-0x3000    8192\n";
        let table = Table::read(text.as_bytes());
        assert_eq!((table.areas.len(), table.bad), (3, 3));
        assert_eq!(table.areas[0].words, "irq_init+0xf4/0x130 vmap");
        assert_eq!(table.areas[2].words, "");
        assert_eq!(table.chunk_bytes(0xffd1_ffff_ffc0_0000), Some(2 << 20));
        assert_eq!(table.chunk_bytes(1), Some(2 << 20));
        assert_eq!(Table::default().chunk_bytes(1), None);
    }
}
