//! A treap of holes in three variants, to measure two ideas on the same tree.
//!
//! - [`Eager`]: every maximum is exact after every change, as in Linux's tree. The baseline.
//! - [`Lazy`]: a hole that shrinks does not update its ancestors. Maxima are upper bounds; a search that one misled
//!   corrects it. ("lazy fix-ups")
//! - [`Cached`]: eager, and the last used hole is tried first if no hole below it can have begun to fit since. ("cache
//!   last accessed node")

use super::Holes;
use super::bst::{Bst, NIL, Want};
use std::marker::PhantomData;

/// The differences between variants.
pub trait Variant {
    /// True if shrinking a hole does not update maxima.
    const LAZY: bool;
    /// True if the last hole is tried first.
    const CACHED: bool;
}

/// Maxima are always exact.
pub struct Eager;
/// Maxima are upper bounds.
pub struct Lazy;
/// The last hole is tried first.
pub struct Cached;

impl Variant for Eager {
    const LAZY: bool = false;
    const CACHED: bool = false;
}
impl Variant for Lazy {
    const LAZY: bool = true;
    const CACHED: bool = false;
}
impl Variant for Cached {
    const LAZY: bool = false;
    const CACHED: bool = true;
}

/// A treap of holes.
pub struct Treap<V> {
    tree: Bst,
    /// The last used hole, and its request; [`NIL`] once a hole below it may fit.
    last: (u32, Want),
    variant: PhantomData<V>,
}

impl<V: Variant> Treap<V> {
    /// Creates pages `[0, pages)`, all free.
    pub fn new(pages: u64) -> Self {
        let last = (NIL, Want { size: 0, align_log2: 0, window: (0, 0) });
        let mut treap = Self { tree: Bst::new(), last, variant: PhantomData };
        treap.insert(0, pages);
        treap
    }

    fn insert(&mut self, start: u64, end: u64) {
        let id = self.tree.make(start, end);
        self.tree.hang(id);
        let parent = self.tree.get(id).parent;
        self.tree.raise(parent, end - start);
        while self.tree.get(id).parent != NIL
            && self.tree.get(self.tree.get(id).parent).priority < self.tree.get(id).priority
        {
            self.tree.rotate_up(id);
        }
    }

    fn remove(&mut self, id: u32) {
        loop {
            let [left, right] = self.tree.get(id).child;
            let child = match (left, right) {
                (NIL, child) | (child, NIL) => {
                    let parent = self.tree.get(id).parent;
                    self.tree.replace(id, child);
                    self.tree.drop(id);
                    if !V::LAZY {
                        self.tree.propagate(parent);
                    }
                    return;
                }
                (left, right) if self.tree.get(left).priority > self.tree.get(right).priority => left,
                (_, right) => right,
            };
            self.tree.rotate_up(child);
        }
    }

    fn shrunk(&mut self, id: u32) {
        if !V::LAZY {
            self.tree.propagate(id);
        }
    }

    /// Returns the last used hole, if the request fits it and nothing below.
    fn cached(&self, want: &Want) -> Option<(u32, u64)> {
        let (id, last) = &self.last;
        // All holes below were too small for a request that needed no more than this one.
        let no_more =
            last.size <= want.size && last.align_log2 <= want.align_log2 && last.window == want.window;
        if *id == NIL || !no_more {
            return None;
        }
        let hole = self.tree.get(*id);
        super::fit(hole.start, hole.end, want.size, want.align_log2, want.window).map(|at| (*id, at))
    }
}

impl<V: Variant> Holes for Treap<V> {
    fn alloc(&mut self, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64> {
        let want = Want { size, align_log2, window };
        let cached = if V::CACHED { self.cached(&want) } else { None };
        let (id, at) = match cached {
            Some(found) => found,
            None => self.tree.lowest(&want, V::LAZY)?,
        };
        let (start, end) = (self.tree.get(id).start, self.tree.get(id).end);
        // The left rest of a middle cut is below the used hole: it may fit the next request.
        self.last = (if start == at && at + size < end { id } else { NIL }, want);
        match (start == at, at + size == end) {
            (true, true) => self.remove(id),
            (true, false) => {
                self.tree.get_mut(id).start = at + size;
                self.shrunk(id);
            }
            (false, true) => {
                self.tree.get_mut(id).end = at;
                self.shrunk(id);
            }
            (false, false) => {
                self.tree.get_mut(id).start = at + size;
                self.shrunk(id);
                self.insert(start, at);
            }
        }
        Some(at)
    }

    fn free(&mut self, start: u64, size: u64) {
        let end = start + size;
        // The new hole may be below the last one, or merge with it.
        self.last.0 = NIL;
        let (below, above) = self.tree.around(start);
        let left = below != NIL && self.tree.get(below).end == start;
        let right = above != NIL && self.tree.get(above).start == end;
        match (left, right) {
            (false, false) => self.insert(start, end),
            (true, false) => self.grown(below, |hole| hole.end = end),
            (false, true) => self.grown(above, |hole| hole.start = start),
            (true, true) => {
                let end = self.tree.get(above).end;
                self.remove(above);
                self.grown(below, |hole| hole.end = end);
            }
        }
    }
}

impl<V: Variant> Treap<V> {
    fn grown(&mut self, id: u32, change: impl FnOnce(&mut super::bst::Hole)) {
        let hole = self.tree.get_mut(id);
        change(hole);
        let size = hole.end - hole.start;
        self.tree.raise(id, size);
    }
}
