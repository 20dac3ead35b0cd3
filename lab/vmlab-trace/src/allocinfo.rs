//! `/proc/allocinfo`: one line for each place in the kernel's source that allocates, with the bytes that are live and
//! the calls that allocated them (CONFIG_MEM_ALLOC_PROFILING, Linux 6.10 and later).
//!
//! # Theory
//! A line does not say which allocator the place calls. Of per-CPU memory it counts the bytes of all units, but nothing
//! in the first chunk. Of `vmalloc` it counts the pages, each as a call, and the kernel's records. The calls are those
//! whose memory is live.
//!
//! Source: Linux 6.12, lib/alloc_tag.c and lib/codetag.c.

use super::each_line;
use std::io::Read;
use std::ops::ControlFlow;

/// The most places that are stored. A kernel with all its modules has some twenty thousand.
pub const SITES_MAX: usize = 1 << 18;
/// Characters of a name that are stored.
const NAME_CHARS: usize = 200;
/// Number of unreadable lines that are stored.
const BAD_LINES_MAX: usize = 4;
/// The beginning of the first line.
const HEAD: &str = "allocinfo - version: ";

/// A place that allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Bytes that are live. The kernel sums them over its CPUs while these run on, so they may be negative.
    pub bytes: i64,
    /// Calls whose memory is live.
    pub calls: u64,
    /// File of the kernel's source.
    pub file: String,
    /// Line in it.
    pub line: u32,
    /// Module; empty for the kernel itself.
    pub module: String,
    /// Function.
    pub function: String,
}

impl Site {
    /// Returns one name of the place: `mm/vmalloc.c:123 f`, or `a.c:9 f [module]`.
    pub fn name(&self) -> String {
        let Self { file, line, function, module, .. } = self;
        let module = if module.is_empty() { String::new() } else { format!(" [{module}]") };
        format!("{file}:{line} {function}{module}")
    }
}

/// The content of the file.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// The version in its first line; empty if that is another.
    pub version: String,
    /// The places, in the order of the lines.
    pub sites: Vec<Site>,
    /// Places that were left out, since there were more than [`SITES_MAX`].
    pub beyond: u64,
    /// Lines that could not be read.
    pub bad: u64,
    /// The first of them: number, from 1, and text, cut.
    pub bad_lines: Vec<(u64, String)>,
    /// The reason why reading ended early, if it did.
    pub cut_short: Option<String>,
}

impl Sites {
    /// Reads all of it. Costs O(n) for n bytes, and some 150 bytes of memory for each place.
    pub fn read(input: impl Read) -> Self {
        let mut found = Self::default();
        found.cut_short = each_line(input, |number, text| {
            let text = text.trim();
            match (text.strip_prefix(HEAD), site(text)) {
                (Some(version), _) if number == 1 => found.version = short(version),
                (_, Some(_)) if found.sites.len() == SITES_MAX => found.beyond += 1,
                (_, Some(site)) => found.sites.push(site),
                _ if text.is_empty() || text.starts_with('#') => {}
                _ => {
                    found.bad += 1;
                    if found.bad_lines.len() < BAD_LINES_MAX {
                        found.bad_lines.push((number, text.chars().take(100).collect()));
                    }
                }
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Returns true if a file begins with this line.
    pub fn begins(line: &str) -> bool {
        line.starts_with(HEAD)
    }
}

/// Reads `  4096  1 mm/vmalloc.c:123 [module] func:f`, with or without a module. Later versions add words at the end.
fn site(text: &str) -> Option<Site> {
    let mut words = text.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let calls = words.next()?.parse().ok()?;
    let (file, line) = words.next()?.rsplit_once(':')?;
    let line = line.parse().ok()?;
    let word = words.next()?;
    let (module, word) = match word.strip_prefix('[') {
        Some(module) => (module.strip_suffix(']')?, words.next()?),
        None => ("", word),
    };
    let function = word.strip_prefix("func:").filter(|name| !name.is_empty())?;
    (!file.is_empty()).then(|| Site {
        bytes,
        calls,
        file: short(file),
        line,
        module: short(module),
        function: short(function),
    })
}

/// Returns a name in the form in which it is stored: cut.
pub fn short(name: &str) -> String {
    name.chars().take(NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "allocinfo - version: 1.0\n\
        #     <size>  <calls> <tag info>\n\
        \x20      4096        1 mm/vmalloc.c:4747 func:pcpu_get_vm_areas \n\
        \x20       -64        0 kernel/fork.c:314 func:alloc_thread_stack_node \n\
        \x20    127664    31168 drivers/net/a.c:27 [veth] func:veth_alloc accurate:no\n\n";

    #[test]
    fn places_are_read_with_their_modules_and_later_words_are_ignored() {
        let found = Sites::read(TEXT.as_bytes());
        assert_eq!((found.version.as_str(), found.bad, found.beyond, found.cut_short), ("1.0", 0, 0, None));
        let rows: Vec<_> = found.sites.iter().map(|site| (site.bytes, site.calls, site.name())).collect();
        assert_eq!(
            rows,
            [
                (4096, 1, "mm/vmalloc.c:4747 pcpu_get_vm_areas".to_string()),
                (-64, 0, "kernel/fork.c:314 alloc_thread_stack_node".to_string()),
                (127_664, 31_168, "drivers/net/a.c:27 veth_alloc [veth]".to_string()),
            ]
        );
        assert!(Sites::begins(TEXT) && !Sites::begins("0x1000-0x2000"));
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_named() {
        for bad in [
            "1",
            "1 2 a.c:3",
            "1 2 a.c func:f",
            "1 2 :3 func:f",
            "1 2 a.c:3 func:",
            "1 2 a.c:3 [m func:f",
            "1 2 a.c:3 [m]",
            "1 -2 a.c:3 func:f",
            "99999999999999999999 2 a.c:3 func:f",
            "1 2 a.c:99999999999 func:f",
            "allocinfo - version: 1.0",
        ] {
            let found = Sites::read(format!("\n{bad}\n").as_bytes());
            assert_eq!((found.sites.len(), found.bad), (0, 1), "{bad}");
            assert_eq!(found.bad_lines, [(2, bad.to_string())]);
        }
        let found = Sites::read("nonsense\n".repeat(9).as_bytes());
        assert_eq!((found.bad, found.bad_lines.len(), found.version.as_str()), (9, BAD_LINES_MAX, ""));
    }

    #[test]
    fn a_hostile_file_takes_bounded_memory() {
        let line = format!("1 1 {}:1 func:{}\n", "a".repeat(4000), "ü".repeat(4000));
        let found = Sites::read(line.as_bytes());
        let site = &found.sites[0];
        assert_eq!((site.file.len(), site.function.chars().count()), (NAME_CHARS, NAME_CHARS));
        let many = "1 1 a:1 func:f\n".repeat(SITES_MAX + 7);
        let found = Sites::read(many.as_bytes());
        assert_eq!((found.sites.len(), found.beyond), (SITES_MAX, 7));
    }
}
