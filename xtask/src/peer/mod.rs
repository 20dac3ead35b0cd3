//! The space beside Linux's own allocator: the same programs, on its library and on ours in turn, in one run.
//!
//! # Theory
//! A kernel-peer directory has C programs that measure and replay any library with a certain C interface. Its makefile
//! cuts Linux's allocator out of a kernel's source and makes such a library of it. No part of the kernel is stored
//! here: it is built under `target/`, which git ignores. Ours is the crate `va-peer`.
//!
//! On a shared machine, nanoseconds of two runs cannot be compared. So each row is measured on both libraries in turn,
//! over several rounds, and the median of each is taken. Only ratios are claimed, with their range over some runs of
//! everything.

mod bench;
mod build;
mod page;
mod patho;
mod pcpu;
mod replay;

use crate::count::Tests;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The kernel-peer directory (or the variable VA_PEER_DIR)
    #[arg(long, value_name = "DIR", env = "VA_PEER_DIR")]
    peer: Option<PathBuf>,
    /// Source of Linux 6.12, unpacked; else that of the package linux-source-6.12 is unpacked into target/peer
    #[arg(long, value_name = "DIR", env = "VA_PEER_LINUX")]
    linux: Option<PathBuf>,
    /// Only compare addresses
    #[arg(long)]
    replay: bool,
    /// Rounds of each row, in each of which both run
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Runs of all rows, one after the other: the range of their ratios is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The page to write, from the root of the tree on
    #[arg(long, value_name = "FILE", default_value = "results/peer.md")]
    out: PathBuf,
    /// Milliseconds of each row in each round
    #[arg(long, default_value_t = 250)]
    ms: u32,
    /// Scripts of each profile
    #[arg(long, default_value_t = 3)]
    seeds: u32,
}

/// Both libraries and the programs that run them.
pub(crate) struct Peers {
    /// Linux's library.
    linux: PathBuf,
    /// Our library.
    ours: PathBuf,
    /// Folder of the programs.
    programs: PathBuf,
    /// The program that writes scripts.
    genops: PathBuf,
    /// Folder for scripts.
    scratch: PathBuf,
}

/// Runs the step of CI: replays beside Linux's library, one script a profile. It needs the kernel's source and a
/// kernel-peer directory, named by the variable or in a folder beside this tree. If one is missing, the step reports
/// that and does not fail.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let peer = variable("VA_PEER_DIR").or_else(|| beside(root));
    match build::build(root, peer.as_deref(), variable("VA_PEER_LINUX").as_deref()) {
        Ok(peers) => {
            replay::compare(root, &peers, 1)?;
            pcpu::compare(root, &peers, 1).map(|_| ())
        }
        Err(missing) => {
            crate::not_run::add(root, &format!("the comparison with Linux: {missing:#}"));
            Ok(())
        }
    }
}

/// Returns a kernel-peer directory in a folder beside this tree.
fn beside(root: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(root.parent()?).ok()?.flatten();
    let mut found: Vec<_> = folders
        .map(|folder| folder.path().join("kernel-peer"))
        .filter(|peer| peer.join("Makefile").is_file())
        .collect();
    found.sort();
    found.into_iter().next()
}

/// Runs `cargo xtask peer`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let peers = build::build(root, args.peer.as_deref(), args.linux.as_deref())?;
    let mut replays = replay::compare(root, &peers, args.seeds)?;
    replays.extend(pcpu::compare(root, &peers, args.seeds)?);
    if args.replay {
        return Ok(());
    }
    let rows = bench::rows(root, &peers, args.runs, args.rounds, args.ms)?;
    let threads = bench::threads(root, &peers, args.rounds, args.ms)?;
    // The differences are large, and the cases take long.
    let cases = patho::cases(root, &peers, args.rounds.min(3))?;
    let backlog = replay::backlogs(root, &peers)?;
    let measured = (args.runs, args.rounds, args.ms);
    let page = page::page(root, measured, &replays, &rows, &threads, &cases, &backlog)?;
    let out = root.join(&args.out);
    if let Some(dir) = out.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(&out, &page)?;
    println!("\n{page}\nwritten to {}", out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_beside_the_tree_is_found() {
        let around = tempfile::tempdir().unwrap();
        let root = around.path().join("tree");
        fs::create_dir_all(root.join("kernel-peer")).unwrap();
        assert_eq!(beside(&root), None);
        let peer = around.path().join("other/kernel-peer");
        fs::create_dir_all(&peer).unwrap();
        assert_eq!(beside(&root), None, "it has no makefile");
        fs::write(peer.join("Makefile"), "").unwrap();
        assert_eq!(beside(&root), Some(peer));
    }
}
