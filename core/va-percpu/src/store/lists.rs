//! The lists of chunks, and the position of a chunk in them.

use super::{RESERVED, Store};
use crate::chunk::{End, NIL, NO_SLOT};
use crate::config::Config;

impl<C: Config> Store<C> {
    /// Puts a chunk that is in no list at an end of one. The reserved section is never in any.
    pub(crate) fn join(&mut self, row: u32, slot: u8, end: End) {
        if row == RESERVED {
            return;
        }
        let list = slot as usize;
        let (prev, next) = match end {
            End::Front => (NIL, self.lists.first[list]),
            End::Back => (self.lists.last[list], NIL),
        };
        let chunk = self.chunk_mut(row);
        (chunk.slot, chunk.prev, chunk.next) = (slot, prev, next);
        self.tie(list, prev, row, row);
        self.tie(list, row, row, next);
    }

    /// Removes a chunk from its list, if it is in one.
    pub(crate) fn leave(&mut self, row: u32) {
        let chunk = self.chunk_mut(row);
        let (slot, prev, next) = (chunk.slot, chunk.prev, chunk.next);
        if slot == NO_SLOT {
            return;
        }
        chunk.slot = NO_SLOT;
        let list = slot as usize;
        match prev {
            NIL => self.lists.first[list] = next,
            _ => self.chunk_mut(prev).next = next,
        }
        match next {
            NIL => self.lists.last[list] = prev,
            _ => self.chunk_mut(next).prev = prev,
        }
    }

    /// Makes `left` and `right` neighbours, one of which is `row`; an end of the list is no chunk.
    fn tie(&mut self, list: usize, left: u32, row: u32, right: u32) {
        match left {
            NIL => self.lists.first[list] = row,
            _ => self.chunk_mut(left).next = right,
        }
        match right {
            NIL => self.lists.last[list] = row,
            _ => self.chunk_mut(right).prev = left,
        }
    }

    /// Moves a chunk to an end of a list.
    pub(crate) fn move_to(&mut self, row: u32, slot: u8, end: End) {
        self.leave(row);
        self.join(row, slot, end);
    }

    /// Moves a chunk to the list of its longest run, unless that is `old`: emptier ones to the front.
    #[inline]
    pub(crate) fn relocate(&mut self, row: u32, old: u8) {
        let new = self.slot_of(row);
        if new != old && !self.chunk(row).isolated {
            self.move_to(row, new, if old < new { End::Front } else { End::Back });
        }
    }

    /// Moves a chunk that was in no list or isolated to the list of its longest run.
    pub(crate) fn relocate_new(&mut self, row: u32) {
        let slot = self.slot_of(row);
        self.move_to(row, slot, End::Front);
    }

    /// Moves a chunk whose short runs failed to a list that is not searched.
    pub(super) fn relegate(&mut self, row: u32) {
        self.move_to(row, 0, End::Front);
    }

    /// Moves a chunk to those to depopulate, which are not searched.
    pub(crate) fn isolate(&mut self, row: u32) {
        self.settle();
        let chunk = self.chunk_mut(row);
        if !chunk.isolated {
            chunk.isolated = true;
            let empty = i64::from(chunk.empty);
            self.totals.spare_pages -= empty;
        }
        self.move_to(row, self.slots.to_depopulate, End::Front);
        self.update_forest(row);
    }

    /// Counts the spare pages of a chunk again.
    #[inline]
    pub(crate) fn reintegrate(&mut self, row: u32) {
        let chunk = self.chunk_mut(row);
        if chunk.isolated {
            chunk.isolated = false;
            let empty = i64::from(chunk.empty);
            self.totals.spare_pages += empty;
            self.settle();
            self.relocate_new(row);
            self.update_forest(row);
            self.memos.lower(row, 0);
        }
    }
}
