//! The tests and the examples of the originals, over the packages of this tree.
//!
//! # Theory
//! The originals' unit tests are modules inside their sources, and read private fields. So each is appended to the
//! module of the same name in a copy of our package. Where a test reads a field of the original's structure, a few
//! replacements make it call a function that a shim adds to the copy. An expectation is never changed. Tests of a
//! structure that is not here, such as the original's tree, do not apply. Examples of documentation are collected into a
//! crate that depends on our package.

use super::Face;
use crate::count::Tests;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fmt;
use std::fs;
use std::path::Path;

/// One module of tests, and the changes that let it compile here.
struct Module {
    /// The source of the original.
    from: &'static str,
    /// The source of ours at whose end it is put. `None` for a file of tests, which becomes a module of `lib.rs`.
    to: Option<&'static str>,
    /// Texts of the tests, and their replacements.
    replaced: &'static [(&'static str, &'static str)],
    /// Code that is added before it.
    shim: &'static str,
}

impl Module {
    const fn of(file: &'static str) -> Self {
        Self { from: file, to: Some(file), replaced: &[], shim: "" }
    }
}

/// The tests of one original.
struct Suite {
    name: &'static str,
    modules: &'static [Module],
    /// Sources with tests that do not apply, and the reason.
    left_out: Option<(&'static str, &'static str)>,
    /// Sources whose documentation has examples.
    examples: &'static [&'static str],
}

const SUITES: [Suite; 4] = [
    Suite {
        name: "free-list",
        modules: &[
            Module::of("src/page_range.rs"),
            Module {
                replaced: &[
                    ("PageList::<16> { list: a.into() }", "PageList::<16>::of(&a)"),
                    ("page_list.list.to_vec()", "page_list.iter().collect::<Vec<_>>()"),
                ],
                shim: "#[cfg(test)] impl<const N: usize> PageList<N> { fn of(ranges: &[PageRange]) -> Self { \
                       let mut list = Self::new(); for &range in ranges { list.add(range).unwrap(); } list } }",
                ..Module::of("src/page_list.rs")
            },
        ],
        left_out: None,
        examples: &["src/lib.rs", "src/page_layout.rs", "src/page_range.rs", "README.md"],
    },
    Suite {
        name: "offset-allocator",
        modules: &[Module { from: "src/tests.rs", to: None, replaced: &[], shim: "" }],
        left_out: None,
        examples: &["src/lib.rs", "README.md"],
    },
    Suite {
        name: "range-alloc",
        modules: &[Module {
            replaced: &[(".free_ranges,", ".listed(),")],
            shim: "#[cfg(test)] impl<T: Unit> RangeAllocator<T> { fn listed(&self) -> Vec<Range<T>> { \
                   self.free_ranges.iter().map(|(start, end)| self.positions(start, end)).collect() } }",
            ..Module::of("src/lib.rs")
        }],
        left_out: None,
        examples: &["src/lib.rs", "README.md"],
    },
    Suite {
        name: "vm-allocator",
        modules: &[
            Module::of("src/lib.rs"),
            Module::of("src/address_allocator.rs"),
            Module {
                shim: "#[cfg(test)] impl IdSet { fn ids(&self) -> Vec<u32> { let holes = self.0.iter(); \
                       holes.flat_map(|(start, end)| start as u32..end as u32).collect() } \
                       fn len(&self) -> usize { self.ids().len() } \
                       fn iter(&self) -> impl Iterator<Item = Box<u32>> { self.ids().into_iter().map(Box::new) } } \
                       #[cfg(test)] use alloc::{boxed::Box, vec::Vec};",
                ..Module::of("src/id_allocator.rs")
            },
        ],
        left_out: Some(("src/allocation_engine/interval_tree.rs", "of the original's tree")),
        examples: &["src/lib.rs", "README.md"],
    },
];

/// The results of the tests and the examples of one original.
pub(super) struct Outcome {
    /// Both together.
    pub(super) tests: Tests,
    pub(super) unit: Tests,
    pub(super) examples: Tests,
    /// The tests that do not apply, and the reason.
    pub(super) left_out: Option<(usize, &'static str)>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |tests: Tests| format!("{} of {}", tests.passed, tests.passed + tests.failed);
        write!(
            f,
            "{} of the original's tests pass, and {} of its examples",
            of(self.unit),
            of(self.examples)
        )?;
        if let Some((count, why)) = self.left_out {
            write!(f, "; {count} tests {why} do not apply")?;
        }
        Ok(())
    }
}

/// Runs the tests and the examples of the original in `original` over our package.
pub(super) fn run(root: &Path, target: &Path, face: &Face, original: &Path) -> Result<Outcome> {
    let suite = SUITES.iter().find(|suite| suite.name == face.name).context("it has no suite")?;
    let dir = target.join("upstream").join(face.name);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    copy(&face.folder(root), &dir, root)?;
    let mut expected = 0;
    for module in suite.modules {
        expected += add(module, original, &dir)?;
    }
    let unit = tested(&dir, target, &["--lib"])?;
    if unit.passed + unit.failed != expected as u64 {
        bail!("{expected} tests of the original were copied, {} ran", unit.passed + unit.failed);
    }
    let examples = dir.join("examples-of-docs");
    let expected = write_examples(suite, face, original, &examples)?;
    let examples = if expected > 0 { tested(&examples, target, &["--doc"])? } else { Tests::default() };
    if examples.passed + examples.failed != expected as u64 {
        bail!("{expected} examples were copied, {} ran", examples.passed + examples.failed);
    }
    let left_out = suite.left_out.map(|(file, why)| {
        let text = fs::read_to_string(original.join(file)).with_context(|| file.to_string())?;
        anyhow::Ok((text.matches("#[test]").count(), why))
    });
    let mut tests = unit;
    tests += examples;
    Ok(Outcome { tests, unit, examples, left_out: left_out.transpose()? })
}

/// Copies the sources of a package, and writes a manifest for them outside of its workspace.
fn copy(from: &Path, to: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(to.join("src"))?;
    for entry in fs::read_dir(from.join("src"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?.replace("#![no_std]", "#![cfg_attr(not(test), no_std)]");
        fs::write(to.join("src").join(path.file_name().unwrap_or_default()), text)?;
    }
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?;
    let workspace = fs::read_to_string(root.join(super::MANIFEST))?;
    fs::write(to.join("Cargo.toml"), alone(&manifest, &workspace, &root.join("adopt/faces"))?)?;
    Ok(())
}

/// Returns the manifest of a package of the workspace as that of a package by itself, without its tests.
fn alone(manifest: &str, workspace: &str, faces: &Path) -> Result<String> {
    let workspace: toml::Table = toml::from_str(workspace)?;
    let edition = workspace["workspace"]["package"]["edition"].as_str().context("no edition")?;
    let mut text = String::new();
    let mut is_left_out = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_left_out = matches!(line, "[dev-dependencies]" | "[lints]");
        }
        if is_left_out {
            continue;
        }
        match line.strip_suffix(".workspace = true") {
            Some("va-compat") => text += &format!("va-compat = {{ path = {:?} }}", faces.join("va-compat")),
            Some("edition") => text += &format!("edition = {edition:?}"),
            // The others make no difference for tests.
            Some(_) => continue,
            None => text += line,
        }
        text.push('\n');
    }
    Ok(text + "[workspace]\n")
}

/// Adds a module of tests to the copy. Returns the number of tests in it.
fn add(module: &Module, original: &Path, dir: &Path) -> Result<usize> {
    let source = fs::read_to_string(original.join(module.from)).with_context(|| module.from.to_string())?;
    let Some(to) = module.to else {
        fs::write(dir.join(module.from), &source)?;
        let lib = dir.join("src/lib.rs");
        fs::write(&lib, fs::read_to_string(&lib)? + "\n#[cfg(test)]\nmod tests;\n")?;
        return Ok(source.matches("#[test]").count());
    };
    let (_, tests) =
        source.split_once("mod tests {").with_context(|| format!("no tests in {}", module.from))?;
    let mut tests = format!("\n{}\n#[cfg(test)]\nmod tests {{{tests}", module.shim);
    for (from, with) in module.replaced {
        if !tests.contains(from) {
            bail!("{}: there is no {from} to replace", module.from);
        }
        tests = tests.replace(from, with);
    }
    let count = tests.matches("#[test]").count();
    let path = dir.join(to);
    fs::write(&path, fs::read_to_string(&path)? + &tests)?;
    Ok(count)
}

/// Writes a crate with the examples of the original, and returns their number.
fn write_examples(suite: &Suite, face: &Face, original: &Path, dir: &Path) -> Result<usize> {
    let mut lib = String::new();
    let mut count = 0;
    for file in suite.examples {
        let text = fs::read_to_string(original.join(file)).with_context(|| file.to_string())?;
        for example in examples(&text, file.ends_with(".md")) {
            count += 1;
            let lines = example.iter().map(|line| format!("/// {line}\n")).collect::<String>();
            lib += &format!("/// ```\n{lines}/// ```\npub struct Example{count};\n\n");
        }
    }
    fs::create_dir_all(dir.join("src"))?;
    fs::write(dir.join("src/lib.rs"), lib)?;
    let manifest = format!(
        "[package]\nname = \"examples-of-docs\"\nversion = \"0.0.0\"\nedition = \"2021\"\npublish = false\n\
         [workspace]\n[dependencies]\n{} = {{ path = \"..\" }}\n",
        face.name
    );
    fs::write(dir.join("Cargo.toml"), manifest)?;
    Ok(count)
}

/// Returns the blocks of Rust in a page, or in the documentation of a source.
fn examples(text: &str, is_page: bool) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    let mut block: Option<(bool, Vec<&str>)> = None;
    for line in text.lines() {
        let line = match (is_page, line.trim_start()) {
            (true, _) => line,
            (false, line) => match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                Some(line) => line.strip_prefix(' ').unwrap_or(line),
                None => continue,
            },
        };
        match (line.strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((matches!(language, "" | "rust"), Vec::new())),
            (Some(_), Some(_)) => {
                found.extend(block.take().filter(|(is_rust, _)| *is_rust).map(|(_, lines)| lines));
            }
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    found
}

/// Runs the tests of a crate, and counts them. Failures are in the counts.
fn tested(dir: &Path, target: &Path, args: &[&str]) -> Result<Tests> {
    let mut tests = Tests::default();
    let mut output = String::new();
    let ended = Cmd::cargo(dir)
        .args(["test", "--quiet", "--no-fail-fast"])
        .args(args)
        .arg("--target-dir")
        .arg(target.join("build"))
        .lines(Show::Nothing, |line| {
            tests.read(line);
            output.push_str(line);
            output.push('\n');
        })?;
    if ended.code != Some(0) {
        println!("{output}");
        if tests.failed == 0 {
            ended.success()?;
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_in_sources_and_pages() {
        let source = "//! ```\n//! a();\n//! ```\nfn a() {}\n    /// ```text\n    /// no\n    /// ```\n    /// ```rust\n    \
                      /// b();\n    ///\n    /// ```\n";
        assert_eq!(examples(source, false), [vec!["a();"], vec!["b();", ""]]);
        assert_eq!(examples("```toml\nno\n```\n```\nc();\n```\n", true), [["c();"]]);
    }

    #[test]
    fn a_manifest_by_itself_inherits_nothing() {
        let workspace = "[workspace.package]\nedition = \"2024\"\npublish = false\n";
        let manifest = "[package]\nname = \"a\"\nedition.workspace = true\npublish.workspace = true\n[dependencies]\n\
                        va-compat.workspace = true\n[dev-dependencies]\nb = \"1\"\n[lints]\nworkspace = true\n";
        let text = alone(manifest, workspace, Path::new("/f")).unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(table["package"]["edition"].as_str(), Some("2024"));
        assert_eq!(table["dependencies"]["va-compat"]["path"].as_str(), Some("/f/va-compat"));
        assert!(!text.contains("workspace = true") && !table.contains_key("dev-dependencies"));
    }
}
