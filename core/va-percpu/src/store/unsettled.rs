//! Chunks with changes that the forest and the lists lack.
//!
//! To update them costs more than a free, and one update after several changes costs no more than after one. So changes
//! wait until a search needs them, or until there are too many. A search need not see takes: it finds a chunk that
//! overstates and searches again.

/// The most chunks that may wait: a bound on the work that one caller does for others.
const MOST: usize = 8;

/// The chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unsettled {
    rows: [u32; MOST],
    count: usize,
    /// More may fit than the forest shows, or in another order: it must be updated before a search.
    pub(super) more: bool,
}

impl Unsettled {
    /// No chunk lacks an update.
    pub(super) const NONE: Self = Self { rows: [0; MOST], count: 0, more: false };

    /// Returns the chunks.
    #[inline]
    pub(super) fn rows(&self) -> &[u32] {
        &self.rows[..self.count]
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a chunk, unless it is present. `false` if there is no room for it.
    #[inline]
    pub(super) fn add(&mut self, row: u32) -> bool {
        if self.rows().contains(&row) {
            return true;
        }
        let Some(place) = self.rows.get_mut(self.count) else { return false };
        *place = row;
        self.count += 1;
        true
    }
}
