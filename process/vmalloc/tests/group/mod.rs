//! A control group with a limit of memory: for the tests of `vmalloc` and of the preloaded library, and for their stress.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// A control group of version 1 or 2. It is removed at the end.
pub(crate) struct Group(PathBuf);

impl Group {
    /// Makes a group below that of this process, which may enter it, or returns `None` if it cannot.
    pub(crate) fn new(name: &str, bytes: usize) -> Option<Self> {
        /// The error of Linux where a process may not write.
        const EACCES: i32 = 13;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            let group = Self(format!("{root}{path}/vmalloc-{name}-{}", std::process::id()).into());
            fs::create_dir(&group.0).ok()?;
            // Without the memory controller the file is not there, and must not be made.
            let mut limited = fs::OpenOptions::new().write(true).open(group.0.join(limit)).ok()?;
            limited.write_all(bytes.to_string().as_bytes()).ok()?;
            let entered = fs::write(group.processes(), "");
            if entered.is_err_and(|error| error.raw_os_error() == Some(EACCES)) {
                return None;
            }
            let _no_swap = fs::write(group.0.join("memory.swap.max"), "0");
            Some(group)
        })
    }

    /// Returns the file in which a process that enters writes its number.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _removed = fs::remove_dir(&self.0);
    }
}
