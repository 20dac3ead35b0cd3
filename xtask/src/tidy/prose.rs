//! Plain English: short sentences and lines, and doc comments that begin with a fact.
//!
//! Pages are checked sentence by sentence. A doc comment has no long sentence, and begins with no question word.

use super::Report;
use super::paths::doc_blocks;
use super::tree::Tree;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The most words of a sentence. A code span counts as one.
const WORDS_MAX: usize = 30;
/// The most columns of a line of prose. Table rows and code blocks are exempt: a row cannot be broken.
const COLUMNS_MAX: usize = 120;

/// Words with which no doc comment begins: it states what the item is or does.
const OPENINGS: [&str; 8] = ["What", "Who", "Where", "How", "Why", "Whether", "Whose", "Whoever"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(text) = file.text() else { continue };
        if is_page(file.path()) {
            page(file.path(), text, report);
        } else if file.path().ends_with(".rs") {
            doc_faults(text).iter().for_each(|(line, fault)| report.add(file.path(), *line, fault.text()));
        }
    }
}

/// Returns true for pages that people read. Measurements in `results` are written by commands.
pub(super) fn is_page(path: &str) -> bool {
    let root = !path.contains('/') || path.starts_with("docs/") || path == "data/README.md";
    let readme = crate::in_crate(path).is_some_and(|(_, rest)| rest == "README.md");
    path.ends_with(".md") && (root || readme)
}

fn page(path: &str, text: &str, report: &mut Report) {
    let mut code = false;
    for (at, line) in text.lines().enumerate() {
        code ^= line.trim_start().starts_with("```");
        let columns = line.chars().count();
        if !code && columns > COLUMNS_MAX && !line.starts_with('|') {
            report.add(path, at + 1, format!("{columns} columns: {COLUMNS_MAX} at most"));
        }
    }
    for (line, block) in blocks(text) {
        for sentence in sentences(&block) {
            let count = words(sentence);
            if count > WORDS_MAX {
                report.add(path, line, Fault::Long(count).text() + &format!(": {}", beginning(sentence)));
            }
        }
    }
}

enum Fault {
    /// The first word of a doc comment.
    Opening(String),
    /// The number of words of a sentence.
    Long(usize),
}

impl Fault {
    fn text(&self) -> String {
        match self {
            Self::Opening(word) => {
                format!("the comment begins with \"{word}\": say what the item is or does")
            }
            Self::Long(count) => format!("a sentence of {count} words: {WORDS_MAX} at most"),
        }
    }
}

/// Returns the faults of the doc comments of a Rust file, each with its line.
fn doc_faults(text: &str) -> Vec<(usize, Fault)> {
    let mut faults = Vec::new();
    for (first, comment) in doc_blocks(text) {
        let opening = comment.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if OPENINGS.contains(&opening) {
            faults.push((first, Fault::Opening(opening.to_string())));
        }
        for (line, block) in blocks(&comment) {
            let counts = sentences(&block).into_iter().map(words).filter(|&count| count > WORDS_MAX);
            faults.extend(counts.map(|count| (first + line - 1, Fault::Long(count))));
        }
    }
    faults
}

/// Returns paragraphs, headings, list items and table cells, each with its first line. Code blocks are left out, and a
/// code span is one word.
pub(super) fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut code = false;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => code = true,
            Event::End(TagEnd::CodeBlock) => code = false,
            Event::Start(Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell) => {
                found.push((1 + text[..range.start].matches('\n').count(), String::new()));
            }
            _ if code => {}
            event => {
                let piece = match &event {
                    Event::Text(piece) => piece.as_ref(),
                    Event::Code(_) => "`code`",
                    Event::SoftBreak | Event::HardBreak => " ",
                    _ => continue,
                };
                if let Some((_, block)) = found.last_mut() {
                    block.push_str(piece);
                }
            }
        }
    }
    found
}

/// Cuts a block after each full stop, question mark or exclamation mark that a space follows.
fn sentences(block: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in block.match_indices(' ') {
        let last = block[begin..at].rsplit(' ').next().unwrap_or_default();
        let bare = last.trim_end_matches(['"', '\'', ')', '*', '”']);
        let short = matches!(bare.trim_start_matches('('), "e.g." | "i.e." | "vs." | "cf.");
        if bare.ends_with(['.', '?', '!']) && !short {
            found.push(&block[begin..at]);
            begin = at + 1;
        }
    }
    found.push(&block[begin..]);
    found
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

fn beginning(sentence: &str) -> String {
    sentence.split_whitespace().take(6).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    fn long(words: usize) -> String {
        format!("{}.", vec!["word"; words].join(" "))
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        planted(check, &[(path, text)])
    }

    #[test]
    fn a_long_sentence_is_found_in_text_lists_and_tables() {
        let (fine, bad) =
            (long(WORDS_MAX).replace(" word", "\nword"), long(WORDS_MAX + 1).replace(" word", "\nword"));
        assert!(found("README.md", &format!("{fine} {fine}\n")).is_empty());
        assert_eq!(found("README.md", &format!("# A\n\n{bad}\n")).len(), 1);
        assert!(
            found("docs/a.md", &format!("- a\n- {}\n", bad.replace('\n', "\n  ")))[0]
                .starts_with("docs/a.md:2: ")
        );
        let row = format!("| a |\n|---|\n| {} |\n", long(WORDS_MAX + 1));
        assert!(found("core/a/README.md", &row)[0].starts_with("core/a/README.md:3: a sentence of 31 words"));
        assert!(found("results/a.md", &row).is_empty());
        assert!(found("docs/a.md", &format!("```text\n{bad}\n```\n")).is_empty());
        assert!(found("docs/a.md", &format!("{} `a b c d` b.\n", fine.replace("word.", ""))).len() == 1);
    }

    #[test]
    fn a_long_line_is_found_outside_code_and_tables() {
        let line = "x".repeat(COLUMNS_MAX + 1);
        assert_eq!(found("README.md", &format!("a\n{line}\n")), ["README.md:2: 121 columns: 120 at most"]);
        assert!(found("README.md", &format!("{}\n\n```sh\n{line}\n```\n", &line[1..])).is_empty());
        assert!(found("README.md", &format!("| {line} |\n|---|\n| a |\n")).is_empty());
    }

    #[test]
    fn sentences_end_at_a_mark_before_a_space() {
        assert_eq!(
            sentences("Linux 6.12 is (e.g. here) old. Is it? (Yes.) x"),
            ["Linux 6.12 is (e.g. here) old.", "Is it?", "(Yes.)", "x"]
        );
    }

    #[test]
    fn faults_of_doc_comments_have_their_line() {
        let text = format!("//! Fine.\n//!\n//! {}\n\n/// How it is.\nfn a() {{}}\n// What\n", long(31));
        let faults: Vec<_> =
            doc_faults(&text).into_iter().map(|(line, fault)| (line, fault.text())).collect();
        assert_eq!(faults.len(), 2);
        assert!(faults[0].0 == 3 && faults[0].1.starts_with("a sentence of 31 words"), "{faults:?}");
        assert!(faults[1].0 == 5 && faults[1].1.contains("\"How\""), "{faults:?}");
        for word in OPENINGS {
            assert_eq!(doc_faults(&format!("/// {word} it is.\nfn a() {{}}\n")).len(), 1, "{word}");
        }
    }

    #[test]
    fn faults_of_doc_comments_are_found_with_their_lines() {
        let text = format!("//! Fine.\n\n/// Where it is.\nfn a() {{}}\n\n/// {}\nfn b() {{}}\n", long(31));
        let path = "core/x/src/a.rs";
        let found = found(path, &text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(&format!("{path}:3: the comment begins with \"Where\"")), "{found:?}");
        assert!(found[1].starts_with(&format!("{path}:6: a sentence of 31 words")), "{found:?}");
    }
}
