//! A store with wrong records: each check is shown to fail.

use super::*;
use crate::chunk::NO_SLOT;
use crate::config::Scan;
use crate::engine::Want;
use crate::error::FreeError;
use crate::fits::Fits;
use crate::geometry::Sizes;
use crate::offset::Offset;
use va_base::LimitedHeap;

fn sizes() -> Sizes {
    Sizes { unit: 32 << 10, fixed: 100, reserved: 100, dynamic: 20 << 10, atom: 4096, alloc: 4096, units: 1 }
}

/// Creates a chunk.
fn add<C: Config>(store: &mut Store<C>, base: u64) -> u32 {
    let mut rows = store.take_rows();
    rows.wipe(&store.geometry);
    let row = store.put_rows(rows);
    store.add(row, Va::new(base));
    row
}

/// Creates a store of the first chunk and one more, with an object in each.
fn store() -> Store<Scan> {
    let heap = LimitedHeap::new();
    let mut store = Store::<Scan>::new(Geometry::new(sizes(), Va::new(1 << 30)).unwrap(), true);
    store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
    store.begin();
    let taken = store.take(Want { bits: 4, align: 4 }, true).unwrap();
    assert_eq!(taken, Taken { row: FIRST, at: 52, missing: false, broke: false });
    if !store.need().is_none() {
        store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
    }
    let row = add(&mut store, 1 << 31);
    store.relocate_new(row);
    store.note_populated(row, 0..3);
    let taken = store.take(Want { bits: 8192 - 10, align: 1 }, false).unwrap();
    assert_eq!(taken, Taken { row, at: 0, missing: true, broke: true });
    store.free_at(row, 0);
    let taken = store.take(Want { bits: 5200, align: 1 }, false).unwrap();
    assert_eq!(taken, Taken { row, at: 0, missing: true, broke: true });
    store.note_populated(row, 3..6);
    store.validate().unwrap();
    store
}

fn rule(store: &mut Store<Scan>) -> &'static str {
    store.validate().unwrap_err().rule
}

#[test]
fn pc1_a_mark_too_many_or_too_few_is_seen() {
    let mut store_a = store();
    bitmap::set(store_a.view(FIRST).1, 53, 54);
    assert_eq!(rule(&mut store_a), "PC1");
    let mut store_b = store();
    bitmap::clear(store_b.view(FIRST).1, 52, 53);
    assert_eq!(rule(&mut store_b), "PC1");
    let mut store_c = store();
    store_c.totals.allocs += 1;
    assert_eq!(rule(&mut store_c), "PC1");
}

#[test]
fn pc2_a_chunk_in_a_wrong_list_is_seen() {
    let mut store = store();
    store.move_to(FIRST, 3, crate::chunk::End::Front);
    assert_eq!(rule(&mut store), "PC2");
    store.relocate_new(FIRST);
    store.validate().unwrap();
    store.leave(FIRST);
    assert_eq!(rule(&mut store), "PC2");
    assert_eq!(store.chunk(FIRST).slot, NO_SLOT);
}

#[test]
fn pc2_a_list_that_is_a_circle_is_seen() {
    let mut store = store();
    let slot = store.chunk(FIRST).slot;
    store.move_to(2, slot, crate::chunk::End::Back);
    store.chunk_mut(2).next = FIRST;
    assert_eq!(rule(&mut store), "PC2");
    // And one whose head has itself before it.
    store.chunk_mut(FIRST).prev = 2;
    assert_eq!(rule(&mut store), "PC2");
}

#[test]
fn pc3_a_wrong_count_of_free_bits_is_seen() {
    let mut store = store();
    store.chunk_mut(FIRST).free_bits -= 1;
    assert_eq!(rule(&mut store), "PC3");
}

#[test]
fn pc4_a_wrong_count_of_spare_pages_is_seen() {
    let mut store = store();
    store.chunk_mut(2).empty += 1;
    store.totals.spare_pages += 1;
    assert_eq!(rule(&mut store), "PC4");
}

#[test]
fn pc5_an_object_in_a_page_that_is_not_populated_is_seen() {
    let mut store = store();
    let words = 2 * words_for(store.geometry.unit_bits()) as usize;
    bitmap::clear(&mut store.words.row_mut(2)[words..], 1, 2);
    assert_eq!(rule(&mut store), "PC5");
    bitmap::set(&mut store.words.row_mut(2)[words..], 1, 2);
    store.chunk_mut(2).populated -= 1;
    assert_eq!(rule(&mut store), "PC5");
}

#[test]
fn pc6_spare_pages_counted_on_twice_are_seen() {
    let mut store = store();
    store.totals.spare_pages += 1;
    assert_eq!(rule(&mut store), "PC6");
    store.totals.spare_pages -= 1;
    store.chunk_mut(2).isolated = true;
    assert!(["PC6", "PC2"].contains(&rule(&mut store)));
}

#[test]
fn pc7_a_leaving_chunk_that_can_be_found_or_holds_something_is_seen() {
    let leaving = || {
        let heap = LimitedHeap::new();
        let mut store = store();
        store.free_at(2, 0);
        if !store.need().is_none() {
            store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
        }
        store.retire(2);
        store.validate().unwrap();
        // No path leads to it.
        assert_eq!(store.place_of(1 << 31), None);
        assert_eq!(store.take_exact(1 << 31, 4), None);
        store
    };
    let mut found = leaving();
    let (base, grains) = (found.chunk(2).base >> found.grain_shift, found.grains());
    found.lookup.add(base, grains, 2);
    assert_eq!(rule(&mut found), "PC7");
    let mut listed = leaving();
    listed.relocate_new(2);
    assert_eq!(rule(&mut listed), "PC7");
    let mut held = leaving();
    held.chunk_mut(2).live = 1;
    assert_eq!(rule(&mut held), "PC7");
}

#[test]
fn pc8_free_bits_and_whole_pages_counted_wrong_are_seen() {
    let mut bits = store();
    bits.totals.free_bits += 1;
    assert_eq!(rule(&mut bits), "PC8");
    let mut pages = store();
    pages.totals.whole_pages -= 1;
    assert_eq!(rule(&mut pages), "PC8");
}

#[test]
fn the_bytes_of_a_store_are_a_unit_of_each_chunk() {
    assert_eq!(store().bytes(), 2 * (32 << 10));
}

#[test]
fn a_row_that_became_free_needs_no_longer_table() {
    let (heap, mut store) = (LimitedHeap::new(), store());
    while store.begun < store.room {
        if !store.need().is_none() {
            store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
        }
        let row = add(&mut store, 1 << 32);
        store.relocate_new(row);
    }
    assert!(!store.need().is_none());
    store.retire(store.begun - 1);
    store.remove(store.begun - 1);
    assert!(store.need().is_none());
    store.validate().unwrap();
}

#[test]
fn a_chunk_is_depopulated_for_its_unused_pages() {
    let mut store = store();
    let mut reclaims = |isolated, empty, spare| {
        (store.chunk_mut(2).isolated, store.chunk_mut(2).empty) = (isolated, empty);
        store.totals.spare_pages = spare;
        store.should_reclaim(2)
    };
    // Of one that is isolated, any page; of eight, two, if more than four are left in others.
    assert_eq!([reclaims(true, 0, 0), reclaims(true, 1, 0)], [false, true]);
    assert_eq!([reclaims(false, 2, 6), reclaims(false, 2, 7)], [false, true]);
    assert_eq!([reclaims(false, 1, 7), reclaims(false, 3, 7)], [false, false]);
}

#[test]
fn pl1_a_chunk_that_is_not_found_is_seen() {
    let mut store = store();
    let (base, grains) = (store.chunk(2).base >> store.grain_shift, store.grains());
    store.lookup.remove(base, grains);
    assert_eq!(rule(&mut store), "PL1");
    store.lookup.add(base, grains, FIRST);
    assert_eq!(rule(&mut store), "PL1");
    // As many grains, of which the last leads elsewhere.
    store.lookup.remove(base, grains);
    store.lookup.add(base, grains - 1, 2);
    store.lookup.add(0, 1, 2);
    assert_eq!(rule(&mut store), "PL1");
}

#[test]
fn pc3_an_object_at_the_very_end_of_a_part_ends_there() {
    let mut store = store();
    let chunk = *store.chunk(FIRST);
    assert!(chunk.hidden_after > 0);
    // Two bits before the object that was aligned.
    let rest = Want { bits: chunk.free_bits - 2, align: 1 };
    let taken = store.take(rest, true).unwrap();
    assert_eq!((taken.row, store.chunk(FIRST).free_bits), (FIRST, 2));
    // Its last bit is inside of it, and what is hidden after it is inside of nothing.
    let end = chunk.pages * PAGE_BITS - chunk.hidden_after;
    let mut inside = |bit: u32| {
        let offset = Offset::between(store_base(), chunk.base + u64::from(bit * BIT_BYTES));
        match store.free(offset) {
            Err(FreeError::NoObject { inside, .. }) => inside.is_some(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([inside(end - 1), inside(end)], [true, false]);
    store.free_at(FIRST, taken.at);
    store.validate().unwrap();
    assert_eq!(store.chunk(FIRST).free_bits, chunk.free_bits);
}

use crate::config::Runs;

/// Creates a store on exact runs with a chunk beside the first, all of whose pages are populated; returns its row too.
fn empty_exact() -> (Store<Runs>, u32) {
    let heap = LimitedHeap::new();
    let mut store = Store::<Runs>::new(Geometry::new(sizes(), Va::new(1 << 30)).unwrap(), true);
    store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
    store.begin();
    if !store.need().is_none() {
        store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
    }
    let row = add(&mut store, 1 << 31);
    store.relocate_new(row);
    store.note_populated(row, 0..8);
    (store, row)
}

/// Creates the same store on exact runs: an object in the first chunk, another with pages of its own.
fn exact() -> Store<Runs> {
    let (mut store, row) = empty_exact();
    for (bits, align) in [(4, 4), (8192, 1), (3, 1), (40, 8)] {
        store.take(Want { bits, align }, false).unwrap();
    }
    store.free_at(row, 0);
    store.take(Want { bits: 5000, align: 1024 }, false).unwrap();
    store.validate().unwrap();
    store
}

#[test]
fn pr1_a_page_that_promises_too_much_is_seen() {
    let mut store = exact();
    let leaf = {
        let (view, _) = store.view(FIRST);
        view.pages.next_power_of_two() as usize
    };
    store.view(FIRST).0.blocks[leaf] = Fits::NONE;
    assert_eq!(store.validate().unwrap_err().rule, "PR1");
}

#[test]
fn pr2_a_rest_that_knows_too_little_is_seen() {
    let mut store = exact();
    let (view, _) = store.view(FIRST);
    let leaves = view.pages.next_power_of_two() as usize;
    let rest = view.blocks[2 * leaves];
    // The best run alone, as if nothing else were free; but two bits before the first object are.
    view.blocks[2 * leaves] = rest.without_alignments();
    assert_ne!(rest, view.blocks[2 * leaves]);
    assert_eq!(store.validate().unwrap_err().rule, "PR2");
}

#[test]
fn pr3_a_node_that_has_not_heard_is_seen() {
    let mut store = exact();
    store.view(FIRST).0.blocks[1] = Fits::NONE;
    assert_eq!(store.validate().unwrap_err().rule, "PR3");
}

#[test]
fn pf1_a_forest_that_has_not_heard_is_seen() {
    let mut store = exact();
    store.forest.put(FIRST, Fits::NONE);
    assert_eq!(store.validate().unwrap_err().rule, "PF1");
}

#[test]
fn pn1_a_mark_above_what_fits_is_seen() {
    let mut store = exact();
    let want = Want { bits: 4, align: 4 };
    let (row, page) = store.memos.find(want).unwrap();
    assert_eq!(row, FIRST);
    store.memos.note(want, row, page + 1);
    assert_eq!(store.validate().unwrap_err().rule, "PN1");
}

/// A chunk in the list of free ones may be destroyed.
#[test]
fn pc2_a_chunk_in_use_is_in_no_list_of_free_ones_even_before_its_head_is_right() {
    let (mut store, row) = empty_exact();
    assert_eq!(store.chunk(row).slot, store.slots.free);
    let taken = store.take(Want { bits: 6000, align: 1 }, false).unwrap();
    assert_eq!(taken.row, row);
    store.free_at(row, 0);
    store.settle();
    assert_eq!(store.chunk(row).slot, store.slots.free);
    // The head is that of a free chunk until the take is in it.
    store.view(row).0.map[100] = Word(1);
    store.chunk_mut(row).free_bits -= 1;
    assert_eq!(store.slot_of(row), store.slots.sidelined - 1);
}

#[test]
fn the_lowest_chunk_that_holds_something_comes_first() {
    let mut store = exact();
    let want = Want { bits: 2000, align: 1024 };
    let low = store.take(want, false).unwrap();
    assert_eq!(low.row, FIRST);
    // Room freed below is used again before any above, even if a request was met above meanwhile.
    let high = store.take(Want { bits: 3000, align: 1 }, false).unwrap();
    store.free_at(low.row, low.at);
    assert_eq!(store.take(want, false).unwrap(), low);
    assert!((high.row, high.at) > (low.row, low.at));
    store.validate().unwrap();
}

use super::class::Class;
use crate::config::CLASS_WORDS_MAX;
use crate::config::Standard as Slabs;

/// Creates two slabs of one class, one of them full, and one of another class without a slot in use.
fn slabs() -> Store<Slabs> {
    let heap = LimitedHeap::new();
    let mut store = Store::<Slabs>::new(Geometry::new(sizes(), Va::new(1 << 30)).unwrap(), true);
    store.grow(store.need().alloc(&heap).unwrap()).free(&heap);
    store.begin();
    let want = |bits| Want { bits, align: 1 };
    for bits in [4, 4, 6] {
        let class = Class::of(want(bits), CLASS_WORDS_MAX).unwrap();
        let taken = store.take_slab(class, true).unwrap();
        assert_eq!(store.begin_slab(class, taken), Some(false));
        for _ in 0..if bits == 4 { 64 } else { 0 } {
            store.take_slot(class, want(bits)).unwrap();
        }
    }
    // The higher one of the first two has room again.
    let mut offsets = (0..u64::from(sizes().unit)).rev().map(Offset::new);
    assert!(offsets.any(|offset| store.free(offset).is_ok()));
    store.validate().unwrap();
    store
}

fn slab_rule(change: impl FnOnce(&mut Store<Slabs>)) -> &'static str {
    let mut store = slabs();
    change(&mut store);
    store.validate().unwrap_err().rule
}

#[test]
fn pt1_slabs_without_entries_for_all_chunks_are_seen() {
    assert_eq!(slab_rule(|store| store.classes = super::class::ClassCache::EMPTY), "PT1");
}

#[test]
fn cc1_a_granule_that_names_a_wrong_slab_is_seen() {
    assert_eq!(slab_rule(|store| store.classes.break_class(FIRST)), "CC1");
}

#[test]
fn cc2_a_slab_that_is_in_no_list_is_seen() {
    assert_eq!(slab_rule(|store| store.classes.break_list(4)), "CC2");
}

#[test]
fn cc3_an_unlisted_slab_is_detected() {
    assert_eq!(slab_rule(|store| store.classes.break_idle(6)), "CC3");
    assert_eq!(slab_rule(|store| store.chunk_mut(FIRST).idle += 1), "CC3");
}

#[test]
fn cc4_a_slot_counted_twice_is_seen() {
    assert_eq!(slab_rule(|store| store.totals.allocs += 1), "CC4");
    assert_eq!(slab_rule(|store| store.classes.break_count()), "CC4");
}

#[test]
fn a_slab_that_dissolves_leaves_its_slots_as_objects() {
    for free in [u64::MAX << 1, 1, 0xf0f0_0000_0000_ffff, u64::MAX >> 1, 0x5555_5555_5555_5555] {
        let mut store = slabs();
        let class = Class::of(Want { bits: 4, align: 1 }, CLASS_WORDS_MAX).unwrap();
        // The full one: all of its slots in use.
        let slab = store.full_slab(4);
        let (base, of) = (store.chunk(slab.0).base, |slot: u32| slab.1 * 256 + slot * 16);
        let offset = |off: u32| Offset::between(store_base(), base + u64::from(off));
        for slot in (0..64).filter(|slot| free >> slot & 1 == 1) {
            store.free(offset(of(slot))).unwrap();
        }
        store.validate().unwrap();
        let (live, room) = (store.totals.live(), store.totals.free_bits);
        store.dissolve_slab(class, slab.0, slab.1, free);
        store.validate().unwrap();
        assert_eq!(
            (store.totals.live(), store.totals.free_bits - room),
            (live, 4 * u64::from(free.count_ones()))
        );
        for slot in 0..64 {
            // A free slot is no object; a slot in use is an object that can be freed once.
            let freed = store.free(offset(of(slot)));
            assert_eq!(freed.is_ok(), free >> slot & 1 == 0, "slot {slot} of {free:#x}");
            assert!(store.free(offset(of(slot))).is_err());
        }
        store.validate().unwrap();
    }
}

/// Returns the address that the first chunk begins at in these tests.
fn store_base() -> Va {
    Va::new(1 << 30)
}

#[test]
fn what_waits_for_its_pages_is_no_object_for_frees_and_magazines() {
    let mut store = store();
    let (at, bytes) = (store_base().get() + u64::from(52 * BIT_BYTES), 4 * BIT_BYTES);
    assert!(store.is_allocated(at, bytes) && !store.is_allocated(at, bytes + BIT_BYTES));
    store.taking[1] = Some((FIRST, 52));
    let offset = Offset::between(store.geometry.base(), at);
    assert!(!store.is_allocated(at, bytes));
    assert!(matches!(store.free(offset), Err(FreeError::NoObject { .. })));
    store.taking[1] = None;
    assert!(store.is_allocated(at, bytes) && store.free(offset).is_ok());
}
