//! Building both libraries, or reporting in one line what is missing.

use super::Peers;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The package with the kernel's source.
const PACKAGE: &str = "linux-source-6.12";

/// Builds everything but [`counting`] under `target/peer`.
pub(super) fn build(root: &Path, peer: Option<&Path>, linux: Option<&Path>) -> Result<Peers> {
    let peer = directory(root, peer)?;
    let target = root.join("target/peer");
    let programs = target.join("build");
    fs::create_dir_all(&programs)?;
    let source = source(root, &peer, linux, &target)?;
    make(root, &peer, &source, &programs)?.run(Show::Failure)?;
    let ours = library(root, &target, &[])?;
    Ok(Peers {
        linux: programs.join("libkvmalloc.so"),
        ours,
        genops: peer.join("tools/genops.py"),
        scratch: target,
        programs,
    })
}

/// Builds our library once more, counting the locks that it takes: for measurements.
pub(super) fn counting(root: &Path) -> Result<PathBuf> {
    library(root, &root.join("target/peer/count"), &["--features", "va-peer/count"])
}

fn directory(root: &Path, peer: Option<&Path>) -> Result<PathBuf> {
    let Some(peer) = peer else {
        bail!("no kernel-peer directory is named: say where one is with --peer DIR or VA_PEER_DIR");
    };
    let dir = root.join(peer);
    if !dir.join("Makefile").is_file() {
        bail!(
            "there is no kernel-peer directory at {}: name one with --peer DIR or VA_PEER_DIR",
            dir.display()
        );
    }
    dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))
}

/// Returns the kernel's source: named by the user, unpacked by an earlier run, or from the package.
fn source(root: &Path, peer: &Path, named: Option<&Path>, target: &Path) -> Result<PathBuf> {
    let holds = |dir: &Path| dir.join("mm/vmalloc.c").is_file();
    if let Some(named) = named {
        let dir = root.join(named);
        if !holds(&dir) {
            bail!("{} holds no source of Linux (mm/vmalloc.c)", dir.display());
        }
        return Ok(dir.canonicalize()?);
    }
    let unpacked = target.join("linux");
    if holds(&unpacked) {
        return Ok(unpacked);
    }
    let installed = Cmd::new(root, "dpkg").args(["-L", PACKAGE]).read();
    if !installed.is_ok_and(|files| files.contains("linux-source-6.12.tar")) {
        bail!("the source of Linux 6.12 is missing: apt-get install {PACKAGE}, or name it with --linux DIR");
    }
    println!("unpacking {PACKAGE} into {}", unpacked.display());
    make(root, peer, &unpacked, target)?.arg("source").run(Show::Failure)?;
    Ok(unpacked)
}

/// Returns `make` in the kernel-peer directory, with its output elsewhere.
fn make(root: &Path, peer: &Path, source: &Path, build: &Path) -> Result<Cmd> {
    let set = |name: &str, path: &Path| -> Result<String> {
        let path = path.to_str().with_context(|| format!("{} is not Unicode", path.display()))?;
        Ok(format!("{name}={path}"))
    };
    Ok(Cmd::new(root, "make").arg("-C").arg(peer).arg(set("KSRC", source)?).arg(set("B", build)?))
}

/// Builds our library and copies it, so that another build does not replace it.
fn library(root: &Path, dir: &Path, features: &[&str]) -> Result<PathBuf> {
    let built = dir.join("rust");
    Cmd::cargo(root)
        .args(["build", "--quiet", "--profile", "dist", "-p", "va-peer"])
        .args(features)
        .arg("--target-dir")
        .arg(&built)
        .run(Show::Failure)?;
    Ok(built.join("dist/libva_peer.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_reported_in_one_line() {
        let root = tempfile::tempdir().unwrap();
        for named in [None, Some(Path::new("nowhere"))] {
            let error = directory(root.path(), named).unwrap_err().to_string();
            assert!(error.contains("--peer DIR or VA_PEER_DIR") && !error.contains('\n'), "{error}");
        }
        let error = source(root.path(), root.path(), Some(Path::new("none")), root.path()).unwrap_err();
        assert!(error.to_string().contains("mm/vmalloc.c"), "{error}");
    }

    #[test]
    fn source_that_the_user_names_comes_first() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["mine/mm", "linux/mm"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join("vmalloc.c"), "").unwrap();
        }
        let of = |named: Option<&str>| source(root.path(), root.path(), named.map(Path::new), root.path());
        assert!(of(Some("mine")).unwrap().ends_with("mine"));
        assert!(of(None).unwrap().ends_with("linux"));
    }
}
