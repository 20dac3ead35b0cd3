//! `/proc/vmallocinfo`: one line for each area. [`Table`] stores the percpu chunks and the caller of each area;
//! `vmlab_view::map` stores all that a map draws. Each reads a dump, too ([`Lines`]).

use super::jsonl::{Header, Item};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::ops::ControlFlow;

/// The most chunks that are stored: more than any machine has, as a limit for hostile tables.
const CHUNKS_MAX: usize = 1 << 16;

/// The most areas that are stored, and the most callers. A machine has some ten thousand areas and some hundred
/// callers.
const LISTED_MAX: usize = 1 << 20;
const CALLERS_MAX: usize = 1 << 14;
/// Characters of a caller's name that are stored.
const CALLER_CHARS: usize = 80;

/// A listed area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// First address.
    pub start: u64,
    /// Bytes, guard page included.
    pub size: u64,
    /// An index into [`Table::callers`].
    pub caller: u32,
    /// True if it is freed and not yet purged.
    pub lazy: bool,
}

/// An area, as its line describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row<'a> {
    /// First address.
    pub start: u64,
    /// Address after the last; guard page included.
    pub end: u64,
    /// The text after the numbers: the caller, the pages, the kind of memory.
    pub words: &'a str,
}

/// The text of a pooled area in a dump, in the place of a caller. The kernel's own table has none.
pub const POOLED: &str = "pooled vm_area";

/// The lines of a table, or of a dump: a recording without events, which `lab/python/vmlab/kernel.py` writes.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The head of a dump.
    pub dump: Option<Box<Header>>,
}

impl Lines {
    /// Returns the line of the table that a line of the input stands for: itself, or of a dump the area in it. `None` if
    /// a line of a dump has no area.
    pub fn row<'a>(&mut self, text: &'a str) -> Option<Cow<'a, str>> {
        if !text.starts_with('{') {
            return Some(Cow::Borrowed(text));
        }
        match Item::from_json(text) {
            Ok(Some(Item::Header(header))) if !header.dump.is_empty() => {
                self.dump = Some(header);
                None
            }
            Ok(Some(Item::Area(area))) if self.dump.is_some() => Some(Cow::Owned(area.to_string())),
            Ok(_) if self.dump.is_some() => None,
            _ => Some(Cow::Borrowed(text)),
        }
    }
}

/// The reason why a line describes no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// It has the form of an area, but the kernel hid its addresses: they are zeros, hashes or placeholders.
    Hidden,
    /// Anything else.
    Malformed,
}

/// Facts of a table about percpu chunks.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Bytes of each chunk, by its first address.
    chunks: BTreeMap<u64, u64>,
    /// Bytes of the first chunk in the table.
    first: Option<u64>,
    /// Every area, in the order of the lines, but for those in pools.
    listed: Vec<Listed>,
    /// First address and bytes of the areas in pools, which a dump has.
    pooled: Vec<(u64, u64)>,
    /// The callers, each once, and the index of each.
    callers: Vec<String>,
    caller_numbers: HashMap<String, u32>,
    /// Lines that were understood.
    pub areas: u64,
    /// Lines that were not.
    pub bad: u64,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

impl Table {
    /// Reads a whole table.
    pub fn read(input: impl Read) -> Self {
        let mut table = Self::default();
        let mut lines = Lines::default();
        table.cut_short = super::each_line(input, |_, text| {
            if let Some(row) = lines.row(text.trim()).filter(|row| !row.is_empty()) {
                match parse(&row) {
                    Ok(row) => table.add(&row),
                    Err(_) => table.bad += 1,
                }
            }
            ControlFlow::Continue(())
        });
        table
    }

    fn add(&mut self, row: &Row<'_>) {
        self.areas += 1;
        let size = row.end - row.start;
        if row.words == POOLED {
            if self.pooled.len() < LISTED_MAX {
                self.pooled.push((row.start, size));
            }
            return;
        }
        if self.listed.len() < LISTED_MAX {
            let lazy = row.words.starts_with("unpurged vm_area");
            let name = if lazy { "(lazy)" } else { caller(row.words) };
            let caller = self.caller_number(name);
            self.listed.push(Listed { start: row.start, size, caller, lazy });
        }
        if row.words.starts_with("pcpu_get_vm_areas") {
            self.first.get_or_insert(size);
            if self.chunks.len() < CHUNKS_MAX {
                self.chunks.entry(row.start).or_insert(size);
            }
        }
    }

    /// Returns the index of a caller. If there are too many, the last one stands for the rest.
    fn caller_number(&mut self, name: &str) -> u32 {
        let name: String = name.chars().take(CALLER_CHARS).collect();
        if let Some(&known) = self.caller_numbers.get(&name) {
            return known;
        }
        let full = self.callers.len() >= CALLERS_MAX;
        if full && self.callers.len() > CALLERS_MAX {
            return CALLERS_MAX as u32;
        }
        let number = self.callers.len() as u32;
        let name = if full { "others".to_string() } else { name };
        self.callers.push(name.clone());
        self.caller_numbers.insert(name, number);
        number
    }

    /// Returns first address and bytes of the areas in pools, at most a million.
    pub fn pooled(&self) -> &[(u64, u64)] {
        &self.pooled
    }

    /// Returns the busy and the lazy areas in the order of the lines, at most a million.
    pub fn listed(&self) -> impl Iterator<Item = &Listed> + '_ {
        self.listed.iter()
    }

    /// Removes the areas at these addresses: the table is of a later time, and shows others there. The sizes of chunks
    /// stay.
    pub fn forget(&mut self, addresses: &HashSet<u64>) {
        self.listed.retain(|listed| !addresses.contains(&listed.start));
    }

    /// Returns the callers that have areas, each once.
    pub fn callers(&self) -> &[String] {
        &self.callers
    }

    /// Returns the bytes of the percpu chunk at `base`, or of any other, since all chunks of a machine have one size.
    pub fn chunk_bytes(&self, base: u64) -> Option<u64> {
        self.chunks.get(&base).copied().or(self.first)
    }
}

/// Reads a line without blanks around it.
///
/// # Errors
/// If it describes no area.
pub fn parse(line: &str) -> Result<Row<'_>, Unreadable> {
    let split = || {
        let (range, rest) = line.split_once(char::is_whitespace)?;
        let rest = rest.trim_start();
        let (size, words) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let size = size.parse::<u64>().ok().filter(|&size| size > 0)?;
        let (start, end) = range.split_once('-')?;
        Some((start, end, size, words.trim_start()))
    };
    let (start, end, size, words) = split().ok_or(Unreadable::Malformed)?;
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    match (hex(start), hex(end)) {
        // The size must be the difference of the addresses.
        (Some(start), Some(end)) if end.checked_sub(start) == Some(size) => Ok(Row { start, end, words }),
        // Zeros, or hashes, which have 32 bits and no order.
        (Some(start), Some(end)) if start.max(end) <= u64::from(u32::MAX) => Err(Unreadable::Hidden),
        (None, None) if start.contains("(____ptrval____)") && end.contains("(____ptrval____)") => {
            Err(Unreadable::Hidden)
        }
        _ => Err(Unreadable::Malformed),
    }
}

/// Returns the caller: the text before the first word that describes the memory, and for a kernel's symbol without the
/// offset. Without such text it returns a placeholder.
pub fn caller(words: &str) -> &str {
    const BEHIND: [&str; 9] =
        ["vmalloc", "vmap", "ioremap", "user", "dma-coherent", "vpages", "sparse", "vm_map_ram", "vm_area"];
    let describes = |word: &str| {
        let numbered = ["pages=", "phys=", "requested="].iter().any(|key| word.starts_with(key));
        numbered || BEHIND.contains(&word)
    };
    let mut end = words.len();
    let mut at = 0;
    for word in words.split_whitespace() {
        let Some(start) = words[at..].find(word).map(|found| at + found) else { break };
        if describes(word) {
            end = start;
            break;
        }
        at = start + word.len();
    }
    let name = words[..end].trim();
    if name.is_empty() {
        return if words.contains("vm_map_ram") { "vm_map_ram" } else { "(unnamed)" };
    }
    symbol(name).unwrap_or(name)
}

/// Returns `f` of `f+0x1a/0x2b`; a module's name in brackets is dropped with the offset.
pub(crate) fn symbol(name: &str) -> Option<&str> {
    let (symbol, rest) = name.split_once("+0x")?;
    let offsets = rest.split_whitespace().next()?;
    let (offset, size) = offsets.split_once("/0x")?;
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hex(offset) && hex(size) && !symbol.is_empty()).then_some(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_its_own_size_or_the_first_and_they_are_counted() {
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
    fn who_has_an_area_is_its_caller_without_offsets() {
        let text = "0x1000-0x3000 8192 kernel_clone+0xc2/0x430 pages=1 vmalloc\n\
                    0x3000-0x5000 8192 [0xff]x+0x1/0x2 [mod] ioremap\n\
                    0x5000-0x7000 8192 unpurged vm_area\n\
                    0x7000-0x9000 8192 vm_map_ram\n0x9000-0xb000 8192\n0xb000-0xd000 8192 pages=1 vmalloc\n\
                    0xd000-0xf000 8192 kernel_clone+0xd0/0x430 vmalloc\n";
        let table = Table::read(text.as_bytes());
        let row = |listed: &Listed| (table.callers()[listed.caller as usize].as_str(), listed.lazy);
        let rows: Vec<_> = table.listed().map(row).collect();
        let unnamed = "(unnamed)";
        let want = ["kernel_clone", "[0xff]x", "(lazy)", "vm_map_ram", unnamed, unnamed, "kernel_clone"];
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), want);
        assert_eq!(
            rows.iter().map(|row| row.1).collect::<Vec<_>>(),
            [0, 0, 1, 0, 0, 0, 0].map(|lazy| lazy == 1)
        );
        let many: String = (0..CALLERS_MAX as u64 + 9)
            .map(|n| format!("{:#x}-{:#x} 4096 f{n}+0x1/0x2\n", n << 12, (n + 1) << 12))
            .collect();
        let table = Table::read(many.as_bytes());
        assert_eq!(
            (table.callers().len(), table.callers()[CALLERS_MAX].as_str()),
            (CALLERS_MAX + 1, "others")
        );
        assert_eq!(table.listed().last().unwrap().caller as usize, CALLERS_MAX);
    }

    /// A dump: what a reader of tables takes, and lines that it skips.
    const DUMP: &str = "{\"vmlab\":{\"version\":1,\"dump\":\"drgn 1\",\"windows\":[{\"name\":\"vmalloc\",\"start\":\"0x1000\",\"end\":\"0x90000\"}]}}\n\
        {\"state\":{\"nodes\":2}}\n\
        {\"area\":{\"when\":\"begin\",\"start\":\"0x1000\",\"end\":\"0x3000\",\"bytes\":8192,\"text\":\"f+0x1/0x2 pages=1 vmalloc\",\"node\":1}}\n\
        {\"area\":{\"when\":\"begin\",\"start\":\"0x3000\",\"end\":\"0x5000\",\"bytes\":8192,\"text\":\"unpurged vm_area\"}}\n\
        {\"area\":{\"when\":\"begin\",\"start\":\"0x7000\",\"end\":\"0x8000\",\"bytes\":4096,\"text\":\"pooled vm_area\"}}\n\
        {\"hole\":{\"start\":\"0x8000\",\"end\":\"0x90000\"}}\n\
        {\"area\":{\"when\":\"begin\",\"start\":\"0x9000\",\"end\":\"0xa000\",\"bytes\":1,\"text\":\"sizes disagree\"}}\n\
        {broken\n";

    #[test]
    fn a_dump_is_a_table_that_has_pools() {
        let table = Table::read(DUMP.as_bytes());
        let listed: Vec<_> = table.listed().map(|one| (one.start, one.size, one.lazy)).collect();
        assert_eq!(listed, [(0x1000, 0x2000, false), (0x3000, 0x2000, true)]);
        assert_eq!((table.pooled(), table.areas, table.bad), (&[(0x7000, 0x1000)][..], 3, 2));
        assert_eq!(table.callers(), ["f", "(lazy)"]);
        let mut lines = Lines::default();
        assert!(DUMP.lines().filter_map(|line| lines.row(line)).count() == 5);
        assert_eq!(lines.dump.unwrap().windows[0].end.0, 0x9_0000);
        // A recording of events has tables of two times: it is no table.
        let recording = DUMP.replace("\"dump\":\"drgn 1\",", "");
        let table = Table::read(recording.as_bytes());
        assert_eq!((table.areas, table.bad), (0, 8));
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

    #[test]
    fn addresses_that_the_kernel_hid_are_distinguished_from_nonsense() {
        for (line, why) in [
            ("0x0000000000000000-0x0000000000000000    8192 f+0x1/0x2 vmalloc", Unreadable::Hidden),
            ("0x00000000a3eb8df1-0x0000000040ab02d3   20480 f+0x1/0x2 vmap", Unreadable::Hidden),
            ("0x(____ptrval____)-0x(____ptrval____)    8192 f+0x1/0x2 vmalloc", Unreadable::Hidden),
            ("0xffa0000000000000-0xffa0000000005000    4096 f", Unreadable::Malformed),
            ("0xffa0000000000000-0xffa0000000000000       0 f", Unreadable::Malformed),
            ("0x(____ptrval____)-0x2000    8192 f", Unreadable::Malformed),
            ("ffa0000000000000-ffa0000000001000 4096 f", Unreadable::Malformed),
            ("0x1000", Unreadable::Malformed),
            ("", Unreadable::Malformed),
        ] {
            assert_eq!(parse(line), Err(why), "{line}");
        }
        let row = parse("0x1000-0x3000    8192   f+0x1/0x2 pages=1 vmalloc").unwrap();
        assert_eq!(row, Row { start: 0x1000, end: 0x3000, words: "f+0x1/0x2 pages=1 vmalloc" });
    }

    #[test]
    fn the_caller_is_what_stands_before_what_is_behind() {
        for (words, want) in [
            ("irq_init_percpu_irqstack+0xf4/0x130 vmap", "irq_init_percpu_irqstack"),
            ("acpi_os_map_iomem+0x1a9/0x1e0 phys=0x000000003ffe1000 ioremap", "acpi_os_map_iomem"),
            ("nft_init+0x12/0x30 [nf_tables] pages=4 vmalloc N0=4", "nft_init"),
            ("frame buffers pages=5 vmalloc", "frame buffers"),
            ("src/main.rs:12:5 pages=5 vmalloc", "src/main.rs:12:5"),
            ("pages=5 vmalloc", "(unnamed)"),
            ("vm_map_ram", "vm_map_ram"),
            ("unpurged vm_area", "unpurged"),
            ("a+0xg/0x1 vmap", "a+0xg/0x1"),
            ("0xffffffff81234567 pages=1 vmalloc", "0xffffffff81234567"),
            ("", "(unnamed)"),
        ] {
            assert_eq!(caller(words), want, "{words}");
        }
    }
}
