//! Licences and sources of dependencies, by what `cargo metadata` reports and `deny.toml` allows.
//!
//! This needs no tool. `cargo xtask ci --full` runs `cargo deny`, which also checks the texts of licences; where it is
//! installed, every run does.

use crate::cargo::WORKSPACES;
use crate::count::Tests;
use crate::sh::{Cmd, Show};
use crate::tools;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use spdx::{Expression, ParseMode};
use std::fs;
use std::path::Path;

/// The registry of every dependency that is not in the tree.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Rules {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// `None` for a package of the tree.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    if tools::has_cargo_deny(root) {
        return deny(root, tests);
    }
    let rules: Rules = toml::from_str(&fs::read_to_string(root.join("deny.toml"))?).context("deny.toml")?;
    let (mut count, mut findings) = (0, Vec::new());
    for manifest in WORKSPACES {
        let args = ["metadata", "--quiet", "--locked", "--all-features", "--format-version", "1"];
        let text = Cmd::cargo(root).args(args).args(["--manifest-path", manifest]).read()?;
        let metadata: Metadata = serde_json::from_str(text.trim()).context("the output of cargo metadata")?;
        count += metadata.packages.len();
        findings.extend(metadata.packages.iter().flat_map(|package| wrong(package, &rules.licenses.allow)));
    }
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("licences and sources of {count} packages: nothing found");
    Ok(())
}

/// Runs `cargo deny`, which is built if it is not installed.
pub(crate) fn deny(root: &Path, _: &mut Tests) -> Result<()> {
    let deny = tools::cargo_deny(root)?;
    for manifest in WORKSPACES {
        Cmd::new(root, &deny)
            .args(["--manifest-path", manifest, "--locked", "--config", "deny.toml"])
            .args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
            .run(Show::All)?;
    }
    Ok(())
}

/// Returns the faults of a package.
fn wrong(package: &Package, allowed: &[String]) -> Vec<String> {
    let Package { name, license, source, dependencies } = package;
    let mut found = Vec::new();
    match license {
        Some(license) if is_allowed(license, allowed) => {}
        Some(license) => found.push(format!("{name}: the licence {license} is not one of deny.toml")),
        None => found.push(format!("{name}: it names no licence")),
    }
    match source {
        None => {
            let open = dependencies.iter().filter(|of| of.req == "*" && of.path.is_none());
            found.extend(open.map(|of| format!("{name}: it takes any version of {}", of.name)));
        }
        Some(source) if source == REGISTRY => {}
        Some(source) => found.push(format!("{name}: it comes from {source}")),
    }
    found
}

/// Returns true if a licence expression can be fulfilled with the allowed licences alone.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Before 2018 a slash stood for OR, which LAX accepts.
    Expression::parse_mode(expression, ParseMode::LAX)
        .is_ok_and(|parsed| parsed.evaluate(|licence| allowed.contains(&licence.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<String> {
        ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_string).to_vec()
    }

    #[test]
    fn an_expression_is_allowed_if_allowed_licences_fulfil_it() {
        for (expression, good) in [
            ("MIT", true),
            ("GPL-2.0", false),
            ("MIT OR GPL-2.0", true),
            ("GPL-2.0/MIT", true),
            ("MIT AND GPL-2.0", false),
            ("GPL-2.0 AND MIT OR Apache-2.0", true),
            ("GPL-2.0 AND (MIT OR Apache-2.0)", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("MIT WITH LLVM-exception", false),
            ("", false),
            ("(MIT", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed()), good, "{expression}");
        }
    }

    #[test]
    fn another_licence_source_or_any_version_is_found() {
        let package = |license: Option<&str>, source: Option<&str>, req: &str| Package {
            name: "a".to_string(),
            license: license.map(str::to_string),
            source: source.map(str::to_string),
            dependencies: vec![Dependency { name: "b".to_string(), req: req.to_string(), path: None }],
        };
        let found = |package| wrong(&package, &allowed()).len();
        assert_eq!(found(package(Some("MIT"), None, "^1")), 0);
        assert_eq!(found(package(Some("MIT"), Some(REGISTRY), "*")), 0);
        assert_eq!(found(package(None, None, "^1")), 1);
        assert_eq!(found(package(Some("GPL-2.0"), None, "^1")), 1);
        assert_eq!(found(package(Some("MIT"), Some("git+https://example.invalid/b"), "^1")), 1);
        assert_eq!(found(package(Some("MIT"), None, "*")), 1);
    }
}
