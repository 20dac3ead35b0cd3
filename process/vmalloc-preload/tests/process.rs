//! Tests of difficult conditions: small stacks, forks at any point, filters, limits, and changes by programs of their
//! own memory. The exit status of each program of `tests/c` says whether the results are those of the C library's
//! malloc.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../vmalloc/tests/group/mod.rs"]
mod group;

use group::Group;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use va_sim::effort::is_full;

fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libvmalloc_preload.so");
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// Compiles a program of `tests/c`.
fn compile(dir: &Path, source: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let out = dir.join(source.replace('.', "-"));
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", "-D_GNU_SOURCE", "-fno-builtin"]);
    run(command.arg(from).arg("-o").arg(&out));
    out
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said.concat());
    said[1].lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
    output
}

/// Returns a command under the preload with a limit of a minute.
fn preloaded(program: &Path, conf: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", "env"]);
    command.arg(format!("LD_PRELOAD={}", library().display())).arg(format!("VMALLOC_CONF={conf}"));
    command.arg(program);
    command
}

/// Runs a program of `tests/c` without the preload, and with it under each configuration.
fn everywhere(source: &str, args: &[&str], confs: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), source);
    run(Command::new(&program).args(args));
    for conf in confs {
        run(preloaded(&program, conf).args(args));
    }
}

/// A configuration in which a thread releases unused memory.
const THREAD: &str = "threshold:4K,decay:20ms,background_thread:true";

#[test]
fn the_least_stack_is_enough_for_everything() {
    everywhere("stack.c", &[], &["", "threshold:4K", "hardened:true", "budget:0", THREAD]);
}

#[test]
fn a_handler_of_a_signal_forks_in_the_midst_of_a_call() {
    // A child that prints statistics must not wait for the interrupted call either.
    let counting = ["stats:true", "hardened:true,stats:true"];
    everywhere(
        "forks.c",
        &["handler"],
        &["", "threshold:4K,budget:0", "hardened:true", counting[0], counting[1]],
    );
    // With threads the C library's own malloc deadlocks here.
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "forks.c");
    for conf in ["", "hardened:true"] {
        run(preloaded(&program, conf).arg("threads"));
    }
}

#[test]
fn a_handler_of_a_signal_exits_in_the_midst_of_a_call() {
    everywhere("forks.c", &["exit"], &["", "stats:true", "hardened:true,stats:true"]);
}

#[test]
fn a_fork_beside_streams_that_are_flushed_and_read_ends() {
    everywhere("forks.c", &["streams"], &["", "hardened:true"]);
}

#[test]
fn a_child_after_a_burst_shares_no_cached_memory() {
    everywhere("forks.c", &["burst"], &["", "hardened:true"]);
}

#[test]
fn a_program_that_confines_itself_is_not_killed() {
    let ways = ["prctl", "syscall", "before"];
    for way in ways {
        everywhere(
            "filter.c",
            &[way],
            &["", "calls:plain", "calls:plain,threshold:4K,decay:1ms", THREAD, "hardened:true"],
        );
    }
    // A filter that cannot be detected needs the option.
    if cfg!(target_arch = "x86_64") {
        everywhere("filter.c", &["assembly"], &["calls:plain", "calls:plain,stats:true,hardened:true"]);
    }
}

#[test]
fn a_filter_for_all_threads_waits_for_the_calls_of_the_others() {
    let all = ["", "threshold:4K,decay:1ms", "budget:0", THREAD, "hardened:true"];
    everywhere("tsync.c", &["6", "threads"], &all);
    everywhere("tsync.c", &["6", "first"], &[THREAD]);
}

#[test]
fn descriptors_are_the_programs() {
    everywhere("descriptors.c", &[], &["", "threshold:4K"]);
}

#[test]
fn limits_count_what_is_used_and_larger_requests_fail() {
    // Each case fills hundreds of megabytes.
    let confs = if is_full() { &["", "threshold:4K", "hardened:true"][..] } else { &[""] };
    for what in ["late", "exceeded", "early", "data", "big", "mlockall", "number", "gaps"] {
        everywhere("limits.c", &[what], &[confs, &["hardened:true,threshold:4K"]].concat());
    }
    for what in ["holes", "aligned"] {
        everywhere("limits.c", &[what], confs);
    }
    let dir = tempfile::tempdir().unwrap();
    let limits = compile(dir.path(), "limits.c");
    let output = run(preloaded(&limits, "stats:true").arg("impossible"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("served 100 ") && said.contains("passed on 1;"), "{said}");
    let output = run(preloaded(&limits, "stats:true").arg("vfork"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("served 101 ") && said.contains("passed on 0;"), "{said}");
    // If the system overcommits without a limit, it does so with and without the preload.
    let promises = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if promises.trim() != "1" {
        everywhere("limits.c", &["overcommit"], &["", "hardened:true"]);
    }
}

#[test]
fn no_later_owner_inherits_what_a_program_changed_of_its_memory() {
    everywhere("changes.c", &[], &["", "threshold:4K", "budget:0", "hardened:true"]);
}

#[test]
fn secrets_of_one_thread_do_not_reach_another_with_zero_on_free() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "secrets.c");
    for conf in ["zero_on_free:true", "zero_on_free:true,threshold:4K,budget:0", "hardened:true"] {
        run(&mut preloaded(&program, conf));
    }
    // For comparison: without the option nothing is erased.
    assert!(!preloaded(&program, "").output().unwrap().status.success());
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "small calls are not counted there")]
fn cached_memory_decays_where_a_program_makes_small_calls_alone() {
    everywhere("idle.c", &[], &["decay:10ms", "decay:10ms,huge:auto"]);
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "idle.c");
    // For comparison: without decay the memory stays cached.
    assert!(!preloaded(&program, "decay:never").output().unwrap().status.success());
}

#[test]
fn a_trim_releases_what_every_other_free_left() {
    everywhere("trim.c", &[], &["", "budget:0", "huge:never"]);
}

#[test]
fn free_memory_cannot_be_touched_in_the_hardened_profile_and_costs_a_fork_little() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "far.c");
    run(&mut preloaded(&program, "hardened:true"));
    for conf in ["hardened:true,threshold:4K", "hardened:true,threshold:64K"] {
        run(preloaded(&program, conf).arg("fork"));
    }
    // The window is not written to a core file either.
    run(preloaded(&program, "hardened:true").arg("core").current_dir(dir.path()));
}

/// Returns the command, run in a group.
fn inside(group: &Group, command: &Command) -> Command {
    let mut inside = Command::new("sh");
    inside.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.processes());
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

#[test]
fn cached_memory_makes_room_where_a_group_limits_memory() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "burst.c");
    let Some(group) = Group::new("burst", 700 << 20) else {
        return eprintln!("SKIPPED: no control group with the memory controller can be made here");
    };
    if !inside(&group, &Command::new("true")).status().unwrap().success() {
        return eprintln!("SKIPPED: no process can enter a control group here");
    }
    run(&mut inside(&group, &Command::new(&program)));
    for conf in ["", "huge:never", "hardened:true"] {
        run(&mut inside(&group, &preloaded(&program, conf)));
    }
}

#[test]
fn large_memory_before_any_constructor_is_served() {
    everywhere("early.c", &[], &["", "threshold:4K", "hardened:true"]);
}
