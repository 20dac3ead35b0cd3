//! The files of the tree that git does not ignore.

use super::source::Source;
use crate::files::walk;
use anyhow::{Context, Result};
use ignore::gitignore::Gitignore;
use std::fs;
use std::path::Path;

/// A file.
pub(crate) struct File {
    path: String,
    text: Option<String>,
    source: Option<Source>,
}

impl File {
    /// Returns its path from the root of the tree, with `/`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns its text, if it has one.
    pub(crate) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns its contents as Rust, if it is Rust.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }
}

/// The files of a tree, in order.
pub(crate) struct Tree {
    files: Vec<File>,
    ignored: Gitignore,
}

impl Tree {
    /// Reads all files.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for (path, file) in walk(root)? {
            let bytes = fs::read(&file).with_context(|| format!("cannot read {path}"))?;
            let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
            let source = match &text {
                Some(text) if path.ends_with(".rs") => Some(Source::read(text, is_test_file(&path))),
                _ => None,
            };
            files.push(File { path, text, source });
        }
        let (ignored, _) = Gitignore::new(root.join(".gitignore"));
        Ok(Self { files, ignored })
    }

    /// Returns all files.
    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    /// Returns the file at a path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|at| &self.files[at])
    }

    /// Returns true if there is a file or folder at a path.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.file(path).is_some() || self.files.iter().any(|file| is_inside(&file.path, path))
    }

    /// Returns true if git ignores a path.
    pub(crate) fn is_ignored(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        // A pattern may be for folders only, and the path may or may not exist: try both.
        [true, false].iter().any(|&dir| self.ignored.matched_path_or_any_parents(path, dir).is_ignore())
    }

    /// Returns the manifests of packages, and the folder of each (empty for the root).
    pub(crate) fn manifests(&self) -> Vec<(&File, &str, toml::Table)> {
        let manifests = self.files.iter().filter_map(|file| {
            let dir = file.path.strip_suffix("Cargo.toml")?;
            let table: toml::Table = toml::from_str(file.text()?).ok()?;
            table.contains_key("package").then_some((file, dir.trim_end_matches('/'), table))
        });
        manifests.collect()
    }

    /// Returns the lines inside the fenced block ` ```NAME ` of ARCHITECTURE.md, with their numbers. Returns `None` if
    /// there is none.
    pub(crate) fn architecture(&self, name: &str) -> Option<Vec<(usize, &str)>> {
        let text = self.file("ARCHITECTURE.md")?.text()?;
        let mut lines = text.lines().enumerate().skip_while(|(_, line)| line.trim() != format!("```{name}"));
        lines.next()?;
        let block = lines.take_while(|(_, line)| line.trim() != "```");
        Some(block.map(|(at, line)| (at + 1, line.trim())).filter(|(_, line)| !line.is_empty()).collect())
    }
}

fn is_inside(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true for integration tests, and for modules of tests in files of their own.
fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.starts_with("tests/")
        || path.ends_with("/tests.rs")
        || path.contains("/loom/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_no_part_of_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("fuzz/corpus-live/x")).unwrap();
        for (path, text) in
            [(".gitignore", "/fuzz/corpus-live\n"), ("fuzz/corpus-live/x/1", ""), ("a.md", "")]
        {
            fs::write(dir.path().join(path), text).unwrap();
        }
        let tree = Tree::load(dir.path()).unwrap();
        let paths: Vec<_> = tree.files().iter().map(File::path).collect();
        assert_eq!(paths, [".gitignore", "a.md"]);
        assert!(tree.is_ignored("fuzz/corpus-live") && tree.is_ignored("fuzz/corpus-live/y/2"));
        assert!(!tree.is_ignored("fuzz/corpus"));
    }

    #[test]
    fn a_block_of_the_architecture_is_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("ARCHITECTURE.md"),
            "# A\n```other\nx\n```\n```layers\nL0 a\n\nL1 b\n```\nz\n",
        )
        .unwrap();
        let tree = Tree::load(dir.path()).unwrap();
        assert_eq!(tree.architecture("layers").unwrap(), [(6, "L0 a"), (8, "L1 b")]);
        assert!(tree.architecture("nothing").is_none());
    }
}
