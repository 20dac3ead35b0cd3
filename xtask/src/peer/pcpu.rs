//! Scripts of per-CPU memory on both libraries together: every chunk and offset must be equal.

use super::Peers;
use super::replay::{Replayed, identical};
use crate::sh::{Cmd, Show};
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

/// Operations of a script.
const OPS: u32 = 200_000;
/// Profiles of the scripts.
const PROFILES: [&str; 4] = ["per-CPU net", "per-CPU mix", "per-CPU atomic", "per-CPU frag"];
/// Sizes: as in Linux on four CPUs, and small units in which the sections of the first chunk begin and end
/// inside pages.
const GEOMETRIES: [&[&str]; 2] =
    [&[], &["--unit-size", "65536", "--static", "5000", "--reserved", "2052", "--dyn", "20484"]];

/// Runs the scripts under Linux's policies beside Linux; any difference is an error.
pub(super) fn compare(root: &Path, peers: &Peers, seeds: u32) -> Result<Vec<Replayed>> {
    let mut replayed = Vec::new();
    for profile in PROFILES {
        let mut of_profile = Replayed { profile, scripts: 0, operations: 0 };
        for seed in 1..=seeds {
            let ops = Cmd::new(root, "python3")
                .arg(&peers.genops)
                .args(["pcpu", &OPS.to_string(), &seed.to_string(), name(profile)])
                .read()?;
            let script = peers.scratch.join("pcpu-script.txt");
            fs::write(&script, ops)?;
            for geometry in GEOMETRIES {
                let text = replay(root, peers, &script, geometry)?;
                let Some(operations) = identical(&text) else {
                    let last = text.lines().last().unwrap_or("it printed nothing");
                    bail!("profile {profile}, seed {seed}, {geometry:?}: {last}");
                };
                of_profile.scripts += 1;
                of_profile.operations += operations;
            }
        }
        println!("{profile}: {} replays, every chunk and offset equal", of_profile.scripts);
        replayed.push(of_profile);
    }
    Ok(replayed)
}

/// Returns the script author's name of a profile.
fn name(profile: &str) -> &str {
    profile.rsplit(' ').next().unwrap_or(profile)
}

fn replay(root: &Path, peers: &Peers, script: &Path, geometry: &[&str]) -> Result<String> {
    let mut text = String::new();
    // Its output reports if it ends with an error.
    let _ended = Cmd::new(root, peers.programs.join("replay_pcpu"))
        .env("VA_PEER_POLICY", "linux")
        .arg("--lib")
        .arg(peers.programs.join("libkpercpu.so"))
        .arg("--lib")
        .arg(&peers.ours)
        .args(geometry)
        .arg("--quiet")
        .arg(script)
        .lines(Show::Nothing, |line| {
            text.push_str(line);
            text.push('\n');
        })?;
    Ok(text)
}
