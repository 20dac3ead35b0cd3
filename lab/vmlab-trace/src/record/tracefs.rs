//! The kernel's tracing file system, and an instance of our own in it.
//!
//! # Theory
//! An instance has its own events, buffers and clock, so that it does not disturb other users of tracing on this
//! machine, nor they it. If tracefs is not mounted, it is mounted detached: the mount belongs to a file descriptor of
//! this process, and disappears with it, however the process ends. An instance does not disappear by itself. Its name
//! has its process, `vmlab-PID-START` (START is the start time of the process, since PIDs are reused), and the next
//! recording removes instances of processes that have exited. The kernel does not remove an instance that is being
//! read, whatever its name.
//!
//! # Invariants
//! - **TF1 own-instance**  only instances with such a name, of this process or of one that has exited, are written or
//!   removed in tracefs.
//! - **TF2 none-left**  an instance is removed when its recording is dropped, on every path, or by the next one.

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Prefix of the names of recorders' instances.
const PREFIX: &str = "vmlab-";

/// A file system of the kernel: an existing mount, or our own.
#[derive(Debug)]
pub struct Found {
    /// Its root.
    pub path: PathBuf,
    /// Our own mount, if there is one: unmounted when this is dropped.
    mount: Option<OwnedFd>,
}

impl Found {
    /// Finds the mount of `kind` (`tracefs`, `debugfs`), or mounts it for this process alone.
    ///
    /// # Errors
    /// If it is not mounted and cannot be mounted: the message has a remedy.
    pub fn find(kind: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
        match mounted(&mounts, kind) {
            Some(path) => Ok(Self { path, mount: None }),
            None => Self::mount(kind),
        }
    }

    fn mount(kind: &str) -> Result<Self> {
        let mount = || {
            let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&fs)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        let mount = mount().map_err(|errno| why_unmounted(kind, errno))?;
        Ok(Self { path: PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())), mount: Some(mount) })
    }

    /// Describes the mount for messages.
    pub fn how(&self) -> String {
        match self.mount {
            Some(_) => "mounted by this process for itself".to_string(),
            None => format!("at {}", self.path.display()),
        }
    }
}

/// Returns the first mount of a kind. Blanks in names are written as `\040`.
fn mounted(mounts: &str, kind: &str) -> Option<PathBuf> {
    let of_kind = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (path, its_kind) = (words.next()?, words.next()?);
        (its_kind == kind).then(|| PathBuf::from(path.replace("\\040", " ")))
    };
    mounts.lines().find_map(of_kind)
}

fn why_unmounted(kind: &str, errno: Errno) -> anyhow::Error {
    match errno {
        Errno::NODEV => anyhow!("this kernel has no {kind}: it was built without tracing"),
        Errno::PERM | Errno::ACCESS => {
            anyhow!("{kind} is not mounted, and mounting it takes root: run this command by sudo")
        }
        Errno::NOSYS => {
            anyhow!("{kind} is not mounted; as root: mount -t {kind} {kind} /sys/kernel/tracing")
        }
        errno => anyhow!("{kind} is not mounted, and cannot be: {errno}"),
    }
}

/// An instance of our own, removed when it is dropped.
pub(crate) struct Instance {
    path: PathBuf,
    // After `path`: the files of the instance close first.
    mounted: Found,
}

impl Instance {
    /// Removes instances of crashed recorders, and creates an instance.
    ///
    /// # Errors
    /// If this is not permitted, or the kernel has no vmalloc events.
    pub(crate) fn make() -> Result<Self> {
        let found = Found::find("tracefs")?;
        let instances = found.path.join("instances");
        remove_left(&instances);
        let path = instances.join(format!("{PREFIX}{}", own_name()?));
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                bail!("tracefs ({}) may be used by root only: run this command by sudo", found.how())
            }
            Err(error) => return Err(error).context(format!("cannot make {}", path.display())),
        }
        let instance = Self { path, mounted: found };
        if !instance.path.join("events/vmalloc").is_dir() {
            bail!("this kernel has no vmalloc events: they came with Linux 6.2, and take CONFIG_TRACING");
        }
        Ok(instance)
    }

    /// Returns the root of the file system.
    pub(super) fn root(&self) -> &Path {
        &self.mounted.path
    }

    /// Returns the path of a file of the instance.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a setting.
    ///
    /// # Errors
    /// If the kernel rejects it.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.file(name), value).with_context(|| format!("tracefs rejects {value:?} for {name}"))
    }

    /// Returns the events lost so far: overwritten before they were read, or dropped, on any CPU.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub(crate) fn lost(&self) -> Result<u64> {
        let mut lost = 0u64;
        for cpu in fs::read_dir(self.file("per_cpu")).context("tracefs: cannot read per_cpu")? {
            let stats =
                fs::read_to_string(cpu?.path().join("stats")).context("tracefs: cannot read stats")?;
            lost = lost.saturating_add(lost_in(&stats));
        }
        Ok(lost)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Checks TF2. A signal may interrupt, or another process may briefly be reading the instance: retry.
        for _ in 0..50 {
            match fs::remove_dir(&self.path) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::Interrupted) =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
        #[expect(clippy::print_stderr, reason = "a drop cannot report to a caller")]
        {
            eprintln!("vmlab: {} is in use and stays; the next recording removes it", self.path.display());
        }
    }
}

/// Returns the lost events in a CPU's `stats`.
fn lost_in(stats: &str) -> u64 {
    let count = |line: &str| {
        let (key, count) = line.split_once(':')?;
        let lost = matches!(key.trim(), "overrun" | "commit overrun" | "dropped events");
        lost.then(|| count.trim().parse::<u64>().ok())?
    };
    stats.lines().filter_map(count).fold(0, u64::saturating_add)
}

/// Returns `PID-START` of this process.
pub(super) fn own_name() -> Result<String> {
    let pid = std::process::id();
    let start = started(pid).context("cannot read /proc/self/stat")?;
    Ok(format!("{pid}-{start}"))
}

/// Returns the start time of a process, in ticks since boot.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Checks TF1: returns true if the recorder in an instance's name has exited. Other names belong to other programs.
fn is_left(name: &str, started: impl Fn(u32) -> Option<u64>) -> bool {
    let parts = || {
        let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some((pid.parse::<u32>().ok()?, start.parse::<u64>().ok()?))
    };
    parts().is_some_and(|(pid, start)| started(pid) != Some(start))
}

/// Checks TF1 and TF3: returns true if the recorder in a name, `PID-START`, has exited.
pub(super) fn is_of_a_gone_recorder(name: &str) -> bool {
    is_left(&format!("{PREFIX}{name}"), started)
}

/// Returns the instances of recorders that have exited.
pub fn left(instances: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(instances) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_left(name, started)).collect()
}

/// Removes those instances.
fn remove_left(instances: &Path) {
    for name in left(instances) {
        // An instance that is read by a process in another PID namespace is busy, and is not removed.
        let _ = fs::remove_dir(instances.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_kind() {
        let mounts = "proc /proc proc rw 0 0\nnone /a\\040b tracefs rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0\n";
        assert_eq!(mounted(mounts, "tracefs"), Some(PathBuf::from("/a b")));
        assert_eq!(mounted(mounts, "debugfs"), None);
        assert_eq!(mounted("tracefs\n\n x", "tracefs"), None);
    }

    #[test]
    fn each_failure_names_a_remedy() {
        for (errno, what) in [
            (Errno::NODEV, "has no tracefs"),
            (Errno::PERM, "sudo"),
            (Errno::NOSYS, "mount -t tracefs"),
            (Errno::NOMEM, "cannot be: "),
        ] {
            let message = why_unmounted("tracefs", errno).to_string();
            assert!(message.contains(what) && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn tf1_only_recorders_that_are_gone_are_removed() {
        let started = |pid| (pid == 7).then_some(70);
        assert!(is_left("vmlab-8-70", started), "its process is gone");
        assert!(is_left("vmlab-7-60", started), "its number came again");
        for other in ["vmlab-7-70", "vmlab-7", "vmlab-x-1", "vmlab-1-x", "mine", "perf-8-70", "vmlab-"] {
            assert!(!is_left(other, started), "{other}");
        }
        assert!(started_itself());
    }

    fn started_itself() -> bool {
        let pid = std::process::id();
        started(pid).is_some() && !is_left(&format!("{PREFIX}{}", own_name().unwrap()), started)
    }

    #[test]
    fn tf2_an_instance_goes_with_its_owner_or_is_left_until_it_is_not_read() {
        // One recorder at a time: another would remove the instances left by this test. The tests of the program use
        // this lock, too.
        let path = std::env::temp_dir().join("vmlab-record-tests");
        let lock = fs::File::open(&path).or_else(|_| fs::File::create(&path)).unwrap();
        lock.lock().unwrap();
        let Ok(instance) = Instance::make() else {
            eprintln!("SKIPPED: no tracefs that may be used here");
            return;
        };
        let instances = instance.path.parent().unwrap().to_path_buf();
        assert!(instance.file("trace_pipe").is_file());
        assert_eq!(
            left(&instances).iter().filter(|name| instance.path.ends_with(name)).count(),
            0,
            "its owner lives"
        );

        let crashed = instances.join("vmlab-4194305-1");
        fs::create_dir(&crashed).unwrap();
        let pipe = fs::File::open(crashed.join("trace_pipe")).unwrap();
        assert!(left(&instances).contains(&"vmlab-4194305-1".to_string()));
        remove_left(&instances);
        assert!(crashed.is_dir(), "another process reads it");
        drop(pipe);
        remove_left(&instances);
        assert!(!crashed.exists());

        let path = instance.path.clone();
        drop(instance);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_cpu_lost_is_the_sum_of_its_counters() {
        let stats = "entries: 52\noverrun: 40\ncommit overrun: 1\nbytes: 3488\noldest event ts: 46822.9\nnow ts: 1.2\ndropped events: 2\nread events: 9\n";
        assert_eq!(lost_in(stats), 43);
        assert_eq!(lost_in("overrun: x\n\noverrun"), 0);
    }
}
