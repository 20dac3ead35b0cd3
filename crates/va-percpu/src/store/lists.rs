//! Which list a chunk stands in, and where in it.

use super::{RESERVED, Store};
use crate::chunk::{End, NIL, NO_SLOT};
use crate::config::Config;

impl<C: Config> Store<C> {
    /// Puts a chunk that is in no list at an end of one. The reserved part is never in any.
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

    /// Takes a chunk out of its list, if it is in one.
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

    /// Puts a chunk where its longest run says, if that is elsewhere than `old`: emptier ones first.
    #[inline]
    pub(crate) fn relocate(&mut self, row: u32, old: u8) {
        let new = self.slot_of(row);
        if new != old && !self.chunk(row).isolated {
            self.move_to(row, new, if old < new { End::Front } else { End::Back });
        }
    }

    /// Puts a chunk, in no list or isolated so far, where its longest run says.
    pub(crate) fn relocate_new(&mut self, row: u32) {
        let slot = self.slot_of(row);
        self.move_to(row, slot, End::Front);
    }

    /// Puts a chunk whose short runs failed where nobody looks.
    pub(super) fn relegate(&mut self, row: u32) {
        self.move_to(row, 0, End::Front);
    }

    /// Puts a chunk among those to depopulate, where no search comes.
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

    /// Counts on a chunk again.
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
