//! Recordings of the running kernel. They need root and tracefs; without these, a test reports that and does nothing.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command as Process, Output};
use std::time::{Duration, Instant};

/// Locks the file that allows one test of this machine to record at a time: each recorder removes the instances of
/// killed ones, and changes `kptr_restrict` for a short time.
pub(super) fn recorder_lock() -> File {
    let path = std::env::temp_dir().join("vmlab-record-tests");
    // Its owner does not matter: the file is never written.
    let file = File::open(&path).or_else(|_| File::create(&path)).unwrap();
    file.lock().unwrap();
    file
}

/// Returns the lock if the kernel can be recorded here, and reports it otherwise.
pub(super) fn can_record() -> Option<File> {
    let doctor: Value =
        serde_json::from_slice(&vmlab().args(["doctor", "--json"]).assert().success().get_output().stdout)
            .unwrap();
    let can = doctor["can_record"] == true;
    if !can {
        super::not_run("recordings: tracefs is not there, or not for this user (vmlab doctor)");
    }
    can.then(recorder_lock)
}

/// Returns the prefix of the names of a recorder's instances.
fn instances(child: &Child) -> String {
    format!("vmlab-{}-", child.id())
}

/// Returns true if an instance of this recorder is left. Other recorders may have left others.
fn is_left(instances: &str) -> bool {
    fact("left behind")["found"].as_str().unwrap().contains(instances)
}

/// Runs a recorder to its end, which leaves no instance. Returns whether it succeeded, and its messages.
fn recorded(args: &[&str]) -> (bool, String) {
    let child = Process::new(env!("CARGO_BIN_EXE_vmlab"))
        .arg("record")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let instances = instances(&child);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert!(!is_left(&instances), "{args:?}");
    (status.success(), String::from_utf8(stderr).unwrap())
}

/// Returns one fact of the doctor's report.
fn fact(name: &str) -> Value {
    let doctor: Value =
        serde_json::from_slice(&vmlab().args(["doctor", "--json"]).assert().success().get_output().stdout)
            .unwrap();
    doctor["facts"].as_array().unwrap().iter().find(|fact| fact["name"] == name).unwrap().clone()
}

fn text(path: &Path) -> String {
    let mut text = String::new();
    vmlab_trace::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

pub(super) fn lines(path: &Path) -> Vec<Value> {
    text(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Starts a recorder, and waits until it records: until the file has its header.
fn started(path: &Path, args: &[&str]) -> Child {
    let child = Process::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(["record", "-o", path.to_str().unwrap()])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while std::fs::metadata(path).map_or(0, |data| data.len()) < 100 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn read_stderr(child: &mut Child) -> String {
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    stderr
}

#[test]
fn an_earlier_recording_is_not_replaced_unless_asked() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.jsonl");
    std::fs::write(&path, "an earlier one").unwrap();
    // It fails before anything else, so that neither root nor a kernel is needed.
    let output = vmlab().args(["record", "-o", path.to_str().unwrap(), "--", "true"]).assert().failure();
    let stderr = stderr_of(&output);
    assert!(stderr.contains("is there already: --overwrite") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(std::fs::read(&path).unwrap(), b"an earlier one");
    let Some(_lock) = can_record() else { return };
    let args = ["record", "--overwrite", "-o", path.to_str().unwrap(), "--", "sh", "-c", "exit 7"];
    let output = vmlab().args(args).assert().code(7);
    assert!(stderr_of(&output).contains("the command failed"));
    assert!(std::fs::read(&path).unwrap().starts_with(b"{\"vmlab\":"));
}

#[test]
fn a_command_that_cannot_start_leaves_no_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl.gz");
    let path = path.to_str().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "no program").unwrap();
    let record = |program: &str| vmlab().args(["record", "-o", path, "--", program, "-n"]).assert();
    // The name is looked up first, so that neither root nor a kernel is needed.
    for program in ["no-such-program-here", "/nowhere/program"] {
        let stderr = stderr_of(&record(program).code(127));
        assert_eq!(stderr, format!("vmlab: there is no program {program}; nothing is recorded\n"));
        assert!(!Path::new(path).exists());
    }
    let Some(_lock) = can_record() else { return };
    let stderr = stderr_of(&record(text.to_str().unwrap()).code(126));
    assert!(stderr.contains("; nothing is recorded"), "{stderr}");
    assert!(!Path::new(path).exists());
}

#[test]
fn a_recording_of_this_kernel_is_whole_and_replayed_and_leaves_nothing() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl.gz");
    let restrict = std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").unwrap();
    let load = "for i in 1 2 3 4 5 6 7 8; do (true); done";
    let (good, stderr) = recorded(&["-o", path.to_str().unwrap(), "--", "sh", "-c", load]);
    assert!(good && stderr.contains("ended by command"), "{stderr}");

    let lines = lines(&path);
    let header = &lines[0]["vmlab"];
    assert_eq!((&header["version"], &header["clock"]), (&Value::from(1), &Value::from("mono")));
    let summary = &lines.last().unwrap()["summary"];
    let events = lines.iter().filter(|line| line["event"].is_string()).count();
    assert_eq!(
        (summary["events"].as_u64().unwrap(), &summary["ended"]),
        (events as u64, &Value::from("command"))
    );
    for when in ["begin", "end"] {
        assert!(lines.iter().filter(|line| line["area"]["when"] == when).count() > 10, "areas at the {when}");
        let marks = |what: &str| {
            let text = format!("vmlab vmallocinfo {when} {what}");
            lines.iter().filter(|line| line["text"] == text.as_str()).count()
        };
        assert_eq!([marks("opens"), marks("closes")], [1, 1]);
    }
    // Every event has a time, and on each CPU times never decrease: each CPU has its own buffer.
    let mut times: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line["event"].is_string()) {
        times.entry(line["cpu"].as_u64().unwrap()).or_default().push(line["ns"].as_u64().unwrap());
    }
    assert!(!times.is_empty() && times.values().all(|times| times.is_sorted()));

    // Replays it as text of the same kernel.
    let text = dir.path().join("r.ftrace");
    vmlab()
        .args(["convert", path.to_str().unwrap(), "--as", "ftrace", "-o", text.to_str().unwrap()])
        .assert()
        .success();
    let [from_json, from_text] =
        [&path, &text].map(|path| vmlab_trace::Trace::read(vmlab_trace::open(path).unwrap()));
    assert_eq!((&from_json.events, &from_json.cpus), (&from_text.events, &from_text.cpus));
    assert!(from_json.bad == 0 && from_json.recording.is_some());
    if from_json.allocs() > 0 {
        vmlab()
            .args(["replay", path.to_str().unwrap(), "--space"])
            .assert()
            .success()
            .stdout(contains("linux"));
    }

    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").unwrap(), restrict);
}

#[test]
fn events_have_their_stacks_if_asked() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s.jsonl");
    let load = "for i in 1 2 3 4 5 6 7 8; do (true); done";
    let args = ["--stacks", "-o", path.to_str().unwrap(), "--", "sh", "-c", load];
    let (good, stderr) = recorded(&args);
    if stderr.contains("writes no call stacks") {
        super::not_run("recordings with call stacks: this kernel has none");
        return;
    }
    assert!(good, "{stderr}");
    let recorded = lines(&path);
    let events = recorded
        .iter()
        .filter(|line| line["event"].is_string() && line["event"] != "tracing_mark_write")
        .count();
    let stacks: Vec<_> = recorded.iter().filter_map(|line| line["stack"]["frames"].as_array()).collect();
    let summary = &recorded.last().unwrap()["summary"];
    assert!(events > 0 && summary["lost"] == 0 && summary["left_out"] == 0, "{summary}");
    // Of events in interrupts the kernel writes no stack now and then, and counts no loss: of Linux 6.18, 6 of 35 in the
    // idle thread and 1 of 2,592 elsewhere.
    assert!(stacks.len() <= events && 10 * stacks.len() >= 9 * events, "{} of {events}", stacks.len());
    let has = |name: &str| stacks.iter().any(|frames| frames.iter().any(|frame| frame == name));
    assert!(has("do_syscall_64") || has("invoke_syscall") || has("ksys_read"), "{stacks:?}");
    // As text, and as a recording again, it is the same.
    let convert = |from: &Path, to: &str, end: &str| {
        let into = dir.path().join(end);
        let args = ["convert", from.to_str().unwrap(), "--as", to, "-o", into.to_str().unwrap()];
        vmlab().args(args).assert().success();
        into
    };
    let text = convert(&path, "ftrace", "s.ftrace");
    let again = convert(&text, "jsonl", "again.jsonl");
    let of = |lines: &[Value]| {
        let stacks = lines.iter().filter(|line| line["stack"].is_object());
        stacks.map(|line| line["stack"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(&lines(&again)), of(&recorded));
}

#[test]
fn a_signal_ends_a_recording_in_order() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    for (signal, name) in [(Signal::INT, "int.jsonl"), (Signal::TERM, "term.jsonl")] {
        let path = dir.path().join(name);
        let mut child = started(&path, &[]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(child.wait().unwrap().success(), "{}", read_stderr(&mut child));
        assert_eq!(lines(&path).last().unwrap()["summary"]["ended"], "signal");
        assert!(!is_left(&instances(&child)));
    }
}

#[test]
fn what_a_killed_recorder_leaves_is_removed_by_the_next_and_its_file_can_be_read() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("killed.jsonl");
    let mut child = started(&path, &[]);
    let name = instances(&child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_left(&name));
    vmlab().args(["record", "-o", "-", "--", "true"]).assert().success().stdout(contains("{\"vmlab\":{"));
    assert!(!is_left(&name));
    // The kill may have cut the last line.
    let header: Value = serde_json::from_str(text(&path).lines().next().unwrap()).unwrap();
    assert!(header["vmlab"]["version"] == 1);
    let trace = vmlab_trace::Trace::read(vmlab_trace::open(&path).unwrap());
    assert!(trace.recording.is_some() && trace.bad <= 1, "{:?}", trace.bad_lines);
}

#[test]
fn losses_are_counted_and_reported() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("small.jsonl");
    let load = "i=0; while [ $i -lt 300 ]; do unshare -n true & unshare -n true; i=$((i+20)); done; wait";
    let output = vmlab()
        .args(["record", "--buffer-kib", "4", "-o", path.to_str().unwrap(), "--", "sh", "-c", load])
        .assert();
    let stderr = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    let lost = lines(&path).last().unwrap()["summary"]["lost"].as_u64().unwrap();
    assert_eq!(lost > 0, stderr.contains("since the buffers were full"), "{stderr}");
    assert!(lost > 0, "a buffer of a page holds so many events? {stderr}");
    let trace = vmlab_trace::Trace::read(vmlab_trace::open(&path).unwrap());
    assert_eq!(trace.lost, lost);
}

#[test]
fn bounds_and_failures_are_reported() {
    let Some(_lock) = can_record() else { return };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl");
    let path = path.to_str().unwrap();
    for (args, succeeds, expected) in [
        (&["-o", path, "--seconds", "1"][..], true, "ended by seconds"),
        // The header and the first tables exceed the limit.
        (&["-o", path, "--max-bytes", "1K", "--", "sleep", "60"], true, "ended by bytes"),
        (&["-o", path, "--", "/no/such/program"], false, "there is no program"),
        (&["-o", "/no/such/dir/r"], false, "cannot write"),
        (
            &["-o", path, "--", "sh", "-c", "exit 3"],
            false,
            "the command failed (exit status: 3); the recording is whole",
        ),
    ] {
        let (good, stderr) = recorded(&[&["--overwrite"], args].concat());
        assert!(good == succeeds && stderr.contains(expected), "{args:?}: {stderr}");
    }
    assert_eq!(lines(Path::new(path)).last().unwrap()["summary"]["ended"], "command");
}

#[test]
fn without_root_one_line_names_the_remedy() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("r.jsonl");
    let words = ["record", "-o", path.to_str().unwrap(), "--seconds", "1"];
    let vmlab = env!("CARGO_BIN_EXE_vmlab");
    let output = if rustix::process::geteuid().is_root() {
        // The user 65534, which has no rights.
        let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups", vmlab];
        Process::new("setpriv").args(unprivileged).args(words).output()
    } else {
        Process::new(vmlab).args(words).output()
    };
    let stderr =
        output.as_ref().map_or(String::new(), |output| String::from_utf8_lossy(&output.stderr).into_owned());
    if output.is_err() || stderr.starts_with("setpriv:") {
        eprintln!("SKIPPED: the user 65534 cannot run programs here: {stderr}");
        return;
    }
    let output = output.unwrap();
    assert!(!output.status.success() && stderr.lines().count() == 1 && stderr.contains("root"), "{stderr}");
    assert!(!path.exists(), "nothing is written");
}
