//! A Python with drgn in the initial files of a guest, which reads its own kernel by `/proc/kcore`.

use super::Kernel;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Prints the interpreter, the folder of its own modules, and the folder of drgn, each on a line.
const PLACES: &str = "import drgn, os, sys, sysconfig\n\
    print(os.path.realpath(sys.executable))\n\
    print(sysconfig.get_path('stdlib'))\n\
    print(os.path.dirname(os.path.dirname(os.path.realpath(drgn.__file__))))";
/// The folder of drgn and of `lab/python` in the guest.
const PACKAGES: &str = "/lib/python";
/// The parts of Python that a reader of a kernel does not need.
const LEFT_OUT: [&str; 9] = [
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "__pycache__",
    "config-*",
];

/// Returns a kernel whose initial files have Python, drgn, `lab/python` and the kernel with its debug symbols.
pub(super) fn with_python(
    root: &Path,
    kernel: &Kernel,
    files: &Path,
    python: &Path,
    symbols: &Path,
) -> Result<Kernel> {
    fs::create_dir_all(files)?;
    Cmd::new(root, "cp")
        .args(["-a", "-T"])
        .arg(kernel.initrd.with_extension("").with_extension("root"))
        .arg(files)
        .run(Show::Failure)?;
    let places = Cmd::new(root, python).args(["-c", PLACES]).read()?;
    let mut places = places.lines().map(PathBuf::from);
    let mut next = || places.next().context("Python did not name its folders");
    let (interpreter, modules, packages) = (next()?, next()?, next()?);
    copy(&interpreter, files)?;
    tree(&modules, &below(files, &modules)?, &LEFT_OUT)?;
    // The guest has an empty /tmp, where these may be here.
    let to = files.join(PACKAGES.trim_start_matches('/'));
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(&packages)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let wanted = name.starts_with("_drgn") || name == "drgn" || name == "drgn.libs";
        match (wanted, entry.file_type()?.is_dir()) {
            (true, true) => tree(&entry.path(), &to.join(&*name), &["__pycache__"])?,
            (true, false) => _ = fs::copy(entry.path(), to.join(&*name))?,
            (false, _) => {}
        }
    }
    tree(&root.join("lab/python/vmlab"), &to.join("vmlab"), &["__pycache__"])?;
    for library in libraries(root, &interpreter, &modules, &packages)? {
        copy(&library, files)?;
    }
    fs::copy(symbols, files.join("vmlinux"))?;
    let home =
        modules.parent().and_then(Path::parent).context("the folder of Python's modules is at the top")?;
    let script = format!(
        "#!/bin/sh\nexport PYTHONHOME={} PYTHONPATH={PACKAGES} PYTHONDONTWRITEBYTECODE=1\nexec {} \"$@\"\n",
        home.display(),
        interpreter.display()
    );
    fs::write(files.join("bin/python3"), script)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(files.join("bin/python3"), mode)?;
    let initrd = super::build::pack(files, &files.with_extension("initrd.gz"))?;
    Ok(Kernel { image: kernel.image.clone(), initrd, symbols: kernel.symbols.clone() })
}

/// Copies a file to the same path below another root, and the file that a link leads to.
fn copy(path: &Path, files: &Path) -> Result<()> {
    let to = below(files, path)?;
    if fs::symlink_metadata(&to).is_ok() {
        return Ok(());
    }
    let target = path.canonicalize().with_context(|| format!("no {}", path.display()))?;
    if target == path {
        fs::copy(path, &to)?;
        return Ok(());
    }
    symlink(&target, &to)?;
    copy(&target, files)
}

/// Returns a path below another root, whose folder exists.
fn below(files: &Path, path: &Path) -> Result<PathBuf> {
    let to = files.join(path.strip_prefix("/").with_context(|| format!("{} is relative", path.display()))?);
    fs::create_dir_all(to.parent().unwrap_or(files))?;
    Ok(to)
}

/// Copies a folder, without what some patterns name.
fn tree(path: &Path, to: &Path, without: &[&str]) -> Result<()> {
    fs::create_dir_all(to)?;
    let excluded: Vec<_> = without.iter().map(|name| format!("--exclude={name}")).collect();
    let script = format!("tar -c {} . | tar -x -C {}", excluded.join(" "), to.display());
    Cmd::new(path, "sh").args(["-c", &script]).run(Show::Failure)
}

/// Returns the shared libraries that the interpreter, its modules and drgn load.
fn libraries(root: &Path, interpreter: &Path, modules: &Path, packages: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut programs = vec![interpreter.to_path_buf()];
    for folder in [modules.join("lib-dynload"), packages.to_path_buf(), packages.join("drgn.libs")] {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let shared = entries.flatten().map(|entry| entry.path());
        programs.extend(shared.filter(|path| path.to_string_lossy().contains(".so")));
    }
    let mut found = BTreeSet::new();
    for program in programs.iter().filter(|path| path.is_file()) {
        // Of a module that lacks a library, which a reader of a kernel does not load.
        Cmd::new(root, "ldd").arg(program).lines(Show::Nothing, |line| {
            found.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from));
        })?;
    }
    found.retain(|path| path.is_file() && !path.starts_with(packages));
    Ok(found)
}
