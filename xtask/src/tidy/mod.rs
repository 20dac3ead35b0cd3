//! The rules that the compiler does not check. One rule a file; each is tested on a tree in which it is broken.
//!
//! | rule | condition |
//! |---|---|
//! | `layers` | a crate depends only on lower layers of the table in `ARCHITECTURE.md`; dependencies of tests are free |
//! | `heads` | `va-*` crates say `#![no_std]` and `#![forbid(unsafe_code)]`, and have no `alloc` outside tests and the heap; of the laboratory `vmlab` alone prints and reads arguments |
//! | `cycles` | the top-level modules of a crate import each other in one direction, but for a list that shrinks |
//! | `unsafe-list` | `unsafe` stands only in files that `ARCHITECTURE.md` lists, and each of those needs it |
//! | `invariants` | every id has one statement, a check and a test; every id that is named is stated |
//! | `paths` | every path that a page or a doc comment names exists |
//! | `sync-facade` | atomics of `va-*` come from `core/va-base/src/sync.rs` |
//! | `hygiene` | no paths of one machine, no notes to oneself, no file too long, no test switched off without a reason |
//! | `manifests` | every package has the workspace's licence, edition and lints |
//! | `examples` | an example of a published package uses no crate that the package leaves out |
//! | `mutations` | each weakening of `xtask/mutations.toml` still applies to its file |
//! | `prose` | pages have short sentences and lines; doc comments have short sentences and begin with a fact |
//! | `protocols` | each atomic field names a protocol of `docs/protocols.md` or is a counter; each protocol has a model and a weakening |
//! | `words` | words that were replaced are used neither in pages nor in code; the finding names the word to use |
//!
//! The rules read the files of the tree that git does not ignore, committed or not, so the result does not depend on
//! the state of a checkout.

mod cycles;
mod examples;
mod heads;
mod hygiene;
mod invariants;
mod layers;
mod manifests;
mod mutations;
mod paths;
mod prose;
mod protocols;
mod source;
mod sync_facade;
mod tree;
mod unsafe_list;
mod words;

use anyhow::{Result, bail};
use std::fmt;
use std::path::Path;
use tree::Tree;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these rules
    #[arg(long, value_delimiter = ',', value_name = "RULE")]
    only: Vec<String>,
    /// Print the locations of each invariant's statement, check and test
    #[arg(long)]
    invariants: bool,
}

/// A violation of a rule, and its location.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.what)
    }
}

struct Rule {
    name: &'static str,
    check: fn(&Tree, &mut Report),
}

const RULES: [Rule; 14] = [
    Rule { name: "layers", check: layers::check },
    Rule { name: "heads", check: heads::check },
    Rule { name: "cycles", check: cycles::check },
    Rule { name: "unsafe-list", check: unsafe_list::check },
    Rule { name: "invariants", check: invariants::check },
    Rule { name: "paths", check: paths::check },
    Rule { name: "sync-facade", check: sync_facade::check },
    Rule { name: "hygiene", check: hygiene::check },
    Rule { name: "manifests", check: manifests::check },
    Rule { name: "examples", check: examples::check },
    Rule { name: "mutations", check: mutations::check },
    Rule { name: "prose", check: prose::check },
    Rule { name: "protocols", check: protocols::check },
    Rule { name: "words", check: words::check },
];

/// The violations of a rule.
pub(crate) struct Report {
    rule: &'static str,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, path: &str, line: usize, what: impl Into<String>) {
        self.findings.push(Finding { path: path.to_string(), line, rule: self.rule, what: what.into() });
    }
}

/// Runs `cargo xtask tidy`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if args.invariants {
        print!("{}", invariants::table(&Tree::load(root)?));
        return Ok(());
    }
    check(root, &args.only)
}

/// Checks every rule.
pub(crate) fn run(root: &Path) -> Result<()> {
    check(root, &[])
}

fn check(root: &Path, only: &[String]) -> Result<()> {
    if let Some(name) = only.iter().find(|name| !RULES.iter().any(|rule| rule.name == name.as_str())) {
        bail!("no rule {name}; there are: {}", RULES.map(|rule| rule.name).join(", "));
    }
    let tree = Tree::load(root)?;
    let mut findings = Vec::new();
    for rule in RULES.iter().filter(|rule| only.is_empty() || only.iter().any(|name| name == rule.name)) {
        findings.extend(findings_of(&tree, rule));
    }
    for file in tree.files() {
        if let Some(why) = file.source().and_then(source::Source::unreadable) {
            let what = format!("cannot be read as Rust: {why}");
            findings.push(Finding { path: file.path().to_string(), line: 1, rule: "source", what });
        }
    }
    findings.sort();
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("tidy: {} files, nothing found", tree.files().len());
    Ok(())
}

fn findings_of(tree: &Tree, rule: &Rule) -> Vec<Finding> {
    let mut report = Report { rule: rule.name, findings: Vec::new() };
    (rule.check)(tree, &mut report);
    report.findings
}

/// Writes files for a test of a rule, and returns the violations, as `path:line: what`.
#[cfg(test)]
fn planted(check: fn(&Tree, &mut Report), files: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let tree = Tree::load(dir.path()).unwrap();
    let mut report = Report { rule: "planted", findings: Vec::new() };
    check(&tree, &mut report);
    report.findings.sort();
    report.findings.iter().map(|found| format!("{}:{}: {}", found.path, found.line, found.what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the parts fit together. The state of this tree is checked by `cargo xtask tidy`.
    #[test]
    fn findings_fail_the_check_and_an_unknown_rule_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("notes.md"), "no newline").unwrap();
        let only = |rule: &str| check(dir.path(), &[rule.to_string()]);
        assert!(only("hygiene").unwrap_err().to_string().contains("1 findings"));
        only("unsafe-list").unwrap_err();
        std::fs::write(dir.path().join("notes.md"), "newline\n").unwrap();
        only("hygiene").unwrap();
        assert!(only("no-such-rule").is_err());
    }

    #[test]
    fn rust_that_cannot_be_read_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.rs"), "fn a() {\n").unwrap();
        assert!(check(dir.path(), &["hygiene".to_string()]).is_err());
    }
}
