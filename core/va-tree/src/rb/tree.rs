//! The red-black tree of holes: links, colours, and the largest hole below each.
//!
//! # Theory
//! Each hole is one record: its two ends, the largest size in its subtree, three tree links, two list links, a colour.
//! It has no pointers and 48 bytes. A merge needs both neighbours, and the list has them in O(1).
//!
//! `subtree_max_size` is the maximum of a hole's own size and the values of its two children. A change corrects it
//! upward, and the first ancestor whose value does not change ends the walk. No ancestor depends on anything but that
//! value. A rotation moves the old top's value to the new top (same holes below) and recomputes the demoted one.
//!
//! **Shapes.** The hole that Linux picks for an aligned request depends on the shape of its tree, so insertion and
//! erasure must produce the same shapes. Both are the textbook's (Cormen et al., chapter 13). Insertion recolours while
//! the uncle is red and then rotates once or twice. Erasure of a hole with two children moves the in-order *successor*
//! into its place, and tries the four cases of the repair in the textbook's order. Nothing else determines a shape.
//! `docs/decisions/0002-rb-faithful.md` describes the comparison.
//!
//! # Invariants
//! - **FT3 max-size** `subtree_max_size` is the maximum of a hole's own size and its children's values.
//! - **RB1 red** a red hole has no red child; the root is black.
//! - **RB2 black-height** every path from a hole down to a missing child passes as many black holes.
//! - **RB3 links** a child's parent is the hole that has it as a child.
//! - **RB4 list** the list links are the in-order neighbours.

use crate::slab::{Last, Linked, Movable, NIL, Slab, View};
use va_base::{InvariantViolation, Platform, Record, Va};

/// Holes inside the index itself.
pub(super) const INLINE_HOLES: usize = 16;

/// Most holes in the flat beginning of the records: 6 MiB, so that a copy has a bound, 3 MiB when it grows or shrinks.
const FLAT_HOLES: usize = 1 << 17;

/// The left or the right child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Left,
    Right,
}

impl Side {
    #[inline(always)]
    fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// A hole `[start, end)`, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Hole {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) subtree_max_size: u64,
    pub(super) parent: u32,
    pub(super) child: [u32; 2],
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) red: bool,
}

// Linux 6.12 uses 72 bytes.
const _: () = assert!(size_of::<Hole>() <= 48);

impl Hole {
    #[inline(always)]
    pub(super) fn size(&self) -> u64 {
        self.end - self.start
    }

    #[inline(always)]
    pub(super) fn left(&self) -> u32 {
        self.child[0]
    }

    #[inline(always)]
    pub(super) fn right(&self) -> u32 {
        self.child[1]
    }

    #[inline(always)]
    pub(super) fn child(&self, side: Side) -> u32 {
        self.child[side as usize]
    }
}

impl Record for Hole {
    const EMPTY: Self = Self {
        start: 0,
        end: 0,
        subtree_max_size: 0,
        parent: NIL,
        child: [NIL; 2],
        prev: NIL,
        next: NIL,
        red: false,
    };
}

impl Linked for Hole {
    fn links(&self) -> [u32; 2] {
        [self.prev, self.next]
    }

    fn set_links(&mut self, [previous, next]: [u32; 2]) {
        (self.prev, self.next, self.end) = (previous, next, 0);
    }
}

impl Movable for Hole {
    fn is_free(&self) -> bool {
        // No hole ends there.
        self.end == 0
    }
}

/// The records of a tree.
pub(super) type Holes = Slab<Hole, INLINE_HOLES, FLAT_HOLES>;

/// The same, for a walk.
pub(super) type HolesView<'a> = View<'a, Hole, INLINE_HOLES, FLAT_HOLES>;

/// Hole `id` of `holes`, if there is one and `size` or more below it.
#[inline(always)]
pub(super) fn promising<'a>(holes: HolesView<'a>, id: u32, size: u64) -> Option<&'a Hole> {
    holes.find(id).filter(|hole| hole.subtree_max_size >= size)
}

#[inline(always)]
fn max_size(holes: HolesView<'_>, id: u32) -> u64 {
    holes.find(id).map_or(0, |hole| hole.subtree_max_size)
}

/// FT3: what `subtree_max_size` of `hole` must be.
#[inline(always)]
fn computed_max(holes: HolesView<'_>, hole: &Hole) -> u64 {
    hole.size().max(max_size(holes, hole.left())).max(max_size(holes, hole.right()))
}

/// The tree and its list. A tree of areas has no search for the largest and does not use that value.
pub(super) struct Tree<const LARGEST: bool = true> {
    pub(super) slab: Holes,
    pub(super) root: u32,
}

impl<const LARGEST: bool> Tree<LARGEST> {
    pub(super) const fn new() -> Self {
        Self { slab: Slab::new(), root: NIL }
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> &Hole {
        self.slab.get(id)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Hole {
        self.slab.get_mut(id)
    }

    /// Largest size below `id`, 0 for no hole.
    #[inline(always)]
    pub(super) fn max_size(&self, id: u32) -> u64 {
        max_size(self.slab.view(), id)
    }

    /// Colours hole `id`, to break RB1 or RB2.
    #[cfg(test)]
    pub(super) fn paint(&mut self, id: u32, red: bool) {
        self.get_mut(id).red = red;
    }

    #[inline(always)]
    pub(super) fn is_red(&self, id: u32) -> bool {
        id != NIL && self.get(id).red
    }

    #[inline(always)]
    fn computed_max(&self, id: u32) -> u64 {
        computed_max(self.slab.view(), self.get(id))
    }

    /// Corrects `subtree_max_size` from `id` upward, until a value does not change.
    #[inline]
    pub(super) fn propagate(&mut self, mut id: u32) {
        if !LARGEST {
            return;
        }
        loop {
            let holes = self.slab.view();
            let Some(hole) = holes.find(id) else { return };
            let max = computed_max(holes, hole);
            if hole.subtree_max_size == max {
                return;
            }
            let hole = self.slab.get_mut(id);
            hole.subtree_max_size = max;
            id = hole.parent;
        }
    }

    /// Finds the link for a hole `[start, end)` below `from`; `None` if it overlaps a hole there. `from` is not
    /// [`NIL`].
    #[inline]
    pub(super) fn find_link(&self, mut from: u32, start: u64, end: u64) -> Option<(u32, Side)> {
        let holes = self.slab.view();
        let mut hole = holes.find(from)?;
        loop {
            let (side, child) = if end <= hole.start {
                (Side::Left, hole.left())
            } else if start >= hole.end {
                (Side::Right, hole.right())
            } else {
                return None;
            };
            match holes.find(child) {
                Some(below) => (from, hole) = (child, below),
                None => return Some((from, side)),
            }
        }
    }

    /// Returns the neighbours in the list of a hole that is linked at `side` of `parent`.
    #[inline(always)]
    pub(super) fn neighbours(&self, parent: u32, side: Side) -> (u32, u32) {
        match side {
            Side::Left => (self.get(parent).prev, parent),
            Side::Right => (parent, self.get(parent).next),
        }
    }

    /// Links the new hole `id`, whose ends are set, at `side` of `parent` (which is [`NIL`] in an empty tree).
    pub(super) fn insert(&mut self, id: u32, parent: u32, side: Side) {
        let hole = *self.get(id);
        self.link(id, Hole { red: true, subtree_max_size: hole.size(), ..hole }, parent, side);
        if parent != NIL {
            self.propagate(parent);
        }
        self.repair_insertion(id);
    }

    /// Writes `hole` as `id`, without children, at `side` of `parent`, and links it into tree and list.
    #[inline(always)]
    pub(super) fn link(&mut self, id: u32, hole: Hole, parent: u32, side: Side) {
        // It has no children, so it is beside its parent in the list.
        let (prev, next) = if parent == NIL { (NIL, NIL) } else { self.neighbours(parent, side) };
        *self.get_mut(id) = Hole { parent, prev, next, child: [NIL; 2], ..hole };
        if prev != NIL {
            self.get_mut(prev).next = id;
        }
        if next != NIL {
            self.get_mut(next).prev = id;
        }
        if parent == NIL {
            self.root = id;
        } else {
            self.get_mut(parent).child[side as usize] = id;
        }
    }

    /// Restores RB1 after `node` was linked as a red leaf.
    fn repair_insertion(&mut self, mut node: u32) {
        loop {
            let parent = self.get(node).parent;
            if parent == NIL {
                self.get_mut(node).red = false;
                return;
            }
            if !self.get(parent).red {
                return;
            }
            // A red hole is not the root: it has a parent.
            let grandparent = self.get(parent).parent;
            let side = self.side_of(parent, grandparent);
            let uncle = self.get(grandparent).child(side.other());
            if self.is_red(uncle) {
                self.get_mut(parent).red = false;
                self.get_mut(uncle).red = false;
                self.get_mut(grandparent).red = true;
                node = grandparent;
                continue;
            }
            let mut top = parent;
            if self.get(parent).child(side.other()) == node {
                // An inner grandchild: straighten first.
                self.rotate(parent, side);
                top = node;
            }
            self.get_mut(top).red = false;
            self.get_mut(grandparent).red = true;
            self.rotate(grandparent, side.other());
            return;
        }
    }

    #[inline(always)]
    fn side_of(&self, child: u32, parent: u32) -> Side {
        if self.get(parent).left() == child { Side::Left } else { Side::Right }
    }

    /// Rotates the edge between `top` and its child on the other side, so that `top` goes down on `side`.
    fn rotate(&mut self, top: u32, side: Side) {
        let rising = self.get(top).child(side.other());
        let between = self.get(rising).child(side);
        let max = self.get(top).subtree_max_size;
        let parent = self.get(top).parent;
        self.get_mut(top).child[side.other() as usize] = between;
        if between != NIL {
            self.get_mut(between).parent = top;
        }
        self.get_mut(rising).child[side as usize] = top;
        self.get_mut(top).parent = rising;
        self.replace_child(parent, top, rising);
        if !LARGEST {
            return;
        }
        // The same holes are below the new top as below the old one.
        self.get_mut(rising).subtree_max_size = max;
        let demoted = self.computed_max(top);
        self.get_mut(top).subtree_max_size = demoted;
    }

    /// Makes `new` the child of `parent` (or the root) that `old` was.
    #[inline]
    fn replace_child(&mut self, parent: u32, old: u32, new: u32) {
        if parent == NIL {
            self.root = new;
        } else {
            let side = self.side_of(old, parent);
            self.get_mut(parent).child[side as usize] = new;
        }
        if new != NIL {
            self.get_mut(new).parent = parent;
        }
    }

    /// Unlinks hole `id` from the tree and the list. The caller owns its record.
    pub(super) fn erase(&mut self, id: u32) {
        let Hole { parent, child: [left, right], prev, next, red, .. } = *self.get(id);
        if prev != NIL {
            self.get_mut(prev).next = next;
        }
        if next != NIL {
            self.get_mut(next).prev = prev;
        }
        if left == NIL || right == NIL {
            let only = if left == NIL { right } else { left };
            self.replace_child(parent, id, only);
            self.propagate(parent);
            if only != NIL {
                // An only child is red, and its parent was black.
                self.get_mut(only).red = false;
            } else if !red && parent != NIL {
                // Which side lost a black hole: the one that is missing a child where a black one was.
                let side = self.lost_side(parent);
                self.repair_erasure(parent, side);
            }
            return;
        }
        // Two children: the successor, which is the next in the list and has no left child, takes the place.
        let successor = next;
        let moved = *self.get(successor);
        let (hurt, side) = if moved.parent == id {
            (successor, Side::Right)
        } else {
            self.replace_child(moved.parent, successor, moved.right());
            self.get_mut(successor).child[1] = right;
            self.get_mut(right).parent = successor;
            (moved.parent, Side::Left)
        };
        self.get_mut(successor).child[0] = left;
        self.get_mut(left).parent = successor;
        self.replace_child(parent, id, successor);
        let max = self.get(id).subtree_max_size;
        let place = self.get_mut(successor);
        place.red = red;
        // The value of the place; set right below if it was the erased hole's, or depended on where the successor was.
        place.subtree_max_size = max;
        if hurt != successor {
            self.propagate(hurt);
        }
        self.propagate(successor);
        if moved.right() != NIL {
            self.get_mut(moved.right()).red = false;
        } else if !moved.red {
            self.repair_erasure(hurt, side);
        }
    }

    /// Returns the side of `parent` on which a childless black hole was taken away.
    fn lost_side(&self, parent: u32) -> Side {
        // The sibling of a black hole exists (RB2), so the empty side is the one.
        if self.get(parent).left() == NIL { Side::Left } else { Side::Right }
    }

    /// Restores RB2 after the subtree at `side` of `parent` lost one black hole.
    fn repair_erasure(&mut self, mut parent: u32, mut side: Side) {
        loop {
            let mut sibling = self.get(parent).child(side.other());
            if self.get(sibling).red {
                // Make the sibling black.
                self.get_mut(sibling).red = false;
                self.get_mut(parent).red = true;
                self.rotate(parent, side);
                sibling = self.get(parent).child(side.other());
            }
            let (near, far) = (self.get(sibling).child(side), self.get(sibling).child(side.other()));
            if !self.is_red(near) && !self.is_red(far) {
                // Take a black one from the sibling's side too, and go on above.
                self.get_mut(sibling).red = true;
                if self.get(parent).red {
                    self.get_mut(parent).red = false;
                    return;
                }
                let above = self.get(parent).parent;
                if above == NIL {
                    return;
                }
                side = self.side_of(parent, above);
                parent = above;
                continue;
            }
            if !self.is_red(far) {
                // Make the far nephew the red one.
                self.get_mut(near).red = false;
                self.get_mut(sibling).red = true;
                self.rotate(sibling, side.other());
                sibling = near;
            }
            let far = self.get(sibling).child(side.other());
            let red = self.get(parent).red;
            self.get_mut(sibling).red = red;
            self.get_mut(parent).red = false;
            self.get_mut(far).red = false;
            self.rotate(parent, side);
            return;
        }
    }

    /// Lowers the number of records towards `low` by one step: the topmost is dropped, or moves to a free one.
    pub(super) fn lower(&mut self, low: usize) {
        let Last::Moved { from, to } = self.slab.move_last(low) else { return };
        let Hole { parent, child, prev, next, .. } = *self.get(to);
        if parent == NIL {
            self.root = to;
        } else {
            let side = self.side_of(from, parent);
            self.get_mut(parent).child[side as usize] = to;
        }
        for child in child.into_iter().filter(|&child| child != NIL) {
            self.get_mut(child).parent = to;
        }
        if prev != NIL {
            self.get_mut(prev).next = to;
        }
        if next != NIL {
            self.get_mut(next).prev = to;
        }
    }

    /// Frees the records beyond `need`, in at most `steps` steps, which it counts down; returns the bytes.
    pub(super) fn shrink(&mut self, need: usize, steps: &mut usize, platform: &impl Platform) -> usize {
        let mut freed = 0;
        while let Some(low) = self.slab.shrink_step(need, steps, &mut freed, platform) {
            self.lower(low);
        }
        freed
    }

    /// Returns the first hole in address order.
    pub(super) fn first(&self) -> u32 {
        let mut id = self.root;
        while id != NIL && self.get(id).left() != NIL {
            id = self.get(id).left();
        }
        id
    }

    /// Returns the lowest hole that ends above `at`.
    pub(super) fn first_ending_above(&self, at: u64) -> u32 {
        let (mut id, mut found) = (self.root, NIL);
        let holes = self.slab.view();
        while let Some(hole) = holes.find(id) {
            if hole.end > at {
                found = id;
                id = hole.left();
            } else {
                id = hole.right();
            }
        }
        found
    }

    /// Returns the highest hole that starts at or below `at`.
    pub(super) fn last_starting_to(&self, at: u64) -> u32 {
        let (mut id, mut found) = (self.root, NIL);
        let holes = self.slab.view();
        while let Some(hole) = holes.find(id) {
            if hole.start <= at {
                found = id;
                id = hole.right();
            } else {
                id = hole.left();
            }
        }
        found
    }

    /// Returns the black holes on the path down from `id`, a child of `parent`, or the rule that is broken there. Checks
    /// FT3, RB1, RB2, RB3.
    fn black_height(&self, id: u32, parent: u32, depth: u32) -> Result<u64, (&'static str, u32)> {
        if id == NIL {
            return Ok(0);
        }
        let hole = self.get(id);
        // A hole has one parent, and the root none, so the walk comes to each hole once.
        if hole.parent != parent {
            return Err(("RB3", id));
        }
        // A tree of 2^32 holes is at most 64 deep. The walk of one that is deeper would take more stack than there is.
        if depth > 64 {
            return Err(("RB2", id));
        }
        let mut heights = [0; 2];
        for (child, height) in hole.child.into_iter().zip(&mut heights) {
            if hole.red && self.is_red(child) {
                return Err(("RB1", id));
            }
            *height = self.black_height(child, id, depth + 1)?;
        }
        if heights[0] != heights[1] {
            return Err(("RB2", id));
        }
        if LARGEST && hole.subtree_max_size != self.computed_max(id) {
            return Err(("FT3", id));
        }
        Ok(heights[0] + u64::from(!hole.red))
    }

    /// Checks FT3 and RB1 to RB4 with a full walk, and `each` hole together with the one before it.
    pub(super) fn walk(
        &self,
        mut each: impl FnMut(&Hole, Option<&Hole>) -> Result<(), InvariantViolation>,
    ) -> Result<(), InvariantViolation> {
        let at = |id| Va::new(if id == NIL { 0 } else { self.get(id).start });
        self.black_height(self.root, NIL, 0).map_err(|(rule, id)| InvariantViolation {
            rule,
            at: at(id),
            expected: 0,
            actual: 1,
        })?;
        InvariantViolation::check(!self.is_red(self.root), "RB1", at(self.root), 0, 1)?;
        let link = |id, expected, actual| {
            InvariantViolation::check(
                expected == actual,
                "RB4",
                at(id),
                u64::from(expected),
                u64::from(actual),
            )
        };
        let (mut id, mut prev, mut count) = (self.first(), NIL, 0);
        while id != NIL {
            let hole = self.get(id);
            link(id, prev, hole.prev)?;
            let next = self.in_order_next(id);
            link(id, next, hole.next)?;
            each(hole, (prev != NIL).then(|| self.get(prev)))?;
            (prev, id, count) = (id, next, count + 1);
        }
        let used = self.slab.used() as u64;
        InvariantViolation::check(count == used, "SL1", Va::ZERO, count, used)?;
        InvariantViolation::check(self.slab.is_conserved(), "SL1", Va::ZERO, 0, 1)
    }

    /// Next hole in order by tree links alone, to check the list against (RB4).
    fn in_order_next(&self, id: u32) -> u32 {
        let mut id = id;
        if self.get(id).right() != NIL {
            id = self.get(id).right();
            while self.get(id).left() != NIL {
                id = self.get(id).left();
            }
            return id;
        }
        loop {
            let parent = self.get(id).parent;
            if parent == NIL || self.get(parent).left() == id {
                return parent;
            }
            id = parent;
        }
    }
}
