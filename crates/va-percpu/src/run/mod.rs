//! Our engine: exact runs, and the lowest fit.
//!
//! # Theory
//! For each page, and each alignment, the longest free run of it that begins aligned; over the pages a tree, in which a node says
//! the same of both its halves and of what lies across their boundary. So one look at the root tells whether a chunk holds
//! something, and one way down the tree where the lowest place for it is, however large the unit and however full of holes: a
//! hole that is large enough and badly aligned costs nothing. All eleven alignments are one vector of sixteen numbers, and two
//! vectors make a third in a few instructions.
//!
//! ```text
//!                        [ pages 0-3 ]                 fits[a] = max of the halves, and of
//!                       /             \                (what the left one ends with, cut to a multiple of a)
//!              [ pages 0-1 ]     [ pages 2-3 ]            + what the right one begins with
//!               /        \         /        \
//!           page 0     page 1   page 2     page 3      each knows its longest run and bounds the others (`page`)
//! ```
//!
//! # Invariants
//! - **PR3 tree-exact**  every node is what its halves make of it, and the head of the chunk is the root.
//!
//! # Cost
//! O(log pages) for each object that lies in a page, and one look at the words of the page if several of its runs hold it; a page is
//! read again, at most 512 runs, when what was taken may have been the best of the rest. 96 bytes a page.

mod fits;
mod page;
mod tree;

pub use fits::Fits;

use crate::bitmap::{self, PAGE_BITS};
use crate::engine::{Fit, HintEngine, View, Want, Wrong};
use tree::Tree;

/// The engine.
#[derive(Debug)]
pub enum RunIndex {}

impl View<'_, RunIndex> {
    #[inline]
    fn tree(&self) -> Tree<'_> {
        Tree::new(self.blocks, self.pages)
    }

    /// Takes or gives bits of the pages around `[at, end)`, which are changed in the map already, and tells how many pages were,
    /// or are, wholly free.
    #[inline]
    fn change(&mut self, at: u32, end: u32, take: bool) -> u32 {
        let leaves = tree::leaves(self.pages);
        let (first, last) = (at / PAGE_BITS, (end - 1) / PAGE_BITS);
        let mut whole = 0;
        for page in first..=last {
            let base = page * PAGE_BITS;
            let (from, to) = (at.max(base) - base, (end - base).min(PAGE_BITS));
            let rest = self.tree().rest(page);
            let is_whole = |fits: &Fits| u32::from(fits.left() == PAGE_BITS as i16);
            let now = if take {
                whole += is_whole(self.tree().page(page));
                page::take(self.map, base, rest, from, to)
            } else {
                page::give(self.map, base, rest, from, to)
            };
            if !take {
                whole += is_whole(&now.0);
            }
            tree::put(self.blocks, leaves, page, now);
        }
        tree::lift(self.blocks, leaves, first, last);
        *self.head = self.tree().root();
        whole
    }
}

impl HintEngine for RunIndex {
    type Block = Fits;
    type Head = Fits;
    const HEAD: Fits = Fits::NONE;
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
        *view.head = view.tree().root();
    }

    #[inline]
    fn longest(head: &Fits) -> u32 {
        head.fit(0) as u32
    }

    #[inline]
    fn fits(head: &Fits) -> Fits {
        *head
    }

    #[inline]
    fn take(view: &mut View<'_, Self>, want: Want, populated: bool) -> Fit {
        if (view.head.fit(want.align.trailing_zeros() as usize) as u32) < want.bits {
            return Fit::Nowhere;
        }
        let mut from = 0;
        loop {
            let Some(at) = view.tree().lowest(view.map, from, want) else { return Fit::Nowhere };
            let end = at + want.bits;
            if populated {
                let (page, last) = (at / PAGE_BITS, end.div_ceil(PAGE_BITS));
                let missing = bitmap::next_clear(view.populated, page, last);
                if missing < last {
                    // Whatever begins before it and is not there already goes across it too.
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
    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32 {
        bitmap::set(view.map, at, at + bits);
        view.change(at, at + bits, true)
    }

    #[inline]
    fn give(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32 {
        bitmap::clear(view.map, at, at + bits);
        view.change(at, at + bits, false)
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
        Wrong::unless(tree.root() == *view.head, "PR3", 0, tree.root().fit(0) as u32, view.head.fit(0) as u32)
    }
}
