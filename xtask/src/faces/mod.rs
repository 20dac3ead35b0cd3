//! The packages in `adopt/faces`, which have the names and the paths of others: `cargo xtask faces`.
//!
//! # Theory
//! Each package is checked in three ways. Its own tests compare it with the original by random operations. The
//! original's tests and examples run over it. A package of the registry that depends on the original is built
//! unmodified, with `[patch.crates-io]` in the manifest of a scratch package. No code of others gets into the tree: it is
//! read from the folders into which cargo fetches packages, and lies below `target/faces`.
//!
//! | module | contents |
//! |---|---|
//! | [`upstream`] | the originals' tests and examples |
//! | [`dependents`] | packages that depend on the originals |
//! | [`text`] | the size of the code of each package and its original |
//! | [`page`] | `results/faces.md` |

mod dependents;
mod page;
mod text;
mod upstream;

use crate::cargo::{cargo, counted};
use crate::count::Tests;
use crate::not_run;
use crate::peers;
use crate::sh::Cmd;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these packages
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Also build the dependents that take minutes
    #[arg(long)]
    large: bool,
    /// Measure time, memory and code as well, and write results/faces.md
    #[arg(long, requires = "large", conflicts_with = "only")]
    out: bool,
}

/// The workspace of the packages.
const MANIFEST: &str = "adopt/faces/Cargo.toml";

/// A package, and the version of the original whose interface it has.
#[derive(Debug)]
struct Face {
    name: &'static str,
    version: &'static str,
}

const FACES: [Face; 4] = [
    Face { name: "free-list", version: "0.3.4" },
    Face { name: "offset-allocator", version: "0.2.0" },
    Face { name: "range-alloc", version: "0.1.5" },
    Face { name: "vm-allocator", version: "0.1.4" },
];

/// The selection of tests for each change. The step `clippy` compiles the rest.
const QUICK: [&str; 4] = ["--exclude", "faces-bench", "--features", "vm-allocator/serde"];
/// All of them.
const ALL: [&str; 1] = ["--all-features"];

impl Face {
    /// Returns the folder of the package.
    fn folder(&self, root: &Path) -> PathBuf {
        root.join("adopt/faces").join(self.name)
    }

    /// Returns the name of the library.
    fn library(&self) -> String {
        self.name.replace('-', "_")
    }
}

/// Runs `cargo xtask faces`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if let Some(name) = args.only.iter().find(|name| !FACES.iter().any(|face| face.name == **name)) {
        bail!("no package {name}; there are: {}", FACES.map(|face| face.name).join(", "));
    }
    own_tests(root, &ALL, &mut Tests::default())?;
    let chosen = |face: &&Face| args.only.is_empty() || args.only.iter().any(|name| name == face.name);
    let rows = beside_others(root, &FACES.iter().filter(chosen).collect::<Vec<_>>(), args.large)?;
    if args.out {
        page::write(root, &rows)?;
    }
    conclude(&rows)
}

/// Runs the step of CI: the tests of the packages.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    if let Err(error) = fetch(root) {
        not_run::add(root, &format!("packages with the names of others: {error:#}"));
        return Ok(());
    }
    own_tests(root, &QUICK, tests)
}

/// Runs the step of `cargo xtask ci --full`.
pub(crate) fn full(root: &Path, tests: &mut Tests) -> Result<()> {
    if fetch(root).is_err() {
        return step(root, tests);
    }
    own_tests(root, &ALL, tests)?;
    let rows = beside_others(root, &FACES.iter().collect::<Vec<_>>(), false)?;
    rows.iter().for_each(|row| *tests += row.upstream.tests);
    conclude(&rows)
}

/// The results of one package beside code of others.
struct Row {
    face: &'static Face,
    upstream: upstream::Outcome,
    dependents: Vec<dependents::Outcome>,
}

fn beside_others(root: &Path, faces: &[&'static Face], large: bool) -> Result<Vec<Row>> {
    let target = root.join("target/faces");
    let metadata = fetch(root)?;
    let mut rows = Vec::new();
    for face in faces {
        let original = peers::folder(&metadata, face.name, face.version)?;
        let upstream = upstream::run(root, &target, face, &original).context(face.name)?;
        println!("{}: {upstream}", face.name);
        let dependents = dependents::build(root, &target, face, large)?;
        dependents.iter().for_each(|outcome| println!("{}: {outcome}", face.name));
        if dependents.is_empty() {
            println!("{}: no package of the registry is known to depend on it", face.name);
        }
        rows.push(Row { face, upstream, dependents });
    }
    Ok(rows)
}

/// Lets cargo fetch all packages of the workspace, the originals among them. Returns their metadata.
fn fetch(root: &Path) -> Result<String> {
    fs::create_dir_all(root.join("target/faces"))?;
    Cmd::cargo(root)
        .args(["metadata", "--quiet", "--locked", "--format-version", "1", "--manifest-path", MANIFEST])
        .read()
        .context("cargo cannot fetch the originals")
}

/// Runs the tests of the workspace, in which each package is compared with its original.
fn own_tests(root: &Path, selection: &[&str], tests: &mut Tests) -> Result<()> {
    let before = tests.passed;
    counted(
        cargo(root)
            .args(["test", "--quiet", "--locked", "--no-fail-fast", "--workspace"])
            .args(selection)
            .args(["--manifest-path", MANIFEST, "--target-dir", "target/faces/own"]),
        tests,
    )?;
    if tests.passed == before {
        bail!("no test was run");
    }
    Ok(())
}

fn conclude(rows: &[Row]) -> Result<()> {
    let mut wrong: Vec<String> = Vec::new();
    for Row { face, upstream, dependents } in rows {
        if upstream.tests.failed > 0 || upstream.tests.passed == 0 {
            wrong.push(format!("{}: {upstream}", face.name));
        }
        wrong.extend(dependents.iter().filter_map(|outcome| outcome.failure(face.name)));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("; "));
    }
    Ok(())
}
