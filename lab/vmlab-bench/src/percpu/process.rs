//! The cost of per-CPU data in a process: increments, beside a thread-local and an atomic one; creation and drop of
//! counters; and the unused memory of chunks.
//!
//! # What is compared
//! All rows have one loop. It reads the amount from an address that the compiler cannot see, and does nothing else; the
//! row `nothing` is that loop. In the first rows the same word is incremented in each round, in the next ones another
//! of 64 in turn. A thread-local is one instruction on memory, a section eleven, of which one is the same. If the word
//! is the same in each round, this CPU forwards the stored value to the next load without waiting. The compiler makes a
//! load, an addition and a store of an increment of a volatile, and the CPU saves time there.

use super::clock::Moment;
use crate::harness::{Header, Summary, in_turn};
use anyhow::{Context, Result};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use va_percpu::Stats;
use va_sim::op::Rng;
use vmalloc::percpu::{Index, Options, PerCpuCounter, PerCpuRef, RefMode, Space, Word};

/// Words that are incremented in turn.
const WORDS: usize = 64;
/// Possible units: as on a machine of 64 CPUs.
const UNITS: u32 = 64;

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
    static OWNS: [Cell<u64>; WORDS] = const { [const { Cell::new(0) }; WORDS] };
}

/// The cost of one contender, in nanoseconds for each call, over all rounds of all threads.
#[derive(Clone, Debug)]
pub struct Cost {
    pub(super) what: &'static str,
    pub(super) threads: usize,
    pub ns: Summary,
}

/// The memory of a space at one time.
#[derive(Clone, Debug)]
pub struct Held {
    pub(super) when: &'static str,
    pub stats: Stats,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub struct InProcess {
    pub costs: Vec<Cost>,
    pub held: Vec<Held>,
    /// The method by which sections find their unit; whether there are sections; units used, of the possible ones;
    /// restarted sections.
    pub(super) about: String,
    /// Number of rounds, and calls of each.
    rounds: (usize, u32),
}

impl InProcess {
    /// Returns the fastest round with one thread.
    pub(super) fn least(&self, what: &str) -> Option<f64> {
        self.costs.iter().find(|cost| cost.what == what && cost.threads == 1).map(|cost| cost.ns.min)
    }

    /// Returns the common header, with the rounds of these figures.
    pub(super) fn header(&self, common: &Header) -> String {
        let (rounds, calls) = self.rounds;
        common.with(&format!("rounds: {rounds} of {calls} calls, all contenders in turn, not pinned"))
    }
}

type Contender<'a> = (&'static str, &'a (dyn Fn() -> f64 + Sync));

/// Returns the nanoseconds of each call.
#[inline(always)]
fn time(calls: u32, mut call: impl FnMut(usize)) -> f64 {
    let begun = Moment::now();
    for at in 0..calls {
        call(at as usize);
    }
    begun.elapsed_ns() / f64::from(calls)
}

/// Runs rounds of all contenders in turn, on `threads` threads at once.
fn measure_by(threads: usize, rounds: usize, contenders: &[Contender<'_>]) -> Result<Vec<Cost>> {
    let barrier = Barrier::new(threads);
    let run = || {
        in_turn(rounds, contenders, |_, (_, contender)| {
            barrier.wait();
            Ok(Some(contender()))
        })
    };
    let all: Vec<Vec<Vec<f64>>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().ok().context("a thread failed").flatten();
        running.into_iter().map(join).collect::<Result<_>>()
    })?;
    let cost = |(at, (what, _)): (usize, &Contender<'_>)| {
        let ns = Summary::of(all.iter().flat_map(|thread| thread[at].iter().copied()))?;
        Some(Cost { what, threads, ns })
    };
    Ok(contenders.iter().enumerate().filter_map(cost).collect())
}

pub(super) const NOTHING: &str = "nothing: the loop";
pub(super) const OWN_ONE: &str = "thread-local, one word";
pub(super) const SECTION_ONE: &str = "section by concurrency id, one word";
pub(super) const OWN_TURN: &str = "thread-local, 64 words in turn";
pub(super) const SECTION_TURN: &str = "section by concurrency id, 64 words in turn";
pub(super) const ATOMIC_ONE: &str = "atomic, one word";
pub(super) const ZEROED: &str = "zeroed counter, 64 units of which those used: made and dropped";

/// Measures all contenders.
pub fn measure(rounds: usize, calls: u32) -> Result<InProcess> {
    let wide = Space::new(Options::default().units(Some(UNITS)))?;
    let by_cpu = Space::new(Options::default().index(Index::Cpu))?;
    let atomics = Space::new(Options::default().atomics_only(true))?;
    let (word, cpu, shard) = (wide.zeroed::<Word>()?, by_cpu.zeroed::<Word>()?, atomics.zeroed::<Word>()?);
    let (word, cpu, shard) = (word.word(), cpu.word(), shard.word());
    let many: Vec<_> = (0..WORDS).map(|_| wide.zeroed::<Word>()).collect::<Result<_, _>>()?;
    let many: Vec<_> = many.iter().map(|many| many.word()).collect();
    let many: &[_; WORDS] = many.as_slice().try_into()?;
    let (one, ones) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; WORDS]);
    // One word in rounds of one thread, and one with deltas.
    let (idle, counter) = (PerCpuCounter::new(&wide, 0), PerCpuCounter::new(&wide, 0));
    counter.promote()?;
    let count = PerCpuRef::new(&wide, RefMode::PerCpu, || {})?;
    // Use two units in any case, whichever threads run.
    let warm = wide.zeroed::<AtomicU64>()?;
    warm.get(1).context("there is no unit 1")?;

    let nothing = || {
        time(calls, |_| {
            black_box(1u64);
        })
    };
    let own = || time(calls, |_| OWN.with(|own| own.set(own.get().wrapping_add(black_box(1)))));
    let own_volatile =
        || time(calls, |_| OWN.with(|own| own.set(black_box(own.get()).wrapping_add(black_box(1)))));
    // A copy for each closure, which stays in registers as in a function that increments.
    let section = move || time(calls, |_| word.add(black_box(1)));
    let section_cpu = move || time(calls, |_| cpu.add(black_box(1)));
    let sharded = move || time(calls, |_| shard.add(black_box(1)));
    let atomic = || {
        time(calls, |_| {
            one.fetch_add(black_box(1), Ordering::Relaxed);
        })
    };
    let own_turn = || {
        time(calls, |at| {
            OWNS.with(|owns| {
                let own = &owns[black_box(at) % WORDS];
                own.set(own.get().wrapping_add(black_box(1)));
            });
        })
    };
    let section_turn = || time(calls, |at| many[black_box(at) % WORDS].add(black_box(1)));
    let atomic_turn = || {
        time(calls, |at| {
            ones[black_box(at) % WORDS].fetch_add(black_box(1), Ordering::Relaxed);
        })
    };
    let in_word = || time(calls, |_| idle.add(black_box(1)));
    let batched = || time(calls, |_| counter.add(black_box(1)));
    let references = || {
        time(calls, |_| {
            count.get();
            count.put();
        })
    };
    let pair = || {
        time((calls / 8).max(1), |_| {
            // A failure shows in the counts; only the loop is measured.
            drop(black_box(wide.zeroed::<AtomicU64>()));
        })
    };
    let contenders: [Contender<'_>; 14] = [
        (NOTHING, &nothing),
        (OWN_ONE, &own),
        ("thread-local, one word, loaded and stored apart", &own_volatile),
        (SECTION_ONE, &section),
        ("section by CPU, one word", &section_cpu),
        (ATOMIC_ONE, &atomic),
        ("where there are no sections, one word", &sharded),
        (OWN_TURN, &own_turn),
        (SECTION_TURN, &section_turn),
        ("atomic, 64 words in turn", &atomic_turn),
        ("`PerCpuCounter::add`, in one word until two threads contend", &in_word),
        ("`PerCpuCounter::add`, promoted", &batched),
        ("`PerCpuRef`, get and put", &references),
        (ZEROED, &pair),
    ];
    let mut costs = measure_by(1, rounds, &contenders)?;
    costs.extend(measure_by(2, rounds, &contenders)?);
    let about = format!(
        "Sections: {}, by {:?}; units used: {} of {UNITS}; sections begun again: {}.",
        wide.is_restartable(),
        wide.index(),
        wide.units_used(),
        vmalloc::percpu::restarts()
    );
    Ok(InProcess { costs, held: hold()?, about, rounds: (rounds, calls) })
}

/// Number of counters created.
pub const COUNTERS: usize = 100_000;

/// Measures the unused memory in chunks with many counters, with nine of ten freed, and with all freed.
fn hold() -> Result<Vec<Held>> {
    let space = Space::new(Options::default().units(Some(UNITS)))?;
    let mut rng = Rng::new(1);
    let mut held = Vec::new();
    let mut counters = Vec::with_capacity(COUNTERS);
    for _ in 0..COUNTERS {
        // A counter, or a record of several.
        let words = if rng.below(10) < 7 { 1 } else { 2 + rng.below(14) as usize };
        counters.push(space.alloc(std::alloc::Layout::array::<u64>(words)?)?);
    }
    let mut look = |when, space: &Space| held.push(Held { when, stats: space.stats() });
    look("100,000 made, of 8 to 120 B", &space);
    let mut left = Vec::new();
    for counter in counters {
        if rng.below(10) == 0 {
            left.push(counter);
        }
    }
    look("nine of ten dropped, at random", &space);
    space.trim();
    look("after `trim`", &space);
    drop(left);
    space.trim();
    look("all dropped, after `trim`", &space);
    Ok(held)
}
