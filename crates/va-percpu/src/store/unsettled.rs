//! Chunks of which the forest and the lists have not heard all.
//!
//! Bringing news of a chunk to them costs more than to give an object back, and news of several changes cost no more
//! than of one. So they wait until somebody must know, or until there are too many. What was only taken need not be
//! known to a search: it finds a chunk that promises too much and looks again.

/// The most chunks that may wait: they bound what one caller does for others.
const MOST: usize = 8;

/// The chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unsettled {
    rows: [u32; MOST],
    count: usize,
    /// More may fit than the forest says, or in another order: it must hear all before it is asked.
    pub(super) more: bool,
}

impl Unsettled {
    /// Everybody knows all.
    pub(super) const NONE: Self = Self { rows: [0; MOST], count: 0, more: false };

    /// The chunks.
    #[inline]
    pub(super) fn rows(&self) -> &[u32] {
        &self.rows[..self.count]
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a chunk, unless it is there. `false` if there is no room for it.
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
