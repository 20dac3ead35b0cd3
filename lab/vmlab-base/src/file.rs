//! An output file that is opened before the work whose result it receives.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A writable file with its old content. A new file does not exist before it is written whole, so that a program that
/// is stopped leaves none.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    /// The same, but for a link to no file: the path of that.
    target: PathBuf,
    /// The file, if there was one.
    file: Option<File>,
}

impl OutputFile {
    /// Opens the file, or tries whether it can be created.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let made = !path.exists();
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).with_context(cannot)?;
        let mut target = path.to_path_buf();
        if made {
            target = path.canonicalize().with_context(cannot)?;
            std::fs::remove_file(&target).with_context(cannot)?;
        }
        Ok(Self { path: path.to_path_buf(), target, file: (!made).then_some(file) })
    }

    /// Replaces the file's content, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(self, text: &str) -> Result<PathBuf> {
        let write = || match &self.file {
            Some(file) => {
                let mut file: &File = file;
                // A pipe or a device has no length.
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                file.write_all(text.as_bytes())
            }
            None => {
                let mut part = self.target.clone().into_os_string();
                part.push(format!(".{}.part", std::process::id()));
                let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &self.target));
                if written.is_err() {
                    // What remains of it is the error that is reported.
                    let _ = std::fs::remove_file(&part);
                }
                written
            }
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.path)
    }

    /// Truncates the file, and returns it for incremental writes.
    ///
    /// # Errors
    /// If it cannot be truncated.
    pub fn stream(self) -> Result<File> {
        let cannot = || format!("cannot write {}", self.path.display());
        let Some(file) = self.file else { return File::create(&self.path).with_context(cannot) };
        // A pipe or a device has no length.
        if file.metadata().is_ok_and(|data| data.is_file()) {
            file.set_len(0).with_context(cannot)?;
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_unchanged_until_the_new_one_is_complete() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("r");
        let opened = OutputFile::open(&path).unwrap();
        // A program that is stopped here leaves no file.
        assert!(!path.exists());
        drop(opened);
        assert!(!path.exists());
        assert_eq!(OutputFile::open(&path).unwrap().write("long text").unwrap(), path);
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "long text");
        OutputFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("made", &link).unwrap();
        let opened = OutputFile::open(&link).unwrap();
        assert!(!link.exists());
        opened.write("by a link").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(dir.path().join("made")).unwrap(), "by a link");
        let error = OutputFile::open(&dir.path().join("no/r")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.ends_with("no/r"), "{error}");
    }
}
