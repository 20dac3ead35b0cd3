//! The programs whose instructions `cargo xtask counts` counts: one for each row of its table, run under callgrind.
//!
//! # Method
//! A row first prepares its state, uncounted, until the state is stable. Then it repeats the same call, counted. First
//! it counts some pairs one by one, each from an empty simulated cache that is larger than all they access. A miss is
//! then a cache line that a pair accesses. Then it counts many consecutive pairs, whose instructions are divided by
//! their number; this includes the work of every thousandth pair. Nothing depends on a clock, an address or chance.
//!
//! The harness is counted, too, and is the same for all rows of a group. It is a loop of three instructions, and in
//! streams (`index`, `space`) the table of live areas.

mod mark;
mod rows;

use anyhow::{Context, Result, anyhow};
use std::ffi::CString;
use vmlab_base::output::Output;

/// The environment that a row needs.
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

/// Counts `times` calls one by one, each with an argument from `prepare`. The drop of what a call returns is not
/// counted.
fn each<T, U>(
    times: usize,
    mut prepare: impl FnMut() -> Result<T>,
    mut call: impl FnMut(T) -> U,
) -> Result<()> {
    for _ in 0..times {
        let prepared = prepare()?;
        mark::start();
        let done = call(prepared);
        mark::stop();
        drop(done);
    }
    dump("alone", times)
}

fn dump(what: &str, calls: usize) -> Result<()> {
    mark::dump(&CString::new(format!("{what} {calls}"))?);
    Ok(())
}

/// Writes the names of all rows, or runs one.
///
/// # Errors
/// If there is no such row, or it cannot run.
pub fn main(name: Option<&str>, out: &mut dyn Output) -> Result<()> {
    let rows = rows::all();
    let Some(name) = name else {
        let line = |row: &Row| format!("{} {}", row.name, format!("{:?}", row.needs).to_lowercase());
        return out.line(&rows.iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    let row = rows.into_iter().find(|row| row.name == name).with_context(|| format!("no row {name}"))?;
    // A thread's stack starts at a page, but the initial stack depends on arguments and variables, and so would the
    // accessed cache lines.
    let thread = std::thread::Builder::new().spawn(row.run)?;
    thread.join().map_err(|_| anyhow!("the row panicked"))?
}
