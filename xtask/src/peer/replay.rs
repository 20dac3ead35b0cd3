//! Scripts on both libraries together: every address must be equal. Also the number of lazy pages during them.

use super::Peers;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Operations of a script.
const OPS: u32 = 200_000;
/// Numbers of nodes with which each script is run.
const NODES: [u32; 3] = [1, 2, 4];
/// Profiles of the scripts: sizes, alignments, windows.
const PROFILES: [&str; 4] = ["small", "mix", "align", "ranges"];
/// Profiles that map pages, which need a library that does.
const RAM_PROFILES: [&str; 2] = ["ram", "all"];

/// Scripts of one profile that were equal.
pub(super) struct Replayed {
    pub(super) profile: &'static str,
    pub(super) scripts: u32,
    pub(super) operations: u64,
}

/// Runs the scripts under Linux's policies beside Linux; any difference is an error.
pub(super) fn compare(root: &Path, peers: &Peers, seeds: u32) -> Result<Vec<Replayed>> {
    let maps = exports(&peers.ours, "kv_map_ram")?;
    let profiles = PROFILES.iter().chain(RAM_PROFILES.iter().filter(|_| maps));
    let mut replayed = Vec::new();
    for &profile in profiles {
        let mut of_profile = Replayed { profile, scripts: 0, operations: 0 };
        for seed in 1..=seeds {
            let script = script(root, peers, profile, seed)?;
            for nodes in NODES {
                let text = replay(root, peers, &script, nodes)?;
                let Some(operations) = identical(&text) else {
                    let last = text.lines().last().unwrap_or("it printed nothing");
                    bail!("profile {profile}, seed {seed}, {nodes} nodes: {last}");
                };
                of_profile.scripts += 1;
                of_profile.operations += operations;
            }
        }
        println!("{profile}: {} replays, every address equal", of_profile.scripts);
        replayed.push(of_profile);
    }
    Ok(replayed)
}

/// Returns true if a library exports a function: its name is in the table of names.
fn exports(library: &Path, name: &str) -> Result<bool> {
    let bytes = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
    Ok(bytes.windows(wanted.len()).any(|found| found == wanted))
}

fn script(root: &Path, peers: &Peers, profile: &str, seed: u32) -> Result<PathBuf> {
    let ops = Cmd::new(root, "python3")
        .arg(&peers.genops)
        .args(["va", &OPS.to_string(), &seed.to_string(), profile])
        .read()?;
    let path = peers.scratch.join("script.txt");
    fs::write(&path, ops)?;
    Ok(path)
}

fn replay(root: &Path, peers: &Peers, script: &Path, nodes: u32) -> Result<String> {
    let mut text = String::new();
    // Its output reports if it ends with an error.
    let _ended = Cmd::new(root, peers.programs.join("replay_va"))
        .env("VA_PEER_POLICY", "linux")
        .arg("--lib")
        .arg(&peers.linux)
        .arg("--lib")
        .arg(&peers.ours)
        .args(["--nodes", &nodes.to_string(), "--cpus", "4", "--quiet"])
        .arg(script)
        .lines(Show::Nothing, |line| {
            text.push_str(line);
            text.push('\n');
        })?;
    Ok(text)
}

/// Returns the number of operations, if the last line reports that all results were equal.
pub(super) fn identical(text: &str) -> Option<u64> {
    let rest = text.lines().last()?.strip_prefix("# ops ")?;
    rest.ends_with(" identical").then(|| rest.split(' ').next()?.parse().ok())?
}

/// The most lazy pages while pairs of one kind ran, and the number of purges.
pub(super) struct Backlog {
    pub(super) what: &'static str,
    pub(super) linux: Lazy,
    pub(super) ours: Lazy,
}

/// The values of one library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Lazy {
    pub(super) pages_max: u64,
    pub(super) purges: u64,
}

/// Runs pairs of one size and of many, and reads the counts regularly.
pub(super) fn backlogs(root: &Path, peers: &Peers) -> Result<Vec<Backlog>> {
    // The smallest and the largest size of each kind.
    let kinds = [("2 pages", 2, 2), ("2 to 101 pages", 2, 101), ("257 pages", 257, 257)];
    let mut backlogs = Vec::new();
    for (what, low, high) in kinds {
        let mut ops = String::new();
        for n in 0..60_000u64 {
            // The golden ratio's multiples are spread evenly.
            let pages = low + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (high - low + 1);
            writeln!(ops, "a 1 {} 1\nf 1", pages * 4096)?;
            // Not in step with a power of two.
            if n % 37 == 0 {
                ops.push_str("s\n");
            }
        }
        let path = peers.scratch.join("backlog.txt");
        fs::write(&path, ops)?;
        let lazy = |library: &Path| -> Result<Lazy> {
            let text = Cmd::new(root, peers.programs.join("replay_va"))
                .arg("--lib")
                .arg(library)
                .args(["--nodes", "2", "--cpus", "2", "--quiet"])
                .arg(&path)
                .read()?;
            Ok(most(&text))
        };
        backlogs.push(Backlog { what, linux: lazy(&peers.linux)?, ours: lazy(&peers.ours)? });
    }
    Ok(backlogs)
}

/// Returns the greatest values in lines of counts.
fn most(text: &str) -> Lazy {
    let number = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0)
    };
    text.lines().fold(Lazy::default(), |most, line| Lazy {
        pages_max: most.pages_max.max(number(line, "lazy_pages=")),
        purges: most.purges.max(number(line, "purges=")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_line_decides_equality() {
        assert_eq!(identical("x\n# ops 200002 hash 1f identical\n"), Some(200_002));
        assert_eq!(identical("# ops 200002 hash 1f\n"), None);
        assert_eq!(identical("DIFFER line 3: alloc: a gives 0x1, b gives 0x2\n"), None);
        assert_eq!(identical(""), None);
    }

    #[test]
    fn the_maximum_of_all_lines_is_used() {
        let text = "# a busy=1 lazy=2 lazy_pages=30 pooled=0 purges=1 height=0\n\
                    # a busy=1 lazy=0 lazy_pages=7 pooled=3 purges=2 height=0\n";
        assert_eq!(most(text), Lazy { pages_max: 30, purges: 2 });
    }

    #[test]
    fn a_name_is_exported_only_whole() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("lib");
        fs::write(&library, b"\0kv_map_ramx\0kv_free\0").unwrap();
        assert!(!exports(&library, "kv_map_ram").unwrap());
        assert!(exports(&library, "kv_free").unwrap());
    }
}
