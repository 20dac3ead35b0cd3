//! Atomics come from one module: `va_base::sync`, which has the machine's or loom's.

use super::Report;
use super::heads::core_crate;
use super::source::{Kind, Token};
use super::tree::Tree;

/// The path of that module.
const FACADE: &str = "core/va-base/src/sync.rs";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        // va-sim has threads of its own, which contend with the others.
        if core_crate(file.path()).is_none_or(|name| name == "va-sim") || file.path() == FACADE {
            continue;
        }
        let Some(source) = file.source() else { continue };
        let tokens: Vec<_> = source.tokens().iter().filter(|token| !token.test).collect();
        for (line, path) in paths(&tokens) {
            let hit = match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["core", "sync", ..] | ["std", "sync", "atomic" | "*", ..] => true,
                // `use std::sync;` imports everything.
                ["std", "sync"] | ["loom", _, ..] => true,
                _ => false,
            };
            if hit {
                report.add(file.path(), line, format!("{} is to come from va_base::sync", path.join("::")));
            }
        }
    }
}

/// Returns every path `a::b::c`, those of `use a::{b::c, d}` written out.
pub(super) fn paths(tokens: &[&Token]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = match &tokens[at].kind {
            Kind::Ident(_) => path(tokens, at, &[], &mut found),
            _ => at + 1,
        };
    }
    found
}

/// Reads the path that begins at `at` and continues `before`. Returns its end.
fn path(tokens: &[&Token], mut at: usize, before: &[String], found: &mut Vec<(usize, Vec<String>)>) -> usize {
    let mut path = before.to_vec();
    let line = tokens[at].line;
    loop {
        match tokens.get(at).map(|token| &token.kind) {
            Some(Kind::Ident(word)) => path.push(word.clone()),
            Some(Kind::Punct('*')) => path.push("*".to_string()),
            Some(Kind::Open('{')) if !path.is_empty() => {
                at += 1;
                while let Some(token) = tokens.get(at) {
                    match token.kind {
                        Kind::Close('}') => return at + 1,
                        Kind::Ident(_) | Kind::Punct('*') => at = self::path(tokens, at, &path, found),
                        _ => at += 1,
                    }
                }
                return at;
            }
            _ => return at,
        }
        at += 1;
        let colons = |from: usize| {
            let colon = |at: usize| matches!(tokens.get(at).map(|token| &token.kind), Some(Kind::Punct(':')));
            colon(from) && colon(from + 1)
        };
        if !colons(at) {
            found.push((line, path));
            return at;
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    fn found(text: &str) -> Vec<String> {
        planted(check, &[("core/va-x/src/a.rs", text)])
    }

    #[test]
    fn atomics_from_elsewhere_are_found_however_they_are_named() {
        for text in [
            "use core::sync::atomic::AtomicU64;\n",
            "use core::{fmt, sync::atomic::{AtomicU64, Ordering}};\n",
            "fn a() { let a = ::core::sync::atomic::AtomicU64::new(1); }\n",
            "use std::{sync::{Arc, atomic::*}};\n",
            "use std::sync::*;\n",
            "use loom::sync::atomic::AtomicU8;\n",
        ] {
            assert!(!found(text).is_empty(), "{text}");
        }
        assert_eq!(
            found("\nuse core::sync;\n"),
            ["core/va-x/src/a.rs:2: core::sync is to come from va_base::sync"]
        );
    }

    #[test]
    fn the_door_itself_tests_and_other_names_are_fine() {
        for text in [
            "use va_base::sync::atomic::AtomicU64;\n",
            "use crate::sync;\nfn sync() { core::mem::swap(); }\n",
            "#[cfg(test)]\nmod tests { use std::sync::atomic::AtomicU64; }\n",
            "use std::sync::Arc;\n",
            "match core { a::b { sync } => 1 }\n",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
        assert!(planted(check, &[(FACADE, "pub use core::sync::atomic;\n")]).is_empty());
        assert!(planted(check, &[("lab/vmlab/src/a.rs", "use std::sync::atomic;\n")]).is_empty());
    }
}
