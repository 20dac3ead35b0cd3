//! Every invariant has a statement, a check and a test, and every named id has a statement.
//!
//! | part | rule |
//! |---|---|
//! | statement | a line `- **FT1 sorted** ...` in a module head, in ARCHITECTURE.md or in `docs/` |
//! | check | in code that is not for tests: the literal `"FT1"` (the rule of an `InvariantViolation`), an assertion or a panic that names it, or a comment `Checks FT1`. `Checks FT1 to FT4` counts for each. |
//! | test | a `#[test]` with `ft1` among the words of its name, or with `FT1` in its body |

use super::Report;
use super::source::{Kind, Source, Token};
use super::tree::{File, Tree};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Words that look like ids.
const NO_IDS: [&str; 15] = [
    "ARM64", "AVX2", "BMI1", "BMI2", "CRC32", "FNV1", "LOG2", "LZ4", "MD5", "SHA1", "SSE2", "SSE4", "UTF16",
    "UTF32", "UTF8",
];

type Place = (String, usize);

/// The files and lines where one id is stated, checked, tested and named.
#[derive(Default)]
struct Entry {
    stated: Vec<Place>,
    checked: Vec<Place>,
    tested: Vec<Place>,
    named: Vec<Place>,
}

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for (id, entry) in collect(tree) {
        let Some((path, line)) = entry.stated.first() else {
            if let Some((path, line)) = entry.named.first() {
                report.add(path, *line, format!("{id} is named and nowhere stated"));
            }
            continue;
        };
        for (path, line) in entry.stated.iter().skip(1) {
            report.add(path, *line, format!("{id} is stated a second time"));
        }
        if entry.checked.is_empty() {
            report.add(path, *line, format!("{id} has no check"));
        }
        if entry.tested.is_empty() {
            report.add(path, *line, format!("{id} has no test"));
        }
    }
}

/// Returns a line for each id: where it is stated, checked and tested.
pub(crate) fn table(tree: &Tree) -> String {
    let mut text = String::new();
    for (id, entry) in collect(tree) {
        let shown = |places: &[Place]| match places {
            [] => "-".to_string(),
            [(path, line)] => format!("{path}:{line}"),
            [(path, line), rest @ ..] => format!("{path}:{line} (+{})", rest.len()),
        };
        let (stated, checked, tested) = (shown(&entry.stated), shown(&entry.checked), shown(&entry.tested));
        let _ = writeln!(text, "{id}\n  stated   {stated}\n  checked  {checked}\n  tested   {tested}");
    }
    text
}

fn collect(tree: &Tree) -> BTreeMap<String, Entry> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for file in tree.files().iter().filter(|file| in_scope(file.path())) {
        let Some(text) = file.text() else { continue };
        let mut add = |id: &str, line: usize, part: fn(&mut Entry) -> &mut Vec<Place>| {
            part(entries.entry(id.to_string()).or_default()).push((file.path().to_string(), line));
        };
        for (at, line) in text.lines().enumerate() {
            if let Some(id) = statement(file.path(), line) {
                add(id, at + 1, |entry| &mut entry.stated);
            }
            ids(line).for_each(|id| add(id, at + 1, |entry| &mut entry.named));
        }
        if let Some(source) = file.source() {
            checks(source, |id, line| add(id, line, |entry| &mut entry.checked));
            tests(file, source, |id, line| add(id, line, |entry| &mut entry.tested));
        }
    }
    entries
}

/// Returns true for code and texts about it: not for measurements, and not for the rules' own tests.
fn in_scope(path: &str) -> bool {
    let code = crate::in_crate(path).is_some()
        || ["fuzz/fuzz_targets/", "adopt/"].iter().any(|dir| path.starts_with(dir));
    code && path.ends_with(".rs")
        || path.ends_with(".md") && !path.starts_with("results/") && path != "CHANGELOG.md"
}

/// Returns the id in `- **FT1 name** ...`, in a head or in a page.
fn statement<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let line = line.trim();
    let text = if path.ends_with(".rs") { line.strip_prefix("//!")?.trim() } else { line };
    let name = text.strip_prefix("- **")?;
    ids(name).next().filter(|id| name.starts_with(id))
}

/// Iterates over words of two or three capitals and one or two digits.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| {
        let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        let letters = word.len() - digits.len();
        matches!(letters, 2 | 3)
            && matches!(digits.len(), 1 | 2)
            && digits.bytes().all(|c| c.is_ascii_digit())
            && !NO_IDS.contains(word)
    })
}

/// Returns the same, with those that `FT1 to FT4`, `FT1-FT4` and `FT1..FT4` leave out.
fn ids_and_ranges(text: &str) -> Vec<String> {
    let parts = |id: &str| {
        let digits = id.trim_start_matches(|c: char| c.is_ascii_uppercase());
        (id[..id.len() - digits.len()].to_string(), digits.parse::<u32>().unwrap_or(0))
    };
    let mut found: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(id) = ids(rest).next() {
        let at = rest.find(id).unwrap_or(0);
        let between = rest[..at].trim();
        let (family, number) = parts(id);
        if let Some((before, from)) = found.last().map(|last| parts(last))
            && before == family
            && matches!(between, "to" | "-" | "–" | ".." | "..=")
        {
            found.extend((from + 1..number).map(|number| format!("{family}{number}")));
        }
        found.push(id.to_string());
        rest = &rest[at + id.len()..];
    }
    found
}

/// Macros with a text that names the checked invariant.
const ASSERTIONS: [&str; 9] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "panic",
    "unreachable",
    "format_args",
];

fn checks(source: &Source, mut add: impl FnMut(&str, usize)) {
    let tokens = source.tokens();
    // The token at which an assertion ends.
    let mut assertion_end = 0;
    for (at, token) in tokens.iter().enumerate() {
        match &token.kind {
            _ if token.test => {}
            Kind::Ident(word) if ASSERTIONS.contains(&word.as_str()) && is_macro(tokens, at) => {
                assertion_end = assertion_end.max(closing(tokens, at + 2));
            }
            Kind::Literal(text) => {
                let inside = text.trim_matches('"');
                if ids(inside).next() == Some(inside) {
                    add(inside, token.line);
                } else if at < assertion_end {
                    ids(text).for_each(|id| add(id, token.line));
                }
            }
            _ => {}
        }
    }
    for (line, text) in source.comments() {
        let in_test = tokens.iter().find(|token| token.line >= *line).is_some_and(|token| token.test);
        if let (false, Some((_, after))) = (in_test, text.split_once("Checks ")) {
            // Up to the end of the sentence: later ones may name other ids.
            let sentence = after.split(". ").next().unwrap_or(after);
            ids_and_ranges(sentence).iter().for_each(|id| add(id, *line));
        }
    }
}

fn is_macro(tokens: &[Token], at: usize) -> bool {
    matches!(tokens.get(at + 1).map(|token| &token.kind), Some(Kind::Punct('!')))
        && matches!(tokens.get(at + 2).map(|token| &token.kind), Some(Kind::Open(_)))
}

/// Returns the token that closes the bracket at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

fn tests(file: &File, source: &Source, mut add: impl FnMut(&str, usize)) {
    let lines: Vec<_> = file.text().unwrap_or_default().lines().collect();
    for test in source.tests() {
        let (first, last) = test.lines;
        for word in test.name.split('_') {
            let word = word.to_ascii_uppercase();
            ids(&word).for_each(|id| add(id, first));
        }
        for line in lines.iter().take(last).skip(first) {
            ids(line).for_each(|id| add(id, first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const HEAD: &str = "//! # Invariants\n//! - **FT1 sorted** holes are in order.\n";

    fn found(code: &str) -> Vec<String> {
        planted(check, &[("core/va-x/src/a.rs", &format!("{HEAD}{code}"))])
    }

    #[test]
    fn an_invariant_with_all_three_parts_is_fine() {
        let test = "#[cfg(test)]\nmod tests {\n#[test]\nfn ft1_holds() {}\n}\n";
        for check in [
            "fn a() { b(InvariantViolation { rule: \"FT1\" }); }\n",
            "fn a() { assert!(b, \"FT1: {b}\"); }\n",
            "const _: () = const { assert!(1 < 2, \"FT1 needs it\") };\n",
            "/// Checks FT1 with a walk.\nfn a() {}\n",
        ] {
            assert!(found(&format!("{check}{test}")).is_empty(), "{check}");
        }
        let by_body = "// Checks FT1.\nfn a() {}\n#[test]\nfn b() {\n    assert_eq!(c, \"FT1\");\n}\n";
        assert!(found(by_body).is_empty());
    }

    #[test]
    fn what_is_missing_is_found() {
        let (no_check, no_test) =
            ("core/va-x/src/a.rs:2: FT1 has no check", "core/va-x/src/a.rs:2: FT1 has no test");
        assert_eq!(found(""), [no_check, no_test]);
        assert_eq!(found("// Checks FT1.\nfn a() {}\n"), [no_test]);
        assert_eq!(found("#[test]\nfn ft1_holds() {}\n"), [no_check]);
        // A check in a test is no check, and another id's test is no test.
        let in_test = "#[cfg(test)]\nmod tests {\n// Checks FT1.\nfn a() { assert!(b, \"FT1\"); }\n}\n";
        assert_eq!(found(in_test), [no_check, no_test]);
        assert_eq!(found("// Checks FT1.\nfn a() {}\n#[test]\nfn ft12_holds() {}\n"), [no_test]);
        // Nor is a mention.
        assert_eq!(found("// See FT1.\nfn a() { b(\"about FT1\"); }\n"), [no_check, no_test]);
    }

    #[test]
    fn an_id_that_is_nowhere_stated_is_found() {
        let named = [("docs/x.md", "Because of\nRB7 and AVX2.\n")];
        assert_eq!(planted(check, &named), ["docs/x.md:2: RB7 is named and nowhere stated"]);
        let twice = [("docs/x.md", "- **RB7 a** b\n- **RB7 c** d\n")];
        assert!(planted(check, &twice).contains(&"docs/x.md:2: RB7 is stated a second time".to_string()));
    }

    #[test]
    fn ranges_name_what_lies_between() {
        assert_eq!(
            ids_and_ranges("FT1 to FT3, SL1 and RB2-RB4"),
            ["FT1", "FT2", "FT3", "SL1", "RB2", "RB3", "RB4"]
        );
        assert_eq!(ids_and_ranges("FT1–FT3"), ["FT1", "FT2", "FT3"]);
        assert_eq!(ids("ABFT1 FT1a F1 FT123 ABCD1 FT_1 ft1").count(), 0);
    }
}
