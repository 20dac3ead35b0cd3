//! The programs that are traced: tests of this program, which it starts again. Other tests of faults have this file, too.

use std::process::Command;

/// The environment variable with the name of the program that this process is to run.
const PROGRAM: &str = "VMALLOC_FAULTS_PROGRAM";

/// Returns true if all faults are to be tried.
pub(crate) fn is_whole() -> bool {
    std::env::var("VMALLOC_FAULTS").is_ok_and(|what| what == "whole")
}

/// Returns the command that runs a program of `work`.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["traced::traced_program", "--exact", "--nocapture", "--test-threads=1"]).env(PROGRAM, name);
    command
}

/// The program that is traced; by itself it does nothing.
#[test]
fn traced_program() {
    if let Ok(name) = std::env::var(PROGRAM) {
        crate::work::run(&name);
    }
}
