//! Packages of the registry that depend on an original, built unmodified over ours.

use super::Face;
use crate::not_run;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result};
use std::fmt;
use std::fs;
use std::path::Path;

/// A package that depends on an original.
struct Dependent {
    face: &'static str,
    name: &'static str,
    version: &'static str,
    /// It takes minutes to build, and is only checked.
    large: bool,
}

const DEPENDENTS: [Dependent; 2] = [
    Dependent { face: "range-alloc", name: "rend3", version: "0.3.0", large: false },
    Dependent { face: "offset-allocator", name: "bevy_render", version: "0.17.3", large: true },
];

/// The result of one build.
pub(super) struct Outcome {
    name: &'static str,
    version: &'static str,
    /// The number of packages, or the reason why it was not built. `None` if the registry cannot be reached.
    built: Option<Result<usize, String>>,
}

impl Outcome {
    /// Returns the message of a failure.
    pub(super) fn failure(&self, face: &str) -> Option<String> {
        self.built.as_ref().is_some_and(Result::is_err).then(|| format!("{face}: {self}"))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, built } = self;
        match built {
            Some(Ok(packages)) => {
                write!(f, "{name} {version} compiles unmodified over it, with {packages} packages")
            }
            Some(Err(error)) => write!(f, "{name} {version} does not compile: {error}"),
            None => write!(f, "{name} {version} cannot be fetched"),
        }
    }
}

/// Builds the dependents of one package.
pub(super) fn build(root: &Path, target: &Path, face: &Face, large: bool) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for dependent in DEPENDENTS.iter().filter(|dependent| dependent.face == face.name) {
        if dependent.large && !large {
            continue;
        }
        let Dependent { name, version, .. } = *dependent;
        let built = if is_there(target, dependent)? {
            Some(build_one(root, target, face, dependent).map_err(|error| format!("{error:#}")))
        } else {
            not_run::add(
                root,
                &format!("{name}, which depends on {}: the registry has no {version} here", face.name),
            );
            None
        };
        outcomes.push(Outcome { name, version, built });
    }
    Ok(outcomes)
}

/// Returns true if cargo can fetch a dependent and all that it depends on, the original included.
fn is_there(target: &Path, dependent: &Dependent) -> Result<bool> {
    let dir = target.join("dependents").join(format!("{}-alone", dependent.name));
    fs::create_dir_all(dir.join("src"))?;
    fs::write(dir.join("src/lib.rs"), "")?;
    fs::write(dir.join("Cargo.toml"), manifest(dependent))?;
    Ok(Cmd::cargo(&dir).args(["fetch", "--quiet"]).lines(Show::Nothing, |_| {})?.code == Some(0))
}

fn build_one(root: &Path, target: &Path, face: &Face, dependent: &Dependent) -> Result<usize> {
    let dir = target.join("dependents").join(dependent.name);
    fs::create_dir_all(dir.join("src"))?;
    fs::write(dir.join("src/lib.rs"), "")?;
    fs::write(dir.join("Cargo.toml"), manifest(dependent) + &patch(face, &face.folder(root)))?;
    // A build without symbols, or a check of the types alone: what counts is whether it compiles.
    Cmd::cargo(&dir)
        .args([if dependent.large { "check" } else { "build" }, "--quiet", "--target-dir"])
        .arg(target.join("build"))
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .run(Show::Failure)?;
    let lock = fs::read_to_string(dir.join("Cargo.lock"))?;
    packages_over(&lock, face.name)
}

/// Returns the manifest of a package that depends on the dependent.
fn manifest(dependent: &Dependent) -> String {
    let Dependent { name, version, .. } = dependent;
    format!(
        "[package]\nname = \"uses-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n[workspace]\n\
         [dependencies]\n{name} = {{ version = \"={version}\", default-features = false }}\n"
    )
}

/// Returns the lines that put our package in place of the original.
fn patch(face: &Face, folder: &Path) -> String {
    format!("[patch.crates-io]\n{} = {{ path = {:?} }}\n", face.name, folder.to_string_lossy())
}

/// Returns the number of packages of a lock file, in which the package of a face is the only one of its name, and from no
/// registry.
fn packages_over(lock: &str, face: &str) -> Result<usize> {
    let lock: toml::Table = toml::from_str(lock)?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("no packages")?;
    let named: Vec<_> = packages
        .iter()
        .filter(|package| package.get("name").and_then(toml::Value::as_str) == Some(face))
        .collect();
    let [one] = named[..] else { anyhow::bail!("{} packages are named {face}", named.len()) };
    if one.get("source").is_some() || lock.contains_key("patch") {
        anyhow::bail!("it was built over the original");
    }
    Ok(packages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_over_the_original_is_noticed() {
        let ours = "[[package]]\nname = \"a\"\n[[package]]\nname = \"f\"\nversion = \"1.0.0\"\n";
        assert_eq!(packages_over(ours, "f").unwrap(), 2);
        assert!(packages_over(&format!("{ours}source = \"registry\"\n"), "f").is_err());
        assert!(packages_over(&format!("{ours}[[patch.unused]]\nname = \"f\"\n"), "f").is_err());
        assert!(packages_over(&format!("{ours}{ours}"), "f").is_err());
        assert!(packages_over(ours, "g").is_err());
    }

    #[test]
    fn the_manifest_names_ours_by_path() {
        let text = manifest(&DEPENDENTS[0]) + &patch(&super::super::FACES[2], Path::new("/f/range-alloc"));
        let table: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(table["patch"]["crates-io"]["range-alloc"]["path"].as_str(), Some("/f/range-alloc"));
        assert_eq!(table["dependencies"]["rend3"]["version"].as_str(), Some("=0.3.0"));
    }
}
