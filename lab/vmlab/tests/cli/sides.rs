//! The comparison of two recordings or tables by `vmlab compare`.

use super::*;

fn compare(args: &[&str]) -> assert_cmd::assert::Assert {
    vmlab().arg("compare").args(args).assert()
}

fn path(name: &str) -> String {
    shipped(name).to_str().unwrap().to_string()
}

#[test]
fn tables_of_one_kernel_are_compared_by_caller() {
    let [before, after] =
        ["running-kernel.before.vmallocinfo.zst", "running-kernel.vmallocinfo.zst"].map(path);
    let value: Value =
        serde_json::from_str(&stdout_of(&compare(&[&before, &after, "--json"]).success())).unwrap();
    let bytes = |side: &str, caller: &str| {
        let mut text = String::new();
        let name = if side == "before" {
            "running-kernel.before.vmallocinfo.zst"
        } else {
            "running-kernel.vmallocinfo.zst"
        };
        vmlab_trace::open(&shipped(name)).unwrap().read_to_string(&mut text).unwrap();
        let lines = text.lines().filter(|line| line.contains(&format!(" {caller}+")));
        lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    for side in ["before", "after"] {
        for caller in ["kernel_clone", "bpf_prog_alloc_no_stats", "htab_map_alloc"] {
            assert_eq!(
                value[side]["callers"][caller][0].as_u64(),
                Some(bytes(side, caller)),
                "{side} {caller}"
            );
        }
    }
    let text = stdout_of(&compare(&[&before, &after]).success());
    let growth = bytes("after", "kernel_clone") - bytes("before", "kernel_clone");
    assert!(text.contains("kernel_clone") && text.contains(&format!("+{} KiB", growth / 1024)), "{text}");
    assert!(!text.contains("allocated and not freed"), "a table does not know when\n{text}");
    let same = stdout_of(&compare(&[&before, &before]).success());
    assert!(same.contains("every caller has as much on both sides"), "{same}");
}

#[test]
fn recordings_have_leaks_with_their_age_and_conditions_end_with_a_status() {
    let [boot, netns] = ["boot-smp1.ftrace.gz", "fork-netns-smp1.ftrace.gz"].map(path);
    let text = stdout_of(&compare(&[&boot, &netns]).success());
    assert!(text.contains("100.00 %") && text.contains("allocated and not freed in B"), "{text}");
    let value: Value =
        serde_json::from_str(&stdout_of(&compare(&[&boot, &netns, "--json"]).success())).unwrap();
    // All that is busy was allocated in the trace, which begins with the boot.
    let measure = |name: &str| value["after"]["measures"][name].as_f64().unwrap();
    assert_eq!(measure("leaked"), measure("busy"));
    assert_eq!(measure("equal"), 100.0);
    for (condition, status) in [
        ("equal<100", 0),
        ("equal<100||busy.growth>0", 3),
        ("equal<=100", 3),
        ("lazy>1T || holes.growth<0", 0),
        ("largest==3", 0),
    ] {
        let assert = compare(&[&boot, &netns, "--fail-if", condition]).code(status);
        assert_eq!(
            stderr_of(&assert).contains(" holds: "),
            status == 3,
            "{condition}: {}",
            stderr_of(&assert)
        );
    }
    compare(&[&boot, &netns, "--fail-if", "speed>3"])
        .code(2)
        .stderr(contains("\"speed\" is none of equal, busy"));
    let table = path("boot-smp1.vmallocinfo");
    let assert = compare(&[&table, &table, "--fail-if", "equal<100"]).failure().code(1);
    assert!(
        stderr_of(&assert).contains("it does not have equal, a recording does"),
        "{}",
        stderr_of(&assert)
    );
    compare(&[&boot, &path("README.md")]).failure().code(1);
}

#[test]
fn durations_are_compared_with_intervals_and_have_conditions() {
    let [boot, slow] = ["boot-smp1.ftrace.gz", "latency-smp4.jsonl.gz"].map(path);
    let text = stdout_of(&compare(&[&slow, &slow]).success());
    let alloc = text.lines().find(|line| line.starts_with("alloc median ")).unwrap();
    assert!(alloc.contains("4.13 us (") && !alloc.contains('%'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.contains("certainty")), "{text}");
    let value: Value =
        serde_json::from_str(&stdout_of(&compare(&[&boot, &slow, "--json"]).success())).unwrap();
    let alloc = &value["after"]["durations"]["alloc"];
    assert_eq!((alloc["count"].as_u64(), alloc["p99_ns"].as_u64()), (Some(1745), Some(68328)), "{alloc}");
    assert!(
        alloc["p99_interval_ns"][0].as_u64() < Some(68328) && value["before"]["durations"]["alloc"].is_null()
    );
    for (condition, status) in
        [("equal<0 || p99>50us", 3), ("p99>69us", 0), ("p50.growth!=0", 0), ("p999>11ms", 3)]
    {
        compare(&[&slow, &slow, "--fail-if", condition]).code(status);
    }
    let assert = compare(&[&slow, &boot, "--fail-if", "p99>50us"]).failure().code(1);
    assert!(stderr_of(&assert).contains("does not have p99, a recording of --latency does"));
}
