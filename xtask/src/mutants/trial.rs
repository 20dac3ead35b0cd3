//! Runs a subject's tests for faults: for one after another, or for several at a time.
//!
//! First the tests are timed without a fault. Those of each program that take little run in one process, which ends with
//! the first failure. The others run in a process each. The order is that of the faults of the same file that they
//! noticed, per second that they take, so at first that of their time. Limits are of CPU time, so that other programs
//! on the machine do not change an outcome. A process also ends if all of its threads sleep for
//! half a minute. A thread that gets no CPU time on a busy machine does not sleep. So it does not matter either how many
//! faults are tried at a time. Where one test would fail and another would not end, the one that runs first decides.

use crate::parallel;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wait4::Wait4;

/// The end of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Caught,
    NeverEnds,
    Survivor,
    DoesNotCompile,
}

impl Outcome {
    pub(super) const ALL: [Self; 4] = [Self::Caught, Self::NeverEnds, Self::Survivor, Self::DoesNotCompile];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::NeverEnds => "never ends",
            Self::Survivor => "survivor",
            Self::DoesNotCompile => "does not compile",
        }
    }
}

/// A test that takes longer than this is in no process with others.
const FAST_SECONDS: f64 = 0.15;

/// No run counts as shorter: a process takes time to start.
const START_SECONDS: f64 = 0.02;

/// The limit of a process: this many seconds, and a multiple of its time without a fault.
const LIMIT: (f64, f64) = (3.0, 3.0);

/// The seconds for which all threads may sleep.
const STILL: u32 = 30;

/// The most writable memory of a process in KiB. Some faults have a test ask for memory without end. Address space has no
/// limit: tests reserve a tebibyte.
const KIB: u64 = 8 << 20;

/// Programs of tests, and what to run of them.
pub(super) struct Trial {
    folder: PathBuf,
    programs: Vec<PathBuf>,
    runs: Vec<Run>,
    noticed: Mutex<Noticed>,
}

/// Of each file, the faults that each run noticed.
type Noticed = BTreeMap<String, Vec<u32>>;

/// Tests of one program.
#[derive(Clone, Debug)]
struct Run {
    program: usize,
    args: Vec<String>,
    seconds: f64,
}

impl Trial {
    /// Times the tests of `programs` without a fault, `jobs` at a time. They run in `folder`, which is their package's.
    pub(super) fn new(folder: &Path, programs: &[PathBuf], jobs: usize) -> Result<Self> {
        let (folder, programs) = (folder.to_path_buf(), programs.to_vec());
        let mut trial = Self { folder, programs, runs: Vec::new(), noticed: Mutex::default() };
        let mut tests = Vec::new();
        for (program, path) in trial.programs.iter().enumerate() {
            let list = Command::new(path).arg("--list").current_dir(&trial.folder).output()?;
            let list = String::from_utf8_lossy(&list.stdout);
            let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
            tests.extend(names.map(|name| Run::one(program, name, 60.0)));
        }
        let mut timed = BTreeMap::<_, Vec<_>>::new();
        let time = |run: &Run| trial.run(run, 0);
        parallel::each(jobs, &tests, time, |run, (ended, took)| {
            if ended != Ended::Passed {
                bail!("{} fails without a fault", run.args[0]);
            }
            timed.entry(run.program).or_default().push((run.args[0].as_str(), took));
            Ok(())
        })?;
        trial.runs = timed.into_iter().flat_map(|(program, tests)| Run::all(program, &tests)).collect();
        Ok(trial)
    }

    /// Returns the same tests of other programs, which were built of the same sources but for faults, and take `slower`
    /// times as long.
    pub(super) fn with(&self, programs: &[PathBuf], slower: f64) -> Result<Self> {
        // Without the checksum, which depends on how they are built.
        let name = |program: &PathBuf| {
            let name = program.file_name()?.to_str()?;
            Some(name.rsplit_once('-').map_or(name, |(name, _)| name).to_string())
        };
        let names = |programs: &[PathBuf]| -> Vec<_> { programs.iter().map(name).collect() };
        if names(programs) != names(&self.programs) {
            bail!("there are other tests");
        }
        let (mut runs, noticed) = (self.runs.clone(), Mutex::new(self.noticed().clone()));
        runs.iter_mut().for_each(|run| run.seconds *= slower);
        Ok(Self { folder: self.folder.clone(), programs: programs.into(), runs, noticed })
    }

    /// Runs the tests with a fault of a file until one fails.
    pub(super) fn outcome(&self, mutant: u32, file: &str) -> Result<Outcome> {
        for nth in self.order(file) {
            let outcome = match self.run(&self.runs[nth], mutant)?.0 {
                Ended::Passed => continue,
                Ended::Failed => Outcome::Caught,
                Ended::Never => Outcome::NeverEnds,
            };
            let none = || vec![0; self.runs.len()];
            self.noticed().entry(file.to_string()).or_insert_with(none)[nth] += 1;
            return Ok(outcome);
        }
        Ok(Outcome::Survivor)
    }

    fn noticed(&self) -> MutexGuard<'_, Noticed> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the order of the runs for a fault of a file.
    fn order(&self, file: &str) -> Vec<usize> {
        let noticed = self.noticed();
        let noticed = noticed.get(file);
        let worth = |&nth: &usize| {
            let noticed = noticed.map_or(0, |noticed| noticed[nth]);
            f64::from(1 + noticed) / self.runs[nth].seconds.max(START_SECONDS)
        };
        let mut order: Vec<_> = (0..self.runs.len()).collect();
        order.sort_by(|one, other| worth(other).total_cmp(&worth(one)));
        order
    }

    /// Runs tests. Returns how they ended, and their CPU time.
    fn run(&self, run: &Run, mutant: u32) -> Result<(Ended, f64)> {
        let limit = (LIMIT.0 + LIMIT.1 * run.seconds) as u64;
        // The limit of CPU time kills without a word.
        let script = format!("ulimit -c 0 -t {limit} -d {KIB}; exec \"$0\" \"$@\"");
        let child = Command::new("bash")
            .args(["-c", &script])
            .arg(&self.programs[run.program])
            .args(["-Zunstable-options", "--fail-fast"])
            .args(&run.args)
            .env("MUTANT", mutant.to_string())
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUST_BACKTRACE", "0")
            // All copies of a body have their variables in its frame. A test has 64 threads, whose stacks count to `KIB`.
            .env("RUST_MIN_STACK", (32 << 20).to_string())
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = child.context("cannot run bash")?;
        let (group, (end, ended)) = (child.id(), channel::<()>());
        let used = std::thread::scope(|scope| {
            scope.spawn(move || watch(group, &ended, STILL));
            let used = child.wait4();
            drop(end);
            used
        });
        let used = used.context("cannot wait for a test")?;
        let cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
        Ok((Ended::of(used.status), cpu))
    }
}

impl Run {
    /// Returns a run of one test of a program.
    fn one(program: usize, name: &str, seconds: f64) -> Self {
        Self { program, args: vec![name.to_string(), "--exact".to_string()], seconds }
    }

    /// Returns the runs of a program: its tests, with the seconds that each takes.
    fn all(program: usize, tests: &[(&str, f64)]) -> Vec<Self> {
        let (fast, slow): (Vec<_>, Vec<_>) = tests.iter().partition(|(_, took)| *took < FAST_SECONDS);
        let skipped = slow.iter().flat_map(|(name, _)| ["--skip", name]);
        let args = ["--exact"].into_iter().chain(skipped).map(String::from).collect();
        let mut runs: Vec<_> = slow.iter().map(|(name, took)| Self::one(program, name, *took)).collect();
        if !fast.is_empty() {
            runs.push(Self { program, args, seconds: fast.iter().map(|(_, took)| took).sum() });
        }
        runs
    }
}

/// Kills the processes of a group if all of their threads sleep for so many seconds. Returns when the other end of
/// `ended` is dropped.
fn watch(group: u32, ended: &Receiver<()>, most: u32) {
    let mut still = 0;
    while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        still = if sleeps(group) { still + 1 } else { 0 };
        if still == most {
            let group = format!("-{group}");
            _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        }
    }
}

/// Returns true if every thread of every process of a group sleeps.
fn sleeps(group: u32) -> bool {
    // After the name, which is in parentheses: state, parent, group.
    let of = |path: &Path| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some((fields.next()?.to_string(), fields.nth(1)?.parse::<u32>().ok()?))
    };
    let entries = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let processes =
        entries(Path::new("/proc")).into_iter().filter(|path| of(path).is_some_and(|of| of.1 == group));
    let mut threads = processes.flat_map(|path| entries(&path.join("task")));
    threads.all(|path| of(&path).is_none_or(|of| of.0 == "S" || of.0 == "Z"))
}

/// The end of tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Passed,
    Failed,
    Never,
}

impl Ended {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::Passed,
            (_, Some(SIGKILL | SIGXCPU)) => Self::Never,
            _ => Self::Failed,
        }
    }
}

const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(script: &str, seconds: f64) -> Ended {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let trial = Trial {
            folder: dir.path().into(),
            programs: vec![program],
            runs: Vec::new(),
            noticed: Mutex::default(),
        };
        trial.run(&Run { program: 0, args: Vec::new(), seconds }, 7).unwrap().0
    }

    #[test]
    fn a_loop_without_end_is_not_a_failure() {
        assert_eq!(ended("test $MUTANT = 7", 0.0), Ended::Passed);
        assert_eq!(ended("exit 101", 0.0), Ended::Failed);
        assert_eq!(ended("kill -ABRT $$", 0.0), Ended::Failed);
        // One second of CPU time.
        assert_eq!(ended("while :; do :; done", -0.6), Ended::Never);
    }

    #[test]
    fn tests_that_take_little_are_one_run() {
        let runs = Run::all(3, &[("a", 0.01), ("b", 2.0), ("c", 0.02)]);
        let said: Vec<_> = runs.iter().map(|run| (run.args.join(" "), run.seconds, run.program)).collect();
        assert_eq!(said, [("b --exact".to_string(), 2.0, 3), ("--exact --skip b".to_string(), 0.03, 3)]);
        assert!(Run::all(0, &[("b", 2.0)]).len() == 1 && Run::all(0, &[]).is_empty());
    }

    #[test]
    fn runs_that_noticed_faults_of_the_file_come_first() {
        let run = |seconds| Run { program: 0, args: Vec::new(), seconds };
        let trial = Trial {
            folder: PathBuf::new(),
            programs: vec![PathBuf::from("one/program-1a")],
            runs: [8.0, 1.0, 2.0].map(run).to_vec(),
            noticed: Mutex::default(),
        };
        assert_eq!(trial.order("a.rs"), [1, 2, 0]);
        trial.noticed().insert("a.rs".to_string(), vec![9, 0, 3]);
        assert_eq!(trial.order("a.rs"), [2, 0, 1]);
        let next = trial.with(&[PathBuf::from("other/program-2b")], 3.0).unwrap();
        assert_eq!((next.order("a.rs"), next.order("b.rs")), (vec![2, 0, 1], vec![1, 2, 0]));
        assert_eq!(next.runs[0].seconds, 24.0);
        assert!(trial.with(&[PathBuf::from("one/other-1a")], 1.0).is_err());
    }

    #[test]
    fn a_process_that_only_sleeps_is_killed_and_one_that_could_run_is_not() {
        let killed = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap();
            let (group, (end, ended)) = (child.id(), channel());
            std::thread::scope(|scope| {
                scope.spawn(move || watch(group, &ended, 1));
                let status = child.wait().unwrap();
                drop(end);
                status.signal() == Some(SIGKILL)
            })
        };
        assert!(killed("sleep 1000 & wait"));
        // A child of it runs.
        assert!(!killed("(i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done); true"));
    }
}
