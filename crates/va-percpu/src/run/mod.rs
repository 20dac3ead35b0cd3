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
//! The page that was changed last is hot: what became of it is known in the page, and brought up the tree only when another page
//! changes or somebody searches. A program that takes and gives in one page never climbs the tree.
//!
//! # Invariants
//! - **PR3 tree-exact**  every node is what its halves make of it, and the head of the chunk is the root, once settled.
//!
//! # Cost
//! O(log pages) for each object that lies in a page, and one look at the words of the page if several of its runs hold it; a page is
//! read again, at most 512 runs, when what was taken may have been the best of the rest. 96 bytes a page.

mod fits;
mod page;
mod tree;

pub use fits::Fits;

use crate::bitmap::{self, BIT_BYTES, PAGE_BITS};
use crate::engine::{Fit, Given, HintEngine, View, Want, Wrong};
use crate::geometry::UNIT_BYTES_MIN;
use tree::Tree;

/// The engine.
#[derive(Debug)]
pub enum RunIndex {}

impl View<'_, RunIndex> {
    #[inline]
    fn tree(&self) -> Tree<'_> {
        Tree::new(self.blocks, self.pages)
    }

    /// Makes a page the one whose news the tree has not heard.
    #[inline]
    fn heat(&mut self, page: u32) {
        if self.head.hot != page {
            RunIndex::settle(self);
            self.head.hot = page;
        }
    }

    /// Sets bits of pages, and tells how many of these were wholly free.
    #[inline]
    fn take_bits(&mut self, at: u32, end: u32) -> u32 {
        bitmap::set(self.map, at, end);
        let (leaves, first, last) = (tree::leaves(self.pages), at / PAGE_BITS, (end - 1) / PAGE_BITS);
        self.heat(last);
        let mut whole = 0;
        for page in first..=last {
            let base = page * PAGE_BITS;
            let (from, to) = (at.max(base) - base, (end - base).min(PAGE_BITS));
            whole += u32::from(self.tree().page(page).left() == PAGE_BITS as i16);
            let now = page::take(self.map, base, self.tree().rest(page), from, to);
            tree::put(self.blocks, leaves, page, now);
        }
        self.lift(first, last);
        whole
    }

    /// Clears bits of pages.
    #[inline]
    fn give_bits(&mut self, at: u32, end: u32) -> Given {
        bitmap::clear(self.map, at, end);
        let (leaves, first, last) = (tree::leaves(self.pages), at / PAGE_BITS, (end - 1) / PAGE_BITS);
        self.heat(last);
        let mut given = Given { pages: 0, from_page: first };
        for page in first..=last {
            let base = page * PAGE_BITS;
            let (from, to) = (at.max(base) - base, (end - base).min(PAGE_BITS));
            let now = page::give(self.map, base, self.tree().rest(page), from, to);
            given.pages += u32::from(now.0.left() == PAGE_BITS as i16);
            if page == first && now.0.left() as u32 >= to {
                // It may go on in the pages before: as far as an object can lie across the edge.
                given.from_page = first.saturating_sub(OBJECT_PAGES);
            }
            tree::put(self.blocks, leaves, page, now);
        }
        self.lift(first, last);
        given
    }

    /// Brings news of all pages but the last, which is hot, to the root.
    #[inline]
    fn lift(&mut self, first: u32, last: u32) {
        if first != last {
            tree::lift(self.blocks, tree::leaves(self.pages), first, last);
            self.head.fits = self.tree().root();
            self.head.hot = NO_PAGE;
        }
    }
}

/// Pages that an object can touch at most.
const OBJECT_PAGES: u32 = UNIT_BYTES_MIN / (PAGE_BITS * BIT_BYTES) + 1;
/// No page.
const NO_PAGE: u32 = u32::MAX;

/// What a chunk holds, as far as the tree has heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    fits: Fits,
    /// The page whose news the tree has not heard.
    hot: u32,
}

impl HintEngine for RunIndex {
    type Block = Fits;
    type Head = Head;
    const HEAD: Head = Head { fits: Fits::NONE, hot: NO_PAGE };
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
        *view.head = Head { fits: view.tree().root(), hot: NO_PAGE };
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
        Self::settle(view);
        if (view.head.fits.fit(want.align.trailing_zeros() as usize) as u32) < want.bits {
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
    fn take_in_page(view: &mut View<'_, Self>, page: u32, want: Want) -> Fit {
        let lane = want.align.trailing_zeros() as usize;
        if page >= view.pages || (view.tree().page(page).fit(lane) as u32) < want.bits {
            return Fit::Nowhere;
        }
        let base = page * PAGE_BITS;
        match page::lowest(view.map, base, view.tree().rest(page), want.bits, want.align) {
            None => Fit::Nowhere,
            Some(at) => Fit::At { at: base + at, pages: Self::take_at(view, base + at, want.bits) },
        }
    }

    #[inline]
    fn is_settled(head: &Head) -> bool {
        head.hot == NO_PAGE
    }

    #[inline]
    fn settle(view: &mut View<'_, Self>) {
        let page = view.head.hot;
        if page != NO_PAGE {
            tree::lift(view.blocks, tree::leaves(view.pages), page, page);
            *view.head = Head { fits: view.tree().root(), hot: NO_PAGE };
        }
    }

    #[inline]
    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32 {
        view.take_bits(at, at + bits)
    }

    #[inline]
    fn give(view: &mut View<'_, Self>, at: u32, bits: u32) -> Given {
        view.give_bits(at, at + bits)
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
