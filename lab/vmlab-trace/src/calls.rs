//! Recordings of a kernel that has the core inside (`adopt/linux`): each call of the core, what the core asked the kernel
//! for meanwhile, and the result.
//!
//! # Theory
//! Each line is a word and numbers in hexadecimal (`docs/formats.md`). A call is one line. The lines of what the core
//! asked for follow, and then a line with the result. The kernel holds one lock for the length of a call, so the lines
//! of two calls never mix, on any number of CPUs.

use super::read_line;
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::io::{BufReader, Read};
use vmlab_base::text::{counted, printable};

/// The first line: the form, and its version.
const HEAD: &str = "calls 1";
/// The most lines of one recording. Each takes 64 bytes.
pub const LINES_MAX: usize = 20_000_000;
/// The most numbers of a line.
const NUMBERS_MAX: usize = 7;
/// Characters of a line that an error shows.
const SHOWN_CHARS: usize = 100;

/// Defines the lines of one kind: their names, words and numbers.
macro_rules! lines {
    ($(#[$about:meta])* $kind:ident: $($(#[$doc:meta])* $name:ident $word:literal { $($number:ident),* })*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "the numbers are described in docs/formats.md")]
        pub enum $kind {
            $($(#[$doc])* $name { $($number: u64),* },)*
        }

        impl $kind {
            fn of(word: &str, numbers: &[u64]) -> Option<Self> {
                match (word, numbers) {
                    $(($word, &[$($number),*]) => Some(Self::$name { $($number),* }),)*
                    _ => None,
                }
            }

            /// The first word of the line.
            pub fn word(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $word,)*
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name { $($number),* } => {
                        f.write_str($word)?;
                        $(write!(f, " {:x}", $number)?;)*
                        Ok(())
                    })*
                }
            }
        }
    };
}

lines! {
    /// A fact that calls refer to.
    Setting:
    /// CPUs that are possible.
    Possible "possible" { cpus }
    /// CPUs that are online.
    Online "online" { cpus }
    /// A range that is allocated when the space is created.
    Busy "busy" { start, end }
    /// The lowest address that an area can have.
    Lowest "lowest" { at }
    /// The window of the calls that follow.
    Window "window" { start, end }
    /// A part of the congruent call that follows.
    Part "part" { offset, size }
}

lines! {
    /// A call that changes the state of the core: the C function of the same name.
    Call:
    /// Creates the space.
    Init "init" {}
    /// Creates the caches of a CPU.
    CpuInit "cpu_init" { cpu }
    /// Allocates in the window what the CPU has at hand.
    Take "take" { cpu, size, align }
    /// Allocates in the window, without waiting.
    TryAlloc "try_alloc" { cpu, size, align }
    /// Allocates in the window.
    Alloc "alloc" { cpu, size, align }
    /// Allocates parts at their distances from one base.
    Congruent "congruent" { align }
    /// Notes a record with an area.
    Note "note" { at }
    /// Detaches an area.
    Detach "detach" { at }
    /// Frees a detached area.
    Release "release" { cpu, at }
    /// Allocates a small mapping, without waiting.
    TryAllocSmall "try_alloc_small" { cpu, pages }
    /// Allocates a small mapping.
    AllocSmall "alloc_small" { cpu, pages }
    /// Frees a small mapping.
    FreeSmall "free_small" { cpu, at, pages }
    /// Purges, as the worker does.
    Drain "drain" {}
    /// Purges, with a range that must be flushed, too.
    UnmapAliases "unmap_aliases" { start, end }
    /// Moves everything into the index.
    PurgeAll "purge_all" {}
    /// Moves what is pooled into the index, as the shrinker does.
    Shrink "shrink" {}
    /// Empties the caches of a CPU that goes offline.
    DrainCpu "drain_cpu" { cpu }
}

lines! {
    /// A request of the core within a call, with the answer.
    Request:
    /// Memory for records: 0 if there was none.
    Pages "+pages" { bytes, supplied }
    /// Memory for a table: 0 if there was none.
    Table "+table" { bytes, supplied }
    /// Memory of either is freed.
    Free "+free" { bytes }
    /// A range is flushed.
    Flush "+flush" { start, end }
    /// The worker is woken.
    Wake "+wake" {}
    /// Clients of the kernel are asked for areas that they do not need.
    Reclaim "+reclaim" {}
    /// They have freed some.
    Reclaimed "+reclaimed" { pages }
}

lines! {
    /// The end of a call, or of the recording.
    Answer:
    /// The result of the call: an address, a number of areas, or 1 for success and 0 for failure.
    Returned "=" { value }
    /// The counts of the space at the end.
    End "end" { areas, holes, pooled, cached, lazy_pages, purges, purged }
}

/// A line of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// A fact.
    Setting(Setting),
    /// A call begins.
    Call(Call),
    /// The core asks for something.
    Request(Request),
    /// The call ends, or the recording.
    Answer(Answer),
}

impl Line {
    fn of(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let word = words.next()?;
        let (mut numbers, mut count) = ([0; NUMBERS_MAX], 0);
        for text in words {
            *numbers.get_mut(count)? = u64::from_str_radix(text, 16).ok()?;
            count += 1;
        }
        let numbers = &numbers[..count];
        None.or_else(|| Some(Self::Call(Call::of(word, numbers)?)))
            .or_else(|| Some(Self::Answer(Answer::of(word, numbers)?)))
            .or_else(|| Some(Self::Request(Request::of(word, numbers)?)))
            .or_else(|| Some(Self::Setting(Setting::of(word, numbers)?)))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(setting) => setting.fmt(f),
            Self::Call(call) => call.fmt(f),
            Self::Request(request) => request.fmt(f),
            Self::Answer(answer) => answer.fmt(f),
        }
    }
}

/// Reads the lines of a recording after the first, which is not compressed. The line of index 0 is line 2 of the text.
///
/// # Errors
/// If it cannot be read to its end, has too many lines, or one that is none of a recording.
pub fn read(input: impl Read) -> Result<Vec<Line>> {
    let (mut input, mut text, mut lines) = (BufReader::with_capacity(1 << 16, input), Vec::new(), Vec::new());
    for number in 1_u64.. {
        if !read_line(&mut input, &mut text)
            .with_context(|| format!("the input ends early, in line {number}"))?
        {
            ensure!(number > 1, "no line: this is no recording of calls");
            break;
        }
        let text = String::from_utf8_lossy(&text);
        let shown = || printable(&text).chars().take(SHOWN_CHARS).collect::<String>();
        if number == 1 {
            ensure!(
                text == HEAD,
                "no recording of calls, which begins with the line {HEAD:?}: {:?}",
                shown()
            );
            continue;
        }
        ensure!(lines.len() < LINES_MAX, "more than {}", counted(LINES_MAX as u64, "line"));
        match Line::of(&text) {
            Some(line) => lines.push(line),
            None => bail!("line {number} is none of a recording of calls: {:?}", shown()),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read_and_written_as_it_was() {
        let text = "calls 1\npossible 4\nbusy 1000 3000\nwindow 1000 ffffffffffffffff\ninit\n+pages 10000 1\n+table 8000 0\n\
                    = 1\ncpu_init 0\n= 1\ntry_alloc 0 2000 1000\n= 3\nalloc 0 2000 1000\n+reclaim\n+reclaimed 5\n= \
                    ffffc90000000000\nonline 2\npart 0 1000\ncongruent 1000\n= 0\nnote 5000\n= 0\ndetach 5000\n= 1\n\
                    release 3 5000\n+wake\n= 1\ntry_alloc_small 0 1\n= 3\nalloc_small 0 1\n= 7000\nfree_small 0 7000 1\n= 1\n\
                    drain\n+flush 5000 7000\n+free 1000\n= 1\nunmap_aliases 0 0\n= 0\npurge_all\n= 0\nshrink\n= 0\n\
                    drain_cpu 1\n= 0\nend 1 2 3 4 5 6 7\n";
        let lines = read(text.as_bytes()).unwrap();
        let written: Vec<_> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(written, text.lines().skip(1).collect::<Vec<_>>());
        assert_eq!(lines[9], Line::Call(Call::TryAlloc { cpu: 0, size: 0x2000, align: 0x1000 }));
    }

    #[test]
    fn a_line_takes_as_many_bytes_as_the_limit_says() {
        assert_eq!(size_of::<Line>(), 64);
    }

    #[test]
    fn a_line_that_is_none_is_an_error_with_its_number() {
        for (text, expected) in [
            ("", "no line"),
            ("# tracer: nop\n", "begins with the line \"calls 1\": \"# tracer: nop\""),
            ("calls 2\n", "no recording of calls"),
            ("calls 1\ninit\nalloc 0 1000\n", "line 3 is none of a recording of calls: \"alloc 0 1000\""),
            ("calls 1\nalloc 0 1000 1000 0\n", "line 2"),
            ("calls 1\ndetach 5g\n", "line 2"),
            ("calls 1\ndetach  5\n", "line 2"),
            ("calls 1\n\n", "line 2"),
            ("calls 1\nend 1 2 3 4 5 6 7 8\n", "line 2"),
            ("calls 1\ndetach 10000000000000000\n", "line 2"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
