//! Each entry of `xtask/mutations.toml` applies to its file: the text is there exactly once, and is replaced by
//! another. There is a test of the name that selects its tests.
//!
//! `cargo xtask mutate` takes long, and is not part of CI. Without this rule an entry would outlive the line that it
//! replaces, or its test.

use super::Report;
use super::source::Source;
use super::tree::{File, Tree};
use crate::mutate::{List, apply};
use std::collections::BTreeSet;

const LIST: &str = "xtask/mutations.toml";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let Some(text) = tree.file(LIST).and_then(|file| file.text()) else { return };
    let list = match List::read(text) {
        Ok(list) => list,
        Err(error) => return report.add(LIST, 1, format!("cannot be read: {}", error.message())),
    };
    let mut names = BTreeSet::new();
    let sources = || tree.files().iter().filter_map(File::source);
    for mutation in &list.mutation {
        let entry = format!("name = {:?}", mutation.name);
        let line = text.lines().position(|line| line == entry).map_or(1, |at| at + 1);
        if !names.insert(&mutation.name) {
            report.add(LIST, line, format!("a second entry is named {:?}", mutation.name));
        }
        match tree.file(&mutation.file).and_then(|file| file.text()) {
            None => report.add(LIST, line, format!("there is no file {}", mutation.file)),
            Some(text) => {
                if let Err(why) = apply(text, mutation) {
                    report.add(LIST, line, format!("{why}: {}", mutation.file));
                }
            }
        }
        if let Some(test) = mutation.test.last()
            && let part = test.rsplit("::").next().unwrap_or(test)
            && !sources().flat_map(Source::tests).any(|known| known.name.contains(part))
        {
            report.add(LIST, line, format!("no test is named {test}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn found(entries: &str) -> Vec<String> {
        planted(
            check,
            &[("xtask/mutations.toml", entries), ("src/a.rs", "#[test]\nfn a() { b() + b() - c() }\n")],
        )
    }

    fn entry(name: &str, file: &str, find: &str, replace: &str) -> String {
        tested(name, file, find, replace, "--lib\", \"m::a")
    }

    fn tested(name: &str, file: &str, find: &str, replace: &str, test: &str) -> String {
        format!(
            "[[mutation]]\nname = {name:?}\nfile = {file:?}\nfind = {find:?}\nreplace = {replace:?}\ntest = [\"{test}\"]\n"
        )
    }

    #[test]
    fn an_entry_that_no_longer_applies_is_found() {
        let right = entry("right", "src/a.rs", "c()", "d()");
        assert!(found(&right).is_empty());
        let at = "xtask/mutations.toml";
        for (wrong, what) in [
            (entry("gone", "src/a.rs", "d()", "c()"), "its text stands in the file 0 times: src/a.rs"),
            (entry("twice", "src/a.rs", "b()", "d()"), "its text stands in the file 2 times: src/a.rs"),
            (entry("same", "src/a.rs", "c()", "c()"), "it changes nothing: src/a.rs"),
            (entry("file", "src/b.rs", "c()", "d()"), "there is no file src/b.rs"),
            (tested("test", "src/a.rs", "c()", "d()", "m::b"), "no test is named m::b"),
            (entry("right", "src/a.rs", "b() -", "b() +"), "a second entry is named \"right\""),
        ] {
            // Of two entries with one name, the first is reported.
            let line = if what.starts_with("a second") { 2 } else { 8 };
            assert_eq!(found(&format!("{right}{wrong}")), [format!("{at}:{line}: {what}")]);
        }
        assert!(found("[[mutation]]\nname = 3\n")[0].starts_with(&format!("{at}:1: cannot be read")));
    }

    #[test]
    fn a_tree_without_mutations_is_none_of_its_business() {
        assert!(planted(check, &[("src/a.rs", "fn a() {}\n")]).is_empty());
    }
}
