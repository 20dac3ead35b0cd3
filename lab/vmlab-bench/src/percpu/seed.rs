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
use crate::harness::{Summary, in_turn};
use anyhow::{Context as _, Result};
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
pub enum Asked {
    /// Actions: 16 bytes at an alignment, twice, and 20 bytes.
    Actions { align: u32 },
    /// The same before the objects were aligned: 12 bytes twice, and 20 bytes.
    Packed,
    /// 16 bytes at no alignment.
    Plain,
}

/// The cost of a run, in nanoseconds for each action, and the chunks.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub engine: &'static str,
    pub asked: Asked,
    pub ns: f64,
    pub chunks: u64,
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

/// Linux's shape.
const SHAPE: Shape = USUAL;

/// An engine, what an action asks of it, and a run on a fresh space: nanoseconds for each action, and chunks.
struct Engine<'a> {
    name: &'static str,
    asked: Asked,
    run: Box<dyn Fn(usize) -> Result<(f64, u64)> + 'a>,
}

fn engine<C: Config>(name: &'static str, asked: Asked) -> Engine<'static> {
    Engine { name, asked, run: Box::new(move |count| Ok(actions(&Standard::<C>::new(SHAPE)?, asked, count))) }
}

/// Runs all engines in turn. Returns the nanoseconds of each over the rounds, and its chunks.
fn rounds_of(engines: &[Engine<'_>], count: usize, rounds: usize) -> Result<Vec<(Summary, u64)>> {
    let ran = in_turn(rounds, engines, |_, engine| (engine.run)(count).map(Some))?;
    let of = |ran: Vec<(f64, u64)>| Some((Summary::of(ran.iter().map(|(ns, _)| *ns))?, ran.last()?.1));
    ran.into_iter().map(of).collect::<Option<_>>().context("there are no rounds")
}

/// Runs all engines in turn; the fastest round of each counts.
fn fastest(engines: &[Engine<'_>], count: usize, rounds: usize) -> Result<Vec<Ran>> {
    let ran = rounds_of(engines, count, rounds)?;
    let fastest = |(&Engine { name, asked, .. }, (ns, chunks)): (&Engine<'_>, (Summary, u64))| Ran {
        engine: name,
        asked,
        ns: ns.min,
        chunks,
    };
    Ok(engines.iter().zip(ran).map(fastest).collect())
}

/// Returns the engines of the three figures of the series: before it, with the alignment put back, and with it.
fn of_the_series() -> [Engine<'static>; 3] {
    let wide = Asked::Actions { align: 16 };
    [
        engine::<HintsOff>("hints off", wide),
        engine::<HintsOff>("hints off", Asked::Packed),
        engine::<HintsOn>("hints on", wide),
    ]
}

/// Returns the three figures of the series in nanoseconds for each action, over the rounds.
///
/// # Errors
/// If there is no memory for records, or no round.
pub(crate) fn three(count: usize, rounds: usize) -> Result<[Summary; 3]> {
    let ran = rounds_of(&of_the_series(), count, rounds)?;
    let ran: Option<[(Summary, u64); 3]> = ran.try_into().ok();
    Ok(ran.context("there are no rounds")?.map(|(ns, _)| ns))
}

/// Returns the three figures of the series, in its order, and others.
pub fn measure(count: usize, rounds: usize, kernel_lib: Option<&KernelLib>) -> Result<Vec<Ran>> {
    let (wide, narrow, packed) = (Asked::Actions { align: 16 }, Asked::Actions { align: 8 }, Asked::Packed);
    let mut engines = Vec::from(of_the_series());
    engines.extend([
        engine::<HintsOn>("hints on", packed),
        engine::<HintsOff>("hints off", narrow),
        engine::<HintsOn>("hints on", narrow),
        engine::<HintsOff>("hints off", Asked::Plain),
        engine::<HintsOn>("hints on", Asked::Plain),
        engine::<Without4>("without 4", wide),
        engine::<Without5>("without 5", wide),
        engine::<Without7>("without 7", wide),
        engine::<Without8>("without 8", wide),
        engine::<Without9>("without 9", wide),
    ]);
    if let Some(kernel_lib) = kernel_lib {
        engines.extend([wide, packed, narrow, Asked::Plain].map(|asked| {
            let run = move |count| -> Result<(f64, u64)> {
                let kernel_lib = kernel_lib.begin(SHAPE, UNITS)?;
                kernel_lib.stand_for(0);
                Ok(actions(&kernel_lib, asked, count))
            };
            Engine { name: "kern", asked, run: Box::new(run) }
        }));
    }
    fastest(&engines, count, rounds)
}

/// Converts a figure to the seconds of the series, on a scale with its first at 69 and its third at 39. `None` if the
/// hints gain nothing.
pub fn seconds(all: &[Ran], ns: f64) -> Option<f64> {
    let [off, _, on, ..] = all else { return None };
    let slower = (69.0 - 39.0) / (off.ns - on.ns);
    (slower > 0.0).then_some(39.0 + (ns - on.ns) * slower)
}
