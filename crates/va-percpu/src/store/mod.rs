//! All chunks, as the short lock guards them: what is free where, and which chunk is tried when.
//!
//! # Theory
//! A request goes through the lists from the one of its own size to that of the chunks wholly free, and in each list from the
//! front: the fullest chunk that may hold it comes first, so that others can run empty. The list of chunks sidelined lies
//! before that of the free ones: their pages are gone, but their addresses are used before new ones. A chunk that grew emptier
//! goes to the front of its new list, one that grew fuller to the back.
//!
//! Where an object begins is marked by a bit in a second bitmap; it ends where the next begins, or where nothing is.
//!
//! # Invariants
//! - **PC1 bound**      the marks are the first bits of the live objects, of which there are as many as counted.
//! - **PC2 slot**       each chunk stands in the list of its longest run, in that of nobody's reach if a search put it there, in that of
//!   those isolated, or in none while it is being destroyed.
//! - **PC3 free**       a chunk's count of free bits is that of its zeros; hidden bits are ones.
//! - **PC4 empty**      a chunk's count of spare pages is that of its populated pages that are wholly free.
//! - **PC5 populated**  a chunk's count of populated pages is that of its bits, and every live object lies in such pages.
//! - **PC6 spare**      the spare pages counted on are those of all chunks but the reserved one and those isolated.
//!
//! PC4 to PC6 hold when nobody is between taking and populating.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_alloc_area`, `pcpu_free_area`, `pcpu_chunk_relocate`, `pcpu_isolate_chunk`).

#[cfg(test)]
#[cfg(not(loom))]
mod broken;
mod forest;
mod lists;
mod memos;
mod validate;

use crate::bitmap::{self, BIT_BYTES, PAGE_BITS, Word, words_for};
use crate::chunk::{Chunk, Lists, NIL};
use crate::config::{Config, SlotBy};
use crate::engine::{Fit, HintEngine, View, Want};
use crate::error::FreeError;
use crate::geometry::{Geometry, Part, Slots};
use crate::lookup::{Lookup, Place};
use crate::request::Offset;
use crate::rows::{Rows, Spare};
use crate::run::Fits;
use core::ops::Range;
use forest::Forest;
use memos::Memos;
use va_base::{PAGE_SIZE, Platform, Va};

/// Row of the dynamic part of the first chunk.
pub(crate) const FIRST: u32 = 0;
/// Row of the reserved part.
pub(crate) const RESERVED: u32 = 1;

/// What was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) row: u32,
    /// The first bit.
    pub(crate) at: u32,
    /// Not all of its pages are populated.
    pub(crate) missing: bool,
}

/// Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Miss {
    /// Nothing fits.
    Nowhere,
    /// It seemed to fit.
    There,
}

/// What freeing brought about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Freed {
    pub(crate) base: Va,
    pub(crate) off: u32,
    /// There is something to depopulate or to destroy.
    pub(crate) balance: bool,
}

/// Counts over all chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) allocs: u64,
    /// Bytes of these.
    pub(crate) bytes: u64,
    pub(crate) frees: u64,
    pub(crate) live: u64,
    pub(crate) live_max: u64,
    pub(crate) chunks: u32,
    pub(crate) chunks_max: u32,
    /// Bytes; the least is a unit's until something smaller was asked for.
    pub(crate) size_min: u32,
    pub(crate) size_max: u32,
    /// Spare pages that are counted on (PC6).
    pub(crate) spare_pages: i64,
    /// Populated pages of one unit, those of the first chunk too.
    pub(crate) populated: u64,
    /// Chunks made since the beginning.
    pub(crate) made: u32,
}

/// All chunks.
pub(crate) struct Store<C: Config> {
    pub(crate) geometry: Geometry,
    pub(crate) slots: Slots,
    pub(crate) lists: Lists,
    chunks: Rows<Chunk<C::Engine>>,
    words: Rows<Word>,
    blocks: Rows<<C::Engine as HintEngine>::Block>,
    lookup: Lookup,
    forest: Forest,
    memos: Memos,
    /// The chunk whose head has not heard all, if there is one.
    unsettled: u32,
    grain_shift: u32,
    /// Pages can be depopulated.
    by_page: bool,
    /// Head of the list of rows not in use, through `next`.
    unused: u32,
    /// Rows that were ever in use.
    begun: u32,
    pub(crate) totals: Totals,
}

/// Slabs lent outside the lock, which [`Store::grow`] uses.
pub(crate) struct More<C: Config> {
    rows: Option<Lent<C>>,
    places: Option<&'static mut [Place]>,
    nodes: Option<&'static mut [Fits]>,
}

/// Slabs that [`Store::grow`] left empty.
#[must_use]
pub(crate) struct Old {
    places: Option<&'static mut [Place]>,
    nodes: Option<&'static mut [Fits]>,
}

impl Old {
    pub(crate) fn give_back<P: Platform>(self, platform: &P) {
        if let Some(places) = self.places.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(places);
        }
        if let Some(nodes) = self.nodes.filter(|slab| !slab.is_empty()) {
            platform.take_back_slab(nodes);
        }
    }
}

struct Lent<C: Config> {
    chunks: Spare<Chunk<C::Engine>>,
    words: Spare<Word>,
    blocks: Spare<<C::Engine as HintEngine>::Block>,
}

/// What [`Store::grow`] would need, if anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    rows: Option<[(usize, u32); 3]>,
    places: Option<usize>,
    nodes: Option<usize>,
}

impl Need {
    /// Nothing is needed.
    pub(crate) fn is_none(&self) -> bool {
        self.rows.is_none() && self.places.is_none() && self.nodes.is_none()
    }

    /// Asks the platform for it; all or nothing.
    pub(crate) fn lend<C: Config, P: Platform>(&self, platform: &P) -> Option<More<C>> {
        let rows = match self.rows {
            None => None,
            Some([chunks, words, blocks]) => {
                let chunks = Rows::lend(chunks.0, chunks.1, platform)?;
                let Some(words) = Rows::lend(words.0, words.1, platform) else {
                    chunks.give_back(platform);
                    return None;
                };
                let Some(blocks) = Rows::lend(blocks.0, blocks.1, platform) else {
                    chunks.give_back(platform);
                    words.give_back(platform);
                    return None;
                };
                Some(Lent { chunks, words, blocks })
            }
        };
        let mut more = More { rows, places: None, nodes: None };
        if let Some(min) = self.places {
            more.places = platform.lend_slab(min).filter(|slab| slab.len() >= min);
        }
        if let Some(min) = self.nodes.filter(|_| self.places.is_none() == more.places.is_none()) {
            more.nodes = platform.lend_slab(min).filter(|slab| slab.len() >= min);
        }
        let all =
            self.places.is_none() == more.places.is_none() && self.nodes.is_none() == more.nodes.is_none();
        if !all {
            more.give_back(platform);
            return None;
        }
        Some(more)
    }
}

impl<C: Config> More<C> {
    fn give_back<P: Platform>(self, platform: &P) {
        if let Some(rows) = self.rows {
            rows.chunks.give_back(platform);
            rows.words.give_back(platform);
            rows.blocks.give_back(platform);
        }
        Old { places: self.places, nodes: self.nodes }.give_back(platform);
    }
}

impl<C: Config> Store<C> {
    /// A store without chunks; [`begin`](Self::begin) makes the first.
    pub(crate) fn new(geometry: Geometry, by_page: bool) -> Self {
        let bits = geometry.unit_bits();
        // The bits of objects, where they begin, the pages populated.
        let words = 2 * words_for(bits) + words_for(geometry.unit_pages());
        let totals = Totals { size_min: geometry.unit_bytes(), ..Totals::default() };
        Self {
            geometry,
            slots: geometry.slots(),
            lists: Lists::EMPTY,
            chunks: Rows::new(1),
            words: Rows::new(words),
            blocks: Rows::new(C::Engine::blocks_for(geometry.unit_pages())),
            lookup: Lookup::new(),
            forest: Forest::new(),
            memos: Memos::new(),
            unsettled: NIL,
            grain_shift: geometry.grain_shift(),
            by_page,
            unused: NIL,
            begun: 0,
            totals,
        }
    }

    /// Grains of a unit.
    fn grains(&self) -> u32 {
        self.geometry.unit_bytes() >> self.grain_shift
    }

    /// What must be lent before one more chunk can be made.
    pub(crate) fn need(&self) -> Need {
        let full = self.unused == NIL && self.begun == self.chunks.count();
        let rows = full.then(|| [self.chunks.next(), self.words.next(), self.blocks.next()]);
        let count = if full { self.chunks.count_after() } else { self.chunks.count() };
        let nodes = if C::Engine::BY_FITS { self.forest.wanted(count) } else { None };
        Need { rows, places: self.lookup.wanted(self.grains()), nodes }
    }

    /// Uses what was lent, and returns what is not in use any more.
    pub(crate) fn grow(&mut self, more: More<C>) -> Old {
        if let Some(rows) = more.rows {
            self.chunks.add(rows.chunks);
            self.words.add(rows.words);
            self.blocks.add(rows.blocks);
        }
        Old {
            places: more.places.map(|places| self.lookup.move_to(places)),
            nodes: more.nodes.map(|nodes| self.forest.move_to(nodes)),
        }
    }

    /// Makes the two parts of the first chunk. What [`need`](Self::need) said has been lent.
    pub(crate) fn begin(&mut self) {
        self.begun = 2;
        let base = self.geometry.base().get();
        self.lookup.add(base >> self.grain_shift, self.grains(), FIRST);
        if let Some(part) = self.geometry.reserved() {
            self.begin_part(RESERVED, part);
        }
        self.begin_part(FIRST, self.geometry.dynamic());
        self.totals.spare_pages = i64::from(self.chunk(FIRST).empty);
        let sizes = self.geometry.sizes();
        let parts = u64::from(sizes.fixed) + u64::from(sizes.reserved) + u64::from(sizes.dynamic);
        self.totals.populated = parts / PAGE_SIZE;
        (self.totals.chunks, self.totals.chunks_max) = (1, 1);
        let slot = self.slot_of(FIRST);
        self.join(FIRST, slot, crate::chunk::End::Front);
        self.tell_forest(FIRST);
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
            exists: true,
            hidden_before: part.hidden_before,
            hidden_after: part.hidden_after,
            ..<Chunk<C::Engine> as va_base::Record>::EMPTY
        };
        self.wipe(row);
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

    /// Clears the row of a chunk, as for one that is made.
    fn wipe(&mut self, row: u32) {
        self.words.row_mut(row).fill(Word(0));
        C::Engine::reset(&mut self.view(row).0);
    }

    /// A chunk as its engine sees it, and the marks of its objects.
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

    /// A chunk.
    #[inline]
    pub(crate) fn chunk(&self, row: u32) -> &Chunk<C::Engine> {
        self.chunks.one(row)
    }

    /// A chunk.
    #[inline]
    pub(crate) fn chunk_mut(&mut self, row: u32) -> &mut Chunk<C::Engine> {
        self.chunks.one_mut(row)
    }

    /// Rows that may be in use.
    pub(crate) fn rows(&self) -> Range<u32> {
        0..self.begun
    }

    /// The bits of the populated pages of a chunk.
    pub(crate) fn populated(&self, row: u32) -> &[Word] {
        &self.words.row(row)[2 * words_for(self.geometry.unit_bits()) as usize..]
    }

    /// The list in which a chunk belongs.
    #[inline]
    pub(crate) fn slot_of(&self, row: u32) -> u8 {
        let chunk = self.chunks.one(row);
        if C::Engine::BY_FITS && chunk.free_bits == self.geometry.unit_bits() {
            // The head does not tell runs apart that are longer than any object.
            return self.slots.free;
        }
        let bits = match C::SLOT_BY {
            SlotBy::Contig => C::Engine::longest(&chunk.head),
            SlotBy::FreeBytes => chunk.free_bits,
        };
        self.slots.of(bits * BIT_BYTES)
    }

    /// Finds room in any chunk but the reserved one.
    #[inline]
    pub(crate) fn take(&mut self, want: Want, populated: bool) -> Option<Taken> {
        let slot = if C::Engine::BY_FITS {
            if let Some(taken) = self.take_lowest(want, populated) {
                return Some(taken);
            }
            self.slots.sidelined
        } else {
            self.slots.of(want.bits * BIT_BYTES)
        };
        for slot in slot..=self.slots.free {
            let mut row = self.lists.first[slot as usize];
            while row != NIL {
                let next = self.chunks.one(row).next;
                let tried = match C::Engine::may_hold(&self.chunks.one(row).head, want) {
                    true => self.take_in(row, want, populated),
                    false => Err(Miss::Nowhere),
                };
                match tried {
                    Ok(taken) => {
                        self.reintegrate(row);
                        return Some(taken);
                    }
                    Err(Miss::Nowhere) if C::RELEGATE && slot < 3 => self.relegate(row),
                    Err(_) => {}
                }
                row = next;
            }
        }
        None
    }

    /// Finds the lowest room in reach: in chunks neither wholly free nor isolated.
    #[inline]
    fn take_lowest(&mut self, want: Want, populated: bool) -> Option<Taken> {
        if !populated && let Some((row, page)) = self.memos.find(want) {
            // It is a mark, and the chunk may be out of reach by now.
            if self.in_reach(row) {
                let (mut view, marks) = self.view(row);
                if let Fit::At { at, pages } = C::Engine::take_in_page(&mut view, page, want) {
                    bitmap::set(marks, at, at + 1);
                    let missing = view.misses_pages(at, want.bits);
                    self.note_take(row, want, pages);
                    // It stays in reach, and its head says what it said.
                    self.leave_unsettled(row);
                    return Some(Taken { row, at, missing });
                }
            }
        }
        self.settle();
        let lane = want.align.trailing_zeros() as usize;
        let mut from = 0;
        while let Some(row) = self.forest.lowest(from, want.bits, lane) {
            if let Ok(taken) = self.take_in(row, want, populated) {
                if !populated {
                    self.memos.note(want, row, taken.at / PAGE_BITS);
                }
                return Some(taken);
            }
            // It fits, and not in populated pages.
            from = row + 1;
        }
        None
    }

    /// Finds room in the reserved part.
    pub(crate) fn take_reserved(&mut self, want: Want, populated: bool) -> Option<Taken> {
        self.take_in(RESERVED, want, populated).ok()
    }

    /// Whether there is a reserved part.
    pub(crate) fn has_reserved(&self) -> bool {
        self.chunk(RESERVED).exists
    }

    #[inline]
    fn take_in(&mut self, row: u32, want: Want, populated: bool) -> Result<Taken, Miss> {
        let old = self.old_slot(row);
        let (mut view, marks) = self.view(row);
        match C::Engine::take(&mut view, want, populated) {
            Fit::At { at, pages } => {
                bitmap::set(marks, at, at + 1);
                let missing = !populated && view.misses_pages(at, want.bits);
                self.note_take(row, want, pages);
                self.moved(row, old);
                Ok(Taken { row, at, missing })
            }
            Fit::Nowhere => Err(Miss::Nowhere),
            Fit::Missed => Err(Miss::There),
        }
    }

    /// Notes what was taken.
    #[inline]
    fn note_take(&mut self, row: u32, want: Want, pages: u32) {
        let chunk = self.chunks.one_mut(row);
        chunk.free_bits -= want.bits;
        chunk.live += 1;
        chunk.largest_bits = chunk.largest_bits.max(want.bits);
        if pages > 0 {
            self.count_empty(row, -(pages as i32));
        }
        let (totals, bytes) = (&mut self.totals, want.bits * BIT_BYTES);
        totals.allocs += 1;
        totals.bytes += u64::from(bytes);
        totals.live += 1;
        totals.live_max = totals.live_max.max(totals.live);
        totals.size_min = totals.size_min.min(bytes);
        totals.size_max = totals.size_max.max(bytes);
    }

    /// Where a chunk belongs before it changes; where it is in or out of reach, for engines that know no more.
    #[inline]
    fn old_slot(&self, row: u32) -> u8 {
        if C::Engine::BY_FITS { self.chunks.one(row).slot } else { self.slot_of(row) }
    }

    /// Puts a chunk that changed, and belonged in list `old`, where it belongs.
    #[inline]
    fn moved(&mut self, row: u32, old: u8) {
        if !C::Engine::BY_FITS {
            return self.relocate(row, old);
        }
        let whole = self.chunks.one(row).free_bits == self.geometry.unit_bits();
        if (old == self.slots.free) == whole {
            return self.leave_unsettled(row);
        }
        // It came into reach, or went out of it.
        self.settle();
        self.settle_chunk(row, old);
        self.memos.lower(row, 0);
    }

    /// Leaves a chunk with a head that has not heard all; there is one at a time.
    #[inline]
    fn leave_unsettled(&mut self, row: u32) {
        if self.unsettled != row {
            self.settle();
            self.unsettled = row;
        }
    }

    /// Lets every head, list and the forest know all.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let row = core::mem::replace(&mut self.unsettled, NIL);
        if row != NIL {
            // Where it stands: its head may have heard all already.
            let old = self.chunk(row).slot;
            self.settle_chunk(row, old);
        }
    }

    fn settle_chunk(&mut self, row: u32, old: u8) {
        if self.unsettled == row {
            self.unsettled = NIL;
        }
        C::Engine::settle(&mut self.view(row).0);
        self.relocate(row, old);
        self.tell_forest(row);
    }

    /// Whether a chunk is one that a search for the lowest fit looks into.
    #[inline]
    fn in_reach(&self, row: u32) -> bool {
        let chunk = self.chunks.one(row);
        row != RESERVED && chunk.exists && !chunk.isolated && chunk.free_bits != self.geometry.unit_bits()
    }

    /// The chunk and the byte of it at an address.
    #[inline]
    pub(crate) fn place_of(&self, at: u64) -> Option<(u32, u32)> {
        let mut row = self.lookup.find(at >> self.grain_shift)?;
        if row == FIRST {
            let first = self.chunk(FIRST);
            if at < first.base + u64::from(first.hidden_before * BIT_BYTES) {
                row = RESERVED;
            }
        }
        let chunk = self.chunk(row);
        let off = at.checked_sub(chunk.base).filter(|_| chunk.exists)?;
        let inside = off < u64::from(chunk.pages) * PAGE_SIZE;
        inside.then_some((row, off as u32))
    }

    /// Takes an object back.
    #[inline]
    pub(crate) fn free(&mut self, offset: Offset) -> Result<Freed, FreeError> {
        let at = offset.at(self.geometry.base()).get();
        let Some((row, off)) = self.place_of(at) else { return Err(FreeError::NoChunk { offset }) };
        let bit = off / BIT_BYTES;
        let (view, marks) = self.view(row);
        if !off.is_multiple_of(BIT_BYTES) || !bitmap::is_set(marks, bit) {
            let start = bitmap::after_last_set(marks, 0, bit + 1);
            // Inside: nothing is free from where an object starts up to here.
            let inside = start > 0 && bitmap::next_clear(view.map, start - 1, bit + 1) == bit + 1;
            let start = self.chunk(row).base + u64::from(start.saturating_sub(1) * BIT_BYTES);
            let inside = inside.then(|| Offset::between(self.geometry.base(), start));
            return Err(FreeError::NoObject { offset, inside });
        }
        self.free_at(row, bit);
        let (chunk, whole) = (self.chunks.one(row), self.geometry.unit_bits());
        let (base, full) = (Va::new(chunk.base), chunk.free_bits == whole);
        let balance = if full && !chunk.isolated {
            // There is another one wholly free.
            self.lists.first[self.slots.free as usize] != self.lists.last[self.slots.free as usize]
                || self.lists.first[self.slots.free as usize] != row
        } else if self.should_reclaim(row) {
            self.isolate(row);
            true
        } else {
            false
        };
        Ok(Freed { base, off, balance })
    }

    /// Takes the object back that starts at a bit.
    pub(crate) fn free_at(&mut self, row: u32, bit: u32) {
        let old = self.old_slot(row);
        // What is hidden behind the part is used and begins no object.
        let hidden = self.chunk(row).hidden_after;
        let (mut view, marks) = self.view(row);
        let end = bitmap::next_clear_or_marked(view.map, marks, bit + 1, view.bits() - hidden);
        bitmap::clear(marks, bit, bit + 1);
        let given = C::Engine::give(&mut view, bit, end - bit);
        let chunk = self.chunks.one_mut(row);
        chunk.free_bits += end - bit;
        chunk.live -= 1;
        if given.pages > 0 {
            self.count_empty(row, given.pages as i32);
        }
        if C::Engine::BY_FITS {
            self.memos.lower(row, given.from_page);
        }
        self.moved(row, old);
        self.totals.frees += 1;
        self.totals.live -= 1;
    }

    /// Whether enough of a chunk is populated for nothing that it should be depopulated.
    fn should_reclaim(&self, row: u32) -> bool {
        let chunk = self.chunk(row);
        let (empty, spare) = (i64::from(chunk.empty), self.totals.spare_pages);
        !chunk.immutable
            && self.by_page
            && ((chunk.isolated && empty > 0)
                || (spare > i64::from(C::SPARE_PAGES_HIGH) + empty && empty >= i64::from(chunk.pages / 4)))
    }

    /// What the forest says of a chunk.
    #[inline]
    fn forest_fits(&self, row: u32) -> Fits {
        match self.in_reach(row) {
            true => C::Engine::fits(&self.chunks.one(row).head).alignments(),
            false => Fits::NONE,
        }
    }

    /// Tells the forest what became of a chunk.
    #[inline]
    fn tell_forest(&mut self, row: u32) {
        if C::Engine::BY_FITS {
            let fits = self.forest_fits(row);
            self.forest.put(row, fits);
        }
    }

    /// Counts spare pages of a chunk.
    fn count_empty(&mut self, row: u32, pages: i32) {
        let chunk = self.chunks.one_mut(row);
        chunk.empty += pages;
        if row != RESERVED && !chunk.isolated {
            self.totals.spare_pages += i64::from(pages);
        }
    }

    /// Makes a chunk whose first unit begins at `base`; what [`need`](Self::need) said has been lent. It is in no list yet.
    pub(crate) fn add(&mut self, base: Va) -> u32 {
        let row = if self.unused == NIL { self.begun } else { self.unused };
        if self.unused == NIL {
            self.begun += 1;
        } else {
            self.unused = self.chunk(row).next;
        }
        let (pages, bits) = (self.geometry.unit_pages(), self.geometry.unit_bits());
        self.totals.made += 1;
        *self.chunks.one_mut(row) = Chunk {
            base: base.get(),
            pages,
            free_bits: bits,
            exists: true,
            number: self.totals.made,
            ..<Chunk<C::Engine> as va_base::Record>::EMPTY
        };
        self.wipe(row);
        self.lookup.add(base.get() >> self.grain_shift, self.grains(), row);
        self.totals.chunks += 1;
        self.totals.chunks_max = self.totals.chunks_max.max(self.totals.chunks);
        row
    }

    /// Forgets a chunk that is in no list and has no populated page.
    pub(crate) fn remove(&mut self, row: u32) {
        let base = self.chunk(row).base;
        self.lookup.remove(base >> self.grain_shift, self.grains());
        *self.chunks.one_mut(row) =
            Chunk { next: self.unused, ..<Chunk<C::Engine> as va_base::Record>::EMPTY };
        self.unused = row;
        self.totals.chunks -= 1;
    }

    /// The first run of pages of `[page, end)` that is populated, or is not.
    pub(crate) fn run_of_pages(&self, row: u32, page: u32, end: u32, populated: bool) -> Option<Range<u32>> {
        let map = self.populated(row);
        let (start, stop) = if populated {
            let start = bitmap::next_set(map, page, end);
            (start, bitmap::next_clear(map, start, end))
        } else {
            let start = bitmap::next_clear(map, page, end);
            (start, bitmap::next_set(map, start, end))
        };
        (start < end).then_some(start..stop)
    }

    /// Notes that pages are populated that were not.
    pub(crate) fn note_populated(&mut self, row: u32, pages: Range<u32>) {
        let words = 2 * words_for(self.geometry.unit_bits()) as usize;
        bitmap::set(&mut self.words.row_mut(row)[words..], pages.start, pages.end);
        let count = pages.end - pages.start;
        self.chunks.one_mut(row).populated += count;
        self.totals.populated += u64::from(count);
        // Those that are in use were counted off when they were taken.
        self.count_empty(row, count as i32);
    }

    /// Notes that pages, all wholly free, are populated no more.
    pub(crate) fn note_depopulated(&mut self, row: u32, pages: Range<u32>) {
        let words = 2 * words_for(self.geometry.unit_bits()) as usize;
        bitmap::clear(&mut self.words.row_mut(row)[words..], pages.start, pages.end);
        let count = pages.end - pages.start;
        self.chunks.one_mut(row).populated -= count;
        self.totals.populated -= u64::from(count);
        self.count_empty(row, -(count as i32));
    }

    /// Whether a page is populated and wholly free.
    pub(crate) fn is_spare(&mut self, row: u32, page: u32) -> bool {
        let (view, _) = self.view(row);
        C::Engine::is_free(&view, page) && bitmap::is_set(view.populated, page)
    }

    /// Hands all records back.
    pub(crate) fn give_back<P: Platform>(&mut self, platform: &P) {
        self.chunks.give_back(platform);
        self.words.give_back(platform);
        self.blocks.give_back(platform);
        let nodes = Some(self.forest.take());
        Old { places: Some(self.lookup.take()), nodes }.give_back(platform);
    }
}
