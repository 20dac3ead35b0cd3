//! The memory that this process could have: what the system says is available, or what a control group leaves it.
//!
//! # Theory
//! A group and those around it limit what their processes have together, files that they read included; of these, those that nobody uses go
//! before anything is refused. So what a group leaves is its limit less what it has, and such files come back to it. Groups of both
//! versions are asked: a line of `/proc/self/cgroup` names one, and in a container, where that path may not be there, its root is.
//! The roots of both are asked in any case.
//! # Source
//! `man 5 proc`, `man 7 cgroups`, kernel `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use super::linux::read_text;
use core::ffi::CStr;

/// Names of the files of a group: its limit, what it has, and of what kinds.
struct Files {
    root: &'static str,
    limit: &'static str,
    has: &'static str,
}

const VERSION_1: Files =
    Files { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", has: "memory.usage_in_bytes" };
const VERSION_2: Files = Files { root: "/sys/fs/cgroup", limit: "memory.max", has: "memory.current" };
const KINDS: &str = "memory.stat";
/// Bytes that are read of a file: what is looked for is in the first lines. A line that is cut off is none.
const TEXT_BYTES: usize = 1024;

/// Bytes that this process could have more than it has, about; `None` if the system does not tell.
pub(super) fn available() -> Option<u64> {
    let mut text = [0; TEXT_BYTES];
    let machine = number_after(read_text(c"/proc/meminfo", &mut text)?, b"MemAvailable:")?;
    let groups = read_text(c"/proc/self/cgroup", &mut text).unwrap_or_default();
    let rooms = groups.split(|&byte| byte == b'\n').filter_map(group_of);
    let rooms = rooms.filter_map(|(files, path)| room(&files, path));
    // The line of version 1 may be farther down than was read.
    let roots = [&VERSION_1, &VERSION_2].into_iter().filter_map(|files| room_in(files, b"/"));
    Some(rooms.chain(roots).fold(machine * 1024, u64::min))
}

/// The group that a line of `/proc/self/cgroup` names, if it may limit memory.
fn group_of(line: &[u8]) -> Option<(Files, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let files = match controllers {
        b"" => VERSION_2,
        b"memory" => VERSION_1,
        _ => return None,
    };
    Some((files, path))
}

/// Bytes that a group and those around it leave, but for the root.
fn room(files: &Files, mut path: &[u8]) -> Option<u64> {
    let mut least = None;
    while path.len() > 1 {
        if let Some(room) = room_in(files, path) {
            least = Some(least.map_or(room, |least: u64| least.min(room)));
        }
        path = &path[..path.iter().rposition(|&byte| byte == b'/')?];
    }
    least
}

fn room_in(files: &Files, path: &[u8]) -> Option<u64> {
    let mut text = [0; TEXT_BYTES];
    let limit = number_after(read(files, path, files.limit, &mut text)?, b"")?;
    let has = number_after(read(files, path, files.has, &mut text)?, b"")?;
    let kinds = read(files, path, KINDS, &mut text).unwrap_or_default();
    let unused = number_after(kinds, b"inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(has.saturating_sub(unused)))
}

/// Reads a file of a group; nothing if its name is too long.
fn read<'t>(files: &Files, path: &[u8], name: &str, text: &'t mut [u8]) -> Option<&'t [u8]> {
    let mut place = [0u8; 512];
    let mut at = 0;
    for part in [files.root.as_bytes(), path, b"/", name.as_bytes(), b"\0"] {
        place.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    read_text(CStr::from_bytes_with_nul(&place[..at]).ok()?, text)
}

/// The number in the line that begins with a key.
fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split_inclusive(|&byte| byte == b'\n').find(|line| line.starts_with(key))?;
    let rest = line.strip_suffix(b"\n")?[key.len()..].trim_ascii();
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    core::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_told_and_no_more_than_the_machine_has() {
        let mut text = [0; TEXT_BYTES];
        let total =
            number_after(read_text(c"/proc/meminfo", &mut text).unwrap(), b"MemTotal:").unwrap() * 1024;
        assert!(available().is_some_and(|bytes| bytes > 1 << 20 && bytes <= total));
    }

    #[test]
    fn a_group_and_those_around_it_limit_and_the_root_is_asked_by_itself() {
        let dir = std::env::temp_dir().join(format!("vmalloc-groups-{}", std::process::id()));
        let root: &'static str = dir.to_str().unwrap().to_owned().leak();
        let files = Files { root, ..VERSION_2 };
        for (group, limit, has) in [("", "100", 90), ("/a", "500", 200), ("/a/b", "max", 10)] {
            let place = dir.join(group.trim_start_matches('/'));
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("memory.max"), format!("{limit}\n")).unwrap();
            std::fs::write(place.join("memory.current"), format!("{has}\n")).unwrap();
        }
        assert_eq!(
            (room(&files, b"/a/b"), room(&files, b"/a"), room(&files, b"/")),
            (Some(300), Some(300), None)
        );
        // What is not there limits nothing, and what is around it does.
        assert_eq!(
            (room(&files, b"/a/c"), room(&files, b"/d"), room_in(&files, b"/")),
            (Some(300), None, Some(10))
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn lines_are_found_by_their_beginnings_and_what_is_cut_is_none() {
        let text = b"total 1\ninactive_file 23\ninactive_file_2 4\nlast 5";
        assert_eq!(number_after(text, b"inactive_file"), Some(23));
        assert_eq!((number_after(text, b"last"), number_after(text, b"no")), (None, None));
        assert_eq!((number_after(b"max\n", b""), number_after(b"700\n", b"")), (None, Some(700)));
        let group = |line| group_of(line).map(|(files, path)| (files.limit, path));
        assert_eq!(group(b"0::/a/b:c"), Some(("memory.max", &b"/a/b:c"[..])));
        assert_eq!(group(b"4:memory:/x"), Some(("memory.limit_in_bytes", &b"/x"[..])));
        assert_eq!((group(b"7:pids:/x"), group(b"")), (None, None));
    }
}
