//! Tools that a machine may lack: built once into `target/tools`.

use crate::sh::{Cmd, Show, on_path};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// The version for which `deny.toml` was written.
const DENY_VERSION: &str = "0.20.2";

/// The version that generated the header: another may format it differently.
pub(crate) const CBINDGEN_VERSION: &str = "0.29.0";

/// Returns cbindgen of that version, built here if necessary. The one on the path may be another version.
pub(crate) fn cbindgen(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let binary = tools.join("bin/cbindgen");
    if !binary.is_file() {
        println!("building cbindgen into target/tools");
        Cmd::cargo(root)
            .args(["install", "--quiet", "--locked", "--version", CBINDGEN_VERSION])
            .arg("--root")
            .arg(&tools)
            .arg("cbindgen")
            .env("CARGO_TARGET_DIR", tools.join("build"))
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .run(Show::All)?;
        let _ = std::fs::remove_dir_all(tools.join("build"));
    }
    Ok(binary)
}

/// Returns true if cargo-deny need not be built.
pub(crate) fn has_cargo_deny(root: &Path) -> bool {
    on_path("cargo-deny") || root.join("target/tools/bin/cargo-deny").is_file()
}

/// Returns cargo-deny: the one on the path, or one built here.
///
/// It is a large program that runs for half a second, so it is built without optimisation and without what only
/// advisories need: a minute on two cores.
pub(crate) fn cargo_deny(root: &Path) -> Result<PathBuf> {
    if on_path("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    let tools = root.join("target/tools");
    let binary = tools.join("bin/cargo-deny");
    if !binary.is_file() {
        println!("cargo-deny is not installed: building it into target/tools");
        Cmd::cargo(root)
            .args(["install", "--quiet", "--locked", "--no-default-features", "--version", DENY_VERSION])
            .arg("--root")
            .arg(&tools)
            .arg("cargo-deny")
            .env("CARGO_TARGET_DIR", tools.join("build"))
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .run(Show::All)?;
        // Some hundred megabytes that are not needed again.
        let _ = std::fs::remove_dir_all(tools.join("build"));
    }
    Ok(binary)
}
