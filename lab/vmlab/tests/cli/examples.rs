//! Runs the examples at the end of every `--help`, each line unchanged, by a shell in a folder with the files that they
//! name.

use super::*;
use clap::CommandFactory;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command as Process, Output};

/// The substitute for a line that cannot be run unchanged.
#[derive(Clone, Copy, Debug)]
enum How {
    /// It would take long: run it with these arguments appended, for a smaller load.
    Less(&'static str),
    /// Run it with another word in place of one that depends on the machine.
    With(&'static str, &'static str),
    /// It needs root and rights that root may lack: it may fail, with a one-line reason.
    Kernel,
    /// It needs the preload beside the program, which CI's step `install` provides. Here it may fail, with one line
    /// that names the preload.
    Installed,
    /// This file is built from third-party source: the example fails, with one line that names the file.
    Needs(&'static str),
    /// The same, and an allocator of this name that the system may lack: then the example is not run, which is
    /// reported.
    NeedsPeer(&'static str, &'static str),
    /// CI's step `demo` runs it on an optimised build: without optimisation it takes a minute.
    Step,
}

use How::{Installed, Kernel, Less, Needs, NeedsPeer, Step, With};

/// All lines that cannot be run unchanged.
const ELSE: &[(&str, How)] = &[
    ("vmlab", Step),
    ("vmlab demo --report report.html", Step),
    ("vmlab record -- unshare -n true", Kernel),
    ("vmlab record -o boot.jsonl.gz --seconds 3", Kernel),
    ("vmlab record --stacks -o r.jsonl.gz -- unshare -n true", Kernel),
    ("vmlab record --latency --locks -o slow.jsonl.gz -- unshare -n true", Kernel),
    ("vmlab top", Kernel),
    ("vmlab top --sort bytes --caller kernel_clone", Kernel),
    ("vmlab top --once --for 2 > now.txt", Kernel),
    ("vmlab map", Kernel),
    ("vmlab sites", Kernel),
    ("vmlab report /proc/vmallocinfo -o now.html", Kernel),
    ("vmlab run -- python3 program.py", Installed),
    ("vmlab run --conf threshold:64K,decay:1s -- sort big.txt", Installed),
    ("vmlab map --pid 4242", With("4242", "$$")),
    ("vmlab bench index --quick", Less("--filter empty")),
    ("vmlab bench index --filter rand --indexes btree,rb-linux --out rand", Less("--quick")),
    ("vmlab bench space --quick", Less("--filter fail-window-again --contenders ours")),
    ("vmlab bench space --kern libkvmalloc.so --kern-count libkvmalloc-count.so", Needs("libkvmalloc.so")),
    (
        "vmlab bench space --filter threads --threads 1,2,4,8,16 --out threads",
        With("--filter threads --threads 1,2,4,8,16", "--quick --filter threads-fix --contenders ours"),
    ),
    ("vmlab bench percpu --quick", Less("--filter zero")),
    ("vmlab bench percpu --kern libkpercpu.so", Needs("libkpercpu.so")),
    (
        "vmlab bench percpu --filter threads --threads 1,2,4,8,16 --out threads",
        With("--filter threads --threads 1,2,4,8,16", "--quick --filter threads --threads 2"),
    ),
    ("vmlab bench percpu --filter seed --out seed", With("--filter seed", "--quick --filter zero")),
    ("vmlab bench memory --quick", Less("--peer glibc --filter pair-64K-byte")),
    ("vmlab bench memory --peer mmap --filter pair", Less("--rounds 1 --ms 1")),
    (
        "vmlab bench memory --peer jemalloc --peer mine=libmine.so --filter mix --out mix",
        NeedsPeer("libmine.so", "jemalloc"),
    ),
    (
        "vmlab bench memory --filter mix-64K-4M --threads 1,2,4,8,16",
        With(
            "--filter mix-64K-4M --threads 1,2,4,8,16",
            "--quick --peer glibc --filter exchange --threads 2",
        ),
    ),
    ("vmlab bench memory --thp", Less("--quick --peer glibc --filter pair-64K-byte")),
    (
        "vmlab test --suite 6.12 performance --target all --table",
        With("performance", "run_test_mask=1 test_loop_count=10 test_repeat_count=1"),
    ),
    (
        "vmlab test run_test_mask=1024 nr_pages=5 --target linux --kern libkvmalloc.so",
        Needs("libkvmalloc.so"),
    ),
    (
        "vmlab test run_test_mask=7 nr_threads=4 --target process",
        Less("test_loop_count=10 test_repeat_count=1"),
    ),
    (
        "vmlab test --compare list,nodes,space nr_threads=4 test_loop_count=1000",
        With("test_loop_count=1000", "test_loop_count=10 run_test_mask=1 --rounds 1"),
    ),
    ("vmlab test --compare --out results", Less("run_test_mask=1 test_loop_count=100 --rounds 1")),
];

/// Returns the name of each command, and the lines of its examples.
fn examples() -> Vec<(String, Vec<String>)> {
    fn walk(command: &clap::Command, path: &str, all: &mut Vec<(String, Vec<String>)>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        all.push((path.to_string(), lines_of(&text)));
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            walk(below, &format!("{path} {}", below.get_name()), all);
        }
    }
    let mut all = Vec::new();
    walk(&vmlab::cli::Cli::command(), "vmlab", &mut all);
    all
}

/// Returns the command lines of a help text: indented, up to the first empty line, without the remarks after two
/// blanks.
fn lines_of(help: &str) -> Vec<String> {
    let mut lines = help.lines().skip_while(|line| !line.starts_with("Example"));
    lines.next();
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines.map(|line| line.trim().split("  ").next().unwrap().trim().to_string()).collect()
}

#[test]
fn every_command_ends_its_help_with_examples_of_itself() {
    let all = examples();
    assert!(all.len() > 12, "{all:?}");
    for (name, lines) in all {
        assert!(lines.iter().any(|line| line.contains(&name)), "{name}: {lines:?}");
    }
    assert_eq!(lines_of("x\nExamples:\n  a b   says c\n  d | e\n\n  no line\n"), ["a b", "d | e"]);
}

/// Creates the files that the examples name, from one trace, in `dir`.
fn furnish(dir: &Path) {
    let trace = std::fs::read(shipped("boot-smp1.ftrace.gz")).unwrap();
    let text = text_of("boot-smp1");
    let table = std::fs::read(shipped("boot-smp1.vmallocinfo")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).unwrap();
    write("trace.gz", &trace);
    write("trace.ftrace.gz", &trace);
    write("trace.zst", &zstd(text.as_bytes()));
    write("trace", text.as_bytes());
    write("info", &table);
    for name in ["saved", "monday", "tuesday"] {
        write(&format!("{name}.vmallocinfo"), &table);
    }
    vmlab()
        .current_dir(dir)
        .args(["convert", "trace", "--as", "jsonl", "-o", "vmlab.jsonl.gz"])
        .assert()
        .success();
    // A recording has a table of its end, too.
    let recording = std::fs::read(dir.join("vmlab.jsonl.gz")).unwrap();
    let end = gzip(b"{\"area\":{\"when\":\"end\",\"text\":\"(null)\"}}\n");
    let recording = [recording, end].concat();
    for name in ["vmlab", "recording", "before", "after"] {
        write(&format!("{name}.jsonl.gz"), &recording);
    }
    for name in ["monday", "tuesday"] {
        write(&format!("{name}.allocinfo"), super::sites::TEXT.as_bytes());
    }
    write("dump.jsonl.gz", &gzip(super::sites::DUMP.as_bytes()));
    write("stacks", super::flame::TEXT.as_bytes());
    write("slow", super::latency::text(20).as_bytes());
    for (from, to) in [("trace", "recording"), ("stacks", "r.jsonl.gz"), ("slow", "slow.jsonl.gz")] {
        vmlab().current_dir(dir).args(["convert", from, "--as", "jsonl", "-o", to]).assert().success();
    }
    for folder in
        ["results", "bin", ".zfunc", ".config/fish/completions", ".local/share/bash-completion/completions"]
    {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for name in ["index-baseline.csv", "space-baseline.csv"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results").join(name);
        std::fs::copy(from, dir.join("results").join(name)).unwrap();
    }
    // Substitutes for tools that a test machine may lack: one prints a trace, and jq at least reads its input.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vmlab"), dir.join("bin/vmlab")).unwrap();
    script(&dir.join("bin/trace-cmd"), "cat trace");
    if !Process::new("sh").args(["-c", "command -v jq"]).output().unwrap().status.success() {
        script(&dir.join("bin/jq"), "cat");
    }
}

fn script(path: &Path, line: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{line}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Runs a line in its own folder, which is also the user's home.
fn run(line: &str) -> Output {
    let dir = TempDir::new().unwrap();
    furnish(dir.path());
    let path = format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").unwrap());
    // The first failure in a pipe counts, not only that of the last command.
    Process::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("HOME", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The outcome of one example.
#[derive(Debug, PartialEq)]
enum Verdict {
    Works,
    /// It needs a tool that this machine lacks, which the text names.
    NotRun(String),
    Wrong(String),
}

/// Runs a line and checks that it behaves as expected.
fn judge(line: &str, how: Option<How>) -> Verdict {
    let run_as = match how {
        Some(Step) => return Verdict::Works,
        Some(Less(more)) => format!("{line} {more}"),
        Some(With(word, other)) => line.replace(word, other),
        _ => line.to_string(),
    };
    let lock = matches!(how, Some(Kernel)).then(super::record::recorder_lock);
    let output = run(&run_as);
    drop(lock);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let failed = err.lines().count() == 1 && err.starts_with("vmlab: ") && output.status.code() == Some(1);
    // Output is on stdout, or in a file that the line names; a filter may match nothing.
    let reported =
        !out.is_empty() || !err.is_empty() || [" > ", " -o ", "| jq "].iter().any(|by| line.contains(by));
    if let Some(NeedsPeer(_, peer)) = how
        && failed
        && err.contains(&format!("{peer} is not installed"))
    {
        return Verdict::NotRun(format!("{peer} is not installed"));
    }
    let good = match how {
        Some(Needs(file) | NeedsPeer(file, _)) => failed && err.contains(file),
        Some(Installed) => {
            let none = output.status.code() == Some(125) && err.lines().count() == 1;
            (output.status.success() && reported) || (none && err.contains("libvmalloc_preload.so"))
        }
        Some(Kernel) => (output.status.success() && reported) || failed,
        _ => output.status.success() && reported && !err.contains("panicked"),
    };
    if good { Verdict::Works } else { Verdict::Wrong(format!("$ {run_as}\n{}\n{out}{err}", output.status)) }
}

#[test]
fn every_example_works() {
    let lines: Vec<String> = examples().into_iter().flat_map(|(_, lines)| lines).collect();
    for (line, _) in ELSE {
        assert!(lines.iter().any(|known| known == line), "no help has the line: {line}");
    }
    let how = |line: &str| ELSE.iter().find(|(known, _)| *known == line).map(|(_, how)| *how);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let half = |from: usize| {
            let lines = lines.iter().skip(from).step_by(2);
            lines
                .filter_map(|line| {
                    let begun = std::time::Instant::now();
                    let verdict = judge(line, how(line));
                    println!("{:6} ms  {line}", begun.elapsed().as_millis());
                    match verdict {
                        Verdict::Works => None,
                        Verdict::NotRun(why) => {
                            super::not_run(&format!("the example `{line}`: {why}"));
                            None
                        }
                        Verdict::Wrong(why) => Some(why),
                    }
                })
                .collect::<Vec<_>>()
        };
        let other = scope.spawn(move || half(1));
        let mut wrong = half(0);
        wrong.extend(other.join().unwrap());
        wrong
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_example_that_does_not_work_is_seen() {
    for (line, how) in [
        ("vmlab replay gone.gz", None),
        ("vmlab replay gone.gz | cat", None),
        ("vmlab completions fish > /dev/null; exit 3", None),
        ("true", None),
        ("vmlab completions bash", Some(Needs("libx.so"))),
        ("vmlab frobnicate", Some(Kernel)),
    ] {
        assert!(matches!(judge(line, how), Verdict::Wrong(_)), "{line}");
    }
    assert_eq!(judge("vmlab completions bash", None), Verdict::Works);
}

#[test]
fn an_example_of_a_missing_tool_is_reported_as_not_run() {
    // No system has an allocator of that name; the message is the one that vmlab prints for a missing allocator.
    let fail_with = |text: &str| format!("echo 'vmlab: {text}' >&2; exit 1");
    let of = |text: &str| judge(&fail_with(text), Some(NeedsPeer("libx.so", "xmalloc")));
    assert_eq!(
        of("xmalloc is not installed here: xmalloc=PATH names a library"),
        Verdict::NotRun("xmalloc is not installed".to_string())
    );
    assert_eq!(of("no library libx.so"), Verdict::Works);
    assert!(matches!(of("something else"), Verdict::Wrong(_)));
    // vmlab prints exactly that message: for jemalloc if it is missing, or else for the missing file.
    let line = "vmlab bench memory --peer jemalloc --peer mine=libmine.so --filter mix";
    assert!(!matches!(judge(line, Some(NeedsPeer("libmine.so", "jemalloc"))), Verdict::Wrong(_)));
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = TempDir::new().unwrap();
    vmlab().current_dir(&dir).args(["man", "pages/man1"]).assert().success();
    for (name, lines) in examples() {
        let page =
            std::fs::read_to_string(dir.path().join(format!("pages/man1/{}.1", name.replace(' ', "-"))));
        let page = page.unwrap().replace("\\-", "-");
        assert!(
            page.contains(".SH NAME")
                && lines.iter().all(|line| page.contains(line.split(['|', '\'']).next().unwrap().trim())),
            "{name}: {page}"
        );
    }
    assert!(!dir.path().join("pages/man1/vmlab-man.1").exists(), "a hidden command");
    std::fs::write(dir.path().join("file"), "").unwrap();
    vmlab()
        .current_dir(&dir)
        .args(["man", "file/below"])
        .assert()
        .code(1)
        .stderr(contains("cannot make file/below"));
}
