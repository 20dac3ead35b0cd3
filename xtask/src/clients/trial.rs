//! One run of an application: its answer, and its cost.
//!
//! A server is measured alone: the script that drives it runs beside, without the preload, and its answers are
//! compared.

use super::table::Client;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use wait4::Wait4;

/// The longest run of an application, in seconds: a program that hangs has failed.
const LIMIT_SECONDS: &str = "600";

/// The environment of an application.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The preloaded library; `None` for the C library's own allocator.
    pub(crate) library: Option<PathBuf>,
    /// Value of `VMALLOC_CONF`.
    pub(crate) conf: Option<String>,
    /// Value of `GLIBC_TUNABLES`.
    pub(crate) tunables: Option<&'static str>,
}

impl Column {
    /// Returns the environment of the C library's own allocator.
    pub(crate) fn plain(name: &str) -> Self {
        Self { name: name.to_string(), library: None, conf: None, tunables: None }
    }

    /// Sets the library and the settings in a command's environment.
    pub(crate) fn dress(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        if let Some(conf) = &self.conf {
            command.env("VMALLOC_CONF", conf);
        }
        if let Some(tunables) = self.tunables {
            command.env("GLIBC_TUNABLES", tunables);
        }
    }
}

/// The cost of a run, and a checksum of its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) cpu_seconds: f64,
    pub(crate) wall_seconds: f64,
    pub(crate) peak_bytes: f64,
    pub(crate) answer: Answer,
}

/// Length and CRC-32 of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

/// The folder of an application, and the variables that its scripts may use.
pub(crate) struct Scene {
    pub(crate) dir: PathBuf,
    pub(crate) vars: Vec<(&'static str, String)>,
}

impl Scene {
    /// Returns `sh` with a script, the variables of the scene and an empty standard input.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT_SECONDS, "sh", "-euc", script]).current_dir(&self.dir).stdin(Stdio::null());
        command.envs(self.vars.iter().map(|(name, value)| (name, value)));
        // Variables that could differ between two callers of this program.
        command
            .env("LC_ALL", "C.UTF-8")
            .env("OMP_NUM_THREADS", "2")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env_remove("GIT_INDEX_FILE")
            .env_remove("VMALLOC_CONF")
            .env_remove("VMALLOC_REPORT")
            .env_remove("GLIBC_TUNABLES")
            .env_remove("LD_PRELOAD");
        command
    }

    /// Runs a script silently and returns its output.
    pub(crate) fn read(&self, script: &str) -> Result<String> {
        let output = self.shell(script).output().context("cannot run sh")?;
        if !output.status.success() {
            bail!("{} ({})", last_lines(&String::from_utf8_lossy(&output.stderr)), output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns the order of the columns in a turn: it goes round, and every second one is backwards. For two or three
/// columns these are all orders.
///
/// A process that follows one with much memory finds other free memory, and may take 15 % longer in the system. If the
/// order went round in one direction, a column would follow the same other one in two of three turns.
pub(crate) fn order(turn: usize, columns: usize) -> impl Iterator<Item = usize> {
    let step = move |step| if turn.is_multiple_of(2) { step } else { columns - 1 - step };
    (0..columns).map(move |at| (step(at) + turn / 2) % columns)
}

/// Runs an application once.
///
/// # Errors
/// If it, or the script that drives it, fails; the error ends with the last lines of its output.
pub(crate) fn run_trial(client: &Client, scene: &Scene, column: &Column) -> Result<Trial> {
    let stderr = scene.dir.join("stderr.txt");
    let mut command = scene.shell(client.run);
    let port = free_port()?.to_string();
    command.env("PORT", &port).stderr(File::create(&stderr)?);
    column.dress(&mut command);
    command.stdout(if client.beside.is_some() { Stdio::null() } else { Stdio::piped() });
    let started = Instant::now();
    let mut child = command.spawn().context("cannot run timeout and sh")?;
    let answer = match client.beside {
        Some(script) => drive(scene, script, &port, &child),
        None => answer(&mut child.stdout.take().context("no pipe")?),
    };
    let used = child.wait4().context("cannot wait for it")?;
    let wall_seconds = started.elapsed().as_secs_f64();
    let errors = || last_lines(&fs::read_to_string(&stderr).unwrap_or_default());
    if !used.status.success() {
        bail!("{}: {} ({})", column.name, errors(), used.status);
    }
    let answer = answer.with_context(|| format!("{}: {}", column.name, errors()))?;
    let cpu = used.rusage.utime + used.rusage.stime;
    Ok(Trial { cpu_seconds: cpu.as_secs_f64(), wall_seconds, peak_bytes: used.rusage.maxrss as f64, answer })
}

/// Returns the least peak that a program started from here can have: it shares this one's memory until `exec`, and the
/// system counts that.
pub(crate) fn floor_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns how many large allocations the preload served in a separate run: counting has a cost, so no measured run
/// counts.
pub(crate) fn served(client: &Client, scene: &Scene, column: &Column) -> Result<u64> {
    let mut column = column.clone();
    column.conf = Some(column.conf.map_or("stats:true".to_string(), |conf| format!("{conf},stats:true")));
    run_trial(client, scene, &column)?;
    let stderr = fs::read_to_string(scene.dir.join("stderr.txt")).unwrap_or_default();
    if let Some(line) = stderr.lines().find(|line| line.starts_with("vmalloc: VMALLOC_CONF: ")) {
        bail!("{line}");
    }
    Ok(count_served(&stderr))
}

fn count_served(stderr: &str) -> u64 {
    stderr
        .split("vmalloc: served ")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Runs the script that drives a server. If it fails, the server is stopped: the caller waits for it.
fn drive(scene: &Scene, script: &str, port: &str, server: &Child) -> Result<Answer> {
    let mut command = scene.shell(script);
    command.env("PORT", port).stdout(Stdio::piped()).stderr(File::create(scene.dir.join("driver.txt"))?);
    let driven = command.spawn().context("cannot run sh").and_then(|mut child| {
        let answer = answer(&mut child.stdout.take().context("no pipe")?);
        let status = child.wait()?;
        if !status.success() {
            let stderr = fs::read_to_string(scene.dir.join("driver.txt")).unwrap_or_default();
            bail!("its driver: {} ({status})", last_lines(&stderr));
        }
        answer
    });
    if driven.is_err() {
        // The shell's own `kill`: a minimal system has no other.
        let script = format!("kill {}", server.id());
        let _gone_already = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status();
    }
    driven
}

/// Reads to the end, and returns the checksum.
fn answer(from: &mut impl Read) -> Result<Answer> {
    let (mut hasher, mut bytes, mut buffer) = (crc32fast::Hasher::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = from.read(&mut buffer).context("cannot read its output")?;
        let Some(part @ [_, ..]) = buffer.get(..read) else {
            return Ok(Answer { bytes, crc: hasher.finalize() });
        };
        hasher.update(part);
        bytes += read as u64;
    }
}

/// Returns a free port of the loopback.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on the loopback")?;
    Ok(listener.local_addr()?.port())
}

/// Returns the last three lines that are not empty.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(3)..).unwrap_or_default();
    if last.is_empty() { "it said nothing".to_string() } else { last.join(" | ") }
}

/// Returns true if a program exists on the path of the scripts.
pub(crate) fn exists(program: impl AsRef<OsStr>, path: &str) -> bool {
    std::env::split_paths(path).any(|dir| dir.join(Path::new(program.as_ref())).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_follows_each_other_one_as_often() {
        let orders =
            |columns: usize, turns| (0..turns).map(move |turn| order(turn, columns).collect::<Vec<_>>());
        for columns in 2..=3 {
            let turns = columns * (columns - 1);
            let all: std::collections::BTreeSet<_> = orders(columns, turns).collect();
            assert_eq!(all.len(), turns.min(if columns == 2 { 2 } else { 6 }));
        }
        for columns in 2..7 {
            let mut follows = vec![vec![0; columns]; columns];
            for order in orders(columns, 2 * columns) {
                order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
                assert!((0..columns).all(|column| order.contains(&column)), "{order:?}");
            }
            assert!(
                (0..columns).all(|one| (0..columns).all(|other| follows[one][other] == follows[other][one]))
            );
        }
        assert_eq!(order(3, 0).count(), 0);
    }

    fn scene(dir: &Path) -> Scene {
        Scene { dir: dir.to_path_buf(), vars: vec![("WORD", "hello".to_string())] }
    }

    fn plain() -> Column {
        Column::plain("plain")
    }

    #[test]
    fn what_a_client_prints_is_its_answer_and_its_time_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let client =
            Client { run: "echo $WORD; i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done", ..Client::EMPTY };
        let trial = run_trial(&client, &scene(dir.path()), &plain()).unwrap();
        assert_eq!(trial.answer, Answer { bytes: 6, crc: crc32fast::hash(b"hello\n") });
        assert!(
            trial.cpu_seconds > 0.0 && trial.wall_seconds > 0.0 && trial.peak_bytes > 100_000.0,
            "{trial:?}"
        );
        assert!(floor_bytes().is_some_and(|bytes| bytes > 100_000));
    }

    #[test]
    fn no_client_sees_what_the_caller_set_for_git_or_for_the_preload() {
        let dir = tempfile::tempdir().unwrap();
        let command = scene(dir.path()).shell("true");
        for gone in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GLIBC_TUNABLES",
            "LD_PRELOAD",
            "VMALLOC_CONF",
            "VMALLOC_REPORT",
        ] {
            assert!(command.get_envs().any(|(name, value)| name == gone && value.is_none()), "{gone}");
        }
        let read = |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        assert_eq!(read("GIT_CONFIG_GLOBAL"), Some(OsStr::new("/dev/null")));
        assert_eq!(read("GIT_CONFIG_NOSYSTEM"), Some(OsStr::new("1")));
    }

    #[test]
    fn settings_reach_our_column_and_what_the_preload_rejects_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client { run: "echo \"$VMALLOC_CONF\" | tee /dev/stderr", ..Client::EMPTY };
        let column = Column { conf: Some("threshold:1M".to_string()), ..plain() };
        let ran = run_trial(&client, &scene(dir.path()), &column).unwrap();
        assert_eq!(ran.answer.crc, crc32fast::hash(b"threshold:1M\n"));
        assert_eq!(served(&client, &scene(dir.path()), &column).unwrap(), 0);
        let stderr = fs::read_to_string(dir.path().join("stderr.txt")).unwrap();
        assert_eq!(stderr, "threshold:1M,stats:true\n");
        let client =
            Client { run: "echo 'vmalloc: VMALLOC_CONF: \"x\" has no known key' >&2; echo", ..client };
        let error = served(&client, &scene(dir.path()), &column).unwrap_err().to_string();
        assert!(error.contains("no known key"), "{error}");
    }

    #[test]
    fn tunables_reach_the_column_that_has_them_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client { run: "echo \"${GLIBC_TUNABLES-none}\"", ..Client::EMPTY };
        let tuned = Column { tunables: Some("glibc.malloc.mmap_max=0"), ..plain() };
        for (column, expected) in [(plain(), "none\n"), (tuned, "glibc.malloc.mmap_max=0\n")] {
            let ran = run_trial(&client, &scene(dir.path()), &column).unwrap();
            assert_eq!(ran.answer.crc, crc32fast::hash(expected.as_bytes()), "{expected}");
        }
    }

    #[test]
    fn a_client_that_fails_is_an_error_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client { run: "echo one; echo no memory >&2; exit 3", ..Client::EMPTY };
        let error = format!("{:#}", run_trial(&client, &scene(dir.path()), &plain()).unwrap_err());
        assert!(error.contains("no memory") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_server_ends_when_its_driver_fails() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client { run: "exec sleep 600", beside: Some("echo lost >&2; exit 1"), ..Client::EMPTY };
        let started = Instant::now();
        let error = format!("{:#}", run_trial(&client, &scene(dir.path()), &plain()).unwrap_err());
        assert!(error.contains("plain"), "{error}");
        assert!(started.elapsed().as_secs() < 500, "it was waited for");
        let client = Client { run: "sleep 0.01", beside: Some("echo answers"), ..Client::EMPTY };
        let trial = run_trial(&client, &scene(dir.path()), &plain()).unwrap();
        assert_eq!(trial.answer.bytes, 8);
    }

    #[test]
    fn what_every_process_served_is_added() {
        assert_eq!(count_served("vmalloc: served 12 freed 3\nx\nvmalloc: served 30 freed"), 42);
        assert_eq!(count_served("nothing"), 0);
    }

    #[test]
    fn the_last_words_are_three_lines() {
        assert_eq!(last_lines("a\n\nb\nc\nd\n"), "b | c | d");
        assert_eq!(last_lines("\n"), "it said nothing");
    }
}
