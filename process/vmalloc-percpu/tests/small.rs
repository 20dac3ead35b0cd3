//! Every type of per-CPU data under a few threads and rounds: for Miri, which executes a million instructions in seconds,
//! and for the sanitizers. They see no sections, so the space has atomic operations only. The other tests do more of
//! each.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use core::sync::atomic::{AtomicU64, Ordering};
use vmalloc_percpu::{Node, Options, PerCpuCounter, PerCpuList, PerCpuRef, RefMode, Space, Word};

const THREADS: u64 = if cfg!(miri) { 3 } else { 8 };
/// Even, since the amounts of two rounds cancel out.
const ROUNDS: u64 = if cfg!(miri) { 2 } else { 1000 };

fn space() -> Space {
    Space::new(Options::default().atomics_only(true).units(Some(2))).unwrap()
}

fn in_threads(work: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

#[test]
fn words_are_counted_exchanged_and_freed_by_threads() {
    let space = space();
    let shared = space.zeroed::<Word>().unwrap();
    let taken = AtomicU64::new(0);
    in_threads(|thread| {
        for round in 0..ROUNDS {
            shared.word().add(thread + 1);
            // Objects of a size that others free, too.
            let own = space.zeroed::<[AtomicU64; 3]>().unwrap();
            let copies = own.iter().map(|copy| copy[2].fetch_add(round, Ordering::Relaxed));
            assert_eq!(copies.sum::<u64>(), 0);
            if round % 2 == 0 {
                taken.fetch_add(shared.word().swap(0), Ordering::Relaxed);
            }
        }
    });
    let all = taken.into_inner() + shared.word().sum();
    assert_eq!(all, ROUNDS * THREADS * (THREADS + 1) / 2);
    space.trim();
}

#[test]
fn values_of_units_are_dropped_once() {
    let space = space();
    let boxes = space.with_init(Box::new).unwrap();
    assert!(boxes.iter().enumerate().all(|(unit, value)| unit as u32 == **value));
    drop(boxes);
    // A space that is an argument when its records are freed.
    drop(space);
}

#[test]
fn nodes_of_a_list_pass_from_thread_to_thread() {
    let space = space();
    let mut list = PerCpuList::<AtomicU64>::new(&space).unwrap();
    in_threads(|thread| {
        for round in 0..ROUNDS {
            list.push(Box::new(Node::new(AtomicU64::new(thread * ROUNDS + round))));
            if let Some(node) = list.pop() {
                node.value.fetch_add(0, Ordering::Relaxed);
                list.push(node);
            }
        }
    });
    let mut seen = [0; (THREADS * ROUNDS) as usize];
    list.drain(|node| seen[node.value.into_inner() as usize] += 1);
    assert!(seen.iter().all(|&times| times == 1));
    // Dropping a list drops its nodes.
    list.push(Box::new(Node::new(AtomicU64::new(0))));
}

#[test]
fn a_counter_is_exact_before_and_after_it_has_deltas() {
    let space = space();
    let mut counter = PerCpuCounter::new(&space, 100);
    for _ in 0..2 {
        in_threads(|thread| {
            (0..ROUNDS).for_each(|round| counter.add_batch(thread as i64 * (1 - 2 * (round as i64 % 2)), 4));
        });
        assert_eq!(counter.sum(), 100);
        counter.promote().unwrap();
    }
    counter.set(3);
    assert_eq!(counter.sum(), 3);
}

#[test]
fn the_release_of_a_reference_comes_once_behind_the_last_put() {
    for mode in [RefMode::PerCpu, RefMode::Atomic] {
        let space = space();
        let released = AtomicU64::new(0);
        let count = PerCpuRef::new(&space, mode, || {
            released.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        in_threads(|thread| {
            for round in 0..ROUNDS {
                if thread == 0 && round == ROUNDS / 2 {
                    count.kill().unwrap();
                }
                if count.try_get_live() {
                    assert_eq!(released.load(Ordering::Relaxed), 0);
                    count.put();
                }
            }
        });
        assert!(count.is_zero());
        drop(count);
        assert_eq!(released.into_inner(), 1);
    }
}
