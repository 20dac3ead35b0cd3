//! The memory that is available to this process: by the system's figure, and by the limits of its control groups.
//!
//! # Theory
//! A group and its ancestors limit the memory of their processes, including cached files. Of these, inactive ones are
//! reclaimed before an allocation fails. So a group has its limit less its usage available, plus such files. Groups of
//! both versions are read: a line of `/proc/self/cgroup` has the group's path. In a container that path may not exist,
//! and the root is the group. The roots of both versions are read in any case.
//!
//! Memory is **short** where a group has used nine tenths of its limit. It is also short where tasks lost more than a
//! tenth of the last ten seconds to waiting for memory (`some avg10`). These are the tasks of a group, or those of the
//! machine if less than a tenth of its memory is available. (A group that waits for its own limit counts as a task of
//! the machine.) No descriptor stays open, and a missing file has no effect. While one of the three standard streams is
//! closed, no file is opened: it would get that descriptor's number.
//! # Source
//! `man 5 proc`, `man 7 cgroups`, kernel `Documentation/accounting/psi.rst`,
//! `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use super::Room;
use super::linux::read_text;
use core::ffi::CStr;

/// Names of the files of a group: its limit, and its usage.
struct Files {
    root: &'static str,
    limit: &'static str,
    has: &'static str,
}

const VERSION_1: Files =
    Files { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", has: "memory.usage_in_bytes" };
const VERSION_2: Files = Files { root: "/sys/fs/cgroup", limit: "memory.max", has: "memory.current" };
/// Files of both versions: the usage by kinds, and the time for which its tasks waited for memory.
const KINDS: &str = "memory.stat";
const PRESSURE: &str = "memory.pressure";
/// The divisor of a limit, or of a machine's memory: with less than that part left, memory is short. A tenth.
const SHORT_SHARE: u64 = 10;
/// The greatest share of time that tasks may wait for memory, in hundredths of a percent: a tenth.
const WAITING_MAX: u64 = 1000;
/// Bytes that are read of a file: the first lines have all that is needed. An incomplete line is ignored.
const TEXT_BYTES: usize = 1024;

/// Returns the memory available to this process, approximately. Returns `None` if the system does not report it.
pub(super) fn available() -> Option<Room> {
    let mut text = [0; TEXT_BYTES];
    let meminfo = read_text(c"/proc/meminfo", &mut text)?;
    let free = number_after(meminfo, b"MemAvailable:")?;
    let is_low = is_low(free, number_after(meminfo, b"MemTotal:")?);
    let pressure = read_text(c"/proc/pressure/memory", &mut text).unwrap_or_default();
    let machine = Room { bytes: free * 1024, is_short: is_low && is_waiting(pressure) };
    let groups = read_text(c"/proc/self/cgroup", &mut text).unwrap_or_default();
    let rooms = groups.split(|&byte| byte == b'\n').filter_map(group_of);
    let rooms = rooms.map(|(files, path)| room(&files, path));
    // The line of version 1 may be beyond the bytes that were read.
    let roots = [&VERSION_1, &VERSION_2].into_iter().map(|files| room_in(files, b"/"));
    Some(rooms.chain(roots).fold(machine, Room::and))
}

/// Returns the group that a line of `/proc/self/cgroup` names, if it may limit memory.
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

/// Returns the room that a group and its ancestors leave, without the root.
fn room(files: &Files, mut path: &[u8]) -> Room {
    let mut least = Room::UNBOUNDED;
    while path.len() > 1 {
        least = least.and(room_in(files, path));
        let Some(end) = path.iter().rposition(|&byte| byte == b'/') else { break };
        path = &path[..end];
    }
    least
}

fn room_in(files: &Files, path: &[u8]) -> Room {
    let mut text = [0; TEXT_BYTES];
    let is_short = is_waiting(read(files, path, PRESSURE, &mut text).unwrap_or_default());
    Room { is_short, ..Room::UNBOUNDED }.and(room_by_limit(files, path).unwrap_or(Room::UNBOUNDED))
}

/// Returns the room that the limit of a group leaves, if it has one.
fn room_by_limit(files: &Files, path: &[u8]) -> Option<Room> {
    let mut text = [0; TEXT_BYTES];
    let limit = number_after(read(files, path, files.limit, &mut text)?, b"")?;
    let has = number_after(read(files, path, files.has, &mut text)?, b"")?;
    let kinds = read(files, path, KINDS, &mut text).unwrap_or_default();
    // Half of the active files count as available, about as in `MemAvailable`.
    let files = |kind: &[u8]| number_after(kinds, kind).unwrap_or(0);
    let unused = files(b"inactive_file").saturating_add(files(b"active_file") / 2);
    let bytes = limit.saturating_sub(has.saturating_sub(unused));
    Some(Room { bytes, is_short: is_low(bytes, limit) })
}

/// Returns true if less than a tenth of all is left.
fn is_low(left: u64, all: u64) -> bool {
    left < all / SHORT_SHARE
}

/// Returns true if a pressure file (`some avg10=12.34 ...`) shows that tasks wait for memory for too long.
fn is_waiting(text: &[u8]) -> bool {
    let hundredths = || {
        let (whole, rest) = number(text.strip_prefix(b"some avg10=")?)?;
        let (part, _) = number(rest.strip_prefix(b".")?.get(..2)?)?;
        whole.checked_mul(100)?.checked_add(part)
    };
    hundredths().is_some_and(|hundredths| hundredths > WAITING_MAX)
}

/// Reads a file of a group. Returns `None` if its name is too long.
fn read<'t>(files: &Files, path: &[u8], name: &str, text: &'t mut [u8]) -> Option<&'t [u8]> {
    let mut place = [0u8; 512];
    let mut at = 0;
    for part in [files.root.as_bytes(), path, b"/", name.as_bytes(), b"\0"] {
        place.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    read_text(CStr::from_bytes_with_nul(&place[..at]).ok()?, text)
}

/// Returns the number in the line that begins with a key.
fn number_after(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split_inclusive(|&byte| byte == b'\n').find(|line| line.starts_with(key))?;
    Some(number(line.strip_suffix(b"\n")?[key.len()..].trim_ascii())?.0)
}

/// Returns the number that a text begins with, and the rest of the text.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((core::str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_at_most_that_of_the_machine() {
        let mut text = [0; TEXT_BYTES];
        let total =
            number_after(read_text(c"/proc/meminfo", &mut text).unwrap(), b"MemTotal:").unwrap() * 1024;
        assert!(available().is_some_and(|room| room.bytes > 1 << 20 && room.bytes <= total));
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
        let bytes = |room: Room| Some(room.bytes).filter(|&bytes| bytes != u64::MAX);
        let rooms = [room(&files, b"/a/b"), room(&files, b"/a"), room(&files, b"/")].map(bytes);
        assert_eq!(rooms, [Some(300), Some(300), None]);
        // A missing group limits nothing, and its ancestor does.
        let rooms = [room(&files, b"/a/c"), room(&files, b"/d"), room_in(&files, b"/")].map(bytes);
        assert_eq!(rooms, [Some(300), None, Some(10)]);
        // Short where nine tenths are used, without inactive files, and where tasks of a group or of an ancestor wait.
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        let short = |path: &[u8]| room(&files, path).is_short;
        assert!(!short(b"/a/b") && !room_in(&files, b"/").is_short);
        write("a/memory.current", "451\n");
        assert!(short(b"/a/b") && short(b"/a"));
        write("a/memory.stat", "anon 1\ninactive_file 1\n");
        assert!(!short(b"/a/b"));
        // Half of the active files count.
        write("a/memory.stat", "inactive_file 0\nactive_file 1\n");
        assert!(short(b"/a/b"));
        write("a/memory.stat", "inactive_file 0\nactive_file 2\n");
        assert!(!short(b"/a/b"));
        write("a/memory.pressure", "some avg10=10.01 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00\n");
        assert!(short(b"/a/b") && short(b"/a"));
        write("a/memory.pressure", "some avg10=10.00 avg60=99.00 avg300=0.00 total=5\nfull avg10=99.00\n");
        assert!(!short(b"/a/b"));
        // A group without a limit may wait, too.
        write("a/b/memory.pressure", "some avg10=99.00 avg60=0.00 avg300=0.00 total=5\n");
        assert!(short(b"/a/b") && !short(b"/a"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn less_than_a_tenth_is_low() {
        assert_eq!([99, 100, 1000].map(|left| is_low(left, 1000)), [true, false, false]);
    }

    #[test]
    fn pressure_is_the_share_of_the_last_ten_seconds_and_anything_else_is_none() {
        for (text, want) in [
            ("some avg10=10.01 avg60", true),
            ("some avg10=100.00", true),
            ("some avg10=10.00 avg60=50.00", false),
            ("some avg10=0.99", false),
            ("full avg10=50.00", false),
            ("some avg10=50", false),
            ("some avg10=50.", false),
            ("some avg10=99999999999999999999.00", false),
            ("some avg10=999999999999999999.00", false),
            ("", false),
        ] {
            assert_eq!(is_waiting(text.as_bytes()), want, "{text}");
        }
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
