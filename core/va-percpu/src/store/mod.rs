//! All chunks, as the short lock guards them: their free bits, and the order in which they are tried.
//!
//! # Theory
//! A request goes through the lists from the one of its own size to that of the wholly free chunks. In each list it
//! begins at the front: the fullest chunk that may hold it comes first, so that others can become empty. The list of
//! sidelined chunks is before that of the free ones: their pages were depopulated, but their addresses are used before
//! new ones. A chunk that became emptier is put at the front of its new list, one that became fuller at the back.
//!
//! A bit in a second bitmap marks the beginning of an object; it ends where the next begins, or at the next free bit.
//!
//! # Invariants
//! - **PC1 bound**      the marks are the first bits of the live objects, of which there are as many as counted.
//! - **PC2 slot**       each chunk is in the list of its longest run, or of isolated chunks, or in the one that is not
//!   searched.
//! - **PC3 free**       a chunk's count of free bits is that of its zeros; hidden bits are ones.
//! - **PC4 empty**      a chunk's count of spare pages is that of its populated pages that are wholly free.
//! - **PC5 populated**  a chunk's count of populated pages is that of its bits, and every live object is in such pages.
//! - **PC6 spare**      the count of spare pages is that of all chunks except the reserved one and the isolated ones.
//! - **PC7 leaving**    a chunk that the balance destroys holds nothing, is in no list, and no address leads to it.
//! - **PC8 room**       the counts of free bits and wholly free pages are those of all chunks in use except the
//!   reserved one.
//!
//! PC4 to PC6 hold while no thread is between taking and populating.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_alloc_area`, `pcpu_free_area`, `pcpu_chunk_relocate`, `pcpu_isolate_chunk`).

mod batch;
#[cfg(test)]
#[cfg(not(loom))]
mod broken;
pub(crate) mod class;
mod forest;
mod lists;
mod memos;
mod need;
mod objects;
mod pages;
mod unsettled;
mod validate;

use crate::bitmap::{self, BIT_BYTES, PAGE_BITS, Word, words_for};
use crate::chunk::{Chunk, Lists, NIL, State};
use crate::config::{Config, SlotBy};
use crate::engine::{HintEngine, View, Want};
use crate::geometry::{Geometry, Part, Slots};
use crate::lookup::Lookup;
use crate::rows::{Row, Rows};
use crate::table::Table;
use class::ClassCache;
use core::ops::Range;
use forest::Forest;
use memos::Memos;
use unsettled::Unsettled;
use va_base::{PAGE_SIZE, Platform, Record, Va};

/// Row of the dynamic section of the first chunk.
pub(crate) const FIRST: u32 = 0;
/// Row of the reserved section.
pub(crate) const RESERVED: u32 = 1;

/// The bits that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) row: u32,
    /// The first bit.
    pub(crate) at: u32,
    /// Not all of its pages are populated.
    pub(crate) missing: bool,
    /// Some of its pages were wholly free.
    pub(crate) broke: bool,
}

/// The reason why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Miss {
    /// Nothing fits.
    Nowhere,
    /// By the hints it fitted.
    There,
}

/// The result of a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Freed {
    pub(crate) base: Va,
    pub(crate) off: u32,
    /// A chunk can be depopulated or destroyed.
    pub(crate) balance: bool,
}

/// Counts over all chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Totals {
    pub(crate) allocs: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    pub(crate) frees: u64,
    pub(crate) live_max: u64,
    pub(crate) chunks: u32,
    pub(crate) chunks_max: u32,
    /// Bytes; the least is a unit's until there is a smaller request.
    pub(crate) size_min: u32,
    pub(crate) size_max: u32,
    /// Spare pages (PC6).
    pub(crate) spare_pages: i64,
    /// Populated pages of one unit, including those of the first chunk.
    pub(crate) populated: u64,
    /// Chunks created since the beginning.
    pub(crate) made: u32,
    /// Free bits (PC8).
    pub(crate) free_bits: u64,
    /// Pages wholly free, populated or not (PC8).
    pub(crate) whole_pages: u64,
    /// Objects that left for magazines less those that came back, wrapping: one may come back that never left.
    pub(crate) to_magazines: u64,
    /// Takings of the lock.
    pub(crate) locks: u64,
}

impl Totals {
    /// Nothing yet.
    pub(crate) const NONE: Self = Self {
        allocs: 0,
        bytes: 0,
        frees: 0,
        live_max: 0,
        chunks: 0,
        chunks_max: 0,
        size_min: 0,
        size_max: 0,
        spare_pages: 0,
        populated: 0,
        made: 0,
        free_bits: 0,
        whole_pages: 0,
        to_magazines: 0,
        locks: 0,
    };

    /// Returns the objects that are allocated here: live, or in magazines.
    #[inline(always)]
    pub(crate) fn live(&self) -> u64 {
        self.allocs.wrapping_sub(self.frees).wrapping_add(self.to_magazines)
    }

    /// Counts an allocated object.
    #[inline(always)]
    pub(crate) fn count(&mut self, want: Want) {
        let bytes = want.bits * BIT_BYTES;
        self.allocs += 1;
        self.bytes += u64::from(bytes);
        self.live_max = self.live_max.max(self.live());
        self.size_min = self.size_min.min(bytes);
        self.size_max = self.size_max.max(bytes);
    }
}

/// The rows of a chunk that is about to be created.
pub(crate) struct ChunkRows<C: Config> {
    words: Row<Word>,
    blocks: Row<<C::Engine as HintEngine>::Block>,
    head: <C::Engine as HintEngine>::Head,
}

impl<C: Config> ChunkRows<C> {
    /// Makes them those of a chunk without objects and without pages. Cost: O(bits of a unit).
    pub(crate) fn wipe(&mut self, geometry: &Geometry) {
        let (words, pages) = (words_for(geometry.unit_bits()) as usize, geometry.unit_pages());
        self.words.records_mut().fill(Word(0));
        let (map, rest) = self.words.records_mut().split_at_mut(words);
        let blocks = &mut self.blocks.records_mut()[..C::Engine::blocks_for(pages) as usize];
        C::Engine::reset(&mut View { map, populated: &rest[words..], blocks, head: &mut self.head, pages });
    }
}

/// All chunks.
pub(crate) struct Store<C: Config> {
    pub(crate) geometry: Geometry,
    pub(crate) slots: Slots,
    pub(crate) lists: Lists,
    chunks: Table<Chunk<C::Engine>>,
    pub(crate) words: Rows<Word>,
    blocks: Rows<<C::Engine as HintEngine>::Block>,
    lookup: Lookup,
    forest: Forest,
    memos: Memos,
    pub(crate) classes: ClassCache,
    unsettled: Unsettled,
    grain_shift: u32,
    /// True if pages can be depopulated.
    by_page: bool,
    /// Head of the list of rows not in use, through `next`.
    unused: u32,
    /// Rows that were ever in use.
    begun: u32,
    /// Rows that every table has an entry for.
    room: u32,
    pub(crate) totals: Totals,
    /// The objects that wait for their pages, by chunk and bit: no caller has them yet, and no free finds them.
    pub(crate) taking: [Option<(u32, u32)>; 2],
}

impl<C: Config> Store<C> {
    /// A store without chunks and without a geometry: a constant, since the value is too large to pass through a stack.
    /// [`init`](Self::init) sets the geometry in place.
    pub(crate) const EMPTY: Self = Self {
        geometry: Geometry::NONE,
        slots: Slots::NONE,
        lists: Lists::EMPTY,
        chunks: Table::new(),
        words: Rows::new(1),
        blocks: Rows::new(1),
        lookup: Lookup::new(),
        forest: Forest::new(),
        memos: Memos::EMPTY,
        classes: ClassCache::EMPTY,
        unsettled: Unsettled::NONE,
        grain_shift: 0,
        by_page: false,
        unused: NIL,
        begun: 0,
        room: 0,
        totals: Totals::NONE,
        taking: [None; 2],
    };

    /// Sets the geometry of an [`EMPTY`](Self::EMPTY) store; [`begin`](Self::begin) creates the first chunk.
    pub(crate) fn init(&mut self, geometry: Geometry, by_page: bool) {
        let bits = geometry.unit_bits();
        self.geometry = geometry;
        self.slots = geometry.slots();
        // The bits of objects, their marks, the populated pages.
        self.words = Rows::new(2 * words_for(bits) + words_for(geometry.unit_pages()));
        self.blocks = Rows::new(C::Engine::blocks_for(geometry.unit_pages()));
        self.memos.init(geometry.unit_pages());
        self.classes.init(geometry.unit_bytes());
        self.grain_shift = geometry.grain_shift();
        self.by_page = by_page;
        self.totals.size_min = geometry.unit_bytes();
    }

    /// Returns a store with a geometry, as a value.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn new(geometry: Geometry, by_page: bool) -> Self {
        let mut store = Self::EMPTY;
        store.init(geometry, by_page);
        store
    }

    /// Returns the grains of a unit.
    fn grains(&self) -> u32 {
        self.geometry.unit_bytes() >> self.grain_shift
    }

    /// Creates the two sections of the first chunk. The memory that [`need`](Self::need) listed has been allocated.
    pub(crate) fn begin(&mut self) {
        self.begun = 2;
        let base = self.geometry.base().get();
        self.lookup.add(base >> self.grain_shift, self.grains(), FIRST);
        if let Some(part) = self.geometry.reserved() {
            self.begin_part(RESERVED, part);
        }
        self.begin_part(FIRST, self.geometry.dynamic());
        self.totals.spare_pages = i64::from(self.chunk(FIRST).empty);
        self.totals.free_bits = self.chunk(FIRST).free_bits.into();
        self.totals.whole_pages = self.chunk(FIRST).empty as u64;
        let sizes = self.geometry.sizes();
        let parts = u64::from(sizes.fixed) + u64::from(sizes.reserved) + u64::from(sizes.dynamic);
        self.totals.populated = parts / PAGE_SIZE;
        (self.totals.chunks, self.totals.chunks_max) = (1, 1);
        let slot = self.slot_of(FIRST);
        self.join(FIRST, slot, crate::chunk::End::Front);
        self.update_forest(FIRST);
    }

    fn begin_part(&mut self, row: u32, part: Part) {
        let bits = part.pages * PAGE_BITS;
        let chunk = self.chunks.one_mut(row);
        *chunk = Chunk {
            base: part.base.get(),
            pages: part.pages,
            populated: part.pages,
            empty: part.pages as i32,
            free_bits: bits - part.hidden_before - part.hidden_after,
            immutable: true,
            state: State::InUse,
            hidden_before: part.hidden_before,
            hidden_after: part.hidden_after,
            ..<Chunk<C::Engine> as va_base::Record>::EMPTY
        };
        self.words.row_mut(row).fill(Word(0));
        C::Engine::reset(&mut self.view(row).0);
        let (words, pages) = (2 * words_for(self.geometry.unit_bits()) as usize, part.pages);
        bitmap::set(&mut self.words.row_mut(row)[words..], 0, pages);
        for (at, hidden) in [(0, part.hidden_before), (bits - part.hidden_after, part.hidden_after)] {
            if hidden > 0 {
                let broken = C::Engine::take_at(&mut self.view(row).0, at, hidden);
                self.chunks.one_mut(row).empty -= broken as i32;
            }
        }
        C::Engine::settle(&mut self.view(row).0);
    }

    /// Returns a chunk as its engine sees it, and the marks of its objects.
    #[inline(always)]
    pub(crate) fn view(&mut self, row: u32) -> (View<'_, C::Engine>, &mut [Word]) {
        let chunk = self.chunks.one_mut(row);
        let words = words_for(self.geometry.unit_bits()) as usize;
        let (map, rest) = self.words.row_mut(row).split_at_mut(words);
        let (marks, populated) = rest.split_at_mut(words);
        // The first chunk is shorter than its row.
        let blocks = &mut self.blocks.row_mut(row)[..C::Engine::blocks_for(chunk.pages) as usize];
        let head = &mut chunk.head;
        (View { map, populated, blocks, head, pages: chunk.pages }, marks)
    }

    /// Returns a chunk.
    #[inline]
    pub(crate) fn chunk(&self, row: u32) -> &Chunk<C::Engine> {
        self.chunks.one(row)
    }

    /// Returns a chunk mutably.
    #[inline]
    pub(crate) fn chunk_mut(&mut self, row: u32) -> &mut Chunk<C::Engine> {
        self.chunks.one_mut(row)
    }

    /// Returns the rows that may be in use.
    pub(crate) fn rows(&self) -> Range<u32> {
        0..self.begun
    }

    /// Returns the bits of the populated pages of a chunk.
    pub(crate) fn populated(&self, row: u32) -> &[Word] {
        &self.words.row(row)[2 * words_for(self.geometry.unit_bits()) as usize..]
    }

    /// Returns the list in which a chunk belongs.
    #[inline]
    pub(crate) fn slot_of(&self, row: u32) -> u8 {
        if C::Engine::BY_FITS && self.chunks.one(row).free_bits == self.geometry.unit_bits() {
            // The head does not distinguish runs that are longer than any object.
            return self.slots.free;
        }
        let slot = self.slots.of(self.bits_of(row) * BIT_BYTES);
        // A head that lacks some changes may still be that of a free chunk.
        if C::Engine::BY_FITS { slot.min(self.slots.sidelined - 1) } else { slot }
    }

    /// Returns the bits by which a chunk is put in a list.
    #[inline]
    pub(super) fn bits_of(&self, row: u32) -> u32 {
        let chunk = self.chunks.one(row);
        match C::SLOT_BY {
            SlotBy::Contig => C::Engine::longest(&chunk.head),
            SlotBy::FreeBytes => chunk.free_bits,
        }
    }

    /// Counts bits that were freed in a chunk, and pages that are wholly free now.
    #[inline(always)]
    fn count_freed(&mut self, row: u32, bits: u32, pages: u32) {
        self.chunks.one_mut(row).free_bits += bits;
        if row != RESERVED {
            self.totals.free_bits += u64::from(bits);
        }
        if pages > 0 {
            self.totals.whole_pages += if row == RESERVED { 0 } else { u64::from(pages) };
            self.count_empty(row, pages as i32);
        }
    }

    /// Counts bits that were taken in a chunk, and pages that were wholly free before.
    #[inline(always)]
    fn count_taken(&mut self, row: u32, bits: u32, pages: u32) {
        self.chunks.one_mut(row).free_bits -= bits;
        if row != RESERVED {
            self.totals.free_bits -= u64::from(bits);
        }
        if pages > 0 {
            self.totals.whole_pages -= if row == RESERVED { 0 } else { u64::from(pages) };
            self.count_empty(row, -(pages as i32));
        }
    }

    /// Returns the free bytes in pages that are not wholly free: holes between objects.
    pub(crate) fn hole_bytes(&self) -> u64 {
        (self.totals.free_bits - self.totals.whole_pages * u64::from(PAGE_BITS)) * u64::from(BIT_BYTES)
    }

    /// Returns the bytes of a unit of every chunk.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.totals.chunks) * u64::from(self.geometry.unit_bytes())
    }

    /// Counts spare pages of a chunk.
    fn count_empty(&mut self, row: u32, pages: i32) {
        let chunk = self.chunks.one_mut(row);
        chunk.empty += pages;
        if row != RESERVED && !chunk.isolated {
            self.totals.spare_pages += i64::from(pages);
        }
    }

    /// Returns the row of the next chunk.
    fn next_row(&self) -> u32 {
        if self.unused == NIL { self.begun } else { self.unused }
    }

    /// Takes the rows of the next chunk, whose memory [`need`](Self::need) listed: for the caller that creates it, which
    /// holds `grow`.
    pub(crate) fn take_rows(&mut self) -> ChunkRows<C> {
        let row = self.next_row();
        let words = self.words.put(row, Record::EMPTY);
        ChunkRows { words, blocks: self.blocks.put(row, Record::EMPTY), head: C::Engine::HEAD }
    }

    /// Puts the rows of the next chunk back, and returns it.
    pub(crate) fn put_rows(&mut self, rows: ChunkRows<C>) -> u32 {
        let row = self.next_row();
        self.words.put(row, rows.words);
        self.blocks.put(row, rows.blocks);
        self.chunks.one_mut(row).head = rows.head;
        row
    }

    /// Creates the next chunk, whose first unit begins at `base`, and whose rows are those of a new one. It is in no list
    /// yet.
    pub(crate) fn add(&mut self, row: u32, base: Va) {
        if self.unused == NIL {
            self.begun += 1;
        } else {
            self.unused = self.chunk(row).next;
        }
        let (pages, bits) = (self.geometry.unit_pages(), self.geometry.unit_bits());
        self.totals.made += 1;
        let head = self.chunk(row).head;
        *self.chunks.one_mut(row) = Chunk {
            head,
            base: base.get(),
            pages,
            free_bits: bits,
            state: State::InUse,
            number: self.totals.made,
            ..<Chunk<C::Engine> as va_base::Record>::EMPTY
        };
        self.totals.free_bits += u64::from(bits);
        self.totals.whole_pages += u64::from(pages);
        self.lookup.add(base.get() >> self.grain_shift, self.grains(), row);
        self.totals.chunks += 1;
        self.totals.chunks_max = self.totals.chunks_max.max(self.totals.chunks);
    }

    /// Removes a chunk that holds nothing from its list and from the lookup: from now on no call finds it by any
    /// address or offset.
    pub(crate) fn retire(&mut self, row: u32) {
        // A list or the forest may lack a change of it still, and would put it back later.
        self.settle();
        self.leave(row);
        self.lookup.remove(self.chunk(row).base >> self.grain_shift, self.grains());
        self.chunk_mut(row).state = State::Leaving;
        self.totals.free_bits -= u64::from(self.geometry.unit_bits());
        self.totals.whole_pages -= u64::from(self.geometry.unit_pages());
    }

    /// Clears the row of a chunk that was [retired](Self::retire) and has no populated page.
    pub(crate) fn remove(&mut self, row: u32) {
        *self.chunks.one_mut(row) =
            Chunk { next: self.unused, ..<Chunk<C::Engine> as va_base::Record>::EMPTY };
        self.unused = row;
        self.totals.chunks -= 1;
    }

    /// Frees all memory of records.
    pub(crate) fn free_memory<P: Platform>(&mut self, platform: &P) {
        self.chunks.free(platform);
        self.words.free(platform);
        self.blocks.free(platform);
        self.classes.free(platform);
        self.lookup.free(platform);
        self.forest.free(platform);
    }
}
