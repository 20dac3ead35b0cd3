//! Files that applications work on: made, not fetched, and the same everywhere.
//!
//! The text repeats itself, near and far, as real text and logs do: a dictionary of megabytes finds repetitions that a
//! small one does not.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Incremented with every change of the files made here, so that files of an older program are not reused.
const RECIPE: u32 = 2;

/// The amount of work in one run of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scale {
    /// As large as typical input of such programs: one to four seconds of CPU time.
    Full,
    /// A fraction of a second.
    Quick,
}

impl Scale {
    /// Returns the value of `SCALE` for the scripts.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Scale::Full => "full",
            Scale::Quick => "quick",
        }
    }

    /// Returns the folder of its files, in that of all applications.
    pub(crate) fn dir(self, base: &Path) -> PathBuf {
        base.join(format!("input/{RECIPE}-{}", self.word()))
    }

    fn sizes(self) -> Sizes {
        match self {
            Scale::Full => {
                Sizes { text_bytes: 64 << 20, commits: 300, files: 240, lines: 500, large_bytes: 16 << 20 }
            }
            Scale::Quick => {
                Sizes { text_bytes: 6 << 20, commits: 120, files: 60, lines: 300, large_bytes: 2 << 20 }
            }
        }
    }
}

/// Sizes of the text and of the history: its commits, the files in it, the lines of each, and the bytes of the one
/// large file. The last two commits have that file in two versions.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    text_bytes: usize,
    commits: usize,
    files: usize,
    lines: usize,
    large_bytes: usize,
}

const TEXT: &str = "text.txt";
const HISTORY: &str = "history.txt";

/// Returns true if all files exist.
pub(crate) fn is_made(dir: &Path) -> bool {
    [TEXT, HISTORY].iter().all(|name| dir.join(name).is_file())
}

/// Makes missing files in `dir`. Their contents are held in memory: see `Place::new` for why that matters.
pub(crate) fn make(dir: &Path, scale: Scale) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let sizes = scale.sizes();
    once(&dir.join(TEXT), |out| out.write_all(&text(&mut Random(1), sizes.text_bytes)))?;
    once(&dir.join(HISTORY), |out| history(out, sizes))
}

/// Writes a file unless it exists; a file exists only when it is complete.
fn once(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    let part = path.with_extension("part");
    let cannot = || format!("cannot write {}", part.display());
    let mut out = BufWriter::new(File::create(&part).with_context(cannot)?);
    fill(&mut out).and_then(|()| out.flush()).with_context(cannot)?;
    fs::rename(&part, path)?;
    Ok(())
}

/// A generator of numbers that are the same everywhere: Knuth's multiplier, the upper bits.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    /// Writes a line of words: few syllables, so that some words come often, as in text.
    fn line(&mut self, line: &mut String) {
        const SYLLABLES: [&str; 16] = [
            "al", "lo", "ca", "tor", "pa", "ge", "va", "ma", "tree", "no", "de", "free", "map", "pool",
            "zone", "lazy",
        ];
        for _ in 0..6 + self.below(8) {
            for _ in 0..1 + self.below(3) {
                // The smaller of two numbers, so that some syllables come more often.
                let at = self.below(SYLLABLES.len()).min(self.below(SYLLABLES.len()));
                line.push_str(SYLLABLES.get(at).copied().unwrap_or_default());
            }
            line.push(' ');
        }
        line.push_str(&self.below(1000).to_string());
        line.push('\n');
    }
}

/// The least bytes of a repeated passage.
const PASSAGE_MIN: usize = 256;
const PASSAGE_MAX: usize = 4096;

/// Returns lines of text, and now and then an earlier passage again: nearly a half of the bytes.
fn text(random: &mut Random, bytes: usize) -> Vec<u8> {
    let (mut made, mut line) = (Vec::with_capacity(bytes + PASSAGE_MAX), String::new());
    while made.len() < bytes {
        if random.below(40) == 0 && made.len() > PASSAGE_MAX {
            let start = random.below(made.len() - PASSAGE_MAX);
            let end = start + PASSAGE_MIN + random.below(PASSAGE_MAX - PASSAGE_MIN);
            made.extend_from_within(start..end);
        } else {
            line.clear();
            random.line(&mut line);
            made.extend_from_slice(line.as_bytes());
        }
    }
    made.push(b'\n');
    made
}

/// Writes a history as `git fast-import` reads it: the first commit has all files, and each later one rewrites a few
/// lines of three of them.
fn history(out: &mut dyn Write, sizes: Sizes) -> std::io::Result<()> {
    let mut random = Random(2);
    let mut files = vec![vec![String::new(); sizes.lines]; sizes.files];
    files.iter_mut().flatten().for_each(|line| random.line(line));
    let mut large = text(&mut random, sizes.large_bytes);
    for commit in 0..sizes.commits {
        writeln!(out, "commit refs/heads/main")?;
        writeln!(out, "committer A Person <person@example.org> {} +0000", 1_700_000_000 + commit * 3600)?;
        let message = format!("Change {commit}\n");
        write!(out, "data {}\n{message}", message.len())?;
        let changed: Vec<usize> = if commit == 0 {
            (0..sizes.files).collect()
        } else {
            (0..3).map(|_| random.below(sizes.files)).collect()
        };
        for at in changed {
            let Some(file) = files.get_mut(at) else { continue };
            for _ in 0..12 {
                if let Some(line) = file.get_mut(random.below(sizes.lines)) {
                    line.clear();
                    random.line(line);
                }
            }
            let whole = file.concat();
            write!(out, "M 100644 inline dir{}/file{at}.txt\ndata {}\n{whole}\n", at % 7, whole.len())?;
        }
        if commit + 2 >= sizes.commits {
            // Some bytes, all over the file, differ in every version.
            large.iter_mut().skip(commit % 100).step_by(5000).for_each(|byte| *byte = b'x');
            write!(out, "M 100644 inline large.txt\ndata {}\n", large.len())?;
            out.write_all(&large)?;
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    writeln!(out, "done")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_same_everywhere() {
        let made = text(&mut Random(1), 10_000);
        assert_eq!(crc32fast::hash(&made), TEXT_CRC, "bytes {}", made.len());
        assert!(made.len() >= 10_000 && made.ends_with(b"\n"));
    }
    /// The checksum of this very text, so that a change of it is detected: it would make results of two versions
    /// incomparable.
    const TEXT_CRC: u32 = 1_748_453_284;

    #[test]
    fn a_part_of_the_text_repeats_far_away() {
        let made = text(&mut Random(1), 200_000);
        let again = (100_000..180_000)
            .step_by(2000)
            .filter(|at| {
                let passage = made.get(*at..at + 100).unwrap();
                made.get(..at - 20_000).unwrap().windows(100).any(|part| part == passage)
            })
            .count();
        assert!((5..=35).contains(&again), "{again} of 40");
    }

    #[test]
    fn a_history_has_its_commits_and_their_lengths() {
        let mut made = Vec::new();
        let sizes = Sizes { text_bytes: 0, commits: 5, files: 4, lines: 20, large_bytes: 3000 };
        history(&mut made, sizes).unwrap();
        let made = String::from_utf8(made).unwrap();
        assert_eq!(made.matches("\ncommitter ").count(), 5);
        assert_eq!(made.matches(" large.txt\n").count(), 2);
        assert_eq!(made.matches("M 100644 inline dir").count(), 4 + 4 * 3);
        for part in made.split("inline ").skip(1) {
            let (head, rest) = part.split_once("\ndata ").unwrap();
            let (length, rest) = rest.split_once('\n').unwrap();
            let length: usize = length.parse().unwrap();
            assert_eq!(rest.as_bytes().get(length), Some(&b'\n'), "{head}");
        }
    }

    #[test]
    fn an_existing_file_stays_and_a_failure_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        assert!(once(&path, |_| Err(std::io::Error::other("full"))).is_err() && !path.exists());
        once(&path, |out| out.write_all(b"one")).unwrap();
        once(&path, |out| out.write_all(b"two")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }
}
