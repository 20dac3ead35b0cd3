//! Describes the machine of a measurement or a run, for the pages in `results/`.

use crate::sh::Cmd;
use std::fs;
use std::path::Path;

/// Returns the CPU time of all programs that have ended below this one, in seconds; 0 if the system does not say.
/// A second lane counts when it ends: its time is in the step that runs then.
pub(crate) fn cpu_seconds() -> f64 {
    // Times are in ticks of 10 ms on every Linux; fields 16 and 17 of proc_pid_stat(5), after the name in parentheses.
    let ticks = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(13).map(str::parse);
        Some(fields.next()?.unwrap_or(0) + fields.next()?.unwrap_or(0))
    };
    ticks().map_or(0.0, |ticks: u32| f64::from(ticks) / 100.0)
}

/// Returns the commit, and whether the tree differs from it.
pub(crate) fn commit(root: &Path) -> String {
    let git = |args: &[&str]| Cmd::new(root, "git").args(args).read().ok();
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"]))
    {
        (Some(commit), Some(changes)) if changes.trim().is_empty() => commit.trim().to_string(),
        (Some(commit), _) => format!("{} with changes", commit.trim()),
        (None, _) => "unknown (no git)".to_string(),
    }
}

/// Returns the processor, cores, system and compiler.
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

/// Returns the processor's model in numbers. The name alone may not identify it: a guest often sees only the vendor's.
pub(crate) fn model() -> String {
    model_of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn model_of(cpu: &str) -> String {
    let of = |name: &str| {
        let mut lines = cpu.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(known, _)| known.trim() == name).map_or("?", |(_, value)| value.trim())
    };
    let [vendor, family, model, stepping] = ["vendor_id", "cpu family", "model", "stepping"].map(of);
    format!("{vendor}, family {family}, model {model}, stepping {stepping}")
}

/// Returns a duration as readable text.
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
    fn the_model_is_named_by_its_numbers() {
        let cpu = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                   model name\t: AMD EPYC\nstepping\t: 1\n";
        assert_eq!(model_of(cpu), "AuthenticAMD, family 25, model 17, stepping 1");
        assert_eq!(model_of(""), "?, family ?, model ?, stepping ?");
    }

    #[test]
    fn a_duration_is_seconds_or_minutes() {
        assert_eq!((duration(9.96).as_str(), duration(125.0).as_str()), ("10.0 s", "2 min 05 s"));
    }
}
