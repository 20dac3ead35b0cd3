//! The record of one chunk beside its bits, and the lists of chunks.

use crate::engine::HintEngine;
use crate::geometry::SLOTS_MAX;
use va_base::Record;

/// No chunk.
pub(crate) const NIL: u32 = u32::MAX;
/// The chunk is in no list.
pub(crate) const NO_SLOT: u8 = u8::MAX;

/// The state of a row of the table of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No chunk has the row.
    Unused,
    /// Objects are allocated and freed in it.
    InUse,
    /// The balance destroys it: it holds no object, no address leads to it, and no object is allocated in it again.
    Leaving,
}

/// A chunk.
pub(crate) struct Chunk<E: HintEngine> {
    pub(crate) head: E::Head,
    /// The address of its first unit; for a section of the first chunk, that of its bitmap.
    pub(crate) base: u64,
    pub(crate) free_bits: u32,
    pub(crate) pages: u32,
    pub(crate) populated: u32,
    /// Populated pages that are wholly free. Below 0 for a moment, between taking and populating.
    pub(crate) empty: i32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The list that it is in.
    pub(crate) slot: u8,
    /// It is being depopulated, or is sidelined: its empty pages do not count as spare.
    pub(crate) isolated: bool,
    /// It is the first or the reserved one, and is never depopulated.
    pub(crate) immutable: bool,
    /// The state of the row.
    pub(crate) state: State,
    /// A slab was created here: before that its row of granules is not read, and may be missing.
    pub(crate) sliced: bool,
    pub(crate) hidden_before: u32,
    pub(crate) hidden_after: u32,
    /// The number of chunks created before it; 0 for those of the first.
    pub(crate) number: u32,
    pub(crate) live: u32,
    /// Those of its slabs that have no slot in use.
    pub(crate) idle: u32,
    pub(crate) largest_bits: u32,
}

impl<E: HintEngine> Chunk<E> {
    /// Returns whether objects may be allocated and freed in it.
    #[inline(always)]
    pub(crate) fn is_in_use(&self) -> bool {
        self.state == State::InUse
    }
}

impl<E: HintEngine> Clone for Chunk<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: HintEngine> Copy for Chunk<E> {}

impl<E: HintEngine> Record for Chunk<E> {
    const EMPTY: Self = Self {
        head: E::HEAD,
        base: 0,
        free_bits: 0,
        pages: 0,
        populated: 0,
        empty: 0,
        prev: NIL,
        next: NIL,
        slot: NO_SLOT,
        isolated: false,
        immutable: false,
        state: State::Unused,
        sliced: false,
        hidden_before: 0,
        hidden_after: 0,
        number: 0,
        live: 0,
        idle: 0,
        largest_bits: 0,
    };
}

/// The two ends of each list.
pub(crate) struct Lists {
    pub(crate) first: [u32; SLOTS_MAX],
    pub(crate) last: [u32; SLOTS_MAX],
}

impl Lists {
    pub(crate) const EMPTY: Self = Self { first: [NIL; SLOTS_MAX], last: [NIL; SLOTS_MAX] };
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Front,
    Back,
}
