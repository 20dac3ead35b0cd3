//! Two searches on one tree: Linux's, and the exact one.
//!
//! # Theory
//! `subtree_max_size` tells whether a subtree holds a large enough hole, so a search for the *lowest* one goes left
//! wherever the left promises enough. Alignment and the window's start spoil that: a hole may be long enough and still
//! not fit. The two searches deal with it differently.
//!
//! **[`Linux`]** asks for `size + align - 1` bytes when it chooses a way (then whatever it finds surely fits), but takes
//! any hole that it *passes* and that fits. So it stays O(log n), is not the lowest fit for alignments above a page,
//! depends on the shape of the tree, and can miss a fit altogether. When it runs out of ways it rolls back: to the nearest
//! ancestor that fits or whose right side promises enough, whose left side it must not enter again. Its end of the window is
//! looked at only afterwards. A window exactly as large as an aligned request is searched with the bare size.
//!
//! **[`Exact`]** asks for `size` and visits, in address order, every hole that its ways cannot exclude: always the
//! lowest fit; O(log n) up to page alignment, O(n) at worst above.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `find_vmap_lowest_match`, `va_alloc`), from its behaviour.

use super::tree::{Hole, Tree, promising};
use va_base::PAGE_SIZE;

/// What is looked for, in bytes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Wanted {
    /// Where the request would begin in `hole`, if it fits there, with `low` as the window's start and no end.
    #[inline(always)]
    fn first_in(&self, hole: &Hole, low: u64) -> Option<u64> {
        let at = hole.start.max(low).checked_add(self.align - 1)? & !(self.align - 1);
        (at.checked_add(self.size)? <= hole.end).then_some(at)
    }

    /// Tells whether the request fits in `hole`; most that are passed are too small, and that is seen first.
    #[inline(always)]
    fn fits_in(&self, hole: &Hole, low: u64) -> bool {
        hole.size() >= self.size && self.first_in(hole, low).is_some()
    }
}

/// A way of choosing a hole.
pub trait Search: sealed::Sealed {
    /// Returns the hole to cut and the address in it.
    #[doc(hidden)]
    fn find(tree: &TreeRef<'_>, wanted: &Wanted) -> Option<(u32, u64)>;
}

mod sealed {
    /// The two searches here are all there are: another could hand out what is not free.
    pub trait Sealed {}
    impl Sealed for super::Linux {}
    impl Sealed for super::Exact {}
}

/// The tree, as a search sees it.
#[doc(hidden)]
pub struct TreeRef<'a>(pub(super) &'a Tree);

/// Linux's search: what Linux 6.12 answers, address for address.
#[derive(Clone, Copy, Debug)]
pub struct Linux;

/// The exact lowest fit.
#[derive(Clone, Copy, Debug)]
pub struct Exact;

impl Search for Linux {
    #[inline]
    fn find(tree: &TreeRef<'_>, wanted: &Wanted) -> Option<(u32, u64)> {
        let tree = tree.0;
        let window_is_exact = wanted.high - wanted.low == wanted.size;
        let length = if wanted.align <= PAGE_SIZE || window_is_exact {
            wanted.size
        } else {
            wanted.size.checked_add(wanted.align - 1)?
        };
        let found = linux_lowest(tree, wanted, length)?;
        let at = wanted.first_in(tree.get(found), wanted.low)?;
        (at.checked_add(wanted.size)? <= wanted.high).then_some((found, at))
    }
}

/// The hole that Linux finds when it asks for `length` on the way.
#[inline]
fn linux_lowest(tree: &Tree, wanted: &Wanted, length: u64) -> Option<u32> {
    let mut low = wanted.low;
    let holes = tree.slab.view();
    let mut id = tree.root;
    let mut hole = holes.find(id)?;
    loop {
        // Strict: a hole that starts at the window's start has nothing of use to its left.
        if low < hole.start
            && let Some(left) = promising(holes, hole.left(), length)
        {
            (id, hole) = (hole.left(), left);
            continue;
        }
        if wanted.fits_in(hole, low) {
            return Some(id);
        }
        if let Some(right) = promising(holes, hole.right(), length) {
            (id, hole) = (hole.right(), right);
            continue;
        }
        // A dead end: back to an ancestor that fits, or whose right side is still to be seen.
        loop {
            id = hole.parent;
            hole = holes.find(id)?;
            if wanted.fits_in(hole, low) {
                return Some(id);
            }
            // One that starts at `low` was not entered on its left, so this is the way back from its right side. And one
            // more than its start afterwards, so that no later step enters its left side, or what lies before it, again.
            if low < hole.start
                && let Some(right) = promising(holes, hole.right(), length)
            {
                low = hole.start + 1;
                (id, hole) = (hole.right(), right);
                break;
            }
        }
    }
}

impl Search for Exact {
    #[inline]
    fn find(tree: &TreeRef<'_>, wanted: &Wanted) -> Option<(u32, u64)> {
        let holes = tree.0.slab.view();
        let mut id = tree.0.root;
        let mut hole = promising(holes, id, wanted.size)?;
        loop {
            // Down to the lowest hole that nothing excludes: what lies left of a hole ends below its start.
            while wanted.low < hole.start
                && let Some(left) = promising(holes, hole.left(), wanted.size)
            {
                (id, hole) = (hole.left(), left);
            }
            // In order from there.
            loop {
                if hole.start >= wanted.high {
                    return None;
                }
                if wanted.fits_in(hole, wanted.low) {
                    let at = wanted.first_in(hole, wanted.low)?;
                    return (at.checked_add(wanted.size)? <= wanted.high).then_some((id, at));
                }
                if let Some(right) = promising(holes, hole.right(), wanted.size) {
                    (id, hole) = (hole.right(), right);
                    break;
                }
                // Up, past every hole whose right side this was.
                loop {
                    let parent = hole.parent;
                    hole = holes.find(parent)?;
                    let from_left = hole.left() == id;
                    id = parent;
                    if from_left {
                        break;
                    }
                }
            }
        }
    }
}
