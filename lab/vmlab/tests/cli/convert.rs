//! Conversions of traces into other forms.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command as Process;
use std::time::{Duration, Instant};
use vmlab_trace::{Trace, decompress};

fn converted(name: &str, to: &str) -> Vec<u8> {
    let output = vmlab()
        .args(["convert", shipped(&format!("{name}.ftrace.gz")).to_str().unwrap(), "--as", to])
        .assert();
    output.success().get_output().stdout.clone()
}

/// Returns the beginning of a shipped trace, and the rare events from the rest.
fn sample(name: &str) -> String {
    let whole = text_of(name);
    let rare = ["failed=1", "purge_vmap_area_lazy", "percpu_create_chunk", "percpu_alloc_percpu_fail"];
    let lines = whole.lines().enumerate();
    let selected =
        lines.filter(|(number, line)| *number < 3000 || rare.iter().any(|word| line.contains(word)));
    selected.map(|(_, line)| format!("{line}\n")).collect()
}

#[test]
fn every_shipped_trace_is_the_same_after_each_form_that_is_read() {
    let mut failed = 0;
    for name in TRACES {
        let sample = sample(name);
        let text = Trace::read(sample.as_bytes());
        assert!(text.events.len() as u64 + text.percpu > 500, "{name}");
        failed += sample.lines().filter(|line| line.contains("failed=1")).count();
        for to in ["jsonl", "ftrace"] {
            let output = vmlab().args(["convert", "-", "--as", to]).write_stdin(sample.as_str()).assert();
            let again = Trace::read(&output.success().get_output().stdout[..]);
            assert_eq!((again.bad, again.percpu), (0, text.percpu), "{name} {to}");
            assert!(again.events == text.events && again.cpus == text.cpus, "{name} {to}");
        }
    }
    assert_eq!(failed, 6, "failed allocations are among them");
}

#[test]
fn objects_are_replayed_alike_from_a_recording() {
    let dir = TempDir::new().unwrap();
    let name = "fork-netns-smp1";
    let path = dir.path().join(format!("{name}.jsonl"));
    std::fs::write(&path, converted(name, "jsonl")).unwrap();
    let replayed = |path: &Path| {
        let info = shipped(&format!("{name}.vmallocinfo"));
        let args =
            ["replay", path.to_str().unwrap(), "--percpu", "--json", "--vmallocinfo", info.to_str().unwrap()];
        vmlab().args(args).assert().success().get_output().stdout.clone()
    };
    assert_eq!(replayed(&path), replayed(&shipped(&format!("{name}.ftrace.gz"))));
}

#[test]
fn a_table_has_a_row_for_each_event() {
    let csv = converted("boot-smp1", "csv");
    let mut table = csv::Reader::from_reader(&csv[..]);
    let head = table.headers().unwrap().clone();
    let [event, va_start, size] =
        ["event", "va_start", "size"].map(|name| head.iter().position(|column| column == name).unwrap());
    let rows: Vec<csv::StringRecord> = table.records().map(Result::unwrap).collect();
    let trace = Trace::read(text_of("boot-smp1").as_bytes());
    assert_eq!(rows.len() as u64, trace.events.len() as u64 + trace.percpu);
    let of_table: Vec<(u64, u64)> = rows
        .iter()
        .filter(|row| &row[event] == "alloc_vmap_area")
        .map(|row| (u64::from_str_radix(&row[va_start][2..], 16).unwrap(), row[size].parse().unwrap()))
        .collect();
    let of_trace: Vec<(u64, u64)> = trace
        .events
        .iter()
        .filter_map(|event| match *event {
            vmlab_trace::Event::Alloc { addr, size, .. } => Some((addr, size)),
            _ => None,
        })
        .collect();
    assert_eq!(of_table, of_trace);
}

#[test]
fn areas_are_slices_and_bytes_are_counters_for_perfetto() {
    let text = "{\"vmlab\":{\"version\":1,\"kernel\":\"6.18\",\"page_bytes\":4096}}\n\
        {\"area\":{\"when\":\"begin\",\"start\":\"0x10000\",\"end\":\"0x12000\",\"bytes\":8192,\"text\":\"kernel_clone+0x94/0x3e0 pages=1 vmalloc\"}}\n\
        a-1 [001] ..... 1.000000: alloc_vmap_area: va_start: 131072 size=4096 align=1 vstart=0x0 vend=0xffffff failed=0\n\
        a-1 [001] ..... 1.000002: free_vmap_area_noflush: va_start=0x10000 nr_lazy=2 nr_lazy_max=100\n\
        b-2 [000] ..... 1.000003: alloc_vmap_area: va_start: 196608 size=4096 align=1 vstart=0x0 vend=0xffffff failed=0\n\
        b-2 [000] ..... 1.000004: free_vmap_area_noflush: va_start=0x30000 nr_lazy=3 nr_lazy_max=100\n\
        b-2 [000] ..... 1.000005: purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=2\n\
        {\"area\":{\"when\":\"end\",\"start\":\"0x20000\",\"end\":\"0x21000\",\"bytes\":4096,\"text\":\"bpf_prog_alloc+0x1/0x2 vmalloc\"}}\n";
    let output = vmlab().args(["convert", "-", "--as", "perfetto"]).write_stdin(text).assert().success();
    let json: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let mut slices: Vec<(String, f64, f64, u64)> = events
        .iter()
        .filter(|event| event["ph"] == "b")
        .map(|begin| {
            let ends = |event: &&Value| event["ph"] == "e" && event["id"] == begin["id"];
            let end = events.iter().find(ends).unwrap();
            let [from, to] = [begin, end].map(|event| event["ts"].as_f64().unwrap());
            (begin["name"].as_str().unwrap().to_string(), from, to, begin["args"]["bytes"].as_u64().unwrap())
        })
        .collect();
    slices.sort_by(|a, b| a.0.cmp(&b.0));
    let want = [
        ("bpf_prog_alloc", 1_000_000.0, 1_000_005.0, 4096),
        ("kernel_clone", 1_000_000.0, 1_000_002.0, 8192),
        ("task b", 1_000_003.0, 1_000_004.0, 4096),
    ];
    assert_eq!(slices, want.map(|(name, from, to, bytes)| (name.to_string(), from, to, bytes)));
    let counters: Vec<(u64, u64)> = events
        .iter()
        .filter(|event| event["name"] == "vmalloc bytes")
        .map(|event| (event["args"]["live"].as_u64().unwrap(), event["args"]["lazy"].as_u64().unwrap()))
        .collect();
    assert_eq!(counters, [(12288, 0), (4096, 8192), (8192, 8192), (4096, 12288), (4096, 0)]);
    assert_eq!(json["otherData"]["kernel"], "6.18");
}

#[test]
fn tables_of_a_recording_come_out_as_the_kernel_prints_them() {
    let text = "{\"area\":{\"when\":\"begin\",\"start\":\"0xffffc90000000000\",\"end\":\"0xffffc90000005000\",\"bytes\":20480,\"text\":\"f+0x1/0x2 vmap\"}}\n\
        {\"area\":{\"when\":\"end\",\"text\":\"(null)\"}}\n";
    for (to, want) in [
        ("vmallocinfo-begin", "0xffffc90000000000-0xffffc90000005000   20480 f+0x1/0x2 vmap\n"),
        ("vmallocinfo", "(null)\n"),
    ] {
        vmlab().args(["convert", "-", "--as", to]).write_stdin(text).assert().success().stdout(want);
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let path = shipped("boot-smp1.ftrace.gz");
    let long = shipped("fork-netns-smp4.ftrace.gz");
    for form in ["jsonl", "csv", "ftrace", "perfetto"] {
        let output = unread(Path::new("."), &["convert", long.to_str().unwrap(), "--as", form]);
        assert!(output.status.success() && output.stderr.is_empty(), "{form}: {output:?}");
    }
    // A full disk is an error.
    vmlab().args(["convert", path.to_str().unwrap(), "--as", "jsonl", "-o", "/dev/full"]).assert().failure();
}

#[test]
fn mistakes_are_one_line_each() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.jsonl");
    std::fs::write(&path, "free_vmap_area_noflush: va_start=0x1000\n").unwrap();
    let path = path.to_str().unwrap();
    for (args, expected) in [
        (vec!["convert", path, "--as", "csv", "-o", path], "read and written at once"),
        (vec!["convert", path, "--as", "csv", "-o", "/tmp/a.zst"], "zstd is read, but not written"),
        (vec!["convert", "/no/such/file", "--as", "csv"], "cannot read"),
        (vec!["convert", "/dev/null", "--as", "csv"], "no event of vmalloc"),
        (vec!["convert", path, "--as", "vmallocinfo"], "no /proc/vmallocinfo of its end"),
        (vec!["convert", path, "--as", "vmallocinfo-begin"], "no /proc/vmallocinfo of its beginning"),
    ] {
        let output = vmlab().args(&args).assert().failure();
        let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert!(text.contains(expected) && text.lines().count() == 1, "{args:?}: {text}");
    }
    let half = "free_vmap_area_noflush: va_start=0x1000\n{\"event\":\"free_vmap_area_noflush\",\"va_st";
    vmlab()
        .args(["convert", "-", "--as", "jsonl"])
        .write_stdin(half)
        .assert()
        .success()
        .stderr(contains("1 line cannot be read"));
}

/// Returns the peak RSS of a running process, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_trace_without_end_streams_in_constant_memory_and_a_signal_leaves_a_whole_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out.json");
    let mut child = Process::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(["convert", "-", "--as", "perfetto", "-o", path.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let block: String = (0..256u64)
        .map(|n| {
            let at = 0x1000 + (n << 16);
            format!(
                "task-{n} [000] ..... 1.{n:06}: alloc_vmap_area: va_start: {at} size=4096 align=1 vstart=0x0 vend=0xffffffff failed=0\n\
                 task-{n} [000] ..... 1.{n:06}: free_vmap_area_noflush: va_start={at:#x} nr_lazy=1 nr_lazy_max=100\n\
                 not ours-{n} [000] ..... 1.{n:06}: sched_switch: prev_comm=a prev_pid={n} prev_prio=120 prev_state=S ==> next_comm=b next_pid=1 next_prio=120 {}\n",
                "x".repeat(300)
            )
        })
        .collect();
    let (warm, all) = (8 << 20, 40 << 20);
    let (mut fed, mut early) = (0, 0);
    while fed < all {
        input.write_all(block.as_bytes()).unwrap();
        fed += block.len();
        if early == 0 && fed >= warm {
            early = peak_kib(child.id());
        }
    }
    let late = peak_kib(child.id());
    assert!(late < early + 4096, "{early} KiB after 8 MiB, {late} KiB after 40 MiB");

    // The program reads until it handles the signal; then the pipe breaks.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    while input.write_all(block.as_bytes()).is_ok() {}
    drop(input);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("stopped by a signal"), "{stderr}");
    let file = std::fs::File::open(&path).unwrap();
    let json: Value = serde_json::from_reader(std::io::BufReader::new(decompress(file).unwrap())).unwrap();
    assert!(json["traceEvents"].as_array().unwrap().len() > 1000);
}

/// Interrupts a conversion of an input that stays quiet, and returns its messages.
fn interrupted(input: &Path, stdin: Stdio, output: &Path) -> String {
    let child = Process::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(["convert", "--as", "jsonl", "-o", output.to_str().unwrap(), input.to_str().unwrap()])
        .stdin(stdin)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It takes signals once it sleeps: in its wait for input.
    let status = format!("/proc/{}/status", child.id());
    let takes = || std::fs::read_to_string(&status).unwrap();
    let caught = |text: String| {
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_string();
        u64::from_str_radix(&mask, 16).unwrap() & 0b110 == 0b010
    };
    let begun = Instant::now();
    while !caught(takes()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    String::from_utf8(ended.stderr).unwrap()
}

#[test]
fn an_interrupt_ends_a_conversion_whose_input_is_quiet() {
    let dir = TempDir::new().unwrap();
    let (fifo, output) = (dir.path().join("fifo"), dir.path().join("out.jsonl.gz"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    // No process has opened it to write.
    let stderr = interrupted(&fifo, Stdio::null(), &output);
    assert!(stderr.contains("stopped by a signal after 0 lines"), "{stderr}");
    // A writer has written two lines, and stays.
    let writer = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    (&writer).write_all(SMALL.as_bytes()).unwrap();
    let whole = |stderr: String| {
        assert!(stderr.contains("stopped by a signal after 2 lines, which are converted"), "{stderr}");
        let trace = Trace::read(vmlab_trace::open(&output).unwrap());
        assert_eq!((trace.events.len(), trace.cut_short), (2, None));
    };
    whole(interrupted(&fifo, Stdio::null(), &output));
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(SMALL.as_bytes()).unwrap();
    whole(interrupted(Path::new("-"), reader.into(), &output));
}

#[test]
fn the_doctor_reports_every_fact_in_both_forms() {
    let output = vmlab().args(["doctor", "--json"]).assert().success();
    let json: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!((&json["version"], &json["library_works"]), (&Value::from(1), &Value::from(true)));
    let table = vmlab().arg("doctor").assert().success();
    let table = String::from_utf8(table.get_output().stdout.clone()).unwrap();
    for fact in json["facts"].as_array().unwrap() {
        let [name, found, means] = ["name", "found", "means"].map(|key| fact[key].as_str().unwrap());
        assert!(table.contains(name) && table.contains(means), "{name} is missing:\n{table}");
        assert!(!found.is_empty() && !means.is_empty());
    }
}

/// Returns the lines of a conversion to JSON.
fn lines(name: &str, more: &[&str]) -> Vec<Value> {
    let assert = vmlab().args(["convert", "--as", "jsonl"]).args(more).arg(shipped(name)).assert().success();
    rows(&stdout_of(&assert))
}

#[test]
fn a_recording_is_written_without_names_and_replays_the_same() {
    // The tasks of this trace are named.
    let named = lines("nodes-smp4.ftrace.gz", &[]);
    let blank = lines("nodes-smp4.ftrace.gz", &["--blank"]);
    assert!(named.iter().any(|row| row["task"] == "busybox" && row["pid"] == 164));
    let without = |mut row: Value| {
        let event = row.as_object_mut().unwrap();
        event.remove("task");
        event.remove("pid");
        row
    };
    assert_eq!(named.into_iter().map(without).collect::<Vec<_>>(), blank);
    // The recordings that are shipped have none, and no command.
    for name in ["held-out.jsonl.zst", "running-kernel.ftrace.zst"] {
        let rows = lines(name, &[]);
        let shown = |row: &Value| ["task", "pid"].iter().any(|key| row.get(key).is_some());
        assert!(rows.len() > 10_000 && !rows.iter().any(shown), "{name}");
        assert!(rows[0]["vmlab"].get("command").is_none(), "{name}: {}", rows[0]);
    }
}

#[test]
fn a_part_of_a_trace_is_written() {
    let events = |more: &[&str]| -> Vec<Value> {
        lines("nodes-smp4.ftrace.gz", more).into_iter().filter(|row| row.get("event").is_some()).collect()
    };
    let all = events(&[]);
    let ns = |row: &Value| row["ns"].as_u64().unwrap();
    type Keeps<'a> = &'a dyn Fn(&Value) -> bool;
    let parts: [(&[&str], Keeps<'_>); 4] = [
        (&["--cpu", "3"], &|row| row["cpu"] == 3),
        (&["--task", "busybox"], &|row| row["task"] == "busybox"),
        (&["--from", "3.7", "--to", "3.8"], &|row| (3_700_000_000..=3_800_000_000).contains(&ns(row))),
        (&["--from", "3.7", "--cpu", "0"], &|row| ns(row) >= 3_700_000_000 && row["cpu"] == 0),
    ];
    for (args, keeps) in parts {
        let part: Vec<Value> = all.iter().filter(|row| keeps(row)).cloned().collect();
        assert!(!part.is_empty() && part.len() < all.len(), "{args:?}");
        assert_eq!(events(args), part, "{args:?}");
    }
    // Tables and marks stay, so that a part can be replayed.
    let marks = |row: &&Value| row["event"] == "tracing_mark_write";
    let part = lines("held-out.jsonl.zst", &["--to", "51940"]);
    assert_eq!(part.iter().filter(marks).count(), 5);
    assert!(part.iter().filter(|row| row.get("area").is_some()).count() > 3500);
}
