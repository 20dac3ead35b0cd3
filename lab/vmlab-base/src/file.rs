//! An output file that is opened before the work whose result it receives.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A writable file with its old content. If it is dropped before a write, a file that `open` created is removed.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    /// True if `open` created the file.
    made: bool,
}

impl OutputFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(path: &Path) -> Result<Self> {
        let made = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), file, made })
    }

    /// Replaces the file's content, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(mut self, text: &str) -> Result<PathBuf> {
        let write = |file: &mut File| {
            // A pipe or a device has no length.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(text.as_bytes())
        };
        write(&mut self.file).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.made = false;
        Ok(std::mem::take(&mut self.path))
    }

    /// Truncates the file, and returns it for incremental writes.
    ///
    /// # Errors
    /// If it cannot be truncated.
    pub fn stream(mut self) -> Result<File> {
        let file = self.file.try_clone().with_context(|| format!("cannot write {}", self.path.display()))?;
        // A pipe or a device has no length.
        if file.metadata().is_ok_and(|data| data.is_file()) {
            file.set_len(0).with_context(|| format!("cannot write {}", self.path.display()))?;
        }
        self.made = false;
        Ok(file)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.made {
            // An empty file that remains is harmless.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_unchanged_until_the_new_one_is_complete() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("r");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists());
        assert_eq!(OutputFile::open(&path).unwrap().write("long text").unwrap(), path);
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "long text");
        OutputFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        let error = OutputFile::open(&dir.path().join("no/r")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.ends_with("no/r"), "{error}");
    }
}
