//! The output of `vmlab replay --diff` for the recording of a running kernel, and its errors.

use super::*;

/// Returns the beginning of the recording, with the table before it.
fn beginning(dir: &TempDir) -> PathBuf {
    let text = |name: &str| {
        let mut text = String::new();
        vmlab_trace::open(&shipped(name)).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    let path = dir.path().join("running-kernel.ftrace");
    let events: Vec<String> =
        text("running-kernel.ftrace.zst").lines().take(1500).map(str::to_string).collect();
    std::fs::write(&path, events.join("\n") + "\n").unwrap();
    let table = dir.path().join("running-kernel.before.vmallocinfo");
    std::fs::write(table, text("running-kernel.before.vmallocinfo.zst")).unwrap();
    path
}

fn json(args: &[&str], file: &Path) -> Vec<Value> {
    let assert = vmlab().args(["replay", "--json"]).args(args).arg(file).assert().success();
    stdout_of(&assert).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn df2_linux_answers_as_the_running_kernel_did_and_what_differs_has_a_cause() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().to_str().unwrap();
    let rows = json(&["--diff=2", "--kernel", "6.18", "--out", out], &shipped("running-kernel.ftrace.zst"));
    let of = |field: &str| -> Vec<u64> { rows.iter().map(|row| number(row, field)).collect() };
    let policies: Vec<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
    assert_eq!(policies, ["linux616", "onelock52", "standard"]);
    assert_eq!(of("allocs"), [6783; 3]);
    assert_eq!(of("equal"), [6724, 788, 2579]);
    assert_eq!(of("unknowable"), [44, 0, 44]);
    // What no single fact explains is not counted as a cause.
    assert_eq!(rows[0]["causes"]["unexplained"], 1);
    for row in &rows {
        assert_eq!((&row["known"]["pools"], number(&row["known"], "lazy")), (&Value::Bool(true), 2626));
    }
    // The kernel's ledger agrees with its own table at the end.
    let end = &rows[0]["end"];
    let agree = ["areas", "agree", "only_in_books"].map(|field| number(end, field));
    assert_eq!(agree, [2833, 2833, 0]);
    let linux = &rows[0]["causes"];
    assert_eq!((number(linux, "tree-shape"), number(linux, "owner-unknown")), (14, 39));
    assert_eq!(number(&rows[1]["causes"], "kernel-pool"), 4601);
    let page = std::fs::read_to_string(dir.path().join("running-kernel.md")).unwrap();
    assert!(page.contains("| linux616 | 2 | 6,783 | 6,724 |"), "{page}");
    assert!(page.contains("| pool of a node that is not known | not knowable | 39 |"), "{page}");
    assert!(page.contains("allocation 33 (line 604, 48806.229929 s, CPU 1)"), "{page}");
}

#[test]
fn four_cpus_under_purges_agree_once_each_purge_begins_where_its_count_says() {
    let row =
        |name: &str| json(&["--diff=0", "--policy", "linux69", "--kernel", "6.12"], &shipped(name)).remove(0);
    let nodes = row("nodes-smp4.ftrace.gz");
    assert_eq!((number(&nodes, "allocs"), number(&nodes, "equal")), (4965, 4950), "{nodes}");
    let causes = ["event-order", "pool-missed", "unexplained"].map(|cause| number(&nodes["causes"], cause));
    assert_eq!((causes, number(&nodes, "purges"), number(&nodes, "purges_begun")), ([9, 5, 1], 20, 8));
    // Facts that are supplied are few.
    assert!((causes[0] + causes[1] + 8) * 20 < 4965);
    let netns = row("fork-netns-smp4.ftrace.gz");
    assert_eq!((number(&netns, "allocs"), number(&netns, "equal")), (810, 810), "{netns}");
    assert_eq!((number(&netns, "purges"), number(&netns, "purges_begun")), (88, 1));
}

#[test]
fn without_resynchronising_what_follows_from_a_difference_is_distinguished() {
    let dir = TempDir::new().unwrap();
    let rows =
        json(&["--diff=0", "--kernel", "6.18", "--policy", "onelock52", "--no-resync"], &beginning(&dir));
    assert!(rows.len() == 1 && number(&rows[0], "allocs") > 100, "{}", rows[0]);
    assert!(number(&rows[0]["causes"], "earlier") > 0, "{}", rows[0]);
}

#[test]
fn differences_are_listed() {
    let dir = TempDir::new().unwrap();
    vmlab()
        .args(["replay", "--diff=2", "--policy", "linux616", "--kernel", "6.18"])
        .arg(beginning(&dir))
        .assert()
        .success()
        .stdout(contains("running-kernel: linux616: allocation 33 (line 604, 48806.229929 s, CPU 1)"))
        .stdout(contains("differences more; --diff=all lists all"))
        .stdout(contains("pools were empty, as a mark says"));
}

#[test]
fn addresses_are_text_and_what_to_do_about_unknown_facts_is_said() {
    let dir = TempDir::new().unwrap();
    let row = &json(&["--diff=1", "--kernel", "6.18", "--policy", "linux616"], &beginning(&dir))[0];
    assert_eq!(row["version"], 2);
    let hex = |value: &Value| {
        value.as_str().is_some_and(|text| u64::from_str_radix(&text[2..], 16).is_ok() && &text[..2] == "0x")
    };
    let first = &row["divergences"][0];
    assert!([&first["window"][0], &first["window"][1], &first["kernel"]].into_iter().all(hex), "{first}");
    assert!(row["offsets"]["divergences"].as_array().unwrap().iter().all(|one| hex(&one["base"])), "{row}");
    let file = dir.path().join("t.ftrace");
    let text = text_of("boot-smp1");
    std::fs::write(&file, &text).unwrap();
    let notes = |file: &Path| {
        stdout_of(&vmlab().args(["replay", "--diff=0", "--policy", "linux69"]).arg(file).assert().success())
    };
    assert!(notes(&file).contains("vmlab record writes one, and --before names one"));
    let table = "0xffa0100000000000-0xffa0100000002000 8192 f+0x1/0x2 vmalloc\n";
    std::fs::write(dir.path().join("t.before.vmallocinfo"), table).unwrap();
    assert!(notes(&file).contains("vmlab record --drain-pools empties them first"));
}

#[test]
fn what_cannot_be_compared_is_reported_in_a_line() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("t.ftrace");
    std::fs::write(&file, "x-1 [000] 1.0: free_vmap_area_noflush: va_start=0x1000\n").unwrap();
    let fails_with = |args: &[&str], why: &str| {
        vmlab().arg("replay").args(args).arg(&file).assert().failure().stderr(contains(why));
    };
    fails_with(&["--diff"], "no allocation among its events");
    fails_with(&["--diff=few"], "few is neither a number nor all");
    fails_with(&["--no-resync"], "--diff");
    std::fs::write(&file, text_of("boot-smp1")).unwrap();
    fails_with(&["--diff", "--kernel", "new"], "new is no release of a kernel");
    let hashed = dir.path().join("t.before.vmallocinfo");
    std::fs::write(hashed, "0x00000000a3eb8df1-0x0000000040ab02d3   20480 f+0x1/0x2 vmap\n").unwrap();
    fails_with(&["--diff"], "no address that can be used");
}

#[test]
fn a_recording_is_replayed_with_its_own_tables_and_release() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().to_str().unwrap();
    let file = shipped("held-out.jsonl.zst");
    let args = ["replay", "--diff=0", "--policy", "linux616", "--json", "--out", out];
    let assert = vmlab().args(args).arg(&file).assert().success();
    let row: Value = serde_json::from_str(stdout_of(&assert).trim()).unwrap();
    // A held-out recording: no cause was written for it.
    assert_eq!((number(&row, "allocs"), number(&row, "equal"), number(&row, "unknowable")), (3553, 3542, 7));
    assert_eq!(row["causes"].get("unexplained"), None);
    let end = ["areas", "agree", "only_in_books"].map(|field| number(&row["end"], field));
    assert_eq!((end[0], end[2]), (end[1], 0));
    let offsets = &row["offsets"];
    let of = ["allocs", "equal", "lower", "chunks_new", "new_allocs"].map(|field| number(offsets, field));
    assert_eq!(of, [18260, 18208, 50, 1, 4932]);
    // In a chunk created during the recording everything is known, and every offset is the kernel's.
    assert_eq!(number(offsets, "new_equal"), 4932);
    let page = std::fs::read_to_string(dir.path().join("held-out.md")).unwrap();
    assert!(page.contains("## Offsets in percpu chunks"), "{page}");
    // An index has no pools, as the policy of 5.2: of those of the running kernel, it finds as many as that does.
    for (file, allocs, equal, holes) in
        [(file, 3553, 231, 2721), (shipped("running-kernel.ftrace.zst"), 6783, 788, 2167)]
    {
        let assert = vmlab().args(["replay", "--index", "rb-linux", "--json"]).arg(&file).assert().success();
        let row: Value = serde_json::from_str(stdout_of(&assert).trim()).unwrap();
        let of = ["allocs", "equal", "holes"].map(|field| number(&row, field));
        assert_eq!(of, [allocs, equal, holes], "{row}");
    }
}

#[test]
fn the_policy_of_each_version_has_the_addresses_of_its_kernel_and_no_other_has() {
    for (trace, policy, kernel, wanted) in [
        ("debian-6.1", "onelock52", "6.1", 1698..=1703),
        ("debian-6.18", "linux616", "6.18", 1843..=1846),
        ("debian-7.3", "linux616", "7.3", 1832..=1835),
        // The decay of another version keeps other areas in pools.
        ("debian-6.18", "linux69", "6.18", 0..=300),
        ("debian-7.3", "linux69", "7.3", 0..=300),
    ] {
        let trace = shipped(&format!("{trace}.ftrace.gz"));
        let equal =
            json(&["--diff=0", "--kernel", kernel, "--policy", policy], &trace)[0]["equal"].as_u64().unwrap();
        assert!(wanted.contains(&equal), "{policy} on {}: {equal}", trace.display());
    }
}
