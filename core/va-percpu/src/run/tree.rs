//! The tree over the pages of a chunk: what fits in each half, and across their boundary.
//!
//! A binary tree in one row of records: the root at 1, the pages at its end, as many as the next power of two. Leaves
//! after the last page hold nothing. After the leaves there is a second record for each page.

use super::page::{self, Rest};
use crate::bitmap::{MULTIPLES, PAGE_BITS, WORD_BITS, Word};
use crate::engine::Want;
use crate::fits::{CAP, Fits};

/// Pages of a window, whose changes are the bits of one word.
pub(super) const WINDOW: u32 = WORD_BITS;
/// Pages that are read one by one before the tree is searched.
const NEAR: u32 = 4;

/// Leaves of a chunk of so many pages.
pub(super) const fn leaves(pages: u32) -> u32 {
    pages.next_power_of_two()
}

/// The records of one chunk, for reading.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    pub(super) nodes: &'a [Fits],
    pub(super) leaves: u32,
}

/// Returns the bits of a node so many levels above the pages, at most `CAP`.
#[inline]
fn bits_of(level: u32) -> i16 {
    (PAGE_BITS << level.min(8)).min(CAP as u32) as i16
}

impl<'a> Tree<'a> {
    /// Creates a tree over a chunk of so many pages.
    #[inline]
    pub(super) fn new(nodes: &'a [Fits], pages: u32) -> Self {
        Self { nodes, leaves: leaves(pages) }
    }

    /// Returns what fits in the whole chunk.
    #[inline]
    pub(super) fn root(&self) -> Fits {
        self.nodes[1]
    }

    #[inline]
    pub(super) fn page(&self, page: u32) -> &Fits {
        &self.nodes[(self.leaves + page) as usize]
    }

    #[inline]
    pub(super) fn rest(&self, page: u32) -> Rest {
        Rest::load(&self.nodes[(2 * self.leaves + page) as usize])
    }

    /// Joins the children of a node.
    #[inline]
    fn joined(&self, node: u32, level: u32) -> Fits {
        let bits = bits_of(level - 1);
        Fits::join(&self.nodes[2 * node as usize], &self.nodes[2 * node as usize + 1], bits, bits)
    }

    /// Does the search of [`lowest`](Self::lowest) in the few pages from `page` on, read one by one: their records are
    /// up to date. `None` if it fits in none of them, or extends over more.
    #[inline]
    pub(super) fn lowest_near(&self, map: &[Word], page: u32, pages: u32, want: Want) -> Option<u32> {
        let (bits, lane) = (want.bits as i16, want.align.trailing_zeros() as usize);
        let mask = !(want.align as i16 - 1);
        let mut before = 0i16;
        for page in page..pages.min(page.saturating_add(NEAR)) {
            let (fits, base) = (self.page(page), page * PAGE_BITS);
            let aligned = before & mask;
            if aligned > 0 && aligned.saturating_add(fits.left()) >= bits {
                return Some(base - aligned as u32);
            }
            if fits.fit(lane) >= bits {
                return page::lowest(map, base, self.rest(page), want.bits, want.align).map(|at| base + at);
            }
            before = if fits.left() == PAGE_BITS as i16 { before + PAGE_BITS as i16 } else { fits.right() };
        }
        None
    }

    /// Returns the lowest bit at or after page `from` where `want` fits. Where takes are not in the tree, it may be a
    /// bit that is not free, or `None`; nothing below that bit fits.
    pub(super) fn lowest(&self, map: &[Word], from: u32, want: Want) -> Option<u32> {
        let (bits, lane) = (want.bits as i16, want.align.trailing_zeros() as usize);
        let mask = !(want.align as i16 - 1);
        // The free bits right before the node, from `from` on; and the node's level above the pages.
        let (mut before, mut level) = (0i16, 0);
        let mut node = self.leaves + from;
        if from == 0 {
            (node, level) = (1, self.leaves.trailing_zeros());
        }
        loop {
            // The largest node that begins here.
            while node.is_multiple_of(2) && node > 1 {
                (node, level) = (node / 2, level + 1);
            }
            let fits = &self.nodes[node as usize];
            let at_boundary = (before & mask).saturating_add(fits.left()) >= bits && before > 0;
            if at_boundary || fits.fit(lane) >= bits {
                return self.descend(map, node, level, before, want);
            }
            before = if fits.left() >= bits_of(level) {
                before.saturating_add(fits.left()).min(CAP)
            } else {
                fits.right()
            };
            node += 1;
            if node.is_power_of_two() {
                return None;
            }
        }
    }

    /// Returns the lowest fit in a node, or across its left edge, before which `before` bits are free. There is one.
    fn descend(&self, map: &[Word], mut node: u32, mut level: u32, before: i16, want: Want) -> Option<u32> {
        let (bits, lane) = (want.bits as i16, want.align.trailing_zeros() as usize);
        let mask = !(want.align as i16 - 1);
        let start_of = |node: u32, level: u32| ((node << level) - self.leaves) * PAGE_BITS;
        let across = |boundary: u32, before: i16| boundary - (before & mask) as u32;
        if (before & mask).saturating_add(self.nodes[node as usize].left()) >= bits && before & mask > 0 {
            return Some(across(start_of(node, level), before));
        }
        while level > 0 {
            (node, level) = (2 * node, level - 1);
            if self.nodes[node as usize].fit(lane) >= bits {
                continue;
            }
            let before = self.nodes[node as usize].right();
            node += 1;
            let begins = self.nodes[node as usize].left();
            if (before & mask) > 0 && (before & mask).saturating_add(begins) >= bits {
                return Some(across(start_of(node, level), before));
            }
        }
        let page = node - self.leaves;
        if self.nodes[node as usize].fit(lane) < bits {
            // The nodes above do not include a take.
            return None;
        }
        let base = page * PAGE_BITS;
        page::lowest(map, base, self.rest(page), want.bits, want.align).map(|at| base + at)
    }

    /// Returns the first node that does not follow from its children.
    pub(super) fn first_wrong(&self) -> Option<u32> {
        let mut level = 0;
        let mut first = self.leaves;
        while first > 1 {
            (first, level) = (first / 2, level + 1);
            if let Some(node) =
                (first..2 * first).find(|&node| self.nodes[node as usize] != self.joined(node, level))
            {
                return Some(((node << level) - self.leaves) * PAGE_BITS);
            }
        }
        None
    }
}

/// Stores the record of a page.
#[inline]
pub(super) fn put(nodes: &mut [Fits], leaves: u32, page: u32, (fits, rest): (Fits, Rest)) {
    nodes[(leaves + page) as usize] = fits;
    nodes[(2 * leaves + page) as usize] = rest.store();
}

/// Propagates changes of pages from `first` to `last` to the root.
#[inline]
pub(super) fn lift(nodes: &mut [Fits], leaves: u32, first: u32, last: u32) {
    let (mut first, mut last) = (leaves + first, leaves + last);
    let mut level = 0;
    while first > 1 {
        (first, last, level) = (first / 2, last / 2, level + 1);
        let mut news = false;
        for node in first..=last {
            let joined = Tree { nodes, leaves }.joined(node, level);
            news |= nodes[node as usize] != joined;
            nodes[node as usize] = joined;
        }
        if !news {
            return;
        }
    }
}

/// Propagates changes of a window to the root, with a bit for each of its [`WINDOW`] pages. Every node is computed
/// once, however many pages below it changed.
pub(super) fn lift_window(nodes: &mut [Fits], leaves: u32, window: u32, news: u64) {
    let (first, mut news, mut level) = (leaves + window * WINDOW, news, 0);
    while !news.is_power_of_two() {
        level += 1;
        let mut halves = (news | news >> (1 << (level - 1))) & MULTIPLES[level as usize];
        news = 0;
        while halves != 0 {
            let at = halves.trailing_zeros();
            halves &= halves - 1;
            let node = (first + at) >> level;
            let joined = Tree { nodes, leaves }.joined(node, level);
            if nodes[node as usize] != joined {
                nodes[node as usize] = joined;
                news |= 1 << at;
            }
        }
        if news == 0 {
            return;
        }
    }
    lift_one(nodes, (first + news.trailing_zeros()) >> level, level);
}

/// Propagates a change of one node to the root. The value stays in registers: a load of a stored one would stall at
/// each level.
#[inline]
fn lift_one(nodes: &mut [Fits], mut node: u32, mut level: u32) {
    let mut fits = nodes[node as usize];
    while node > 1 {
        let (other, bits) = (nodes[(node ^ 1) as usize], bits_of(level));
        fits = match node.is_multiple_of(2) {
            true => Fits::join(&fits, &other, bits, bits),
            false => Fits::join(&other, &fits, bits, bits),
        };
        (node, level) = (node / 2, level + 1);
        let old = &mut nodes[node as usize];
        if *old == fits {
            return;
        }
        *old = fits;
    }
}
