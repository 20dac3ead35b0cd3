//! A listing of a running process, from `/proc/PID/maps`.
//!
//! The system reports the mappings of a process, so areas here are mappings, with the system's name of the file or the
//! purpose. An allocator's arena is one reservation; its used range is readable and writable. The inaccessible range is
//! reserved address space without memory, and counts as free. Only the process has information about the areas inside
//! the used range. The output of `Vmalloc::vmallocinfo`, or of the C function `vmallocinfo`, is text for
//! [`super::read`].

use super::fold::Part;
use super::listing::{Builder, Listing};
use std::io::{BufRead, BufReader, Read};
use vmlab_replay::state::State;

/// The content of a table of mappings.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    /// The areas.
    pub listing: Listing,
    /// Mappings that can be accessed.
    pub lines: u64,
    /// Mappings that cannot be accessed.
    pub reserved: u64,
    /// Bytes of the inaccessible mappings.
    pub reserved_bytes: u64,
    /// Lines that are not mappings.
    pub bad: u64,
}

impl Mappings {
    /// Reads a table. A read error ends it, and counts as an unreadable line.
    pub fn read(input: impl Read, windows: Option<Vec<Part>>) -> Self {
        let mut mappings = Self::default();
        let mut builder = Builder::default();
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            match vmlab_trace::read_line(&mut input, &mut line) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    mappings.bad += 1;
                    break;
                }
            }
            let text = String::from_utf8_lossy(&line);
            match parse(&text) {
                // `[vsyscall]`: a page in the kernel's half, the same in each process.
                Some((part, ..)) if part.start >> 63 != 0 => {}
                Some((part, access, _)) if access.starts_with("---") => {
                    mappings.reserved += 1;
                    mappings.reserved_bytes = mappings.reserved_bytes.saturating_add(part.bytes());
                }
                Some((part, _, name)) => {
                    mappings.lines += 1;
                    builder.add(part, State::Busy, name);
                }
                None => mappings.bad += 1,
            }
        }
        mappings.bad += u64::from(input.fill_buf().is_err());
        mappings.listing = builder.finish(windows);
        mappings
    }
}

/// Parses `START-END PERMS OFFSET DEV INODE NAME` into the range, the permissions, and a short name.
fn parse(line: &str) -> Option<(Part, &str, &str)> {
    let mut rest = line.trim_end();
    let mut word = || {
        rest = rest.trim_start();
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let part = Part { start: hex(start)?, end: hex(end)? };
    let access = word().filter(|access| access.len() == 4)?;
    for _ in 0..3 {
        word()?;
    }
    let path = rest.trim();
    let name = match path {
        "" => "(anonymous)",
        _ if path.starts_with('/') => path.rsplit('/').next().unwrap_or(path),
        _ => path,
    };
    (part.start < part.end).then_some((part, access, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_areas_by_their_name_and_reservations_are_free() {
        let text = "55eb51455000-55eb51457000 r--p 00000000 fe:00 247030                     /usr/bin/cat\n\
                    7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n\
                    7f0000200000-7f8000000000 ---p 00000000 00:00 0 \n\
                    7fffd1b8c000-7fffd1bad000 rw-p 00000000 00:00 0                          [stack]\n\
                    7f1000-7f0000 rw-p 0 0 0\n\
                    7f1000-7f2000 rw\n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n\
                    nonsense\n";
        let mappings = Mappings::read(text.as_bytes(), None);
        let names: Vec<&str> =
            mappings.listing.areas.iter().map(|area| mappings.listing.caller(area)).collect();
        assert_eq!(names, ["cat", "(anonymous)", "[stack]"]);
        assert_eq!((mappings.lines, mappings.reserved, mappings.bad), (3, 1, 3));
        assert_eq!(mappings.reserved_bytes, 0x7f_ffe0_0000);
    }
}
