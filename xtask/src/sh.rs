//! Commands: their output is shown as it comes, and can be counted or stored.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A command, to run and to show.
pub(crate) struct Cmd {
    inner: Command,
    shown: Vec<String>,
}

/// The part of a command's output to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Show {
    /// Every line as it comes.
    All,
    /// Nothing, unless the command fails.
    Failure,
    /// Nothing at all.
    Nothing,
}

impl Cmd {
    /// Returns a command in `dir`, with an empty standard input.
    pub(crate) fn new(dir: &Path, program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut inner = Command::new(program);
        inner.current_dir(dir).stdin(Stdio::null());
        // `cargo run` sets variables about this package. Passed on, these would change the result of a nested cargo.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let of_package = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
            if of_package || name == "CARGO_ENCODED_RUSTFLAGS" || name == "CARGO" {
                inner.env_remove(&*name);
            }
        }
        Self { inner, shown: vec![program.to_string_lossy().into_owned()] }
    }

    /// Returns the cargo that runs this program.
    pub(crate) fn cargo(dir: &Path) -> Self {
        Self::new(dir, "cargo")
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.shown.push(arg.as_ref().to_string_lossy().into_owned());
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Sets a variable of the environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown.insert(0, format!("{name}={:?}", value.as_ref().to_string_lossy()));
        self.inner.env(name, value);
        self
    }

    /// Runs it and passes every line of its output, errors included, to `each`.
    ///
    /// # Errors
    /// If it cannot be started. A failure of the command is in the result.
    pub(crate) fn lines(mut self, show: Show, mut each: impl FnMut(&str)) -> Result<Ended> {
        let what = self.shown.join(" ");
        if show == Show::All {
            println!("$ {what}");
        }
        let (reader, writer) = std::io::pipe().context("no pipe")?;
        self.inner.stdout(writer.try_clone()?).stderr(writer);
        let mut child = self.inner.spawn().with_context(|| format!("cannot run {what}"))?;
        // Our own ends of the pipe are dropped with the command; otherwise reading would never end.
        drop(self.inner);
        let mut reader = BufReader::new(reader);
        let (mut buffered, mut line) = (String::new(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            each(text.trim_end_matches(['\n', '\r']));
            match show {
                Show::All => print!("{text}"),
                Show::Failure => buffered.push_str(&text),
                Show::Nothing => {}
            }
            line.clear();
        }
        let status = child.wait()?;
        if show == Show::Failure && !status.success() {
            print!("$ {what}\n{buffered}");
        }
        Ok(Ended { what, code: status.code(), status: status.to_string() })
    }

    /// Runs it, and fails unless it succeeds.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub(crate) fn run(self, show: Show) -> Result<()> {
        self.lines(show, |_| {})?.success()
    }

    /// Runs it, shows its output only if it fails, fails then, and returns its output, errors included.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub(crate) fn read(self) -> Result<String> {
        let mut text = String::new();
        self.lines(Show::Failure, |line| {
            text.push_str(line);
            text.push('\n');
        })?
        .success()?;
        Ok(text)
    }
}

/// The end of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    what: String,
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    status: String,
}

impl Ended {
    /// Fails unless the command succeeded.
    ///
    /// # Errors
    /// If the command failed.
    pub(crate) fn success(&self) -> Result<()> {
        if self.code != Some(0) {
            bail!("{} ({})", self.what, self.status);
        }
        Ok(())
    }
}

/// Returns true if `program` is on the path.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_prints_comes_back_from_both_ends() {
        let script = "echo out; echo err >&2";
        let text = Cmd::new(Path::new("."), "sh").args(["-c", script]).read().unwrap();
        assert_eq!(text, "out\nerr\n");
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_status() {
        let error = Cmd::new(Path::new("."), "sh").args(["-c", "exit 7"]).read().unwrap_err().to_string();
        assert!(error.contains("sh -c exit 7") && error.contains('7'), "{error}");
        assert!(Cmd::new(Path::new("."), "no-such-program").read().is_err());
    }

    #[test]
    fn the_package_of_xtask_is_not_passed_on() {
        // Cargo sets it for this test.
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let text =
            Cmd::new(Path::new("."), "sh").args(["-c", "echo ${CARGO_PKG_NAME-unset}"]).read().unwrap();
        assert_eq!(text, "unset\n");
    }
}
