//! Simulated pages: a page table on a [`SimMachine`], pages with contents, and failures.
//!
//! # Theory
//! A page of the source is a number below their count. Its bytes are garbage unless zeros were requested, and become
//! garbage again when it is freed. Every mapping is reported to the machine, which records stale translations, so that
//! a mapping over one is detected (SP2). Every [`TABLE_PAGES`] pages of address space need a page of the page table,
//! which is not freed. All numbers are small, so that a dozen calls reach every limit; a [`Ladder`] has the sizes of
//! entries.
//!
//! Every page is also in the direct map, from [`DIRECT`] on, where a test may change its permissions. A fault is
//! recorded if a page is freed with other permissions than free pages have, or while a CPU may translate any stale
//! address of it (MP7).

use crate::machine::{SimMachine, Violation};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{
    DirectAccess, Entries, Fill, Leaf, PageRequest, PageSource, PageTable, PageTableError, Run, Stopped,
};

/// Pages that one page of the page table maps.
pub const TABLE_PAGES: u64 = 16;
/// Binary logarithm of the pages of the largest entry of [`Short`].
pub const HUGE_LOG2: u32 = 3;
/// First page of the direct map.
pub const DIRECT: u64 = 1 << 45;
/// Page numbers from here on belong to callers: the source does not have them.
pub const FOREIGN: u64 = 1 << 40;
/// The bytes of a page that was not zeroed.
pub const GARBAGE: u8 = 0xa5;

/// A request to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Pages, of the source.
    Pages,
    /// Pages for a large entry, of the source.
    HugePage,
    /// A page of the page table.
    TablePage,
    /// A call for large entries, of the page table.
    HugeLeaf,
}

impl Ask {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pages, Self::HugePage, Self::TablePage, Self::HugeLeaf];
}

/// The sizes of a machine's entries.
pub trait Ladder {
    /// The value of [`PageTable::LEAF_SIZES`].
    const SIZES: &'static [u32];
}

/// Entries of 1, 2 and 8 pages.
#[derive(Clone, Copy, Debug)]
pub struct Short;

/// Entries of one page alone.
#[derive(Clone, Copy, Debug)]
pub struct One;

/// Entries of 4 KiB, 64 KiB, 2 MiB and 1 GiB, as arm64 has them with 4 KiB pages.
#[derive(Clone, Copy, Debug)]
pub struct Arm;

impl Ladder for Short {
    const SIZES: &'static [u32] = &[0, 1, HUGE_LOG2];
}

impl Ladder for One {
    const SIZES: &'static [u32] = &[0];
}

impl Ladder for Arm {
    const SIZES: &'static [u32] = &[0, 4, 9, 18];
}

/// The direct map of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direct {
    /// Read-only: CPUs may have translations of this.
    Protected,
    /// Without access.
    Invalid,
}

struct State {
    leaves: BTreeMap<u64, Leaf>,
    tables: BTreeSet<u64>,
    free: BTreeSet<u64>,
    allocated: BTreeSet<u64>,
    contents: BTreeMap<u64, Vec<u8>>,
    left: [u64; 4],
    /// Requests that fail before all are granted again, and those that failed.
    denials_left: [u64; 4],
    denials: u64,
    written: u64,
    calls: u64,
    /// Pages whose permissions in the direct map are not those of a free page.
    direct: BTreeMap<u64, Direct>,
    hidden: BTreeSet<u64>,
    /// The page that each address page mapped last, until another is mapped there or the page is freed.
    last: BTreeMap<u64, u64>,
    nodes: Vec<Option<u32>>,
    violations: Vec<Violation>,
    wrong: Vec<String>,
}

/// The page table and the source, with entries of the sizes of `L`.
pub struct SimPages<'m, L = Short> {
    machine: &'m SimMachine,
    state: Mutex<State>,
    ladder: PhantomData<L>,
}

impl<L> core::fmt::Debug for SimPages<'_, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimPages").finish_non_exhaustive()
    }
}

impl<'m> SimPages<'m> {
    /// Creates an empty page table, and a source of `frames` pages.
    pub fn new(machine: &'m SimMachine, frames: u64) -> Self {
        Self::with_ladder(machine, frames)
    }
}

impl<'m, L: Ladder> SimPages<'m, L> {
    /// Creates an empty page table with entries of the sizes of `L`, and a source of `frames` pages.
    pub fn with_ladder(machine: &'m SimMachine, frames: u64) -> Self {
        let state = State {
            leaves: BTreeMap::new(),
            tables: BTreeSet::new(),
            free: (0..frames).collect(),
            allocated: BTreeSet::new(),
            contents: BTreeMap::new(),
            left: [u64::MAX; 4],
            denials_left: [u64::MAX; 4],
            denials: 0,
            written: 0,
            calls: 0,
            direct: BTreeMap::new(),
            hidden: BTreeSet::new(),
            last: BTreeMap::new(),
            nodes: Vec::new(),
            violations: Vec::new(),
            wrong: Vec::new(),
        };
        Self { machine, state: Mutex::new(state), ladder: PhantomData }
    }

    /// Returns the entries written so far, and the calls that wrote them.
    pub fn written(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.written, state.calls)
    }

    /// Returns the preferred NUMA nodes of pages, by call of the source, since the last call.
    pub fn nodes_wanted(&self) -> Vec<Option<u32>> {
        core::mem::take(&mut self.state.lock().nodes)
    }

    /// Makes a page read-only in the direct map, as for a text that is executable elsewhere.
    pub fn protect(&self, frame: u64) {
        let mut state = self.state.lock();
        if state.direct.insert(frame, Direct::Protected).is_none() {
            // CPUs may have translations of this from now on.
            _ = self.machine.map(direct(frame));
        }
    }

    /// Returns the entries in order of their first pages: address page, first page mapped, size.
    pub fn entries(&self) -> Vec<(u64, Leaf)> {
        self.state.lock().leaves.iter().map(|(&page, &leaf)| (page, leaf)).collect()
    }

    /// Grants `granted` more of a kind, and fails the rest; `u64::MAX` fails none.
    pub fn fail_after(&self, what: Ask, granted: u64) {
        self.fail_some(what, granted, u64::MAX);
    }

    /// Grants `granted` more of a kind, fails the next `count` requests, and grants all later ones.
    pub fn fail_some(&self, what: Ask, granted: u64, count: u64) {
        let mut state = self.state.lock();
        (state.left[what as usize], state.denials_left[what as usize]) = (granted, count);
    }

    /// Returns the requests that failed so far.
    pub fn denials(&self) -> u64 {
        self.state.lock().denials
    }

    /// Frees the pages of the page table that map nothing.
    pub fn drop_tables(&self) {
        let mut state = self.state.lock();
        let used: BTreeSet<u64> = state.leaves.keys().map(|page| page / TABLE_PAGES).collect();
        state.tables = used;
    }

    /// Returns the pages that the source allocated.
    pub fn allocated(&self) -> u64 {
        self.state.lock().allocated.len() as u64
    }

    /// Returns the entries of the page table, and the huge ones among them.
    pub fn leaves(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.leaves.len(), state.leaves.values().filter(|leaf| leaf.pages_log2 > 0).count())
    }

    /// Returns the pages mapped.
    pub fn mapped(&self) -> u64 {
        self.state.lock().leaves.values().map(|leaf| 1 << leaf.pages_log2).sum()
    }

    /// Returns each violation so far. SP2: reuse before a flush. MP3: a page at two addresses, or freed to the source
    /// while it is mapped. MP4: an entry that does not begin at a multiple of its size, or that was cut. MP7: a page
    /// whose permissions were not reset.
    pub fn faults(&self) -> Vec<String> {
        let state = self.state.lock();
        let reused = state.violations.iter().map(ToString::to_string);
        reused.chain(state.wrong.iter().cloned()).collect()
    }

    /// Writes a byte at an address that is mapped.
    ///
    /// # Errors
    /// No page is mapped there.
    pub fn write(&self, at: Va, byte: u8) -> Result<(), Va> {
        let (frame, inside) = self.frame_at(at).ok_or(at)?;
        let mut state = self.state.lock();
        state.contents.entry(frame).or_insert_with(garbage)[inside] = byte;
        Ok(())
    }

    /// Returns the bytes of a page.
    pub fn bytes(&self, frame: u64) -> Vec<u8> {
        self.state.lock().contents.get(&frame).cloned().unwrap_or_else(garbage)
    }

    fn frame_at(&self, at: Va) -> Option<(u64, usize)> {
        let leaf = self.leaf(at)?;
        let inside = at.page_floor() & ((1 << leaf.pages_log2) - 1);
        Some((leaf.first + inside, (at.get() % PAGE_SIZE) as usize))
    }
}

/// Returns a page in the direct map.
fn direct(frame: u64) -> VaRange {
    one(DIRECT + frame)
}

/// Returns an address page.
fn one(page: u64) -> VaRange {
    VaRange::from_pages(page, page + 1).unwrap_or_default()
}

fn garbage() -> Vec<u8> {
    vec![GARBAGE; PAGE_SIZE as usize]
}

impl State {
    fn granted(&mut self, what: Ask) -> bool {
        let less = |left: &mut u64| match *left {
            0 => false,
            u64::MAX => true,
            _ => {
                *left -= 1;
                true
            }
        };
        if less(&mut self.left[what as usize]) || !less(&mut self.denials_left[what as usize]) {
            return true;
        }
        self.denials += 1;
        false
    }

    /// Adds an entry, if there is a page table for it.
    fn put(&mut self, machine: &SimMachine, page: u64, leaf: Leaf) -> Result<(), PageTableError> {
        let table = page / TABLE_PAGES;
        if !self.tables.contains(&table) {
            if !self.granted(Ask::TablePage) {
                return Err(PageTableError::NoMemory);
            }
            self.tables.insert(table);
        }
        let pages = 1 << leaf.pages_log2;
        let range = VaRange::from_pages(page, page + pages).unwrap_or_default();
        if let Err(violation) = machine.map(range) {
            self.violations.push(violation);
        }
        self.leaves.insert(page, leaf);
        self.last.extend((0..pages).map(|nth| (page + nth, leaf.first + nth)));
        self.written += 1;
        Ok(())
    }

    fn alloc(&mut self, frame: u64, zeroed: bool) {
        self.free.remove(&frame);
        self.allocated.insert(frame);
        let fill = if zeroed { 0 } else { GARBAGE };
        self.contents.insert(frame, vec![fill; PAGE_SIZE as usize]);
    }

    /// Returns true if a page is mapped at any address.
    fn is_mapped(&self, frame: u64) -> bool {
        let holds = |leaf: &Leaf| leaf.first <= frame && frame < leaf.first + (1 << leaf.pages_log2);
        self.leaves.values().any(holds)
    }
}

impl<L: Ladder> PageTable for SimPages<'_, L> {
    const LEAF_SIZES: &'static [u32] = L::SIZES;

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        let Entries { run, pages_log2, .. } = entries;
        let (page, size) = (at.page_floor(), 1 << pages_log2);
        let mut state = self.state.lock();
        state.calls += 1;
        let whole = [page, run.first, run.pages].iter().all(|pages| pages.is_multiple_of(size));
        if !whole || run.pages == 0 || !L::SIZES.contains(&pages_log2) {
            state.wrong.push(format!("MP4: {entries:?} at {at}"));
        }
        if pages_log2 > 0 && !state.granted(Ask::HugeLeaf) {
            return Err(Stopped { pages_done: 0, why: PageTableError::NoLarge });
        }
        for done in (0..run.pages).step_by(size as usize) {
            let leaf = Leaf { first: run.first + done, pages_log2 };
            let put = state.put(self.machine, page + done, leaf);
            put.map_err(|why| Stopped { pages_done: done, why })?;
        }
        Ok(())
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
                state.wrong.push(format!("MP4: an entry is cut at page {end}"));
            }
            let range = VaRange::from_pages(*page, pages).unwrap_or_default();
            // A hidden entry became stale when it was hidden, and may be clean by now.
            if !state.hidden.remove(page) {
                self.machine.unmap(range);
            }
            let frames = leaf.first..leaf.first + (1 << leaf.pages_log2);
            let invalid = state.direct.range(frames.clone()).any(|(_, access)| *access == Direct::Invalid);
            let stale =
                |(&page, last): (&u64, &u64)| frames.contains(last) && self.machine.unclean(one(page)) > 0;
            if invalid && state.last.iter().any(stale) {
                state.wrong.push(format!("MP7: pages {frames:?} go before a flush of all their addresses"));
            }
        }
        // `gone` may call the source.
        drop(state);
        part.iter().for_each(|(_, leaf)| gone(*leaf));
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        let state = self.state.lock();
        let (page, leaf) = state.leaves.range(..=at.page_floor()).next_back()?;
        (at.page_floor() < page + (1 << leaf.pages_log2)).then_some(*leaf)
    }
}

impl<L: Ladder> PageSource for SimPages<'_, L> {
    const RESETS: bool = true;

    fn alloc(&self, frames: &mut [u64], request: PageRequest) -> usize {
        let zeroed = request.fill == Fill::Zeros;
        let mut state = self.state.lock();
        state.nodes.push(request.numa_id);
        for (got, frame) in frames.iter_mut().enumerate() {
            // Failed page by page, so that a batch can be short.
            let Some(next) = state.free.first().copied().filter(|_| state.granted(Ask::Pages)) else {
                return got;
            };
            state.alloc(next, zeroed);
            *frame = next;
        }
        frames.len()
    }

    fn alloc_run(&self, pages_log2: u32, request: PageRequest) -> Option<u64> {
        let zeroed = request.fill == Fill::Zeros;
        let mut state = self.state.lock();
        state.nodes.push(request.numa_id);
        if !state.granted(Ask::HugePage) {
            return None;
        }
        let pages = 1u64 << pages_log2;
        let whole = |&first: &u64| {
            first.is_multiple_of(pages) && (first..first + pages).all(|frame| state.free.contains(&frame))
        };
        let first = state.free.iter().copied().find(whole)?;
        (first..first + pages).for_each(|frame| state.alloc(frame, zeroed));
        Some(first)
    }

    fn free(&self, run: Run) {
        let mut state = self.state.lock();
        for frame in run.first..run.first + run.pages {
            if !state.allocated.remove(&frame) {
                state.wrong.push(format!("MP3: page {frame} came back and was not allocated"));
            }
            if state.is_mapped(frame) {
                state.wrong.push(format!("MP3: page {frame} came back while it is mapped"));
            }
            if let Some(access) = state.direct.get(&frame) {
                let wrong = format!("MP7: page {frame} came back while its direct map is {access:?}");
                state.wrong.push(wrong);
            }
            state.last.retain(|_, &mut last| last != frame);
            state.contents.remove(&frame);
            state.free.insert(frame);
        }
    }

    fn clear(&self, frame: u64, from: u64, to: u64) {
        let mut state = self.state.lock();
        let bytes = state.contents.entry(frame).or_insert_with(garbage);
        bytes[from as usize..to as usize].fill(0);
    }
    fn hide(&self, range: VaRange) {
        let (first, end) = range.whole_pages();
        let mut state = self.state.lock();
        let hidden: Vec<u64> = state.leaves.range(first..end).map(|(&page, _)| page).collect();
        state.hidden.extend(hidden);
        self.machine.unmap(range);
    }

    fn set_direct(&self, run: Run, access: DirectAccess) -> VaRange {
        let mut state = self.state.lock();
        let mut changed = VaRange::default();
        for frame in run.first..run.first + run.pages {
            let at = direct(frame);
            match access {
                DirectAccess::Invalid => {
                    if state.direct.insert(frame, Direct::Invalid) == Some(Direct::Protected) {
                        self.machine.unmap(at);
                    }
                    let start = if changed.is_empty() { at.start() } else { changed.start() };
                    changed = VaRange::new(start, at.end()).unwrap_or_default();
                }
                DirectAccess::Default => {
                    if self.machine.unclean(at) > 0 {
                        state.wrong.push(format!("MP7: page {frame} is accessible before a flush"));
                    }
                    state.direct.remove(&frame);
                }
            }
        }
        changed
    }
}
