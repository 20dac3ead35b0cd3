//! The output of `vmlab replay --percpu` for the shipped traces, and its errors; the arguments and files of
//! `vmlab bench percpu`.

use super::*;

/// Returns the rows of one trace, one for each policy.
fn inside(trace: &str) -> Vec<Value> {
    let file = shipped(&format!("{trace}.ftrace.gz"));
    let assert = vmlab().args(["replay", "--percpu", "--json"]).arg(file).assert().success();
    stdout_of(&assert).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rp3_linux_puts_every_object_of_one_cpu_where_the_kernel_did() {
    for (trace, allocs) in [("boot-smp1", 449), ("fork-netns-smp1", 2809), ("tc-flower-smp1", 30_938)] {
        let rows = inside(trace);
        let policies: Vec<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
        assert_eq!(policies, ["linux612", "scan", "runs"]);
        assert_eq!((number(&rows[0], "allocs"), number(&rows[0], "equal")), (allocs, allocs), "{trace}");
        assert_eq!((number(&rows[0], "frees_unknown"), number(&rows[0], "assumed_bytes")), (0, 2416));
        for row in &rows {
            let columns = ["equal", "lower", "higher", "elsewhere", "failed"];
            let sum: u64 = columns.iter().map(|column| number(row, column)).sum();
            assert_eq!(sum, allocs, "{row}");
        }
    }
}

#[test]
fn a_trace_without_percpu_events_is_reported_in_a_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("small");
    std::fs::write(&file, SMALL).unwrap();
    let assert = vmlab().args(["replay", "--percpu"]).arg(&file).assert().failure();
    assert!(stderr_of(&assert).contains("no percpu allocation"));
}

#[cfg(feature = "measure")]
#[test]
fn a_part_of_the_measurements_writes_files_only_where_requested() {
    let dir = TempDir::new().unwrap();
    let run = ["bench", "percpu", "--quick", "--filter", "zero"];
    vmlab().args(run).current_dir(&dir).assert().success();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    vmlab().args(run).args(["--out", "here"]).current_dir(&dir).assert().success();
    let csv = std::fs::read_to_string(dir.path().join("here/percpu.csv")).unwrap();
    assert!(csv.lines().any(|line| line.starts_with("zero,16 bytes in 4 units")), "{csv}");
    let nothing =
        vmlab().args(["bench", "percpu", "--filter", "nothing"]).current_dir(&dir).assert().failure();
    assert!(stderr_of(&nothing).contains("no workload's name"));
    let none = vmlab()
        .args(["bench", "percpu", "--quick", "--kern", "none.so"])
        .current_dir(&dir)
        .assert()
        .failure();
    assert!(stderr_of(&none).contains("none.so"));
}
