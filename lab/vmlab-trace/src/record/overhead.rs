//! The cost of a pair of probes, measured on the running kernel.
//!
//! # Theory
//! `getppid` does next to nothing. A loop calls it without probes and with both, in turn. The median of the differences
//! is the cost of a pair: both events are made, and written into the kernel's buffer. Then the probes' own times show how
//! long the function seems to take. A part of the probes lies between the two times, so every recorded duration is too
//! long by about as much. To read and write the recording takes the recorder's CPU, and is part of neither.

use super::probes::{Probes, find};
use super::ticks::Ticks;
use super::tracefs::Instance;
use crate::entry::nanoseconds;
use anyhow::{Result, anyhow};
use rustix::process::getppid;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

/// Calls of a loop, and loops of each kind.
const CALLS: u32 = 10_000;
const ROUNDS: usize = 7;
/// Calls whose durations are read.
const READ: u32 = 500;
/// The most bytes that are read for them.
const READ_BYTES: usize = 1 << 20;
/// The names of the function on several machines. Some are of one place, and the function tracer knows one of these.
const FUNCTIONS: [&str; 8] = [
    "__x64_sys_getppid",
    "__arm64_sys_getppid",
    "__riscv_sys_getppid",
    "__s390x_sys_getppid",
    "__do_sys_getppid",
    "__se_sys_getppid",
    "__ia32_sys_getppid",
    "sys_getppid",
];
const ENTER: &str = "vmlab_cost_enter";
const LEAVE: &str = "vmlab_cost_leave";

/// The cost of a pair of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Calls that were measured, with probes.
    pub(super) calls: u64,
    /// Picoseconds of a call without probes.
    pub(super) plain_ps: u64,
    /// Picoseconds more with probes.
    pub(super) pair_ps: u64,
    /// Duration that the probes show, nanoseconds.
    pub(super) floor_ns: u64,
}

/// Measures the cost. Leaves no probe, and the buffers empty.
///
/// # Errors
/// If the kernel has no such function, or rejects a step.
pub(super) fn measure(
    instance: &Instance,
    probes: &mut Probes,
    symbols: &str,
    pipe: &mut File,
    ticks: Option<&Ticks>,
) -> Result<Cost> {
    add(probes, symbols)?;
    let enable = format!("events/{}/enable", probes.group());
    let mut rounds = Vec::new();
    instance.set("tracing_on", "1")?;
    for _ in 0..ROUNDS {
        let plain = timed(CALLS);
        instance.set(&enable, "1")?;
        let probed = timed(CALLS);
        instance.set(&enable, "0")?;
        // This empties the buffers, and their counts of losses.
        instance.set("trace", "")?;
        rounds.push((plain, probed.saturating_sub(plain)));
    }
    instance.set(&enable, "1")?;
    timed(READ);
    instance.set(&enable, "0")?;
    instance.set("tracing_on", "0")?;
    let floor_ns = floor(&read(pipe), ticks);
    instance.set("trace", "")?;
    probes.remove()?;
    let median = |of: fn(&(u64, u64)) -> u64| middle(rounds.iter().map(of).collect());
    let per_call = |ns: u64| ns.saturating_mul(1000) / u64::from(CALLS);
    Ok(Cost {
        calls: u64::from(CALLS) * ROUNDS as u64,
        plain_ps: per_call(median(|round| round.0)),
        pair_ps: per_call(median(|round| round.1)),
        floor_ns,
    })
}

/// Adds the probes to the function, by the first of its names that the kernel takes.
fn add(probes: &mut Probes, symbols: &str) -> Result<()> {
    let mut last = None;
    for function in FUNCTIONS.iter().filter_map(|name| find(symbols, &[name])) {
        match probes.add(ENTER, LEAVE, function) {
            Ok(()) => return Ok(()),
            Err(why) => last = Some(why),
        }
        probes.remove()?;
    }
    Err(last.unwrap_or_else(|| anyhow!("this kernel shows no function of getppid")))
}

/// Returns the nanoseconds of so many calls.
fn timed(calls: u32) -> u64 {
    let begun = Instant::now();
    for _ in 0..calls {
        std::hint::black_box(getppid());
    }
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn middle(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// Returns what is in the pipe, up to a limit.
fn read(pipe: &mut File) -> Vec<u8> {
    let (mut text, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    while text.len() < READ_BYTES {
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => text.extend_from_slice(&chunk[..bytes]),
        }
    }
    text
}

/// Returns the median duration of the calls in a text: a beginning, and the return of the same thread in the next line.
fn floor(text: &[u8], ticks: Option<&Ticks>) -> u64 {
    let mut begun: Option<(u64, Vec<u8>)> = None;
    let mut all = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let timed = ticks.map_or(line.into(), |ticks| ticks.timed(line));
        let shown = String::from_utf8_lossy(&timed);
        let time = shown.split_whitespace().find_map(|word| nanoseconds(word.strip_suffix(':')?));
        let (Some(ns), thread) = (time, line.get(..24).unwrap_or_default().to_vec()) else { continue };
        if shown.contains(ENTER) {
            begun = Some((ns, thread));
        } else if let Some((since, of)) = begun.take()
            && shown.contains(LEAVE)
            && of == thread
        {
            all.extend(ns.checked_sub(since));
        }
    }
    middle(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_median_of_calls_whose_ends_follow_each_other() {
        let line = |pid: u32, count: u64, event: &str| {
            format!("{:>16}-{pid:<7} [000] ..... {count:>12}: {event}: (x)\n", "a")
        };
        let (enter, leave) = (ENTER, LEAVE);
        let lines = [
            line(7, 1_000_000, enter),
            line(7, 1_000_300, leave),
            line(7, 1_001_000, enter),
            line(7, 1_001_200, leave),
            line(7, 1_002_000, enter),
            line(8, 1_009_000, leave),
            line(7, 1_009_900, leave),
            line(7, 1_010_000, enter),
            line(7, 1_010_999, leave),
        ];
        let ticks = Ticks::between((0, 0), (10, 20)).unwrap();
        assert_eq!(floor(lines.concat().as_bytes(), Some(&ticks)), 600);
        assert_eq!(floor(b"\xff\n-", Some(&ticks)), 0);
        let text = "               a-7       [000] .....     5.000001: vmlab_cost_enter: (x)\n               a-7       [000] .....     5.000003: vmlab_cost_leave: (x)\n";
        assert_eq!(floor(text.as_bytes(), None), 2000);
        assert_eq!(middle(vec![]), 0);
    }
}
