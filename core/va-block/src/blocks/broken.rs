//! Each invariant, broken on purpose: `validate` names it, and no other was broken.

use super::Balance;
use super::Blocks;
use crate::block::{Block, FlushState, Hull, List, Place};
use crate::config::{Config, Linux64, OneMap63, Standard};
use va_base::sync::atomic::Ordering;
use va_base::{Context, VaRange};
use va_sim::machine::SimMachine;
use va_space::{Release, VmapSpace};

type Held<'m, C> = Blocks<&'m SimMachine, C>;

/// Creates, on two CPUs, a block with mappings of 3 and of 40 pages, the second of which was freed. What `change` then
/// does to it must break `rule`. Returns the report, with the page of the block in place of the address.
fn broken<C: Config>(rule: &str, change: impl FnOnce(&Held<'_, C>, &'static Block)) -> (u64, u64, u64) {
    let machine = SimMachine::new(2);
    let window = VaRange::from_pages(0x10_0000, 0x20_0000).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let blocks = Held::<C>::new(space, &machine).unwrap();
    let _lives = blocks.alloc(0, 3).unwrap();
    let dead = blocks.alloc(0, 40).unwrap();
    blocks.free(1, dead, 40).unwrap();
    assert_eq!(blocks.validate(), Ok(()), "before");
    let (block, _) = blocks.block_at(dead).unwrap();
    change(&blocks, block);
    let found = blocks.validate().unwrap_err();
    assert_eq!(found.rule, rule, "{found}");
    let page = found.at.page_floor().wrapping_sub(blocks.va(block, 0).page_floor());
    (page, found.expected, found.actual)
}

#[test]
fn vb1_a_page_in_no_piece_or_in_two_is_found() {
    // Page 60 of the open run is free as well.
    broken::<Standard>("VB1", |_, block| block.strips()[1].set_free(1 << 28));
    // The mapping of 3 pages has no marks, so its pages belong to nothing.
    broken::<Standard>("VB1", |_, block| block.strips()[0].unmark(1, 1 << 2));
    // A page of a mapping is free.
    broken::<Standard>("VB1", |_, block| block.strips()[0].set_free(1 << 1));
}

#[test]
fn vb2_a_head_without_its_tail_and_a_tail_without_a_head_are_found() {
    broken::<Standard>("VB2", |_, block| block.strips()[1].unmark(0, 1 << 10));
    broken::<Standard>("VB2", |_, block| block.strips()[5].mark(0, 1));
    // Two heads, one tail.
    let report = broken::<Standard>("VB2", |_, block| block.strips()[0].mark(1 << 1, 0));
    assert_eq!(report, (1, 2, 1), "at page 1, which page 2 ends");
    // Without its tail, a mapping extends into the next.
    broken::<Linux64>("VB2", |_, block| block.strips()[0].unmark(0, 1 << 2));
    // Three of the last three pages use up four: one beyond the block.
    let report = broken::<Linux64>("VB2", |blocks, block| {
        while block.free_pages() > 4 {
            blocks.alloc(0, 1 << block.free_pages().ilog2().min(6)).unwrap();
        }
        (0..4).for_each(|_| _ = blocks.alloc(0, 1).unwrap());
        block.strips()[31].unmark(3 << 30, 3 << 29);
    });
    assert_eq!(report, (1021, 1024, 1025));
}

#[test]
fn vb3_what_a_flush_covers_was_freed_and_has_a_head() {
    broken::<Standard>("VB3", |_, block| block.strips()[0].set_flushed(1));
    assert_eq!(broken::<Standard>("VB3", |_, block| block.strips()[1].set_flushed(1 << 2)).0, 34);
    broken::<Standard>("VB3", |_, block| {
        let strip = &block.strips()[0];
        assert!(strip.mark_freed(strip.gone(), 1), "no mapping starts there");
    });
    // Noted for a flush of no collection is valid; a list entry for a block without a flush is not.
    broken::<Standard>("VB3", |blocks, block| {
        let mut hull = Hull::EMPTY;
        block.note_flushed(&mut hull);
        assert_eq!(hull, Hull { low: 3, high: 43 });
        assert_eq!(blocks.validate(), Ok(()));
        block.set_flush_state(FlushState::Begun);
        blocks.collection.lock().pretend_in_flight(&blocks.lookup, block);
        assert_eq!(blocks.validate(), Ok(()));
        block.set_flush_state(FlushState::None);
    });
    // It is marked as listed, and is in no list.
    broken::<Standard>("VB3", |_, block| block.set_list(List::Pending));
}

#[test]
fn vb4_the_count_of_dead_pages_is_that_of_the_mappings() {
    broken::<Linux64>("VB4", |_, block| assert_eq!(block.count_dead(1), 65, "40 are rounded up to 64"));
    // Where dead pages are not counted, the count means nothing.
    broken::<Standard>("VB7", |_, block| {
        block.count_dead(1);
        block.set_place(Place::Full);
    });
}

#[test]
fn vb5_a_bucket_counts_its_blocks() {
    broken::<Standard>("VB5", |blocks, block| *blocks.lock_present(block.index()) += 1);
    // The wrong bucket counts it, although the sum is right.
    broken::<Standard>("VB5", |blocks, block| {
        *blocks.lock_present(block.index()) -= 1;
        *blocks.lock_present(block.index() + 1) += 1;
    });
    // One map has one bucket.
    broken::<OneMap63>("VB5", |blocks, block| *blocks.lock_present(block.index() + 1) -= 1);
}

#[test]
fn vb6_a_block_is_an_area_of_the_space() {
    broken::<Standard>("VB6", |blocks, block| {
        let at = blocks.va(block, 0);
        // No caller's mistake breaks it: the block holds its area.
        assert!(blocks.space().free_at(at).is_err() && blocks.space().detach(at).is_err());
        assert!(blocks.space().resize_at(at, va_base::Pages::new(1)).is_err());
        assert_eq!(blocks.validate(), Ok(()));
        blocks.space().free_as(Release::Held(at, block.key()), Context::Sleeping).unwrap();
    });
}

#[test]
fn vb7_a_block_is_listed_exactly_if_it_is_open() {
    // Full, and in the list; and it has free pages.
    broken::<Standard>("VB7", |_, block| block.set_place(Place::Full));
    // In a lane, and in the list.
    broken::<Standard>("VB7", |_, block| block.set_place(Place::Laned));
    // Open, and in no list.
    broken::<Standard>("VB7", |blocks, block| {
        let (mut queue, place) = blocks.lock_home(block);
        assert_eq!(place, Place::Open);
        queue.unlink(&blocks.lookup, block, Place::Open);
    });
    // In the list of another CPU.
    broken::<Standard>("VB7", |blocks, block| {
        let (mut queue, _) = blocks.lock_home(block);
        queue.unlink(&blocks.lookup, block, Place::Full);
        drop(queue);
        let mut other = blocks.lock_queue(1);
        other.push::<Standard>(&blocks.lookup, block);
    });
}

#[test]
fn vb9_a_cpu_shows_what_its_queue_may_meet() {
    // It has a current block, so it shows the largest request.
    let report = broken::<Standard>("VB9", |blocks, _| blocks.cpus.show(0, 63));
    assert_eq!((report.1, report.2), (64, 63));
    // Without one the class counts: here 40 pages beside 23 that live.
    let report = broken::<Standard>("VB9", |blocks, block| {
        while block.carve(1, 1).is_some() {}
        for page in 0..40 {
            blocks.free(0, blocks.va(block, 100 + page), 1).unwrap();
        }
        blocks.unmap_aliases();
        let mut queue = blocks.lock_queue(0);
        queue.current = None;
        queue.sort::<Standard>(&blocks.lookup, block, blocks.pages);
        drop(queue);
        assert_eq!((blocks.cpus.shown(0), blocks.validate()), (40, Ok(())));
        blocks.cpus.show(0, 41);
    });
    assert_eq!((report.1, report.2), (40, 41));
    // One without a block shows none.
    broken::<Standard>("VB9", |blocks, _| blocks.cpus.show(1, 1));
}

#[test]
fn vb8_a_block_that_is_not_touched_holds_a_live_page_and_the_counts_are_right() {
    // No mapping is live in it, and it is not touched.
    broken::<Standard>("VB8", |blocks, block| {
        let live = blocks.va(block, 0);
        blocks.free(0, live, 3).unwrap();
        assert_eq!(blocks.validate(), Ok(()));
        block.set_touched(false);
    });
    broken::<Standard>("VB8", |_, block| block.set_touched(false));
    broken::<Standard>("VB8", |blocks, _| {
        blocks.balance.0.fetch_add(Balance::PRESENT, Ordering::Relaxed);
    });
    // A lane that ended is counted still.
    let report = broken::<Standard>("VB8", |blocks, _| {
        drop(blocks.lane(1).unwrap());
        blocks.lanes.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!((report.1, report.2), (0, 1));
}

#[test]
fn vb8_a_block_begins_below_twice_those_that_live_and_two_for_each_cpu_and_lane() {
    let balance = |present, touched| Balance(present * Balance::PRESENT + touched * Balance::TOUCHED);
    assert!(balance(7, 7).has_room(4) && !balance(8, 8).has_room(4));
    assert!(balance(9, 8).has_room(4) && !balance(10, 9).has_room(4));
    assert!(balance(1 << 20, 0).has_room(1), "all live");
}
