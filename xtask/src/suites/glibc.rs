//! glibc's tests of malloc, from the source package of the distribution.
//!
//! # Theory
//! A test is a program with glibc's own driver, `support/`, which forks a child and ends it after a while. Both are
//! compiled here against the installed C library. Some headers that they name are not installed. A folder of links has
//! those that need nothing of the build, and a few lines of ours replace the others.

use super::build::{Build, sources, stem};
use super::{Program, Test};
use crate::sh::Cmd;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of the package `glibc-source`.
const PACKAGE: &str = "/usr/src/glibc";

/// The members of the archive that are unpacked.
const PARTS: [&str; 5] = ["support/*", "malloc/*", "include/*", "sysdeps/generic/*", "test-skeleton.c"];

/// Headers of the source that a test may include: their names in it, and their paths.
const HEADERS: [(&str, &str); 12] = [
    ("support", "support"),
    ("malloc", "malloc"),
    ("dynarray.h", "malloc/dynarray.h"),
    ("array_length.h", "include/array_length.h"),
    ("scratch_buffer.h", "include/scratch_buffer.h"),
    ("alloc_buffer.h", "include/alloc_buffer.h"),
    ("intprops.h", "include/intprops.h"),
    ("libc-diag.h", "include/libc-diag.h"),
    ("libc-pointer-arith.h", "include/libc-pointer-arith.h"),
    ("malloc-size.h", "sysdeps/generic/malloc-size.h"),
    ("malloc-alignment.h", "sysdeps/generic/malloc-alignment.h"),
    ("stackinfo.h", "sysdeps/generic/stackinfo.h"),
];

/// The C library's own checks, which some tests are about.
const DEBUG: &str = "libc_malloc_debug.so.0";

/// The requirements of tests that are not plain programs: other sources, variables, and a library.
struct Special {
    name: &'static str,
    with: Option<&'static str>,
    env: Option<(&'static str, &'static str)>,
    library: Option<&'static str>,
}

const NONE: Special = Special { name: "", with: None, env: None, library: None };

const SPECIAL: [Special; 7] = [
    Special { name: "tst-interpose-nothread", with: Some("tst-interpose-aux-nothread.c"), ..NONE },
    Special { name: "tst-interpose-thread", with: Some("tst-interpose-aux-thread.c"), ..NONE },
    Special { name: "tst-malloc-check", env: Some(("MALLOC_CHECK_", "3")), library: Some(DEBUG), ..NONE },
    Special { name: "tst-malloc-usable", env: Some(("MALLOC_CHECK_", "3")), library: Some(DEBUG), ..NONE },
    Special {
        name: "tst-malloc-usable-tunables",
        env: Some(("GLIBC_TUNABLES", "glibc.malloc.check=3")),
        library: Some(DEBUG),
        ..NONE
    },
    Special { name: "tst-compathooks-on", library: Some(DEBUG), ..NONE },
    Special {
        name: "tst-mxfast",
        env: Some(("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0")),
        ..NONE
    },
];

/// Sources that are parts of other tests.
const NO_TESTS: [&str; 4] =
    ["tst-interpose-aux", "tst-interpose-aux-nothread", "tst-interpose-aux-thread", "tst-interpose-skeleton"];

/// Tests that are not built, and why.
const NOT_BUILT: [(&str, &str); 4] = [
    ("tst-interpose-static-nothread", "a static program, which no preload reaches"),
    ("tst-interpose-static-thread", "a static program, which no preload reaches"),
    ("tst-mallocstate", "programs can no longer be linked with `malloc_set_state`"),
    ("tst-mtrace", "a Perl script of glibc's build judges its trace; the program itself checks nothing"),
];

/// Returns the archive of the source.
///
/// # Errors
/// If the package is not installed.
pub(crate) fn archive() -> Result<PathBuf> {
    archive_in(Path::new(PACKAGE))
}

fn archive_in(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).ok().into_iter().flatten().flatten();
    let mut found = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("glibc-") && name.ends_with(".tar.xz")
    });
    let path = found.next();
    path.with_context(|| format!("no source of glibc in {}: apt-get install glibc-source", folder.display()))
}

/// Returns the name of the source, such as `glibc-2.36`.
pub(crate) fn version() -> String {
    let name = archive().map(|path| stem(&path)).unwrap_or_default();
    name.trim_end_matches(".tar").to_string()
}

/// Unpacks the source, and builds each test.
pub(crate) fn tests(root: &Path, target: &Path) -> Result<Vec<Test>> {
    let archive = archive()?;
    let source = target.join(version());
    if !source.join("test-skeleton.c").exists() {
        let parts = PARTS.map(|part| format!("*/{part}"));
        Cmd::new(root, "tar")
            .args(["--wildcards", "-C"])
            .arg(target)
            .arg("-xf")
            .arg(&archive)
            .args(parts)
            .read()
            .context("cannot unpack the source of glibc")?;
    }
    let (build, support) = support(target, &source)?;
    let mut tests = Vec::new();
    for path in sources(&source.join("malloc"))? {
        let name = stem(&path);
        if name.starts_with("tst-") && !NO_TESTS.contains(&name.as_str()) {
            let program = program(&build, &path, &support);
            tests.push(Test { suite: "glibc", name, program });
        }
    }
    if tests.is_empty() {
        bail!("no tests in {}", source.display());
    }
    Ok(tests)
}

/// Builds the driver, and those of its functions that compile here.
fn support(target: &Path, source: &Path) -> Result<(Build, PathBuf)> {
    let dir = target.join("glibc");
    let shims = dir.join("shims");
    let forced = shims.join("glibc.h");
    let flags = ["-std=gnu11", "-D_GNU_SOURCE", "-DTEST_NO_MALLOPT", "-include", &forced.to_string_lossy()];
    let build = Build::new(dir, "cc", &flags)?.include(&shims).include(&source.join("support"));
    build.write("shims/glibc.h", include_str!("shims/glibc.h"))?;
    build.write("shims/shlib-compat.h", include_str!("shims/shlib-compat.h"))?;
    // These two only configure the build of the C library itself.
    build.write("shims/libc-config.h", "")?;
    build.write("shims/libc-symbols.h", "")?;
    for (name, place) in HEADERS {
        symlink(source.join(place), shims.join(name))?;
    }
    let mut parts = sources(&source.join("support"))?;
    parts.retain(|path| {
        let name = stem(path);
        let other = name.starts_with("tst-") || name.starts_with("test-") || name.ends_with("-time64");
        let program = name.ends_with("-container") || name.starts_with("links-dso");
        !other && !program && name != "support_paths"
    });
    // Their tests call functions that the C library does not export.
    let inner = ["scratch_buffer_", "dynarray_", "alloc_buffer_"];
    let malloc = sources(&source.join("malloc"))?.into_iter();
    parts.extend(malloc.filter(|path| inner.iter().any(|start| stem(path).starts_with(start))));
    parts.push(build.write("paths.c", include_str!("shims/paths.c"))?);
    let library = build.archive("support", &parts)?;
    Ok((build, library))
}

fn program(build: &Build, path: &Path, support: &Path) -> Result<Program, String> {
    let name = stem(path);
    if let Some((_, why)) = NOT_BUILT.iter().find(|(known, _)| *known == name) {
        return Err((*why).to_string());
    }
    let special = SPECIAL.iter().find(|special| special.name == name).unwrap_or(&NONE);
    let mut from = vec![path.to_path_buf()];
    from.extend(special.with.map(|with| path.with_file_name(with)));
    from.push(support.to_path_buf());
    let mut program = Program::new(build.program(&name, &from, &["-ldl"])?);
    program.env.extend(special.env.map(|(name, value)| (name, value.to_string())));
    program.library = special.library;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = archive_in(&dir.path().join("none")).unwrap_err().to_string();
        assert!(message.contains("apt-get install glibc-source"), "{message}");
        fs::write(dir.path().join("glibc-2.36.tar.gz"), "").unwrap();
        assert!(archive_in(dir.path()).is_err());
        fs::write(dir.path().join("glibc-2.36.tar.xz"), "").unwrap();
        assert_eq!(archive_in(dir.path()).unwrap(), dir.path().join("glibc-2.36.tar.xz"));
    }

    #[test]
    fn a_test_that_is_not_built_has_a_reason_and_no_circumstances() {
        for (name, why) in NOT_BUILT {
            assert!(!why.is_empty() && !why.contains('|'), "{name}");
            assert!(SPECIAL.iter().all(|special| special.name != name) && !NO_TESTS.contains(&name));
        }
    }
}
