//! The output of `vmlab replay --space` for the shipped traces, and its errors.

use super::*;

/// Returns the row of one trace.
fn on_space(trace: &str, more: &[&str]) -> Value {
    let file = shipped(&format!("{trace}.ftrace.gz"));
    let assert = vmlab().args(["replay", "--space", "--json"]).args(more).arg(file).assert().success();
    serde_json::from_str(&stdout_of(&assert)).unwrap()
}

fn answers(row: &Value) -> [u64; 6] {
    ["allocs", "equal", "lower", "higher", "failed_both", "failed_differs"].map(|field| number(row, field))
}

fn reasons(row: &Value) -> u64 {
    row["why"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn linux_returns_every_address_of_four_cpus_through_four_nodes_and_of_one_through_one() {
    let row = on_space("fork-netns-smp4", &[]);
    assert_eq!((number(&row, "nodes"), answers(&row)), (4, [810, 810, 0, 0, 0, 0]));
    assert_eq!((number(&row, "purges"), number(&row, "flushes"), reasons(&row)), (272, 88, 0));
    for (trace, allocs, failed) in [
        ("boot-smp1", 103, 0),
        ("fork-netns-smp1", 322, 0),
        ("tc-flower-smp1", 292, 0),
        ("test_vmalloc-mask127-smp1", 67_187, 6),
    ] {
        let row = on_space(trace, &["--policy", "linux69"]);
        assert_eq!(answers(&row), [allocs, allocs - failed, 0, 0, failed, 0], "{trace}");
        assert_eq!(number(&row, "nodes"), 1);
    }
}

#[test]
fn rp2_what_cannot_agree_without_pools_or_with_others_is_counted_by_reason() {
    for more in [&["--nodes", "1"][..], &["--policy", "onelock52"], &["--policy", "standard"]] {
        let row = on_space("fork-netns-smp4", more);
        let [allocs, equal, lower, higher, both, differs] = answers(&row);
        assert_eq!(equal + lower + higher + both + differs, allocs, "{row}");
        assert!(equal < allocs && reasons(&row) == lower + higher + differs, "{row}");
        assert!(row["why"]["pool"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn the_table_names_the_differences_and_why() {
    let file = shipped("fork-netns-smp4.ftrace.gz");
    let assert = vmlab().args(["replay", "--space", "--policy", "onelock52"]).arg(file).assert().success();
    let stdout = stdout_of(&assert);
    for text in [
        "408 answers differ from the kernel's, the first:",
        "allocation 148, line 652: size 20480 align 16384: kernel 0xffa00000003d8000, onelock52 ",
        "fork-netns-smp4: 1 percpu chunk inferred",
        ": the range of one is another area's on the other side, from an earlier difference",
    ] {
        assert!(stdout.contains(text), "{text:?} in {stdout}");
    }
}

#[test]
fn a_recording_begins_with_the_areas_that_stood_before_it() {
    let file = shipped("held-out.jsonl.zst");
    let assert = vmlab().args(["replay", "--space", "--json"]).arg(&file).assert().success();
    let row: Value = serde_json::from_str(&stdout_of(&assert)).unwrap();
    assert_eq!(answers(&row), [3553, 2106, 1289, 158, 0, 0], "{row}");
    // One aligned request meets another hole, and ten areas are of unknown pools. All else follows from these.
    let why = ["aligned", "owner_unknown", "earlier"].map(|reason| number(&row["why"], reason));
    assert_eq!((why, reasons(&row)), ([1, 10, 1436], 1447), "{row}");
    assert_eq!((number(&row, "purges"), number(&row, "inferred")), (1, 1));
    let text = stdout_of(&vmlab().args(["replay", "--space"]).arg(&file).assert().success());
    assert!(text.contains("10 differences: an area that stood before the trace was freed there"), "{text}");
    // Text has the table in a file beside it, and its release in an option.
    let args = ["replay", "--space", "--json", "--kernel", "6.18"];
    let assert = vmlab().args(args).arg(shipped("running-kernel.ftrace.zst")).assert().success();
    let row: Value = serde_json::from_str(&stdout_of(&assert)).unwrap();
    assert_eq!(answers(&row), [6783, 3709, 2888, 186, 0, 0], "{row}");
}

#[test]
fn options_of_a_space_are_checked() {
    let file = shipped("boot-smp1.ftrace.gz");
    for (args, expected) in [
        (&["--space", "--nodes", "0"][..], "0 is not in 1..=4096"),
        (&["--space", "--nodes", "4097"], "4097 is not in 1..=4096"),
        (&["--space", "--policy", "x"], "invalid value 'x'"),
        (&["--space", "--index", "btree"], "cannot be used with"),
        (&["--space", "--report", "r"], "cannot be used with"),
        (&["--nodes", "2"], "--space"),
    ] {
        let assert = vmlab().arg("replay").args(args).arg(&file).assert().failure().code(2);
        assert!(stderr_of(&assert).contains(expected), "{args:?}: {}", stderr_of(&assert));
    }
}

#[test]
fn input_that_is_no_trace_is_one_line_and_one_that_ends_early_is_reported() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("t");
    std::fs::write(&file, "nothing\n").unwrap();
    let assert = vmlab().args(["replay", "--space"]).arg(&file).assert().failure().code(1);
    assert!(stderr_of(&assert).contains("no vmalloc event: 1 line read"), "{}", stderr_of(&assert));
    assert_eq!((stderr_of(&assert).lines().count(), stdout_of(&assert)), (1, String::new()));
    let bytes = gzip(SMALL.repeat(4000).as_bytes());
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let assert = vmlab().args(["replay", "--space", "--json"]).arg(&file).assert().failure().code(1);
    assert!(stderr_of(&assert).contains("the input ends early"), "{}", stderr_of(&assert));
}
