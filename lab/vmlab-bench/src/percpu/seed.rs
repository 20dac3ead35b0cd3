//! The benefit of the hints of Linux's engine: the workload of the series that introduced them, also on an engine
//! without them.
//!
//! # Theory
//! The series reports 69 seconds before it, 44 with the alignment of statistics objects restored, and 39 with it. They
//! are for a million actions of traffic control, each of three objects: two counters of bytes and packets, aligned to
//! 16, and 20 bytes. Here each of its patches that changes a search can be switched off separately, and all together. A
//! million objects of 16 bytes at no alignment, with which the series saw no difference, are the control.
//!
//! The restored alignment needs an explanation. In the kernel of the series (5.0) such a counter is a packed record of
//! 12 bytes, 8 of bytes and 4 of packets. An attribute of the change in question aligns it to 16, and so its size
//! becomes 16. Without it, the allocator sees 12 bytes at no alignment. Then all objects are whole words, one after the
//! other, no hole remains, and a search has nothing to skip. With an alignment of 8 and a size of 16, one word remains
//! after each action: that is measured, too.
//!
//! The seconds of the series contain all of a kernel's work for an action; only its per-CPU memory runs here. The time
//! of the rest, and the relative speed of that machine, follow from two of its figures. Our figures then predict the
//! third.

use super::clock::Moment;
use super::kernel_lib::KernelLib;
use super::subject::{Shape, Standard, Subject, UNITS, USUAL};
use anyhow::Result;
use va_percpu::Config;
use va_percpu::config::SlotBy;
use va_percpu::scan::{Rules, ScanHints};

/// Chunks sorted by their free bytes, none set aside; only the longest run of each page, and every search from the
/// page's first free bit.
pub(super) struct Bare;
/// All patches of the series.
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
    Bare { TRACK_SCAN = false, LEARN = false, FORWARD = false }
    Whole {}
    No7 { TRACK_SCAN = false }
    No8 { LEARN = false }
    No9 { FORWARD = false }
}

configs! {
    /// All patches of the series.
    HintsOn { slot: Contig, relegate: true, rules: Whole }
    /// Without patches 4, 5 and 7 to 9.
    HintsOff { slot: FreeBytes, relegate: false, rules: Bare }
    /// Without one of the patches.
    Without4 { slot: FreeBytes, relegate: true, rules: Whole }
    Without5 { slot: Contig, relegate: false, rules: Whole }
    Without7 { slot: Contig, relegate: true, rules: No7 }
    Without8 { slot: Contig, relegate: true, rules: No8 }
    Without9 { slot: Contig, relegate: true, rules: No9 }
}

/// The requested sizes and alignments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// Actions: 16 bytes at an alignment, twice, and 20 bytes.
    Actions { align: u32 },
    /// The same before the objects were aligned: 12 bytes twice, and 20 bytes.
    Packed,
    /// 16 bytes at no alignment.
    Plain,
}

/// The cost of a run, in nanoseconds for each action, and the chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) engine: &'static str,
    pub(super) asked: Asked,
    pub(super) ns: f64,
    pub(super) chunks: u64,
}

/// Actions are added in batches of this size; a remainder is not run.
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
                Asked::Packed => [subject.alloc(12, 4), subject.alloc(12, 4), subject.alloc(20, 4)],
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
fn run_on<S: Subject>(
    engine: &'static str,
    asked: Asked,
    count: usize,
    rounds: usize,
    begin: impl Fn() -> Result<S>,
) -> Result<Ran> {
    let mut best = Ran { engine, asked, ns: f64::INFINITY, chunks: 0 };
    for _ in 0..rounds {
        let (ns, chunks) = actions(&begin()?, asked, count);
        best = Ran { ns: best.ns.min(ns), chunks, ..best };
    }
    Ok(best)
}

fn run<C: Config>(engine: &'static str, asked: Asked, count: usize, rounds: usize) -> Result<Ran> {
    run_on(engine, asked, count, rounds, || Standard::<C>::new(SHAPE))
}

/// Linux's shape.
const SHAPE: Shape = USUAL;

/// Returns the three figures of the series in nanoseconds for each action: before it, with the alignment put back, and
/// with it.
///
/// # Errors
/// If there is no memory for records.
pub(crate) fn three(count: usize, rounds: usize) -> Result<[f64; 3]> {
    let wide = Asked::Actions { align: 16 };
    Ok([
        run::<HintsOff>("hints off", wide, count, rounds)?.ns,
        run::<HintsOff>("hints off", Asked::Packed, count, rounds)?.ns,
        run::<HintsOn>("hints on", wide, count, rounds)?.ns,
    ])
}

/// Returns the three figures of the series, in its order, and others.
pub(super) fn measure(count: usize, rounds: usize, kernel_lib: Option<&KernelLib>) -> Result<Vec<Ran>> {
    let (wide, narrow, packed) = (Asked::Actions { align: 16 }, Asked::Actions { align: 8 }, Asked::Packed);
    let mut ran = vec![
        run::<HintsOff>("hints off", wide, count, rounds)?,
        run::<HintsOff>("hints off", packed, count, rounds)?,
        run::<HintsOn>("hints on", wide, count, rounds)?,
        run::<HintsOn>("hints on", packed, count, rounds)?,
        run::<HintsOff>("hints off", narrow, count, rounds)?,
        run::<HintsOn>("hints on", narrow, count, rounds)?,
        run::<HintsOff>("hints off", Asked::Plain, count, rounds)?,
        run::<HintsOn>("hints on", Asked::Plain, count, rounds)?,
        run::<Without4>("without 4", wide, count, rounds)?,
        run::<Without5>("without 5", wide, count, rounds)?,
        run::<Without7>("without 7", wide, count, rounds)?,
        run::<Without8>("without 8", wide, count, rounds)?,
        run::<Without9>("without 9", wide, count, rounds)?,
    ];
    if let Some(kernel_lib) = kernel_lib {
        for asked in [wide, packed, narrow, Asked::Plain] {
            ran.push(run_on("kern", asked, count, rounds, || {
                let kernel_lib = kernel_lib.begin(SHAPE, UNITS)?;
                kernel_lib.stand_for(0);
                Ok(kernel_lib)
            })?);
        }
    }
    Ok(ran)
}

/// Converts a figure to the seconds of the series, on a scale with its first at 69 and its third at 39. `None` if the
/// hints gain nothing.
pub(super) fn seconds(all: &[Ran], ns: f64) -> Option<f64> {
    let [off, _, on, ..] = all else { return None };
    let slower = (69.0 - 39.0) / (off.ns - on.ns);
    (slower > 0.0).then_some(39.0 + (ns - on.ns) * slower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_serves_every_action() {
        for ran in measure(3000, 1, None).unwrap() {
            assert!(ran.ns > 0.0 && ran.chunks >= 1, "{ran:?}");
        }
    }

    #[test]
    fn two_figures_of_the_series_are_known_and_the_third_is_between() {
        let ran = |ns| Ran { engine: "", asked: Asked::Plain, ns, chunks: 1 };
        let all = [ran(3000.0), ran(500.0), ran(250.0)];
        assert_eq!(seconds(&all, 3000.0), Some(69.0));
        assert_eq!(seconds(&all, 250.0), Some(39.0));
        assert!(seconds(&all, 500.0).is_some_and(|of| of > 39.0 && of < 69.0));
        assert_eq!(seconds(&[ran(1.0), ran(1.0), ran(2.0)], 1.0), None);
    }
}
