//! Runs the two commands of the README on a new minimal Debian, made by debootstrap, in namespaces of its own.
//!
//! # Theory
//! A developer's machine has libraries and tools that were installed for something else. A test that needs one of them
//! passes there, and fails on another machine. So the commands run where only the packages of `.ci/run` are installed.
//! The new system gets:
//!
//! | part | source |
//! |---|---|
//! | the tree | a clone of the commit; uncommitted changes are not included |
//! | the toolchain | bound in, read-only; Debian's own compiler is too old |
//! | the home and the target folder | empty |
//! | access to packages and crates | the host's: sources of apt, name servers, certificates, proxies, archives of crates |
//!
//! The system lies in `target/fresh`. Its mounts are in a mount namespace that ends with the command. The command is
//! the first process of a process namespace. So nothing of either is left after any end of the command.

use crate::count::Tests;
use crate::machine::{duration, machine};
use crate::not_run;
use crate::sh::{Cmd, Ended, Show, on_path};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Run this instead of the two commands, and write no page
    #[arg(long, value_name = "TEXT")]
    command: Option<String>,
    /// End a command that takes longer than this many minutes
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u64,
    /// Install nothing in the new system, not even the packages of .ci/run
    #[arg(long, requires = "command")]
    bare: bool,
    /// Leave the new system in target/fresh
    #[arg(long)]
    keep: bool,
}

/// The commands of the README, after the one for a fresh machine.
const INSTALL: &str = ".ci/run --install";
const COMMANDS: [&str; 2] = ["cargo run --release", "cargo xtask ci"];

/// The programs that are needed, and their Debian packages.
const TOOLS: [(&str, &str); 6] = [
    ("debootstrap", "debootstrap"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
    ("chroot", "coreutils"),
    ("timeout", "coreutils"),
];

/// The folders of the tree and of the toolchain in the new system.
const TREE: &str = "/tree";
const TOOLCHAIN: &str = "/opt/toolchain";

/// Files of the host that configure access to packages and crates.
const CONFIGURATION: [&str; 6] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/local/share/ca-certificates",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
];

/// The prefixes of variables that do the same.
const VARIABLES: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_",
    "CARGO_NET_",
    "CARGO_HTTP_",
];

/// The outcome of one command.
struct Ran {
    command: String,
    good: bool,
    seconds: f64,
    tests: Tests,
    not_run: Vec<String>,
}

/// Runs the step of `ci --full`.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    let (commit, ran) = run(root, &Args { command: None, minutes: 60, bare: false, keep: false })?;
    ran.iter().for_each(|ran| *tests += ran.tests);
    conclude(root, &commit, &ran)
}

/// Runs `cargo xtask fresh`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let (commit, ran) = run(root, args)?;
    if args.command.is_some() {
        return if ran.iter().all(|ran| ran.good) { Ok(()) } else { bail!("it failed in the new system") };
    }
    conclude(root, &commit, &ran)
}

/// Makes the system, runs the commands in it up to the first failure, and removes it. Returns the cloned commit, and
/// the outcomes.
fn run(root: &Path, args: &Args) -> Result<(String, Vec<Ran>)> {
    tools(root)?;
    let dir = root.join("target/fresh");
    fs::create_dir_all(root.join("target"))?;
    let lock = fs::File::create(root.join("target/fresh.lock"))?;
    lock.try_lock().context("another run of this is under way")?;
    remove(&dir)?;
    let system = dir.join("system");
    fs::create_dir_all(&system)?;
    let outcome = make(root, &system).and_then(|commit| {
        let install = (!args.bare).then(|| INSTALL.to_string());
        let commands = match &args.command {
            Some(command) => vec![command.clone()],
            None => COMMANDS.map(str::to_string).to_vec(),
        };
        let mut all = Vec::new();
        for command in install.into_iter().chain(commands) {
            let ran = inside(root, &dir, &command, args.minutes)?;
            let good = ran.good;
            all.push(ran);
            if !good {
                break;
            }
        }
        Ok((commit, all))
    });
    if args.keep {
        println!("the new system is in {}", system.display());
    } else {
        remove(&dir)?;
    }
    outcome
}

/// Requires root, and installs missing programs of [`TOOLS`].
fn tools(root: &Path) -> Result<()> {
    if Cmd::new(root, "id").arg("-u").read()?.trim() != "0" {
        bail!("a system of its own takes root: mounts, chroot");
    }
    let mut missing: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| !on_path(tool)).map(|(_, package)| *package).collect();
    missing.dedup();
    if !missing.is_empty() {
        if !on_path("apt-get") {
            bail!("not installed: {}", missing.join(", "));
        }
        Cmd::new(root, "apt-get")
            .args(["install", "-qq", "-y", "--no-install-recommends"])
            .args(missing)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run(Show::Failure)?;
    }
    Ok(())
}

/// Removes the system of an earlier run.
fn remove(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    // All mounts were in a namespace that has ended. A mount that exists all the same is not removed.
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("no list of mounts")?;
    let dir = dir.canonicalize()?;
    if mounted_below(&mounts, &dir) {
        bail!("something is mounted below {}: it is left alone", dir.display());
    }
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Returns true if a list of mounts, in the format of `/proc/self/mountinfo`, has one at a folder or below it.
fn mounted_below(mounts: &str, dir: &Path) -> bool {
    let dir = dir.to_string_lossy().replace(' ', "\\040");
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|at| Path::new(at).starts_with(&dir))
}

/// Makes the system: packages, the host's access to more of them, the tree. Returns the commit of the tree.
fn make(root: &Path, system: &Path) -> Result<String> {
    let Source { codename, mirror } = source(root)?;
    println!("making a minimal Debian {codename} in {}", system.display());
    // Its command line names the mirror, which must not appear in a stored log.
    let log = Cmd::new(root, "debootstrap")
        .args(["--variant=minbase", &codename])
        .arg(system)
        .arg(&mirror)
        .lines(Show::Nothing, |_| {})?;
    if log.code != Some(0) {
        bail!("debootstrap failed: see {}", system.join("debootstrap/debootstrap.log").display());
    }
    for path in CONFIGURATION {
        copy(root, Path::new(path), &system.join(&path[1..]))?;
    }
    let apt = Cmd::new(root, "apt-config").args(["dump", "Acquire"]).read()?;
    fs::write(system.join("etc/apt/apt.conf.d/99host"), apt)?;
    let (from, to) = (cargo_home()?, system.join("root/.cargo"));
    fs::create_dir_all(to.join("registry"))?;
    for path in ["config.toml", "registry/cache", "registry/index"] {
        copy(root, &from.join(path), &to.join(path))?;
    }
    fs::create_dir_all(system.join(&TOOLCHAIN[1..]))?;
    let tree = system.join(&TREE[1..]);
    Cmd::new(root, "git")
        .args(["clone", "--quiet", "--no-local", "."])
        .arg(&tree)
        .run(Show::Failure)
        .context("cannot clone the tree")?;
    let head = Cmd::new(root, "git").args(["rev-parse", "HEAD"]).read()?;
    Cmd::new(&tree, "git").args(["checkout", "--quiet", "--detach", head.trim()]).run(Show::Failure)?;
    Ok(head.trim()[..12].to_string())
}

/// Copies a file or a folder, if there is one.
fn copy(root: &Path, from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    if let Some(above) = to.parent() {
        fs::create_dir_all(above)?;
    }
    // The files that debootstrap wrote are replaced, not added to.
    Cmd::new(root, "cp").args(["-rLT", "--remove-destination"]).arg(from).arg(to).run(Show::Failure)
}

/// Returns the folder in which cargo stores downloads.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("no home")
}

/// The release of Debian, and the source of its packages.
#[derive(PartialEq, Eq, Debug)]
struct Source {
    codename: String,
    mirror: String,
}

/// Returns the host's own source, if its release is Debian's.
fn source(root: &Path) -> Result<Source> {
    let format = "$(CODENAME) $(COMPONENT) $(REPO_URI)";
    let targets = Cmd::new(root, "apt-get")
        .args(["indextargets", "--format", format, "Created-By: Packages"])
        .read()
        .context("apt names no sources: a Debian is needed to make another")?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    choose(&targets, &release).context("apt has no source of this release's main packages: apt-get update?")
}

fn choose(targets: &str, release: &str) -> Option<Source> {
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?.trim_matches('"');
    let mirror = targets
        .lines()
        .find_map(|line| line.strip_prefix(codename)?.strip_prefix(" main ")?.split(' ').next())?;
    Some(Source { codename: codename.to_string(), mirror: mirror.to_string() })
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes the scripts of both sides: `enter` mounts what a system needs and changes into it, and `command` runs there.
/// The environment is in a file, so that no command line shows it.
fn scripts(dir: &Path, toolchain: &str, command: &str) -> Result<PathBuf> {
    let system = dir.join("system");
    let root = quoted(&system.to_string_lossy());
    let mut inner =
        format!("export HOME=/root LANG=C.UTF-8 PATH={TOOLCHAIN}/bin:/usr/local/sbin:/usr/local/bin");
    inner.push_str(":/usr/sbin:/usr/bin:/sbin:/bin\n");
    for (name, value) in std::env::vars() {
        if VARIABLES.iter().any(|known| name.starts_with(known)) {
            writeln!(inner, "export {name}={}", quoted(&value))?;
        }
    }
    writeln!(inner, "cd {TREE}\n{command}")?;
    fs::write(system.join("command.sh"), inner)?;
    let enter = format!(
        "set -e\n\
         root={root}\n\
         mount -t proc proc \"$root/proc\"\n\
         mount -t sysfs -o ro sysfs \"$root/sys\"\n\
         mount --rbind /dev \"$root/dev\"\n\
         mount -t tmpfs -o mode=1777 tmpfs \"$root/dev/shm\"\n\
         mount --bind {} \"$root{TOOLCHAIN}\"\n\
         mount -o remount,bind,ro \"$root{TOOLCHAIN}\"\n\
         exec chroot \"$root\" /usr/bin/env -i /bin/sh /command.sh\n",
        quoted(toolchain)
    );
    let path = dir.join("enter.sh");
    fs::write(&path, enter)?;
    Ok(path)
}

/// Runs a command in the system, with a time limit.
fn inside(root: &Path, dir: &Path, command: &str, minutes: u64) -> Result<Ran> {
    let toolchain = Cmd::new(root, "rustc").args(["--print", "sysroot"]).read()?;
    let enter = scripts(dir, toolchain.trim(), command)?;
    println!("\n==== in the new system: {command}");
    let started = Instant::now();
    let (mut tests, mut text) = (Tests::default(), String::new());
    // Each ends with the one before it, and the namespaces with the last.
    let cmd = Cmd::new(root, "setpriv")
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after", "20", &format!("{minutes}m")])
        .args(["setpriv", "--pdeathsig", "KILL"])
        .args(["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "/bin/sh"])
        .arg(&enter);
    let ended: Ended = cmd.lines(Show::All, |line| {
        tests.read(line);
        text.push_str(line);
        text.push('\n');
    })?;
    let good = ended.code == Some(0);
    let seconds = started.elapsed().as_secs_f64();
    println!("==== {command}: {}, {}", if good { "ok" } else { "FAILED" }, duration(seconds));
    // A run of CI ends with a sum of its own, and the text has the lanes' lines twice.
    let tests = sum(&text).unwrap_or(tests);
    Ok(Ran { command: command.to_string(), good, seconds, tests, not_run: not_run::listed(&text) })
}

/// Reads the last line of a passed run of CI: `512 passed, 0 failed`.
fn sum(text: &str) -> Option<Tests> {
    text.lines().rev().find_map(|line| {
        let (passed, rest) = line.split_once(" passed, ")?;
        let failed = rest.strip_suffix(" failed")?;
        Some(Tests { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
    })
}

/// Writes `results/full.md`, and fails unless every command passed.
fn conclude(root: &Path, commit: &str, ran: &[Ran]) -> Result<()> {
    let page = page(commit, &machine(root), ran)?;
    fs::create_dir_all(root.join("results"))?;
    fs::write(root.join("results/full.md"), &page)?;
    println!("\n{page}\nwritten to results/full.md");
    if let Some(ran) = ran.iter().find(|ran| !ran.good) {
        bail!("{} fails on a fresh machine", ran.command);
    }
    Ok(())
}

fn page(commit: &str, machine: &str, ran: &[Ran]) -> Result<String> {
    let mut page = format!(
        "# On a fresh machine\n\n\
         - command: `cargo xtask fresh`, which `cargo xtask ci --full` runs\n- commit: {commit}\n- machine: {machine}\n\n\
         A new minimal Debian with the toolchain bound in, the tree cloned, an empty home and an empty target folder.\n\
         A command that is not in the table was not run, since the one before it failed.\n\n\
         | command | outcome | time | tests passed |\n|---|---|---:|---:|\n"
    );
    for Ran { command, good, seconds, tests, .. } in ran {
        let outcome = if *good { "ok" } else { "**FAILED**" };
        writeln!(page, "| `{command}` | {outcome} | {} | {} |", duration(*seconds), tests.passed)?;
    }
    let not_run: Vec<_> = ran.iter().flat_map(|ran| &ran.not_run).collect();
    if !not_run.is_empty() {
        page.push_str("\nNot run there, for lack of a tool or of a right:\n\n");
        for line in not_run {
            writeln!(page, "- {line}")?;
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_that_of_the_release_and_of_main() {
        let release = "ID=debian\nVERSION_CODENAME=bookworm\n";
        let targets = "bookworm-updates main http://a/debian/\nbookworm contrib http://b/debian/\n\
                       bookworm main http://c/debian/\n";
        let want = Source { codename: "bookworm".into(), mirror: "http://c/debian/".into() };
        assert_eq!(choose(targets, release), Some(want));
        assert_eq!(choose("", release), None);
        assert_eq!(choose(targets, "ID=other\n"), None);
    }

    #[test]
    fn a_page_lists_outcomes_and_what_was_not_run() {
        let ran = |command: &str, good| Ran {
            command: command.to_string(),
            good,
            seconds: 2.0,
            tests: Tests { passed: 7, failed: 0 },
            not_run: vec!["reports in a browser".to_string()],
        };
        let page =
            page("c0ffee", "m", &[ran("cargo run --release", true), ran("cargo xtask ci", false)]).unwrap();
        assert!(
            page.contains("- commit: c0ffee\n")
                && page.contains("| `cargo run --release` | ok | 2.0 s | 7 |")
        );
        assert!(
            page.contains("| `cargo xtask ci` | **FAILED** |") && page.contains("- reports in a browser\n")
        );
    }

    #[test]
    fn the_sum_of_a_run_of_ci_is_read_from_its_end() {
        assert_eq!(
            sum("1 passed, 0 failed\nx\n512 passed, 0 failed\n"),
            Some(Tests { passed: 512, failed: 0 })
        );
        assert_eq!(sum("test result: ok. 3 passed; 0 failed;\n"), None);
    }

    #[test]
    fn a_text_is_quoted_for_a_shell() {
        let text = "it's $HOME \"x\"";
        let cmd = Cmd::new(Path::new("."), "sh").args(["-c", &format!("printf %s {}", quoted(text))]);
        assert_eq!(cmd.read().unwrap().trim_end(), text);
    }

    #[test]
    fn what_is_mounted_below_is_not_removed() {
        let mounts = "36 35 98:0 / /a/b\\040c/proc rw,noatime - proc proc rw\n";
        assert!(mounted_below(mounts, Path::new("/a/b c")) && mounted_below(mounts, Path::new("/a")));
        assert!(!mounted_below(mounts, Path::new("/a/b")) && !mounted_below("", Path::new("/")));
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("fresh");
        remove(&below).unwrap();
        fs::create_dir_all(below.join("system/root")).unwrap();
        remove(&below).unwrap();
        assert!(!below.exists());
    }
}
