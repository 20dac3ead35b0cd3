//! Offsets in percpu chunks: the differences between the kernel and a policy, and their causes.
//!
//! # Theory
//! The comparison is chunk by chunk. The kernel's choice of a chunk depends on the use of all chunks, which no event
//! reports, and is not compared. In a chunk whose creation is in the recording everything is known. For an older one,
//! the trace proves some offsets to be free (`before`); all others are assumed to be in use. The kernel's offset was
//! free, so a policy that takes the lowest fit never returns a higher one. A lower offset was free by the events, and
//! the kernel did not take it. If the kernel's offset is the only one known to be free, an equal result proves nothing:
//! such allocations are counted as not knowable. After each difference the policy is corrected. If no policy explains
//! why the kernel left a lower offset, the offset counts as in use until an event touches it. So it is counted once.
//!
//! # Invariants
//! - **DF3 one-place** every allocation in a chunk is counted as exactly one of equal, alone, lower, higher and failed,
//!   and each of the last three has one cause.

#[doc(hidden)]
pub mod before;

use super::recording::Recording;
use crate::engine::{Step, What};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use va_base::Va;
use va_percpu::config::{Linux612, Runs};
use va_percpu::{
    BIT_BYTES, Backend, BackendError, Config, Context, Geometry, Offset, PercpuSpace, Request, Sizes,
};
use vmlab_machine::{LabMachine, PlainLock, Work};
use vmlab_trace::Event;
use vmlab_trace::percpu::PercpuEvent;

/// The largest accepted end of an object, in bytes: units of machines are smaller.
pub const OFF_MAX: u64 = 8 << 20;
/// Most lives of chunks that are compared.
pub const CHUNKS_MAX: usize = 1024;
/// Bytes of the smallest model of a chunk.
const UNIT_MIN: u64 = 64 << 10;
/// Bytes of the largest object.
const OBJECT_MAX: u32 = 32 << 10;
/// Events that all causes of a run may visit together, so that a hostile recording of differences ends.
const LOOKS_MAX: u64 = 1 << 28;
/// The most events of a chunk between two events that may be recorded in the wrong order.
const NEAR: usize = 16;

/// The reason why an offset differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffsetCause {
    /// Linux's hints, computed from the events alone, lead here; by the bits the kernel's offset is the lowest. Its
    /// hints come from before the trace.
    Hints,
    /// The caller could not sleep, and no event reports which pages are populated.
    Populated,
    /// A near event of another CPU frees or allocates the policy's offset: the two are recorded in the other order.
    Order,
    /// The policy's offset is freed later without a recorded allocation: it was in use by an object without an event.
    Unseen,
    /// The policy takes the lowest fit, and Linux's hints skip it: so they do in a model of Linux with the same events.
    LowestFit,
    /// The policy's offset is free by the events before and after, and the kernel did not take it. Its own hints skip
    /// it, and those of a model with less information about the chunk do not.
    Left,
    /// None of these.
    Unexplained,
}

impl OffsetCause {
    /// Returns its text, as the head of a row.
    pub fn text(self) -> &'static str {
        match self {
            Self::Hints => "hints from before the trace",
            Self::Populated => "caller could not wait: populated pages are not known",
            Self::Order => "events of two CPUs stand in the other order",
            Self::Unseen => "in use without an event: it is freed later",
            Self::LowestFit => "the policy takes the lowest fit, Linux's hints lead past it",
            Self::Left => "free by the events, and Linux left it: its hints are not the model's",
            Self::Unexplained => "unexplained",
        }
    }

    /// Returns the category of the cause.
    pub fn kind(self) -> &'static str {
        match self {
            Self::LowestFit => "policy",
            Self::Hints | Self::Populated | Self::Order | Self::Unseen => "not knowable",
            Self::Left | Self::Unexplained => "open",
        }
    }
}

/// One offset that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Elsewhere {
    /// Line of the recording.
    pub line: u64,
    /// Start of the kernel's chunk.
    #[serde(serialize_with = "super::report::hex")]
    pub base: u64,
    /// Requested bytes.
    pub size: u64,
    /// Requested alignment.
    pub align: u64,
    /// The kernel's offset.
    pub kernel: u64,
    /// The policy's offset, if it found one.
    pub policy: Option<u64>,
    /// The reason.
    pub cause: OffsetCause,
}

/// The comparison of offsets. DF3: `allocs` is the sum of the five that follow it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Offsets {
    /// Name of the policy.
    pub policy: &'static str,
    /// Allocations inside chunks.
    pub allocs: u64,
    /// The kernel's offset, if another offset would also have fitted.
    pub equal: u64,
    /// Not knowable: no other offset of the chunk is known to fit.
    pub alone: u64,
    /// The policy's offset was lower.
    pub lower: u64,
    /// The policy's offset was higher.
    pub higher: u64,
    /// The policy failed.
    pub failed: u64,
    /// Chunks, counted at each creation.
    pub chunks: u64,
    /// Chunks created in the recording; with the allocations in them, the equal ones, and those without another offset.
    pub chunks_new: u64,
    /// See `chunks_new`.
    pub new_allocs: u64,
    /// See `chunks_new`.
    pub new_equal: u64,
    /// See `chunks_new`.
    pub new_alone: u64,
    /// Frees of objects from before the trace.
    pub frees_before: u64,
    /// Frees of objects without a recorded allocation, at an offset that was used before: the recording lacks an event.
    pub frees_unseen: u64,
    /// Allocations that overlap a live object by the events: it was freed without an event, or by one that is recorded
    /// later.
    pub taken_twice: u64,
    /// Events with numbers that no chunk has, or in chunks beyond the limit.
    pub malformed: u64,
    /// Number of differences of each cause.
    pub causes: BTreeMap<OffsetCause, u64>,
    /// The first of them.
    pub divergences: Vec<Elsewhere>,
}

impl Offsets {
    /// Returns the number of offsets that differ.
    pub fn differ(&self) -> u64 {
        self.lower + self.higher + self.failed
    }

    /// Returns the number of allocations that cannot be judged: those with no other offset, and those with a cause
    /// outside the recording.
    pub fn unknowable(&self) -> u64 {
        let counts = self.causes.iter().filter(|(cause, _)| cause.kind() == "not knowable");
        self.alone + counts.map(|(_, count)| count).sum::<u64>()
    }
}

/// The effect of an event on a chunk, in bits of 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Touch {
    /// Allocates `[at, end)`.
    Alloc { at: u32, end: u32, align: u32, atomic: bool },
    /// Frees the object that begins here.
    Free { at: u32 },
}

/// An effect, and its event.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Touched {
    pub line: u64,
    pub cpu: u16,
    pub touch: Touch,
    pub counted: bool,
}

/// The life of a chunk: from its creation, or the beginning of the trace, to its destruction, or the end.
#[derive(Default)]
struct Life {
    base: u64,
    is_new: bool,
    touches: Vec<Touched>,
}

/// Compares the offsets in a recording's percpu chunks with Linux's policy, or with exact runs.
///
/// # Errors
/// If a model cannot be created, or the columns do not add up.
pub fn run(recording: &Recording, linux: bool, differences_max: usize) -> Result<Offsets> {
    let mut report = Offsets { policy: if linux { "linux612" } else { "runs" }, ..Offsets::default() };
    let mut looks = LOOKS_MAX;
    for life in lives(recording, &mut report.malformed) {
        report.chunks += 1;
        report.chunks_new += u64::from(life.is_new);
        if linux {
            compare::<Linux612>(&life, &mut report, differences_max, &mut looks)?;
        } else {
            compare::<Runs>(&life, &mut report, differences_max, &mut looks)?;
        }
    }
    // Checks DF3.
    let sum = report.equal + report.alone + report.differ();
    ensure!(sum == report.allocs, "DF3: {sum} of {} allocations in columns", report.allocs);
    let caused: u64 = report.causes.values().sum();
    ensure!(caused == report.differ(), "DF3: {caused} causes of {}", report.differ());
    Ok(report)
}

/// Returns the chunks of a recording, in the order in which they first occur.
fn lives(recording: &Recording, malformed: &mut u64) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    let mut now: BTreeMap<u64, usize> = BTreeMap::new();
    for step in &recording.steps {
        let (base, touch, is_new) = match step.what {
            What::Vm(Event::ChunkCreate { base }) => (base, None, true),
            What::Vm(Event::ChunkDestroy { base }) => {
                now.remove(&base);
                continue;
            }
            What::Percpu(event) => {
                let Some((base, touch)) = touch_of(&event) else {
                    *malformed += 1;
                    continue;
                };
                (base, Some(touch), false)
            }
            _ => continue,
        };
        let at = match now.get(&base) {
            Some(&at) if !is_new => at,
            _ if lives.len() == CHUNKS_MAX => {
                *malformed += 1;
                continue;
            }
            _ => {
                lives.push(Life { base, is_new, touches: Vec::new() });
                now.insert(base, lives.len() - 1);
                lives.len() - 1
            }
        };
        let Step { line, cpu, counted, .. } = *step;
        lives[at].touches.extend(touch.map(|touch| Touched { line, cpu, touch, counted }));
    }
    lives
}

/// Returns the range of a percpu event; `None` if no chunk has such an offset.
fn touch_of(event: &PercpuEvent) -> Option<(u64, Touch)> {
    let bit = |off: u64| {
        let bit = u32::try_from(off / u64::from(BIT_BYTES)).ok()?;
        (off < OFF_MAX && off.is_multiple_of(BIT_BYTES.into())).then_some(bit)
    };
    match *event {
        PercpuEvent::Alloc { base, off, size, align, atomic, .. } => {
            let at = bit(off)?;
            let fits = size > 0 && size <= OBJECT_MAX.into() && off + size <= OFF_MAX;
            let bits = u32::try_from(size).ok()?.div_ceil(BIT_BYTES);
            let aligned = align.is_power_of_two() && align <= va_base::PAGE_SIZE && off.is_multiple_of(align);
            let align = u32::try_from(align).ok()?;
            (fits && aligned).then_some((base, Touch::Alloc { at, end: at + bits, align, atomic }))
        }
        PercpuEvent::Free { base, off } => Some((base, Touch::Free { at: bit(off)? })),
        PercpuEvent::Create { .. } => None,
    }
}

/// A backend with one chunk, whose pages are always populated.
struct OneChunk;

impl Backend for OneChunk {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        Err(BackendError)
    }

    fn destroy(&self, _geometry: &Geometry, _base: Va) {}

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}

/// A chunk under a policy, with its allocated pieces.
struct Chunk<C: Config> {
    space: PercpuSpace<LabMachine<PlainLock>, OneChunk, C>,
    /// First bit and end. An object of an event is one piece.
    pieces: BTreeMap<u32, u32>,
}

impl<C: Config> Chunk<C> {
    fn new(bits: u32) -> Result<Self> {
        let unit = bits * BIT_BYTES;
        let sizes =
            Sizes { unit, fixed: 0, reserved: 0, dynamic: unit, atom: OBJECT_MAX, alloc: unit, units: 1 };
        let geometry = Geometry::new(sizes, Va::new(1 << 30))?;
        let space = PercpuSpace::new(geometry, LabMachine::new(1, 1, Work::Here), OneChunk)?;
        Ok(Self { space, pieces: BTreeMap::new() })
    }

    /// Allocates `[at, end)`, which is free.
    fn take(&mut self, at: u32, end: u32) {
        let step = (OBJECT_MAX / BIT_BYTES) as usize;
        for from in (at..end).step_by(step) {
            let to = end.min(from + step as u32);
            let offset = Offset::new(u64::from(from * BIT_BYTES));
            let taken = self.space.alloc_at(offset, ((to - from) * BIT_BYTES) as usize);
            // The range is free by `pieces`, so this cannot fail.
            debug_assert!(taken.is_ok(), "{taken:?}");
            self.pieces.insert(from, to);
        }
    }

    /// Frees the piece that begins at `at`.
    fn free(&mut self, at: u32) -> Option<u32> {
        let end = self.pieces.remove(&at)?;
        let freed = self.space.free(Offset::new(u64::from(at * BIT_BYTES)));
        debug_assert!(freed.is_ok(), "{freed:?}");
        Some(end)
    }

    /// Makes `[at, end)` free; the rests of pieces that overlap it stay allocated.
    fn clear(&mut self, at: u32, end: u32) {
        while let Some((&from, &to)) = self.pieces.range(..end).next_back().filter(|&(_, &to)| to > at) {
            self.free(from);
            if to > end {
                self.take(end, to);
            }
            if from < at {
                self.take(from, at);
            }
        }
    }

    /// Returns the first bit of the policy's answer, which stays allocated.
    fn ask(&self, bits: u32, align: u32, atomic: bool) -> Option<u32> {
        let context = if atomic { Context::Atomic } else { Context::Sleeping };
        let request = Request::new((bits * BIT_BYTES) as usize, align as usize).context(context);
        let offset = self.space.alloc(&request).ok()?;
        u32::try_from(offset.get() / u64::from(BIT_BYTES)).ok()
    }

    /// Undoes an answer.
    fn undo(&self, at: u32) {
        let freed = self.space.free(Offset::new(u64::from(at * BIT_BYTES)));
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    /// Returns the first bit of the policy's answer. Afterwards the kernel's range is allocated, whatever the answer.
    fn step(&mut self, at: u32, end: u32, align: u32, atomic: bool) -> Option<u32> {
        self.clear(at, end);
        let answer = self.ask(end - at, align, atomic);
        if answer == Some(at) {
            // Kept as it is: a free would change Linux's hints.
            self.pieces.insert(at, end);
            return answer;
        }
        if let Some(other) = answer {
            self.undo(other);
        }
        self.take(at, end);
        answer
    }
}

/// Replays one life of a chunk under a policy, and compares with the lowest fits.
fn compare<C: Config>(
    life: &Life,
    report: &mut Offsets,
    differences_max: usize,
    looks: &mut u64,
) -> Result<()> {
    let ends = life.touches.iter().map(|touched| match touched.touch {
        Touch::Alloc { end, .. } => end,
        Touch::Free { at } => at + 1,
    });
    let bytes = u64::from(ends.max().unwrap_or(0) * BIT_BYTES).max(UNIT_MIN);
    let bits = u32::try_from(bytes.next_multiple_of(va_base::PAGE_SIZE))? / BIT_BYTES;
    let mut policy = Chunk::<C>::new(bits)?;
    let mut lowest = Chunk::<Runs>::new(bits)?;
    let mut linux = Chunk::<Linux612>::new(bits)?;
    let mut objects: BTreeMap<u32, u32> = BTreeMap::new();
    // True for each bit that an event allocated.
    let mut allocated = vec![false; bits as usize];
    if !life.is_new {
        let free = before::free_before(&life.touches, bits);
        let mut at = 0;
        for same in free.chunk_by(|one, next| one == next) {
            let end = at + same.len() as u32;
            if !same[0] {
                policy.take(at, end);
                lowest.take(at, end);
                linux.take(at, end);
            }
            at = end;
        }
    }
    for (number, touched) in life.touches.iter().enumerate() {
        match touched.touch {
            Touch::Free { at } => {
                let end = objects.remove(&at);
                match (end, allocated[at as usize]) {
                    (Some(_), _) => {}
                    (None, true) => report.frees_unseen += 1,
                    (None, false) => report.frees_before += 1,
                }
                let end = end.unwrap_or(at + 1);
                policy.clear(at, end);
                lowest.clear(at, end);
                linux.clear(at, end);
            }
            Touch::Alloc { at, end, align, atomic } => {
                while let Some((&from, _)) = objects.range(..end).next_back().filter(|&(_, &to)| to > at) {
                    objects.remove(&from);
                    report.taken_twice += 1;
                }
                let ours = policy.step(at, end, align, atomic);
                let by_linux = linux.step(at, end, align, atomic);
                let fits = lowest.step(at, end, align, atomic);
                let other = lowest.ask(end - at, align, atomic);
                if let Some(place) = other {
                    lowest.undo(place);
                }
                objects.insert(at, end);
                allocated[at as usize..end as usize].fill(true);
                let answers = Answers { ours, by_linux, lowest: fits, other };
                let cause = note(life, number, &answers, report, differences_max, looks);
                let teaches = matches!(cause, Some(OffsetCause::Unseen | OffsetCause::Unexplained));
                if let Some(place) = ours.filter(|&ours| teaches && ours < at) {
                    let end = (place + end - at).min(at);
                    policy.take(place, end);
                    lowest.take(place, end);
                    linux.take(place, end);
                }
            }
        }
    }
    policy.space.validate().map_err(|broken| anyhow::anyhow!("a chunk is broken: {broken}"))
}

/// The answers to one allocation, as first bits.
struct Answers {
    /// The policy's.
    ours: Option<u32>,
    /// Linux's, in a model with the same events.
    by_linux: Option<u32>,
    /// The lowest fit.
    lowest: Option<u32>,
    /// The lowest fit other than the kernel's offset.
    other: Option<u32>,
}

/// Counts an allocation, unless its event is only replayed. Returns the cause if it differs.
fn note(
    life: &Life,
    number: usize,
    answers: &Answers,
    report: &mut Offsets,
    differences_max: usize,
    looks: &mut u64,
) -> Option<OffsetCause> {
    let Touched { line, counted, touch: Touch::Alloc { at, end, align, .. }, .. } = life.touches[number]
    else {
        return None;
    };
    let mut uncounted = Offsets::default();
    let report = if counted { report } else { &mut uncounted };
    let &Answers { ours, other, .. } = answers;
    report.allocs += 1;
    report.new_allocs += u64::from(life.is_new);
    match ours {
        Some(ours) if ours == at && other.is_none() => {
            report.alone += 1;
            report.new_alone += u64::from(life.is_new);
        }
        Some(ours) if ours == at => {
            report.equal += 1;
            report.new_equal += u64::from(life.is_new);
        }
        Some(ours) if ours < at => report.lower += 1,
        Some(_) => report.higher += 1,
        None => report.failed += 1,
    }
    if ours == Some(at) {
        return None;
    }
    let cause = cause_of(life, number, answers, looks);
    *report.causes.entry(cause).or_default() += 1;
    if report.divergences.len() < differences_max {
        let bytes = |bit: u32| u64::from(bit) * u64::from(BIT_BYTES);
        report.divergences.push(Elsewhere {
            line,
            base: life.base,
            size: bytes(end - at),
            align: align.into(),
            kernel: bytes(at),
            policy: ours.map(bytes),
            cause,
        });
    }
    Some(cause)
}

fn cause_of(life: &Life, number: usize, answers: &Answers, looks: &mut u64) -> OffsetCause {
    let Touched { cpu, touch: Touch::Alloc { at, end, atomic, .. }, .. } = life.touches[number] else {
        return OffsetCause::Unexplained;
    };
    let bits = end - at;
    // A model of Linux answers as the kernel did, so the difference is one of policies.
    if answers.by_linux == Some(at) {
        return OffsetCause::LowestFit;
    }
    // By the bits, the kernel took the lowest fit.
    if answers.lowest == Some(at) {
        return OffsetCause::Hints;
    }
    if atomic {
        return OffsetCause::Populated;
    }
    // True if a near event of another CPU touches an offset that the kernel did not take.
    let near = number.saturating_sub(NEAR)..life.touches.len().min(number + NEAR);
    let others = || life.touches[near.clone()].iter().filter(|touched| touched.cpu != cpu);
    let touches = |place: u32| {
        others().any(|touched| match touched.touch {
            Touch::Alloc { at, end, .. } => at < place + bits && end > place,
            Touch::Free { at } => (place..place + bits).contains(&at),
        })
    };
    // The next event at an offset: true for a free, false for an allocation.
    let mut is_freed = |place: u32| {
        let later = life.touches[number + 1..].iter().take(usize::try_from(*looks).unwrap_or(usize::MAX));
        let mut seen = 0;
        let mut there = later.inspect(|_| seen += 1).filter_map(|touched| match touched.touch {
            Touch::Alloc { at, end, .. } => (at < place + bits && end > place).then_some(false),
            Touch::Free { at } => (place..place + bits).contains(&at).then_some(true),
        });
        let freed = there.next();
        *looks -= seen;
        freed
    };
    let next = answers.lowest.filter(|&place| place < at).and_then(&mut is_freed);
    match answers.lowest {
        _ if next == Some(true) => OffsetCause::Unseen,
        Some(place) if touches(place) => OffsetCause::Order,
        _ if next == Some(false) => OffsetCause::Left,
        _ if !life.is_new && answers.ours.is_none_or(|ours| ours > at) => OffsetCause::Hints,
        _ => OffsetCause::Unexplained,
    }
}
