//! `unsafe` stands only in the files that ARCHITECTURE.md lists, and each of those needs it.

use super::Report;
use super::source::Kind;
use super::tree::Tree;
use std::collections::BTreeMap;

const LIST: &str = "ARCHITECTURE.md";

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let Some(lines) = tree.architecture("unsafe-list") else {
        return report.add(LIST, 1, "there is no list ```unsafe-list");
    };
    let mut listed = BTreeMap::new();
    for (line, text) in lines {
        match text.split_once(char::is_whitespace) {
            Some((path, why)) if !why.trim().is_empty() => {
                listed.insert(path, (line, false));
            }
            _ => report.add(LIST, line, format!("is no line of the form path, reason: {text}")),
        }
    }
    for file in tree.files() {
        let tokens = file.source().into_iter().flat_map(super::source::Source::tokens);
        for token in tokens.filter(|token| matches!(&token.kind, Kind::Ident(word) if word == "unsafe")) {
            match listed.get_mut(file.path()) {
                Some((_, used)) => *used = true,
                None => {
                    report.add(
                        file.path(),
                        token.line,
                        format!("unsafe, and {LIST} does not list this file"),
                    );
                }
            }
        }
    }
    for (path, (line, used)) in listed {
        if !used {
            report.add(LIST, line, format!("{path} has no unsafe: take it off the list"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    const LIST: (&str, &str) = ("ARCHITECTURE.md", "```unsafe-list\na.rs   calls C\n```\n");

    #[test]
    fn unsafe_off_the_list_is_found() {
        let listed = ("a.rs", "fn a() { unsafe { b() } }\n");
        assert!(planted(check, &[LIST, listed]).is_empty());
        let bad = ("c.rs", "#[unsafe(no_mangle)]\nfn c() {}\n");
        assert_eq!(
            planted(check, &[LIST, listed, bad]),
            ["c.rs:1: unsafe, and ARCHITECTURE.md does not list this file"]
        );
        let in_test = ("d.rs", "#[cfg(test)]\nmod tests {\n fn d() { unsafe { e() } } }\n");
        assert_eq!(planted(check, &[LIST, listed, in_test]).len(), 1);
    }

    #[test]
    fn talk_of_unsafe_is_none() {
        let listed = ("a.rs", "unsafe fn a() {}\n");
        let talk = ("b.rs", "#![forbid(unsafe_code)]\n//! unsafe\nfn b() { \"unsafe\"; } // unsafe\n");
        assert!(planted(check, &[LIST, listed, talk]).is_empty());
    }

    #[test]
    fn an_entry_without_unsafe_or_reason_is_found() {
        assert_eq!(planted(check, &[LIST]), ["ARCHITECTURE.md:2: a.rs has no unsafe: take it off the list"]);
        let bare = ("ARCHITECTURE.md", "```unsafe-list\na.rs\n```\n");
        assert!(planted(check, &[bare])[0].contains("is no line of the form"));
    }
}
