//! The common code of the laboratory's binary trees of holes: an arena, rotations, the search for the lowest fit.

use super::fit;

/// The id that stands for "no hole".
pub const NIL: u32 = u32::MAX;

/// A hole.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// First page.
    pub start: u64,
    /// Page after the last.
    pub end: u64,
    /// Largest hole of the subtree, or an upper bound with lazy fix-ups.
    pub max: u64,
    /// The parent.
    pub parent: u32,
    /// Left and right child.
    pub child: [u32; 2],
    /// The number that balances the tree, if the tree uses one.
    pub priority: u32,
}

/// An arena of holes with a root.
pub struct Bst {
    /// The holes.
    pub holes: Vec<Hole>,
    unused: Vec<u32>,
    /// The root of the tree.
    pub root: u32,
}

impl Bst {
    /// Creates an empty tree.
    pub fn new() -> Self {
        Self { holes: Vec::new(), unused: Vec::new(), root: NIL }
    }

    /// Creates a record for `[start, end)`, not linked.
    pub fn make(&mut self, start: u64, end: u64) -> u32 {
        // A pseudo-random function of the start: the same operations give the same tree.
        let priority = ((start + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        let hole = Hole { start, end, max: end - start, parent: NIL, child: [NIL; 2], priority };
        match self.unused.pop() {
            Some(id) => {
                self.holes[id as usize] = hole;
                id
            }
            None => {
                self.holes.push(hole);
                (self.holes.len() - 1) as u32
            }
        }
    }

    /// Frees an unlinked record.
    pub fn drop(&mut self, id: u32) {
        self.unused.push(id);
    }

    /// Returns the hole `id`.
    #[inline]
    pub fn get(&self, id: u32) -> &Hole {
        &self.holes[id as usize]
    }

    /// Returns the hole `id`, mutably.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut Hole {
        &mut self.holes[id as usize]
    }

    /// Returns the largest hole of the subtree `id`.
    #[inline]
    pub fn max(&self, id: u32) -> u64 {
        if id == NIL { 0 } else { self.get(id).max }
    }

    /// Computes the maximum of `id` from itself and its children; returns true if it changed.
    #[inline]
    pub fn pull(&mut self, id: u32) -> bool {
        let hole = self.get(id);
        let max = (hole.end - hole.start).max(self.max(hole.child[0])).max(self.max(hole.child[1]));
        let hole = self.get_mut(id);
        let changed = hole.max != max;
        hole.max = max;
        changed
    }

    /// [`pull`](Self::pull)s from `id` upward until nothing changes.
    pub fn propagate(&mut self, mut id: u32) {
        while id != NIL && self.pull(id) {
            id = self.get(id).parent;
        }
    }

    /// Raises the maxima above `id` to `max` where they are lower.
    pub fn raise(&mut self, mut id: u32, max: u64) {
        while id != NIL && self.get(id).max < max {
            self.get_mut(id).max = max;
            id = self.get(id).parent;
        }
    }

    /// Returns the index of `id` among the children of its parent; 0 for the root.
    #[inline]
    pub fn side(&self, id: u32) -> usize {
        let parent = self.get(id).parent;
        usize::from(parent != NIL && self.get(parent).child[1] == id)
    }

    /// Links `new` in place of `old`.
    pub fn replace(&mut self, old: u32, new: u32) {
        let parent = self.get(old).parent;
        let side = self.side(old);
        if parent == NIL {
            self.root = new;
        } else {
            self.get_mut(parent).child[side] = new;
        }
        if new != NIL {
            self.get_mut(new).parent = parent;
        }
    }

    /// Rotates `id` above its parent.
    pub fn rotate_up(&mut self, id: u32) {
        let parent = self.get(id).parent;
        let side = self.side(id);
        let inner = self.get(id).child[1 - side];
        self.replace(parent, id);
        self.get_mut(parent).child[side] = inner;
        if inner != NIL {
            self.get_mut(inner).parent = parent;
        }
        self.get_mut(id).child[1 - side] = parent;
        self.get_mut(parent).parent = id;
        let max = self.get(parent).max;
        self.pull(parent);
        self.get_mut(id).max = max;
    }

    /// Inserts `id` as a leaf.
    pub fn hang(&mut self, id: u32) {
        let start = self.get(id).start;
        let (mut at, mut parent, mut side) = (self.root, NIL, 0);
        while at != NIL {
            side = usize::from(self.get(at).start < start);
            (parent, at) = (at, self.get(at).child[side]);
        }
        self.get_mut(id).parent = parent;
        if parent == NIL { self.root = id } else { self.get_mut(parent).child[side] = id }
    }

    /// Returns the neighbours of `page`, which is in no hole: the last hole that starts below, the first that starts
    /// above.
    pub fn around(&self, page: u64) -> (u32, u32) {
        let (mut at, mut below, mut above) = (self.root, NIL, NIL);
        while at != NIL {
            let hole = self.get(at);
            if hole.start < page {
                (below, at) = (at, hole.child[1]);
            } else {
                (above, at) = (at, hole.child[0]);
            }
        }
        (below, above)
    }

    /// Returns the lowest fit. With `tighten`, maxima that were too high are corrected on the way back.
    ///
    /// It follows parent links instead of recursing: a splay tree may be as deep as its number of holes.
    pub fn lowest(&mut self, want: &Want, tighten: bool) -> Option<(u32, u64)> {
        let promises = |tree: &Self, id: u32| id != NIL && tree.get(id).max >= want.size;
        let mut at = self.root;
        if !promises(self, at) {
            return None;
        }
        // The next step at `at`: its left subtree, itself and its right subtree, or its parent.
        enum Next {
            Left,
            Own,
            Up,
        }
        let mut next = Next::Left;
        loop {
            let Hole { start, end, child: [left, right], parent, .. } = *self.get(at);
            next = match next {
                // Holes in the left subtree end below this hole's start.
                Next::Left if want.window.0 < start && promises(self, left) => {
                    at = left;
                    Next::Left
                }
                Next::Left => Next::Own,
                Next::Own => {
                    if let Some(page) = fit(start, end, want.size, want.align_log2, want.window) {
                        return Some((at, page));
                    }
                    if start >= want.window.1 {
                        return None;
                    }
                    if promises(self, right) {
                        at = right;
                        Next::Left
                    } else {
                        Next::Up
                    }
                }
                Next::Up => {
                    if tighten {
                        self.pull(at);
                    }
                    if parent == NIL {
                        return None;
                    }
                    let from_left = self.get(parent).child[0] == at;
                    at = parent;
                    if from_left { Next::Own } else { Next::Up }
                }
            };
        }
    }
}

impl Default for Bst {
    fn default() -> Self {
        Self::new()
    }
}

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Pages.
    pub size: u64,
    /// Binary logarithm, in pages.
    pub align_log2: u32,
    /// First page, and page after the last.
    pub window: (u64, u64),
}
