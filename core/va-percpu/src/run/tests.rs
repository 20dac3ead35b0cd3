//! Tests of the engine against a scan of every bit, with changes in between that are not in the tree.

use super::*;
use crate::bitmap::{Word, words_for};
use std::vec;
use std::vec::Vec;

/// A chunk, and its objects.
struct Chunk {
    map: Vec<Word>,
    populated: Vec<Word>,
    blocks: Vec<Fits>,
    head: Head,
    pages: u32,
}

impl Chunk {
    fn new(pages: u32) -> Self {
        let mut chunk = Self {
            map: vec![Word(0); words_for(pages * PAGE_BITS) as usize],
            populated: vec![Word(u64::MAX); words_for(pages) as usize],
            blocks: vec![Fits::NONE; RunIndex::blocks_for(pages) as usize],
            head: RunIndex::HEAD,
            pages,
        };
        RunIndex::reset(&mut chunk.view());
        chunk
    }

    fn view(&mut self) -> View<'_, RunIndex> {
        View {
            map: &mut self.map,
            populated: &self.populated,
            blocks: &mut self.blocks,
            head: &mut self.head,
            pages: self.pages,
        }
    }

    /// Returns the lowest fit from a page on, found run by run.
    fn lowest(&self, page: u32, want: Want) -> Option<u32> {
        let (mut at, end) = (page * PAGE_BITS, self.pages * PAGE_BITS);
        loop {
            at = bitmap::next_clear(&self.map, at, end).next_multiple_of(want.align);
            if at + want.bits > end {
                return None;
            }
            match bitmap::next_set(&self.map, at, at + want.bits) {
                found if found == at + want.bits => return Some(at),
                found => at = found,
            }
        }
    }
}

/// A linear congruential generator of numbers below `end`.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(end)) as u32
    }

    fn want(&mut self) -> Want {
        let most = [4, 60, 300, 2500, 8192][self.below(5) as usize];
        Want { bits: 1 + self.below(most), align: 1 << self.below(11) }
    }
}

/// Takes and frees at random: more takes until the chunk is full, then more frees, and so on.
fn walk(pages: u32, seed: u64, steps: u32) {
    let (mut chunk, mut numbers) = (Chunk::new(pages), Numbers(seed));
    let (mut live, mut fill, mut waited) = (Vec::new(), true, 0);
    for step in 0..steps {
        if numbers.below(8) < if fill { 6 } else { 2 } || live.is_empty() {
            let want = numbers.want();
            let expected = chunk.lowest(0, want);
            let from = expected.map_or(0, |at| at / PAGE_BITS);
            waited += u32::from(!RunIndex::is_settled(&chunk.head));
            let near = numbers.below(2) == 0;
            let mut view = chunk.view();
            let fit = match near {
                true => RunIndex::take_near(&mut view, from, want),
                false => RunIndex::take(&mut view, want, numbers.below(4) == 0),
            };
            match (fit, expected) {
                (Fit::At { at, .. }, Some(wanted)) => {
                    assert_eq!(at, wanted, "step {step}: {want:?}");
                    live.push((at, want.bits));
                }
                // A search of near pages only may find nothing.
                (Fit::Nowhere, None) => fill = false,
                (Fit::Nowhere, Some(_)) if near => {}
                other => panic!("step {step}: {want:?}: {other:?}"),
            }
        } else {
            let (at, bits) = live.swap_remove(numbers.below(live.len() as u32) as usize);
            RunIndex::free(&mut chunk.view(), at, bits);
            fill |= live.len() < 4;
        }
        if numbers.below(100) == 0 {
            RunIndex::settle(&mut chunk.view());
            assert_eq!(RunIndex::validate(&chunk.view()), Ok(()), "step {step}");
        }
    }
    assert!(waited > steps / 10, "the tree had heard all but {waited} times");
}

#[test]
fn pr3_what_is_found_is_the_lowest_though_nodes_have_not_heard() {
    for (pages, seed) in [(5, 1), (8, 2), (64, 3), (64, 4), (70, 5), (200, 6)] {
        walk(pages, seed, 6000);
    }
}

#[test]
fn pr3_a_window_brings_its_news_up_as_pages_one_by_one_do() {
    let mut numbers = Numbers(9);
    for pages in [8u32, 64, 129, 300] {
        let (mut chunk, leaves) = (Chunk::new(pages), tree::leaves(pages));
        for round in 0..200 {
            let window = numbers.below(pages.div_ceil(WINDOW));
            let mut news = 0;
            for _ in 0..=numbers.below(20) {
                let page = window * WINDOW + numbers.below(WINDOW.min(pages - window * WINDOW));
                let (base, run) = (page * PAGE_BITS, numbers.below(PAGE_BITS - 1) + 1);
                bitmap::clear(&mut chunk.map, base, base + PAGE_BITS);
                bitmap::set(&mut chunk.map, base + run - 1, base + run);
                tree::put(&mut chunk.blocks, leaves, page, page::read(&chunk.map, base));
                news |= 1 << (page % WINDOW);
            }
            tree::lift_window(&mut chunk.blocks, leaves, window, news);
            assert_eq!(Tree::new(&chunk.blocks, pages).first_wrong(), None, "{pages} pages, round {round}");
        }
    }
}

#[test]
fn pr3_from_any_page_on_the_lowest_is_found_across_pages_that_are_free() {
    let mut numbers = Numbers(5);
    for pages in [8u32, 13, 64] {
        let (mut chunk, leaves) = (Chunk::new(pages), tree::leaves(pages));
        for round in 0..100 {
            bitmap::set(&mut chunk.map, 0, pages * PAGE_BITS);
            for _ in 0..3 {
                let start = numbers.below(pages * PAGE_BITS);
                let end = (start + numbers.below(6 * PAGE_BITS) + 1).min(pages * PAGE_BITS);
                bitmap::clear(&mut chunk.map, start, end);
            }
            for page in 0..pages {
                tree::put(&mut chunk.blocks, leaves, page, page::read(&chunk.map, page * PAGE_BITS));
            }
            tree::lift_window(&mut chunk.blocks, leaves, 0, u64::MAX >> (64 - pages));
            for from in 0..pages {
                let want = numbers.want();
                let found = Tree::new(&chunk.blocks, pages).lowest(&chunk.map, from, want);
                assert_eq!(found, chunk.lowest(from, want), "round {round}, page {from}: {want:?}");
            }
        }
    }
}

#[test]
fn pr3_the_first_page_below_a_wrong_node_is_named() {
    let mut chunk = Chunk::new(8);
    // The root is node 1, pages 2 and 3 have node 5, and 6 and 7 have node 7.
    for (node, page) in [(7, 6), (5, 2), (2, 2), (4, 0)] {
        chunk.blocks[node] = Fits::NONE;
        let wrong = RunIndex::validate(&chunk.view()).unwrap_err();
        assert_eq!((wrong.rule, wrong.at), ("PR3", page * PAGE_BITS), "node {node}");
    }
}

#[test]
fn changes_of_a_window_wait_until_they_are_needed() {
    let mut chunk = Chunk::new(130);
    let mut take = |page: u32, bits| {
        RunIndex::take_at(&mut chunk.view(), page * PAGE_BITS, bits);
        (chunk.head.news, chunk.head.window)
    };
    assert_eq!(take(3, 4), (1 << 3, 0));
    assert_eq!(take(5, 2 * PAGE_BITS), (1 << 3 | 3 << 5, 0));
    assert_eq!(take(70, 4), (1 << 6, 1));
    // Over the edge of a window: at once.
    assert_eq!(take(127, 2 * PAGE_BITS).0, 0);
    assert_eq!(RunIndex::validate(&chunk.view()), Ok(()));
}

#[test]
fn a_search_nearby_reads_four_pages() {
    let mut chunk = Chunk::new(8);
    RunIndex::take_at(&mut chunk.view(), 0, 3 * PAGE_BITS - 6);
    RunIndex::take_at(&mut chunk.view(), 3 * PAGE_BITS + 4, 3 * PAGE_BITS - 4);
    let mut near = |page, bits| match RunIndex::take_near(&mut chunk.view(), page, Want { bits, align: 1 }) {
        Fit::At { at, .. } => {
            RunIndex::free(&mut chunk.view(), at, bits);
            Some(at)
        }
        Fit::Nowhere | Fit::Missed => None,
    };
    // Six bits and four over the edge of pages 2 and 3; page 6 is free.
    let edge = 3 * PAGE_BITS;
    assert_eq!([near(0, 6), near(0, 10), near(0, 11)], [Some(edge - 6), Some(edge - 6), None]);
    assert_eq!([near(2, 11), near(3, 11), near(3, 4)], [None, Some(6 * PAGE_BITS), Some(edge)]);
}

#[test]
fn a_free_that_joins_the_pages_before_says_so() {
    let mut chunk = Chunk::new(8);
    RunIndex::take_at(&mut chunk.view(), 0, 8 * PAGE_BITS);
    let mut free = |at, bits| RunIndex::free(&mut chunk.view(), at, bits).from_page;
    // Inside page 5, up to its beginning, and then over pages 6 and 7, which begins in page 6.
    assert_eq!(free(5 * PAGE_BITS + 8, 8), 5);
    assert_eq!(free(5 * PAGE_BITS, 8), 5 - OBJECT_PAGES.min(5));
    assert_eq!(free(6 * PAGE_BITS + 8, 2 * PAGE_BITS - 8), 6);
}
