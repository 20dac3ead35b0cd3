//! `/proc/vmallocinfo` and `percpu_stats`, with addresses that can be compared.
//!
//! # Theory
//! Newer kernels print addresses there as hashes, to root too, unless `kernel.kptr_restrict` is 1. So it is set to 1
//! while the table is read, some milliseconds, and then restored. A process that dies in between leaves the old value
//! in a file. The next recording restores that value, unless another process has set a different one since. The file is
//! also the lock of recorders: without it, the second of two would take the 1 of the first for the old value. Nothing
//! is written if addresses are printed as they are and no such file exists.
//!
//! # Invariants
//! - **KP1 restored** `kptr_restrict` has its old value once the reader is dropped, or the next one was created after a
//!   crash.

use super::tracefs::Found;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/vmallocinfo";

/// Files of the system that are read and written here; tests use others.
pub(crate) struct Paths {
    pub(crate) table: PathBuf,
    pub(crate) restrict: PathBuf,
    pub(crate) saved: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            table: TABLE.into(),
            restrict: "/proc/sys/kernel/kptr_restrict".into(),
            saved: "/run/vmlab.kptr_restrict".into(),
        }
    }
}

/// The table of areas as text, with a flag that is true if its addresses are hashes.
pub(crate) struct Vmallocinfo {
    pub(crate) text: String,
    pub(crate) hashed: bool,
}

/// Reads the table. Its addresses are hashes only if plain ones are not available. Restores a value that a crash left
/// changed.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn vmallocinfo(paths: &Paths) -> Result<Vmallocinfo> {
    // Left by a process that died, or in use by another recorder: then wait for its lock.
    let pending = paths.saved.exists();
    let text = read(&paths.table)?;
    if !pending && !hashed(&text) {
        return Ok(Vmallocinfo { text, hashed: false });
    }
    // This fails where kernel.* cannot be written, for instance in a container: then only hashes are available.
    let text = match Unrestricted::new(paths) {
        Ok(_while_read) => read(&paths.table)?,
        Err(_) => text,
    };
    Ok(Vmallocinfo { hashed: hashed(&text), text })
}

fn read(path: &Path) -> Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{} may be read by root only: run this command by sudo", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Returns true if the addresses of a table are hashes, or hidden: the difference of the addresses is not the size of
/// the area.
pub fn hashed(text: &str) -> bool {
    let honest = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let size: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some(hex(end)?.checked_sub(hex(start)?)? == size)
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(64);
    let (mut all, mut honest_ones) = (0, 0);
    for line in lines {
        all += 1;
        honest_ones += u32::from(honest(line) == Some(true));
    }
    honest_ones * 2 < all
}

/// While it exists, `kptr_restrict` is 1.
struct Unrestricted<'a> {
    paths: &'a Paths,
    /// The earlier value.
    before: String,
    /// The locked file. It contains `before` while this exists.
    saved: File,
}

impl<'a> Unrestricted<'a> {
    fn new(paths: &'a Paths) -> io::Result<Self> {
        let mut saved = locked(&paths.saved)?;
        let mut before = String::new();
        saved.read_to_string(&mut before)?;
        let now = restriction(paths)?;
        // The saved value is valid while the setting is still 1; otherwise another process has set a value since.
        if now != "1" || !matches!(before.as_str(), "0" | "2") {
            before = now;
            saved.set_len(0)?;
            saved.rewind()?;
            saved.write_all(before.as_bytes())?;
        }
        // From here on a crash leaves the old value in the file; dropping restores it.
        let changed = Self { paths, before, saved };
        fs::write(&paths.restrict, "1")?;
        Ok(changed)
    }
}

impl Drop for Unrestricted<'_> {
    fn drop(&mut self) {
        // Checks KP1. The file is removed before its lock is released, so that a waiting process opens a new file.
        let restored = fs::write(&self.paths.restrict, &self.before).is_ok();
        if restored || restriction(self.paths).is_ok_and(|now| now == self.before) {
            let _ = self.saved.set_len(0);
            let _ = fs::remove_file(&self.paths.saved);
        }
    }
}

/// Returns the current `kptr_restrict`.
fn restriction(paths: &Paths) -> io::Result<String> {
    Ok(fs::read_to_string(&paths.restrict)?.trim().to_string())
}

/// Opens and locks a file owned by root, and retries if another process removed it meanwhile.
fn locked(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.lock()?;
        match fs::symlink_metadata(path) {
            Ok(now) if now.ino() == file.metadata()?.ino() => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns debugfs's report of per-CPU memory, or an error that names the reason.
pub fn percpu_stats() -> Result<String> {
    let debugfs = Found::find("debugfs")?;
    let path = debugfs.path.join("percpu_stats");
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("this kernel has no percpu_stats: it was built without CONFIG_PERCPU_STATS")
        }
        other => other.with_context(|| format!("cannot read percpu_stats of debugfs, {}", debugfs.how())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const RAW: &str = "0xffffc90000000000-0xffffc90000005000   20480 irq_init+0xca/0x100 vmap\n";
    const HASHED: &str = "0x00000000a3eb8df1-0x0000000040ab02d3   20480 irq_init+0xca/0x100 vmap\n";

    fn paths(dir: &TempDir, table: &str, restrict: &str) -> Paths {
        let [table_at, restrict_at, saved] = ["table", "restrict", "kept"].map(|name| dir.path().join(name));
        fs::write(&table_at, table).unwrap();
        fs::write(&restrict_at, restrict).unwrap();
        Paths { table: table_at, restrict: restrict_at, saved }
    }

    #[test]
    fn hashes_are_distinguished_from_addresses() {
        for (text, want) in [
            (RAW, false),
            (HASHED, true),
            ("", false),
            ("0x0000000000000000-0x0000000000000000    8192 f+0x1/0x2\n", true),
            ("(____ptrval____)-(____ptrval____)    8192 f\n", true),
        ] {
            assert_eq!(hashed(text), want, "{text}");
        }
        // One line that is not understood does not make a table hashed.
        assert!(!hashed(&format!("{RAW}{RAW}strange\n")));
    }

    #[test]
    fn kp1_the_restriction_is_what_it_was_after_reading_and_after_a_crash() {
        let dir = TempDir::new().unwrap();
        let raw = paths(&dir, RAW, "0\n");
        assert!(!vmallocinfo(&raw).unwrap().hashed);
        assert_eq!(fs::read_to_string(&raw.restrict).unwrap(), "0\n", "not touched");

        let hidden = paths(&dir, HASHED, "0\n");
        assert!(vmallocinfo(&hidden).unwrap().hashed, "this table is a file");
        assert_eq!(fs::read_to_string(&hidden.restrict).unwrap(), "0");
        assert!(!hidden.saved.exists());

        // A process died while the setting was 1: the old value is in the file, and the current one is ignored.
        let open = Unrestricted::new(&hidden).unwrap();
        assert_eq!(fs::read_to_string(&hidden.restrict).unwrap(), "1");
        open.saved.unlock().unwrap();
        std::mem::forget(open);
        drop(Unrestricted::new(&hidden).unwrap());
        assert_eq!(fs::read_to_string(&hidden.restrict).unwrap(), "0");
        assert!(!hidden.saved.exists());
    }

    #[test]
    fn kp1_a_crash_is_mended_although_addresses_are_shown_meanwhile() {
        let dir = TempDir::new().unwrap();
        let paths = paths(&dir, RAW, "1\n");
        fs::write(&paths.saved, "0").unwrap();
        assert!(!vmallocinfo(&paths).unwrap().hashed);
        assert_eq!(fs::read_to_string(&paths.restrict).unwrap(), "0");
        assert!(!paths.saved.exists());
    }

    #[test]
    fn kp1_a_saved_record_is_invalid_after_the_value_changes() {
        let dir = TempDir::new().unwrap();
        let stale = paths(&dir, HASHED, "2\n");
        fs::write(&stale.saved, "0").unwrap();
        drop(Unrestricted::new(&stale).unwrap());
        assert_eq!(fs::read_to_string(&stale.restrict).unwrap(), "2");
        assert!(!stale.saved.exists());

        // A write that fails changed nothing, and nothing is left to restore. No user may write this file.
        let unwritable = Paths { restrict: "/proc/version".into(), ..stale };
        assert!(Unrestricted::new(&unwritable).is_err());
        assert!(!unwritable.saved.exists());
    }

    #[test]
    fn kp1_two_readers_take_turns() {
        let dir = TempDir::new().unwrap();
        let paths = paths(&dir, HASHED, "2");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let open = Unrestricted::new(&paths).unwrap();
                        assert_eq!(open.before, "2");
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&paths.restrict).unwrap(), "2");
    }

    #[test]
    fn a_table_that_cannot_be_read_is_one_line() {
        let dir = TempDir::new().unwrap();
        let mut paths = paths(&dir, RAW, "0");
        paths.table = dir.path().join("none");
        let error = format!("{:#}", vmallocinfo(&paths).err().unwrap());
        assert!(error.starts_with("cannot read ") && error.lines().count() == 1, "{error}");
    }
}
