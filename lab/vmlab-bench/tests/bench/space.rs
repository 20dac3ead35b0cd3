//! Spaces: patterns, cases, threads and locks.

use std::time::Duration;
use va_base::LockClass;
use vmlab_bench::space::cases::{self, Taken};
use vmlab_bench::space::contenders::SpaceContender;
use vmlab_bench::space::patterns::{all as patterns, make, shared};
use vmlab_bench::space::print::columns;
use vmlab_bench::space::subject::Setup;
use vmlab_bench::space::threads::{self, Crowd};
use vmlab_bench::stream::measure;
use vmlab_bench::stream::workload::FREE;
use vmlab_machine::LockStat;

#[test]
fn every_policy_runs_every_pattern_and_counts_purges() {
    let contenders = SpaceContender::all(&[]).unwrap();
    let streams: Vec<_> = contenders.iter().map(|contender| contender.contender(Setup::alone(2))).collect();
    for spec in patterns(2) {
        let cells = measure(&make(&spec, 1, 1), &streams, 1, &mut Vec::new()).unwrap();
        let names: Vec<_> = cells.iter().map(|cell| cell.contender).collect();
        assert_eq!(names, ["ours", "ours-bare", "linux69", "onelock52"], "{}", spec.name);
        for cell in &cells {
            let drained = cell.drained.unwrap();
            assert!(drained.purges > 0 && drained.flushes <= drained.purges, "{}: {drained:?}", spec.name);
            assert!(cell.ns.min <= cell.ns.median && cell.ns.mean.is_finite());
        }
    }
}

#[test]
fn every_pattern_frees_its_areas_and_has_its_stated_pairs() {
    for spec in patterns(2).iter().chain(&shared(1)) {
        let workload = make(spec, 1, 2);
        assert_eq!(workload.rounds.len(), 2);
        for round in &workload.rounds {
            let allocs = round.iter().filter(|op| op.align_log2 != FREE).count();
            assert_eq!((allocs, round.len()), (workload.pairs, 2 * workload.pairs), "{}", workload.name);
        }
        let mut held = vec![false; workload.slots];
        for op in workload.setup.iter().chain(workload.rounds.iter().flatten()) {
            let was = std::mem::replace(&mut held[op.slot as usize], op.align_log2 != FREE);
            assert_eq!(was, op.align_log2 == FREE, "{}: slot {}", workload.name, op.slot);
        }
    }
}

#[test]
fn threads_have_streams_of_their_own() {
    let sizes = |n| shared(n)[1].make(1).rounds[0].iter().map(|op| op.size).collect::<Vec<_>>();
    assert_ne!(sizes(0), sizes(1));
}

#[test]
fn every_case_is_met_by_every_policy() {
    let contenders = SpaceContender::all(&[]).unwrap();
    for case in &cases::ALL {
        let taken = cases::measure(case, &contenders, 1).unwrap();
        let names: Vec<_> = taken.iter().map(|taken| taken.contender).collect();
        assert_eq!(names, ["ours", "ours-bare", "linux69", "onelock52"], "{}", case.name);
        assert!(taken.iter().all(|Taken { ns, .. }| ns.min > 0.0 && ns.min <= ns.median && ns.count == 1));
    }
}

#[test]
fn two_threads_run_on_every_policy_and_their_locks_are_counted() {
    let contenders = SpaceContender::all(&[]).unwrap();
    for pattern in 0..3 {
        let crowd = Crowd { pattern, threads: 2, time: Duration::from_millis(2), cores: &[] };
        let measured = threads::measure(crowd, &contenders, 1).unwrap();
        assert_eq!(measured.len(), 4);
        for shared in &measured {
            assert!(shared.ns.min > 0.0 && shared.pairs > 0, "{}", shared.contender);
            let counted = &shared.counted;
            let taken = |class: LockClass| counted.locks[class as usize].acquisitions;
            match shared.contender {
                // A magazine frees areas in batches.
                "ours" => assert!(taken(LockClass::Lazy) < counted.pairs),
                "onelock52" => assert!(taken(LockClass::Free) >= counted.pairs),
                _ => assert!(taken(LockClass::Pool) + taken(LockClass::Free) >= counted.pairs),
            }
            if shared.contender != "ours" {
                assert!(taken(LockClass::Lazy) >= counted.pairs, "{}", shared.contender);
            }
        }
    }
}

#[test]
fn a_lock_has_the_columns_of_lock_stat() {
    let seen = LockStat {
        con_bounces: 1,
        contentions: 2,
        wait_total_ns: 3000,
        wait_max_ns: 2000,
        acq_bounces: 4,
        acquisitions: 5,
        hold_total_ns: 10_000,
        hold_max_ns: 6000,
        ..LockStat::default()
    };
    let columns = columns("x", &seen);
    assert_eq!(columns, ["x", "1", "2", "2.00", "3.00", "1.50", "4", "5", "6.00", "10.00", "2.00"]);
}
