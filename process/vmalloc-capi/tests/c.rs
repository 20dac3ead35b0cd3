//! Tests of C and C++ programs with the header and the libraries, with every installed compiler.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the path of a library of this crate, in this test's folder.
fn built(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
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

/// Returns the installed C compilers, at least one.
fn compilers(names: [&'static str; 2]) -> Vec<&'static str> {
    let found: Vec<_> = names.into_iter().filter(|name| there(name)).collect();
    assert!(!found.is_empty(), "neither of {names:?} is here");
    found
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

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
}

/// A folder with the libraries under their installed names.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["libvmalloc.so", "libvmalloc.so.0"] {
            symlink(built("libvmalloc_capi.so"), dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    /// Compiles a program of `tests/c`.
    fn compile(&self, compiler: &str, standard: &str, source: &str, link: Link) -> PathBuf {
        self.compile_in("tests/c", compiler, standard, source, link)
    }

    fn compile_in(&self, dir: &str, compiler: &str, standard: &str, source: &str, link: Link) -> PathBuf {
        let out = self.0.path().join(format!("{source}-{compiler}-{}", link as u8));
        let mut command = Command::new(compiler);
        command.arg(standard).args(WARNINGS).arg("-O2").arg("-pthread").arg("-D_GNU_SOURCE");
        command.arg("-I").arg(here("include")).arg(here(dir).join(source)).arg("-o").arg(&out);
        match link {
            Link::Shared => command.arg("-L").arg(self.0.path()).arg("-lvmalloc"),
            Link::Static => {
                command.arg(built("libvmalloc_capi.a")).args(["-rdynamic", "-ldl", "-lgcc_s", "-lc"])
            }
        };
        run(&mut command);
        out
    }

    fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.env("LD_LIBRARY_PATH", self.0.path());
        command
    }
}

/// Runs a program of `tests/c` that is linked to the shared library.
fn run_shared(source: &str) {
    let place = Place::new();
    run(&mut place.program(&place.compile(compilers(["gcc", "clang"])[0], "-std=c11", source, Link::Shared)));
}

#[test]
fn areas_work_from_c_linked_shared_and_static() {
    let place = Place::new();
    for compiler in compilers(["gcc", "clang"]) {
        for link in [Link::Shared, Link::Static] {
            run(&mut place.program(&place.compile(compiler, "-std=c11", "areas.c", link)));
        }
    }
}

#[test]
fn limits_of_a_process_leave_room_for_others_and_are_errors() {
    run_shared("limits.c");
}

#[test]
fn the_example_runs_linked_shared_and_static() {
    let place = Place::new();
    for compiler in compilers(["gcc", "clang"]) {
        for link in [Link::Shared, Link::Static] {
            let program = place.compile_in("examples", compiler, "-std=c99", "areas.c", link);
            let said = String::from_utf8(run(&mut place.program(&program)).stdout).unwrap();
            assert!(said.starts_with("32 MiB ") && said.ends_with(" MiB released to the system\n"), "{said}");
        }
    }
}

#[test]
fn threads_and_forks_work_from_c() {
    let place = Place::new();
    for compiler in compilers(["gcc", "clang"]) {
        run(&mut place.program(&place.compile(compiler, "-std=c11", "threads.c", Link::Shared)));
    }
}

#[test]
fn handlers_of_a_fork_that_came_before_the_first_allocation_may_allocate_and_lock() {
    let place = Place::new();
    for link in [Link::Shared, Link::Static] {
        run(&mut place.program(&place.compile(compilers(["gcc", "clang"])[0], "-std=c11", "atfork.c", link)));
    }
}

#[test]
fn the_smallest_stack_suffices_for_each_first_call() {
    run_shared("stack.c");
}

#[test]
fn a_child_with_the_number_of_its_parent_has_no_frames() {
    let place = Place::new();
    let program = place.compile(compilers(["gcc", "clang"])[0], "-std=c11", "namespaces.c", Link::Shared);
    let output = place.program(&program).output().unwrap();
    match output.status.code() {
        Some(77) => not_run("a child with the number of its parent: namespaces are denied"),
        code => assert_eq!(code, Some(0), "{output:?}"),
    }
}

#[test]
fn no_call_is_a_cancellation_point() {
    run_shared("cancel.c");
}

#[test]
fn a_constructor_may_wait_for_the_thread_that_makes_the_first_allocation() {
    let place = Place::new();
    let compiler = compilers(["gcc", "clang"])[0];
    let library = place.0.path().join("libwaits.so");
    // Both linked to libvmalloc.so; only the library, with which it comes; and the program to the archive, whose functions
    // the library uses.
    for (link, with) in [(Link::Shared, true), (Link::Static, true), (Link::Static, false)] {
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-D_GNU_SOURCE", "-DLIBRARY", "-shared", "-fPIC", "-pthread", "-I"]);
        command.arg(here("include")).arg(here("tests/c/waits.c")).arg("-L").arg(place.0.path());
        command.args(with.then_some("-lvmalloc")).arg("-o").arg(&library);
        run(&mut command);
        let program = place.compile(compiler, "-std=c11", "waits.c", link);
        run(place.program(&program).arg(&library));
    }
}

#[test]
fn chosen_pages_and_per_cpu_memory_work_from_c_linked_shared_and_static() {
    let place = Place::new();
    for compiler in compilers(["gcc", "clang"]) {
        for source in ["frames.c", "percpu.c"] {
            run(&mut place.program(&place.compile(compiler, "-std=c11", source, Link::Shared)));
        }
    }
    run(&mut place.program(&place.compile(
        compilers(["gcc", "clang"])[0],
        "-std=c11",
        "percpu.c",
        Link::Static,
    )));
}

#[test]
fn mistakes_with_mappings_and_objects_end_the_program_with_a_line_that_names_the_address() {
    let place = Place::new();
    let compiler = compilers(["gcc", "clang"])[0];
    for (source, mistake, function) in [
        ("frames.c", "twice", "vunmap"),
        ("frames.c", "inside", "vunmap"),
        ("frames.c", "kind", "vunmap"),
        ("frames.c", "count", "vm_unmap_ram"),
        ("frames.c", "frames", "vm_free_frames"),
        ("frames.c", "overflow", "vm_free_frames"),
        ("percpu.c", "twice", "free_percpu"),
        ("percpu.c", "inside", "free_percpu"),
    ] {
        let program = place.compile(compiler, "-std=c11", source, Link::Shared);
        let output = place.program(&program).arg(mistake).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let address = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.signal(), Some(6), "{source} {mistake}: {} {said}", output.status);
        assert!(said.starts_with(&format!("{function}: bad pointer: 0x{}: ", address.trim())), "{said}");
        assert_eq!(said.lines().count(), 1, "{mistake}: {said}");
    }
}

#[test]
fn a_vector_of_areas_works_from_every_cplusplus() {
    let place = Place::new();
    for compiler in compilers(["g++", "clang++"]) {
        for standard in ["-std=c++11", "-std=c++20"] {
            run(&mut place.program(&place.compile(compiler, standard, "plus.cpp", Link::Shared)));
        }
    }
}

#[test]
fn the_header_is_one_of_old_c_too() {
    let place = Place::new();
    let source = place.0.path().join("only.c");
    std::fs::write(&source, "#include <vmalloc.h>\nint main(void) { return vmalloc(1) == 0; }\n").unwrap();
    for compiler in compilers(["gcc", "clang"]) {
        let mut command = Command::new(compiler);
        command.args(["-std=c99", "-fsyntax-only", "-Wstrict-prototypes"]).args(WARNINGS);
        run(command.arg("-I").arg(here("include")).arg(&source));
    }
}

#[test]
fn ca1_a_mistake_ends_the_program_with_a_line_that_names_the_address() {
    let place = Place::new();
    let compiler = compilers(["gcc", "clang"])[0];
    let program = place.compile(compiler, "-std=c11", "mistakes.c", Link::Shared);
    for (mistake, function) in [
        ("twice", "vfree"),
        ("kvtwice", "kvfree"),
        ("inside", "vfree"),
        ("unknown", "vfree"),
        ("realloc", "vrealloc"),
        ("usable", "vmalloc_usable_size"),
    ] {
        let output = place.program(&program).arg(mistake).output().unwrap();
        let (said, address) =
            (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
        assert_eq!(output.status.signal(), Some(6), "{mistake}: {} {said}", output.status);
        assert!(said.starts_with(&format!("{function}: bad pointer: ")), "{mistake}: {said}");
        assert!(said.contains(&format!("0x{}", address.trim())), "{mistake}: {said} for {address}");
        assert_eq!(said.lines().count(), 1, "{mistake}: {said}");
    }
    let output = place.program(&program).arg("none").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn valgrind_finds_nothing_in_programs_of_areas_frames_and_counters() {
    if !there("valgrind") {
        return;
    }
    let place = Place::new();
    for source in ["areas.c", "frames.c", "percpu.c"] {
        let program = place.compile(compilers(["gcc", "clang"])[0], "-std=c11", source, Link::Shared);
        let mut command = place.program(Path::new("valgrind"));
        // The background thread runs until the end, and libc's memory for it is "possibly" lost then.
        command.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
        ]);
        command.arg(program).args((source == "areas.c").then_some("modest"));
        run(&mut command);
    }
}

/// Returns the names that a library exports.
fn exported(library: &Path) -> Vec<String> {
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library)).stdout;
    let text = String::from_utf8(text).unwrap();
    text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_string).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_never_malloc() {
    let names = exported(&built("libvmalloc_capi.so"));
    let header = std::fs::read_to_string(here("include/vmalloc.h")).unwrap();
    let manual = std::fs::read_to_string(here("vmalloc.3")).unwrap();
    let declared: Vec<_> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with(' '))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    let mut sorted = declared.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    for name in &names {
        assert!(manual.contains(&format!("{name}(")), "vmalloc.3 lacks {name}");
    }
    // The static library also has hidden names of Rust; it defines none of malloc's functions.
    let text = run(Command::new("nm")
        .args(["-A", "--defined-only", "--extern-only"])
        .arg(built("libvmalloc_capi.a")));
    for line in String::from_utf8_lossy(&text.stdout).lines() {
        let name = line.rsplit(' ').next().unwrap_or_default();
        assert!(!["malloc", "free", "calloc", "realloc", "memalign"].contains(&name), "{line}");
    }
}

#[test]
fn the_library_is_asked_for_by_its_major_version() {
    let text = run(Command::new("readelf").arg("-d").arg(built("libvmalloc_capi.so"))).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("soname: [libvmalloc.so.0]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}
