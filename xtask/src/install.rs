//! Installs the C library for C programs: `cargo xtask install --prefix DIR`.
//!
//! ```text
//!   DIR/lib/libvmalloc.so.0.1.0   <- libvmalloc.so.0 (name in programs)       <- libvmalloc.so (what the linker finds)
//!   DIR/lib/libvmalloc.a          DIR/lib/libvmalloc_preload.so
//!   DIR/include/vmalloc.h         DIR/lib/pkgconfig/vmalloc.pc                DIR/share/man/man3/vmalloc.3
//! ```
//! With `--vmlab`, which takes some more minutes, the laboratory is built and installed, too:
//! ```text
//!   DIR/bin/vmlab                 DIR/share/man/man1/vmlab*.1                 completions of bash, zsh, fish below DIR/share
//! ```
//! `DESTDIR` in the environment, for packagers, is put before the prefix where files are written, and in no file. All
//! paths are printed, which is what an uninstall removes.
//!
//! In CI a prefix under `target` is filled. The README's C program and its shell lines, and `vmlab run`, are run with
//! it. The laboratory there is that of the tests; `--full` builds it as `--vmlab` does.

use crate::cargo::tested_programs;
use crate::count::Tests;
use crate::sh::{Cmd, Show, on_path};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The crate whose files are installed unchanged, or nearly.
const CRATE: &str = "process/vmalloc-capi";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Destination: lib, include and share are made below it
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Build and install vmlab with its manual pages and completions, too: some minutes
    #[arg(long)]
    vmlab: bool,
}

/// Runs `cargo xtask install`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    // The paths of pkg-config must be valid in any folder.
    let prefix = std::path::absolute(&args.prefix)?;
    let version = build(root)?;
    let built = root.join(BUILT);
    let below = match std::env::var_os("DESTDIR").filter(|dest| !dest.is_empty()) {
        Some(dest) => std::path::absolute(dest)?.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix.clone(),
    };
    let mut there = place(root, &built, &below, &prefix, &version)?;
    if args.vmlab {
        laboratory(root)?;
        there.extend(place_program(&built, &below)?);
    }
    there.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

/// Installs the files of `built`, or builds them, below `prefix`, with the laboratory of the tests.
pub(crate) fn fill(root: &Path, prefix: &Path, built: Option<&Path>) -> Result<()> {
    let version = if built.is_some() { version(root)? } else { build(root)? };
    let ours = root.join(BUILT);
    place(root, built.unwrap_or(&ours), prefix, prefix, &version)?;
    match built {
        Some(built) => place_program(built, prefix)?,
        None => place_program(&tested_programs(root)?, prefix)?,
    };
    Ok(())
}

/// Builds both libraries. Returns their version.
fn build(root: &Path) -> Result<String> {
    library(root, "vmalloc-capi", "cdylib,staticlib")?;
    library(root, "vmalloc-preload", "cdylib")?;
    version(root)
}

/// Builds the laboratory, with all measurements. Separately, so that its features change no library.
fn laboratory(root: &Path) -> Result<()> {
    dist(root, "build", &["-p", "vmlab", "--features", "measure"])
}

/// The program of the counted rows, in the folder of the output of [`dist`].
pub(crate) const COUNTED: &str = "examples/counted";

/// Builds the program whose instructions are counted, and returns the folder of the output. Without the kernel's test
/// suite, of which no row is counted, and without the commands of the laboratory.
pub(crate) fn counted(root: &Path) -> Result<PathBuf> {
    dist(root, "build", &["-p", "vmlab-bench", "--no-default-features", "--example", "counted"])?;
    Ok(root.join(BUILT))
}

/// The folder of the output of [`dist`].
pub(crate) const BUILT: &str = "target/dist";

/// Builds a package as it is installed and measured: each program is optimised as one.
fn dist(root: &Path, command: &str, package: &[&str]) -> Result<()> {
    Cmd::cargo(root)
        .args([command, "--quiet", "--locked", "--profile", "dist", "--target-dir", "target"])
        .args(package)
        .run(Show::All)
}

/// Builds a library in its forms for C. With the `rlib` of its manifest, which tests need, cargo would optimise each
/// crate by itself: an `rlib` cannot be optimised with its dependencies.
fn library(root: &Path, package: &str, forms: &str) -> Result<()> {
    dist(root, "rustc", &["-p", package, "--lib", "--crate-type", forms])
}

/// Builds the preload, and returns its path.
pub(crate) fn preload(root: &Path) -> Result<PathBuf> {
    library(root, "vmalloc-preload", "cdylib")?;
    Ok(root.join(BUILT).join("libvmalloc_preload.so"))
}

fn version(root: &Path) -> Result<String> {
    let manifest: toml::Table = toml::from_str(&fs::read_to_string(root.join("Cargo.toml"))?)?;
    let version = manifest.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    Ok(version.context("Cargo.toml has no workspace.package.version")?.to_string())
}

/// Copies the files of `built` below `to`, to be used below `prefix`, and returns their new paths.
fn place(root: &Path, built: &Path, to: &Path, prefix: &Path, version: &str) -> Result<Vec<PathBuf>> {
    let (lib, share) = (to.join("lib"), to.join("share/man/man3"));
    let (include, pkgconfig) = (to.join("include"), lib.join("pkgconfig"));
    for dir in [&lib, &share, &include, &pkgconfig] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let major = version.split('.').next().unwrap_or(version);
    let (full, short) = (format!("libvmalloc.so.{version}"), format!("libvmalloc.so.{major}"));
    let mut there = Vec::new();
    for (from, to) in [
        (built.join("libvmalloc_capi.so"), lib.join(&full)),
        (built.join("libvmalloc_capi.a"), lib.join("libvmalloc.a")),
        (built.join("libvmalloc_preload.so"), lib.join("libvmalloc_preload.so")),
        (root.join(CRATE).join("include/vmalloc.h"), include.join("vmalloc.h")),
        (root.join(CRATE).join("vmalloc.3"), share.join("vmalloc.3")),
    ] {
        copy(&from, &to)?;
        there.push(to);
    }
    for (target, name) in [(&full, short.as_str()), (&short, "libvmalloc.so")] {
        let link = lib.join(name);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(target, &link)?;
        there.push(link);
    }
    let pc = fs::read_to_string(root.join(CRATE).join("vmalloc.pc.in"))?;
    fs::write(pkgconfig.join("vmalloc.pc"), package(&pc, prefix, version))?;
    there.push(pkgconfig.join("vmalloc.pc"));
    Ok(there)
}

/// Returns the description for pkg-config, which divides its flags at blanks.
fn package(template: &str, prefix: &Path, version: &str) -> String {
    let prefix = prefix.to_string_lossy().replace(' ', "\\ ");
    template.replace("@PREFIX@", &prefix).replace("@VERSION@", version)
}

/// Replaces a file by a new one: a running program may have the old file mapped, which stays unchanged.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(fs::rename(&fresh, to)?)
}

/// The most bytes of the stripped preload.
const PRELOAD_BYTES_MAX: u64 = 366_000;

/// Folders below a prefix in which shells look for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/vmlab"),
    ("zsh", "share/zsh/site-functions/_vmlab"),
    ("fish", "share/fish/vendor_completions.d/vmlab.fish"),
];

/// Installs the laboratory below `prefix`, with the manual and the completions that it writes itself.
fn place_program(built: &Path, prefix: &Path) -> Result<Vec<PathBuf>> {
    let program = prefix.join("bin/vmlab");
    fs::create_dir_all(prefix.join("bin"))?;
    copy(&built.join("vmlab"), &program)?;
    let man = prefix.join("share/man/man1");
    Cmd::new(prefix, &program).arg("man").arg(&man).run(Show::Failure)?;
    let mut there = vec![program.clone()];
    for entry in fs::read_dir(&man)? {
        there.push(entry?.path());
    }
    for (shell, path) in COMPLETIONS {
        let path = prefix.join(path);
        fs::create_dir_all(path.parent().unwrap_or(prefix))?;
        fs::write(&path, Cmd::new(prefix, &program).args(["completions", shell]).read()?)?;
        there.push(path);
    }
    there[1..].sort();
    Ok(there)
}

/// Runs the step of CI: installs, builds the README's C program with the installed files, shared and static, and runs
/// it.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    check(root, &tested_programs(root)?)
}

/// Runs the step in full: the laboratory is the one that `--vmlab` installs.
pub(crate) fn full(root: &Path, _: &mut Tests) -> Result<()> {
    laboratory(root)?;
    check(root, &root.join(BUILT))
}

/// Installs the libraries, and the laboratory of a folder, and tests all of them.
fn check(root: &Path, programs: &Path) -> Result<()> {
    let work = root.join("target/ci/install");
    let prefix = work.join("prefix");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let version = build(root)?;
    place(root, &root.join(BUILT), &prefix, &prefix, &version)?;
    crate::symbols::check(root, &prefix.join("lib"))?;
    let pages = place_program(programs, &prefix)?;
    if !pages.iter().any(|page| page.ends_with("man1/vmlab-bench-index.1")) {
        bail!("no manual page of `vmlab bench index`: {pages:?}");
    }
    let lines = c_lines(&fs::read_to_string(root.join("README.md"))?)?;
    fs::write(work.join("readme.c"), lines)?;
    let pkgconfig = prefix.join("lib/pkgconfig");
    let mut flags = vec!["-I".to_string() + &prefix.join("include").to_string_lossy()];
    flags.extend(["-L".to_string() + &prefix.join("lib").to_string_lossy(), "-lvmalloc".to_string()]);
    if on_path("pkg-config") {
        let output = Cmd::new(&work, "pkg-config")
            .args(["--cflags", "--libs", "vmalloc"])
            .env("PKG_CONFIG_PATH", pkgconfig)
            .read()?;
        flags = output.split_whitespace().map(str::to_string).collect();
    } else {
        println!("install: no pkg-config here, so its file is not tried");
    }
    let shared = Cmd::new(&work, "cc").args(["-Wall", "-Wextra", "-Werror", "readme.c", "-o", "shared"]);
    shared.args(&flags).run(Show::All)?;
    Cmd::new(&work, "./shared").env("LD_LIBRARY_PATH", prefix.join("lib")).run(Show::All)?;
    let lib = prefix.join("lib/libvmalloc.a");
    let apart =
        Cmd::new(&work, "cc").args(["-Wall", "-Wextra", "-Werror", "readme.c", "-o", "static", &flags[0]]);
    apart.arg(lib).args(["-lpthread", "-ldl", "-lc"]).run(Show::All)?;
    Cmd::new(&work, "./static").run(Show::All)?;
    // A program under the preload that is not built for it.
    let preload = prefix.join("lib/libvmalloc_preload.so");
    check_size(&work, &preload)?;
    let output = Cmd::new(&work, "sort")
        .arg(root.join("CHANGELOG.md"))
        .env("LD_PRELOAD", &preload)
        .env("VMALLOC_CONF", "threshold:4K,stats:true")
        .read()?;
    let Some(line) = output.lines().find(|line| line.starts_with("vmalloc: served ")) else {
        bail!("the preload says nothing at the end of sort")
    };
    if line.starts_with("vmalloc: served 0 ") {
        bail!("the preload served nothing to sort: {line}");
    }
    println!("install: shared, static and preload work; sort: {line}");
    shell(root, &work, &prefix)?;
    run(root, &prefix.join("bin/vmlab"), &preload)
}

/// Checks the size of the preload, which every process maps. It is small without Rust's standard library and as one
/// program (decisions 0030 and 0039).
fn check_size(work: &Path, preload: &Path) -> Result<()> {
    let stripped = work.join("stripped.so");
    Cmd::new(work, "strip").arg("-o").arg(&stripped).arg(preload).run(Show::Failure)?;
    let bytes = fs::metadata(&stripped)?.len();
    if bytes > PRELOAD_BYTES_MAX {
        bail!("{} has {bytes} bytes, stripped: {PRELOAD_BYTES_MAX} at most", preload.display());
    }
    println!("install: the preload has {bytes} bytes, stripped");
    Ok(())
}

/// Runs the README's shell lines unchanged: builds and runs the C program, then Python under the preload.
fn shell(root: &Path, work: &Path, prefix: &Path) -> Result<()> {
    let readme = fs::read_to_string(root.join("README.md"))?;
    let lines = shell_lines(&readme)?;
    let (c, python) = lines.split_at_checked(2).context("the README has no lines for Python")?;
    fs::write(work.join("hello.c"), c_lines(&readme)?)?;
    for (tool, lines) in [("pkg-config", c), ("python3", python)] {
        if !on_path(tool) {
            crate::not_run::add(root, &format!("the README's lines for {tool}: it is not installed"));
            continue;
        }
        let script = format!("set -e\n{}\n", lines.join("\n")).replace("$PWD/DIR", &prefix.to_string_lossy());
        let output = Cmd::new(work, "sh").args(["-c", &script]).read()?;
        if tool == "python3" && (!output.lines().any(|line| line == "419430400") || served(&output) < 100) {
            bail!("the README's lines for {tool} print {output:?}");
        }
        println!("install: the README's lines for {tool} work");
    }
    Ok(())
}

/// Runs `vmlab run` with the built preload.
fn run(root: &Path, vmlab: &Path, preload: &Path) -> Result<()> {
    let output = Cmd::new(root, vmlab)
        .args(["run", "--conf", "threshold:4K", "--lib"])
        .arg(preload)
        .args(["--", "sort", "CHANGELOG.md"])
        .read()?;
    let line =
        output.lines().find(|line| line.starts_with("vmlab: ") && line.contains(" allocations served, "));
    match line.map(|line| line.split(' ').nth(1).and_then(|number| number.parse::<u64>().ok())) {
        Some(Some(1..)) => Ok(()),
        _ => bail!("vmlab run reports nothing about sort: {line:?}"),
    }
}

/// Returns the number of allocations in the statistics of the preload.
fn served(output: &str) -> u64 {
    let numbers = output.lines().filter_map(|line| line.strip_prefix("vmalloc: served ")?.split(' ').next());
    numbers.filter_map(|number| number.parse::<u64>().ok()).sum()
}

/// Returns the README's shell lines that use the installed files: the block that begins with `cc`.
fn shell_lines(readme: &str) -> Result<Vec<String>> {
    let (_, rest) = readme.split_once("```sh\ncc ").context("README.md has no shell lines with cc")?;
    let (rest, _) = rest.split_once("```").context("the README's shell lines have no end")?;
    Ok(format!("cc {rest}").lines().map(str::to_string).collect())
}

/// Returns the README's C program: its fenced lines of C, unchanged.
fn c_lines(readme: &str) -> Result<String> {
    let (_, rest) = readme.split_once("```c\n").context("README.md has no C program")?;
    let (lines, _) = rest.split_once("```").context("the README's C program has no end")?;
    Ok(lines.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_placed_twice_over_and_links_lead_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (root, built, prefix) =
            (dir.path().join("root"), dir.path().join("built"), dir.path().join("to"));
        for (path, text) in [
            ("include/vmalloc.h", "header"),
            ("vmalloc.3", "manual"),
            ("vmalloc.pc.in", "prefix=@PREFIX@ @VERSION@\n"),
        ] {
            let path = root.join(CRATE).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(&built).unwrap();
        for name in ["libvmalloc_capi.so", "libvmalloc_capi.a"] {
            fs::write(built.join(name), name).unwrap();
        }
        let error = place(&root, &built, &prefix, Path::new("/opt"), "1.2.3").unwrap_err().to_string();
        assert!(error.contains("libvmalloc_preload.so"), "{error}");
        fs::write(built.join("libvmalloc_preload.so"), "preload").unwrap();
        for _ in 0..2 {
            for path in place(&root, &built, &prefix, Path::new("/opt"), "1.2.3").unwrap() {
                assert!(path.is_file(), "{}", path.display());
            }
        }
        assert_eq!(fs::read_to_string(prefix.join("lib/libvmalloc.so")).unwrap(), "libvmalloc_capi.so");
        assert_eq!(fs::read_link(prefix.join("lib/libvmalloc.so")).unwrap(), Path::new("libvmalloc.so.1"));
        assert_eq!(
            fs::read_link(prefix.join("lib/libvmalloc.so.1")).unwrap(),
            Path::new("libvmalloc.so.1.2.3")
        );
        let pc = fs::read_to_string(prefix.join("lib/pkgconfig/vmalloc.pc")).unwrap();
        assert_eq!(pc, "prefix=/opt 1.2.3\n");
    }

    #[test]
    fn the_program_brings_its_manual_and_completions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (built, prefix) = (dir.path().join("built"), dir.path().join("to"));
        fs::create_dir_all(&built).unwrap();
        assert!(place_program(&built, &prefix).is_err());
        let script = "#!/bin/sh\n[ $1 = man ] && mkdir -p $2 && echo page > $2/vmlab.1 || echo for $2\n";
        fs::write(built.join("vmlab"), script).unwrap();
        fs::set_permissions(built.join("vmlab"), PermissionsExt::from_mode(0o755)).unwrap();
        for _ in 0..2 {
            let there = place_program(&built, &prefix).unwrap();
            assert_eq!(there.len(), 5);
            assert!(there.iter().all(|path| path.is_file()), "{there:?}");
        }
        let fish = prefix.join("share/fish/vendor_completions.d/vmlab.fish");
        assert_eq!(fs::read_to_string(fish).unwrap(), "for fish\n");
    }

    #[test]
    fn who_begins_reads_three_lines_in_each_language() {
        let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
        assert_eq!(c_lines(&readme).unwrap().lines().count(), 3);
        let lines = shell_lines(&readme).unwrap();
        assert_eq!(lines.len(), 4);
        assert!(readme.contains("`cargo xtask install --prefix DIR`"));
        assert!(lines[0].starts_with("cc hello.c ") && lines[1].starts_with("LD_LIBRARY_PATH=$PWD/DIR/"));
        assert!(
            lines[2].starts_with("LD_PRELOAD=$PWD/DIR/")
                && lines[2].ends_with('\\')
                && lines[3].starts_with("python3 "),
            "{lines:?}"
        );
        // Run with the other examples, as a doctest of vmalloc-book.
        let (_, rust) = readme.split_once("```rust\n#[global_allocator]").unwrap();
        assert_eq!(rust.split_once("```").unwrap().0.lines().count(), 3);
        assert!(shell_lines("a").is_err() && shell_lines("```sh\ncc a.c\n").is_err());
        assert_eq!(served("vmalloc: served 3 freed\nx\nvmalloc: served 4 freed\n"), 7);
    }

    #[test]
    fn the_flags_of_a_prefix_with_a_blank_are_one_word_each() {
        let made = package("prefix=@PREFIX@\nVersion: @VERSION@\n", Path::new("/a b/c d"), "1.2");
        assert_eq!(made, "prefix=/a\\ b/c\\ d\nVersion: 1.2\n");
    }

    #[test]
    fn the_c_program_of_a_page_is_found() {
        assert_eq!(c_lines("a\n```rust\nx\n```\n```c\none\ntwo\n```\n").unwrap(), "one\ntwo\n");
        assert!(c_lines("a\n").is_err() && c_lines("```c\nx").is_err());
    }
}
