//! The programs whose instructions `cargo xtask counts` counts: one row of its table each, run
//! under callgrind.
//!
//! # Method
//! A row prepares what it works on, uncounted, until it is as it stays; then it does the same a
//! number of times, counted. First some pairs one by one, each from an empty simulated cache that
//! is larger than all they touch: a miss is then a line that a pair touches. Then many in a row,
//! whose instructions are divided by their number: what is done every thousandth pair is in them.
//! Nothing depends on a clock, an address or chance.
//!
//! The harness is counted, too, and is the same for all rows of a group. It is a loop of three instructions, and in
//! streams (`index`, `space`) the table of live areas.

mod mark;
mod rows;

use crate::cli::out;
use anyhow::{Context, Result, anyhow};
use std::ffi::CString;

/// The surroundings that a row needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    Nothing,
    /// An rseq area, which valgrind does not register.
    Sections,
    /// The preload.
    Preload,
}

/// A row of the table.
struct Row {
    name: String,
    needs: Needs,
    run: Box<dyn FnOnce() -> Result<()> + Send>,
}

/// Pairs that are counted one by one.
const ALONE: usize = 16;

/// Counts `pairs` calls.
fn pairs(pairs: usize, mut pair: impl FnMut()) -> Result<()> {
    for _ in 0..ALONE {
        mark::start();
        pair();
        mark::stop();
    }
    dump("alone", ALONE)?;
    mark::start();
    for _ in 0..pairs {
        pair();
    }
    mark::stop();
    dump("run", pairs)
}

/// Counts `times` calls one by one, each of what `prepare` made for it.
fn each<T>(times: usize, mut prepare: impl FnMut() -> Result<T>, mut call: impl FnMut(T)) -> Result<()> {
    for _ in 0..times {
        let prepared = prepare()?;
        mark::start();
        call(prepared);
        mark::stop();
    }
    dump("alone", times)
}

fn dump(what: &str, calls: usize) -> Result<()> {
    mark::dump(&CString::new(format!("{what} {calls}"))?);
    Ok(())
}

/// Prints all rows, or runs one.
///
/// # Errors
/// If there is no such row, or it cannot be run.
pub fn main(name: Option<&str>) -> Result<()> {
    let rows = rows::all();
    let Some(name) = name else {
        let line = |row: &Row| format!("{} {}", row.name, format!("{:?}", row.needs).to_lowercase());
        return out(&rows.iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    let row = rows.into_iter().find(|row| row.name == name).with_context(|| format!("no row {name}"))?;
    // The stack of a thread begins at a page, that of the program wherever its arguments and
    // variables end: which lines it touches would depend on them.
    let thread = std::thread::Builder::new().spawn(row.run)?;
    thread.join().map_err(|_| anyhow!("the row panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut names: Vec<_> = rows::all().into_iter().map(|row| row.name).collect();
        assert!(names.len() > 40 && names.iter().all(|name| !name.contains([' ', ','])));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows::all().len());
    }

    #[test]
    fn rows_run_outside_valgrind_too() {
        for name in
            ["index/btree/empty", "space/fix_size", "blocks/lane", "free-slice", "percpu/16", "process/64K"]
        {
            main(Some(name)).unwrap();
        }
        assert!(main(Some("none")).is_err());
    }
}
