//! Leftovers that must not be in the tree: paths of one machine, notes to oneself, tests switched off without a reason.
//! Also files that are too long, and last lines without an end.

use super::Report;
use super::source::Kind;
use super::tree::{File, Tree};

/// The length from which a file is split by concept.
const LINES_MAX: usize = 600;

/// Written in parts, so that the rule does not find this file.
const FORBIDDEN: [(&str, &str); 6] = [
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("../sha", "red"), "a path out of the tree"),
    (concat!("FIX", "ME"), "a note to oneself"),
    (concat!("to", "do!("), "a note to oneself"),
];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        // Fuzz inputs and traces are data; a lock file is cargo's.
        let path = file.path();
        let data = path.starts_with("data/") && !path.ends_with(".md") || path.starts_with("fuzz/corpus/");
        let Some(text) = file.text().filter(|_| !data && !path.ends_with("Cargo.lock")) else { continue };
        for (at, line) in text.lines().enumerate() {
            for (word, what) in FORBIDDEN {
                if line.contains(word) {
                    report.add(path, at + 1, format!("{what}: {word}"));
                }
            }
        }
        let count = text.lines().count();
        if !text.is_empty() && !text.ends_with('\n') {
            report.add(path, count, "the last line has no end");
        }
        let is_code =
            path.ends_with(".rs") && (crate::in_crate(path).is_some() || path.starts_with("xtask/"));
        if is_code && count > LINES_MAX {
            report.add(
                path,
                count,
                format!("{count} lines: split the file by concept ({LINES_MAX} at most)"),
            );
        }
        ignored_tests(file, report);
    }
}

fn ignored_tests(file: &File, report: &mut Report) {
    let tokens = file.source().map_or(&[][..], |source| source.tokens());
    for four in tokens.windows(4) {
        let kinds = [&four[0].kind, &four[1].kind, &four[2].kind, &four[3].kind];
        if let [Kind::Punct('#'), Kind::Open('['), Kind::Ident(word), Kind::Close(']')] = kinds
            && word == "ignore"
        {
            report.add(
                file.path(),
                four[0].line,
                "a test is switched off without a reason: #[ignore = \"why\"]",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn what_must_not_lie_around_is_found() {
        for (word, _) in FORBIDDEN {
            let found = planted(check, &[("README.md", &format!("first\nsee {word}x\n"))]);
            assert_eq!(found.len(), 1, "{word}");
            assert!(found[0].starts_with("README.md:2: "), "{}", found[0]);
            assert!(planted(check, &[("data/a.txt", &format!("{word}\n"))]).is_empty());
        }
        assert_eq!(planted(check, &[("a.toml", "a = 1")]), ["a.toml:1: the last line has no end"]);
        assert!(planted(check, &[("a.toml", "a = 1\n"), ("empty", "")]).is_empty());
    }

    #[test]
    fn a_test_may_be_switched_off_with_a_reason_only() {
        let bad = "#[test]\n#[ignore]\nfn a() {}\n";
        assert!(planted(check, &[("a.rs", bad)])[0].starts_with("a.rs:2: a test is switched off"));
        assert!(
            planted(check, &[("a.rs", "#[test]\n#[ignore = \"takes an hour\"]\nfn a() {}\n")]).is_empty()
        );
    }

    #[test]
    fn a_file_of_more_than_600_lines_is_found() {
        let long = "\n".repeat(LINES_MAX + 1);
        assert_eq!(planted(check, &[("core/a/src/b.rs", &long)]).len(), 1);
        assert!(planted(check, &[("core/a/src/b.rs", &long[1..]), ("docs/long.md", &long)]).is_empty());
    }
}
