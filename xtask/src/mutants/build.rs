//! Builds tests with copies for a batch of faults.
//!
//! A copy that does not compile is left out and the rest is built again: the compiler names the lines of its errors.

use super::list::Mutant;
use super::weave::{FEATURES, SELECTOR, broken, weave};
use super::{Bench, Subject, cargo};
use crate::files::write_changed;
use crate::sh::Show;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crate in which the choice is read.
const BASE: &str = "core/va-base/src/lib.rs";

/// The tests of a batch.
pub(super) struct Built {
    pub(super) programs: Vec<PathBuf>,
    /// The numbers of the faults that do not compile.
    pub(super) failed: BTreeSet<u32>,
}

/// Builds the tests of a subject with copies for `mutants`. The files are restored.
pub(super) fn together(bench: &Bench, subject: &Subject, mutants: &[&Mutant]) -> Result<Built> {
    let files: BTreeSet<_> = mutants.iter().map(|mutant| mutant.file.as_str()).chain([BASE]).collect();
    let originals = files
        .into_iter()
        .map(|file| Ok((file, fs::read_to_string(bench.tree.join(file))?)))
        .collect::<Result<BTreeMap<_, _>>>()?;
    let built = woven(bench, subject, mutants, &originals);
    for (file, text) in &originals {
        fs::write(bench.tree.join(file), text)?;
    }
    built
}

fn woven(
    bench: &Bench,
    subject: &Subject,
    mutants: &[&Mutant],
    originals: &BTreeMap<&str, String>,
) -> Result<Built> {
    let base = originals[BASE].replacen("#![no_std]\n", &format!("#![no_std]\n{FEATURES}"), 1);
    let base = base.replacen("#![forbid(unsafe_code)]\n", "", 1);
    fs::write(bench.tree.join(BASE), base + SELECTOR)?;
    let mut failed = BTreeSet::new();
    loop {
        let mut lines = BTreeMap::new();
        for (&file, text) in originals.iter().filter(|(file, _)| **file != BASE) {
            let here = |mutant: &&&Mutant| mutant.file == file && !failed.contains(&mutant.number);
            let woven = weave(text, &mutants.iter().filter(here).copied().collect::<Vec<_>>())?;
            write_changed(&bench.tree.join(file), woven.text.as_bytes())?;
            lines.insert(file, woven.lines);
        }
        let (programs, errors) = tests(bench, subject, true)?;
        if let Some(programs) = programs {
            return Ok(Built { programs: copied(&bench.build.join("batch"), &programs)?, failed });
        }
        let before = failed.len();
        failed.extend(errors.iter().filter_map(|error| {
            let of = *lines.get(error.file.as_str())?.get(error.line.checked_sub(1)?)?;
            (of != 0).then_some(of)
        }));
        if failed.len() == before {
            bail!("the copies do not compile: {}", errors.first().map_or("no error", |error| &error.text));
        }
    }
}

/// Copies programs to a folder: a later build of other faults has the same paths.
fn copied(folder: &Path, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let copy = |program: &PathBuf| {
        let to = folder.join(program.file_name().context("a program without a name")?);
        fs::copy(program, &to).with_context(|| format!("cannot copy {}", program.display()))?;
        Ok(to)
    };
    programs.iter().map(copy).collect()
}

/// Builds the tests with one fault. Returns `None` if it does not compile. The file is restored.
pub(super) fn alone(bench: &Bench, subject: &Subject, mutant: &Mutant) -> Result<Option<Vec<PathBuf>>> {
    let path = bench.tree.join(&mutant.file);
    let text = fs::read_to_string(&path)?;
    fs::write(&path, broken(&text, mutant)?)?;
    let built = tests(bench, subject, false);
    fs::write(&path, text)?;
    Ok(built?.0)
}

/// An error of the compiler.
struct Error {
    file: String,
    line: usize,
    text: String,
}

/// Builds tests. Returns their programs, or errors.
fn tests(bench: &Bench, subject: &Subject, optimised: bool) -> Result<(Option<Vec<PathBuf>>, Vec<Error>)> {
    let (mut programs, mut errors) = (Vec::new(), Vec::new());
    let folder = format!("/{}#", subject.folder);
    let ended = cargo(bench, optimised)
        .args(["test", "--locked", "--no-run", "--message-format=json", "-p", subject.package])
        .args(subject.tests)
        .lines(Show::Nothing, |line| {
            let Ok(message) = serde_json::from_str::<Value>(line) else { return };
            let of_subject = message["package_id"].as_str().is_some_and(|id| id.contains(&folder));
            if let (true, Some(path)) = (of_subject, message["executable"].as_str()) {
                programs.push(PathBuf::from(path));
            }
            if message["message"]["level"].as_str().is_some_and(|level| level.starts_with("error")) {
                errors.extend(places(&message["message"]));
            }
        })?;
    if ended.code == Some(0) {
        if programs.is_empty() {
            bail!("{} has no tests", subject.name);
        }
        // Each build names them in an order of its own.
        programs.sort();
        return Ok((Some(programs), errors));
    }
    Ok((None, errors))
}

/// Returns the places of an error: if it is in a macro, the line that calls that.
fn places(message: &Value) -> Vec<Error> {
    let text = message["rendered"].as_str().unwrap_or_default();
    let spans = message["spans"].as_array().into_iter().flatten();
    let primary = spans.filter(|span| span["is_primary"] == true);
    let place = |mut span: &Value| {
        while span["expansion"].is_object() {
            span = &span["expansion"]["span"];
        }
        let file = span["file_name"].as_str()?.to_string();
        Some(Error { file, line: span["line_start"].as_u64()? as usize, text: text.to_string() })
    };
    primary.filter_map(place).collect()
}

#[cfg(test)]
mod tests_of_places {
    use super::*;

    #[test]
    fn the_programs_of_a_batch_survive_another_build() {
        let dir = tempfile::tempdir().unwrap();
        let built = dir.path().join("program");
        fs::write(&built, "first").unwrap();
        let kept = copied(&dir.path().join("batch"), std::slice::from_ref(&built)).unwrap();
        fs::write(&built, "second").unwrap();
        assert_eq!(fs::read_to_string(&kept[0]).unwrap(), "first");
    }

    #[test]
    fn an_error_in_a_macro_is_where_that_is_called() {
        let message = serde_json::json!({"rendered": "no", "spans": [
            {"is_primary": false, "file_name": "a.rs", "line_start": 1},
            {"is_primary": true, "file_name": "core.rs", "line_start": 2,
             "expansion": {"span": {"file_name": "a.rs", "line_start": 3, "expansion": null}}},
            {"is_primary": true, "file_name": "a.rs", "line_start": 4, "expansion": null},
        ]});
        let places: Vec<_> = places(&message).into_iter().map(|error| (error.file, error.line)).collect();
        assert_eq!(places, [("a.rs".to_string(), 3), ("a.rs".to_string(), 4)]);
    }
}
