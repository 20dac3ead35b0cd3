//! The header of a page of results: the command, the commit, the machine and the build.

use std::path::Path;
use std::process::Command;
use vmlab_base::text::counted;

/// Returns the build's instruction set.
pub fn build() -> &'static str {
    if cfg!(target_feature = "avx2") { "x86-64-v3" } else { "baseline" }
}

/// The profile of this build. Published figures use `dist`.
const PROFILE: &str = env!("VMLAB_PROFILE");
/// Its compiler.
const RUSTC: &str = env!("VMLAB_RUSTC");
/// Names the commit on a machine without the source.
const COMMIT: &str = "VMLAB_COMMIT";

/// Returns the name of the profile, as tables state it.
fn profile() -> String {
    if PROFILE == "dist" {
        "fat LTO".into()
    } else {
        format!("profile {PROFILE}, not optimised as one program")
    }
}

/// Returns the output of a command, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Returns the commit of the repository that contains `dir`, the source of this build, and marks uncommitted changes of
/// code. Results are not code.
fn commit(dir: &Path) -> Option<String> {
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(dir).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"])?;
    Some(if changed.is_empty() { commit } else { commit + "+changes" })
}

/// The description of the command, the source and the machine that a page of results begins with.
#[derive(Clone, Debug)]
pub struct Header(String);

impl Header {
    /// Reads the description of this build, and adds the command. It is read before a run, so that it names the commit
    /// of the build.
    pub fn read(command: &str) -> Self {
        Self::of(Path::new(env!("CARGO_MANIFEST_DIR")), command)
    }

    /// Reads the same of a build whose source is in `dir`.
    #[doc(hidden)]
    pub fn of(dir: &Path, command: &str) -> Self {
        let commit = commit(dir).or_else(|| std::env::var(COMMIT).ok()).unwrap_or("unknown".into());
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |key: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let model = field("model name").unwrap_or("unknown processor".into());
        let family = field("cpu family").map_or(String::new(), |family| format!(" (family {family})"));
        // All CPUs of the machine if they are listed; otherwise those that this process may use.
        let cpus = match cpuinfo.lines().filter(|line| line.starts_with("processor")).count() {
            0 => std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            listed => listed,
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self(format!(
            "command: {command}\ncommit: {commit}\nmachine: {model}{family}, {}, Linux {}\nbuild: {RUSTC}, {}, {}\n",
            counted(cpus as u64, "CPU"),
            kernel.trim(),
            build(),
            profile()
        ))
    }

    /// Returns the header with lines about the run.
    pub fn with(&self, lines: &str) -> String {
        format!("{}{lines}\n", self.0)
    }

    /// Returns the header of a run on one CPU, of streams of operations.
    pub fn pinned(&self, rounds: usize) -> String {
        self.with(&format!("rounds: {rounds} (fewer where a contender is slow), in turn, pinned to one CPU"))
    }
}
