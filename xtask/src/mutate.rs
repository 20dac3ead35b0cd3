//! Weakens the protocols between threads and expects a model or a test to notice.
//!
//! A model that never failed proves little. Each entry of `xtask/mutations.toml` names a line, its replacement, and the
//! tests that must fail then. The tree is copied to `target/mutate`, so the working tree is not touched. A mutation is
//! *caught* under three conditions. The unbroken code passes the very same tests, the broken code still compiles, and
//! the tests fail, or exceed the time limit. `cargo xtask tidy` checks that each entry still applies to its file.

use crate::cargo::full;
use crate::count::Tests;
use crate::files::write_changed;
use crate::loom::{FEW, within_few};
use crate::machine::{commit, duration, machine};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only mutations whose name contains one of these
    filter: Vec<String>,
    /// Write the outcomes to results/weakenings.md; outcomes there of mutations that were not tried stay
    #[arg(long)]
    update: bool,
    /// Print the mutations and do nothing
    #[arg(long)]
    list: bool,
    /// Time limit of tests in seconds, after which they count as never ending; building them is not limited
    #[arg(long, default_value_t = 240)]
    seconds: u64,
}

/// The list of mutations.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    pub(crate) mutation: Vec<Mutation>,
}

impl List {
    /// Reads the text of `xtask/mutations.toml`.
    pub(crate) fn read(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}

/// One way to break the code.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    /// Description of the fault.
    pub(crate) name: String,
    /// The file, from the root of the tree.
    pub(crate) file: String,
    /// The text to replace: it is in the file exactly once.
    find: String,
    /// The replacement.
    replace: String,
    /// Arguments of `cargo test` that select the tests which must fail.
    pub(crate) test: Vec<String>,
    /// True if the tests are models of interleavings, which are built with `--cfg loom`.
    #[serde(default)]
    pub(crate) loom: bool,
}

/// The result of one mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    /// These tests failed.
    Caught(Vec<String>),
    /// The tests did not end.
    NeverEnded,
    /// Every test passed.
    Missed,
    /// The entry does not apply to this code.
    Wrong(String),
}

/// Runs `cargo xtask mutate`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let text =
        fs::read_to_string(root.join("xtask/mutations.toml")).context("cannot read xtask/mutations.toml")?;
    let mut list = List::read(&text).context("xtask/mutations.toml")?;
    let all: Vec<_> = list.mutation.iter().map(described).collect();
    if !args.filter.is_empty() {
        list.mutation.retain(|mutation| args.filter.iter().any(|part| mutation.name.contains(part)));
    }
    if list.mutation.is_empty() {
        bail!("no such mutation");
    }
    if args.list {
        list.mutation.iter().for_each(|mutation| println!("{} ({})", mutation.name, mutation.file));
        return Ok(());
    }
    let started = Instant::now();
    let (commit, work) = (commit(root), root.join("target/mutate/tree"));
    copy_tree(root, &work)?;
    let bench = Bench { tree: work, build: root.join("target/mutate/build"), seconds: args.seconds };
    // Tests that fail without the mutation detect nothing.
    let commands: BTreeSet<_> =
        list.mutation.iter().map(|mutation| (mutation.loom, &mutation.test)).collect();
    for (loom, test) in commands {
        let passed = bench.passes(test, loom)?;
        println!(
            "unbroken: {passed} tests pass: {}cargo test {}",
            if loom { "loom: " } else { "" },
            test.join(" ")
        );
    }
    let mut rows = BTreeMap::new();
    let mut escaped = 0;
    for mutation in &list.mutation {
        let verdict = bench.judge(mutation)?;
        let shown = match &verdict {
            Verdict::Caught(tests) => format!("caught by {}", some_of(tests)),
            Verdict::NeverEnded => "caught: the tests never end".to_string(),
            Verdict::Missed => "**missed**".to_string(),
            Verdict::Wrong(why) => format!("**no mutation: {why}**"),
        };
        escaped += u32::from(matches!(verdict, Verdict::Missed | Verdict::Wrong(_)));
        println!("{}: {shown}", mutation.name);
        rows.insert(described(mutation), format!("{shown} | {commit}"));
    }
    println!("{} of {} mutations caught", list.mutation.len() as u32 - escaped, list.mutation.len());
    if args.filter.is_empty() || args.update {
        let file = root.join("results/weakenings.md");
        let before = if args.update { fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
        let table = table(&all, &rows, &before);
        let page = format!(
            "# Weakenings of protocols\n\n- command: `cargo xtask mutate`; each row has the commit at which it was tried\n\
             - commit: {commit}\n- machine: {}\n- time: {}, for {} of {}\n\n{table}",
            machine(root),
            duration(started.elapsed().as_secs_f64()),
            rows.len(),
            all.len(),
        );
        fs::create_dir_all(root.join("results"))?;
        fs::write(file, page)?;
        println!("written to results/weakenings.md");
    }
    if escaped > 0 {
        bail!("{escaped} mutations were not caught");
    }
    Ok(())
}

/// A copy of the tree to break, with a target folder of its own.
struct Bench {
    tree: PathBuf,
    build: PathBuf,
    seconds: u64,
}

impl Bench {
    /// Runs tests on the unbroken code. Returns their number.
    fn passes(&self, test: &[String], loom: bool) -> Result<u64> {
        let mut tests = Tests::default();
        self.build(test, loom).lines(Show::Failure, |_| {})?.success()?;
        self.run(test, loom).lines(Show::Failure, |line| tests.read(line))?.success()?;
        if tests.passed == 0 {
            bail!("cargo test {} selects no test", test.join(" "));
        }
        Ok(tests.passed)
    }

    fn judge(&self, mutation: &Mutation) -> Result<Verdict> {
        let path = self.tree.join(&mutation.file);
        let Ok(before) = fs::read_to_string(&path) else {
            return Ok(Verdict::Wrong("no such file".to_string()));
        };
        let broken = match apply(&before, mutation) {
            Ok(broken) => broken,
            Err(why) => return Ok(Verdict::Wrong(why)),
        };
        fs::write(&path, broken)?;
        let verdict = self.judge_broken(mutation);
        fs::write(&path, before)?;
        verdict
    }

    fn judge_broken(&self, mutation: &Mutation) -> Result<Verdict> {
        let Mutation { test, loom, .. } = mutation;
        let built = self.build(test, *loom).lines(Show::Nothing, |_| {})?;
        if built.code != Some(0) {
            return Ok(Verdict::Wrong("it does not compile".to_string()));
        }
        let mut failed = Vec::new();
        let ended = self.run(test, *loom).lines(Show::Nothing, |line| {
            if let Some(name) = failed_test(line) {
                failed.push(name.to_string());
            }
        })?;
        Ok(match ended.code {
            Some(0) => Verdict::Missed,
            // The exit status of `timeout`.
            Some(124 | 137) => Verdict::NeverEnded,
            _ => Verdict::Caught(failed),
        })
    }

    /// Builds tests.
    fn build(&self, test: &[String], loom: bool) -> Cmd {
        // Arguments after `--` select tests, and are not for cargo.
        let (cargo, _) = test.split_at(test.iter().position(|part| part == "--").unwrap_or(test.len()));
        self.cargo_test(Cmd::new(&self.tree, "cargo"), cargo, loom).arg("--no-run")
    }

    /// Runs tests that are built.
    fn run(&self, test: &[String], loom: bool) -> Cmd {
        // `timeout` ends the test binary as well as cargo, since both are in its process group.
        let timeout = Cmd::new(&self.tree, "timeout").arg("--kill-after=5").arg(self.seconds.to_string());
        self.cargo_test(timeout.arg("cargo"), test, loom)
    }

    fn cargo_test(&self, cmd: Cmd, test: &[String], loom: bool) -> Cmd {
        let cmd = full(cmd.args(["test", "--locked"]));
        if !loom {
            return cmd.args(test).env("CARGO_TARGET_DIR", &self.build);
        }
        // As in CI, but in a folder of its own: the flag would otherwise cause a rebuild each time.
        let cmd = cmd.arg("--release").args(test).env("RUSTFLAGS", "--cfg loom");
        within_few(cmd, FEW).env("CARGO_TARGET_DIR", self.build.join("loom"))
    }
}

/// Returns the broken `text`. The error is the reason why this is not possible.
pub(crate) fn apply(text: &str, mutation: &Mutation) -> Result<String, String> {
    match text.matches(&mutation.find).count() {
        _ if mutation.find == mutation.replace => Err("it changes nothing".to_string()),
        1 => Ok(text.replacen(&mutation.find, &mutation.replace, 1)),
        count => Err(format!("its text stands in the file {count} times")),
    }
}

/// Returns the name in `test a::b ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?
        .strip_suffix(" ... FAILED")
        .map(|name| name.trim_end_matches(" - should panic"))
}

fn some_of(tests: &[String]) -> String {
    match tests {
        [] => "a crash".to_string(),
        [one] => format!("`{one}`"),
        [first, rest @ ..] => format!("`{first}` and {} more", rest.len()),
    }
}

/// Returns the first columns of a mutation's row: the fault, its file and its text.
fn described(mutation: &Mutation) -> String {
    let diff = format!("`{}` -> `{}`", one_line(&mutation.find), one_line(&mutation.replace));
    format!("| {} | `{}` | {diff} |", mutation.name, mutation.file)
}

/// Returns the table of all mutations: outcomes of those tried now, and earlier ones of the others.
fn table(all: &[String], tried: &BTreeMap<String, String>, before: &str) -> String {
    let mut table = "| what is broken | file | how | outcome | commit |\n|---|---|---|---|---|\n".to_string();
    for row in all {
        let kept = || before.lines().find_map(|line| line.strip_prefix(row)?.strip_suffix(" |"));
        let outcome = match (tried.get(row), kept()) {
            (Some(now), _) => now,
            (None, Some(kept)) => kept.trim_start(),
            (None, None) => "not tried yet | -",
        };
        table += &format!("{row} {outcome} |\n");
    }
    table
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Copies the files of `from` that git does not ignore to `to`. Equal files are left alone, so that cargo rebuilds
/// little; other files of `to` are removed.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut present = BTreeSet::new();
    for (path, file) in crate::files::walk(from)? {
        let target = to.join(&path);
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir)?;
        }
        write_changed(&target, &fs::read(&file)?)?;
        present.insert(path);
    }
    for (path, file) in crate::files::walk(to)? {
        if !present.contains(&path) {
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutation(find: &str, replace: &str) -> Mutation {
        let text = |text: &str| text.to_string();
        Mutation {
            name: text("m"),
            file: text("src/lib.rs"),
            find: text(find),
            replace: text(replace),
            test: vec![text("--lib")],
            loom: false,
        }
    }

    #[test]
    fn a_mutation_must_match_exactly_once_and_change_something() {
        assert_eq!(apply("a + b", &mutation("+", "-")).unwrap(), "a - b");
        assert!(apply("a + b + c", &mutation("+", "-")).unwrap_err().contains("2 times"));
        assert!(apply("a * b", &mutation("+", "-")).unwrap_err().contains("0 times"));
        assert!(apply("a + b", &mutation("+", "+")).is_err());
    }

    #[test]
    fn outcomes_are_stored_until_a_mutation_is_tried_again_or_changes() {
        let rows = |mutations: &[Mutation]| mutations.iter().map(described).collect::<Vec<_>>();
        let named = |name: &str, find| Mutation { name: name.to_string(), ..mutation(find, "x | y") };
        let (one, two) = (named("one", "a"), named("two", "b"));
        let all = rows(&[one, two]);
        let tried = |row: &String, outcome: &str| BTreeMap::from([(row.clone(), outcome.to_string())]);
        let first = table(&all, &tried(&all[0], "caught | 12ab"), "");
        assert!(first.contains("| one | `src/lib.rs` | `a` -> `x \\| y` | caught | 12ab |\n"), "{first}");
        assert!(first.contains("| not tried yet | - |\n"), "{first}");
        let second = table(&all, &tried(&all[1], "**missed** | 34cd"), &first);
        assert!(second.contains("caught | 12ab |") && second.contains("**missed** | 34cd |"), "{second}");
        // If a mutation has changed, its earlier outcome is dropped.
        let third = table(&rows(&[named("one", "c"), named("two", "b")]), &BTreeMap::new(), &second);
        assert!(!third.contains("12ab") && third.contains("34cd"), "{third}");
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b - should panic ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }

    #[test]
    fn a_copy_follows_changes_and_removals() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (from.path(), to.path());
        fs::write(from.join(".gitignore"), "ignored\n").unwrap();
        for name in ["a", "b", "ignored"] {
            fs::write(from.join(name), name).unwrap();
        }
        copy_tree(from, to).unwrap();
        assert!(to.join("a").is_file() && to.join("b").is_file() && !to.join("ignored").exists());
        fs::write(from.join("a"), "changed").unwrap();
        fs::remove_file(from.join("b")).unwrap();
        copy_tree(from, to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "changed");
        assert!(!to.join("b").exists());
    }

    /// Returns a crate with one test, of one of its two functions.
    fn planted() -> (tempfile::TempDir, Bench) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("src")).unwrap();
        let manifest = "[package]\nname = \"planted\"\nedition = \"2024\"\n[workspace]\n";
        fs::write(tree.join("Cargo.toml"), manifest).unwrap();
        fs::write(
            tree.join("Cargo.lock"),
            "version = 4\n[[package]]\nname = \"planted\"\nversion = \"0.0.0\"\n",
        )
        .unwrap();
        let code = "pub fn seen() -> u32 { 1 }\npub fn unseen() -> u32 { 2 }\n\
            #[test]\nfn looks() { assert_eq!(seen(), 1); }\n";
        fs::write(tree.join("src/lib.rs"), code).unwrap();
        let bench = Bench { tree, build: dir.path().join("build"), seconds: 60 };
        (dir, bench)
    }

    #[test]
    fn what_a_test_looks_at_is_caught_and_what_none_looks_at_is_missed() {
        let (_dir, bench) = planted();
        let passes =
            |test: &str| bench.passes(&test.split(' ').map(str::to_string).collect::<Vec<_>>(), false);
        assert_eq!((passes("--lib").unwrap(), passes("--lib -- looks").unwrap()), (1, 1));
        assert!(passes("--lib no_such_test").is_err() && passes("--lib -- no_such_test").is_err());
        let judge = |find, replace| bench.judge(&mutation(find, replace)).unwrap();
        assert_eq!(judge("{ 1 }", "{ 3 }"), Verdict::Caught(vec!["looks".to_string()]));
        assert_eq!(judge("{ 2 }", "{ 3 }"), Verdict::Missed);
        assert_eq!(judge("{ 2 }", "{ nonsense }"), Verdict::Wrong("it does not compile".to_string()));
        // Each is undone before the next.
        assert_eq!(passes("--lib").unwrap(), 1);
    }

    #[test]
    fn a_model_is_built_with_its_flag() {
        let (_dir, bench) = planted();
        let code =
            "pub fn seen() -> u32 { 1 }\n#[cfg(loom)]\n#[test]\nfn models() { assert_eq!(seen(), 1); }\n";
        fs::write(bench.tree.join("src/lib.rs"), code).unwrap();
        let modelled = Mutation { loom: true, ..mutation("{ 1 }", "{ 3 }") };
        assert_eq!(bench.passes(&modelled.test, true).unwrap(), 1);
        assert!(bench.passes(&modelled.test, false).is_err());
        assert_eq!(bench.judge(&modelled).unwrap(), Verdict::Caught(vec!["models".to_string()]));
    }

    #[test]
    fn a_test_that_never_ends_is_caught() {
        let (_dir, bench) = planted();
        let bench = Bench { seconds: 3, ..bench };
        assert_eq!(bench.judge(&mutation("{ 1 }", "{ loop {} }")).unwrap(), Verdict::NeverEnded);
    }
}
