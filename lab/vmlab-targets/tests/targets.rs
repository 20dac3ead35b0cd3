//! The tests of the targets, from outside: the crate is compiled once, for its users and for these.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use vmlab_targets::case::{Case, Suite};
use vmlab_targets::{Ask, Era, Setup, Unsettled};

#[test]
fn bits_are_1_to_4096_in_the_order_of_the_kernels_table() {
    let bits: Vec<u32> = Case::ALL.map(Case::bit).to_vec();
    assert_eq!(bits, (0..13).map(|bit| 1 << bit).collect::<Vec<_>>());
    assert_eq!(Suite::V7_1.cases().len(), 13);
    assert_eq!(Suite::V6_12.cases().last(), Some(&Case::VmMapRam));
    assert_eq!(Case::VmMapRam.bit(), 1024);
}

#[test]
fn ts1_what_is_not_freed_is_counted_until_it_is() {
    let target = Era::Standard.make(&Setup { cpus: 2, kernel_lib: None, kernel_lib_percpu: None }).unwrap();
    let mut worker = target.worker(1);
    let areas = [1, 5000].map(|bytes| worker.vmalloc(&Ask::bytes(bytes)).unwrap());
    let objects: Vec<u64> = (0..500).map(|_| worker.pcpu_alloc(1024, 2048).unwrap()).collect();
    assert!(worker.pages(3).unwrap().map_write_unmap(b'a'));
    // Two pages and three, with their guard pages.
    assert_eq!(target.settle(), Err(Unsettled::Left(2 + 3 + 500)));
    areas.into_iter().for_each(|at| worker.vfree(at));
    assert_eq!(target.settle(), Err(Unsettled::Left(500)));
    objects.into_iter().for_each(|at| worker.pcpu_free(at));
    drop(worker);
    assert_eq!(target.settle(), Ok(()));
}

#[test]
fn an_area_grows_in_place_where_it_can_and_moves_where_it_cannot() {
    let target = Era::Standard.make(&Setup { cpus: 2, kernel_lib: None, kernel_lib_percpu: None }).unwrap();
    let mut worker = target.worker(0);
    let at = worker.vmalloc(&Ask::bytes(9 << 30)).unwrap();
    assert_eq!(worker.vrealloc(at, 9 << 30, 10 << 30), Some(at), "nothing is above it");
    assert_eq!(worker.vrealloc(at, 10 << 30, 1), Some(at));
    let wall = worker.vmalloc(&Ask::bytes(9 << 30)).unwrap();
    let moved = worker.vrealloc(at, 1, 20 << 30).unwrap();
    assert!(moved != at && wall > at);
    assert_eq!(worker.vrealloc(moved, 20 << 30, u64::MAX), None);
    [wall, moved].into_iter().for_each(|at| worker.vfree(at));
    drop(worker);
    assert_eq!(target.settle(), Ok(()));
}

/// Returns the addresses of four areas under `era`, in pages relative to the first.
fn places(era: Era) -> Vec<u64> {
    let target = era.make_watched(&Setup { cpus: 2, kernel_lib: None, kernel_lib_percpu: None }).unwrap();
    let mut worker = target.worker(0);
    let mut at = |pages: u64| worker.vmalloc(&Ask::bytes(pages << 12)).unwrap() >> 12;
    let got: Vec<u64> = [1, 3, 1, 3].map(&mut at).to_vec();
    let first = got[0];
    for &at in &got {
        worker.vfree(at << 12);
    }
    drop(worker);
    assert_eq!(target.settle(), Ok(()), "{}", era.name());
    got.into_iter().map(|at| at.wrapping_sub(first)).collect()
}

#[test]
fn every_time_packs_areas_with_their_guard_pages_and_takes_all_back() {
    for era in [Era::List, Era::OneLock, Era::Hashed, Era::Nodes] {
        assert_eq!(places(era), [0, 2, 6, 8], "{}", era.name());
    }
    assert_eq!(places(Era::Standard).len(), 4);
}
