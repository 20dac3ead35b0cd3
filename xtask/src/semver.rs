//! The interfaces of the published crates beside those of a release: a change that breaks callers needs a new version.
//!
//! `cargo-semver-checks` finds them, where it is installed: `cargo install cargo-semver-checks --locked`. The release
//! is the last tag of git. Before the first there is nothing to compare with, but for a commit that the caller names.

use crate::not_run;
use crate::package::published;
use crate::sh::{Cmd, Show};
use anyhow::{Result, bail};
use std::path::Path;

const TOOL: &str = "cargo-semver-checks";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Compare with this commit or tag [default: the last tag]
    #[arg(long)]
    since: Option<String>,
    /// Only these crates
    #[arg(long, short)]
    package: Vec<String>,
}

/// Runs `cargo xtask semver`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if !crate::sh::on_path(TOOL) {
        bail!("{TOOL} is not installed: `cargo install {TOOL} --locked`");
    }
    let Some(since) = args.since.clone().or_else(|| last_tag(root)) else {
        bail!("there is no release to compare with: name a commit with --since");
    };
    compare(root, &since, &args.package)
}

/// Compares with the last release, if there are a release and the tool.
pub(crate) fn step(root: &Path) -> Result<()> {
    match last_tag(root) {
        None => not_run::add(root, "the interfaces of the crates: there is no release to compare with"),
        Some(_) if !crate::sh::on_path(TOOL) => {
            not_run::add(root, &format!("the interfaces of the crates: {TOOL} is not installed"));
        }
        Some(tag) => compare(root, &tag, &[])?,
    }
    Ok(())
}

fn last_tag(root: &Path) -> Option<String> {
    let mut tag = String::new();
    let git = Cmd::new(root, "git").args(["describe", "--tags", "--abbrev=0"]);
    let ended = git.lines(Show::Nothing, |line| tag.push_str(line)).ok()?;
    (ended.code == Some(0)).then_some(tag)
}

fn compare(root: &Path, since: &str, only: &[String]) -> Result<()> {
    let mut command = Cmd::cargo(root).args(["semver-checks", "--baseline-rev", since]);
    for package in published(root)? {
        if package.has_library() && (only.is_empty() || only.contains(&package.name)) {
            command = command.args(["--package", &package.name]);
        }
    }
    command.run(Show::All)
}
