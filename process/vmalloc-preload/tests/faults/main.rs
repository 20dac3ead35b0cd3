//! Tests of faults: each system call of each function of the preloaded library fails, in every way that its manual
//! names.
//!
//! The tracer, the errors and the faults are those of `process/vmalloc-capi/tests/faults`. The programs of `work` are
//! tests of this program, which it starts again with the library preloaded. So the calls of the C library's malloc, to
//! which small requests and failed ones are passed on, fail, too.
#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../vmalloc-capi/tests/faults/calls.rs"]
mod calls;
#[path = "../../../vmalloc-capi/tests/faults/errnos.rs"]
mod errnos;
#[path = "../../../vmalloc-capi/tests/faults/traced.rs"]
mod traced;
#[expect(dead_code, reason = "other tests also change times and make steps")]
#[path = "../../../vmalloc-capi/tests/faults/tracer.rs"]
mod tracer;
mod work;

use std::process::Command;
use traced::is_whole;

/// Returns the command that runs a program of `work` with the library preloaded.
fn program(name: &str) -> Command {
    let mut command = traced::program(name);
    let this = std::env::current_exe().unwrap();
    command.env("LD_PRELOAD", this.with_file_name("libvmalloc_preload.so"));
    command.env("VMALLOC_CONF", format!("stats:true,{}", work::conf(name)));
    command
}

/// Reads a number of a program's output.
fn number(text: &str, key: &str) -> Option<u64> {
    // libtest writes the name of the test on the first line.
    let line = text.lines().find_map(|line| Some(line.split_once(key)?.1))?;
    line.split(' ').next()?.trim().parse().ok()
}

/// Returns the bytes of the arena that are live at the end, by the library's statistics.
fn leak(text: &str) -> Option<u64> {
    number(text, "; bytes live ")
}

#[test]
fn a_program_that_leaks_is_noticed_and_one_without_the_library_is_no_program() {
    let text = "errors 0\nvmalloc: served 3 freed 2 resized 0 passed on 0; bytes live 4096 cached 0 purged 0";
    assert_eq!((leak(text), number(text, "errors ")), (Some(4096), Some(0)));
    let output = program("functions").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && leak(&text) == Some(0), "{text}");
    assert!(number(&text, "vmalloc: served ").is_some_and(|served| served > 10), "{text}");
}
