//! The memory of records that one more chunk needs: allocated with no lock held, used under the lock.

use super::class::Slab;
use super::{RESERVED, Store};
use crate::bitmap::Word;
use crate::chunk::{Chunk, NIL};
use crate::config::Config;
use crate::engine::HintEngine;
use crate::fits::Fits;
use crate::lookup::Place;
use crate::rows::Row;
use crate::table::Table;
use va_base::{Platform, Record};

type Block<C> = <<C as Config>::Engine as HintEngine>::Block;

/// Memory for [`Store::grow`], or the tables that it replaced. Empty where none was needed.
#[must_use]
pub(crate) struct Memory<C: Config> {
    /// Rows that the tables have an entry for, if these are longer ones.
    room: Option<u32>,
    chunks: Table<Chunk<C::Engine>>,
    words: Table<Row<Word>>,
    blocks: Table<Row<Block<C>>>,
    slabs: Table<Row<Slab>>,
    places: Table<Place>,
    nodes: Table<Fits>,
    rows: [RowMemory<C>; 2],
}

/// Memory of one row of each kind.
struct RowMemory<C: Config> {
    words: Row<Word>,
    blocks: Row<Block<C>>,
    slabs: Row<Slab>,
}

impl<C: Config> RowMemory<C> {
    const NONE: Self = Self { words: Row::EMPTY, blocks: Row::EMPTY, slabs: Row::EMPTY };
}

/// The memory that [`Store::grow`] would need, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Rows that need an entry, if there are too few.
    room: Option<u32>,
    places: Option<usize>,
    nodes: Option<usize>,
    /// Rows that need memory, from the first that was never in use on.
    rows: u32,
    /// Records of a row of each kind.
    words: u32,
    blocks: u32,
    /// `None` if no chunk here has slabs.
    slabs: Option<u32>,
}

impl Need {
    /// Returns whether nothing is needed.
    pub(crate) fn is_none(&self) -> bool {
        self.rows == 0 && self.room.is_none() && self.places.is_none() && self.nodes.is_none()
    }

    /// Allocates it from the platform; all or nothing.
    pub(crate) fn alloc<C: Config, P: Platform>(&self, platform: &P) -> Option<Memory<C>> {
        let mut memory = Memory {
            room: self.room,
            chunks: Table::new(),
            words: Table::new(),
            blocks: Table::new(),
            slabs: Table::new(),
            places: Table::new(),
            nodes: Table::new(),
            rows: [RowMemory::NONE; 2],
        };
        if self.fill(&mut memory, platform).is_none() {
            memory.free(platform);
            return None;
        }
        Some(memory)
    }

    fn fill<C: Config, P: Platform>(&self, memory: &mut Memory<C>, platform: &P) -> Option<()> {
        if let Some(room) = self.room {
            let count = room as usize;
            memory.chunks = Table::alloc(count, platform)?;
            memory.words = Table::alloc(count, platform)?;
            memory.blocks = Table::alloc(count, platform)?;
            if C::CLASS_WORDS > 0 {
                memory.slabs = Table::alloc(count, platform)?;
            }
        }
        if let Some(places) = self.places {
            memory.places = Table::alloc(places, platform)?;
        }
        if let Some(nodes) = self.nodes {
            memory.nodes = Table::alloc(nodes, platform)?;
        }
        for (at, row) in memory.rows.iter_mut().take(self.rows as usize).enumerate() {
            row.words = Row::alloc(self.words, platform)?;
            row.blocks = Row::alloc(self.blocks, platform)?;
            // Two rows are those of the first chunk, whose second section is reserved: it has no slabs.
            if at == 0
                && let Some(slabs) = self.slabs
            {
                row.slabs = Row::alloc(slabs, platform)?;
            }
        }
        Some(())
    }
}

impl<C: Config> Memory<C> {
    /// Frees it.
    pub(crate) fn free<P: Platform>(mut self, platform: &P) {
        self.chunks.free(platform);
        self.words.free(platform);
        self.blocks.free(platform);
        self.slabs.free(platform);
        self.places.free(platform);
        self.nodes.free(platform);
        for row in self.rows {
            row.words.free(platform);
            row.blocks.free(platform);
            row.slabs.free(platform);
        }
    }
}

impl<C: Config> Store<C> {
    /// Returns the memory to allocate before one more chunk can be created: before the first, for both of its sections.
    pub(crate) fn need(&self) -> Need {
        let last = if self.begun == 0 { RESERVED } else { self.begun };
        let fresh = self.unused == NIL;
        let full = fresh && last >= self.room;
        let room = if full { (last + 1).next_power_of_two() } else { self.room };
        // Not where there are no small objects: the first slab of a chunk requests its row then.
        let slabs = C::CLASS_WORDS > 0 && (self.begun == 0 || self.classes.counts().0 > 0);
        let nodes = if C::Engine::BY_FITS { self.forest.wanted(room) } else { None };
        Need {
            room: full.then_some(room),
            places: self.lookup.wanted(self.grains()),
            nodes,
            rows: if fresh && !self.words.holds(self.begun) { last + 1 - self.begun } else { 0 },
            words: self.words.len(),
            blocks: self.blocks.len(),
            slabs: slabs.then(|| self.classes.granules()),
        }
    }

    /// Uses the memory that [`need`](Self::need) listed, and returns the memory that is not in use any more.
    pub(crate) fn grow(&mut self, mut memory: Memory<C>) -> Memory<C> {
        fn longer<T: Record>(table: &mut Table<T>, by: impl FnOnce(Table<T>) -> Table<T>) {
            if table.len() > 0 {
                *table = by(core::mem::replace(table, Table::new()));
            }
        }
        self.room = memory.room.unwrap_or(self.room);
        longer(&mut memory.chunks, |new| self.chunks.move_to(new));
        longer(&mut memory.words, |new| self.words.move_to(new));
        longer(&mut memory.blocks, |new| self.blocks.move_to(new));
        longer(&mut memory.slabs, |new| self.classes.move_to(new));
        longer(&mut memory.places, |new| self.lookup.move_to(new));
        longer(&mut memory.nodes, |new| self.forest.move_to(new));
        for (row, of) in (self.begun..).zip(&mut memory.rows) {
            if of.words.is_some() {
                of.words = self.words.put(row, core::mem::replace(&mut of.words, Row::EMPTY));
                of.blocks = self.blocks.put(row, core::mem::replace(&mut of.blocks, Row::EMPTY));
            }
            if of.slabs.is_some() {
                of.slabs = self.classes.put(row, core::mem::replace(&mut of.slabs, Row::EMPTY));
            }
        }
        memory
    }
}
