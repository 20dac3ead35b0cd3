//! Checks that this machine cannot run, for lack of a tool or of a right. Each is reported where it is skipped, and the
//! summary of `cargo xtask ci` lists them all.
//!
//! Steps and tests add lines to one file. Tests find it by an environment variable, since their harness hides the
//! output of a test that passes.

use crate::sh::Cmd;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The variable that names the file.
const VARIABLE: &str = "XTASK_NOT_RUN";
/// The text before each line of the file.
const MARK: &str = "NOT RUN: ";

/// Returns true if a missing tool is a failure: `.ci/run`, which sets `CI`, installs what its steps need.
pub(crate) fn must_run() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Returns the path of the list: the file of the run that this process is a lane of, or this run's own.
fn file(root: &Path) -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| root.join("target/ci/not-run.txt"), PathBuf::from)
}

/// Empties the list, unless another run passed it to this process.
pub(crate) fn begin(root: &Path) {
    if std::env::var_os(VARIABLE).is_none() {
        // It does not exist before the first run.
        let _absent = fs::remove_file(file(root));
        let _there = fs::create_dir_all(root.join("target/ci"));
    }
}

/// Sets the variable that names the list, for the tests of a command.
pub(crate) fn with_list(root: &Path, cmd: Cmd) -> Cmd {
    cmd.env(VARIABLE, file(root))
}

/// Reports a check that is not run, and adds it to the list.
pub(crate) fn add(root: &Path, what: &str) {
    let line = format!("{MARK}{what}\n");
    print!("{line}");
    let file = fs::OpenOptions::new().create(true).append(true).open(file(root));
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        println!("the summary will not list it: {error}");
    }
}

/// Returns everything on the list, each line once.
pub(crate) fn all(root: &Path) -> Vec<String> {
    listed(&fs::read_to_string(file(root)).unwrap_or_default())
}

/// Returns the contents of the marked lines of a text, each once.
pub(crate) fn listed(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(MARK)) {
        if !lines.iter().any(|known| known == line) {
            lines.push(line.to_string());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_check_that_is_not_run_is_listed_once() {
        assert_eq!(listed("NOT RUN: a\nnoise\nNOT RUN: b\nNOT RUN: a\n"), ["a", "b"]);
    }

    #[test]
    fn a_command_finds_the_list() {
        let cmd = Cmd::new(Path::new("."), "sh").args(["-c", "echo $XTASK_NOT_RUN"]);
        assert!(with_list(Path::new("/tree"), cmd).read().unwrap().trim().ends_with(".txt"));
    }
}
