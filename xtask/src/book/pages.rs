//! The checks of the pages of the book: the summary, links, included files, named functions.

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Parser, Tag};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Checks all pages of the folder `src`. Returns the chapters, in the order of the summary.
///
/// # Errors
/// If a chapter is missing in the summary or in the folder, or the target of a link or an include does not exist. Also
/// if a function that is named beside a file is not in it.
pub(super) fn check(root: &Path, src: &Path) -> Result<Vec<PathBuf>> {
    let summary = fs::read_to_string(src.join("SUMMARY.md")).context("the book has no SUMMARY.md")?;
    let chapters: Vec<PathBuf> = links(&summary).iter().map(|(_, link)| src.join(link)).collect();
    let mut wrong = Vec::new();
    let listed: BTreeSet<&PathBuf> = chapters.iter().collect();
    if listed.len() != chapters.len() {
        wrong.push("SUMMARY.md names a chapter twice".to_string());
    }
    for entry in fs::read_dir(src)? {
        let path = entry?.path();
        let page = path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md");
        if page && !listed.contains(&path) {
            wrong.push(format!("{} is not in SUMMARY.md", path.display()));
        }
    }
    for chapter in &chapters {
        match fs::read_to_string(chapter) {
            Ok(text) => {
                let name = chapter.display();
                wrong.extend(
                    faults(root, src, &text, &listed).into_iter().map(|fault| format!("{name}:{fault}")),
                );
            }
            Err(error) => wrong.push(format!("{}: {error}", chapter.display())),
        }
    }
    wrong.iter().for_each(|fault| println!("{fault}"));
    if !wrong.is_empty() {
        bail!("{} faults in the pages of the book", wrong.len());
    }
    Ok(chapters)
}

/// Returns the links of a page, each with its line.
fn links(page: &str) -> Vec<(usize, String)> {
    let parser = Parser::new(page).into_offset_iter();
    let link = |(event, range): (Event<'_>, std::ops::Range<usize>)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some((1 + page[..range.start].matches('\n').count(), dest_url.into_string()))
        }
        _ => None,
    };
    parser.filter_map(link).collect()
}

/// Returns the faults of a page, each with its line.
fn faults(root: &Path, src: &Path, page: &str, chapters: &BTreeSet<&PathBuf>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, link) in links(page) {
        let path = link.split('#').next().unwrap_or_default();
        if path.is_empty() || link.contains("://") {
            continue;
        }
        let to = src.join(path);
        // A page outside the chapters is not in the built book.
        let chapter = !path.ends_with(".md") || chapters.contains(&to);
        if !to.is_file() || !chapter {
            wrong.push(format!("{line}: the link {link} leads nowhere"));
        }
    }
    for (at, line) in page.lines().enumerate() {
        if let Some((_, rest)) = line.split_once("{{#include ") {
            let path = rest.split("}}").next().unwrap_or_default();
            if !src.join(path).is_file() {
                wrong.push(format!("{}: {path} is not there to be included", at + 1));
            }
        }
        wrong.extend(functions(root, line).into_iter().map(|fault| format!("{}: {fault}", at + 1)));
    }
    wrong
}

/// Returns faults for the functions that a line names between backticks, `name()`, after a file of Rust or C: each must
/// be in the last file before it.
fn functions(root: &Path, line: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut file: Option<(&str, String)> = None;
    for span in line.split('`').skip(1).step_by(2) {
        if span.ends_with(".rs") && span.contains('/') {
            file = fs::read_to_string(root.join(span)).ok().map(|text| (span, text));
        } else if let (Some(name), Some((path, text))) = (span.strip_suffix("()"), &file) {
            let name = name.rsplit("::").next().unwrap_or(name);
            if !["(", "<"].iter().any(|after| text.contains(&format!("fn {name}{after}"))) {
                wrong.push(format!("{path} has no function {name}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(files: &[(&str, &str)]) -> Result<usize> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        fs::create_dir(dir.path().join("x")).unwrap();
        fs::write(dir.path().join("x/a.rs"), "pub fn here(x: u8) {}\nfn of<T>() {}\n").unwrap();
        check(dir.path(), dir.path()).map(|chapters| chapters.len())
    }

    #[test]
    fn pages_that_hang_together_pass_and_each_fault_is_found() {
        let summary = ("SUMMARY.md", "- [A](a.md)\n- [B](b.md)\n");
        let good =
            "[b](b.md#there) [web](https://example.org) {{#include b.md}} `x/a.rs` `here()`, `T::of()`\n";
        assert_eq!(checked(&[summary, ("a.md", good), ("b.md", "b\n")]).unwrap(), 2);
        for bad in [
            "[c](c.md)\n",
            "![c](c.svg)\n",
            "{{#include c.md}}\n",
            "`x/a.rs`: `gone()`\n",
            "[s](SUMMARY.md)\n",
        ] {
            assert!(checked(&[summary, ("a.md", bad), ("b.md", "b\n")]).is_err(), "{bad}");
        }
        assert!(checked(&[summary, ("a.md", "a\n")]).is_err());
        assert!(checked(&[summary, ("a.md", "a\n"), ("b.md", "b\n"), ("c.md", "c\n")]).is_err());
        assert!(checked(&[("a.md", "a\n")]).is_err());
    }
}
