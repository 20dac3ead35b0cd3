//! The C header `vmalloc.h`: made of the functions in `abi.rs`, `frames.rs` and `percpu.rs` of
//! `crates/vmalloc-capi/src` by cbindgen, and checked in.
//!
//! `cargo xtask header` writes it, with a checksum of what it was made of and of itself beside it. CI compares the
//! checksum, which takes no tool. `--check`, which `cargo xtask ci --full` runs, makes the header again and compares
//! all of it.

use crate::count::Tests;
use crate::sh::Cmd;
use crate::tools;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

const HEADER: &str = "crates/vmalloc-capi/include/vmalloc.h";

/// The checksum that was written with the header.
const CHECKSUM: &str = "crates/vmalloc-capi/header.crc32";

/// The layout of the header, for cbindgen.
const CONFIGURATION: &str = "crates/vmalloc-capi/cbindgen.toml";

const SOURCES: [&str; 3] = [
    "crates/vmalloc-capi/src/abi.rs",
    "crates/vmalloc-capi/src/frames.rs",
    "crates/vmalloc-capi/src/percpu.rs",
];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write nothing, and fail if the header is stale
    #[arg(long)]
    check: bool,
}

/// `cargo xtask header`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if args.check {
        return check(root, &mut Tests::default());
    }
    fs::write(root.join(HEADER), made(root)?)?;
    fs::write(root.join(CHECKSUM), checksum(root)?)?;
    println!("header: {HEADER}");
    Ok(())
}

/// The step of CI: fails if the header, or what it is made of, is not that of the last `cargo xtask header`.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    let written =
        fs::read_to_string(root.join(CHECKSUM)).with_context(|| format!("cannot read {CHECKSUM}"))?;
    if written != checksum(root)? {
        bail!("{HEADER} or what it is made of changed: cargo xtask header");
    }
    println!("header: as it was made");
    Ok(())
}

/// Returns a line with the checksum of all that the header depends on, and of the header.
fn checksum(root: &Path) -> Result<String> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(tools::CBINDGEN_VERSION.as_bytes());
    for path in SOURCES.into_iter().chain([CONFIGURATION, HEADER]) {
        hasher.update(&fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?);
    }
    Ok(format!("{:08x}\n", hasher.finalize()))
}

/// The step of CI in full: makes the header, and fails if it differs from the one there.
pub(crate) fn check(root: &Path, tests: &mut Tests) -> Result<()> {
    compare(&fs::read_to_string(root.join(HEADER))?, &made(root)?)?;
    step(root, tests)?;
    println!("header: up to date");
    Ok(())
}

fn compare(there: &str, made: &str) -> Result<()> {
    let differs = there.lines().zip(made.lines()).position(|(one, other)| one != other);
    match differs {
        None if there == made => Ok(()),
        None => bail!("{HEADER} is stale, it ends elsewhere: cargo xtask header"),
        Some(line) => bail!("{HEADER} is stale from line {}: cargo xtask header", line + 1),
    }
}

/// Generates the header.
fn made(root: &Path) -> Result<String> {
    let cbindgen = tools::cbindgen(root)?;
    // cbindgen takes one file and follows no module of it: all in one, without what only the head of a file may have.
    let mut whole = String::new();
    for source in SOURCES {
        let text = fs::read_to_string(root.join(source))?;
        whole.extend(text.lines().filter(|line| !line.starts_with("//!")).flat_map(|line| [line, "\n"]));
    }
    let one = root.join("target/header.rs");
    fs::write(&one, whole)?;
    let text = Cmd::new(root, cbindgen).args(["--quiet", "--config", CONFIGURATION]).arg(one).read()?;
    Ok(for_c(&text))
}

/// Rust's heading becomes a sentence, and comments are those of every C.
fn for_c(text: &str) -> String {
    let lines = text.lines().map(|line| match line {
        " * # Safety" => " * The caller promises:",
        _ => line.split_once("  // ").or_else(|| line.split_once(" // ")).map_or(line, |(code, _)| code),
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_header_is_an_error_that_says_where() {
        compare("a\nb\n", "a\nb\n").unwrap();
        let error = compare("a\nb\n", "a\nc\n").unwrap_err().to_string();
        assert!(error.contains("stale from line 2"), "{error}");
        assert!(compare("a\n", "a\nb\n").unwrap_err().to_string().contains("ends elsewhere"));
    }

    #[test]
    fn a_change_of_a_source_or_of_the_header_changes_the_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let all = || SOURCES.into_iter().chain([CONFIGURATION, HEADER]);
        for path in all() {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "a").unwrap();
        }
        let before = checksum(dir.path()).unwrap();
        let tests = &mut Tests::default();
        assert!(step(dir.path(), tests).is_err(), "there is no checksum");
        fs::write(dir.path().join(CHECKSUM), &before).unwrap();
        step(dir.path(), tests).unwrap();
        for path in all() {
            fs::write(dir.path().join(path), "b").unwrap();
            assert!(step(dir.path(), tests).is_err(), "{path}");
            fs::write(dir.path().join(path), "a").unwrap();
        }
        assert_eq!(checksum(dir.path()).unwrap(), before);
    }

    #[test]
    fn nothing_of_rust_is_left_and_no_comment_that_old_c_lacks() {
        let text =
            "/**\n * Frees.\n *\n * # Safety\n * NULL.\n */\n}  // extern \"C\"\n#endif // __cplusplus\n";
        let want = "/**\n * Frees.\n *\n * The caller promises:\n * NULL.\n */\n}\n#endif\n";
        assert_eq!(for_c(text), want);
    }
}
