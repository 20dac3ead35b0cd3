//! An example in the documentation of a published package uses crates that its readers can name.
//!
//! A dependency of tests by its path alone is left out of the package. An example that uses it runs here, and nowhere
//! else. The rule reads doc comments, the README and the folder of examples.

use super::Report;
use super::source::Kind;
use super::tree::{File, Tree};

pub(crate) fn check(tree: &Tree, report: &mut Report) {
    let versioned = versioned(tree);
    for (_, dir, manifest) in tree.manifests() {
        let published = manifest["package"].get("publish").and_then(toml::Value::as_bool) == Some(true);
        let left_out = left_out(&manifest, &versioned);
        if !published || left_out.is_empty() {
            continue;
        }
        for file in tree.files() {
            let Some(inside) = file.path().strip_prefix(dir).and_then(|path| path.strip_prefix('/')) else {
                continue;
            };
            for (line, name) in uses(file, inside, &left_out) {
                let what = format!("an example uses {name}, which the package leaves out");
                report.add(file.path(), line, what);
            }
        }
    }
}

/// Returns the dependencies of the workspace that have a version.
fn versioned(tree: &Tree) -> Vec<String> {
    let root = tree.file("Cargo.toml").and_then(|file| toml::from_str::<toml::Table>(file.text()?).ok());
    let table = root.as_ref().and_then(|root| root.get("workspace")?.get("dependencies")?.as_table());
    let names = table.into_iter().flatten().filter(|(_, entry)| has_version(entry));
    names.map(|(name, _)| name.clone()).collect()
}

fn has_version(entry: &toml::Value) -> bool {
    entry.is_str() || entry.get("version").is_some()
}

/// Returns the crates, by their names in Rust, that a package depends on by path alone.
fn left_out(manifest: &toml::Table, versioned: &[String]) -> Vec<String> {
    let dependencies = manifest.get("dev-dependencies").and_then(toml::Value::as_table);
    let left_out = dependencies.into_iter().flatten().filter(|(name, entry)| {
        let shared = entry.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        !(has_version(entry) || shared && versioned.contains(name))
    });
    left_out.map(|(name, _)| name.replace('-', "_")).collect()
}

/// Returns the lines of a file that are an example and use one of the crates.
fn uses<'n>(file: &File, inside: &str, names: &'n [String]) -> Vec<(usize, &'n str)> {
    let text = |line: &str| names.iter().find(|name| line.contains(&format!("{name}::")));
    let found = |lines: Vec<(usize, &str)>| {
        lines.into_iter().filter_map(|(line, words)| Some((line, text(words)?.as_str()))).collect()
    };
    match file.source() {
        Some(source) if inside.starts_with("examples/") => {
            let tokens = source.tokens().iter();
            let named = tokens.filter_map(|token| match &token.kind {
                Kind::Ident(word) => Some((token.line, names.iter().find(|name| *name == word)?.as_str())),
                _ => None,
            });
            named.collect()
        }
        Some(source) if inside.starts_with("src/") => {
            let is_doc = |comment: &str| comment.starts_with("///") || comment.starts_with("//!");
            let comments = source.comments().iter();
            found(comments.filter(|(_, it)| is_doc(it)).map(|(line, it)| (*line, it.as_str())).collect())
        }
        None if inside == "README.md" => {
            let lines = file.text().unwrap_or_default().lines();
            found(lines.enumerate().map(|(at, line)| (at + 1, line)).collect())
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn an_example_with_a_crate_that_is_left_out_is_found() {
        let root = "[workspace.dependencies]\nwith = { path = \"with\", version = \"1\" }\nno-version.path = \"no\"\n";
        let manifest = "[package]\nname = \"a\"\npublish = true\n[dev-dependencies]\nby-path.path = \"../b\"\n\
            no-version.workspace = true\nwith.workspace = true\nother = \"1\"\n";
        let own = manifest.replace("publish = true", "publish = false");
        let texts = [
            ("core/a/src/lib.rs", "/// use {};\nfn a() {}\n#[cfg(test)] mod tests { use by_path::B; }\n"),
            ("core/a/src/b.rs", "//! # use {};\n// by_path::B is no example here\n"),
            ("core/a/README.md", "```rust\nuse {};\n```\nThe models are in by-path.\n"),
            ("core/a/examples/b.rs", "use {};\n"),
            ("core/a/tests/b.rs", "//! by_path::B\nuse by_path::B;\n"),
        ];
        let found = |manifest: &str, used: &str| {
            let texts = texts.map(|(path, text)| (path, text.replace("{}", used)));
            let mut files = vec![("Cargo.toml", root), ("core/a/Cargo.toml", manifest)];
            files.extend(texts.iter().map(|(path, text)| (*path, text.as_str())));
            planted(check, &files).len()
        };
        assert_eq!((found(manifest, "by_path::B"), found(manifest, "no_version::B")), (4, 4));
        assert_eq!((found(manifest, "with::B"), found(manifest, "other::B")), (0, 0));
        assert_eq!(found(&own, "by_path::B"), 0);
    }
}
