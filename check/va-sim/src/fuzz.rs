//! The bodies of the fuzz targets. Each also runs as a plain test over its saved corpus.

use crate::block_run::{self, Call, Conditions};
use crate::model::{ModelIndex, PageIndex};
use crate::op::{Op, Space};
use crate::platform::{Fail, FailingPlatform, HeapPlatform};
use crate::run::{Driver, Outcome, Walk, assert_same};
use va_base::{AllocError, Va, VaRange};
use va_certify::Certified;
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, FreeIndex, RbIndex};

/// Returns the spaces for fuzzing: small ones, where every limit is near, and the largest ones.
fn space(selector: u8) -> Space {
    let pages = |first, end| Space::whole(VaRange::from_pages(first, end).unwrap_or(VaRange::ALL));
    let bytes = |start, end| VaRange::new(Va::new(start), Va::new(end)).unwrap_or(VaRange::ALL);
    match selector % 6 {
        0 => pages(0, 40),
        1 => pages(3, 700),
        2 => pages((1 << 52) - 1 - 300, (1 << 52) - 1),
        3 => Space::whole(VaRange::ALL),
        // Linux's: all but the first byte and the last, and the window of x86-64 with four levels.
        4 => Space {
            extent: bytes(1, u64::MAX),
            default_window: bytes(0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff),
        },
        _ => Space::whole(bytes(0x7fff_0123, 0x8060_0fff)),
    }
}

/// Decodes ops and compares every index with its reference model. Each answer of the exact ones has a certificate.
///
/// # Panics
/// At the first difference or broken invariant.
#[inline]
pub fn index_ops(data: &[u8]) {
    let Some((&selector, bytes)) = data.split_first() else { return };
    let space = space(selector);
    let ops: Vec<Op> = Op::decode_all(&space, bytes).take(400).collect();
    let (extent, window) = (space.extent, space.default_window);
    let heap = HeapPlatform::default();
    let model = || ModelIndex::new(extent, window).unwrap_or_else(|error| panic!("{error}"));
    let ops = || ops.iter().cloned();
    // Small fanout: deep trees from few holes.
    if let Ok(tree) = BTree::<u64, 8, _>::new(extent, window, heap.clone()) {
        assert_same(&space, Certified::new(tree), model(), ops(), Walk::Always);
    }
    if let Ok(tree) = BTreeIndex::new(extent, window, heap.clone()) {
        assert_same(&space, Certified::new(tree), model(), ops(), Walk::Every(16));
    }
    if let Ok(tree) = BTreeIndex32::new(extent, window, heap.clone()).and_then(BTreeIndex32::with_rows) {
        assert_same(&space, Certified::new(tree), model(), ops(), Walk::Every(16));
    }
    if let Ok(tree) = RbIndex::<Exact, _>::new(extent, window, heap.clone()) {
        assert_same(&space, Certified::new(tree), model(), ops(), Walk::Always);
    }
    if let Ok(pages) = PageIndex::new(extent, window) {
        assert_same(&space, pages, model(), ops(), Walk::Every(64));
    }
    // Linux's search has other results for alignment; its structure must hold all the same.
    if let Ok(tree) = RbIndex::<Linux, _>::new(extent, window, heap) {
        let mut driver = Driver::new(tree);
        for op in ops() {
            driver.run(&op);
            if let Err(broken) = driver.index.validate() {
                panic!("in {space:?}, after {op}: {broken}");
            }
        }
    }
}

/// Decodes ops for a platform that fails slabs: a failure changes nothing (SP4), and a free never needs a slab (SP3).
///
/// # Panics
/// If either does not hold.
#[inline]
pub fn slab_failure(data: &[u8]) {
    let [selector, granted, bytes @ ..] = data else { return };
    let space = space(*selector);
    let (extent, window) = (space.extent, space.default_window);
    let fail = Fail::After(u64::from(*granted % 8));
    let platform = FailingPlatform::new(fail);
    if let Ok(tree) = BTree::<u64, 8, _>::new(extent, window, platform.clone()) {
        failing(tree, &space, &platform, bytes);
    }
    platform.set(fail);
    if let Ok(tree) = RbIndex::<Exact, _>::new(extent, window, platform.clone()) {
        failing(tree, &space, &platform, bytes);
    }
}

fn failing<I: FreeIndex>(index: I, space: &Space, platform: &FailingPlatform, bytes: &[u8]) {
    let mut driver = Driver::new(index);
    for op in Op::decode_all(space, bytes).take(400) {
        let state = |driver: &Driver<I>| {
            let holes: Vec<_> = driver.index.holes().collect();
            (driver.index.live(), holes, driver.out.clone())
        };
        let before = state(&driver);
        let outcome = driver.run(&op);
        let failed = matches!(
            outcome,
            Outcome::At(Err(AllocError::NoMeta { .. })) | Outcome::Cut(Err(AllocError::NoMeta { .. }))
        );
        assert!(!failed || state(&driver) == before, "SP4: {op} failed and changed something");
        if let Err(broken) = driver.index.validate() {
            panic!("in {space:?}, after {op}: {broken}");
        }
    }
    // SP3: while every slab fails, each area is freed, in an order that leaves as many holes as possible.
    platform.set(Fail::All);
    let out = driver.out.clone();
    let odd = out.iter().skip(1).step_by(2);
    let ranges = out.iter().step_by(2).chain(odd);
    // A caller that freed fragments without a reservation has used up the records that the rest needs: stop there.
    for &(start, size) in ranges {
        let live = driver.index.live();
        if live < driver.out.len() as u64 {
            break;
        }
        let back = driver.run(&Op::FreeRange { start, size });
        assert_eq!(back, Outcome::Back(vec![Ok(())]), "SP3: in {space:?}");
        if let Err(broken) = driver.index.validate() {
            panic!("in {space:?}, giving everything back: {broken}");
        }
    }
}

/// Decodes calls to blocks: beside their reference model, or with lanes on a machine that fails and flushes late.
///
/// # Panics
/// At the first difference, broken invariant or address that is used again too early.
#[inline]
pub fn block_ops(data: &[u8]) {
    let [pages, how, bytes @ ..] = data else { return };
    let pages = 300 + u64::from(*pages) * 4;
    let calls: Vec<Call> = Call::decode_all(bytes).take(300).collect();
    // One run an input: each allocates tables for good.
    let cpus = 1 + u32::from(how >> 2 & 1);
    match how % 4 {
        0 => block_run::ours_beside_model(pages, cpus, &calls),
        1 => block_run::linux_beside_model(pages, cpus, &calls),
        2 => block_run::one_map_beside_model(pages, cpus, &calls),
        _ => {
            let allocates = if how & 0x80 == 0 { u64::MAX } else { u64::from(how >> 3 & 15) };
            block_run::with_lanes(Conditions { pages, late: how & 4 != 0, allocates }, &calls);
        }
    }
}
