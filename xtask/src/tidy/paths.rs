//! Every path that a text names exists: links and backticked paths in pages, backticked paths in doc comments.

use super::Report;
use super::tree::{File, Tree};
use pulldown_cmark::{Event, Parser, Tag};

/// First components of paths relative to the root, beside [`crate::GROUPS`], whether or not the folder exists.
const ROOTS: [&str; 8] = ["xtask", "docs", "results", "data", "fuzz", "adopt", ".ci", ".cargo"];
/// First components of paths relative to the folder of the crate.
const CRATE_FOLDERS: [&str; 4] = ["src", "tests", "benches", "examples"];
/// Names that stand for several files.
const PLACEHOLDERS: [&str; 5] = ["NAME", "FILE", "TARGET", "NNNN", "CRATE"];
/// File extensions that make a name without a folder a file of the tree.
const ENDS: [&str; 3] = [".md", ".toml", ".rs"];

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files() {
        let Some(text) = file.text() else { continue };
        if file.path().ends_with(".md") {
            page(tree, file, &[(1, text.to_string())], true, report);
        } else if file.path().ends_with(".rs") {
            page(tree, file, &doc_blocks(text), false, report);
        }
    }
}

/// Returns the blocks of doc comments and the number of the first line of each.
pub(super) fn doc_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut open = "";
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = ["//!", "///"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or("");
        if mark != open && !mark.is_empty() {
            blocks.push((at + 1, String::new()));
        }
        open = mark;
        if let (false, Some((_, block))) = (mark.is_empty(), blocks.last_mut()) {
            let line = &line[mark.len()..];
            block.push_str(line.strip_prefix(' ').unwrap_or(line));
            block.push('\n');
        }
    }
    blocks
}

fn page(tree: &Tree, file: &File, blocks: &[(usize, String)], links: bool, report: &mut Report) {
    for (first, text) in blocks {
        for (event, range) in Parser::new(text).into_offset_iter() {
            let line = first + text[..range.start].matches('\n').count();
            let missing = match event {
                Event::Code(code) => Some(code).filter(|code| !span_exists(tree, file, code)),
                Event::Start(Tag::Link { dest_url: link, .. } | Tag::Image { dest_url: link, .. })
                    if links =>
                {
                    Some(link).filter(|link| !link_exists(tree, file, link))
                }
                _ => None,
            };
            if let Some(path) = missing {
                report.add(file.path(), line, format!("{path} does not exist"));
            }
        }
    }
}

fn folder(file: &File) -> &str {
    file.path().rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Returns true if the path between backticks exists, or is no path of this tree.
fn span_exists(tree: &Tree, file: &File, code: &str) -> bool {
    let foreign = |c: char| c.is_whitespace() || "()=,;\"'\\|$@#!&".contains(c);
    if code.contains(foreign)
        || code.contains("::")
        || code.starts_with(['/', '-', '~'])
        || code.contains("//")
    {
        return true;
    }
    // `path:12`
    let code =
        code.rsplit_once(':').filter(|(_, line)| line.parse::<u32>().is_ok()).map_or(code, |(path, _)| path);
    let Some((first, _)) = code.split_once('/') else {
        let is_file = ENDS.iter().any(|end| code.ends_with(end) && code.len() > end.len());
        let concrete = !code.contains(['*', '<', '{', '[']);
        let named = |other: &File| other.path().rsplit('/').next() == Some(code);
        return !is_file || !concrete || tree.files().iter().any(named);
    };
    let path = concrete(code);
    let there = |path: &str| path.is_empty() || tree.exists(path) || tree.is_ignored(path);
    let from = |dir: &str| there(&normal(dir, path).unwrap_or_default());
    let krate = file.path().split("/src/").next().and_then(|dir| dir.split("/tests/").next());
    let is_root = ROOTS.contains(&first) || crate::GROUPS.contains(&first);
    match first {
        "." | ".." => from(folder(file)),
        _ if is_root && from("") => true,
        _ if CRATE_FOLDERS.contains(&first) && file.path().ends_with(".rs") => from(krate.unwrap_or("")),
        _ if is_root => false,
        // A path beside a page, or one of another tree: only a file that could be meant is reported.
        _ => !tree.exists(first) || from(""),
    }
}

/// Returns the part of a path before the first placeholder: `docs/decisions/NNNN-*.md`, `fuzz/TARGET/x`.
fn concrete(path: &str) -> &str {
    let mut end = 0;
    for part in path.split_inclusive('/') {
        let name = part.trim_end_matches('/');
        let stands_for_many = name.contains(['*', '<', '>', '{', '}', '[', ']', '?', '…'])
            || name.contains("...")
            || PLACEHOLDERS.contains(&name.split('.').next().unwrap_or(name));
        if stands_for_many {
            return path[..end].trim_end_matches('/');
        }
        end += part.len();
    }
    path.trim_end_matches('/')
}

fn link_exists(tree: &Tree, file: &File, link: &str) -> bool {
    let path = link.split(['#', '?']).next().unwrap_or_default();
    if path.is_empty() || link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    normal(folder(file), path).is_some_and(|path| path.is_empty() || tree.exists(&path))
}

/// Returns `path` relative to `dir`, without `.` and `..`. Returns `None` if it leads out of the tree.
fn normal(dir: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in dir.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = [("docs/map.md", "x\n"), ("core/a/src/b.rs", "\n"), (".gitignore", "/fuzz/live\n")];
        planted(check, &[&tree[..], files].concat())
    }

    #[test]
    fn paths_that_exist_and_words_that_are_none_are_fine() {
        let text = "See `docs/map.md`, [b](core/a/src/b.rs#L3), `core/a/`, `b.rs`, `core/a/src/b.rs:12`,\n\
            `fuzz/live/x`, `docs/NAME.md`, `core/*/src`, `mm/vmalloc.c`, `/proc/vmallocinfo`, `core::sync`, `a/b`,\n\
            `cargo run docs/gone.md`, [web](https://example.org/x.md), [here](#there), `docs/{map,x}.md`.\n\
            ```\n`docs/gone.md`\n```\n";
        assert!(found(&[("README.md", text)]).is_empty(), "{:?}", found(&[("README.md", text)]));
        let code = "//! See `src/b.rs` and `docs/map.md`.\nfn a() {} // `docs/gone.md` in a plain comment\n";
        assert!(found(&[("core/a/src/lib.rs", code)]).is_empty());
        assert!(
            found(&[("docs/other.md", "[map](map.md), [b](../core/a/src/b.rs), `../docs/map.md`\n")])
                .is_empty()
        );
    }

    #[test]
    fn what_does_not_exist_is_found_with_its_line() {
        let text = "See\n`docs/gone.md` and\n[b](core/a/src/c.rs)\nand `gone.toml`, `results/`.\n";
        assert_eq!(
            found(&[("README.md", text)]),
            [
                "README.md:2: docs/gone.md does not exist",
                "README.md:3: core/a/src/c.rs does not exist",
                "README.md:4: gone.toml does not exist",
                "README.md:4: results/ does not exist",
            ]
        );
        let code = "//! A\n//!\n//! See `docs/gone.md`.\n\n/// And `src/gone.rs`.\nfn a() {}\n";
        assert_eq!(
            found(&[("core/a/src/lib.rs", code)]),
            [
                "core/a/src/lib.rs:3: docs/gone.md does not exist",
                "core/a/src/lib.rs:5: src/gone.rs does not exist",
            ]
        );
        assert_eq!(found(&[("docs/other.md", "[map](docs/map.md) [out](../../x.md)\n")]).len(), 2);
    }
}
