//! Simulated pages: a page table on a [`SimMachine`], pages with contents, and refusals.
//!
//! # Theory
//! A page of the source is a number below how many there are; its bytes are garbage unless zeros were asked for, and become
//! garbage again when it is given back. Whatever is mapped is told to the machine, which remembers what its CPUs may still believe,
//! so that a mapping over a stale translation is seen (SP2). Every [`TABLE_PAGES`] pages of address space need a page of the page
//! table, which stays once it is there. All numbers are small, so that a dozen calls reach every limit.

use crate::machine::{SimMachine, Violation};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{Leaf, PageSource, PageTable, Protection, Refusal, Run, Stopped};

/// Pages that one page of the page table maps.
pub const TABLE_PAGES: u64 = 16;
/// Pages of a huge mapping, as a power of two.
pub const HUGE_LOG2: u32 = 3;
/// Page numbers from here on are callers': the source does not know them.
pub const FOREIGN: u64 = 1 << 40;
/// What is in a page that nobody made zeros of.
pub const GARBAGE: u8 = 0xa5;

/// What the machine was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Pages, of the source.
    Pages,
    /// A huge page, of the source.
    HugePage,
    /// A page of the page table.
    TablePage,
    /// A huge mapping, of the page table.
    HugeLeaf,
}

struct State {
    leaves: BTreeMap<u64, Leaf>,
    tables: BTreeSet<u64>,
    free: BTreeSet<u64>,
    lent: BTreeSet<u64>,
    contents: BTreeMap<u64, Vec<u8>>,
    left: [u64; 4],
    violations: Vec<Violation>,
    wrong: Vec<String>,
}

/// The page table and the source.
pub struct SimPages<'m> {
    machine: &'m SimMachine,
    state: Mutex<State>,
}

impl<'m> SimPages<'m> {
    /// Makes an empty page table, and a source of `frames` pages.
    pub fn new(machine: &'m SimMachine, frames: u64) -> Self {
        let state = State {
            leaves: BTreeMap::new(),
            tables: BTreeSet::new(),
            free: (0..frames).collect(),
            lent: BTreeSet::new(),
            contents: BTreeMap::new(),
            left: [u64::MAX; 4],
            violations: Vec::new(),
            wrong: Vec::new(),
        };
        Self { machine, state: Mutex::new(state) }
    }

    /// Grants `granted` more of a kind, and refuses the rest; `u64::MAX` refuses none.
    pub fn refuse_after(&self, what: Ask, granted: u64) {
        self.state.lock().left[what as usize] = granted;
    }

    /// Forgets the pages of the page table that map nothing.
    pub fn drop_tables(&self) {
        let mut state = self.state.lock();
        let used: BTreeSet<u64> = state.leaves.keys().map(|page| page / TABLE_PAGES).collect();
        state.tables = used;
    }

    /// Pages that the source lent.
    pub fn lent(&self) -> u64 {
        self.state.lock().lent.len() as u64
    }

    /// Entries of the page table, huge ones among them.
    pub fn leaves(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.leaves.len(), state.leaves.values().filter(|leaf| leaf.pages_log2 > 0).count())
    }

    /// Pages mapped.
    pub fn mapped(&self) -> u64 {
        self.state.lock().leaves.values().map(|leaf| 1 << leaf.pages_log2).sum()
    }

    /// What went wrong so far: reuse before a flush (SP2), a page behind two addresses or given back while it is mapped (MP3).
    pub fn faults(&self) -> Vec<String> {
        let state = self.state.lock();
        let reused = state.violations.iter().map(ToString::to_string);
        reused.chain(state.wrong.iter().cloned()).collect()
    }

    /// Writes a byte at an address that is mapped.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn write(&self, at: Va, byte: u8) -> Result<(), Va> {
        let (frame, inside) = self.frame_at(at).ok_or(at)?;
        let mut state = self.state.lock();
        state.contents.entry(frame).or_insert_with(garbage)[inside] = byte;
        Ok(())
    }

    /// The bytes of a page.
    pub fn bytes(&self, frame: u64) -> Vec<u8> {
        self.state.lock().contents.get(&frame).cloned().unwrap_or_else(garbage)
    }

    fn frame_at(&self, at: Va) -> Option<(u64, usize)> {
        let leaf = self.leaf(at)?;
        let inside = at.page_floor() & ((1 << leaf.pages_log2) - 1);
        Some((leaf.first + inside, (at.get() % PAGE_SIZE) as usize))
    }
}

fn garbage() -> Vec<u8> {
    vec![GARBAGE; PAGE_SIZE as usize]
}

impl State {
    fn granted(&mut self, what: Ask) -> bool {
        let left = &mut self.left[what as usize];
        match *left {
            0 => return false,
            u64::MAX => {}
            _ => *left -= 1,
        }
        true
    }

    /// Puts an entry in, if there is a page table for it.
    fn put(&mut self, machine: &SimMachine, page: u64, leaf: Leaf) -> Result<(), Refusal> {
        let table = page / TABLE_PAGES;
        if !self.tables.contains(&table) {
            if !self.granted(Ask::TablePage) {
                return Err(Refusal::NoMemory);
            }
            self.tables.insert(table);
        }
        let pages = 1 << leaf.pages_log2;
        let range = VaRange::from_pages(page, page + pages).unwrap_or_default();
        if let Err(violation) = machine.map(range) {
            self.violations.push(violation);
        }
        self.leaves.insert(page, leaf);
        Ok(())
    }

    fn lend(&mut self, frame: u64, zeroed: bool) {
        self.free.remove(&frame);
        self.lent.insert(frame);
        let fill = if zeroed { 0 } else { GARBAGE };
        self.contents.insert(frame, vec![fill; PAGE_SIZE as usize]);
    }

    /// Whether a page is behind an address.
    fn is_mapped(&self, frame: u64) -> bool {
        let holds = |leaf: &Leaf| leaf.first <= frame && frame < leaf.first + (1 << leaf.pages_log2);
        self.leaves.values().any(holds)
    }
}

impl PageTable for SimPages<'_> {
    const HUGE_LOG2: u32 = HUGE_LOG2;

    fn map(&self, at: Va, run: Run, _protection: Protection) -> Result<(), Stopped> {
        let mut state = self.state.lock();
        for done in 0..run.pages {
            let leaf = Leaf { first: run.first + done, pages_log2: 0 };
            let put = state.put(self.machine, at.page_floor() + done, leaf);
            put.map_err(|why| Stopped { pages_done: done, why })?;
        }
        Ok(())
    }

    fn map_huge(&self, at: Va, first: u64, _protection: Protection) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if !at.page_floor().is_multiple_of(1 << HUGE_LOG2) || !first.is_multiple_of(1 << HUGE_LOG2) {
            state.wrong.push(format!("MP4: a huge page {first} at {at}"));
        }
        if !state.granted(Ask::HugeLeaf) {
            return Err(Refusal::NoHuge);
        }
        state.put(self.machine, at.page_floor(), Leaf { first, pages_log2: HUGE_LOG2 })
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        let mut state = self.state.lock();
        let part: Vec<(u64, Leaf)> =
            state.leaves.range(first..end).map(|(&page, &leaf)| (page, leaf)).collect();
        for (page, leaf) in &part {
            state.leaves.remove(page);
            let pages = page + (1 << leaf.pages_log2);
            if pages > end {
                state.wrong.push(format!("MP4: a huge page is cut at page {end}"));
            }
            self.machine.unmap(VaRange::from_pages(*page, pages).unwrap_or_default());
        }
        // The source is asked for things by `gone`.
        drop(state);
        part.iter().for_each(|(_, leaf)| gone(*leaf));
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        let state = self.state.lock();
        let (page, leaf) = state.leaves.range(..=at.page_floor()).next_back()?;
        (at.page_floor() < page + (1 << leaf.pages_log2)).then_some(*leaf)
    }
}

impl PageSource for SimPages<'_> {
    fn take(&self, frames: &mut [u64], zeroed: bool) -> usize {
        let mut state = self.state.lock();
        for (got, frame) in frames.iter_mut().enumerate() {
            // Refused page by page, so that a batch can be short.
            let next = state.free.first().copied().filter(|_| state.left[Ask::Pages as usize] > 0);
            let Some(next) = next else { return got };
            state.granted(Ask::Pages);
            state.lend(next, zeroed);
            *frame = next;
        }
        frames.len()
    }

    fn take_huge(&self, pages_log2: u32, zeroed: bool) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.granted(Ask::HugePage) {
            return None;
        }
        let pages = 1u64 << pages_log2;
        let whole = |&first: &u64| {
            first.is_multiple_of(pages) && (first..first + pages).all(|frame| state.free.contains(&frame))
        };
        let first = state.free.iter().copied().find(whole)?;
        (first..first + pages).for_each(|frame| state.lend(frame, zeroed));
        Some(first)
    }

    fn give_back(&self, run: Run) {
        let mut state = self.state.lock();
        for frame in run.first..run.first + run.pages {
            if !state.lent.remove(&frame) {
                state.wrong.push(format!("MP3: page {frame} came back and was not lent"));
            }
            if state.is_mapped(frame) {
                state.wrong.push(format!("MP3: page {frame} came back while it is mapped"));
            }
            state.contents.remove(&frame);
            state.free.insert(frame);
        }
    }

    fn clear(&self, frame: u64, from: u64, to: u64) {
        let mut state = self.state.lock();
        let bytes = state.contents.entry(frame).or_insert_with(garbage);
        bytes[from as usize..to as usize].fill(0);
    }
}
