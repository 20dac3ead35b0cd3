//! The arguments and the files of `vmlab bench index`. Other tests check its figures.

use super::*;

const SMALL_RUN: [&str; 6] = ["bench", "index", "--filter", "empty", "--indexes", "btree"];

#[test]
fn a_part_of_the_measurements_writes_files_only_where_requested() {
    let dir = TempDir::new().unwrap();
    for args in [&SMALL_RUN[..], &["bench", "index", "--quick", "--filter", "empty"]] {
        let assert = vmlab().args(args).args(["--out", "here"]).current_dir(&dir).assert().success();
        assert!(stdout_of(&assert).contains("wrote here/index-"));
        assert!(std::fs::read_dir(dir.path().join("here")).unwrap().count() >= 2);
        std::fs::remove_dir_all(dir.path().join("here")).unwrap();
        let assert = vmlab().args(args).current_dir(&dir).assert().success();
        assert!(stdout_of(&assert).contains("no files are written of a part"), "{}", stdout_of(&assert));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_before_anything_is_measured() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let assert =
        vmlab().args(SMALL_RUN).args(["--out", "file/x"]).current_dir(&dir).assert().failure().code(1);
    assert!(stderr_of(&assert).starts_with("vmlab: cannot create file/x: "), "{}", stderr_of(&assert));
    assert_eq!((stderr_of(&assert).lines().count(), stdout_of(&assert)), (1, String::new()));
}

#[test]
fn rounds_have_bounds_and_quick_has_its_own() {
    for (args, expected) in [
        (&["--rounds", "0"][..], "0 is not in 1..=1000"),
        (&["--rounds", "1001"], "1001 is not in 1..=1000"),
        (&["--rounds", "99999999999999999999"], "invalid value"),
        (&["--quick", "--rounds", "3"], "cannot be used with"),
    ] {
        let assert = vmlab().args(SMALL_RUN).args(args).assert().failure().code(2);
        assert!(stderr_of(&assert).contains(expected), "{}", stderr_of(&assert));
    }
}

#[test]
fn a_closed_stderr_is_no_panic_of_a_benchmark() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vmlab"))
        .args(SMALL_RUN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert!(child.wait_with_output().unwrap().status.success());
}
