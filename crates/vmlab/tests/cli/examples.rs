//! The examples at the end of every `--help` are run, each line as it stands, by a shell in a folder that has the files they name.

use super::*;
use clap::CommandFactory;
use std::os::unix::fs::symlink;
use std::process::{Command as Process, Output};

/// What is done for a line that cannot be run as it stands.
#[derive(Clone, Copy, Debug)]
enum How {
    /// With this in front of the line: a smaller load, or a thing that a machine of tests lacks.
    Behind(&'static str, &'static str),
    /// It needs the kernel that runs here, root and what root may be refused: it may fail, with one line that says why.
    Kernel,
    /// It needs this file, which is made of somebody else's source.
    Needs(&'static str),
}

use How::{Behind, Kernel, Needs};

/// All lines that are not run as they stand, and why. A line that can be must not be here.
const ELSE: &[(&str, How)] = &[
    ("vmlab record -- unshare -n true", Kernel),
    ("vmlab record -o boot.jsonl.gz --seconds 10", Kernel),
    ("vmlab map", Kernel),
    ("vmlab report /proc/vmallocinfo -o now.html", Kernel),
];

/// Name of a command, and the lines of its examples.
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

/// The command lines of a help text: indented, up to the first empty line, without what is said of them after three blanks.
fn lines_of(help: &str) -> Vec<String> {
    let mut lines = help.lines().skip_while(|line| !line.starts_with("Example"));
    lines.next();
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines.map(|line| line.trim().split("   ").next().unwrap().trim().to_string()).collect()
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

