//! What the hints of Linux's engine are worth: the workload with which the series that brought them was measured, on an engine
//! without them.
//!
//! # Theory
//! The series reports 69 seconds before it, 44 with the alignment of statistics objects put back from 16 to 8, and 39 with it, on
//! a million actions of traffic control, each of three objects: 16 bytes twice, and 20 bytes. Here each of its patches that
//! changes a search can be switched off apart, and all together; and a million objects of 16 bytes at no alignment, with which
//! the series saw no difference, are the control.
//!
//! The seconds of the series hold all that a kernel does for an action; here is only its per-CPU memory, so the ratio is larger.

use super::clock::Moment;
use super::subject::{Ours, Shape, Subject, USUAL};
use anyhow::Result;
use va_percpu::Config;
use va_percpu::config::SlotBy;
use va_percpu::scan::{Rules, ScanHints};

/// Chunks by what is free in them, none out of the way; of a page only the longest run, and every search from its first free
/// bit.
pub(super) struct Bare;
/// All of the series.
pub(super) struct Whole;

macro_rules! rules {
    ($($name:ident { $($rule:ident = $value:expr),* })*) => {$(
        impl Rules for $name {
            $(const $rule: bool = $value;)*
        }
    )*};
}

macro_rules! configs {
    ($($(#[$about:meta])* $name:ident { slot: $slot:ident, relegate: $relegate:expr, rules: $rules:ty })*) => {$(
        $(#[$about])*
        pub(super) struct $name;
        impl Config for $name {
            type Engine = ScanHints<$rules>;
            const SLOT_BY: SlotBy = SlotBy::$slot;
            const RELEGATE: bool = $relegate;
        }
    )*};
}

/// Without patch 7, 8, 9.
pub(super) struct No7;
pub(super) struct No8;
pub(super) struct No9;

rules! {
    Bare { KEEP_SCAN = false, LEARN = false, FORWARD = false }
    Whole {}
    No7 { KEEP_SCAN = false }
    No8 { LEARN = false }
    No9 { FORWARD = false }
}

configs! {
    /// All of the series.
    HintsOn { slot: Contig, relegate: true, rules: Whole }
    /// Without patches 4, 5 and 7 to 9.
    HintsOff { slot: FreeBytes, relegate: false, rules: Bare }
    /// Without one of them.
    Without4 { slot: FreeBytes, relegate: true, rules: Whole }
    Without5 { slot: Contig, relegate: false, rules: Whole }
    Without7 { slot: Contig, relegate: true, rules: No7 }
    Without8 { slot: Contig, relegate: true, rules: No8 }
    Without9 { slot: Contig, relegate: true, rules: No9 }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// Actions: 16 bytes at an alignment, twice, and 20 bytes.
    Actions { align: u32 },
    /// 16 bytes at no alignment.
    Plain,
}

/// What a run took, in nanoseconds an action, and what is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) engine: &'static str,
    pub(super) asked: Asked,
    pub(super) ns: f64,
    pub(super) chunks: u64,
}

/// Actions come and go like this: so many are added, and then one in so many goes before the next come.
const BATCH: usize = 1000;

fn actions<S: Subject>(subject: &S, asked: Asked, count: usize) -> (f64, u64) {
    let mut objects = Vec::with_capacity(count);
    let begun = Moment::now();
    for _ in 0..count / BATCH {
        for _ in 0..BATCH {
            objects.push(match asked {
                Asked::Actions { align } => {
                    [subject.alloc(16, align), subject.alloc(16, align), subject.alloc(20, 4)]
                }
                Asked::Plain => [subject.alloc(16, 4), 0, 0],
            });
        }
    }
    let ns = begun.elapsed_ns() / count as f64;
    let chunks = subject.counts().chunks;
    for object in objects.iter().flatten().filter(|&&object| object != 0) {
        subject.free(*object);
    }
    (ns, chunks)
}

/// Runs one workload on one engine, the fastest of several rounds.
fn run<C: Config>(engine: &'static str, asked: Asked, count: usize, rounds: usize) -> Result<Ran> {
    let mut best = Ran { engine, asked, ns: f64::INFINITY, chunks: 0 };
    for _ in 0..rounds {
        let subject = Ours::<C>::new(SHAPE)?;
        let (ns, chunks) = actions(&subject, asked, count);
        best = Ran { ns: best.ns.min(ns), chunks, ..best };
    }
    Ok(best)
}

/// As Linux has it.
const SHAPE: Shape = USUAL;

/// The three figures of the series in nanoseconds an action: before it, with the alignment put back, and with it.
///
/// # Errors
/// If there is no memory for records.
pub(crate) fn three(count: usize, rounds: usize) -> Result<[f64; 3]> {
    let (wide, narrow) = (Asked::Actions { align: 16 }, Asked::Actions { align: 8 });
    Ok([
        run::<HintsOff>("hints off", wide, count, rounds)?.ns,
        run::<HintsOff>("hints off", narrow, count, rounds)?.ns,
        run::<HintsOn>("hints on", wide, count, rounds)?.ns,
    ])
}

/// The three figures of the series, the control, and each patch switched off apart.
pub(super) fn measure(count: usize, rounds: usize) -> Result<Vec<Ran>> {
    let (wide, narrow) = (Asked::Actions { align: 16 }, Asked::Actions { align: 8 });
    Ok(vec![
        run::<HintsOff>("hints off", wide, count, rounds)?,
        run::<HintsOff>("hints off", narrow, count, rounds)?,
        run::<HintsOn>("hints on", wide, count, rounds)?,
        run::<HintsOn>("hints on", narrow, count, rounds)?,
        run::<HintsOff>("hints off", Asked::Plain, count, rounds)?,
        run::<HintsOn>("hints on", Asked::Plain, count, rounds)?,
        run::<Without4>("without 4", wide, count, rounds)?,
        run::<Without5>("without 5", wide, count, rounds)?,
        run::<Without7>("without 7", wide, count, rounds)?,
        run::<Without8>("without 8", wide, count, rounds)?,
        run::<Without9>("without 9", wide, count, rounds)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_serves_every_action() {
        for ran in measure(3000, 1).unwrap() {
            assert!(ran.ns > 0.0 && ran.chunks >= 1, "{ran:?}");
        }
    }
}
