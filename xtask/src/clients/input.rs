//! Files that clients work on: made, not fetched, and the same everywhere.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Bytes of the text.
const TEXT_BYTES: usize = 6 << 20;
/// Commits of the history, files in it, lines of each.
const COMMITS: u64 = 200;
const FILES: usize = 60;
const LINES: usize = 400;
/// Bytes of the one large file, which the last two commits have in two versions.
const LARGE_BYTES: usize = 4 << 20;

/// Makes what is not there yet in `dir`.
pub(crate) fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    once(&dir.join("text.txt"), |out| text(out, &mut Random(1), TEXT_BYTES))?;
    once(&dir.join("history.txt"), |out| history(out, COMMITS, LARGE_BYTES))
}

/// Writes a file unless it is there; a file is there only when it is whole.
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

/// Numbers that are the same everywhere: Knuth's multiplier, the upper bits.
struct Random(u64);

impl Random {
    /// Below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    /// A line of words: few syllables, so that some words come often, as in text.
    fn line(&mut self, line: &mut String) {
        const SYLLABLES: [&str; 16] = [
            "al", "lo", "ca", "tor", "pa", "ge", "va", "ma", "tree", "no", "de", "free", "map", "pool",
            "zone", "lazy",
        ];
        for _ in 0..6 + self.below(8) {
            for _ in 0..1 + self.below(3) {
                // The smaller of two: some syllables come more often.
                let at = self.below(SYLLABLES.len()).min(self.below(SYLLABLES.len()));
                line.push_str(SYLLABLES.get(at).copied().unwrap_or_default());
            }
            line.push(' ');
        }
        line.push_str(&self.below(1000).to_string());
        line.push('\n');
    }
}

fn text(out: &mut dyn Write, random: &mut Random, bytes: usize) -> std::io::Result<()> {
    let (mut line, mut written) = (String::new(), 0);
    while written < bytes {
        line.clear();
        random.line(&mut line);
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    Ok(())
}

/// A history as `git fast-import` reads it: each commit rewrites a few lines of three files.
fn history(out: &mut dyn Write, commits: u64, large_bytes: usize) -> std::io::Result<()> {
    let mut random = Random(2);
    let mut files = vec![vec![String::new(); LINES]; FILES];
    files.iter_mut().flatten().for_each(|line| random.line(line));
    let mut large = Vec::new();
    text(&mut large, &mut random, large_bytes)?;
    for commit in 0..commits {
        writeln!(out, "commit refs/heads/main")?;
        writeln!(out, "committer A Person <person@example.org> {} +0000", 1_700_000_000 + commit * 3600)?;
        let message = format!("Change {commit}\n");
        write!(out, "data {}\n{message}", message.len())?;
        for _ in 0..3 {
            let at = random.below(FILES);
            let Some(file) = files.get_mut(at) else { continue };
            for _ in 0..12 {
                if let Some(line) = file.get_mut(random.below(LINES)) {
                    line.clear();
                    random.line(line);
                }
            }
            let whole = file.concat();
            write!(out, "M 100644 inline dir{}/file{at}.txt\ndata {}\n{whole}\n", at % 7, whole.len())?;
        }
        if commit + 2 >= commits {
            // Some bytes of it differ in every version, all over it.
            large.iter_mut().skip(commit as usize % 100).step_by(5000).for_each(|byte| *byte = b'x');
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
        let mut made = Vec::new();
        text(&mut made, &mut Random(1), 10_000).unwrap();
        assert_eq!(crc32fast::hash(&made), TEXT_CRC, "bytes {}", made.len());
        assert!(made.len() >= 10_000 && made.ends_with(b"\n"));
    }
    /// Of this very text, so that a change of it does not go unseen: it would make results of two versions incomparable.
    const TEXT_CRC: u32 = 383_062_334;

    #[test]
    fn a_history_has_its_commits_and_says_its_lengths() {
        let mut made = Vec::new();
        history(&mut made, 5, 3000).unwrap();
        let made = String::from_utf8(made).unwrap();
        assert_eq!(made.matches("\ncommitter ").count(), 5);
        assert_eq!(made.matches(" large.txt\n").count(), 2);
        for part in made.split("inline ").skip(1) {
            let (head, rest) = part.split_once("\ndata ").unwrap();
            let (length, rest) = rest.split_once('\n').unwrap();
            let length: usize = length.parse().unwrap();
            assert_eq!(rest.as_bytes().get(length), Some(&b'\n'), "{head}");
        }
    }

    #[test]
    fn what_is_there_stays_and_what_fails_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        assert!(once(&path, |_| Err(std::io::Error::other("full"))).is_err() && !path.exists());
        once(&path, |out| out.write_all(b"one")).unwrap();
        once(&path, |out| out.write_all(b"two")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }
}
