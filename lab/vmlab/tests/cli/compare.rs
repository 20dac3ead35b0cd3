//! `vmlab test --compare`: numbers that parse and add up. Other tests check their values.

use super::{TempDir, contains, stdout_of, vmlab};
use std::collections::BTreeMap;

/// Three tests, few loops, three workers, two targets.
const SMALL: [&str; 9] = [
    "test",
    "--compare",
    "one-lock,space",
    "--rounds",
    "1",
    "run_test_mask=1033",
    "test_loop_count=400",
    "nr_threads=3",
    "nr_pages=5",
];
const TARGETS: [&str; 2] = ["one-lock", "space"];
/// Calls of a run: 400 loops of three workers, so that one-time set-up hardly counts.
const PAIRS: f64 = 1200.0;

/// Scenario, workers, target, subject and figure, mapped to the value.
type Figures = BTreeMap<[String; 5], f64>;

fn figures(csv: &str) -> Figures {
    let lines = csv.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .map(|line| {
            let cells: Vec<String> = line.split(',').map(str::to_string).collect();
            let [scenario, workers, target, of, figure, value] = <[String; 6]>::try_from(cells).unwrap();
            ([scenario, workers, target, of, figure], value.parse().unwrap())
        })
        .collect()
}

#[test]
fn a_comparison_of_two_targets_has_figures_that_add_up() {
    let dir = TempDir::new().unwrap();
    let assert = vmlab().args(SMALL).args(["--out", "here"]).current_dir(&dir).assert().success();
    let stdout = stdout_of(&assert);
    for text in ["ratio to the first", "p99.9", "waiting for locks", "con-bounces", "free_vmap_area_lock:"] {
        assert!(stdout.contains(text), "{text:?} in {stdout}");
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join("here").join(name)).unwrap();
    let figures = figures(&read("test-compare.csv"));
    for target in TARGETS {
        let of = |of: &str, figure: &str| -> f64 {
            let key = ["yours", "3", target, of, figure].map(str::to_string);
            *figures.get(&key).unwrap_or_else(|| panic!("no {key:?}"))
        };
        // Both tests that allocate free everything, and the third maps.
        assert_eq!(of("vmalloc", "calls"), 2.0 * PAIRS, "{target}");
        assert_eq!(of("vfree", "calls"), 2.0 * PAIRS);
        assert_eq!(of("vm_map_ram + vm_unmap_ram", "calls"), PAIRS);
        for call in ["vmalloc", "vfree", "vm_map_ram + vm_unmap_ram"] {
            let ns = ["p50_ns", "p99_ns", "p999_ns", "worst_ns"].map(|figure| of(call, figure));
            assert!(ns[0] > 0.0 && ns.is_sorted(), "{target} {call}: {ns:?}");
        }
        // The time of a loop is the mean of the workers' times, divided by all loops.
        let mut longest = [0.0; 3];
        for test in ["fix_size_alloc_test", "random_size_alloc_test", "vm_map_ram_test"] {
            let times = [0, 1, 2].map(|worker| of(test, &format!("worker{worker}_seconds")));
            let mean = times.iter().sum::<f64>() * 1e9 / PAIRS;
            assert!((mean - of(test, "loop_ns")).abs() <= 0.02 * mean + 50.0, "{target} {test}");
            longest.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        // The run lasts as long as its slowest worker.
        let slowest = longest.into_iter().fold(0.0, f64::max);
        assert!((slowest - of("run", "seconds")).abs() < 1e-5, "{target}");
        assert_eq!(of("run", "stopped"), 0.0);
    }
    // With one lock each allocation and each free of an area acquires it; a block is allocated from the space
    // occasionally.
    let taken = |target: &str, lock: &str| {
        let key = ["yours", "3", target, lock, "acquisitions"].map(str::to_string);
        figures.get(&key).copied().unwrap_or(0.0)
    };
    assert!(taken("one-lock", "free_vmap_area_lock") >= 2.0 * PAIRS);
    assert!(taken("one-lock", "vmap_area_lock") >= 4.0 * PAIRS);
    assert!(taken("space", "free_vmap_area_lock") < 2.0 * PAIRS);
    for ((what, value), contentions) in figures.iter().filter_map(|(what, value)| {
        let mut key = what.clone();
        key[4] = "contentions".into();
        (what[4] == "con_bounces").then(|| ((what, value), figures[&key]))
    }) {
        assert!(*value <= contentions, "{what:?}");
    }
    let page = read("test-compare.md");
    for chart in ["before", "after", "both"] {
        let file = format!("test-compare-yours-{chart}.svg");
        assert!(page.contains(&format!("![{file}]({file})")));
        let svg = read(&file);
        let bars = if chart == "both" { 18 } else { 9 };
        assert_eq!(svg.matches("class=\"bar\"").count(), bars, "{file}");
    }
}

#[test]
fn a_run_that_takes_too_long_is_stopped_and_its_time_a_bound() {
    let arguments = ["test", "--compare=space,list", "--limit", "1", "--rounds", "2"];
    let assert =
        vmlab().args(arguments).args(["run_test_mask=1", "test_loop_count=2147483647"]).assert().success();
    let stdout = stdout_of(&assert);
    let bound = regex::Regex::new(r"> \d").unwrap();
    assert!(stdout.contains("stopped") && bound.is_match(&stdout), "{stdout}");
    assert!(!stdout.contains("p50 │ 0"), "{stdout}");
}

#[test]
fn what_cannot_be_compared_is_reported_in_one_line() {
    for (arguments, code, expected) in [
        (&["--compare", "unknown"][..], 1, "no target is called unknown (there are space, "),
        (&["--compare", "--rounds", "0"], 2, "--rounds"),
        (&["--rounds", "2"], 2, "--compare"),
        (&["--compare", "--table"], 2, "--table"),
        (&["--out", "x"], 2, "--table"),
        (&["--compare", "list", "nr_threads=0"], 1, "value is not correct: nr_threads=0"),
        (&["--compare", "run_test_mask=8192"], 1, "selects none of the tests"),
    ] {
        vmlab().arg("test").args(arguments).assert().code(code).stdout("").stderr(contains(expected));
    }
}
