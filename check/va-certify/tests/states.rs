//! Every state of small spaces, through every index, certified. The large scopes run by `cargo xtask ci --full`, or
//! with their numbers by `cargo test --release -p va-certify --test states -- --ignored --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{PAGE_SHIFT, VaRange};
use va_certify::Certified;
use va_certify::states::{Scope, Tried, explore};
use va_sim::platform::HeapPlatform;
use va_tree::btree::{BTree, Byte, Key};
use va_tree::rb::Exact;
use va_tree::{BestFitIndex, FlatIndex, FreeIndex, RbIndex};

/// The tree with the smallest nodes, and inside the index only the leaf without which none begins.
type Small<K> = BTree<K, 4, HeapPlatform, 1, 0>;

/// The first unit of each space: an odd number, so that no alignment begins with the space.
const FIRST: u64 = 5;

fn btree<K: Key>(scope: &Scope, rows: bool) -> Tried {
    let (extent, heap) = (scope.range(K::UNIT.log2()), HeapPlatform::default());
    explore(scope, || {
        let tree = Small::<K>::new(extent, extent, heap.clone()).unwrap();
        if rows { tree.with_rows().unwrap() } else { tree }
    })
}

fn rb(scope: &Scope) -> Tried {
    let (extent, heap) = (scope.range(PAGE_SHIFT), HeapPlatform::default());
    explore(scope, || RbIndex::<Exact, _>::new(extent, extent, heap.clone()).unwrap())
}

fn flat(scope: &Scope) -> Tried {
    let extent = scope.range(PAGE_SHIFT);
    explore(scope, || FlatIndex::<24>::new(extent, extent).unwrap())
}

fn best(scope: &Scope) -> Tried {
    let (extent, heap) = (scope.range(PAGE_SHIFT), HeapPlatform::default());
    explore(scope, || {
        let tree = Small::<u64>::new(extent, extent, heap.clone()).unwrap();
        BestFitIndex::new(tree, heap.clone()).unwrap()
    })
}

/// Prints what was tried, for `results/certify.md`, and returns it.
fn report(name: &str, tried: Tried) -> Tried {
    println!("states: {name}: {tried}");
    tried
}

fn everything(units: u64, name: &str, explore: impl Fn(&Scope) -> Tried) {
    let tried =
        report(&format!("{units} units, {name}"), explore(&Scope::everything(FIRST, units, &[0, 1, 2, 3])));
    assert_eq!(tried.sets, 1 << units, "every set of free units is reached");
    assert_eq!(tried.holes, units.div_ceil(2));
}

/// So many cells in turn.
fn cells(count: usize, cells: &[(u64, u64)], joining: &[usize]) -> Scope {
    Scope::cells(FIRST, &cells.iter().copied().cycle().take(count).collect::<Vec<_>>(), joining)
}

/// Holes of several sizes and alignments.
fn mixed(count: usize) -> Scope {
    cells(count, &[(1, 1), (1, 3), (1, 2), (1, 1)], &[])
}

/// Holes of two units that begin at odd numbers, and few others: a request for an aligned pair passes many holes, and
/// builds the row of its alignment.
fn odd(count: usize) -> Scope {
    let scope = cells(count, &[(2, 2), (2, 2), (2, 2), (2, 2), (2, 2), (1, 3)], &[]);
    Scope { sizes: vec![2], aligns: vec![0, 1, 2], ..scope }
}

/// Holes that merge over some of the units between them.
fn joined(count: usize, joining: &[usize]) -> Scope {
    cells(count, &[(1, 1), (1, 1), (1, 2)], joining)
}

/// The same states, with few requests in each.
fn few(scope: Scope) -> Scope {
    let windows = scope.windows[..2].to_vec();
    Scope { sizes: vec![2], aligns: vec![0, 1], windows, ..scope }
}

fn deep(scope: &Scope, name: &str, explore: impl Fn(&Scope) -> Tried) {
    let tried = report(&format!("{} ranges, {name}", scope.ranges.len()), explore(scope));
    assert_eq!(tried.sets, 1 << scope.ranges.len(), "every set of free ranges is reached");
}

#[test]
fn every_state_of_few_units() {
    everything(6, "B+tree", |scope| btree::<u64>(scope, false));
    everything(6, "B+tree, rows", |scope| btree::<u64>(scope, true));
    everything(5, "B+tree, 32 bits", |scope| btree::<u32>(scope, true));
    everything(5, "B+tree, bytes", |scope| btree::<Byte>(scope, false));
    everything(6, "red-black tree", rb);
    everything(5, "array", flat);
    everything(5, "holes by size", best);
}

#[test]
fn every_state_of_trees_of_three_levels() {
    deep(&few(mixed(11)), "B+tree", |scope| btree::<u64>(scope, false));
    deep(&few(mixed(10)), "B+tree of 32 bits, rows", |scope| btree::<u32>(scope, true));
    deep(&few(joined(7, &[2, 4])), "B+tree, holes that merge", |scope| btree::<u64>(scope, false));
}

#[test]
#[ignore = "minutes: every state of twelve units"]
fn all_of_twelve_units_btree() {
    everything(12, "B+tree", |scope| btree::<u64>(scope, false));
}

#[test]
#[ignore = "minutes: every state of twelve units"]
fn all_of_twelve_units_btree_with_rows() {
    everything(12, "B+tree, rows", |scope| btree::<u64>(scope, true));
}

#[test]
#[ignore = "minutes: every state of twelve units"]
fn all_of_twelve_units_rb() {
    everything(12, "red-black tree", rb);
}

#[test]
#[ignore = "minutes: every state of ten units"]
fn all_of_ten_units_in_the_others() {
    everything(10, "B+tree, 32 bits", |scope| btree::<u32>(scope, false));
    everything(10, "B+tree, bytes", |scope| btree::<Byte>(scope, false));
    everything(10, "array", flat);
    everything(10, "holes by size", best);
}

#[test]
#[ignore = "minutes: trees of three levels"]
fn all_of_deep_trees() {
    deep(&mixed(12), "B+tree", |scope| btree::<u64>(scope, false));
    deep(&few(mixed(13)), "B+tree", |scope| btree::<u64>(scope, false));
    deep(&mixed(11), "B+tree, rows", |scope| btree::<u64>(scope, true));
    deep(&mixed(11), "B+tree of 32 bits, rows", |scope| btree::<u32>(scope, true));
    deep(&odd(11), "B+tree, rows on demand", |scope| btree::<u64>(scope, false));
    deep(&mixed(11), "red-black tree", rb);
}

#[test]
#[ignore = "minutes: trees of three levels"]
fn all_of_deep_trees_whose_holes_merge() {
    deep(&few(joined(11, &[4, 7])), "B+tree, holes that merge", |scope| btree::<u64>(scope, false));
    deep(&joined(9, &[3, 6]), "B+tree, holes that merge", |scope| btree::<u64>(scope, false));
    deep(&joined(9, &[3, 6]), "B+tree, rows, holes that merge", |scope| btree::<u64>(scope, true));
    deep(&joined(9, &[3, 6]), "red-black tree, holes that merge", rb);
}

/// Trees of 31 holes, from each of which all holes are taken, one by one, from each place on. In a tree whose holes were
/// freed in order, most are black, so that a removal takes a black one from each of several levels. No tree of the states
/// above is so deep.
#[test]
fn a_red_black_tree_of_many_levels_loses_its_holes_in_any_turn() {
    const HOLES: u64 = 31;
    let hole = |nth: u64| {
        let first = FIRST + 2 * nth;
        VaRange::from_pages(first, first + 1).unwrap()
    };
    let (extent, heap) = (VaRange::from_pages(FIRST, FIRST + 2 * HOLES).unwrap(), HeapPlatform::default());
    for step in [1, 2, 7, HOLES - 1] {
        for start in 0..HOLES {
            let mut index = Certified::new(RbIndex::<Exact, _>::new(extent, extent, heap.clone()).unwrap());
            // Areas of one unit, of which each second one is freed.
            for unit in FIRST..FIRST + 2 * HOLES {
                index.take(VaRange::from_pages(unit, unit + 1).unwrap()).unwrap();
            }
            (0..HOLES).for_each(|nth| index.free(hole(nth)).unwrap());
            for turn in 0..HOLES {
                index.take(hole((start + turn * step) % HOLES)).unwrap();
                index.validate().unwrap();
            }
            assert_eq!(index.free_pages().get(), 0);
        }
    }
}
