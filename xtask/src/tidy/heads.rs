//! The core forbids `unsafe`, and needs neither `std` nor `alloc` outside tests, unless a crate asks for the heap.
//! Of the laboratory, `vmlab` alone prints and reads arguments.

use super::Report;
use super::source::{Kind, Source, Token};
use super::tree::Tree;

/// Crates of the core that serve tests and may use `std`.
const STD: [&str; 3] = ["va-certify", "va-corpus", "va-sim"];
/// Named like the core because it exposes it, but a library for C programs around it.
const GLUE: &str = "va-peer";

/// The module over the global allocator, and the attribute without which it would always be compiled.
const HEAP: (&str, &str) = ("core/va-base/src/heap.rs", "cfg(any(feature=\"alloc\",test))");

/// The head of the libraries of the laboratory.
const SILENT: &str = "deny(clippy::print_stdout,clippy::print_stderr)";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    core(tree, report);
    laboratory(tree, report);
}

fn core(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(name) = core_crate(file.path()) else { continue };
        let Some(source) = file.source() else { continue };
        let std = STD.contains(&name);
        if file.path().ends_with("/src/lib.rs") {
            let mut demand = |attribute: &str| {
                if !source.inner_attributes().iter().any(|found| found == attribute) {
                    report.add(file.path(), 1, format!("lacks #![{attribute}]"));
                }
            };
            demand("forbid(unsafe_code)");
            if !std {
                demand("no_std");
            }
        }
        if !std {
            for (line, name) in extern_crates(source) {
                let is_gated = || source.inner_attributes().iter().any(|found| found == HEAP.1);
                if name == "alloc" && file.path() == HEAP.0 && is_gated() {
                    continue;
                }
                report.add(file.path(), line, format!("extern crate {name} outside tests"));
            }
        }
    }
}

fn laboratory(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(rest) = file.path().strip_prefix("lab/") else { continue };
        let Some((name, rest)) = rest.split_once('/') else { continue };
        if name == "vmlab" || !rest.starts_with("src/") {
            continue;
        }
        let Some(source) = file.source() else { continue };
        if rest == "src/lib.rs" && !source.inner_attributes().iter().any(|found| found == SILENT) {
            report.add(file.path(), 1, format!("lacks #![{SILENT}]"));
        }
        for line in arguments(source) {
            report.add(file.path(), line, "reads arguments: the command line passes what it needs");
        }
    }
}

/// Returns the lines with `env::args` or `env::args_os` outside tests.
fn arguments(source: &Source) -> Vec<usize> {
    let word = |token: &Token, words: &[&str]| matches!(&token.kind, Kind::Ident(found) if words.contains(&found.as_str()));
    let is_read =
        |four: &&[Token]| word(&four[0], &["env"]) && word(&four[3], &["args", "args_os"]) && !four[3].test;
    source.tokens().windows(4).filter(is_read).map(|four| four[0].line).collect()
}

/// Returns `va-tree` of `core/va-tree/src/...`.
pub(crate) fn core_crate(path: &str) -> Option<&str> {
    let (name, rest) = crate::in_crate(path)?;
    (name.starts_with("va-") && name != GLUE && rest.starts_with("src/")).then_some(name)
}

/// Returns `extern crate alloc` and `extern crate std` that are compiled outside tests.
fn extern_crates(source: &Source) -> Vec<(usize, &str)> {
    let word = |token: &Token, word: &str| matches!(&token.kind, Kind::Ident(found) if found == word);
    let mut found = Vec::new();
    for three in source.tokens().windows(3) {
        if let [first, second, Token { kind: Kind::Ident(name), line, test: false }] = three
            && word(first, "extern")
            && word(second, "crate")
            && (name == "alloc" || name == "std")
        {
            found.push((*line, name.as_str()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn a_head_without_its_promises_is_found() {
        let good = "//! Words.\n#![no_std]\n#![forbid(unsafe_code)]\n#[cfg(test)]\nextern crate std;\n";
        assert!(planted(check, &[("core/va-x/src/lib.rs", good)]).is_empty());
        assert!(planted(check, &[("check/va-sim/src/lib.rs", "#![forbid(unsafe_code)]\n")]).is_empty());
        assert!(planted(check, &[("check/va-peer/src/lib.rs", "")]).is_empty());
        assert!(planted(check, &[("core/other/src/lib.rs", "")]).is_empty());
        let bad = "//! #![no_std]\n#![deny(unsafe_code)]\n#![cfg_attr(not(test), no_std)]\n";
        assert_eq!(
            planted(check, &[("core/va-x/src/lib.rs", bad)]),
            [
                "core/va-x/src/lib.rs:1: lacks #![forbid(unsafe_code)]",
                "core/va-x/src/lib.rs:1: lacks #![no_std]"
            ]
        );
    }

    #[test]
    fn the_laboratory_prints_and_reads_arguments_in_the_command_alone() {
        let head = format!("#![{SILENT}]\n");
        let read = "fn a() { std::env::args(); }\n#[cfg(test)]\nmod tests { fn b() { env::args_os(); } }\n";
        assert!(
            planted(check, &[("lab/vmlab/src/lib.rs", read), ("lab/vmlab-x/src/lib.rs", &head)]).is_empty()
        );
        assert_eq!(
            planted(check, &[("lab/vmlab-x/src/lib.rs", "mod a;\n"), ("lab/vmlab-x/src/a.rs", read)]),
            [
                "lab/vmlab-x/src/a.rs:1: reads arguments: the command line passes what it needs".to_string(),
                format!("lab/vmlab-x/src/lib.rs:1: lacks #![{SILENT}]")
            ]
        );
    }

    #[test]
    fn alloc_is_for_tests_only() {
        let text = "mod a;\nextern crate alloc;\n#[cfg(test)]\nmod tests { extern crate alloc; }\n";
        let found = planted(check, &[("core/va-x/src/deep/file.rs", text)]);
        assert_eq!(found, ["core/va-x/src/deep/file.rs:2: extern crate alloc outside tests"]);
    }

    #[test]
    fn the_heap_has_alloc_behind_its_feature_alone() {
        let gate = "#![cfg(any(feature = \"alloc\", test))]\n";
        let of = |path: &str, text: &str| planted(check, &[(path, text)]).len();
        assert_eq!(of(HEAP.0, &format!("//! Heap.\n{gate}extern crate alloc;\n")), 0);
        assert_eq!(of(HEAP.0, "//! Heap.\nextern crate alloc;\n"), 1);
        assert_eq!(of(HEAP.0, &format!("{gate}extern crate std;\n")), 1);
        assert_eq!(of("core/va-base/src/units.rs", &format!("{gate}extern crate alloc;\n")), 1);
    }
}
