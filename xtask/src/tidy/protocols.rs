//! Every atomic field belongs to a protocol of `docs/protocols.md`, or is a counter.
//!
//! | part | rule |
//! |---|---|
//! | field | its doc comment, or that of its type, says `Protocol PR-NAME.` or `A counter.` |
//! | protocol | a section `## PR-NAME: ...` that a field names, with both of the next lines |
//! | model | `- Model: PATH`, a file of models; or `- No model: REASON` and `- Tests: PATH` |
//! | weakening | `- Weakening: "NAME"`, an entry of `xtask/mutations.toml` whose tests are models, if there is a model |
//!
//! A static counts as a field. `cargo xtask mutate` shows that the model fails when it is weakened.

use super::Report;
use super::source::{Kind, Source, Token};
use super::tree::{File, Tree};
use crate::mutate::List;
use std::collections::BTreeSet;

const PAGE: &str = "docs/protocols.md";
const LIST: &str = "xtask/mutations.toml";

/// The words of a field from which nothing is concluded: `A counter.`, or for a type `Each is a counter.`
const COUNTER: &str = " counter.";

/// Names of files that only tests build: faults and simulated systems.
const FOR_TESTS: [&str; 3] = ["/broken.rs", "/shim.rs", "/testing.rs"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let protocols = tree.file(PAGE).and_then(File::text).map(sections).unwrap_or_default();
    let mut named = BTreeSet::new();
    for file in tree.files().iter().filter(|file| in_scope(file.path())) {
        let (Some(text), Some(source)) = (file.text(), file.source()) else { continue };
        let lines: Vec<_> = text.lines().collect();
        for field in fields(source) {
            let own = doc_above(&lines, field.line);
            let doc = if says_something(&own) { own } else { doc_above(&lines, field.type_line) };
            if !says_something(&doc) {
                let what = format!("the atomic {} names no protocol, and is no counter", field.name);
                report.add(file.path(), field.line, what);
            }
            for id in ids(&doc) {
                if !protocols.iter().any(|protocol| protocol.id == id) {
                    report.add(file.path(), field.line, format!("{PAGE} has no protocol {id}"));
                }
                named.insert(id.to_string());
            }
        }
    }
    let mutations = tree.file(LIST).and_then(File::text).and_then(|text| List::read(text).ok());
    let mut seen = BTreeSet::new();
    for protocol in &protocols {
        let mut fail = |what: &str| report.add(PAGE, protocol.line, format!("{} {what}", protocol.id));
        if !seen.insert(protocol.id) {
            fail("is there a second time");
        }
        if !named.contains(protocol.id) {
            fail("is named by no atomic field");
        }
        let exists = |path: &str| tree.file(path).is_some();
        match (protocol.model, protocol.no_model, protocol.tests) {
            (Some(path), None, _) if path.contains("/loom") && exists(path) => {}
            (None, Some(reason), Some(path)) if !reason.is_empty() && exists(path) => {}
            _ => fail("has no file of models, and no reason with a file of tests"),
        }
        let entry = protocol.weakening.and_then(|name| {
            mutations.iter().flat_map(|list| &list.mutation).find(|mutation| mutation.name == name)
        });
        match entry {
            None => fail(&format!("has no weakening in {LIST}")),
            Some(entry) if protocol.model.is_some() && !entry.loom => {
                fail("has a weakening that no model tries");
            }
            Some(_) => {}
        }
    }
}

/// Returns true for code that runs outside of tests and models, in the folders that the rule is for.
fn in_scope(path: &str) -> bool {
    let code = ["core/", "process/", "adopt/linux/"].iter().any(|dir| path.starts_with(dir));
    code && path.ends_with(".rs")
        && !["/examples/", "/loom"].iter().any(|part| path.contains(part))
        && !FOR_TESTS.iter().any(|name| path.ends_with(name))
}

/// A section of the page.
struct Protocol<'a> {
    id: &'a str,
    line: usize,
    model: Option<&'a str>,
    no_model: Option<&'a str>,
    tests: Option<&'a str>,
    weakening: Option<&'a str>,
}

fn sections(text: &str) -> Vec<Protocol<'_>> {
    let mut found: Vec<Protocol<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(id) = line.strip_prefix("## ").and_then(|title| ids(title).next()) {
            let (model, no_model, tests, weakening) = (None, None, None, None);
            let line = at + 1;
            found.push(Protocol { id, line, model, no_model, tests, weakening });
        }
        let Some(last) = found.last_mut() else { continue };
        let path = |text: &'static str| line.strip_prefix(text)?.split('`').nth(1);
        last.model = last.model.or(path("- Model: "));
        last.tests = last.tests.or(path("- Tests: "));
        last.no_model = last.no_model.or(line.strip_prefix("- No model: "));
        last.weakening =
            last.weakening.or_else(|| line.strip_prefix("- Weakening: \"")?.trim_end().strip_suffix("\"."));
    }
    found
}

/// Iterates over the words `PR-NAME`.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| {
        let name = word.strip_prefix("PR-").unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase())
    })
}

fn says_something(doc: &str) -> bool {
    ["A", "a"].iter().any(|a| doc.contains(&format!("{a}{COUNTER}")))
        || doc.contains("Protocol ") && ids(doc).next().is_some()
}

/// Returns the doc comment above a line, attributes left out.
fn doc_above(lines: &[&str], line: usize) -> String {
    let above = lines.get(..line.saturating_sub(1)).unwrap_or_default().iter().rev().map(|line| line.trim());
    let near = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
    let mut doc: Vec<_> = near.filter_map(|line| line.strip_prefix("///")).map(str::trim).collect();
    doc.reverse();
    doc.join(" ")
}

/// A field or a static whose type has an atomic.
struct Field {
    name: String,
    line: usize,
    /// The line where its type begins, or its own.
    type_line: usize,
}

/// Returns the fields of every type, and every `static`, that are atomic and compiled outside of tests.
fn fields(source: &Source) -> Vec<Field> {
    let tokens = source.tokens();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(name) = tokens.get(at + 1).and_then(ident) else { continue };
        match ident(token) {
            Some("struct" | "enum" | "union") if !token.test => fields_of(tokens, at, name, &mut found),
            // Not a lifetime.
            Some("static") if !token.test && !follows(tokens, at, '\'') => {
                let ty =
                    tokens[at..].iter().take_while(|token| !matches!(token.kind, Kind::Punct('=' | ';')));
                if ty.filter_map(ident).any(is_atomic) {
                    found.push(Field { name: name.to_string(), line: token.line, type_line: token.line });
                }
            }
            _ => {}
        }
    }
    found
}

/// Adds the atomic fields of the type at a token.
fn fields_of(tokens: &[Token], at: usize, name: &str, found: &mut Vec<Field>) {
    let type_line = tokens[at].line;
    let Some(open) = body(tokens, at) else { return };
    let tuple = matches!(tokens[open].kind, Kind::Open('('));
    // The name and the line of the present field, and the depth of brackets in it.
    let (mut field, mut depth) = ((name, type_line), 0);
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match &token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth -= 1,
            Kind::Ident(word) if depth == 1 && !tuple && is_name(tokens, at) => field = (word, token.line),
            Kind::Ident(word) if is_atomic(word) && !token.test && !is_borrowed(tokens, at) => {
                let (name, line) = field;
                if found.last().is_none_or(|last: &Field| last.line != line || last.name != name) {
                    found.push(Field { name: name.to_string(), line, type_line });
                }
            }
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

/// Returns the bracket that opens the fields of the type at a token, if it has fields.
fn body(tokens: &[Token], at: usize) -> Option<usize> {
    // Brackets in `<F: Fn(u8)>` and after `where` open no fields.
    let (mut angles, mut conditions) = (0, false);
    for (at, token) in tokens.iter().enumerate().skip(at) {
        match &token.kind {
            Kind::Punct('<') => angles += 1,
            Kind::Punct('>') if !follows(tokens, at, '-') => angles -= 1,
            Kind::Ident(word) if word == "where" => conditions = true,
            Kind::Open('{') if angles == 0 => return Some(at),
            Kind::Open('(') if angles == 0 && !conditions => return Some(at),
            Kind::Punct(';') if angles == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Returns true for `name:` that is not part of a path.
fn is_name(tokens: &[Token], at: usize) -> bool {
    let colon = |at: usize| matches!(tokens.get(at).map(|token| &token.kind), Some(Kind::Punct(':')));
    colon(at + 1) && !colon(at + 2) && !colon(at.wrapping_sub(1))
}

/// Returns true for the type in `&'a AtomicU64`: its owner names the protocol.
fn is_borrowed(tokens: &[Token], at: usize) -> bool {
    follows(tokens, at, '&') || follows(tokens, at - 1, '\'') && follows(tokens, at - 2, '&')
}

/// Returns true if the token before one is this character.
fn follows(tokens: &[Token], at: usize, sign: char) -> bool {
    at > 0 && matches!(tokens[at - 1].kind, Kind::Punct(found) if found == sign)
}

fn ident(token: &Token) -> Option<&str> {
    if let Kind::Ident(word) = &token.kind { Some(word) } else { None }
}

/// Returns true for `AtomicU64`, `AtomicRef` and the like.
fn is_atomic(word: &str) -> bool {
    word.strip_prefix("Atomic").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const CODE: &str = "core/va-x/src/a.rs";
    const RIGHT: &str =
        "# Protocols\n\n## PR-X: x\n\n- Model: `core/va-x/src/loom/x.rs`.\n- Weakening: \"x\".\n";
    const FIELD: &str = "struct A {\n    /// Protocol PR-X.\n    a: AtomicU64,\n}\n";

    fn found(code: &str, page: &str, loom: bool) -> Vec<String> {
        let mutation = format!(
            "[[mutation]]\nname = \"x\"\nfile = \"a\"\nfind = \"a\"\nreplace = \"b\"\ntest = []\nloom = {loom}\n"
        );
        let model = ("core/va-x/src/loom/x.rs", "struct M { a: AtomicU64 }\n");
        planted(check, &[(CODE, code), (PAGE, page), (LIST, &mutation), model])
    }

    fn in_code(code: &str) -> Vec<String> {
        found(&format!("{code}{FIELD}"), RIGHT, true)
    }

    #[test]
    fn an_atomic_without_a_protocol_is_found_wherever_it_stands() {
        for (code, line, name) in [
            (
                "struct B {\n    a: u8,\n    /// Some number.\n    b: CachePadded<[AtomicU64; 2]>,\n}\n",
                4,
                "b",
            ),
            ("pub(super) struct B([AtomicRef<T>; 2]);\n", 1, "B"),
            (
                "struct B<T: core::fmt::Debug> where T: Copy {\n    pub(crate) b: Box<AtomicBool>,\n}\n",
                2,
                "b",
            ),
            ("struct B<F: Fn(u8) -> u8, const N: usize> where F: Fn(u8) {\n    b: AtomicBool,\n}\n", 2, "b"),
            ("enum B {\n    C(u8),\n    D { b: AtomicU8 },\n}\n", 1, "B"),
            ("fn b() {\n    static B: [AtomicU8; 2] = C;\n}\n", 2, "B"),
            ("/// No PR-X here, since the word before it lacks.\nstatic B: AtomicU8 = C;\n", 2, "B"),
        ] {
            let what = format!("{CODE}:{line}: the atomic {name} names no protocol, and is no counter");
            assert_eq!(in_code(code), [what], "{code}");
        }
    }

    #[test]
    fn a_protocol_a_counter_or_a_word_of_the_type_is_enough() {
        for code in [
            "/// Calls. A counter.\n#[inline]\nstatic B: AtomicU8 = C;\n",
            "struct B {\n    /// Things. Protocol PR-X.\n    #[doc(hidden)]\n    pub b: AtomicU8,\n}\n",
            "/// Numbers. Each is a counter.\nstruct B {\n    b: AtomicU8,\n    c: AtomicU8,\n}\n",
            "/// Protocol PR-X.\nstruct B(AtomicU8);\n",
            "#[cfg(test)]\nmod t { struct B { b: AtomicU8 } static B: AtomicU8 = C; }\n",
            "fn b(b: &AtomicU8) -> Atomic { let b = AtomicU8::new(0); Struct { b: AtomicU8::new(1) } }\n",
            "struct B<'a> {\n    b: &'a AtomicU8,\n    c: &AtomicU8,\n}\n",
            "fn b() -> &'static AtomicU8 { let b: &'static AtomicU8 = c; }\n",
            "struct B;\nfn b(b: AtomicU8) {}\n",
        ] {
            assert!(in_code(code).is_empty(), "{code}: {:?}", in_code(code));
        }
    }

    #[test]
    fn a_protocol_that_is_not_on_the_page_is_found() {
        let code = FIELD.replace("PR-X", "PR-Y");
        let wrong = [
            format!("{CODE}:3: {PAGE} has no protocol PR-Y"),
            format!("{PAGE}:3: PR-X is named by no atomic field"),
        ];
        assert_eq!(found(&code, RIGHT, true), wrong);
    }

    #[test]
    fn a_protocol_needs_a_model_that_exists_and_a_weakening_of_it() {
        assert!(found(FIELD, RIGHT, true).is_empty());
        let at = format!("{PAGE}:3: PR-X");
        let model = format!("{at} has no file of models, and no reason with a file of tests");
        let weakening = format!("{at} has no weakening in {LIST}");
        for (from, to, what) in [
            ("- Model", "- Mode", &model),
            ("loom/x.rs", "loom/y.rs", &model),
            ("core/va-x/src/loom/x.rs", CODE, &model),
            ("- Model", "- No model: it is hard.\n- Test", &model),
            ("- Weakening", "- Strength", &weakening),
            ("\"x\"", "\"y\"", &weakening),
        ] {
            assert_eq!(found(FIELD, &RIGHT.replace(from, to), true), [what.as_str()], "{from}");
        }
        assert_eq!(found(FIELD, RIGHT, false), [format!("{at} has a weakening that no model tries")]);
        let twice = format!("{RIGHT}{}", RIGHT.replace("# Protocols\n\n", "\n"));
        assert_eq!(found(FIELD, &twice, true), [format!("{PAGE}:8: PR-X is there a second time")]);
    }

    #[test]
    fn a_reason_and_tests_stand_for_a_model() {
        let reason = "- No model: loom has no signals.\n- Tests: `core/va-x/src/a.rs`.";
        let page = RIGHT.replace("- Model: `core/va-x/src/loom/x.rs`.", reason);
        assert!(found(FIELD, &page, false).is_empty(), "{:?}", found(FIELD, &page, false));
        assert_eq!(found(FIELD, &page.replace("- Weakening", "- No weakening"), false).len(), 1);
    }
}
