//! Our engine: exact runs, and the lowest fit.
//!
//! # Theory
//! For each page and each alignment, the engine has the longest free run of the page that begins aligned. Over the
//! pages it has a tree, in which a node has the same for both its halves and for the runs across their boundary. So the
//! root shows whether a request fits in a chunk, and one descent of the tree finds the lowest address for it. This
//! holds for any size of unit and any number of holes: a hole that is large enough and badly aligned costs nothing. All
//! alignments (eleven, where a page has 4 KiB) are one vector of sixteen numbers, and two vectors are joined into a
//! third in a few instructions.
//!
//! ```text
//!                        [ pages 0-3 ]                 fits[a] = max of the halves, and of
//!                       /             \                (the left one's right edge, cut to a multiple of a)
//!              [ pages 0-1 ]     [ pages 2-3 ]            + the right one's left edge
//!               /        \         /        \
//!           page 0     page 1   page 2     page 3      each has its longest run and a bound of the others (`page`)
//! ```
//!
//! A change of a page is recorded in the page at once. It is propagated up the tree only when a search needs it: for up
//! to 64 pages together, so that each node is computed once. A take alone leaves nodes that overstate, which does no
//! harm. A search goes where the request fits by the nodes. If it does not fit there, the search propagates all changes
//! and starts again. Nothing fits below the address that it finds, since it would not fit even with the overstated
//! nodes.
//!
//! # Invariants
//! - **PR3 tree-exact**  every node is the join of its halves, and the head of the chunk is the root, once settled.
//!
//! # Cost
//! O(log pages) for each object within a page, and one pass over the words of the page if several of its runs hold it.
//! A page is read again, at most 512 runs, when the bits taken may have been the best of the rest. 96 bytes a page.

mod page;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod tree;

pub use crate::fits::Fits;

use crate::bitmap::{self, BIT_BYTES, PAGE_BITS};
use crate::engine::{Fit, FreedBits, HintEngine, View, Want, Wrong};
use crate::geometry::UNIT_BYTES_MIN;
use tree::{Tree, WINDOW};

/// The engine.
#[derive(Debug)]
pub enum RunIndex {}

impl View<'_, RunIndex> {
    #[inline]
    fn tree(&self) -> Tree<'_> {
        Tree::new(self.blocks, self.pages)
    }

    /// Sets bits of pages, and returns how many of these were wholly free.
    #[inline]
    fn take_bits(&mut self, at: u32, end: u32) -> u32 {
        bitmap::set(self.map, at, end);
        let (leaves, first, last) = (tree::leaves(self.pages), at / PAGE_BITS, (end - 1) / PAGE_BITS);
        let mut whole = 0;
        for page in first..=last {
            let base = page * PAGE_BITS;
            let (from, to) = (at.max(base) - base, (end - base).min(PAGE_BITS));
            whole += u32::from(self.tree().page(page).left() == PAGE_BITS as i16);
            let now = page::take(self.map, base, self.tree().rest(page), from, to);
            tree::put(self.blocks, leaves, page, now);
        }
        self.note(first, last, false);
        whole
    }

    /// Clears bits of pages.
    #[inline]
    fn clear_bits(&mut self, at: u32, end: u32) -> FreedBits {
        bitmap::clear(self.map, at, end);
        let (leaves, first, last) = (tree::leaves(self.pages), at / PAGE_BITS, (end - 1) / PAGE_BITS);
        let mut freed = FreedBits { pages: 0, from_page: first };
        for page in first..=last {
            let base = page * PAGE_BITS;
            let (from, to) = (at.max(base) - base, (end - base).min(PAGE_BITS));
            let now = page::freed(self.map, base, self.tree().rest(page), from, to);
            freed.pages += u32::from(now.0.left() == PAGE_BITS as i16);
            if page == first && now.0.left() as u32 >= to {
                // The run may begin in the pages before: as far as an object can extend across the edge.
                freed.from_page = first.saturating_sub(OBJECT_PAGES);
            }
            tree::put(self.blocks, leaves, page, now);
        }
        self.note(first, last, true);
        freed
    }

    /// Records pages whose changes are not in the tree; changes that may wait are those of one window.
    #[inline]
    fn note(&mut self, first: u32, last: u32, freed: bool) {
        let window = first / WINDOW;
        if self.head.news != 0 && self.head.window != window {
            RunIndex::settle(self);
        }
        if last / WINDOW != window {
            RunIndex::settle(self);
            tree::lift(self.blocks, tree::leaves(self.pages), first, last);
            self.head.fits = self.tree().root();
            return;
        }
        let pages = u64::MAX >> (WINDOW - 1 - (last - first)) << (first % WINDOW);
        (self.head.window, self.head.news) = (window, self.head.news | pages);
        self.head.freed |= freed;
    }
}

/// Pages that an object can touch at most.
const OBJECT_PAGES: u32 = UNIT_BYTES_MIN / (PAGE_BITS * BIT_BYTES) + 1;

/// The head of a chunk: what fits in it, by the root of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    fits: Fits,
    /// The pages of a window whose changes are not in the tree.
    news: u64,
    window: u32,
    /// Some of these changes are frees: more may fit than by the tree.
    freed: bool,
}

impl Head {
    /// The head of a chunk without such changes.
    const fn settled(fits: Fits) -> Self {
        Self { fits, news: 0, window: 0, freed: false }
    }
}

impl HintEngine for RunIndex {
    type Block = Fits;
    type Head = Head;
    const HEAD: Head = Head::settled(Fits::NONE);
    const BY_FITS: bool = true;

    fn blocks_for(pages: u32) -> u32 {
        2 * tree::leaves(pages) + pages
    }

    fn reset(view: &mut View<'_, Self>) {
        view.blocks.fill(Fits::NONE);
        let leaves = tree::leaves(view.pages);
        for page in 0..view.pages {
            tree::put(view.blocks, leaves, page, page::whole());
        }
        tree::lift(view.blocks, leaves, 0, view.pages - 1);
        *view.head = Head::settled(view.tree().root());
    }

    #[inline]
    fn longest(head: &Head) -> u32 {
        head.fits.fit(0) as u32
    }

    #[inline]
    fn fits(head: &Head) -> Fits {
        head.fits
    }

    #[inline]
    fn take(view: &mut View<'_, Self>, want: Want, populated: bool) -> Fit {
        if populated || view.head.freed {
            Self::settle(view);
        }
        let mut from = 0;
        loop {
            if (view.head.fits.fit(want.align.trailing_zeros() as usize) as u32) < want.bits {
                return Fit::Nowhere;
            }
            let at = view.tree().lowest(view.map, from, want);
            if !Self::is_settled(view.head) {
                // The bits may have been taken since.
                let is_free = |at: u32| {
                    let end = at + want.bits;
                    end <= view.bits() && bitmap::next_set(view.map, at, end) == end
                };
                if !at.is_some_and(is_free) {
                    Self::settle(view);
                    continue;
                }
            }
            let Some(at) = at else { return Fit::Nowhere };
            let end = at + want.bits;
            if populated {
                let (page, last) = (at / PAGE_BITS, end.div_ceil(PAGE_BITS));
                let missing = bitmap::next_clear(view.populated, page, last);
                if missing < last {
                    // Any fit that begins before the missing page and is not populated extends across it too.
                    from = bitmap::next_set(view.populated, missing + 1, view.pages);
                    if from >= view.pages {
                        return Fit::Nowhere;
                    }
                    continue;
                }
            }
            return Fit::At { at, pages: Self::take_at(view, at, want.bits) };
        }
    }

    #[inline]
    fn take_near(view: &mut View<'_, Self>, page: u32, want: Want) -> Fit {
        match view.tree().lowest_near(view.map, page, view.pages, want) {
            None => Fit::Nowhere,
            Some(at) => Fit::At { at, pages: Self::take_at(view, at, want.bits) },
        }
    }

    #[inline]
    fn is_settled(head: &Head) -> bool {
        head.news == 0
    }

    #[inline]
    fn settle(view: &mut View<'_, Self>) {
        let Head { news, window, .. } = *view.head;
        if news != 0 {
            tree::lift_window(view.blocks, tree::leaves(view.pages), window, news);
            *view.head = Head::settled(view.tree().root());
        }
    }

    #[inline]
    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32 {
        view.take_bits(at, at + bits)
    }

    #[inline]
    fn free(view: &mut View<'_, Self>, at: u32, bits: u32) -> FreedBits {
        view.clear_bits(at, at + bits)
    }

    #[inline]
    fn is_free(view: &View<'_, Self>, page: u32) -> bool {
        view.tree().page(page).left() == PAGE_BITS as i16
    }

    fn validate(view: &View<'_, Self>) -> Result<(), Wrong> {
        let leaves = tree::leaves(view.pages);
        for page in 0..view.pages {
            let (base, rest) = (page * PAGE_BITS, &view.blocks[(2 * leaves + page) as usize]);
            let fits = &view.blocks[(leaves + page) as usize];
            page::check(view.map, base, fits, page::Rest::load(rest)).map_err(|(rule, want, got)| Wrong {
                rule,
                at: base,
                want: want as u64,
                got: got as u64,
            })?;
        }
        let tree = view.tree();
        let wrong = tree.first_wrong();
        Wrong::unless(wrong.is_none(), "PR3", wrong.unwrap_or(0), 0, 1)?;
        Wrong::unless(
            tree.root() == view.head.fits && Self::is_settled(view.head),
            "PR3",
            0,
            tree.root().fit(0) as u32,
            view.head.fits.fit(0) as u32,
        )
    }
}
