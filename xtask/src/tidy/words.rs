//! The words that this project has replaced: none is used again, in pages, comments, messages or identifiers.
//!
//! A finding names the word to use. `docs/glossary.md` defines the words that Linux does not have.

use super::Report;
use super::prose::{blocks, is_page};
use super::source::Kind;
use super::tree::{File, Tree};

/// Phrases without a clear agent or meaning, behind the words to use instead. Each is in lower case, and is searched as
/// whole words: in text outside code, and in all of a Rust file.
const PHRASES: [(&str, &[&str]); 18] = [
    ("a word for what fails", &["absurd", "hopeless"]),
    (
        "alloc, free, release or move",
        &[
            "gave back",
            "gave out",
            "give back",
            "give out",
            "given back",
            "given out",
            "gives back",
            "gives out",
            "giving back",
            "giving out",
            "hand back",
            "hand out",
            "hand over",
            "handed back",
            "handed out",
            "handed over",
            "handing out",
            "handing over",
            "hands out",
            "hands over",
            "take back",
            "taken back",
            "takes back",
            "taking back",
            "took back",
        ],
    ),
    ("alloc_meta or free_meta", &["lend", "lending", "lends", "lent"]),
    ("application, upstream test suite or unmodified program", &["makers' tests", "programs as they are"]),
    ("CPU time", &["processor time"]),
    ("drop", &["abandon", "abandons", "bury", "forgive"]),
    ("fail, failure", &["refusal", "refusals", "refuse", "refused", "refuses", "refusing"]),
    ("flush batch", &["on board"]),
    ("is freed", &["goes home"]),
    ("mean RSS", &["resident on average"]),
    ("reference model", &["twin", "twins"]),
    ("returns true if", &["tells whether"]),
    (
        "the caller, another thread, a CPU",
        &["anybody", "nobody", "nobody's", "somebody", "somebody's", "whoever"],
    ),
    ("the contents, the state", &["what is there"]),
    ("the platform supplies", &["whose make"]),
    ("the workspace, or Linux", &["the house", "the seed"]),
    ("try again", &["come again", "comes again"]),
    ("is notified, is returned", &["is told", "told"]),
];

/// Phrases that are ordinary ones in code.
const ORDINARY_IN_CODE: [&str; 2] = ["the seed", "what is there"];

/// Identifiers, and those to use instead.
const IDENTIFIERS: [(&str, &str); 24] = [
    ("Alone", "CachePadded"),
    ("Books", "Ledger"),
    ("Broken", "InvariantViolation"),
    ("FileToBe", "OutputFile"),
    ("Ground", "a name for the machine that it is"),
    ("InTurn", "RoundRobin"),
    ("Keeper", "a name for the machine that it is"),
    ("Kept", "Cached"),
    ("Kv", "LargeAlloc"),
    ("Loose", "DetachedArea"),
    ("Shelf", "a name for the cache that it is"),
    ("Ticket", "BatchNumber"),
    ("begin_anew", "reset_in_child"),
    ("global_if_made", "try_global"),
    ("if_made", "get"),
    ("kept_bytes_max", "cache_bytes_max"),
    ("launder", "make_clean"),
    ("reserve_pieces", "reserve_splits"),
    ("teach_next", "prime_mmap_threshold"),
    ("tell_cached", "publish_cached"),
    ("told", "notes"),
    ("unite", "merge"),
    ("who", "a name for the agent"),
    ("with_boundary", "with_threshold"),
];

/// The files with lists of words.
const LISTS: [&str; 2] = ["xtask/src/tidy/words.rs", "xtask/src/tidy/prose.rs"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(text) = file.text() else { continue };
        if is_page(file.path()) {
            for (line, block) in blocks(text) {
                phrases_in(&block.to_lowercase(), &[], |phrase| report.add(file.path(), line, phrase));
            }
        } else if file.path().ends_with(".rs") && !LISTS.contains(&file.path()) {
            for (at, line) in text.lines().enumerate() {
                phrases_in(&words_of(line), &ORDINARY_IN_CODE, |phrase| {
                    report.add(file.path(), at + 1, phrase);
                });
            }
            identifiers_in(file, report);
        }
    }
}

/// Reports each replaced phrase of `text`, which is in lower case, but for those that are `ordinary` there.
fn phrases_in(text: &str, ordinary: &[&str], mut report: impl FnMut(String)) {
    for (instead, phrases) in PHRASES {
        let found = phrases.iter().filter(|phrase| !ordinary.contains(phrase) && has(text, phrase));
        found.for_each(|phrase| report(format!("\"{phrase}\" is replaced: {instead}")));
    }
}

fn identifiers_in(file: &File, report: &mut Report) {
    let Some(source) = file.source() else { return };
    for token in source.tokens() {
        let Kind::Ident(name) = &token.kind else { continue };
        if let Some((_, instead)) = IDENTIFIERS.iter().find(|(replaced, _)| replaced == name) {
            report.add(file.path(), token.line, format!("`{name}` is replaced: {instead}"));
        }
    }
}

/// Returns the words of a line of code, in lower case: `give_back` and `GiveBack` are two.
fn words_of(line: &str) -> String {
    let (mut words, mut last) = (String::new(), ' ');
    for c in line.chars() {
        if !c.is_alphanumeric() && c != '\'' || last.is_lowercase() && c.is_uppercase() {
            words.push(' ');
        }
        if c.is_alphanumeric() || c == '\'' {
            words.extend(c.to_lowercase());
        }
        last = c;
    }
    words
}

/// Returns true if `text` contains `phrase` as whole words.
fn has(text: &str, phrase: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '\'');
    text.match_indices(phrase).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    fn found(path: &str, text: &str) -> Vec<String> {
        planted(check, &[(path, text)])
    }

    #[test]
    fn a_phrase_is_found_as_whole_words_outside_code() {
        for phrase in PHRASES.iter().flat_map(|(_, phrases)| phrases.iter()) {
            assert!(!found("docs/a.md", &format!("So {phrase} it.\n")).is_empty(), "{phrase}");
        }
        assert_eq!(found("docs/a.md", "a\n\nTwins\nagree.\n").len(), 1);
        assert!(found("docs/a.md", "`lent`, silent, twin-engined.\n\n```text\nnobody\n```\n").is_empty());
    }

    #[test]
    fn a_phrase_is_found_in_comments_messages_and_identifiers_with_the_word_to_use() {
        let path = "core/x/src/a.rs";
        let code =
            "// Nobody\nfn give_back() {}\nstruct Twin;\nenum A { GivenBack }\nbail!(\"it was refused\");\n";
        let lines: Vec<_> = found(path, code);
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!(lines[1], format!("{path}:2: \"give back\" is replaced: alloc, free, release or move"));
        assert!(found(path, "fn twinned(silent: u8) {} // The seed of a calendar, on hand.\n").is_empty());
    }

    #[test]
    fn an_identifier_is_found_as_a_whole_in_code_alone() {
        let path = "core/x/src/a.rs";
        for (name, _) in IDENTIFIERS {
            assert!(!found(path, &format!("fn a() {{\n    {name};\n}}\n")).is_empty(), "{name}");
        }
        assert_eq!(found(path, "struct Kv;\n"), [format!("{path}:1: `Kv` is replaced: LargeAlloc")]);
        assert!(found(path, "// Alone\nconst KVM: &str = \"Broken\"; fn united(alone: u8) {}\n").is_empty());
    }
}
