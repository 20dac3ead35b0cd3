//! One run of a test's program.

use super::Program;
use anyhow::{Context, Result};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A configuration of a program's run: plain, or under the preload with settings.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    conf: Option<&'static str>,
}

/// All configurations, plain first. Small thresholds let the preload serve more of a test. The one with statistics
/// counts that.
pub(crate) const WAYS: [Way; 5] = [
    Way { name: "plain", conf: None },
    Way { name: "preload", conf: Some("") },
    Way { name: "threshold:4K", conf: Some("threshold:4K,stats:true") },
    Way { name: "hardened", conf: Some("hardened:true") },
    Way { name: "hardened, 4K", conf: Some("hardened:true,threshold:4K") },
];

/// The end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Passed,
    /// The test reports that it cannot run here.
    Skipped,
    Code(i32),
    Signal(i32),
    /// The time limit ended it.
    Late,
}

/// The result of a run. Its suite may count cases; else both counts are 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) cases_passed: u32,
    pub(crate) cases_failed: u32,
    pub(crate) seconds: f64,
    /// Allocations that the preload served, if statistics were on.
    pub(crate) served: u64,
}

impl Outcome {
    /// Returns true if two runs ended alike.
    pub(crate) fn like(&self, other: &Self) -> bool {
        (self.end, self.cases_passed, self.cases_failed)
            == (other.end, other.cases_passed, other.cases_failed)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            End::Passed => f.write_str("ok")?,
            End::Skipped => f.write_str("skipped")?,
            End::Code(code) => write!(f, "exit {code}")?,
            End::Signal(signal) => write!(f, "signal {signal}")?,
            End::Late => f.write_str("no end")?,
        }
        let cases = self.cases_passed + self.cases_failed;
        if self.cases_failed > 0 {
            write!(f, ", {} of {cases}", self.cases_passed)?;
        }
        // Short times vary, and are not informative.
        if self.seconds >= 5.0 { write!(f, " ({:.0} s)", self.seconds) } else { Ok(()) }
    }
}

/// Runs programs, each in an empty folder.
pub(crate) struct Runner {
    pub(crate) dir: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) limit: u32,
}

/// The exit code of programs that cannot run here.
const SKIPPED: i32 = 77;

impl Runner {
    /// Runs a program in one configuration.
    pub(crate) fn run(&self, program: &Program, way: &Way) -> Result<Outcome> {
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir)?;
        }
        fs::create_dir_all(&self.dir)?;
        let log = self.dir.with_extension("log");
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        // `timeout` ends the whole process group; a test driver in a group of its own obeys an interrupt.
        let mut command = Command::new("timeout");
        command.args(["--signal=INT", "--kill-after=5"]).arg(self.limit.to_string());
        command.arg("env").args(self.variables(program, way)).arg(&program.path).args(&program.args);
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        command.env_remove("LD_PRELOAD").env_remove("VMALLOC_CONF");
        let began = Instant::now();
        let status = command.status().context("cannot run timeout")?;
        let seconds = began.elapsed().as_secs_f64();
        let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let (cases_passed, cases_failed) = cases(&output);
        let late = seconds >= f64::from(self.limit);
        let end = match (status.code(), status.signal()) {
            _ if late => End::Late,
            (Some(0), _) => End::Passed,
            (Some(SKIPPED), _) => End::Skipped,
            (Some(code), _) => End::Code(code),
            (None, signal) => End::Signal(signal.unwrap_or(0)),
        };
        Ok(Outcome { end, cases_passed, cases_failed, seconds, served: served(&output) })
    }

    /// Returns the variables as words for `env`, which itself runs without them.
    fn variables(&self, program: &Program, way: &Way) -> Vec<String> {
        let mut words: Vec<String> =
            program.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let ours = way.conf.map(|_| self.library.display().to_string());
        let libraries: Vec<String> = program.library.map(str::to_string).into_iter().chain(ours).collect();
        if !libraries.is_empty() {
            words.push(format!("LD_PRELOAD={}", libraries.join(":")));
        }
        words.extend(way.conf.map(|conf| format!("VMALLOC_CONF={conf}")));
        words
    }
}

/// Counts the cases in the output of frameworks that print a line for each.
fn cases(output: &str) -> (u32, u32) {
    let count = |first: &str, last: &str| {
        let lines = output.lines().map(str::trim_end);
        lines.filter(|line| line.starts_with(first) || line.ends_with(last)).count() as u32
    };
    (count("PASS: ", "): pass"), count("FAIL: ", "): fail"))
}

/// Adds the statistics of all processes of a run.
fn served(output: &str) -> u64 {
    let lines = output.split("vmalloc: served ").skip(1);
    lines.filter_map(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(dir: &std::path::Path, limit: u32) -> Runner {
        Runner { dir: dir.join("work"), library: PathBuf::from("/no/library.so"), limit }
    }

    fn shell(script: &str) -> Program {
        Program { args: vec!["-c".to_string(), script.to_string()], ..Program::new(PathBuf::from("/bin/sh")) }
    }

    #[test]
    fn the_end_of_a_run_is_its_code_its_signal_or_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let run = |script: &str, limit| runner(dir.path(), limit).run(&shell(script), &WAYS[0]).unwrap();
        let ends = ["exit 0", "exit 77", "exit 3", "kill -SEGV $$"].map(|script| run(script, 60).end);
        assert_eq!(ends, [End::Passed, End::Skipped, End::Code(3), End::Signal(11)]);
        assert_eq!(run("sleep 30", 1).end, End::Late);
        let some = run("echo 'PASS: a'; echo 'FAIL: b'; echo 'c (non-reentrant): pass'; exit 1", 60);
        assert_eq!(some.to_string(), "exit 1, 2 of 3");
        assert!(some.like(&some) && !some.like(&Outcome { cases_failed: 2, ..some }));
    }

    #[test]
    fn the_preload_comes_after_the_library_of_the_test_and_only_where_it_is_asked_for() {
        let runner = runner(std::path::Path::new("/x"), 1);
        let plain = Program::new(PathBuf::from("/bin/true"));
        assert!(runner.variables(&plain, &WAYS[0]).is_empty());
        let debug = Program { library: Some("d.so"), env: vec![("A", "1".to_string())], ..plain };
        assert_eq!(runner.variables(&debug, &WAYS[0]), ["A=1", "LD_PRELOAD=d.so"]);
        assert_eq!(
            runner.variables(&debug, &WAYS[3]),
            ["A=1", "LD_PRELOAD=d.so:/no/library.so", "VMALLOC_CONF=hardened:true"]
        );
    }

    #[test]
    fn the_statistics_of_all_processes_count() {
        assert_eq!(served("x\nvmalloc: served 7 freed 7; y\nvmalloc: served 3 freed"), 10);
        assert_eq!(served("vmalloc: served none"), 0);
    }
}
