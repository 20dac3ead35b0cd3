//! Upstream test suites, with the preload and without: `cargo xtask suites`.
//!
//! # Theory
//! Each test is a program. It runs once in each of the [`run::WAYS`]: plain, and under the preload with several
//! configurations. A test that fails plain may fail under the preload in the same manner, since a suite may expect more
//! than the C standard guarantees. A difference needs a cause in [`causes`], which a person found; one without is an
//! error.
//!
//! | module | contents |
//! |---|---|
//! | [`glibc`] | glibc's tests of malloc, from the source package of the distribution |
//! | [`packages`] | C and C++ sources in packages of crates.io, and which of them have tests |
//! | [`build`] | compiling them against the system's C library |
//! | [`run`] | one run of a program, its end and its time limit |
//! | [`causes`] | the causes of the differences |
//! | [`page`] | `results/suites.md` |

mod build;
mod causes;
mod glibc;
mod packages;
mod page;
mod run;

use crate::count::Tests;
use crate::install;
use crate::not_run;
use anyhow::{Context, Result, bail};
use page::Line;
use run::{Runner, WAYS};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only tests whose suite or name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// A preload other than the one that is built here
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
    /// Seconds after which a run is ended
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    limit: u32,
    /// Write results/suites.md
    #[arg(long)]
    out: bool,
}

/// A test, or the reason why it has no program here.
pub(crate) struct Test {
    suite: &'static str,
    name: String,
    program: Result<Program, String>,
}

/// A program that passes by returning 0.
pub(crate) struct Program {
    path: PathBuf,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    /// A library that it needs before any other, in each configuration.
    library: Option<&'static str>,
}

impl Program {
    fn new(path: PathBuf) -> Self {
        Self { path, args: Vec::new(), env: Vec::new(), library: None }
    }
}

/// Runs `cargo xtask suites`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let target = root.join("target/suites");
    fs::create_dir_all(&target)?;
    let library = match &args.preload {
        Some(path) => path.clone(),
        None => install::preload(root)?,
    };
    let library =
        fs::canonicalize(&library).with_context(|| format!("no preload at {}", library.display()))?;
    let wanted = |test: &Test| {
        args.only
            .as_ref()
            .is_none_or(|only| test.suite.contains(only.as_str()) || test.name.contains(only.as_str()))
    };
    // First, so that missing packages are reported before any long run.
    let mut tests = glibc::tests(root, &target)?;
    let fetched = packages::fetch(&target)?;
    tests.extend(packages::tests(&target, &fetched)?);
    let runner = Runner { dir: target.join("work"), library, limit: args.limit };
    let mut lines = Vec::new();
    for test in tests.into_iter().filter(wanted) {
        let line = Line::of(&runner, test)?;
        println!("{}", line.row());
        lines.push(line);
    }
    let text = page::page(root, args.limit, &lines, &fetched);
    if args.out {
        fs::write(root.join("results/suites.md"), &text)?;
    }
    let unexplained: Vec<String> = lines.iter().flat_map(Line::unexplained).collect();
    let runs = lines.iter().filter(|line| line.ran()).count();
    println!("suites: {runs} tests in {} ways, {}", WAYS.len(), page::alike(&lines));
    if !unexplained.is_empty() {
        bail!("differs from plain, and no cause is known: {}", unexplained.join(", "));
    }
    if runs == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Runs the step of `cargo xtask ci --full`.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    let target = root.join("target/suites");
    fs::create_dir_all(&target)?;
    let missing = glibc::archive().map(|_| ()).and_then(|()| packages::fetch(&target).map(|_| ()));
    if let Err(error) = missing {
        not_run::add(root, &format!("test suites of others: {error:#}"));
        return Ok(());
    }
    main(root, &Args { only: None, preload: None, limit: 120, out: false })
}
