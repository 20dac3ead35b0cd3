//! Compiling foreign sources against the system's C library.

use crate::sh::Cmd;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// A compiler and the flags of one suite.
pub(crate) struct Build {
    pub(crate) dir: PathBuf,
    pub(crate) compiler: &'static str,
    pub(crate) flags: Vec<String>,
}

impl Build {
    /// Makes an empty folder, so that no file of an earlier version stays.
    pub(crate) fn new(dir: PathBuf, compiler: &'static str, flags: &[&str]) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        // A compiler that knows malloc removes calls with an unused result, which are the subject of the tests.
        let always = ["-O2", "-w", "-pthread", "-fno-builtin"];
        let flags = always.iter().chain(flags).map(ToString::to_string).collect();
        Ok(Self { dir, compiler, flags })
    }

    pub(crate) fn include(mut self, folder: &Path) -> Self {
        self.flags.push(format!("-I{}", folder.display()));
        self
    }

    /// Writes a file of ours into the folder of the build.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Builds a program. The error is the compiler's first message.
    pub(crate) fn program(&self, name: &str, from: &[PathBuf], last: &[&str]) -> Result<PathBuf, String> {
        let to = self.dir.join(name);
        self.compile(from, &["-o", &to.to_string_lossy()], last).map(|()| to)
    }

    /// Compiles each source that the compiler accepts, and puts them into an archive.
    ///
    /// # Errors
    /// If none compiles, or there is no `ar`.
    pub(crate) fn archive(&self, name: &str, from: &[PathBuf]) -> Result<PathBuf> {
        let mut objects = Vec::new();
        for (at, source) in from.iter().enumerate() {
            let object = self.dir.join(format!("{name}-{at}.o"));
            if self
                .compile(std::slice::from_ref(source), &["-c", "-o", &object.to_string_lossy()], &[])
                .is_ok()
            {
                objects.push(object);
            }
        }
        if objects.is_empty() {
            bail!("no source of {name} compiles");
        }
        let to = self.dir.join(format!("lib{name}.a"));
        Cmd::new(&self.dir, "ar").arg("rc").arg(&to).args(&objects).read().context("no archive")?;
        Ok(to)
    }

    fn compile(&self, from: &[PathBuf], to: &[&str], last: &[&str]) -> Result<(), String> {
        let mut output = String::new();
        let cmd = Cmd::new(&self.dir, self.compiler).args(&self.flags).args(to).args(from).args(last);
        let ended = cmd.lines(crate::sh::Show::Nothing, |line| {
            output.push_str(line);
            output.push('\n');
        });
        match ended.and_then(|ended| ended.success()) {
            Ok(()) => Ok(()),
            Err(_) if !output.is_empty() => Err(complaint(&output)),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}

/// Returns a compiler's first error, without the location.
fn complaint(output: &str) -> String {
    let line = output.lines().find(|line| line.contains("error: ") || line.contains("undefined reference"));
    let line = line.or_else(|| output.lines().next()).unwrap_or_default();
    let line = line.split_once("error: ").map_or(line, |(_, rest)| rest);
    let line = line.rfind("undefined reference").map_or(line, |at| line.get(at..).unwrap_or(line));
    line.replace(['`', '\'', '‘', '’', '|'], "")
}

/// Returns the files of a folder that end in `.c`, in order.
pub(crate) fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no folder {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    paths.sort();
    Ok(paths)
}

/// Returns a file's name without its ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_complaint_is_reported_without_its_place() {
        let output = "/a/b.c: In function 'f':\n/a/b.c:3:4: fatal error: x.h: No such file or directory\n";
        assert_eq!(complaint(output), "x.h: No such file or directory");
        let output =
            "/usr/bin/ld: /tmp/a.o: in function `main':\na.c:(.text+0x1): undefined reference to `f@V_1'\n";
        assert_eq!(complaint(output), "undefined reference to f@V_1");
        assert_eq!(complaint("cc: killed | again\n"), "cc: killed  again");
    }

    #[test]
    fn a_program_is_built_and_what_does_not_compile_is_left_out_of_an_archive() {
        let dir = tempfile::tempdir().unwrap();
        let build = Build::new(dir.path().join("b"), "cc", &[]).unwrap();
        let good = build.write("good.c", "int good(void) { return 0; }\n").unwrap();
        let bad = build.write("bad.c", "no C\n").unwrap();
        let main = build.write("main.c", "int good(void); int main(void) { return good(); }\n").unwrap();
        let library = build.archive("x", &[bad.clone(), good]).unwrap();
        assert!(build.program("main", &[main.clone(), library], &[]).unwrap().exists());
        assert!(build.program("main", &[main], &[]).unwrap_err().contains("good"));
        assert!(build.archive("y", &[bad]).is_err());
        assert_eq!(
            sources(&build.dir).unwrap().iter().map(|path| stem(path)).collect::<Vec<_>>(),
            ["bad", "good", "main"]
        );
    }
}
