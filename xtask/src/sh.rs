//! Running commands: what they print is shown as it comes, and can be counted or kept.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A command, as it is run and as it is shown.
pub(crate) struct Cmd {
    inner: Command,
    shown: Vec<String>,
}

/// The choice of what is shown of the output of a command.
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
    /// A command in `dir`, with nothing on its standard input.
    pub(crate) fn new(dir: &Path, program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut inner = Command::new(program);
        inner.current_dir(dir).stdin(Stdio::null());
        // `cargo run` tells this program about its own package. Passed on, these change what a nested cargo builds.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let of_package = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
            if of_package || name == "CARGO_ENCODED_RUSTFLAGS" || name == "CARGO" {
                inner.env_remove(&*name);
            }
        }
        Self { inner, shown: vec![program.to_string_lossy().into_owned()] }
    }

    /// The cargo of whoever called.
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

    /// Runs it and hands every line that it prints, errors included, to `each`.
    ///
    /// # Errors
    /// If it cannot be started. That it fails is told by the result.
    pub(crate) fn lines(mut self, show: Show, mut each: impl FnMut(&str)) -> Result<Ended> {
        let what = self.shown.join(" ");
        if show == Show::All {
            println!("$ {what}");
        }
        let (reader, writer) = std::io::pipe().context("no pipe")?;
        self.inner.stdout(writer.try_clone()?).stderr(writer);
        let mut child = self.inner.spawn().with_context(|| format!("cannot run {what}"))?;
        // Our own ends of the pipe go with the command, else reading would never end.
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

    /// Runs it and demands success.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub(crate) fn run(self, show: Show) -> Result<()> {
        self.lines(show, |_| {})?.success()
    }

    /// Runs it silently, demands success and returns what it printed, errors included.
    ///
    /// # Errors
    /// If it cannot be started or fails.
    pub(crate) fn read(self) -> Result<String> {
        let mut text = String::new();
        self.lines(Show::Nothing, |line| {
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
    /// Demands success.
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

/// Tells whether `program` is to be found.
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
        // Cargo sets it for this very test.
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let text =
            Cmd::new(Path::new("."), "sh").args(["-c", "echo ${CARGO_PKG_NAME-unset}"]).read().unwrap();
        assert_eq!(text, "unset\n");
    }
}
