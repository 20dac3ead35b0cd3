//! Allocators without a package of the system, built as libraries for `LD_PRELOAD`.
//!
//! # Theory
//! A crate that contains an allocator's C or C++ source is the simplest source of an exact version. A scratch workspace
//! under `target/peers` names these crates by exact version, and cargo fetches them there: none of them becomes a
//! dependency of ours. Their sources are then compiled as upstream does for replacing `malloc`, with the compilers of
//! the system; the crates themselves rename it. `vmlab bench memory` finds the libraries in `target/peers`.

use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these (snmalloc, rpmalloc, mimalloc3)
    #[arg(value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PEERS.map(|peer| peer.name)))]
    names: Vec<String>,
}

/// An allocator in a crate.
struct Peer {
    name: &'static str,
    /// The exact version of the crate, and of the allocator.
    package: &'static str,
    version: &'static str,
    holds: &'static str,
    compiler: &'static str,
    /// Folders for includes, and the source, inside the crate.
    includes: &'static [&'static str],
    source: &'static str,
    flags: &'static [&'static str],
    libraries: &'static [&'static str],
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "snmalloc",
        package: "snmalloc-sys",
        version: "0.7.6",
        holds: "snmalloc 0.7, of snmalloc-sys 0.7.6",
        compiler: "c++",
        includes: &["upstream/src"],
        source: "upstream/src/snmalloc/override/malloc.cc",
        flags: &[
            "-std=c++20",
            "-mcx16",
            "-fno-exceptions",
            "-fno-rtti",
            "-ftls-model=initial-exec",
            "-fvisibility=hidden",
            "-DSNMALLOC_USE_WAIT_ON_ADDRESS=1",
        ],
        libraries: &["-lpthread", "-latomic"],
    },
    Peer {
        name: "rpmalloc",
        package: "rpmalloc-sys",
        version: "0.2.3+b097fd0",
        holds: "rpmalloc 1.4, of rpmalloc-sys 0.2.3+b097fd0",
        compiler: "cc",
        includes: &["rpmalloc/rpmalloc"],
        source: "rpmalloc/rpmalloc/rpmalloc.c",
        flags: &["-D_GNU_SOURCE=1", "-DENABLE_PRELOAD=1", "-DENABLE_OVERRIDE=1"],
        libraries: &["-lpthread", "-ldl"],
    },
    Peer {
        name: "mimalloc3",
        package: "libmimalloc-sys",
        version: "0.1.49",
        holds: "mimalloc 3, of libmimalloc-sys 0.1.49",
        compiler: "cc",
        includes: &["c_src/mimalloc/v3/include", "c_src/mimalloc/v3/src"],
        source: "c_src/mimalloc/v3/src/static.c",
        flags: &[
            "-DMI_BUILD_RELEASE",
            "-DMI_MALLOC_OVERRIDE",
            "-DMI_SHARED_LIB",
            "-DMI_SHARED_LIB_EXPORT",
            "-fno-builtin-malloc",
            "-ftls-model=initial-exec",
            "-fvisibility=hidden",
        ],
        libraries: &["-lpthread"],
    },
];

/// Runs `cargo xtask peers`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let target = root.join("target/peers");
    let workspace = target.join("workspace");
    write_workspace(&workspace, "peers", &PEERS.map(|peer| (peer.package, peer.version)))?;
    let manifest = workspace.join("Cargo.toml");
    let metadata = Cmd::cargo(&workspace)
        .args(["metadata", "--format-version", "1", "--quiet", "--manifest-path"])
        .arg(&manifest)
        .read()
        .context("cannot fetch the crates that bring the allocators")?;
    let mut broken = Vec::new();
    for peer in
        PEERS.iter().filter(|peer| args.names.is_empty() || args.names.iter().any(|name| name == peer.name))
    {
        let built = folder(&metadata, peer.package, peer.version)
            .and_then(|folder| build(root, &target, &folder, peer));
        match built {
            Ok(library) => {
                println!("{}: {}", peer.holds, library.strip_prefix(root).unwrap_or(&library).display());
            }
            Err(error) => broken.push(format!("{}: {error:#}", peer.name)),
        }
    }
    if !broken.is_empty() {
        bail!("not built: {}", broken.join("; "));
    }
    Ok(())
}

/// Writes a workspace with dependencies by exact version. It is separate, so that cargo does not look for it in ours.
pub(crate) fn write_workspace(dir: &Path, name: &str, packages: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    fs::write(dir.join("Cargo.toml"), manifest(name, packages))?;
    fs::write(dir.join("lib.rs"), "")?;
    Ok(())
}

fn manifest(name: &str, packages: &[(&str, &str)]) -> String {
    let mut text = format!(
        "[workspace]\n\n[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [lib]\npath = \"lib.rs\"\n\n[dependencies]\n",
    );
    for (package, version) in packages {
        // The text after a plus is not part of a requirement.
        let version = version.split('+').next().unwrap_or_default();
        text += &format!("{package} = {{ version = \"={version}\", default-features = false }}\n");
    }
    text
}

/// Returns the folder of a crate, from the output of `cargo metadata`.
pub(crate) fn folder(metadata: &str, package: &str, version: &str) -> Result<PathBuf> {
    // The path of a manifest is the only field with a package's name and version in this form.
    let wanted = format!("/{package}-{version}/Cargo.toml");
    let marker = "\"manifest_path\":\"";
    let paths = metadata.split(marker).skip(1).filter_map(|rest| rest.split('"').next());
    let path = paths.into_iter().find(|path| path.ends_with(&wanted));
    let path = path.with_context(|| format!("cargo fetched no {package} {version}"))?;
    Path::new(path).parent().map(Path::to_path_buf).context("a manifest without a folder")
}

fn build(root: &Path, target: &Path, folder: &Path, peer: &Peer) -> Result<PathBuf> {
    let library = target.join(format!("libpeer_{}.so", peer.name));
    // Under another name until it is complete: a benchmark may look for it at any moment.
    let unfinished = target.join(format!("libpeer_{}.so.part", peer.name));
    let includes = peer.includes.iter().map(|include| format!("-I{}", folder.join(include).display()));
    Cmd::new(root, peer.compiler)
        .args(["-O3", "-fPIC", "-shared", "-DNDEBUG", "-w"])
        .args(peer.flags)
        .args(includes)
        .arg(folder.join(peer.source))
        .arg("-o")
        .arg(&unfinished)
        .args(peer.libraries)
        .run(Show::Failure)?;
    fs::rename(&unfinished, &library)?;
    fs::write(library.with_extension("version"), format!("{}\n", peer.holds))?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_found_by_name_and_version_only() {
        let Peer { package, version, .. } = PEERS[1];
        let metadata = r#"{"packages":[{"manifest_path":"/a/xrpmalloc-sys-0.2.3+b097fd0/Cargo.toml"},
            {"manifest_path":"/a/rpmalloc-sys-0.2.4/Cargo.toml"},
            {"name":"rpmalloc-sys","manifest_path":"/b/rpmalloc-sys-0.2.3+b097fd0/Cargo.toml","x":1}]}"#;
        assert_eq!(folder(metadata, package, version).unwrap(), Path::new("/b/rpmalloc-sys-0.2.3+b097fd0"));
        let message = folder("{}", package, version).unwrap_err().to_string();
        assert_eq!(message, "cargo fetched no rpmalloc-sys 0.2.3+b097fd0");
    }

    #[test]
    fn every_crate_is_asked_for_to_the_digit() {
        let manifest: toml::Table =
            manifest("peers", &PEERS.map(|peer| (peer.package, peer.version))).parse().unwrap();
        assert!(manifest.contains_key("workspace"), "else cargo would look for ours");
        let dependencies = manifest["dependencies"].as_table().unwrap();
        assert_eq!(dependencies.len(), PEERS.len());
        for (name, asked) in dependencies {
            assert!(asked["version"].as_str().unwrap().starts_with('='), "{name}");
        }
    }

    #[test]
    fn a_source_that_does_not_compile_is_reported_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let peer = Peer { source: "no-such.c", ..PEERS[1] };
        let message = build(dir.path(), dir.path(), dir.path(), &peer).unwrap_err().to_string();
        assert!(message.contains("no-such.c"), "{message}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
