//! The commands on the tree: checks, measurements, packages.
//!
//! | module | contents |
//! |---|---|
//! | [`ci`], [`steps`] | every check, in two lanes, with times; the steps that are a command or two |
//! | [`tidy`] | rules that the compiler does not check |
//! | [`kernel`] | the proof that the core needs no operating system |
//! | [`guest`] | a kernel over the core, booted in QEMU |
//! | [`linux`] | the core inside Linux 6.12, booted in QEMU |
//! | [`licences`] | licences and sources of dependencies |
//! | [`fresh`] | the two commands of the README on a new minimal Debian |
//! | [`not_run`] | checks that this machine cannot run, for the summary |
//! | [`fuzz`] | builds and runs the fuzz targets on a stable compiler |
//! | [`soak`] | long runs of these and of the property tests, with a page in `results/` |
//! | [`stress`] | random programs of malloc, threads and forks under the preload |
//! | [`faults`] | every system call of the crates of a process fails, and other faults of the system |
//! | [`mutate`] | weakens each protocol between threads and expects its model to fail |
//! | [`mutants`] | tries the faults that cargo-mutants makes |
//! | [`counts`] | instructions, locked operations and cache lines of hot paths, compared with the committed counts |
//! | [`foreign`] | the core's tests on other processors |
//! | [`miri`], [`sanitize`] | the crates with unsafe code under Miri, and under sanitizers |
//! | [`sizes`] | code and stack in programs without an operating system |
//! | [`peer`] | the space beside Linux's own, in one run |
//! | [`faces`] | the packages with the names of others, beside the originals |
//! | [`suites`] | upstream test suites, with the preload and without |
//! | [`peers`] | allocators to measure ours against |
//! | [`book`] | the book's pages, and every command in it |
//! | [`clients`] | real programs with the preload and without |
//! | [`package`] | the packages of the published crates |
//! | [`browser`] | a report in a real browser |
//! | [`header`], [`install`] | the C header, and the installation of the C library |
//! | [`cargo`], [`files`] | cargo as the steps run it, the files of the tree |
//! | [`sh`], [`count`], [`machine`] | running commands, counting tests in their output, describing the machine |
//! | [`parallel`] | work that some threads share |

mod book;
mod browser;
mod cargo;
mod ci;
mod clients;
mod count;
mod counts;
mod faces;
mod faults;
mod files;
mod foreign;
mod fresh;
mod fuzz;
mod guest;
mod header;
mod install;
mod kernel;
mod licences;
mod linux;
mod loom;
mod machine;
mod miri;
mod mutants;
mod mutate;
mod not_run;
mod package;
mod parallel;
mod peer;
mod peers;
mod sanitize;
mod semver;
mod sh;
mod sizes;
mod soak;
mod steps;
mod stress;
mod suites;
mod symbols;
mod targets;
mod tidy;
mod tools;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(
    name = "cargo xtask",
    about = "Everything that is run on the tree",
    after_help = "Examples:\n  \
        cargo xtask ci                        all that must hold before a change goes in\n  \
        cargo xtask ci --quick                the part of it that takes a minute\n  \
        cargo xtask ci --only tidy,fuzz       two steps of it\n  \
        cargo xtask fuzz index_ops --seconds 600"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Run every check
    Ci(ci::Args),
    /// Run the README's two commands on a new minimal Debian, and write results/full.md: needs root
    Fresh(fresh::Args),
    /// Check the rules that the compiler does not check
    Tidy(tidy::Args),
    /// Link the core into a program without a C library or an operating system's help, and run it
    Kernel,
    /// Boot adopt/guest in QEMU: unchanged, without any flush, and with one CPU too few in each
    Guest(guest::Args),
    /// Build a Linux kernel with the core in it, boot it in QEMU, and run Linux's own test there
    Linux(linux::Args),
    /// Run the tests of interleavings
    Loom,
    /// Run fuzz targets
    Fuzz(fuzz::Args),
    /// Fuzz and run property tests for long, and write the outcome to results/soak.md
    Soak(soak::Args),
    /// Run random programs of malloc, threads and forks under the preload; --out writes results/stress.md
    Stress(stress::Args),
    /// Let every system call of the crates of a process fail in every way; --out writes results/faults.md
    Faults(faults::Args),
    /// Weaken protocols as xtask/mutations.toml says, expect the models to notice, and write results/weakenings.md
    Mutate(mutate::Args),
    /// Try the faults that cargo-mutants makes, and write results/mutants.tsv and results/mutation.md
    Mutants(mutants::Args),
    /// Make the C header, include/vmalloc.h
    Header(header::Args),
    /// Check the pages of the book, and run every command in it
    Book(book::Args),
    /// Open a report in a browser without a window, and try its slider, keys and button
    Browser(browser::Args),
    /// Build the C library and the preload, and install them, the header, the manual and the pkg-config file
    Install(install::Args),
    /// Pack the published crates, and build them from their packages
    Package(package::Args),
    /// Compare the interfaces of the published crates with those of a release, by cargo-semver-checks
    Semver(semver::Args),
    /// Compile the crates for the processors and with the compilers that they promise
    Targets,
    /// Run the tests of crates with unsafe code under Miri, threads with several seeds; --out writes results/miri.md
    Miri(miri::Args),
    /// Run the tests of the crates of a process under two sanitizers; --out writes results/sanitizers.md
    Sanitize(sanitize::Args),
    /// Run the core's tests on other processors, under qemu; --out writes results/foreign.md
    Foreign(foreign::Args),
    /// Measure code and stack in programs without an operating system; --out writes results/sizes.md
    Sizes(sizes::Args),
    /// Count the instructions of hot paths by callgrind, and compare with results/counts.csv
    Counts(counts::Args),
    /// Run Linux's allocator and ours under the same programs, and write results/peer.md
    Peer(peer::Args),
    /// Build the allocators for `vmlab bench memory` that the system does not have, under target/peers
    Peers(peers::Args),
    /// Run real programs with the preload, without it, and with two tunables of glibc: answers, time, memory
    Clients(clients::Args),
    /// Run upstream test suites with the preload and without: glibc's, and those in packages of crates.io
    Suites(suites::Args),
    /// Test the packages in adopt/faces, run the originals' tests over them, and build dependents; --out measures as well
    Faces(faces::Args),
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<()> {
    let root = root();
    match task {
        Task::Ci(args) => ci::main(&root, args),
        Task::Fresh(args) => fresh::main(&root, args),
        Task::Tidy(args) => tidy::main(&root, args),
        Task::Kernel => kernel::main(&root, &mut count::Tests::default()),
        Task::Guest(args) => guest::main(&root, args),
        Task::Linux(args) => linux::main(&root, args),
        Task::Loom => loom::full(&root, &mut count::Tests::default()),
        Task::Fuzz(args) => fuzz::main(&root, args),
        Task::Soak(args) => soak::main(&root, args),
        Task::Stress(args) => stress::main(&root, args),
        Task::Mutate(args) => mutate::main(&root, args),
        Task::Mutants(args) => mutants::main(&root, args),
        Task::Header(args) => header::main(&root, args),
        Task::Book(args) => book::main(&root, args),
        Task::Browser(args) => browser::main(&root, args),
        Task::Install(args) => install::main(&root, args),
        Task::Package(args) => package::main(&root, args),
        Task::Semver(args) => semver::main(&root, args),
        Task::Targets => targets::full(&root, &mut count::Tests::default()),
        Task::Miri(args) => miri::main(&root, args),
        Task::Sanitize(args) => sanitize::main(&root, args),
        Task::Faults(args) => faults::main(&root, args),
        Task::Foreign(args) => foreign::main(&root, args),
        Task::Sizes(args) => sizes::main(&root, args),
        Task::Counts(args) => counts::main(&root, args),
        Task::Peer(args) => peer::main(&root, args),
        Task::Peers(args) => peers::main(&root, args),
        Task::Clients(args) => clients::main(&root, args),
        Task::Faces(args) => faces::main(&root, args),
        Task::Suites(args) => suites::main(&root, args),
    }
}

/// Returns the root of the tree: the folder above this crate's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The folders that contain the crates.
const GROUPS: [&str; 5] = ["core", "process", "check", "lab", "adopt"];

/// Returns the name of each crate in those folders, and its folder, in order.
fn crates(root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for group in GROUPS.iter().map(|group| root.join(group)).filter(|group| group.is_dir()) {
        for entry in std::fs::read_dir(group)? {
            let entry = entry?;
            found.insert(entry.file_name().to_string_lossy().into_owned(), entry.path());
        }
    }
    Ok(found)
}

/// Returns the crates of the core, and those around it that tests use: `va-*`.
fn core_crates(root: &Path) -> Result<Vec<String>> {
    Ok(crates(root)?.into_keys().filter(|name| name.starts_with("va-")).collect())
}

/// Returns the folder of a crate.
fn crate_dir(root: &Path, name: &str) -> Result<PathBuf> {
    crates(root)?.remove(name).with_context(|| format!("there is no crate {name}"))
}

/// Returns the name of a file's crate, and the file's path in it.
fn in_crate(path: &str) -> Option<(&str, &str)> {
    let (group, rest) = path.split_once('/')?;
    GROUPS.contains(&group).then(|| rest.split_once('/')).flatten()
}
