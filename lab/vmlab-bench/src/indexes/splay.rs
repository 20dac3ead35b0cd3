//! A splay tree of holes: the last accessed hole is the root, so that accesses near it are fast.

use super::Holes;
use super::bst::{Bst, NIL, Want};

/// A splay tree of holes.
pub struct Splay {
    tree: Bst,
}

impl Splay {
    /// Creates pages `[0, pages)`, all free.
    pub fn new(pages: u64) -> Self {
        let mut splay = Self { tree: Bst::new() };
        splay.insert(0, pages);
        splay
    }

    /// Makes `id` the root. Changes are only made at the root, so one pull corrects all maxima.
    fn splay(&mut self, id: u32) {
        loop {
            let parent = self.tree.get(id).parent;
            if parent == NIL {
                return;
            }
            let grandparent = self.tree.get(parent).parent;
            if grandparent != NIL {
                let straight = self.tree.side(id) == self.tree.side(parent);
                self.tree.rotate_up(if straight { parent } else { id });
            }
            self.tree.rotate_up(id);
        }
    }

    fn insert(&mut self, start: u64, end: u64) {
        let id = self.tree.make(start, end);
        self.tree.hang(id);
        let parent = self.tree.get(id).parent;
        self.tree.raise(parent, end - start);
        self.splay(id);
    }

    /// Removes the root.
    fn remove_root(&mut self) {
        let root = self.tree.root;
        let [left, right] = self.tree.get(root).child;
        self.tree.drop(root);
        for side in [left, right] {
            if side != NIL {
                self.tree.get_mut(side).parent = NIL;
            }
        }
        self.tree.root = if left == NIL { right } else { left };
        if left != NIL && right != NIL {
            let mut last = left;
            while self.tree.get(last).child[1] != NIL {
                last = self.tree.get(last).child[1];
            }
            self.splay(last);
            self.tree.get_mut(last).child[1] = right;
            self.tree.get_mut(right).parent = last;
            self.tree.pull(last);
        }
    }
}

impl Holes for Splay {
    fn alloc(&mut self, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64> {
        let want = Want { size, align_log2, window };
        let (id, at) = self.tree.lowest(&want, false)?;
        self.splay(id);
        let hole = self.tree.get_mut(id);
        let (start, end) = (hole.start, hole.end);
        match (start == at, at + size == end) {
            (true, true) => self.remove_root(),
            (false, true) => {
                hole.end = at;
                self.tree.pull(id);
            }
            (_, false) => {
                hole.start = at + size;
                self.tree.pull(id);
                if start < at {
                    self.insert(start, at);
                }
            }
        }
        Some(at)
    }

    fn free(&mut self, start: u64, size: u64) {
        let (mut start, mut end) = (start, start + size);
        let (below, above) = self.tree.around(start);
        if above != NIL && self.tree.get(above).start == end {
            end = self.tree.get(above).end;
            self.splay(above);
            self.remove_root();
        }
        if below != NIL && self.tree.get(below).end == start {
            start = self.tree.get(below).start;
            self.splay(below);
            self.tree.get_mut(below).end = end;
            self.tree.pull(below);
            debug_assert!(self.tree.get(below).start == start);
        } else {
            self.insert(start, end);
        }
    }
}
