//! Runs a command of `vmlab` inside another program: lists the features of this system.

use clap::Parser;
use vmlab::cli::{Cli, main as run};

fn main() -> anyhow::Result<()> {
    run(&Cli::parse_from(["vmlab", "doctor"]))
}
