//! The arguments, the output and the files of `vmlab bench memory`. Other tests check its figures.

use super::*;

const SMALL_RUN: [&str; 8] = ["bench", "memory", "--rounds", "2", "--ms", "1", "--peer", "glibc"];

/// Returns the rows of a CSV file, without comments and the head.
fn rows_of(csv: &str) -> Vec<Vec<String>> {
    let rows = csv.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.map(|row| row.split(',').map(str::to_string).collect()).collect()
}

#[test]
fn two_allocators_on_a_workload_produce_tables_and_figures_that_parse() {
    let dir = TempDir::new().unwrap();
    let args = ["--filter", "mix-1M-16M-pages-1t", "--out", "here"];
    let assert = vmlab().args(SMALL_RUN).args(args).current_dir(&dir).assert().success();
    for text in ["Allocators.", "At equal memory", "mix-1M-16M-pages-1t: every page touched, one thread"] {
        assert!(stdout_of(&assert).contains(text), "{text}");
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join("here").join(name)).unwrap();
    let csv = read("memory.csv");
    assert!(csv.starts_with("# command: vmlab bench memory"), "{csv}");
    let rows = rows_of(&csv);
    let of = |family: &str| rows.iter().filter(|row| row[1] == family).count();
    // Cache budgets of ours, and glibc's settings.
    assert!(of("ours") >= 8 && of("ours-kv") == 1 && of("glibc") == 4 && of("jemalloc") == 0, "{csv}");
    for row in &rows {
        let numbers: Vec<f64> = row[4..].iter().map(|number| number.parse().unwrap()).collect();
        let [_, rounds, cpu, cpu_min, wall, wall_min, .., mean, same, peak, end, ever, mappings] =
            numbers[..]
        else {
            panic!("{row:?}")
        };
        assert!(rounds == 2.0 && 0.0 < cpu_min && cpu_min <= cpu && wall_min <= wall, "{row:?}");
        // Eight allocations of at least a megabyte, with all pages touched; the kernel counts in batches.
        assert!(
            8e6 < mean && 8e6 < same && mean <= peak && 8e6 < end && peak < 1.2 * ever && mappings > 5.0,
            "{row:?}"
        );
    }
    let page = read("memory.md");
    assert!(page.contains("At equal memory") && page.contains("| glibc mmap-64K |"), "{page}");
    assert!(read("memory-mix-1M-16M-1t.svg").starts_with("<svg "));
}

#[test]
fn a_part_of_the_measurements_writes_no_files_unless_requested() {
    let dir = TempDir::new().unwrap();
    let args = ["--filter", "pair-64K-byte"];
    let assert = vmlab().args(SMALL_RUN).args(args).current_dir(&dir).assert().success();
    assert!(stdout_of(&assert).contains("no files are written of a part"));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn threads_are_those_of_the_option_and_the_commit_is_named_where_git_is_missing() {
    let dir = TempDir::new().unwrap();
    let args = ["--filter", "exchange", "--threads", "1,3", "--out", "here"];
    let mut vmlab = vmlab();
    vmlab.args(SMALL_RUN).args(args).env("PATH", "").env("VMLAB_COMMIT", "0123abc");
    vmlab.current_dir(&dir).assert().success();
    let csv = std::fs::read_to_string(dir.path().join("here/memory.csv")).unwrap();
    assert!(csv.contains("# commit: 0123abc\n") && csv.contains("# build: rustc 1."), "{csv}");
    let mut workloads: Vec<_> = rows_of(&csv).iter().map(|row| format!("{} {}", row[0], row[4])).collect();
    workloads.dedup();
    assert_eq!(workloads, ["exchange-64K-1M-byte-1t 1", "exchange-64K-1M-byte-3t 3"]);
}

#[test]
fn each_kind_of_work_is_done_by_ours_and_by_plain_mappings() {
    for (filter, expected) in [
        ("pair-64K-pages-2t", "mmap"),
        ("crowd", "64 threads"),
        ("flow-64K", "one allocated by a thread and freed by another"),
        ("calloc-256K", "ours-kv"),
        ("aligned", "ours-kv"),
        ("guarded", "ours-guards"),
        ("grow-16M", "a whole growth by half at a time"),
    ] {
        let args = ["bench", "memory", "--rounds", "1", "--ms", "1", "--peer", "mmap", "--filter", filter];
        let assert = vmlab().args(args).assert().success();
        assert!(stdout_of(&assert).contains(expected), "{filter}: {}", stdout_of(&assert));
    }
}

#[test]
fn mistakes_are_reported_in_one_line() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("no-library.so"), "").unwrap();
    for (args, expected) in [
        (&["--filter", "no-such-thing"][..], "no workload's name contains \"no-such-thing\""),
        (&["--peer", "no-such-peer"], "no peer is called no-such-peer"),
        (&["--peer", "mine=no-such-file.so"], "no library no-such-file.so"),
        // The dynamic linker only prints a warning, and continues without the library.
        (&["--peer", "mine=no-library.so"], "provides no malloc"),
    ] {
        let assert = vmlab().args(SMALL_RUN).args(args).current_dir(&dir).assert().failure().code(1);
        let stderr = stderr_of(&assert);
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    for args in [&["--rounds", "0"][..], &["--ms", "0"], &["--peer", ""], &["--quick", "--ms", "3"]] {
        vmlab().args(["bench", "memory"]).args(args).assert().failure().code(2);
    }
}

/// A library whose `malloc` works until a megabyte is requested.
const CRASHES: &str = r#"
#include <stdlib.h>
void *__libc_malloc(size_t);
void *malloc(size_t bytes) { if (bytes == 1 << 20) abort(); return __libc_malloc(bytes); }
"#;

#[test]
fn a_child_that_crashes_is_reported_and_the_others_are_measured() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("crashes.c"), CRASHES).unwrap();
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-fno-builtin", "-o", "crashes.so", "crashes.c"])
        .current_dir(&dir)
        .status();
    // Without a C compiler the library cannot be built.
    let Ok(built) = built else { return };
    assert!(built.success());
    let args = ["--peer", "crashes=crashes.so", "--filter", "pair-1M-byte", "--out", "here"];
    let assert = vmlab().args(SMALL_RUN).args(args).current_dir(&dir).assert().failure().code(1);
    let stderr = stderr_of(&assert);
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("vmlab: crashes on pair-1M-byte-1t: the child ended with signal: 6"),
        "{stderr}"
    );
    let csv = std::fs::read_to_string(dir.path().join("here/memory.csv")).unwrap();
    let families: Vec<_> = rows_of(&csv).into_iter().map(|row| row[1].clone()).collect();
    assert_eq!(families, ["ours", "ours-kv", "ours-guards", "glibc"]);
    let page = std::fs::read_to_string(dir.path().join("here/memory.md")).unwrap();
    assert!(page.contains("Broken: crashes on pair-1M-byte-1t"), "{page}");
}

#[test]
fn a_child_takes_no_nonsense() {
    for task in ["", "{}", "{\"how\":1}"] {
        let assert = vmlab().args(["bench", "memory-child", task]).assert().failure().code(1);
        assert!(stderr_of(&assert).starts_with("vmlab: no task"), "{}", stderr_of(&assert));
    }
}
