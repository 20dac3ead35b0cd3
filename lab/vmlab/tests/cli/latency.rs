//! `vmlab latency`: durations and waits of a recording that is written here, and of the running kernel.

use super::record::can_record;
use super::*;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A recording: `loops` calls of three functions on two CPUs, and waits for two locks.
pub(super) fn text(loops: u64) -> String {
    let mut text = String::new();
    let mut line = |pid: u32, ns: u64, event: &str| {
        let cpu = pid % 2;
        let head = format!("{:>16}-{pid:<7} [{cpu:03}] ..... 1.{ns:09}: ", "sh");
        let _ = writeln!(text, "{head}{event}");
    };
    for n in 0..loops {
        let (pid, at) = (7 + (n % 2) as u32, 1000 * n);
        let (alloc, free) = alloc_and_free(n);
        line(pid, at, "vmlab_enter_alloc: (alloc_vmap_area+0x0/0x9a0)");
        if n % 5 == 0 {
            line(pid, at + 10, "contention_begin: 00000000000000bb (flags=SPIN)");
            line(
                pid,
                at + 11,
                "<stack trace>\n => _raw_spin_lock\n => alloc_vmap_area\n => caller\n => root",
            );
            line(pid, at + 30, "contention_end: 00000000000000bb (ret=0)");
        }
        if n % 7 == 0 {
            line(pid, at + 31, "contention_begin: 00000000000000cc (flags=SPIN)");
            line(
                pid,
                at + 31,
                "<stack trace>\n => _raw_spin_lock\n => kmem_cache_alloc\n => alloc_vmap_area",
            );
            line(pid, at + 33, "contention_end: 00000000000000cc (ret=0)");
        }
        line(pid, at + alloc, &format!("vmlab_leave_alloc: (caller_{}+0x1/0x2 <- alloc_vmap_area)", n % 3));
        line(pid, at + 500, "vmlab_enter_free: (free_vmap_area_noflush+0x0/0x90)");
        line(pid, at + 500 + free, "vmlab_leave_free: (remove_vm_area+0x1/0x2 <- free_vmap_area_noflush)");
    }
    line(7, 1000 * loops, "vmlab_enter_drain: (drain_vmap_area_work)");
    text
}

/// The nanoseconds of the nth calls.
fn alloc_and_free(n: u64) -> (u64, u64) {
    (100 + (n * 37) % 300, 1 + (n * 11) % 64)
}

/// Returns the smallest of all that so many per mille do not exceed, by counting.
fn slow(all: &[u64], per_mille: usize) -> u64 {
    let within = |limit: u64| all.iter().filter(|&&one| one <= limit).count() * 1000 >= per_mille * all.len();
    *all.iter().filter(|&&one| within(one)).min().unwrap()
}

fn written(dir: &TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("t.ftrace");
    std::fs::write(&path, text).unwrap();
    path
}

fn latency(path: &Path, args: &[&str]) -> String {
    stdout_of(&vmlab().arg("latency").arg(path).args(args).assert().success())
}

fn json(path: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&latency(path, &[&["--json"], args].concat())).unwrap()
}

#[test]
fn the_figures_are_those_of_the_calls() {
    let dir = TempDir::new().unwrap();
    let loops = 1234;
    let path = written(&dir, &text(loops));
    let object = json(&path, &[]);
    assert_eq!((number(&object, "version"), &object["recording"]), (1, &Value::from("t")));
    assert_eq!(object["unpaired"], serde_json::json!({"returns": 0, "calls": 0, "open": 1, "untimed": 0}));
    let calls = object["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    for (row, of) in calls.iter().zip([0, 1]) {
        let all: Vec<u64> =
            (0..loops).map(alloc_and_free).map(|(alloc, free)| if of == 0 { alloc } else { free }).collect();
        let want = [500, 900, 990, 999, 1000].map(|per_mille| slow(&all, per_mille));
        let keys = ["median_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"];
        assert_eq!(keys.map(|key| number(row, key)), want);
        assert_eq!((number(row, "count"), number(row, "total_ns")), (loops, all.iter().sum()));
        for pair in row["histogram"].as_array().unwrap() {
            let (low, count) = (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
            let high = if low == 0 { 2 } else { 2 * low };
            assert_eq!(all.iter().filter(|&&one| (low..high).contains(&one)).count() as u64, count);
        }
    }
    // Of each caller a third, and all together the same.
    let by = json(&path, &["--by", "caller"]);
    let alloc: Vec<&Value> =
        by["calls"].as_array().unwrap().iter().filter(|row| row["call"] == "alloc").collect();
    assert_eq!(alloc.len(), 3);
    assert_eq!(alloc.iter().map(|row| number(row, "count")).sum::<u64>(), loops);
    let of_first: u64 = (0..loops).filter(|n| n % 3 == 0).map(|n| alloc_and_free(n).0).sum();
    let first = alloc.iter().find(|row| row["caller"] == "caller_0").unwrap();
    assert_eq!(number(first, "total_ns"), of_first);
    // Waits of 20 ns for the allocator's own lock; those for the lock of a slab are others'.
    let locks = object["locks"].as_array().unwrap();
    assert_eq!((locks.len(), &locks[0]["site"]), (1, &Value::from("alloc_vmap_area")));
    let waits = loops.div_ceil(5);
    assert_eq!((number(&locks[0], "count"), number(&locks[0], "total_ns")), (waits, 20 * waits));
    assert_eq!(number(&object["elsewhere"], "other_locks"), loops.div_ceil(7));
    // A part: by time, and by task and CPU.
    let part = json(&path, &["--from", "1.0001", "--to", "1.0002", "--cpu", "1", "--task", "sh"]);
    let count = (0..loops).filter(|n| n % 2 == 0 && (100..=200).contains(n)).count() as u64;
    assert_eq!(number(&part["calls"][0], "count"), count);
    // As a recording it is the same.
    let again = dir.path().join("t.jsonl.gz");
    vmlab().arg("convert").arg(&path).args(["--as", "jsonl", "-o"]).arg(&again).assert().success();
    assert_eq!(json(&again, &[]), object);
}

/// Of each call the durations, by a search from its return back to the last beginning of its thread that is not taken.
fn searched(path: &Path) -> BTreeMap<String, Vec<u64>> {
    let lines = super::record::lines(path);
    let calls: Vec<&Value> = lines
        .iter()
        .filter(|line| line["event"].as_str().is_some_and(|event| event.starts_with("vmlab_")))
        .collect();
    let mut taken = vec![false; calls.len()];
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (at, leave) in calls.iter().enumerate() {
        let Some(call) = leave["event"].as_str().unwrap().strip_prefix("vmlab_leave_") else { continue };
        let thread =
            |line: &Value| if line["pid"] == 0 { (0, number(line, "cpu")) } else { (number(line, "pid"), 0) };
        let enter = (0..at).rev().find(|&before| {
            !taken[before]
                && calls[before]["event"] == format!("vmlab_enter_{call}")
                && thread(calls[before]) == thread(leave)
        });
        let enter = enter.unwrap();
        taken[enter] = true;
        all.entry(call.replace('_', " ")).or_default().push(number(leave, "ns") - number(calls[enter], "ns"));
    }
    all
}

#[test]
fn a_recording_of_a_real_kernel_has_the_figures_of_a_search() {
    let path = shipped("latency-smp4.jsonl.gz");
    let object = json(&path, &[]);
    let searched = searched(&path);
    let calls = object["calls"].as_array().unwrap();
    assert_eq!(calls.len(), searched.len());
    for row in calls {
        let mut all = searched[row["call"].as_str().unwrap()].clone();
        all.sort_unstable();
        let want = (all.len() as u64, all.iter().sum::<u64>(), slow(&all, 990), slow(&all, 500));
        assert_eq!(
            ["count", "total_ns", "p99_ns", "median_ns"].map(|key| number(row, key)),
            <[u64; 4]>::from(want)
        );
    }
    let functions = ["alloc_vmap_area", "free_vmap_area_noflush", "remove_vm_area", "__purge_vmap_area_lazy"];
    assert_eq!([0, 1, 2, 3].map(|nth| calls[nth]["function"].as_str().unwrap()), functions);
    // It waits for a mutex that the kernel names, three times.
    let lock = &object["locks"][0];
    assert_eq!((&lock["lock"], number(lock, "count")), (&Value::from("pcpu_alloc_mutex"), 3));
    assert_eq!(number(&object["probes"], "measured_calls"), 70_000);
}

#[test]
fn a_report_draws_only_what_has_stacks() {
    let dir = TempDir::new().unwrap();
    let report = dir.path().join("report.html");
    vmlab().arg("report").arg(shipped("latency-smp4.jsonl.gz")).arg("-o").arg(&report).assert().success();
    let html = std::fs::read_to_string(&report).unwrap();
    let graphs = [", lock-time", ", bytes", ", count", ", time-live"]
        .map(|by| html.contains(&format!("by call stack{by}")));
    assert_eq!(graphs, [true, false, false, false]);
}

#[test]
fn tables_fit_80_columns() {
    let dir = TempDir::new().unwrap();
    let header = "{\"vmlab\":{\"locks\":[{\"name\":\"free_vmap_area_lock\",\"at\":\"0xbb\"}]}}\n";
    let mut long = header.to_string() + &text(50);
    for n in 0..20_000 {
        let mut line = |ns: u32, event| {
            let _ = writeln!(long, "{:>16}-9       [000] ..... 2.{n:05}{ns:04}: {event}", "x");
        };
        line(0, "vmlab_enter_percpu_alloc: (pcpu_alloc_noprof)");
        line(8765, "vmlab_leave_percpu_alloc: (__percpu_counter_init_many <- pcpu_alloc_noprof)");
    }
    let long = long.replace("caller_1", &"x".repeat(150)).replace("          sh-7", "  a\u{1b}[31m name-7");
    let path = written(&dir, &long);
    for args in [&[][..], &["--by", "caller"], &["--by", "task", "--top", "2"]] {
        let shown = latency(&path, args);
        for line in shown.lines() {
            assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{args:?}: {line}");
        }
        let wanted =
            ["alloc", "median", "alloc_vmap_area", "1 not ended", "free_vmap_area_lock", "of others: 8"];
        for text in wanted {
            assert!(shown.contains(text), "{args:?}: {text} in {shown}");
        }
    }
    assert!(latency(&path, &["--by", "task", "--top", "2"]).contains("and 3 more"));
    assert!(latency(&path, &["--by", "caller"]).contains("20,000"));
}

#[test]
fn a_recording_without_durations_says_how_to_record_them() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, SMALL);
    let assert = vmlab().arg("latency").arg(&path).assert().code(1);
    let stderr = stderr_of(&assert);
    assert!(stderr.contains("vmlab record --latency") && stderr.lines().count() == 1, "{stderr}");
    let path = written(&dir, &text(3));
    let assert = vmlab().arg("latency").arg(&path).args(["--cpu", "9"]).assert().code(1);
    assert!(stderr_of(&assert).contains("no call and no wait of CPU 9"));
}

#[test]
fn waits_are_drawn_by_stack() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, &text(20));
    let flame = |path: &Path, more: &[&str]| {
        vmlab().arg("flame").arg(path).args(["--by", "lock-time"]).args(more).assert()
    };
    let folded = stdout_of(&flame(&path, &["--format", "folded"]).success());
    assert_eq!(folded, "root;caller;alloc_vmap_area;_raw_spin_lock 80\n");
    let svg = stdout_of(&flame(&path, &[]).success());
    assert!(
        svg.contains("waits for locks by call stack") && svg.contains("<title>caller: 80 ns, 100.00 %"),
        "{svg}"
    );
    assert!(stderr_of(&flame(&path, &["--memory", "area"]).failure()).contains("--memory is of allocations"));
    let none = written(&dir, SMALL);
    assert!(stderr_of(&flame(&none, &[]).failure()).contains("vmlab record --locks"));
}

#[test]
fn a_report_has_durations_and_waits_if_the_recording_has() {
    let dir = TempDir::new().unwrap();
    let report = dir.path().join("report.html");
    for (text, sections) in [(format!("{SMALL}{}", text(20)), 1), (SMALL.to_string(), 0)] {
        let path = written(&dir, &text);
        vmlab().arg("report").arg(&path).arg("-o").arg(&report).assert().success();
        let html = std::fs::read_to_string(&report).unwrap();
        assert_eq!(html.matches(">Durations</h3>").count(), sections);
        assert_eq!(html.matches("<td>alloc_vmap_area</td><td>20</td>").count(), sections);
        assert_eq!(
            html.matches("<td>(unnamed), alloc_vmap_area</td><td>4</td><td>20 ns</td>").count(),
            sections
        );
    }
}

/// Returns the probes of recorders that are in tracefs.
fn probes() -> String {
    let found = vmlab_trace::record::tracefs::Found::find("tracefs").unwrap();
    let list = std::fs::read_to_string(found.path.join("dynamic_events")).unwrap_or_default();
    list.lines().filter(|line| line.contains("vmlab_")).collect()
}

#[test]
fn the_running_kernels_calls_are_measured_or_one_line_says_what_it_lacks() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl.gz");
    let load = "for i in 1 2 3 4 5 6 7 8; do (true); done";
    let args = ["record", "--latency", "-o", path.to_str().unwrap(), "--", "sh", "-c", load];
    let output = vmlab().args(args).assert();
    let stderr = stderr_of(&output);
    assert_eq!(probes(), "");
    if !output.get_output().status.success() {
        assert!(stderr.contains("CONFIG_FPROBE_EVENTS") && stderr.lines().count() == 1, "{stderr}");
        assert!(!path.exists(), "nothing is written");
        super::not_run("durations of this kernel: it has no probes of functions");
        return;
    }
    assert!(stderr.contains("with two probes each") && stderr.contains("getppid took"), "{stderr}");
    let object = json(&path, &[]);
    assert!(number(&object["calls"][0], "count") > 0 && number(&object["probes"], "pair_ps") > 0, "{object}");
    // A recorder that is killed leaves its probes, and the next one removes them.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(["record", "--latency", "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = [0; 9];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(probes(), "");
    vmlab().args(["record", "-o", "-", "--", "true"]).assert().success();
    assert_eq!(probes(), "");
}

#[test]
fn the_running_kernels_waits_have_their_stacks() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl.gz");
    let load = "i=0; while [ $i -lt 40 ]; do unshare -n true & i=$((i+1)); done; wait";
    let args = ["record", "--locks", "-o", path.to_str().unwrap(), "--", "sh", "-c", load];
    let output = vmlab().args(args).assert();
    let stderr = stderr_of(&output);
    if !output.get_output().status.success() {
        assert!(stderr.contains("this kernel") && stderr.lines().count() == 1, "{stderr}");
        super::not_run("waits for locks of this kernel: it has no such events, or no call stacks");
        return;
    }
    let recorded = super::record::lines(&path);
    let begins = recorded.iter().filter(|line| line["event"] == "contention_begin").count();
    let stacks = recorded.iter().filter(|line| line["stack"].is_object()).count();
    // Linux 6.18 writes no stack now and then, and counts no loss: here of 1 wait of 190, in one run of many.
    // Nothing but a wait has a stack.
    let lacking = begins.checked_sub(stacks).unwrap();
    assert!(lacking <= 1 + begins / 50, "{lacking} waits of {begins} have no stack");
    if begins == 0 {
        super::not_run("waits for locks of this kernel: no thread waited");
        return;
    }
    let object = json(&path, &[]);
    assert!(number(&object["elsewhere"], "unknown") <= lacking as u64, "{object}");
}
