//! A copy of a tree, in the same shape: Linux's search depends on it.

use super::tree::{Hole, Side, Tree};
use crate::slab::NIL;

impl<const LARGEST: bool> Tree<LARGEST> {
    /// Copies all holes of `like` into this tree, which is empty. `None` if it has no record for one of them. O(n).
    #[must_use]
    pub(super) fn copy(&mut self, like: &Self) -> Option<()> {
        if like.root == NIL {
            return Some(());
        }
        let (mut from, mut to) = (like.root, self.copy_one(like.get(like.root), NIL, Side::Left)?);
        while from != NIL {
            let hole = like.get(from);
            // What the copy has on a side is complete.
            let missing = |side: &Side| hole.child(*side) != NIL && self.get(to).child(*side) == NIL;
            if let Some(side) = [Side::Left, Side::Right].into_iter().find(missing) {
                from = hole.child(side);
                to = self.copy_one(like.get(from), to, side)?;
            } else {
                (from, to) = (hole.parent, self.get(to).parent);
            }
        }
        Some(())
    }

    /// Links a copy of `hole` at `side` of `parent`, with its colour and the largest size below it.
    fn copy_one(&mut self, hole: &Hole, parent: u32, side: Side) -> Option<u32> {
        let id = self.slab.take()?;
        self.link(id, *hole, parent, side);
        Some(id)
    }
}
