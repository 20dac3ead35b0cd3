//! The book: `cargo xtask book` checks its pages and runs every command in it.
//!
//! | block of a chapter | action |
//! |---|---|
//! | `console` | each line after `$ ` is run by a shell, in the chapter's folder; its output must be the text shown below it, where `...` stands for any text |
//! | `c,file=NAME` | written there as NAME, and compiled with warnings as errors |
//! | `rust` | compiled and run with the examples of documentation, by `check/vmalloc-book/src/lib.rs` |
//!
//! Commands find `vmlab` on their path, the traces in `data`, and installed files below `$PREFIX`. mdBook itself is
//! needed for `--html` alone.

mod blocks;
mod pages;

use crate::count::Tests;
use crate::install;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use blocks::{Block, blocks, matches};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of the book.
const BOOK: &str = "docs/book";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Build the pages by mdbook, too, below target/book
    #[arg(long)]
    html: bool,
    /// Check the pages and run nothing
    #[arg(long)]
    pages_only: bool,
    /// Only these chapters
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Take vmlab and the libraries from here instead of building them
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
}

/// Runs `cargo xtask book`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let chapters = pages::check(root, &root.join(BOOK).join("src"))?;
    println!("book: {} chapters, all linked, no dead link", chapters.len());
    if args.html {
        Cmd::new(root, "mdbook").args(["build", BOOK]).run(Show::All)?;
    }
    if args.pages_only {
        return Ok(());
    }
    if let Some(name) = args.only.iter().find(|name| !chapters.iter().any(|path| stem(path) == **name)) {
        bail!("no chapter {name}");
    }
    let chosen = |path: &&PathBuf| args.only.is_empty() || args.only.iter().any(|name| stem(path) == *name);
    run_all(root, &chapters.iter().filter(chosen).cloned().collect::<Vec<_>>(), args.built.as_deref())
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    main(root, &Args { html: false, pages_only: false, only: Vec::new(), built: None })
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}

fn run_all(root: &Path, chapters: &[PathBuf], built: Option<&Path>) -> Result<()> {
    let work = root.join("target/ci/book");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let prefix = work.join("prefix");
    install::fill(root, &prefix, built)?;
    let (mut ran, mut wrong) = (0, Vec::new());
    for path in chapters {
        let dir = work.join(stem(path));
        fs::create_dir_all(&dir)?;
        symlink(root.join("data"), dir.join("data"))?;
        for block in blocks(&fs::read_to_string(path)?) {
            match run_block(root, &prefix, &dir, &block) {
                Ok(count) => ran += count,
                Err(error) => wrong.push(format!("{}:{}: {error:#}", path.display(), block.line)),
            }
        }
    }
    wrong.iter().for_each(|error| println!("{error}"));
    if !wrong.is_empty() {
        bail!("{} blocks of the book fail", wrong.len());
    }
    if ran == 0 && built.is_none() {
        bail!("the book has no commands");
    }
    println!("book: {ran} commands printed the output in the book");
    Ok(())
}

/// Processes one block. Returns how many commands were run.
fn run_block(root: &Path, prefix: &Path, dir: &Path, block: &Block) -> Result<usize> {
    if let Some(name) = &block.file {
        fs::write(dir.join(name), &block.text)?;
    }
    if block.language == "c" {
        let name = block.file.as_deref().context("a block of C has a name: c,file=NAME")?;
        let include = root.join("process/vmalloc-capi/include");
        Cmd::new(dir, "cc")
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", name, "-I"])
            .arg(include)
            .run(Show::Failure)?;
    }
    if block.language != "console" {
        return Ok(0);
    }
    let commands = block.commands();
    if commands.is_empty() {
        bail!("a console block without a command");
    }
    for (command, shown) in &commands {
        let printed = run_command(prefix, dir, command)?;
        if !shown.trim().is_empty() && !matches(shown, &printed) {
            bail!("`{command}` prints\n{printed}\nand the book shows\n{shown}");
        }
    }
    Ok(commands.len())
}

/// Runs a command as a reader does. Returns its output.
fn run_command(prefix: &Path, dir: &Path, command: &str) -> Result<String> {
    let mut path = prefix.join("bin").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut printed = String::new();
    let ended = Cmd::new(dir, "sh")
        .args(["-c", command])
        .env("PATH", path)
        .env("PREFIX", prefix)
        .env("COLUMNS", "120")
        .lines(Show::Nothing, |line| {
            printed.push_str(line.trim_end());
            printed.push('\n');
        })?;
    ended.success().with_context(|| printed.clone())?;
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_other_output_fails() {
        let dir = tempfile::tempdir().unwrap();
        let run = |text: &str| {
            let found = blocks(text);
            run_block(dir.path(), dir.path(), dir.path(), &found[0])
        };
        assert_eq!(run("```console\n$ echo a; echo b\na\n...\n$ true\n```\n").unwrap(), 2);
        assert!(run("```console\n$ echo a\nb\n```\n").is_err());
        assert!(run("```console\n$ false\n```\n").is_err());
        assert!(run("```console\nno command\n```\n").is_err());
        assert!(run("```c\nint main(void) { return 0; }\n```\n").is_err());
        assert_eq!(run("```c,file=a.c\nint main(void) { return 0; }\n```\n").unwrap(), 0);
        assert!(dir.path().join("a.c").is_file());
        assert!(run("```c,file=a.c\nint main(void) { return x; }\n```\n").is_err());
    }
}
