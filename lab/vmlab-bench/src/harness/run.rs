//! A run of a benchmark: the selection of its user, its progress, its end.

use super::header::Header;
use super::report::{Report, prepare};
use anyhow::{Result, bail};
use std::path::Path;
use vmlab_base::output::Output;

/// A run of a benchmark.
pub struct Run<'a> {
    filter: Option<&'a str>,
    dir: Option<&'a Path>,
    /// The header of its pages.
    pub(crate) header: Header,
    /// The destination of its lines and notes.
    pub(crate) out: &'a mut dyn Output,
}

/// Returns the folder for files: `out`, or `results` for all measurements. A partial run must not replace the files of
/// a full one.
pub fn folder(out: Option<&Path>, is_part: bool) -> Option<&Path> {
    out.or((!is_part).then_some(Path::new("results")))
}

impl<'a> Run<'a> {
    /// Begins a run, before anything is measured. A run takes minutes, so it reads the header before commits or edits,
    /// and checks that the file `name` can be written to the folder. This thread is not pinned yet.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(
        filter: Option<&'a str>,
        dir: Option<&'a Path>,
        name: &str,
        out: &'a mut dyn Output,
    ) -> Result<Self> {
        let header = Header::read(&out.command());
        if let Some(dir) = dir {
            prepare(dir, name)?;
        }
        Ok(Self { filter, dir, header, out })
    }

    /// Returns true if the user selected this name.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_none_or(|text| name.contains(text))
    }

    /// Fails if the user selected nothing of `what`.
    ///
    /// # Errors
    /// If `found` is false.
    pub fn check_found(&self, found: bool, what: &str) -> Result<()> {
        if found {
            return Ok(());
        }
        bail!("no {what} name contains {:?}", self.filter.unwrap_or_default());
    }

    /// Notes what is measured now.
    pub fn progress(&mut self, what: &str) {
        self.out.note(&format!("{what} ..."));
    }

    /// Shows the results, and writes their files.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn end(self, reports: impl IntoIterator<Item = Report>) -> Result<()> {
        let reports: Vec<Report> = reports.into_iter().collect();
        reports.iter().try_for_each(|report| report.show(self.out))?;
        match self.dir {
            Some(dir) => reports.iter().try_for_each(|report| report.write(dir, self.out)),
            None => {
                self.out.line("no files are written of a part of the measurements: --out DIR writes them")
            }
        }
    }
}

/// Checks that each name is known.
///
/// # Errors
/// If one is not: a line that names it and all known ones.
pub fn check_names(what: &str, names: &[impl AsRef<str>], known: &[&str]) -> Result<()> {
    match names.iter().find(|name| !known.contains(&name.as_ref())) {
        None => Ok(()),
        Some(unknown) => {
            bail!("no {what} is called {} (there are {})", unknown.as_ref(), known.join(", "))
        }
    }
}

/// Removes the contenders that the user did not name, if there are names.
///
/// # Errors
/// If a name is that of no contender.
pub fn select<C>(all: &mut Vec<C>, names: &[String], name_of: impl Fn(&C) -> &'static str) -> Result<()> {
    check_names("contender", names, &all.iter().map(&name_of).collect::<Vec<_>>())?;
    all.retain(|one| names.is_empty() || names.iter().any(|name| name == name_of(one)));
    Ok(())
}

/// Pins this thread to one core. A failure only makes the figures noisier.
pub fn pin() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        core_affinity::set_for_current(core);
    }
}

/// Pins this thread to another core, if there is one.
pub fn pin_apart() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.first().copied()) {
        core_affinity::set_for_current(core);
    }
}
