//! `vmlab run -- PROGRAM`: an unmodified program with `libvmalloc_preload.so`, and statistics of its large memory.
//!
//! # Theory
//! ```text
//!   vmlab run  --- LD_PRELOAD, VMALLOC_CONF, VMALLOC_REPORT=file --->  PROGRAM and whatever it starts
//!      ^                                                                   | each process at its end
//!      '------------------------ one line a process  <---------------  file, appended to
//! ```
//! The program's status is `vmlab`'s, 128 and its number for a signal. If no program ran, the status is 125 to 127. Some
//! programs cannot load the preload: those without a dynamic linker, and those with more rights than their user. They
//! are rejected before they are started, since they would silently run without it.

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

const LIBRARY: &str = "libvmalloc_preload.so";
/// Longer lines are not reports.
const LINE_BYTES_MAX: u64 = 1000;
/// Bytes of a program's file that contain its headers.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// The most interpreters of a script that is run by a script, and so on: the system follows as few.
const INTERPRETERS_MAX: u32 = 4;

/// The statuses of env(1) and timeout(1): this program failed, the other could not be run, there is no such program.
const OWN_FAILURE: i32 = 125;
pub(super) const NOT_RUN: i32 = 126;
pub(super) const NOT_FOUND: i32 = 127;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Value of VMALLOC_CONF, such as threshold:256K,budget:512M,huge:never
    #[arg(long, value_name = "KEY:VALUE,..")]
    conf: Option<String>,
    /// The library; else libvmalloc_preload.so beside vmlab, or in ../lib
    #[arg(long, value_name = "FILE")]
    lib: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// `vmlab run`. Ends this process with the program's status if that is not 0, or with 125 to 127 if it did not run.
pub(super) fn run(args: &Args) -> Result<()> {
    match ran(args) {
        Ok(status) => end_as(status),
        Err(Failure { status, why }) => {
            super::print_note(&format!("{why:#}"));
            std::process::exit(status)
        }
    }
}

/// The reason that no program ran to its end, and the status for it.
struct Failure {
    status: i32,
    why: anyhow::Error,
}

impl From<anyhow::Error> for Failure {
    fn from(why: anyhow::Error) -> Self {
        Self { status: OWN_FAILURE, why }
    }
}

/// Runs the program, and returns its status.
fn ran(args: &Args) -> Result<ExitStatus, Failure> {
    let ends_as = |status| move |why| Failure { status, why };
    let [program, rest @ ..] = &args.program[..] else {
        return Err(anyhow!("no program was named").into());
    };
    let library = library(args.lib.as_deref())?;
    let path = find(program).map_err(ends_as(NOT_FOUND))?;
    let read = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()));
    read.map_err(ends_as(NOT_FOUND))?;
    check(&path, INTERPRETERS_MAX).map_err(ends_as(NOT_RUN))?;
    let report = tempfile::Builder::new().prefix("vmlab-run").tempfile().context("no file for reports")?;
    // Libraries that were preloaded before are kept, after ours.
    let mut preload = library.clone().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&path);
    command.args(rest).env("LD_PRELOAD", preload).env("VMALLOC_REPORT", report.path());
    if let Some(conf) = &args.conf {
        command.env("VMALLOC_CONF", conf);
    }
    // ^C ends the program only; its report is still printed.
    let _ours = signal_hook::flag::register(signal_hook::consts::SIGINT, std::sync::Arc::default());
    let began = Instant::now();
    let status = command.status().with_context(|| format!("cannot run {}", path.display()));
    let status = status.map_err(ends_as(NOT_RUN))?;
    let wall = began.elapsed();
    let text = BufReader::new(File::open(report.path()).context("the file of reports is gone")?);
    for line in Report::read(text)?.lines(wall) {
        super::print_note(&line);
    }
    Ok(status)
}

/// Ends this process with the status of a program, if that is not 0.
pub(super) fn end_as(status: ExitStatus) -> Result<()> {
    match code(status) {
        0 => Ok(()),
        code => std::process::exit(code),
    }
}

/// Returns the status as a shell reports it.
fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

fn library(named: Option<&Path>) -> Result<PathBuf> {
    let places = match named {
        Some(named) => vec![named.to_path_buf()],
        None => {
            let beside = std::env::current_exe().context("cannot find the program vmlab")?;
            let beside = beside.parent().unwrap_or(Path::new("/"));
            // A program of `cargo install` has no library beside it: where a library is installed for all, or for a user.
            let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib"));
            let shared = ["/usr/local/lib", "/usr/lib"].map(PathBuf::from);
            let folders = [beside.to_path_buf(), beside.join("../lib")].into_iter().chain(home).chain(shared);
            folders.map(|folder| folder.join(LIBRARY)).collect()
        }
    };
    let Some(found) = places.iter().find(|place| place.is_file()) else {
        let tried: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "there is no {}: build it (cargo xtask install --prefix DIR), or name it by --lib",
            tried.join(", nor ")
        );
    };
    // The program may change its directory, so the path is absolute. The linker splits the list at these characters.
    let found = fs::canonicalize(found).with_context(|| format!("cannot read {}", found.display()))?;
    if found.as_os_str().as_encoded_bytes().iter().any(|byte| b": \t".contains(byte)) {
        bail!("LD_PRELOAD takes no name with a colon or a blank in it: {}", found.display());
    }
    Ok(found)
}

/// Returns the file of a program, found as a shell does.
fn find(program: &OsString) -> Result<PathBuf> {
    let named = Path::new(program);
    if named.components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return Ok(named.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path).map(|dir| dir.join(named)).find(runs);
    found.with_context(|| format!("there is no program {} in PATH", named.display()))
}

/// Returns true if there is the file of a program. Without PATH the C library has one of its own: then it is true.
pub(super) fn exists(program: &OsString) -> bool {
    std::env::var_os("PATH").is_none() || find(program).is_ok_and(|path| path.exists())
}

/// Rejects programs that cannot load the preload. An interpreter may itself be a script, `interpreters` times.
fn check(path: &Path, interpreters: u32) -> Result<()> {
    let cannot = || format!("cannot read {}", path.display());
    // Opening a pipe would block.
    let meta = fs::metadata(path).with_context(cannot)?;
    if !meta.is_file() {
        bail!("{} is no file", path.display());
    }
    let file = File::open(path).with_context(cannot)?;
    let mode = meta.permissions().mode();
    let mut head = Vec::new();
    file.take(HEAD_BYTES_MAX).read_to_end(&mut head)?;
    if let Some(interpreter) = interpreter(&head) {
        return match interpreters.checked_sub(1) {
            Some(interpreters) => check(&interpreter, interpreters),
            None => bail!("{} is a script of a script, and so on: no program runs it", path.display()),
        };
    }
    if mode & 0o6000 != 0 {
        bail!(
            "{} is a set-user-ID or set-group-ID program: the dynamic linker ignores LD_PRELOAD for it",
            path.display()
        );
    }
    match is_dynamic(&head) {
        Some(true) => Ok(()),
        Some(false) => bail!("{} is linked statically: no library can be preloaded", path.display()),
        None => bail!("{} is no program of 64 bits that a dynamic linker starts", path.display()),
    }
}

/// Returns the interpreter of a script.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let name = line.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
    (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()).into())
}

/// Returns true if an ELF file of 64 bits names a dynamic linker, or `None` if it is no such file.
fn is_dynamic(head: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    // 64 bits, little-endian.
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?)));
    let at = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let (size, count) = (half(54)?, half(56)?);
    for nth in 0..count {
        let at = usize::try_from(at).ok()?.checked_add(nth * size)?;
        let kind = head.get(at..at.checked_add(4)?)?;
        if u32::from_le_bytes(kind.try_into().ok()?) == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

/// The reports of all processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Report {
    processes: u64,
    served: u64,
    resized: u64,
    passed_on: u64,
    nanoseconds: u64,
    purged_bytes: u64,
    peak_kib: u64,
    faults: u64,
}

impl Report {
    /// Reads reports and adds them up; the peak is that of the largest process.
    fn read(mut text: impl BufRead) -> Result<Self> {
        let mut all = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            if text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
                return Ok(all);
            }
            let line = String::from_utf8_lossy(&line);
            let Some(rest) = line.strip_prefix("vmalloc: report ") else { continue };
            all.processes += 1;
            let mut words = rest.split_ascii_whitespace();
            while let (Some(key), Some(value)) = (words.next(), words.next()) {
                let Ok(value) = value.parse::<u64>() else { continue };
                match key {
                    "served" => all.served = all.served.saturating_add(value),
                    "resized" => all.resized = all.resized.saturating_add(value),
                    "passed_on" => all.passed_on = all.passed_on.saturating_add(value),
                    "nanoseconds" => all.nanoseconds = all.nanoseconds.saturating_add(value),
                    "purged" => all.purged_bytes = all.purged_bytes.saturating_add(value),
                    "faults" => all.faults = all.faults.saturating_add(value),
                    "peak_kib" => all.peak_kib = all.peak_kib.max(value),
                    _ => {}
                }
            }
        }
    }

    fn lines(&self, wall: Duration) -> Vec<String> {
        if self.processes == 0 {
            return vec![
                "no process reported anything: it ended by a signal, _exit or exec, did not load the preload, or made plain \
                 calls alone at its end (calls:plain, or a filter of system calls)"
                    .into(),
            ];
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let milliseconds = self.nanoseconds as f64 / 1e6;
        vec![
            format!(
                "{} allocations served, {} resized, {} passed on to the next malloc, by {} process{}",
                self.served,
                self.resized,
                self.passed_on,
                self.processes,
                if self.processes == 1 { "" } else { "es" },
            ),
            format!("{milliseconds:.3} ms in the allocator, {:.3} s in all", wall.as_secs_f64()),
            format!(
                "peak resident memory of a process {:.1} MiB; {:.1} MiB purged; {} page faults",
                self.peak_kib as f64 / 1024.0,
                mib(self.purged_bytes),
                self.faults
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_summed_and_what_is_none_is_passed_over() {
        let text = "vmalloc: report served 3 freed 2 nanoseconds 10 peak_kib 7 faults 5\nnonsense\n\
                    vmalloc: report served 4 peak_kib 6 faults 1 future 9 purged x resized\n\
                    vmalloc: report served 18446744073709551615\n";
        let all = Report::read(text.as_bytes()).unwrap();
        let want = Report {
            processes: 3,
            served: u64::MAX,
            nanoseconds: 10,
            peak_kib: 7,
            faults: 6,
            ..Report::default()
        };
        assert_eq!(all, want);
        assert!(all.lines(Duration::ZERO)[0].contains("by 3 processes"));
        assert!(Report::default().lines(Duration::ZERO)[0].contains("plain calls alone at its end"));
        // A line without an end is not stored whole.
        assert_eq!(
            Report::read(std::io::repeat(b'x').take(1 << 20).chain(&b""[..]).pipe()).unwrap().processes,
            0
        );
    }

    trait Pipe: Read + Sized {
        fn pipe(self) -> BufReader<Self> {
            BufReader::new(self)
        }
    }
    impl<R: Read> Pipe for R {}

    #[test]
    fn a_script_of_itself_and_what_is_no_file_are_errors_and_a_script_of_a_script_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, runs: &Path| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!{}\n", runs.display())).unwrap();
            path
        };
        let own = dir.path().join("own");
        let error = check(&file("own", &own), INTERPRETERS_MAX).unwrap_err().to_string();
        assert!(error.contains("script of a script"), "{error}");
        let error = check(dir.path(), INTERPRETERS_MAX).unwrap_err().to_string();
        assert!(error.contains("is no file"), "{error}");
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let plain = check(&shell, 0).map_err(|error| error.to_string());
        let second = file("second", &file("first", &shell));
        assert_eq!(check(&second, INTERPRETERS_MAX).map_err(|error| error.to_string()), plain);
        assert!(check(&second, 1).is_err());
    }

    #[test]
    fn programs_are_distinguished_by_their_heads() {
        assert_eq!(interpreter(b"#! /bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter(b"#!\n"), None);
        let mut head = b"\x7fELF\x02\x01".to_vec();
        head.resize(64 + 56, 0);
        assert_eq!(is_dynamic(&head), Some(false));
        (head[32], head[54], head[56], head[64]) = (64, 56, 1, 1);
        assert_eq!(is_dynamic(&head), Some(false));
        head[64] = 3;
        assert_eq!(is_dynamic(&head), Some(true));
        // Missing headers, or headers beyond the file.
        (head[56], head[57], head[64]) = (255, 255, 1);
        assert_eq!(is_dynamic(&head), None);
        head[32..40].fill(255);
        assert_eq!(is_dynamic(&head), None);
        assert_eq!(is_dynamic(b"\x7fELF\x01\x01"), None);
        assert_eq!(is_dynamic(b""), None);
    }
}
