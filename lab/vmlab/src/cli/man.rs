//! Manual pages of all commands, generated from `--help`: `cargo xtask install` installs them with the program.

use anyhow::{Context, Result};
use clap::Command;
use std::path::Path;

/// Writes pages to `dir`, one for the program and one for each command that is not hidden: `vmlab.1`,
/// `vmlab-bench-index.1`.
///
/// # Errors
/// If `dir` cannot be created or written to.
pub(super) fn write(command: Command, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, dir)
}

fn pages(command: &Command, dir: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(below, dir)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let path = dir.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
