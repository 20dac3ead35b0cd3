//! The size of the code of each package, and of its original.
//!
//! A small program that allocates and frees is built twice, over ours and over the original, and optimised as one. From
//! the section `.text` of each, that of a program without either is subtracted.

use super::FACES;
use crate::sh::Cmd;
use anyhow::{Context, Result};
use std::path::Path;

/// Bytes of code of one package and its original, beyond those of a program without either.
pub(super) struct Text {
    pub(super) name: &'static str,
    pub(super) ours: i64,
    pub(super) original: i64,
}

/// Builds and measures the programs.
pub(super) fn measure(root: &Path) -> Result<Vec<Text>> {
    let none = bytes(root, "text_none", false)?;
    let of = |face: &super::Face| {
        let program = format!("text_{}", face.library());
        let ours = bytes(root, &program, false)? - none;
        Ok(Text { name: face.name, ours, original: bytes(root, &program, true)? - none })
    };
    FACES.iter().map(of).collect()
}

fn bytes(root: &Path, program: &str, original: bool) -> Result<i64> {
    Cmd::cargo(root)
        .args(["build", "--quiet", "--locked", "--release", "--manifest-path", super::MANIFEST])
        .args(["--package", "faces-bench", "--bin", program, "--target-dir", "target/faces/bench"])
        .args(original.then_some("--features=original"))
        .read()?;
    let path = root.join("target/faces/bench/release").join(program);
    section(&Cmd::new(root, "size").args(["-A", "-d"]).arg(path).read()?)
}

/// Returns the size of `.text` in the output of `size`.
fn section(output: &str) -> Result<i64> {
    let line = output.lines().find_map(|line| line.strip_prefix(".text "));
    let size = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    size.context("no section .text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_code_is_read() {
        let output = "a  :\nsection   size   addr\n.text.x   9   9\n.text   1234   64\n.data   5   6\n";
        assert_eq!(section(output).unwrap(), 1234);
        assert!(section("").is_err());
    }
}
