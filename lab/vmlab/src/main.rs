//! The laboratory of `vmalloc`.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match vmlab::cli::main(&vmlab::cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, with all causes.
            vmlab::cli::print_note(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
