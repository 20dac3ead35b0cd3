//! Many threads on one space: the cost of a pair, the locks that it shares with others, and the bytes zeroed for it.
//!
//! One load is the recording of 15,000 `tc` flower filters, added and deleted (`data/README.md`): its requests and
//! frees, in each thread.

use super::clock::Moment;
use super::kernel_lib::KernelLib;
use super::recorded;
use super::subject::{Standard, Subject, UNITS, USUAL};
use crate::harness::{Summary, in_turn};
use anyhow::{Context as _, Result};
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use va_base::LockClass;
use va_percpu::Config;
use va_percpu::config::{Linux612, Standard as Slabs};
use va_sim::op::Rng;
use va_sim::percpu::netmix;
use vmlab_machine::{Watch, WatchedSpin, take_lock_stats};

/// The numbers of threads of a full run.
pub const THREADS: [u32; 4] = [1, 2, 16, 64];
/// Objects of a thread that live in the mixed load.
const LIVE: usize = 500;

/// One load on one contender.
#[derive(Clone, Debug)]
pub struct Threaded {
    pub load: &'static str,
    pub threads: usize,
    pub contender: &'static str,
    pub ns: Summary,
    /// Takings of shared locks, and zeroed bytes of one unit, for each pair.
    pub locks: Option<f64>,
    pub zeroed: Option<f64>,
}

/// The operations of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Pair,
    Netmix,
    /// The regions of a new address space: its counters of resident pages, and the state of its concurrency ids.
    Exec,
    /// The requests and frees of a recording.
    Recorded,
}

impl Load {
    const ALL: [Self; 4] = [Self::Pair, Self::Netmix, Self::Exec, Self::Recorded];

    fn name(self) -> &'static str {
        match self {
            Self::Pair => "a pair of 16 B",
            Self::Netmix => "netmix, 500 live, one replaced",
            Self::Exec => "exec: two regions made and dropped",
            Self::Recorded => "tc-flower: as recorded",
        }
    }

    /// Runs about so many pairs.
    fn run<S: Subject>(self, subject: &S, pairs: usize, live: &mut Vec<u64>, rng: &mut Rng) {
        match self {
            Self::Pair => (0..pairs).for_each(|_| subject.free(subject.alloc(16, 8))),
            Self::Netmix => {
                for _ in 0..pairs {
                    let (size, align) = netmix(rng);
                    let object = subject.alloc(size, align);
                    if live.len() < LIVE {
                        live.push(object);
                    } else {
                        let which = rng.below(LIVE as u64) as usize;
                        subject.free(std::mem::replace(&mut live[which], object));
                    }
                }
            }
            Self::Exec => {
                for _ in 0..pairs / 2 {
                    let (rss, ids) = (subject.alloc(16, 4), subject.alloc(16, 8));
                    subject.free(rss);
                    subject.free(ids);
                }
            }
            Self::Recorded => recorded::run(subject, pairs, live),
        }
    }

    /// Returns the pairs of each of so many threads, of `pairs` in all. A recording is not divided: each thread runs
    /// all of it, where there are enough pairs for one.
    fn each(self, pairs: usize, threads: usize) -> usize {
        match self {
            Self::Recorded => recorded::allocs().min(pairs / 4),
            _ => (pairs / threads).max(200),
        }
    }

    /// Returns the pairs before those that are measured.
    fn warm_up(self, pairs: usize) -> usize {
        match self {
            Self::Recorded => pairs,
            _ => (pairs / 4).max(LIVE),
        }
    }
}

/// The cost of the pairs of one thread, without those of the warm-up.
struct Ran {
    ns: f64,
    locks: u64,
}

/// Runs a thread; all threads begin, and begin to measure, together.
fn work<S: Subject>(subject: &S, load: Load, pairs: usize, nth: usize, barrier: &Barrier) -> Ran {
    let (mut live, mut rng) = (Vec::new(), Rng::new(nth as u64 + 1));
    barrier.wait();
    load.run(subject, load.warm_up(pairs), &mut live, &mut rng);
    barrier.wait();
    take_lock_stats();
    let begun = Moment::now();
    load.run(subject, pairs, &mut live, &mut rng);
    let ns = begun.elapsed_ns() / pairs as f64;
    let taken = take_lock_stats();
    let of = |class: LockClass| taken[class as usize].acquisitions;
    let locks = of(LockClass::Chunks) + of(LockClass::Grow);
    live.into_iter().for_each(|object| subject.free(object));
    Ran { ns, locks }
}

/// Runs `threads` threads. Returns the mean cost of a pair, and the locks taken for each.
fn in_threads(
    threads: usize,
    pairs: usize,
    run: impl Fn(usize, &Barrier) -> Result<Ran> + Sync,
) -> Result<[f64; 2]> {
    let barrier = Barrier::new(threads);
    let (run, barrier) = (&run, &barrier);
    let all: Vec<Ran> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|nth| scope.spawn(move || run(nth, barrier))).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().ok().context("a thread failed").flatten();
        running.into_iter().map(join).collect::<Result<_>>()
    })?;
    let sum = |of: fn(&Ran) -> f64| all.iter().map(of).sum::<f64>() / threads as f64;
    Ok([sum(|ran| ran.ns), sum(|ran| ran.locks as f64) / pairs as f64])
}

/// A contender.
#[derive(Clone)]
enum Contender<'k> {
    Cached,
    Ours,
    Linux612,
    Kern(&'k KernelLib),
}

/// Returns the cost of a pair, and the shared locks and the zeroed bytes for it.
fn on_space<C: Config, L: Watch>(load: Load, threads: usize, pairs: usize, cached: bool) -> Result<[f64; 3]> {
    let space = Standard::<C, L>::new(USUAL)?;
    let all = load.warm_up(pairs) + pairs;
    let [ns, locks] = in_threads(threads, pairs, |nth, barrier| {
        if !cached {
            return Ok(work(&space, load, pairs, nth, barrier));
        }
        let own = space.cached(nth as u32)?;
        Ok(work(&own, load, pairs, nth, barrier))
    })?;
    Ok([ns, locks, space.stats().zeroed_bytes as f64 / (all * threads) as f64])
}

impl Contender<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Ours => "ours",
            Self::Linux612 => "linux612",
            Self::Kern(_) => "kern",
        }
    }

    fn run<L: Watch>(&self, load: Load, threads: usize, pairs: usize) -> Result<[f64; 3]> {
        match self {
            Self::Cached => on_space::<Slabs, L>(load, threads, pairs, true),
            Self::Ours => on_space::<Slabs, L>(load, threads, pairs, false),
            Self::Linux612 => on_space::<Linux612, L>(load, threads, pairs, false),
            Self::Kern(library) => {
                let library = library.begin(USUAL, UNITS)?;
                let [ns, _] = in_threads(threads, pairs, |nth, barrier| {
                    library.stand_for(nth as u32 % UNITS);
                    let ran = work(&library, load, pairs, nth, barrier);
                    library.leave();
                    Ok(ran)
                })?;
                Ok([ns, f64::NAN, f64::NAN])
            }
        }
    }
}

/// Measures all loads on all contenders, by these numbers of threads, with `pairs` pairs in all threads together.
///
/// # Errors
/// If a space cannot be created, or a thread fails.
pub fn measure(
    threads: &[u32],
    pairs: usize,
    rounds: usize,
    kernel_lib: Option<&KernelLib>,
) -> Result<Vec<Threaded>> {
    let mut contenders = vec![Contender::Cached, Contender::Ours, Contender::Linux612];
    contenders.extend(kernel_lib.map(Contender::Kern));
    let mut measured = Vec::new();
    for load in Load::ALL {
        for threads in threads.iter().map(|&threads| threads as usize) {
            let each = load.each(pairs, threads);
            if each == 0 {
                continue;
            }
            let ran = in_turn(rounds, &contenders, |_, contender| {
                contender.run::<vmlab_machine::SpinLock>(load, threads, each).map(|[ns, ..]| Some(ns))
            })?;
            for (contender, ns) in contenders.iter().zip(ran) {
                let ns = Summary::of(ns).context("there are no rounds")?;
                let counted = match contender {
                    Contender::Kern(_) => None,
                    _ => Some(contender.run::<WatchedSpin>(load, threads, each)?),
                };
                measured.push(Threaded {
                    load: load.name(),
                    threads,
                    contender: contender.name(),
                    ns,
                    locks: counted.map(|[_, locks, _]| locks),
                    zeroed: counted.map(|[.., zeroed]| zeroed),
                });
            }
        }
    }
    Ok(measured)
}
