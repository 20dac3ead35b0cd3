//! Output files, which must not be among the inputs.

use anyhow::{Result, bail};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vmlab_base::file::OutputFile;

/// Opens an output file, if one is named.
///
/// # Errors
/// Those of [`open`].
pub(super) fn output<'a>(
    path: Option<&Path>,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<Option<OutputFile>> {
    path.map(|path| open(path, inputs)).transpose()
}

/// Opens an output file.
///
/// # Errors
/// If it is one of the inputs, or cannot be written.
pub(super) fn open<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a PathBuf>) -> Result<OutputFile> {
    check(path, inputs)?;
    OutputFile::open(path)
}

/// Fails if an output file is one of the inputs.
pub(super) fn check<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
    if let Some(input) = inputs.into_iter().find(|input| same(input, path)) {
        bail!("{} would be read and written at once", input.display());
    }
    Ok(())
}

/// Returns true if two paths name the same file. A device such as /dev/null may be both.
pub(super) fn same(a: &Path, b: &Path) -> bool {
    let stdin =
        |path: &Path| if path == Path::new("-") { PathBuf::from("/dev/stdin") } else { path.to_path_buf() };
    let (a, b) = (stdin(a), stdin(b));
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => a == b,
        _ => false,
    }
}
