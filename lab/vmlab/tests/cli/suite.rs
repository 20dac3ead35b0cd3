//! `vmlab test`: the lines that scripts read, failures, and early ends.

use super::{Command, Stdio, contains, vmlab};
use regex::Regex;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};

/// The kernel's format of the lines (`lib/test_vmalloc.c` of 7.1, and of 6.12, which has no `xfailed`).
const SUMMARY: &str =
    r"^Summary: (\w+) passed: (\d+) failed: (\d+) xfailed: (\d+) repeat: (\d+) loops: (\d+) avg: (\d+) usec$";
const SUMMARY_612: &str =
    r"^Summary: (\w+) passed: (\d+) failed: (\d+) repeat: (\d+) loops: (\d+) avg: (\d+) usec$";
const TOOK: &str = r"^All test took worker(\d+)=(\d+) cycles$";

/// All tests of the suite.
const ALL: u32 = 8191;

/// Runs the tests of a mask with short loops: each test of each worker passes, except those that may fail.
fn passes(target: &str, mask: u32) {
    let (tests, mut command) = (mask.count_ones() as usize, vmlab());
    command.args([
        "test",
        "--target",
        target,
        &format!("run_test_mask={mask}"),
        "nr_threads=2",
        "nr_pages=3",
    ]);
    command.args(["test_loop_count=200", "nr_pcpu_objects=300"]);
    let output = command.assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * (tests + 1) + 1, "{text}");
    assert!(lines[0].starts_with("Run the test with following parameters: nr_threads=2 "), "{}", lines[0]);
    let (summary, took) = (Regex::new(SUMMARY).unwrap(), Regex::new(TOOK).unwrap());
    for (worker, lines) in lines[1..lines.len() - 1].chunks(tests + 1).enumerate() {
        let mut names = BTreeSet::new();
        for line in &lines[..tests] {
            let parts = summary.captures(line).unwrap_or_else(|| panic!("{line}"));
            let counts = [&parts[2], &parts[3], &parts[4]];
            // A page at an alignment of 2^63 does not exist.
            let expected =
                if &parts[1] == "align_shift_alloc_test" { ["0", "0", "1"] } else { ["1", "0", "0"] };
            assert_eq!(counts, expected, "{target}: {line}");
            assert_eq!([&parts[5], &parts[6]], ["1", "200"], "{line}");
            names.insert(parts[1].to_string());
        }
        assert_eq!(names.len(), tests);
        let parts = took.captures(lines[tests]).unwrap_or_else(|| panic!("{}", lines[tests]));
        assert_eq!(parts[1], worker.to_string());
        assert!(parts[2].parse::<u64>().unwrap() > 0);
    }
    assert_eq!(lines.last(), Some(&"Done."));
}

#[test]
fn every_test_of_the_suite_passes_on_our_space() {
    passes("space", ALL);
}

#[test]
fn every_test_of_the_suite_passes_on_the_memory_of_a_process() {
    passes("process", ALL);
}

#[test]
fn every_test_of_the_suite_passes_on_linux_of_other_times() {
    ["one-lock", "hashed", "nodes"].into_iter().for_each(|target| passes(target, ALL));
    // With thousands of holes a walk of the list takes minutes in an unoptimised build.
    passes("list", ALL & !2);
}

#[test]
fn the_suite_of_6_12_has_its_lines_and_its_failure_is_no_error() {
    let mut command = vmlab();
    command.args([
        "test",
        "--suite",
        "6.12",
        "run_test_mask=65",
        "test_loop_count=10",
        "test_repeat_count=2",
    ]);
    let text = String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap();
    let summary = Regex::new(SUMMARY_612).unwrap();
    let counts: Vec<_> = text
        .lines()
        .filter_map(|line| summary.captures(line))
        .map(|parts| [1, 2, 3, 4, 5].map(|part| parts[part].to_string()))
        .collect();
    assert_eq!(
        counts,
        [["fix_size_alloc_test", "2", "0", "2", "10"], ["align_shift_alloc_test", "0", "2", "2", "10"]]
    );
}

#[test]
fn a_failed_test_is_counted_and_sets_the_exit_status() {
    // Four gigabytes in a process with a limit of two.
    let script = "ulimit -v 2000000; exec \"$0\" test --target process nr_pages=1048576 run_test_mask=1";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_vmlab")]);
    command
        .assert()
        .code(1)
        .stdout(contains("Summary: fix_size_alloc_test passed: 0 failed: 1 xfailed: 0 "))
        .stderr("vmlab: process: 1 of the tests failed that should not\n");
}

#[test]
fn an_interrupt_ends_it_with_the_summaries_so_far() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vmlab"));
    command.args(["test", "run_test_mask=3", "test_loop_count=2147483647", "nr_threads=2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("Run the test"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let (summary, took) = (Regex::new(SUMMARY).unwrap(), Regex::new(TOOK).unwrap());
    assert_eq!(rest.iter().filter(|line| summary.is_match(line)).count(), 4, "{rest:#?}");
    assert_eq!(rest.iter().filter(|line| took.is_match(line)).count(), 2);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "vmlab: space: interrupted; what is shown is of what ran until then\n");
}

#[test]
fn mistakes_are_one_line_and_run_nothing() {
    for (arguments, expected) in [
        (&["nr_threads=0"][..], "value is not correct: nr_threads=0"),
        (&["fast"], "\"fast\" is neither performance, stress, smoke nor key=value"),
        (&["smoke", "nr_pages=2"], "smoke takes no other arguments"),
        (&["--target", "void"], "no target is called void (there are space, process, "),
        (&["--target", "linux"], "the target linux needs a library: --kern FILE"),
        (&["--target", "linux", "--kern", "no.so"], "cannot load no.so"),
        (&["--table", "--out", "/proc/no", "test_loop_count=1"], "/proc/no"),
    ] {
        let assert =
            vmlab().arg("test").args(arguments).assert().code(1).stdout("").stderr(contains(expected));
        let stderr = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert!(stderr.starts_with("vmlab: ") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn a_table_has_a_row_for_each_test_and_a_column_for_each_target() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut command = vmlab();
    command.args(["test", "run_test_mask=1025", "test_loop_count=20", "--target", "all", "--table", "--out"]);
    command.arg(dir.path()).assert().success().stdout(contains("fix_size_alloc_test"));
    let page = std::fs::read_to_string(dir.path().join("test-suite.md")).unwrap();
    for part in [
        "| bit ",
        " space ",
        " process ",
        "| 1024 | vm_map_ram_test",
        "test_loop_count=20 run_test_mask=1025",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
