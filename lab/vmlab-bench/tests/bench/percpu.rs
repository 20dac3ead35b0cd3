//! Per-CPU memory, and per-CPU data of a process.

use va_sim::effort::some;
use vmlab_bench::percpu::clock::Moment;
use vmlab_bench::percpu::process::{self, COUNTERS};
use vmlab_bench::percpu::seed::{self, Asked, Ran, seconds};
use vmlab_bench::percpu::threads;

#[test]
fn every_contender_is_measured_by_one_thread_and_by_two() {
    let measured = process::measure(2, 100).unwrap();
    assert_eq!(measured.costs.len(), 28);
    assert!(measured.costs.iter().all(|cost| cost.ns.min > 0.0 && cost.ns.median >= cost.ns.min));
    let live: Vec<u64> = measured.held.iter().map(|held| held.stats.live).collect();
    assert_eq!((live[0], live[1], live[3]), (COUNTERS as u64, live[2], 0));
    assert!(live[1] > COUNTERS as u64 / 12 && live[1] < COUNTERS as u64 / 8);
}

/// Locks are counted, not timed: the count of a magazine's steady load is a promise.
#[test]
fn threads_with_magazines_share_few_locks() {
    let pairs = some(100_000);
    let measured = threads::measure(&threads::THREADS, pairs, 1, None).unwrap();
    assert_eq!(measured.len(), 4 * 4 * 3);
    for of in measured {
        let (locks, zeroed) = (of.locks.unwrap(), of.zeroed.unwrap());
        println!(
            "{}, {} threads, {}: {locks:.4} locks, {zeroed:.1} bytes zeroed",
            of.load, of.threads, of.contender
        );
        // Magazines take locks until they are full, however many pairs follow.
        let most = if of.contender == "cached" { 2000.0 / pairs as f64 } else { 2.5 };
        assert!(locks <= most && (of.contender == "cached" || locks >= 1.99), "{of:?}");
        assert!(zeroed >= 8.0, "{of:?}");
    }
}

#[test]
fn every_engine_serves_every_action() {
    for ran in seed::measure(3000, 1, None).unwrap() {
        assert!(ran.ns > 0.0 && ran.chunks >= 1, "{ran:?}");
    }
}

#[test]
fn two_figures_of_the_series_are_known_and_the_third_is_between() {
    let ran = |ns| Ran { engine: "", asked: Asked::Plain, ns, chunks: 1 };
    let all = [ran(3000.0), ran(500.0), ran(250.0)];
    assert_eq!(seconds(&all, 3000.0), Some(69.0));
    assert_eq!(seconds(&all, 250.0), Some(39.0));
    assert!(seconds(&all, 500.0).is_some_and(|of| of > 39.0 && of < 69.0));
    assert_eq!(seconds(&[ran(1.0), ran(1.0), ran(2.0)], 1.0), None);
}

#[test]
fn sleeping_takes_no_time_and_work_does() {
    let begun = Moment::now();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(begun.elapsed_ns() < 40e6);
    let mut sum = 0u64;
    while begun.elapsed_ns() < 1e6 {
        sum = std::hint::black_box(sum + 1);
    }
    assert!(sum > 0);
}
