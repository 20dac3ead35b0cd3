//! Tests of our own C and C++ programs and of unmodified programs, with the preload and without.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Numbers of signals.
mod libc_signal {
    pub(super) const ABRT: i32 = 6;
    pub(super) const SEGV: i32 = 11;
}

/// Serves every size from a page on, so that small programs are tested, too.
const ALL: &str = "threshold:4K,stats:true";

fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libvmalloc_preload.so");
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// Returns true if a program is installed. Else reports that a test is not run.
fn there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        not_run(&format!("{} with {program}: it is not installed", module_path!()));
    }
    found
}

/// Reports something that this machine cannot run. The line goes to stderr, past the harness, which
/// hides what tests print. It also goes to the file that the environment names, from which
/// `cargo xtask ci` makes a list.
fn not_run(what: &str) {
    let line = format!("NOT RUN: {what}\n");
    let _shown = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("XTASK_NOT_RUN") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _listed = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles a program of `tests/c`, or a library.
fn compile(dir: &Path, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    compile_in("tests/c", dir, compiler, source, flags)
}

fn compile_in(from: &str, dir: &Path, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (out, from) = (dir.join(source.replace('.', "-")), Path::new(env!("CARGO_MANIFEST_DIR")).join(from));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", "-D_GNU_SOURCE", "-fno-builtin"]);
    // gcc checks the sizes of malloc, and warns of the ones tested here.
    if compiler.starts_with('g') {
        command.arg("-Wno-alloc-size-larger-than");
    }
    run(command.arg(from.join(source)).arg("-o").arg(&out).args(flags));
    out
}

fn c_compilers() -> Vec<&'static str> {
    let found: Vec<_> = ["gcc", "clang"].into_iter().filter(|name| there(name)).collect();
    assert!(!found.is_empty(), "there is no compiler of C here");
    found
}

/// Returns a command under the preload.
fn preloaded(program: impl AsRef<std::ffi::OsStr>, conf: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("VMALLOC_CONF", conf);
    command
}

/// Returns the number of allocations that the programs of a command report as served.
fn served(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter_map(|line| line.strip_prefix("vmalloc: served "));
    lines.map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Runs a command with the preload and without, which must print the same. Returns the number of allocations served.
fn same(program: &str, args: &[&str], dir: &Path) -> u64 {
    let plain = run(Command::new(program).args(args).current_dir(dir));
    let ours = run(preloaded(program, ALL).args(args).current_dir(dir));
    assert!(plain.stdout == ours.stdout, "{program} {args:?} prints something else");
    served(&ours)
}

#[test]
fn lp1_malloc_behaves_at_every_threshold_as_the_c_librarys() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in c_compilers() {
        let program = compile(dir.path(), compiler, "behaviour.c", &[]);
        run(&mut Command::new(&program));
        for conf in [
            "stats:true",
            ALL,
            "threshold:100000,budget:0,stats:true",
            "hardened:true,stats:true",
            "threshold:3M,budget:1G,stats:true",
        ] {
            let output = run(&mut preloaded(&program, conf));
            assert!(served(&output) > 50, "{conf}: {output:?}");
        }
    }
}

#[test]
fn the_example_prints_the_same_and_its_large_memory_is_served() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in c_compilers() {
        let program = compile_in("examples", dir.path(), compiler, "grows.c", &[]);
        let plain = run(&mut Command::new(&program));
        let ours = run(&mut preloaded(&program, "stats:true"));
        assert_eq!((&plain.stdout[..], &ours.stdout[..]), (&b"1225\n"[..], &b"1225\n"[..]));
        assert!(served(&ours) >= 50, "{ours:?}");
    }
}

#[test]
fn threads_forks_and_their_handlers_work() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), c_compilers()[0], "threads.c", &[]);
    for conf in ["stats:true", ALL] {
        assert!(served(&run(&mut preloaded(&program, conf))) > 1000);
    }
}

#[test]
fn libraries_come_and_go_and_glibcs_own_names_are_the_same_malloc() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = compile(dir.path(), c_compilers()[0], "plugin.c", &["-shared", "-fPIC"]);
    let program = compile(dir.path(), c_compilers()[0], "opens.c", &["-ldl"]);
    for conf in ["stats:true", ALL] {
        assert!(served(&run(preloaded(&program, conf).arg(&plugin))) > 20);
    }
}

#[test]
fn a_constructor_may_wait_for_the_thread_that_makes_the_first_large_allocation() {
    let dir = tempfile::tempdir().unwrap();
    let waits = compile(dir.path(), c_compilers()[0], "waits.c", &["-shared", "-fPIC", "-pthread"]);
    let program = compile(dir.path(), c_compilers()[0], "loads.c", &["-ldl"]);
    for conf in ["stats:true", ALL] {
        assert_eq!(served(&run(preloaded(&program, conf).arg(&waits))), 1);
    }
}

#[test]
fn a_library_before_this_one_may_wrap_glibcs_own_names() {
    let dir = tempfile::tempdir().unwrap();
    let wraps = compile(dir.path(), c_compilers()[0], "wraps.c", &["-shared", "-fPIC"]);
    let program = compile(dir.path(), c_compilers()[0], "wrapped.c", &[]);
    let both = format!("{}:{}", wraps.display(), library().display());
    for conf in ["stats:true", ALL, "hardened:true,stats:true"] {
        assert!(served(&run(preloaded(&program, conf).env("LD_PRELOAD", &both))) >= 7, "{conf}");
    }
}

#[test]
fn every_process_reports_its_work_to_a_file_and_a_child_only_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    let source = dir.path().join("forks.c");
    // Three allocations by the parent, two by the child, which exits normally.
    let program = "#include <malloc.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        static void *volatile p; static void use(int n) { while (n--) { p = malloc(1000000); free(p); } }\n\
        int main(void) { use(3); malloc_trim(0); if (fork() == 0) { use(2); return 0; } int s; wait(&s); return s; }\n";
    fs::write(&source, program).unwrap();
    let to = dir.path().join("forks");
    run(Command::new(c_compilers()[0]).args(["-O1", "-fno-builtin"]).arg(&source).arg("-o").arg(&to));
    let lines = || -> Vec<String> {
        fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_string).collect()
    };
    // Without the file there is no report, and none is created. The same holds for a name that is not absolute.
    let silent = run(preloaded(&to, "").env("VMALLOC_REPORT", &file));
    assert!(silent.stderr.is_empty() && !file.exists(), "{silent:?}");
    let relative = run(preloaded(&to, "").env("VMALLOC_REPORT", "report").current_dir(dir.path()));
    assert!(
        String::from_utf8_lossy(&relative.stderr).contains("VMALLOC_REPORT: no absolute name"),
        "{relative:?}"
    );
    fs::write(&file, "").unwrap();
    // The resident memory of this process is not the program's, though the system counts it there.
    let resident = std::hint::black_box(vec![1_u8; 96 << 20]);
    let output = run(preloaded(&to, "").env("VMALLOC_REPORT", &file));
    drop(resident);
    assert!(output.stderr.is_empty(), "{output:?}");
    let reports = lines();
    assert_eq!(reports.len(), 2, "{reports:?}");
    for (line, served) in reports.iter().zip([2, 3]) {
        assert!(line.starts_with(&format!("vmalloc: report served {served} freed {served} ")), "{reports:?}");
        let words: Vec<_> = line.split(' ').collect();
        let number =
            |key| words[words.iter().position(|word| *word == key).unwrap() + 1].parse::<u64>().unwrap();
        assert!(number("nanoseconds") > 0 && number("faults") > 0, "{line}");
        assert!((1..64 << 10).contains(&number("peak_kib")), "{line}");
        // Only the parent trimmed, before the fork.
        assert_eq!(number("purged") > 0, served == 3, "{reports:?}");
    }
}

#[test]
fn a_random_program_of_threads_and_forks_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), c_compilers()[0], "stress.c", &["-std=c11"]);
    for (kind, conf) in [
        ("plain", "stats:true"),
        ("limits", ALL),
        ("stacks", "decay:20ms,background_thread:true,stats:true"),
        ("seccomp", "decay:1ms,stats:true"),
        ("forks", "huge:never,budget:0,stats:true"),
    ] {
        // The checks for every malloc hold without the preload, too.
        run(Command::new(&program).args(["3", "200", kind]));
        assert!(served(&run(preloaded(&program, conf).args(["3", "400", kind]))) > 0);
    }
}

#[test]
fn it_has_little_static_tls_and_exports_only_names_of_malloc() {
    if !there("readelf") {
        return;
    }
    let read =
        |what| String::from_utf8(run(Command::new("readelf").arg(what).arg(library())).stdout).unwrap();
    // A loaded library may be closed while its memory is in use.
    let dynamic = read("-d");
    assert!(dynamic.contains("NODELETE") && dynamic.contains("INITFIRST"), "{dynamic}");
    // Static TLS is scarce for libraries that are loaded later: the count of small calls, and what the standard library
    // has in a build that links it.
    let headers = read("-lW");
    let tls = headers.lines().find_map(|line| line.trim().strip_prefix("TLS "));
    let bytes = tls.map_or("0x0", |line| line.split_whitespace().nth(4).unwrap());
    let bytes = usize::from_str_radix(bytes.trim_start_matches("0x"), 16).unwrap();
    assert!(bytes <= 128, "{headers}");
    let said = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library())).stdout;
    for name in String::from_utf8(said).unwrap().lines().filter_map(|line| line.split(' ').nth(2)) {
        let known =
            ["free_sized", "free_aligned_sized", "__register_atfork", "posix_memalign", "reallocarray"];
        let plain = name.trim_start_matches("__libc_");
        let of_malloc =
            ["malloc", "calloc", "realloc", "free", "memalign", "valloc", "pvalloc", "aligned_alloc"];
        let asks = ["malloc_usable_size", "malloc_trim", "prctl", "syscall", "mlockall"];
        let limits = ["setrlimit", "prlimit", "setrlimit64", "prlimit64"];
        let changes = ["mprotect", "pkey_mprotect", "madvise", "mlock", "mlock2"];
        assert!(
            known.contains(&name)
                || of_malloc.contains(&plain)
                || asks.contains(&name)
                || limits.contains(&name)
                || changes.contains(&name),
            "{name}"
        );
    }
}

#[test]
fn cplusplus_operators_are_served() {
    let compilers: Vec<_> = ["g++", "clang++"].into_iter().filter(|name| there(name)).collect();
    assert!(!compilers.is_empty(), "there is no compiler of C++ here");
    let dir = tempfile::tempdir().unwrap();
    for compiler in compilers {
        let program = compile(dir.path(), compiler, "plus.cpp", &["-std=c++17"]);
        assert!(served(&run(&mut preloaded(&program, "stats:true"))) > 3);
    }
}

#[test]
fn a_mistake_ends_the_program_with_a_line_that_names_the_address() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), c_compilers()[0], "mistakes.c", &[]);
    for (mistake, function) in
        [("twice", "free"), ("inside", "free"), ("realloc", "realloc"), ("usable", "malloc_usable_size")]
    {
        let output = preloaded(&program, "").arg(mistake).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.signal(), Some(6), "{mistake}: {} {said}", output.status);
        let (address, line) = said.trim_end().split_once('\n').unwrap();
        assert!(line.starts_with(&format!("vmalloc: {function}: bad pointer: ")), "{said}");
        assert!(line.contains(&format!("0x{address}")), "{said}");
    }
    run(preloaded(&program, "").arg("none"));
}

#[test]
fn a_bad_conf_is_one_line_and_a_good_one_none() {
    let bad = run(&mut preloaded("/bin/true", "threshold:many,stats:false"));
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(said.starts_with("vmalloc: VMALLOC_CONF: \"threshold:many\" has no size"), "{said}");
    assert_eq!(said.lines().count(), 1);
    for silent in ["", "threshold:1M,budget:5G", "stats:false"] {
        assert!(run(&mut preloaded("/bin/true", silent)).stderr.is_empty());
    }
    let said = String::from_utf8(run(&mut preloaded("/bin/true", "stats:true")).stderr).unwrap();
    assert!(said.starts_with("vmalloc: served ") && said.lines().count() == 1, "{said}");
}

#[test]
fn glibcs_own_checks_beside_this_library_are_one_line() {
    let both = format!("{} libc_malloc_debug.so.0", library().display());
    let output = run(Command::new("true").env("LD_PRELOAD", both));
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("vmalloc: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains("libc_malloc_debug"), "{said}");
}

#[test]
fn unmodified_programs_print_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for at in 0..200_000u32 {
        text.push_str(&format!("{:x}\n", at.wrapping_mul(2_654_435_761)));
    }
    fs::write(dir.path().join("text"), &text).unwrap();
    // A tree that does not change between the two runs.
    assert!(same("ls", &["-lR", "/usr/include"], dir.path()) > 0);
    assert!(same("sort", &["text"], dir.path()) > 0);
    assert!(same("sort", &["-n", "--parallel=4", "-S", "1M", "text"], dir.path()) > 0);
    assert!(same("grep", &["-c", "a.*b", "text"], dir.path()) > 0);
    assert!(same("tar", &["-c", "--sort=name", "text"], dir.path()) > 0);
    if there("xz") {
        assert!(same("xz", &["-1", "-c", "-T2", "text"], dir.path()) > 0);
    }
    // Forks and successive programs, each with a large variable and a pipe.
    let script = "i=0; while [ $i -lt 25 ]; do x=$(cat text | head -c 30000 | wc -c); (echo $x $i; true) | cat; i=$((i+1)); done";
    assert!(same("sh", &["-c", script], dir.path()) > 0);
    if there("bash") {
        assert!(same("bash", &["-c", script], dir.path()) > 0);
    }
}

#[test]
fn a_compiler_makes_the_same_of_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = String::from("#include <stdio.h>\n#include <stdlib.h>\n");
    for at in 0..400 {
        source.push_str(&format!(
            "int f{at}(int x) {{ return x * {at} + (x > 3 ? f{}(x - 1) : 0); }}\n",
            at / 2
        ));
    }
    fs::write(
        dir.path().join("a.c"),
        source.replace("int f0(int x) { return", "int f0(int x) { if (x < 0) return 0; return"),
    )
    .unwrap();
    for compiler in c_compilers() {
        assert!(same(compiler, &["-w", "-O2", "-S", "-o", "-", "a.c"], dir.path()) > 0);
    }
}

#[test]
fn python_computes_the_same() {
    if !there("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "
import os, threading
x = [i * i for i in range(300000)]
y = sorted(x, key=lambda v: v % 1000)
b = bytearray()
for i in range(200): b.extend(bytes([i % 256]) * 20000)
s = ''.join(str(v) for v in x)
d = {v: str(v) for v in x}
def work():
    for _ in range(20): bytes(500000)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(w, str(sum(y[:1000])).encode()); os._exit(0)
os.waitpid(pid, 0)
print(sum(x), y[12345], len(b), hash(tuple(y)), len(s), len(d), os.read(r, 100))
";
    assert!(same("python3", &["-c", script], dir.path()) > 100);
}

#[test]
fn a_program_without_our_names_in_the_environment_is_served_by_default_too() {
    // Children inherit the preload, even if the shell changes its environment.
    let output = run(Command::new("sh")
        .env("LD_PRELOAD", library())
        .args(["-c", "VMALLOC_CONF=stats:true sort -S 4M /dev/null"]));
    assert!(served(&output) > 0, "{output:?}");
}

#[test]
fn a_program_with_rights_that_its_user_has_not_takes_no_wishes_of_him() {
    let dir = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir.path(), open.clone()).unwrap();
    let copy = dir.path().join("libvmalloc_preload.so");
    fs::copy(library(), &copy).unwrap();
    fs::set_permissions(&copy, open).unwrap();
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    let flags = ["-Wl,--no-as-needed", copy.to_str().unwrap(), &rpath];
    let program = compile(dir.path(), c_compilers()[0], "secure.c", &flags);
    let wish = "stats:true,nonsense:1";
    let trusted = run(Command::new(&program).env("VMALLOC_CONF", wish));
    assert_eq!((&trusted.stdout[..], served(&trusted)), (&b"0\n"[..], 1));
    assert!(String::from_utf8_lossy(&trusted.stderr).contains("no known key"));
    // A set-user-ID program of this user, which another user runs, if this process may change its user.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let Ok(output) = Command::new(&program).env("VMALLOC_CONF", wish).uid(65_534).output() else {
        return eprintln!("SKIPPED: only root can run a program as another user");
    };
    assert!(output.status.success(), "{output:?}");
    if output.stdout != b"1\n" {
        return eprintln!("SKIPPED: set-user-id bits have no effect here");
    }
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn programs_with_little_address_space_are_served_by_the_next_malloc() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..50_000u32).map(|at| format!("{:x}\n", at.wrapping_mul(2_654_435_761))).collect();
    fs::write(dir.path().join("text"), text).unwrap();
    for (kib, here) in [(400_000, true), (40_000, false)] {
        let script = format!("ulimit -v {kib}; exec sort -S 4M text");
        let plain = run(Command::new("sh").args(["-c", &script]).current_dir(dir.path()));
        let ours = run(preloaded("sh", ALL).args(["-c", &script]).current_dir(dir.path()));
        assert!(plain.stdout == ours.stdout, "{kib}");
        assert_eq!(served(&ours) > 0, here, "{kib}: {}", String::from_utf8_lossy(&ours.stderr));
    }
}

#[test]
fn the_hardened_profile_finds_uses_after_free_and_overflows() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), c_compilers()[0], "mistakes.c", &[]);
    for (mistake, signal, want) in [
        ("use", libc_signal::SEGV, "vmalloc: hardened: bad access: 0x@ was freed before"),
        ("read", libc_signal::SEGV, "vmalloc: hardened: bad access: 0x@ was freed before"),
        ("over", libc_signal::SEGV, "vmalloc: hardened: bad access: 0x@ is "),
        ("under", libc_signal::SEGV, "vmalloc: hardened: bad access: 0x@ is "),
        ("twice", libc_signal::ABRT, "bad free: 0x@ was freed before"),
        ("inside", libc_signal::ABRT, "bad free: 0x@ is 64 bytes inside the live area of 1000000 bytes"),
        (
            "sized wrong",
            libc_signal::ABRT,
            "free_sized: bad size: 0x@ is an area of 1000000 bytes, not 1000001",
        ),
        (
            "sized odd",
            libc_signal::ABRT,
            "free_aligned_sized: bad size: 0x@ is an area of 1000000 bytes, not",
        ),
        (
            "sized high",
            libc_signal::ABRT,
            "free_aligned_sized: bad size: 0x@ is an area of 1000000 bytes, not",
        ),
    ] {
        let output = preloaded(&program, "hardened:true").arg(mistake).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.signal(), Some(signal), "{mistake}: {said}");
        // The last printed address is that of the mistake.
        let (addresses, message): (Vec<_>, Vec<_>) = said.lines().partition(|line| !line.contains(' '));
        let want = want.replace('@', addresses.last().unwrap());
        assert!(message.len() == 1 && message[0].contains(&want), "{mistake}: {said}, not {want}");
    }
    // A fault elsewhere and a sent signal are not reported, and end the process by the same signal.
    for elsewhere in ["null", "raise"] {
        let output = preloaded(&program, "hardened:true").arg(elsewhere).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc_signal::SEGV), "{elsewhere}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("hardened"), "{output:?}");
    }
    // For comparison: without the profile the mistake is not detected.
    run(preloaded(&program, "").arg("use"));
    run(preloaded(&program, "hardened:true").arg("none"));
    run(preloaded(&program, "hardened:true").arg("sized right"));
    run(preloaded(&program, "").arg("sized wrong"));
}
