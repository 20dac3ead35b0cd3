//! The faults that cargo-mutants finds, in the order in which they are tried.

use super::{SEED, Subject};
use crate::sh::Cmd;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A place in a file: line and column from one, columns in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Debug)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Debug)]
pub(super) struct Span {
    pub(super) start: Place,
    pub(super) end: Place,
}

/// The function that has a fault.
#[derive(Clone, Deserialize, Debug)]
pub(super) struct Function {
    return_type: String,
    /// From its comments to its closing brace.
    pub(super) span: Span,
}

/// A fault, as cargo-mutants lists it.
#[derive(Clone, Deserialize, Debug)]
pub(super) struct Mutant {
    name: String,
    pub(super) file: String,
    pub(super) function: Option<Function>,
    pub(super) span: Span,
    pub(super) replacement: String,
    /// The name without line and column, numbered where several have it.
    #[serde(skip)]
    pub(super) id: String,
    /// True if the compiler may evaluate the function, where no fault is selected.
    #[serde(skip)]
    pub(super) is_const: bool,
    /// The place in the order, from one.
    #[serde(skip)]
    pub(super) number: u32,
}

impl Mutant {
    /// Returns true if the function's body may be a choice: its type has a name.
    pub(super) fn can_be_woven(&self) -> bool {
        self.function.as_ref().is_some_and(|function| !function.return_type.contains("impl "))
    }
}

/// Returns the faults of a subject in their order.
pub(super) fn read(tree: &Path, subject: &Subject) -> Result<Vec<Mutant>> {
    let files = subject.files.into_iter().flat_map(|files| ["-f", files]);
    let text =
        Cmd::cargo(tree).args(["mutants", "--list", "--json", "-p", subject.package]).args(files).read()?;
    let mut mutants: Vec<Mutant> =
        serde_json::from_str(&text).context("cargo-mutants lists what cannot be read")?;
    let mut files = BTreeMap::new();
    for mutant in &mut mutants {
        let Some(function) = &mutant.function else { continue };
        if !files.contains_key(&mutant.file) {
            files.insert(mutant.file.clone(), fs::read_to_string(tree.join(&mutant.file))?);
        }
        mutant.is_const = is_const(&files[&mutant.file], function.span);
    }
    Ok(ordered(mutants))
}

/// Returns true if one of the function's first lines, which may be comments and attributes, declares a `const fn`.
fn is_const(text: &str, function: Span) -> bool {
    let (first, last) = (function.start.line, function.end.line);
    let lines = text.lines().skip(first - 1).take(last + 1 - first).map(str::trim_start);
    let mut code = lines.filter(|line| !line.starts_with("//") && !line.starts_with('#'));
    code.find(|line| line.contains("fn ")).is_some_and(|line| line.contains("const fn "))
}

fn ordered(mut mutants: Vec<Mutant>) -> Vec<Mutant> {
    let mut named = BTreeMap::<_, u32>::new();
    for mutant in &mut mutants {
        let (_, change) = mutant.name.split_once(": ").unwrap_or_default();
        let name = format!("{}: {change}", mutant.file);
        let nth = named.entry(name.clone()).or_default();
        *nth += 1;
        mutant.id = if *nth == 1 { name } else { format!("{name} #{nth}") };
    }
    mutants.sort_by_cached_key(|mutant| crc32fast::hash(format!("{SEED} {}", mutant.id).as_bytes()));
    for (mutant, number) in mutants.iter_mut().zip(1..) {
        mutant.number = number;
    }
    mutants
}

/// Returns a fault for tests: `text` in place of a part of the function at `function`.
#[cfg(test)]
pub(super) fn planted(number: u32, function: Span, span: Span, text: &str) -> Mutant {
    let function = Some(Function { return_type: String::new(), span: function });
    let (name, file, replacement) = (format!("a.rs:1:1: {number}"), "a.rs".to_string(), text.to_string());
    Mutant { id: name.clone(), name, file, function, span, replacement, is_const: false, number }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<Mutant> {
        let place = Place { line: 1, column: 1 };
        let span = Span { start: place, end: place };
        let mutants =
            names.iter().map(|name| Mutant { name: (*name).to_string(), ..planted(0, span, span, "") });
        ordered(mutants.collect())
    }

    #[test]
    fn functions_that_the_compiler_evaluates_are_known() {
        let text = "/// A const fn.\n#[inline]\npub(crate) const fn f() {\n}\n/// A const fn.\nfn g() {\n  const fn h() {}\n}\n";
        let lines = |first, last| {
            let place = |line| Place { line, column: 1 };
            is_const(text, Span { start: place(first), end: place(last) })
        };
        assert_eq!((lines(1, 4), lines(5, 8)), (true, false));
    }

    #[test]
    fn the_order_does_not_depend_on_lines() {
        let ids = |mutants: Vec<Mutant>| mutants.into_iter().map(|mutant| mutant.id).collect::<Vec<_>>();
        let before = ids(listed(&["a.rs:1:2: + with -", "a.rs:3:4: + with -", "a.rs:5:1: f -> A with B::c"]));
        let after = ids(listed(&["a.rs:2:2: + with -", "a.rs:3:9: + with -", "a.rs:8:1: f -> A with B::c"]));
        assert_eq!(before, after);
        for id in ["a.rs: + with -", "a.rs: + with - #2", "a.rs: f -> A with B::c"] {
            assert!(before.iter().any(|known| known == id), "{before:?}");
        }
    }
}
