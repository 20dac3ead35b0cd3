//! The packages of the published crates, those with `publish = true`.
//!
//! Each is packed as for a registry. All but the laboratory are then built from their packages alone. The laboratory
//! takes minutes, so only the files of its packages are checked (`cargo xtask package --all` builds them too). Required
//! files are checked in the archive, since links to files above the crate's folder are followed when it is packed.

use crate::cargo::built_programs;
use crate::fresh::cargo_home;
use crate::not_run;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Build the laboratory from its packages, too: some minutes
    #[arg(long)]
    all: bool,
}

/// Which packages are built, by the beginning of their names: those of the core in the short form of the step, all but
/// the laboratory in full, or each.
pub(crate) const CORE: &[&str] = &["va-"];
pub(crate) const LIBRARIES: &[&str] = &["va-", "vmalloc"];
const ALL: &[&str] = &[""];

/// The most bytes of a package. The largest has traces of 1.6 MB; a registry accepts 10 MiB.
const BYTES_MAX: u64 = 4 << 20;

/// Files in every package.
const EVERYWHERE: [&str; 5] = ["Cargo.toml", "Cargo.lock", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Files that a package must also have to be usable.
const HELD: [(&str, &[&str]); 5] = [
    ("vmalloc-capi", &["build.rs", "include/vmalloc.h", "vmalloc.3", "vmalloc.pc.in"]),
    ("vmalloc-preload", &["build.rs"]),
    ("vmlab-bench", &["build.rs"]),
    ("vmlab-trace", &["data/README.md", "data/boot-smp1.ftrace.gz", "data/boot-smp1.vmallocinfo"]),
    ("va-sim", &["examples/compare.rs"]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The metadata of a package of the workspace, from cargo.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    manifest_path: PathBuf,
    pub(crate) rust_version: Option<String>,
    /// Registries that it may be published to; any if there is no list.
    publish: Option<Vec<String>>,
    targets: Vec<Target>,
}

/// A library, a program or a test of a package.
#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Package {
    /// Returns true if the package is somewhere in this folder.
    pub(crate) fn is_in(&self, folder: &Path) -> bool {
        self.manifest_path.starts_with(folder)
    }

    /// Returns true if it has a library for programs in Rust.
    pub(crate) fn has_library(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "rlib"))
    }
}

/// Returns the published packages, in the order of their names.
pub(crate) fn published(root: &Path) -> Result<Vec<Package>> {
    let args = ["metadata", "--quiet", "--locked", "--no-deps", "--format-version", "1"];
    let text = Cmd::cargo(root).args(args).read()?;
    let metadata: Metadata =
        serde_json::from_str(text.trim()).context("cannot read cargo's description of the workspace")?;
    let mut packages = metadata.packages;
    packages.retain(|package| package.publish.as_ref().is_none_or(|list| !list.is_empty()));
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    if packages.is_empty() {
        bail!("no crate is to be published");
    }
    Ok(packages)
}

/// Runs `cargo xtask package`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    check(root, if args.all { ALL } else { LIBRARIES })
}

/// Packs and checks every package, and builds those whose names begin with one of `chosen`.
pub(crate) fn check(root: &Path, chosen: &[&str]) -> Result<()> {
    let packages = published(root)?;
    toolchain(root, &packages)?;
    let target = root.join("target/packages");
    forget(&target, &cargo_home()?, &packages)?;
    let folder = target.join("package");
    let is_chosen = |package: &&Package| chosen.iter().any(|prefix| package.name.starts_with(prefix));
    let built: Vec<_> = packages.iter().filter(is_chosen).collect();
    pack(root, &built, true)?;
    if built.len() < packages.len() {
        // Once more, since a package is packed beside those that it depends on.
        pack(root, &packages.iter().collect::<Vec<_>>(), false)?;
    }
    for package in &packages {
        let archive = folder.join(format!("{}-{}.crate", package.name, package.version));
        let bytes =
            fs::metadata(&archive).with_context(|| format!("{} is not there", archive.display()))?.len();
        let list = Cmd::new(root, "tar").arg("tzf").arg(&archive).read()?;
        let files = inside(&list, package)?;
        lacks(package, &files, bytes)?;
        println!("{} {}: {} files, {} KB packed", package.name, package.version, files.len(), bytes / 1000);
    }
    Ok(())
}

/// Removes the output of an earlier run: the target directory, and the copies of our packages that cargo unpacked.
///
/// `cargo package` serves the packages to each other through a local registry, and assumes that a version in a registry
/// never changes. It would build against the copy that it unpacked in its home for an earlier commit.
fn forget(target: &Path, home: &Path, packages: &[Package]) -> Result<()> {
    let mut old = vec![target.to_path_buf()];
    let unpacked = home.join("registry/src");
    if unpacked.exists() {
        for registry in
            fs::read_dir(&unpacked).with_context(|| format!("cannot read {}", unpacked.display()))?
        {
            let registry = registry?;
            // The folder name of a local registry begins with a dash; other names have the host before it.
            if registry.file_name().to_string_lossy().starts_with('-') {
                old.extend(
                    packages.iter().map(|of| registry.path().join(format!("{}-{}", of.name, of.version))),
                );
            }
        }
    }
    for folder in old.iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Packs `packages`, and builds them from their packages. Warnings concern tests, which no package has.
fn pack(root: &Path, packages: &[&Package], build: bool) -> Result<()> {
    let names = packages.iter().flat_map(|package| ["-p", &package.name]);
    let mut cmd = Cmd::cargo(root)
        // Uncommitted changes are checked too.
        .args(["package", "--locked", "--allow-dirty", "--target-dir", "target/packages"])
        .args(names)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    if !build {
        cmd = cmd.arg("--no-verify");
    }
    cmd.run(Show::Failure)
}

/// Checks that the compiler is the latest version that a package requires. Earlier ones are tried by the step `targets`.
fn toolchain(root: &Path, packages: &[Package]) -> Result<()> {
    let text = Cmd::new(root, "rustc").arg("--version").read()?;
    let number = |package: &&Package| -> Option<Vec<u32>> {
        package.rust_version.as_deref()?.split('.').map(|part| part.parse().ok()).collect()
    };
    if let Some(package) = packages.iter().max_by_key(number) {
        let needs = package.rust_version.as_deref().unwrap_or("nothing");
        if !is_version(&text, needs) {
            let why = format!("{} says rust-version {needs}, and this is {}", package.name, text.trim());
            // A developer's machine may have a later compiler. Then no build would use the promised one.
            if not_run::must_run() {
                bail!("{why}");
            }
            println!("{why}: that it builds with {needs} is not shown here");
        }
    }
    Ok(())
}

/// Returns true if `rustc 1.95.0 (...)` is a 1.95.
fn is_version(text: &str, needs: &str) -> bool {
    let version = text.split_whitespace().nth(1).unwrap_or_default();
    version.strip_prefix(needs).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the files of a package, by their paths in it.
fn inside(list: &str, package: &Package) -> Result<Vec<String>> {
    let folder = format!("{}-{}/", package.name, package.version);
    list.lines()
        .map(|line| Some(line.strip_prefix(&folder)?.to_string()))
        .collect::<Option<_>>()
        .with_context(|| format!("the package of {} holds a file outside {folder}", package.name))
}

/// Fails if a package lacks a required file, has a forbidden one, or is too large.
fn lacks(package: &Package, files: &[String], bytes: u64) -> Result<()> {
    let name = &package.name;
    let more = HELD.iter().filter(|(of, _)| of == name).flat_map(|(_, held)| held.iter());
    if let Some(file) = EVERYWHERE.iter().chain(more).find(|file| !files.iter().any(|there| there == *file)) {
        bail!("the package of {name} lacks {file}");
    }
    if !files.iter().any(|file| file.starts_with("examples/")) {
        bail!("the package of {name} lacks an example");
    }
    // These files need the rest of the tree.
    if let Some(file) = files.iter().find(|file| file.starts_with("tests/") || file.starts_with("target/")) {
        bail!("the package of {name} holds {file}");
    }
    if bytes > BYTES_MAX {
        bail!("the package of {name} has {bytes} bytes, more than {BYTES_MAX}");
    }
    Ok(())
}

/// Runs the example that the README of each published crate names. Those in C are compiled and run by tests.
///
/// `built` has the arguments of the tests' build: with the same ones, nothing is compiled again.
pub(crate) fn examples(root: &Path, built: &[Vec<&str>]) -> Result<()> {
    let mut named = Vec::new();
    for package in published(root)? {
        let page = fs::read_to_string(crate::crate_dir(root, &package.name)?.join("README.md"))?;
        let commands = commands(&page);
        if commands.is_empty() && !page.contains(".c](examples/") {
            bail!("the README of {} names no example", package.name);
        }
        for (of, name) in commands {
            if of != package.name {
                bail!("the README of {} runs an example of {of}", package.name);
            }
            named.push((of.to_string(), name.to_string()));
        }
    }
    let mut programs = Vec::new();
    for args in built {
        // A selection has some of the packages, and cargo fails for an example that it lacks.
        let of = named.iter().filter(|(of, _)| selects(args, of));
        let targets: Vec<&str> = of.flat_map(|(_, name)| ["--example", name.as_str()]).collect();
        // With `cargo test` they would be programs of tests.
        programs.extend(built_programs(root, "build --profile test", args, &targets)?);
    }
    for (of, name) in &named {
        // Two crates may have examples of the same name.
        let source = format!("/{of}/examples/{name}.rs");
        let program = programs.iter().find(|(there, _)| there.ends_with(&source));
        let (_, path) = program.with_context(|| format!("{of} has no example {name}"))?;
        Cmd::new(root, path).run(Show::All)?;
    }
    println!("{} examples ran", named.len());
    Ok(())
}

/// Returns true if arguments of cargo select a package: by its name, or with all that are not excluded.
fn selects(args: &[&str], name: &str) -> bool {
    let has = |option| args.windows(2).any(|two| two == [option, name]);
    if args.contains(&"--workspace") { !has("--exclude") } else { has("-p") }
}

/// Returns the crate and the example of each line of a page that runs one.
fn commands(page: &str) -> Vec<(&str, &str)> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("cargo run -p "));
    lines.filter_map(|line| line.trim_end().split_once(" --example ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_has_packages_by_name_or_all_that_are_not_excluded() {
        let (rest, core) = (["--workspace", "--exclude", "va-tree"], ["-p", "va-tree", "--features", "a"]);
        assert!(selects(&core, "va-tree") && !selects(&rest, "va-tree"));
        assert!(selects(&rest, "vmalloc") && !selects(&core, "vmalloc"));
    }

    fn package(name: &str) -> Package {
        Package {
            name: name.to_string(),
            version: "1.0.0".to_string(),
            manifest_path: PathBuf::new(),
            rust_version: None,
            targets: Vec::new(),
            publish: None,
        }
    }

    fn files(of: &[&str]) -> Vec<String> {
        EVERYWHERE.iter().chain(of).map(ToString::to_string).collect()
    }

    #[test]
    fn a_package_is_an_error_that_lacks_a_file_or_holds_too_much() {
        let good = files(&["src/lib.rs", "examples/a.rs"]);
        assert!(lacks(&package("a"), &good, 1000).is_ok());
        for missing in EVERYWHERE {
            let bad: Vec<_> = good.iter().filter(|file| *file != missing).cloned().collect();
            let why = lacks(&package("a"), &bad, 1000).unwrap_err().to_string();
            assert_eq!(why, format!("the package of a lacks {missing}"));
        }
        assert!(lacks(&package("a"), &files(&["src/lib.rs"]), 1000).is_err(), "an example");
        assert!(lacks(&package("a"), &files(&["examples/a.rs", "tests/b.rs"]), 1000).is_err(), "a test");
        assert!(lacks(&package("a"), &good, BYTES_MAX + 1).is_err(), "bytes");
        assert!(lacks(&package("vmalloc-preload"), &good, 1000).is_err(), "its build script");
        assert!(lacks(&package("vmalloc-preload"), &files(&["build.rs", "examples/a.c"]), 1000).is_ok());
    }

    #[test]
    fn what_an_earlier_run_unpacked_is_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let (target, home) = (root.path().join("target"), root.path().join("home"));
        let folder = |name: &str| {
            let folder = home.join("registry/src").join(name);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        fs::create_dir_all(target.join("debug")).unwrap();
        let old = folder("-0123/a-1.0.0");
        let others = ["-0123/a-2.0.0", "-0123/b-1.0.0", "host-4567/a-1.0.0"].map(folder);
        forget(&target, &home, &[package("a")]).unwrap();
        assert!(!old.exists() && !target.exists());
        assert!(others.iter().all(|folder| folder.exists()));
        // A fresh machine has nothing to remove.
        forget(&target, &root.path().join("none"), &[package("a")]).unwrap();
    }

    #[test]
    fn files_are_reported_by_their_paths_in_the_package() {
        assert_eq!(inside("a-1.0.0/x\na-1.0.0/y/z\n", &package("a")).unwrap(), ["x", "y/z"]);
        assert!(inside("a-1.0.0/x\nb-1.0.0/y\n", &package("a")).is_err());
    }

    #[test]
    fn the_compiler_is_compared_with_the_version_that_is_promised() {
        let rustc = "rustc 1.95.0 (abc 2026-01-01)\n";
        assert!(is_version(rustc, "1.95") && is_version(rustc, "1.95.0") && is_version(rustc, "1"));
        assert!(!is_version(rustc, "1.9") && !is_version(rustc, "1.94") && !is_version(rustc, "1.96"));
        assert!(!is_version("rustc\n", "1.95") && !is_version(rustc, "nothing"));
    }

    #[test]
    fn the_example_that_a_page_names_is_found() {
        let page = "# a\n```sh\ncargo run -p a --example b\ncargo run --release\n```\n`cargo run -p a --example c`\n";
        assert_eq!(commands(page), [("a", "b")]);
    }

    #[test]
    fn what_serves_this_tree_alone_is_not_published() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let names: Vec<_> = published(&root).unwrap().into_iter().map(|package| package.name).collect();
        assert!(
            ["va-base", "vmalloc", "vmlab", "vmlab-trace"]
                .iter()
                .all(|name| names.iter().any(|there| there == name))
        );
        assert!(
            !names.iter().any(|name| name == "xtask" || name == "va-peer" || name == "vmalloc-book"),
            "{names:?}"
        );
    }
}
