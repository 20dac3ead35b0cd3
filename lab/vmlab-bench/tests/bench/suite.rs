//! The kernel's test suite.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use va_sim::op::Rng;
use vmlab_bench::suite::case::{Case, Suite};
use vmlab_bench::suite::cold::row;
use vmlab_bench::suite::driver::{Counts, Found, Ran, order};
use vmlab_bench::suite::params::Params;
use vmlab_bench::suite::print::lines;
use vmlab_bench::suite::process::Numbered;
use vmlab_bench::suite::rcu::{BATCH, Caller, Epochs, PENDING_ATOMIC};

fn parse(suite: Suite, line: &str) -> Result<Params, String> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    Params::parse(suite, 6, &arguments).map_err(|error| error.to_string())
}

#[test]
fn modes_and_pairs_are_what_the_script_makes_of_them() {
    let new = Suite::V7_1;
    for (line, shown) in [
        ("", "none"),
        ("performance", "sequential_test_order=1 test_repeat_count=3"),
        ("stress", "nr_threads=6 test_repeat_count=20"),
        ("smoke", "test_repeat_count=10 test_loop_count=10000"),
        ("run_test_mask=7 nr_threads=64", "nr_threads=64"),
        ("run_test_mask=0x3ff nr_pages=010", "nr_pages=8 run_test_mask=1023"),
        ("nr_threads=70000", "nr_threads=65535"),
        ("test_loop_count=3 test_loop_count=4", "test_loop_count=4"),
        ("use_huge=1 nr_pcpu_objects=5", "use_huge=1 nr_pcpu_objects=5"),
    ] {
        assert_eq!(parse(new, line).map(|params| params.to_string()), Ok(shown.to_string()), "{line}");
    }
    let old = parse(Suite::V6_12, "").unwrap();
    assert_eq!(
        (old.run_test_mask, old.test_loop_count, old.cases().count()),
        (i32::MAX as u32, 1_000_000, 11)
    );
    assert_eq!(parse(new, "").unwrap().cases().count(), 3);
}

#[test]
fn mistakes_are_one_line_that_names_them() {
    for (suite, line, part) in [
        (Suite::V7_1, "fast", "\"fast\" is neither"),
        (Suite::V7_1, "threads=1", "key is not correct: threads (there are nr_threads, "),
        (Suite::V6_12, "nr_pcpu_objects=1", "key is not correct: nr_pcpu_objects"),
        (
            Suite::V7_1,
            "nr_threads=0",
            "value is not correct: nr_threads=0 (a whole number from 1 to 2147483647)",
        ),
        (Suite::V7_1, "nr_threads=-1", "nr_threads=-1"),
        (Suite::V7_1, "nr_threads=+1", "nr_threads=+1"),
        (Suite::V7_1, "nr_threads=", "nr_threads= "),
        (Suite::V7_1, "test_loop_count=2147483648", "2147483648"),
        (Suite::V7_1, "test_loop_count=99999999999999999999999", "99999999999999999999999"),
        (Suite::V7_1, "use_huge=2", "1 turns it on"),
        (Suite::V7_1, "nr_pages=1048577", "at most 1048576"),
        (Suite::V7_1, "performance nr_threads=1", "performance takes no other arguments"),
        (Suite::V7_1, "run_test_mask=8192", "selects none of the tests of 7.1 (all are 8191)"),
        (Suite::V6_12, "run_test_mask=4096", "selects none of the tests of 6.12 (all are 2047)"),
    ] {
        let error = parse(suite, line).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn each_worker_has_its_own_order_and_every_test_moves() {
    let params = Params { run_test_mask: 8191, ..Params::new(Suite::V7_1) };
    let mut rng = Rng::new(5);
    let orders: Vec<_> = (0..20).map(|_| order(&params, &mut rng)).collect();
    for order in &orders {
        assert!(order.iter().zip(Case::ALL).all(|(here, there)| *here != there), "{order:?}");
        assert!(Case::ALL.iter().all(|case| order.contains(case)));
    }
    assert!(orders.windows(2).any(|pair| pair[0] != pair[1]));
    let sequential = Params { sequential_test_order: true, run_test_mask: 4 | 64, ..params };
    assert_eq!(order(&sequential, &mut rng), [Case::LongBusyList, Case::AlignShift]);
}

#[test]
fn a_failure_that_is_expected_is_none_whichever_suite_counts_it() {
    let found = |case: Case, counts: Counts| {
        let mut all = [Counts::default(); Case::ALL.len()];
        all[case.index()] = counts;
        vec![Found { counts: all, cycles: 1, met: 1 }]
    };
    let ran = |suite, case, counts| Ran {
        params: Params { run_test_mask: 8191, ..Params::new(suite) },
        workers: found(case, counts),
        interrupted: false,
        settled: Ok(()),
    };
    let failed = Counts { failed: 2, ..Counts::default() };
    assert_eq!(ran(Suite::V6_12, Case::AlignShift, failed).failures(), 0);
    assert_eq!(ran(Suite::V6_12, Case::FixSize, failed).failures(), 2);
    assert_eq!(ran(Suite::V7_1, Case::FixSize, failed).failures(), 2);
    assert_eq!(ran(Suite::V7_1, Case::NoBlock, Counts { xfailed: 2, ..Counts::default() }).failures(), 0);
}

#[test]
fn lines_are_the_kernels_to_the_letter() {
    let mut counts = [Counts::default(); Case::ALL.len()];
    counts[0] = Counts { passed: 3, time: Duration::from_nanos(4_501_999), ..Counts::default() };
    counts[6] = Counts { failed: 1, xfailed: 2, ..Counts::default() };
    let ran = |suite| Ran {
        params: Params { run_test_mask: 65, test_repeat_count: 3, ..Params::new(suite) },
        workers: vec![
            Found { counts, cycles: 77, met: 2 },
            Found { counts: Default::default(), cycles: 0, met: 1 },
        ],
        interrupted: false,
        settled: Ok(()),
    };
    assert_eq!(
        lines(&ran(Suite::V7_1)).join("\n"),
        "Summary: fix_size_alloc_test passed: 3 failed: 0 xfailed: 0 repeat: 3 loops: 1000000 avg: 1500 usec\n\
         Summary: align_shift_alloc_test passed: 0 failed: 1 xfailed: 2 repeat: 3 loops: 1000000 avg: 0 usec\n\
         All test took worker0=77 cycles\n\
         Summary: fix_size_alloc_test passed: 0 failed: 0 xfailed: 0 repeat: 3 loops: 1000000 avg: 0 usec\n\
         Summary: align_shift_alloc_test passed: 0 failed: 0 xfailed: 0 repeat: 3 loops: 1000000 avg: 0 usec\n\
         All test took worker1=0 cycles"
    );
    assert_eq!(
        lines(&ran(Suite::V6_12))[0],
        "Summary: fix_size_alloc_test passed: 3 failed: 0 repeat: 3 loops: 1000000 avg: 1500 usec"
    );
}

#[test]
fn a_row_has_the_median_of_each_and_the_ratio_to_the_fastest_of_linux() {
    let times = vec![vec![3000.0, 1000.0, 2000.0], vec![9000.0, 1000.0, 4000.0], vec![5000.0], vec![]];
    let row = row(10, Case::FullFit, times);
    assert_eq!(row[..3], ["10", "2", "full_fit_alloc_test"]);
    assert_eq!((row[6].as_str(), row[7].as_str()), ("-", "0.50"));
}

#[test]
fn a_table_uses_places_again_and_knows_what_is_not_there() {
    let mut table = Numbered::default();
    assert_eq!([table.put('a'), table.put('b'), table.put('c')], [1, 2, 3]);
    assert_eq!((table.take(2), table.take(2), table.take(0), table.take(9)), (Some('b'), None, None, None));
    assert_eq!((table.put('d'), table.get(2).copied(), table.count()), (2, Some('d'), 3));
}

#[test]
fn kf1_what_is_deferred_while_a_section_is_open_waits_for_it() {
    let epochs = Epochs::new(2);
    let (mut reader, mut writer) = (epochs.deferred(0), epochs.deferred(1));
    let mut freed = Vec::new();
    let section = reader.section();
    // One more would exceed the limit of pending batches, and wait for ever.
    for at in 1..=(PENDING_ATOMIC * BATCH) as u64 {
        writer.defer(at, Caller::Atomic, &mut |at| freed.push(at));
    }
    assert_eq!(freed, [0u64; 0]);
    drop(section);
    writer.end(&mut |at| freed.push(at));
    assert_eq!(freed, (1..=(PENDING_ATOMIC * BATCH) as u64).collect::<Vec<_>>());
}

#[test]
fn kf1_a_section_that_saw_the_epoch_before_holds_up_the_next_but_one() {
    let epochs = Epochs::new(2);
    let (mut reader, mut writer) = (epochs.deferred(0), epochs.deferred(1));
    let section = reader.section();
    assert_eq!(epochs.advance(), 3, "it has seen 2");
    let mut freed = Vec::new();
    // Each batch that is full tries to free the older ones.
    for at in 0..5 * BATCH as u64 {
        writer.defer(at, Caller::Atomic, &mut |at| freed.push(at));
    }
    assert_eq!((epochs.advance(), freed.len()), (3, 0), "it has not seen 3");
    drop(section);
    writer.end(&mut |at| freed.push(at));
    assert_eq!(freed, (0..5 * BATCH as u64).collect::<Vec<_>>());
}

/// Stops the readers when it is dropped, also if the writer panics.
struct Done<'t>(&'t AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn kf2_many_threads_free_each_once_and_never_under_a_reader() {
    const COUNT: u64 = 60_000;
    let epochs = Epochs::new(3);
    // Number `n` is alive until it is freed; `current` is what readers can reach.
    let alive: Vec<AtomicBool> = (0..=COUNT).map(|_| AtomicBool::new(true)).collect();
    let (current, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|thread| {
                let (epochs, alive, current, done) = (&epochs, &alive, &current, &done);
                scope.spawn(move || {
                    let mut own = epochs.deferred(thread);
                    let mut looks = 0u64;
                    // Each reader reads at least once, however late it starts.
                    loop {
                        let section = own.section();
                        let at = current.load(Ordering::Acquire);
                        for _ in 0..looks % 7 {
                            std::hint::spin_loop();
                        }
                        if looks.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                        assert!(alive[at as usize].load(Ordering::Relaxed), "KF1: {at} was freed");
                        drop(section);
                        looks += 1;
                        if done.load(Ordering::Relaxed) {
                            break looks;
                        }
                    }
                })
            })
            .collect();
        let ended = Done(&done);
        let mut writer = epochs.deferred(2);
        let mut freed = BTreeSet::new();
        let mut free = |at: u64| {
            alive[at as usize].store(false, Ordering::Relaxed);
            assert!(freed.insert(at), "KF2: {at} was freed twice");
        };
        for next in 1..=COUNT {
            let old = current.swap(next, Ordering::AcqRel);
            writer.defer(old, if next % 2 == 0 { Caller::MaySleep } else { Caller::Atomic }, &mut free);
        }
        writer.end(&mut free);
        drop(ended);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
        assert_eq!(freed.len() as u64, COUNT);
    });
}
