//! Tries the faults that cargo-mutants makes, hundreds of them in one program.
//!
//! # Theory
//! A build takes many times as long as the tests that notice a fault. So a batch of faults is built at once. The body of
//! a function becomes a choice between its own text and one copy for each fault. A variable of the environment selects
//! the fault. cargo-mutants lists the faults, with the text that each replaces ([`list`]); [`weave`] writes the
//! copies, [`build`] compiles them, and [`trial`] runs the tests until one fails.
//!
//! | outcome | meaning |
//! |---|---|
//! | caught | a test fails |
//! | never ends | a test takes several times its CPU time, or stands still |
//! | survivor | every test passes: `xtask/survivors.toml` says why no caller can see it |
//! | does not compile | it is no fault |
//!
//! A function that returns a type without a name cannot have copies, so each of its faults is built alone. So is a
//! fault of a `const fn` that no test noticed, since an assertion that the compiler evaluates may.
//!
//! The order of a subject's faults is that of checksums of a seed and their names. A sample is the beginning of it, so a
//! larger sample begins with the smaller one. A name has no line, so a change elsewhere in a file does not
//! change the order. `results/mutants.tsv` has the faults that were tried; each row has its commit, and
//! the machine if it is another than that of the page.

mod build;
mod list;
mod page;
mod trial;
mod weave;

use crate::machine::commit;
use crate::mutate::copy_tree;
use crate::parallel;
use crate::sh::{Cmd, on_path};
use anyhow::{Result, bail};
use list::Mutant;
use page::Record;
use std::path::{Path, PathBuf};
use trial::{Outcome, Trial};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these subjects: va-tree, va-space, va-block, va-percpu, va-map, heap
    subjects: Vec<String>,
    /// The size of a sample; without it, the size that the page states
    #[arg(long)]
    sample: Option<usize>,
    /// Try the survivors that have no reason again, and what was not tried
    #[arg(long)]
    survivors: bool,
    /// Try again what was caught before
    #[arg(long)]
    again: bool,
    /// Faults that are tried at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Write the page anew and try nothing
    #[arg(long)]
    page: bool,
}

/// The seed of the order in which faults are tried.
const SEED: u32 = 20;

/// The faults that are built at once. Each test instantiates all of them for each policy.
const BATCH: usize = 900;

/// Times of tests that are not optimised, as a multiple of those that are.
const SLOWER: f64 = 10.0;

/// Code to break, and the tests that must notice.
#[derive(Debug)]
struct Subject {
    name: &'static str,
    package: &'static str,
    /// The package's folder.
    folder: &'static str,
    /// The files to break, if not all of the package.
    files: Option<&'static str>,
    /// Arguments of cargo that select the tests.
    tests: &'static [&'static str],
    /// The size of a sample; `None` if all faults are tried.
    sample: Option<usize>,
}

const TESTS: &[&str] = &["--lib", "--tests"];

const SUBJECTS: [Subject; 6] = [
    Subject {
        name: "va-tree",
        package: "va-tree",
        folder: "core/va-tree",
        files: None,
        tests: &["--lib", "--tests", "--features", "va-tree/validate"],
        sample: None,
    },
    Subject {
        name: "va-space",
        package: "va-space",
        folder: "core/va-space",
        files: None,
        tests: TESTS,
        sample: None,
    },
    Subject {
        name: "va-block",
        package: "va-block",
        folder: "core/va-block",
        files: None,
        tests: TESTS,
        sample: Some(300),
    },
    Subject {
        name: "va-percpu",
        package: "va-percpu",
        folder: "core/va-percpu",
        files: None,
        tests: TESTS,
        sample: Some(300),
    },
    Subject {
        name: "va-map",
        package: "va-map",
        folder: "core/va-map",
        files: None,
        tests: TESTS,
        sample: Some(300),
    },
    Subject {
        name: "heap",
        package: "vmalloc",
        folder: "process/vmalloc",
        files: Some("process/vmalloc/src/heap/**"),
        tests: TESTS,
        sample: Some(300),
    },
];

/// The copy of the tree that is broken, and where it is built.
struct Bench {
    tree: PathBuf,
    build: PathBuf,
}

/// Runs `cargo xtask mutants`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if let Some(name) = args.subjects.iter().find(|name| SUBJECTS.iter().all(|known| known.name != *name)) {
        bail!("no such subject: {name}");
    }
    if !args.page {
        if !on_path("cargo-mutants") {
            bail!("cargo-mutants is not installed: cargo install --locked cargo-mutants");
        }
        let bench =
            Bench { tree: root.join("target/mutants/tree"), build: root.join("target/mutants/build") };
        let chosen = |subject: &&Subject| {
            args.subjects.is_empty() || args.subjects.iter().any(|name| name == subject.name)
        };
        // Once, since the rows of a subject change the tree.
        let commit = commit(root);
        for subject in SUBJECTS.iter().filter(chosen) {
            subject.run(root, &bench, args, &commit)?;
        }
    }
    page::write(root)
}

impl Subject {
    /// Tries what was not tried yet, in batches, and stores each outcome at once: a run that is stopped loses none.
    fn run(&self, root: &Path, bench: &Bench, args: &Args, commit: &str) -> Result<()> {
        copy_tree(root, &bench.tree)?;
        let all = list::read(&bench.tree, self)?;
        let (mut records, reasons) = (page::read(root, self.name)?, page::reasons(root)?);
        records.retain(|record| all.iter().any(|mutant| mutant.id == record.mutant));
        let sample = args.sample.or(self.sample).unwrap_or(all.len());
        let wanted = |mutant: &&Mutant| {
            let known = records.iter().find(|record| record.mutant == mutant.id);
            match known.map(|record| record.outcome) {
                None => true,
                Some(Outcome::Survivor) if args.survivors => args.again || !reasons.has(&mutant.id),
                Some(_) => args.again,
            }
        };
        let mut tried: Vec<_> = all.iter().take(sample).filter(wanted).cloned().collect();
        // Those that are built alone come last.
        tried.sort_by_key(|mutant| !mutant.can_be_woven());
        println!("{}: {} faults, {sample} wanted, {} to try", self.name, all.len(), tried.len());
        // Without those that are faults of this tree no more.
        page::store(root, self.name, all.len(), &records)?;
        let mut trial = None;
        let mut store = |mutant: &Mutant, outcome: Outcome| {
            println!("{}: {}", outcome.name(), mutant.id);
            records.retain(|record| record.mutant != mutant.id);
            let (id, commit) = (mutant.id.clone(), commit.to_string());
            records.push(Record { mutant: id, outcome, commit, machine: None });
            records.sort_by_key(|record| all.iter().position(|mutant| mutant.id == record.mutant));
            page::store(root, self.name, all.len(), &records)
        };
        for batch in tried.chunks(BATCH) {
            self.try_batch(bench, batch, args.jobs, &mut trial, &mut store)?;
        }
        Ok(())
    }

    /// Builds a batch and tries each of its faults; then builds and tries each alone that cannot be in a batch. `last` is
    /// the trial of the batch before, whose tests were timed. Calls `store` with each outcome.
    fn try_batch(
        &self,
        bench: &Bench,
        batch: &[Mutant],
        jobs: usize,
        last: &mut Option<Trial>,
        store: &mut dyn FnMut(&Mutant, Outcome) -> Result<()>,
    ) -> Result<()> {
        let (together, alone): (Vec<_>, Vec<_>) = batch.iter().partition(|mutant| mutant.can_be_woven());
        let built = build::together(bench, self, &together)?;
        let next = match &*last {
            None => Trial::new(&bench.tree.join(self.folder), &built.programs, jobs)?,
            Some(last) => last.with(&built.programs, 1.0)?,
        };
        let trial = last.insert(next);
        let mut after = Vec::new();
        let outcome = |mutant: &&Mutant| match built.failed.contains(&mutant.number) {
            true => Ok(Outcome::DoesNotCompile),
            false => trial.outcome(mutant.number, &mutant.file),
        };
        parallel::each(jobs, &together, outcome, |mutant, outcome| {
            if outcome == Outcome::Survivor && mutant.is_const {
                after.push(*mutant);
                return Ok(());
            }
            store(mutant, outcome)
        })?;
        for mutant in after.into_iter().chain(alone) {
            store(mutant, self.alone(bench, mutant, trial)?)?;
        }
        Ok(())
    }

    /// Builds and tries a fault by itself.
    fn alone(&self, bench: &Bench, mutant: &Mutant, trial: &Trial) -> Result<Outcome> {
        match build::alone(bench, self, mutant)? {
            None => Ok(Outcome::DoesNotCompile),
            Some(programs) => trial.with(&programs, SLOWER)?.outcome(0, &mutant.file),
        }
    }
}

/// Returns cargo in the copy. The copies need a function that is evaluated in constants as well, which only an unstable
/// part of the library has; so do tests that end with the first failure. A batch runs hundreds of times, so it is
/// optimised. Tests that miss a fault of `va-space` take 4 s of CPU time in place of 30, and compile in 90 s.
fn cargo(bench: &Bench, optimised: bool) -> Cmd {
    Cmd::cargo(&bench.tree)
        .env("CARGO_TARGET_DIR", &bench.build)
        .env("CARGO_PROFILE_TEST_DEBUG", "none")
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .env("CARGO_PROFILE_TEST_OPT_LEVEL", if optimised { "1" } else { "0" })
        .env("CARGO_PROFILE_TEST_CODEGEN_UNITS", "16")
        .env("RUSTC_BOOTSTRAP", "1")
}
