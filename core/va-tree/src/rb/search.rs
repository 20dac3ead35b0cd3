//! Two searches on one tree: Linux's, and the exact one.
//!
//! # Theory
//! `subtree_max_size` shows whether a subtree has a large enough hole, so a search for the *lowest* one goes left if
//! the left side is large enough. Alignment and the window's start break that: a hole may be long enough and still not
//! fit. The two searches handle it differently.
//!
//! **[`Linux`]** compares with `size + align - 1` bytes when it chooses a child, so a hole of that size surely fits.
//! But it takes any hole that it *passes* and that fits. So it stays O(log n), is not the lowest fit for alignments
//! above a page, depends on the shape of the tree, and can miss a fit altogether. At a dead end it rolls back: to the
//! nearest ancestor that fits or whose right side is large enough, and whose left side it must not enter again. It
//! checks the window's end only afterwards. In a window exactly as large as an aligned request it searches for the bare
//! size.
//!
//! **[`Exact`]** compares with `size` and visits, in address order, every hole that the maxima cannot exclude. It
//! always finds the lowest fit: O(log n) up to page alignment, O(n) at worst above.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `find_vmap_lowest_match`, `va_alloc`), from its behaviour.

use super::tree::{Hole, Tree, promising};
use va_base::PAGE_SIZE;

/// The parameters of a search, in bytes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Wanted {
    /// Returns the address of the request in `hole`, if it fits there, with `low` as the window's start and no end.
    #[inline(always)]
    fn first_in(&self, hole: &Hole, low: u64) -> Option<u64> {
        let at = hole.start.max(low).checked_add(self.align - 1)? & !(self.align - 1);
        (at.checked_add(self.size)? <= hole.end).then_some(at)
    }

    /// Returns true if the request fits in `hole`. Most holes on a path are too small, so that is tested first.
    #[inline(always)]
    fn fits_in(&self, hole: &Hole, low: u64) -> bool {
        hole.size() >= self.size && self.first_in(hole, low).is_some()
    }
}

/// A search for a hole.
pub trait Search: sealed::Sealed {
    /// Returns the hole to cut and the address in it.
    #[doc(hidden)]
    fn find(tree: &TreeRef<'_>, wanted: &Wanted) -> Option<(u32, u64)>;
}

mod sealed {
    /// Seals the trait: another search could return a range that is not free.
    pub trait Sealed {}
    impl Sealed for super::Linux {}
    impl Sealed for super::Exact {}
}

/// The tree in the form that a search uses.
#[doc(hidden)]
pub struct TreeRef<'a>(pub(super) &'a Tree);

impl core::fmt::Debug for TreeRef<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TreeRef").finish_non_exhaustive()
    }
}

/// Linux's search: it returns the addresses of Linux 6.12.
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

/// Returns the hole that Linux finds when it compares with `length` on its path.
#[inline]
fn linux_lowest(tree: &Tree, wanted: &Wanted, length: u64) -> Option<u32> {
    let mut low = wanted.low;
    let holes = tree.slab.view();
    let mut id = tree.root;
    let mut hole = holes.find(id)?;
    loop {
        // Strict: a hole that starts at the window's start has no usable hole to its left.
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
        // A dead end: back to an ancestor that fits, or whose right side was not searched yet.
        loop {
            id = hole.parent;
            hole = holes.find(id)?;
            if wanted.fits_in(hole, low) {
                return Some(id);
            }
            // One that starts at `low` was not entered on its left, so this is the way back from its right side. And
            // its start afterwards, so that no later step enters its left side, or what lies before it, again.
            if low < hole.start
                && let Some(right) = promising(holes, hole.right(), length)
            {
                low = hole.start;
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
