//! The comparison of targets.

use anyhow::Result;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use va_base::LockClass;
use va_sim::op::Rng;
use vmlab_bench::compare::locks::{CLASSES, name, table};
use vmlab_bench::compare::measure::{Scenario, Ways, common, measure};
use vmlab_bench::compare::observe::{LONGEST_NS, Latency};
use vmlab_bench::compare::origins::{Hints, csv};
use vmlab_bench::compare::ratio::{Figure, Ratio, UNMET, WITHIN};
use vmlab_bench::compare::scenario::{all as scenarios, is_usual};
use vmlab_bench::suite::case::{Case, Suite};
use vmlab_bench::suite::driver;
use vmlab_bench::suite::params::Params;
use vmlab_bench::suite::target::{Ask, Entry, Ram, Setup, Target, Unsettled, Worker, targets};
use vmlab_machine::{ContendedAt, LockStat, NOTHING};
use vmlab_targets::Era;

#[test]
fn the_engines_of_the_series_are_reported_with_69_for_the_first() {
    let mut hints = Hints { ns: [200.0, 100.0, 50.0].map(|ns| Figure::new(ns, [])), actions: 1 };
    assert_eq!(hints.as_seconds(), [69.0, 34.5, 17.25]);
    assert_eq!(hints.text(), "69 : 34 : 17.2 (of 69)");
    assert_eq!(csv(Some(&hints))[1], "hints,1,packed-12,percpu,action_ns,100.00");
    hints.ns[2] = Figure::new(50.0, [100.0]);
    assert_eq!(hints.text(), WITHIN);
}

#[test]
fn a_ratio_within_the_spread_of_the_rounds_is_not_printed() {
    // The fastest rounds differ by 3 %, and rounds of both took 1.01 to 1.05 s.
    let (one, other) = (Figure::new(0.98, [0.98, 1.05]), Figure::new(1.01, [1.06, 1.01]));
    let text = |of: &Figure, by: &Figure| Ratio::new(of, by).text(|times| format!("{times:.2}"));
    assert_eq!([text(&one, &other), text(&other, &one)], [WITHIN; 2]);
    // One round less, and all of one are faster.
    let apart = Figure::new(0.98, [1.0]);
    assert_eq!([text(&apart, &other), text(&other, &apart)], ["0.97", "1.03"]);
    // A stopped run may be anything above the limit.
    let stopped = Figure::at_least(1.03);
    assert_eq!([text(&apart, &stopped), text(&stopped, &apart)], ["< 0.95", "> 1.05"]);
    assert_eq!([text(&other, &stopped), text(&stopped, &stopped)], [WITHIN, "-"]);
}

#[test]
fn workers_that_ran_one_after_the_other_have_no_ratio() {
    let text = |met| Ratio::Times(2.0).of_workers(met, 64).text(|times| times.to_string());
    assert_eq!([text(63), text(64)], [UNMET, "2"]);
}

#[test]
fn classes_are_named_in_their_order() {
    for (at, class) in CLASSES.into_iter().enumerate() {
        assert_eq!(class as usize, at);
    }
    assert_eq!(name("one-lock", LockClass::Lookup), "vmap_blocks.xa_lock");
    assert_eq!(name("hashed", LockClass::Lookup), "&xa->xa_lock#1");
}

#[test]
fn a_class_is_followed_by_where_it_was_waited_for_and_where_it_was_held() {
    let mut locks = NOTHING;
    locks[LockClass::Busy as usize] = LockStat {
        con_bounces: 2,
        contentions: 3,
        wait_total_ns: 4500,
        wait_min_ns: 500,
        wait_max_ns: 3000,
        acquisitions: 9,
        ..LockStat::default()
    };
    locks[LockClass::Free as usize] = LockStat { contentions: 4, acquisitions: 4, ..LockStat::default() };
    let class = LockClass::Busy as usize;
    let [a, b] = [Location::caller(), Location::caller()];
    let contended = [
        ContendedAt { class, place: a, waited: 1, held: 3 },
        ContendedAt { class, place: b, waited: 2, held: 0 },
    ];
    let text = table("one-lock", &locks, &contended);
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let starts: Vec<&str> = words.iter().map(|words| words.first().copied().unwrap_or("")).collect();
    let rule = starts[0];
    assert_eq!(
        starts,
        [
            rule,
            "class",
            rule,
            "free_vmap_area_lock:",
            "",
            "vmap_area_lock:",
            "--------------",
            "vmap_area_lock",
            "vmap_area_lock",
            "--------------",
            "vmap_area_lock",
            ""
        ]
    );
    assert_eq!(words[5][1..7], ["2", "3", "0.50", "3.00", "4.50", "1.50"]);
    assert_eq!([words[7][1], words[8][1], words[10][1]], ["2", "1", "3"]);
    assert_eq!(words[7][2], format!("lab/vmlab-bench/tests/bench/compare.rs:{}", b.line()));
}

/// The loops of the usual scenarios.
const LOOPS: [u32; 4] = [10_000, 10_000, 10_000, 1_000_000];

#[test]
fn the_usual_scenarios_are_those_of_the_documents_and_counts_carry_over() {
    let params = Params { test_loop_count: 7, nr_pcpu_objects: 9, ..Params::new(Suite::V7_1) };
    let loops = scenarios(&Params::new(Suite::V7_1), 2, &[]);
    assert_eq!(loops.iter().map(|one| one.params.test_loop_count).collect::<Vec<_>>(), LOOPS);
    let all = scenarios(&params, 2, &[]);
    let shown: Vec<_> = all.iter().map(|one| (one.name, one.params.to_string())).collect();
    let counts = "test_loop_count=7";
    assert_eq!(
        shown,
        [
            ("one", format!("sequential_test_order=1 {counts} run_test_mask=255 nr_pcpu_objects=9")),
            ("all", format!("nr_threads=2 {counts} run_test_mask=255 nr_pcpu_objects=9")),
            ("crowd", format!("nr_threads=64 {counts} nr_pcpu_objects=9")),
            ("ram", format!("nr_threads=64 {counts} nr_pages=5 run_test_mask=1024 nr_pcpu_objects=9")),
        ]
    );
}

#[test]
fn parameters_that_select_replace_the_usual_scenarios() {
    let params = Params { nr_threads: 3, ..Params::new(Suite::V7_1) };
    let all = scenarios(&params, 2, &["nodes".to_string()]);
    assert_eq!((all.len(), all[0].params, &all[0].targets[..]), (1, params, &["nodes".to_string()][..]));
    assert!(!is_usual(&params) && is_usual(&Params::new(Suite::V6_12)));
}

/// A target whose last worker takes long to make. Its calls note a call before all workers were made.
struct SlowlyMade {
    target: Box<dyn Target>,
    made: AtomicU32,
    early: AtomicBool,
}

struct Noting<'t>(&'t SlowlyMade, Box<dyn Worker + 't>);

/// Workers of [`SlowlyMade`].
const MADE: u32 = 3;

impl Target for SlowlyMade {
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_> {
        if cpu == MADE - 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        let worker = self.target.worker(cpu);
        self.made.fetch_add(1, Ordering::SeqCst);
        Box::new(Noting(self, worker))
    }
    fn supports(&self, case: Case) -> bool {
        self.target.supports(case)
    }
    fn settle(&self) -> Result<(), Unsettled> {
        self.target.settle()
    }
}

impl Worker for Noting<'_> {
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        if self.0.made.load(Ordering::SeqCst) < MADE {
            self.0.early.store(true, Ordering::SeqCst);
        }
        self.1.vmalloc(ask)
    }
    fn vfree(&mut self, at: u64) {
        self.1.vfree(at);
    }
    fn write(&mut self, at: u64, byte: u8) {
        self.1.write(at, byte);
    }
    fn holds(&mut self, at: u64, byte: u8) -> bool {
        self.1.holds(at, byte)
    }
    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64> {
        self.1.vrealloc(at, had, bytes)
    }
    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        self.1.pages(count)
    }
    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        self.1.pcpu_alloc(bytes, align)
    }
    fn pcpu_free(&mut self, at: u64) {
        self.1.pcpu_free(at);
    }
}

#[test]
fn no_worker_begins_before_the_last_is_ready() {
    let target = Era::Standard.make(&ways().setup).unwrap();
    let target = SlowlyMade { target, made: AtomicU32::new(0), early: AtomicBool::new(false) };
    let params =
        Params { run_test_mask: 1, nr_threads: MADE, test_loop_count: 2, ..Params::new(Suite::V7_1) };
    let ran = driver::run(&target, &params, MADE, 1, &AtomicBool::new(false)).unwrap();
    assert!(!target.early.load(Ordering::SeqCst));
    // The last one to end saw all of them.
    assert_eq!(ran.workers.iter().map(|worker| worker.met).max(), Some(MADE));
    assert!((1..=MADE).contains(&ran.met()));
}

/// Our space, without per-CPU memory.
struct Less(Box<dyn Target>);

impl Target for Less {
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_> {
        self.0.worker(cpu)
    }
    fn supports(&self, case: Case) -> bool {
        case != Case::Pcpu
    }
    fn workers_max(&self) -> u32 {
        2
    }
    fn settle(&self) -> Result<(), Unsettled> {
        self.0.settle()
    }
}

fn make_less(setup: &Setup) -> Result<Box<dyn Target>> {
    let space = targets().into_iter().find(|entry| entry.name == "space").unwrap();
    Ok(Box::new(Less((space.make)(setup)?)))
}

fn ways() -> Ways {
    let setup = Setup { cpus: 2, kernel_lib: None, kernel_lib_percpu: None };
    let mut entries = targets();
    entries.push(Entry { name: "less", about: "has no per-CPU memory", make: make_less });
    Ways { rounds: 1, limit: Duration::from_secs(60), cpus: 2, seed: 1, setup, entries }
}

fn scenario(run_test_mask: u32, nr_threads: u32) -> Scenario {
    let params = Params { run_test_mask, nr_threads, test_loop_count: 2, ..Params::new(Suite::V7_1) };
    Scenario { name: "yours", params, targets: ["space", "less"].map(str::to_string).to_vec() }
}

#[test]
fn a_test_that_one_target_cannot_run_is_run_on_none() {
    let both = common(scenario(Case::FixSize.bit() | Case::Pcpu.bit(), 1), &ways(), &mut Vec::new()).unwrap();
    assert_eq!(both.params.run_test_mask, Case::FixSize.bit());
    let measured = measure(&both, &ways(), &mut Vec::new()).unwrap();
    let masks: Vec<u32> = measured.iter().map(|one| one.ran.params.run_test_mask).collect();
    assert_eq!(masks, [Case::FixSize.bit(); 2]);
    let none = common(scenario(Case::Pcpu.bit(), 1), &ways(), &mut Vec::new()).unwrap_err().to_string();
    assert!(none.starts_with("yours: the targets have none of the tests "), "{none}");
}

#[test]
fn more_workers_than_linux_has_nodes_run_and_more_than_a_target_takes_are_an_error() {
    let many = scenario(Case::FixSize.bit(), 131);
    let message = format!("{:#}", common(many.clone(), &ways(), &mut Vec::new()).unwrap_err());
    assert_eq!(message, "yours: less: at most 2 workers (nr_threads), not 131");
    let alone = Scenario { targets: vec!["space".to_string()], ..many };
    assert_eq!(measure(&alone, &ways(), &mut Vec::new()).unwrap()[0].ran.workers.len(), 131);
}

/// A reference model: the percentile of all sorted values.
fn percentile(sorted: &[u64], of_100: f64) -> u64 {
    let rank = (of_100 / 100.0 * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank - 1]
}

#[test]
fn latencies_agree_with_a_sorted_list_to_three_digits() {
    for (seed, top) in [(1, 1 << 8), (2, 1 << 16), (3, 1 << 38)] {
        let mut rng = Rng::new(seed);
        let mut all = Vec::new();
        let mut halves = [Latency::none(), Latency::none()];
        for at in 0..20_000 {
            // Most are short and a few are long, like real calls.
            let ns = (0..3).fold(top, |top, _| 1 + rng.below(top));
            all.push(ns);
            halves[at % 2].record(ns);
        }
        all.sort_unstable();
        let [mut latency, other] = halves;
        latency.add(&other);
        assert_eq!(latency.calls(), all.len() as u64);
        for of_100 in [1.0, 50.0, 90.0, 99.0, 99.9, 99.99] {
            let (got, want) = (latency.percentile(of_100), percentile(&all, of_100));
            assert!(got.abs_diff(want) <= want / 500, "{of_100} of seed {seed}: {got}, {want}");
        }
        let (got, want) = (latency.worst(), all[all.len() - 1]);
        assert!(got.abs_diff(want) <= want / 500, "{got} {want}");
    }
}

#[test]
fn a_latency_beyond_an_hour_is_an_hour() {
    let mut latency = Latency::none();
    latency.record(u64::MAX);
    assert!(latency.worst() >= LONGEST_NS && latency.calls() == 1);
}
