//! Where something was measured or run: for the pages in `results/`.

use crate::sh::Cmd;
use std::fs;
use std::path::Path;

/// The commit, and whether the tree differs from it.
pub(crate) fn commit(root: &Path) -> String {
    let git = |args: &[&str]| Cmd::new(root, "git").args(args).read().ok();
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"]))
    {
        (Some(commit), Some(changes)) if changes.trim().is_empty() => commit.trim().to_string(),
        (Some(commit), _) => format!("{} with changes", commit.trim()),
        (None, _) => "unknown (no git)".to_string(),
    }
}

/// Processor, cores, system, compiler.
pub(crate) fn machine(root: &Path) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name").and_then(|rest| rest.split_once(": ")))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or("unknown system", |name| name.trim_matches('"'));
    let rustc = Cmd::new(root, "rustc").arg("--version").read().unwrap_or_default();
    format!("{model}, {cores} cores, {system}, {}", rustc.trim())
}

/// Seconds as a person reads them.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", seconds as u64 / 60, seconds as u64 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_seconds_or_minutes() {
        assert_eq!((duration(9.96).as_str(), duration(125.0).as_str()), ("10.0 s", "2 min 05 s"));
    }
}
