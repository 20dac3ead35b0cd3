//! The C header `vmalloc.h`: made of the functions in `abi.rs`, `frames.rs` and `percpu.rs` of `crates/vmalloc-capi/src` by cbindgen, and checked in.
//!
//! `cargo xtask header` writes it; `--check`, which CI runs, says when it is not what would be written.

use crate::sh::Cmd;
use crate::tools;
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

const HEADER: &str = "crates/vmalloc-capi/include/vmalloc.h";

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
        return check(root);
    }
    fs::write(root.join(HEADER), made(root)?)?;
    println!("header: {HEADER}");
    Ok(())
}

/// Fails if the header is stale.
pub(crate) fn check(root: &Path) -> Result<()> {
    compare(&fs::read_to_string(root.join(HEADER))?, &made(root)?)?;
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
    let text = Cmd::new(root, cbindgen)
        .args(["--quiet", "--config", "crates/vmalloc-capi/cbindgen.toml"])
        .arg(one)
        .read()?;
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
    fn nothing_of_rust_is_left_and_no_comment_that_old_c_lacks() {
        let text =
            "/**\n * Frees.\n *\n * # Safety\n * NULL.\n */\n}  // extern \"C\"\n#endif // __cplusplus\n";
        let want = "/**\n * Frees.\n *\n * The caller promises:\n * NULL.\n */\n}\n#endif\n";
        assert_eq!(for_c(text), want);
    }
}
