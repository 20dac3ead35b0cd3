//! Tests of faults: each system call of each entry point fails, in every way that its manual names.
//!
//! # Theory
//! A program of `work` and `c` runs once for each of its system calls and each error of that call. The call is not
//! made, and returns the error. The program must end with success. Each of its calls either does its work, or returns a
//! documented error and changes nothing. Once nothing fails any more, no memory is lost.
//!
//! The programs are tests of this program, which it starts again under `tracer`. In CI a sample of the faults is tried.
//! `cargo xtask faults` tries all of them (`VMALLOC_FAULTS=whole`), and writes its counts to a page of results.
#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod c;
mod calls;
mod clocks;
mod errnos;
mod handlers;
mod limits;
mod safe;
mod steps;
mod traced;
mod tracer;
mod work;

use traced::{is_whole, program};

/// Reads a number of a program's output.
fn number(text: &str, key: &str) -> Option<u64> {
    // libtest writes the name of the test on the first line.
    let line = text.lines().find_map(|line| Some(line.split_once(key)?.1))?;
    line.trim().parse().ok()
}

/// Returns the bytes that stay mapped at the end, as the program reports.
fn leak(text: &str) -> Option<u64> {
    number(text, "leak ")
}
