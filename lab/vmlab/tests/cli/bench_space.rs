//! The arguments, the output and the files of `vmlab bench space`. Other tests check its figures.

use super::*;

const SMALL_RUN: [&str; 9] =
    ["bench", "space", "--quick", "--filter", "fix_size", "--contenders", "ours,linux69", "--out", "here"];

#[test]
fn a_quick_run_shows_pairs_purges_threads_and_locks_and_writes_them_where_requested() {
    let dir = TempDir::new().unwrap();
    let assert = vmlab().args(SMALL_RUN).current_dir(&dir).assert().success();
    let stdout = stdout_of(&assert);
    for text in [
        "Nanoseconds a pair of one thread",
        "Purges / flushes in all rounds together",
        "Threads, a node each, drained by a helper",
        "con-bounces",
        "waittime-total",
        "holdtime-avg",
        "vn->lazy.lock",
        "free_vmap_area_lock",
        "wrote here/space-",
    ] {
        assert!(stdout.contains(text), "{text:?} in {stdout}");
    }
    let files = std::fs::read_dir(dir.path().join("here")).unwrap();
    let csv =
        files.map(|file| file.unwrap().path()).find(|path| path.extension().is_some_and(|end| end == "csv"));
    let csv = std::fs::read_to_string(csv.unwrap()).unwrap();
    let rows: Vec<Vec<&str>> =
        csv.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    for kind in ["pattern", "threads"] {
        for contender in ["ours", "linux69"] {
            let row = rows.iter().find(|row| row[0] == kind && row[1] == "fix_size" && row[4] == contender);
            let row = row.unwrap_or_else(|| panic!("no {kind} of {contender}: {csv}"));
            assert!(row[5].parse::<f64>().unwrap() > 0.0 && row[9].parse::<u64>().is_ok(), "{csv}");
        }
    }
}

#[test]
fn a_part_of_the_measurements_writes_files_only_where_requested() {
    let dir = TempDir::new().unwrap();
    for part in [&["--quick"][..], &["--nodes", "1", "--rounds", "1"]] {
        let args = ["bench", "space", "--filter", "fail-window-again", "--contenders", "ours"];
        let assert = vmlab().args(args).args(part).current_dir(&dir).assert().success();
        assert!(stdout_of(&assert).contains("no files are written of a part"), "{}", stdout_of(&assert));
        assert!(stdout_of(&assert).contains("fail-window-again: "), "{}", stdout_of(&assert));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn what_cannot_be_measured_is_reported_in_one_line() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("no.so"), "no library").unwrap();
    for (args, code, expected) in [
        (&["--contenders", "unknown"][..], 1, "no contender is called unknown"),
        (&["--quick", "--filter", "nothing"], 1, "no pattern's or case's name contains \"nothing\""),
        (&["--kern", "no.so"], 1, "cannot load no.so"),
        (&["--kern", "missing.so"], 1, "cannot load missing.so"),
        (&["--nodes", "0"], 2, "0 is not in 1..=4096"),
        (&["--threads", "257"], 2, "257 is not in 1..=256"),
        (&["--quick", "--threads", "2"], 2, "cannot be used with"),
    ] {
        let assert = vmlab().args(["bench", "space", "--out", "here"]).args(args).current_dir(&dir).assert();
        let assert = assert.failure().code(code);
        assert!(stderr_of(&assert).contains(expected), "{args:?}: {}", stderr_of(&assert));
        assert!(code == 2 || stderr_of(&assert).lines().count() == 1, "{}", stderr_of(&assert));
    }
}

#[test]
fn a_library_without_the_functions_is_reported_which_is_missing() {
    // The C library is always present, and has none of the functions.
    for name in ["libc.so.6", "libm.so.6"] {
        let assert = vmlab().args(["bench", "space", "--quick", "--kern", name]).assert();
        let stderr = stderr_of(&assert);
        if stderr.contains("cannot load") {
            continue;
        }
        assert.failure().code(1);
        assert!(stderr.contains(&format!("{name}: no kv_init")), "{stderr}");
        return;
    }
}
