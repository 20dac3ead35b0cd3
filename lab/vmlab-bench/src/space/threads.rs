//! Many threads on one space: the time of a pair of all threads together, and the locks they wait for.
//!
//! # Method
//! Each thread has a node, and a helper drains. Each thread is pinned to a core, in turn, and repeats its own stream.
//! The time is wall time, from when the last thread is ready to when the first one's time is over. Every contender runs
//! once before any runs again. Statistics of locks come from a separate run, since counting has a cost.

use super::contenders::SpaceContender;
use super::patterns;
use super::subject::{OwnLock, Setup, Stream, Subject, Visitor};
use crate::harness::{Summary, in_turn};
use crate::indexes::Drained;
use crate::stream::contender::{Runner, Work};
use anyhow::Result;
use core_affinity::CoreId;
use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use va_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vmlab_machine::{LockStats, PlainLock, WatchedLock, take_lock_stats};

/// Pairs between two reads of the clock.
const PAIRS: usize = 500;

/// A pattern with a number of threads.
#[derive(Clone, Copy)]
pub struct Crowd<'a> {
    /// Index into [`patterns::shared`].
    pub pattern: usize,
    pub threads: u32,
    pub time: Duration,
    /// Cores to pin threads to.
    pub cores: &'a [CoreId],
}

/// One run of one contender.
pub struct Run {
    pub pairs: u64,
    pub(super) wall: Duration,
    pub(super) drained: Drained,
    /// Statistics of locks; all 0 with plain locks.
    pub locks: LockStats,
    pub(super) own_locks: Option<Vec<OwnLock>>,
}

/// The measurements of one contender.
pub struct Shared {
    pub(super) pattern: &'static str,
    pub threads: u32,
    pub contender: &'static str,
    /// Nanoseconds for each pair of all threads together.
    pub ns: Summary,
    pub pairs: u64,
    pub(super) drained: Drained,
    /// The run that counted locks.
    pub counted: Run,
}

/// Returns the name of a pattern.
pub fn name(pattern: usize) -> &'static str {
    patterns::shared(0)[pattern].name
}

/// Measures a crowd on all contenders in alternating rounds.
pub fn measure(crowd: Crowd<'_>, contenders: &[SpaceContender], rounds: usize) -> Result<Vec<Shared>> {
    let setup = Setup { nodes: crowd.threads, cpus: crowd.threads, helper: true };
    let runs = in_turn(rounds, contenders, |_, one| one.visit::<PlainLock, _>(&setup, crowd).map(Some))?;
    let mut measured = Vec::new();
    for (contender, runs) in contenders.iter().zip(runs) {
        let Some(ns) = Summary::of(runs.iter().map(Run::pair_ns)) else { continue };
        measured.push(Shared {
            pattern: name(crowd.pattern),
            threads: crowd.threads,
            contender: contender.name(),
            ns,
            pairs: runs.iter().map(|run| run.pairs).sum(),
            drained: runs.iter().fold(Drained::default(), |sum, run| Drained {
                purges: sum.purges + run.drained.purges,
                flushes: sum.flushes + run.drained.flushes,
            }),
            counted: contender.visit::<WatchedLock, _>(&setup, crowd)?,
        });
    }
    Ok(measured)
}

impl Run {
    fn pair_ns(&self) -> f64 {
        self.wall.as_nanos() as f64 / self.pairs.max(1) as f64
    }
}

impl Visitor for Crowd<'_> {
    type Out = Run;

    fn visit<S: Subject>(self, subject: S) -> Run {
        let subject = &subject;
        let (stop, left) = (AtomicBool::new(false), AtomicU32::new(self.threads));
        let ready = Barrier::new(self.threads as usize);
        thread::scope(|scope| {
            // SeqCst: a flag that ends the helper once all have ended; cost does not matter.
            let helper = scope.spawn(|| subject.help(&|| left.load(Ordering::SeqCst) == 0));
            let workers: Vec<ScopedJoinHandle<'_, (u64, Duration, LockStats)>> = (0..self.threads)
                .map(|number| {
                    let (stop, left, ready) = (&stop, &left, &ready);
                    scope.spawn(move || {
                        let done = self.work(subject, number, ready, stop);
                        left.fetch_sub(1, Ordering::SeqCst);
                        done
                    })
                })
                .collect();
            let mut run = Run {
                pairs: 0,
                wall: Duration::ZERO,
                drained: Drained::default(),
                locks: LockStats::default(),
                own_locks: None,
            };
            let mut seen = |locks: &LockStats| {
                for (sum, lock) in run.locks.iter_mut().zip(locks) {
                    sum.add(lock);
                }
            };
            for worker in workers {
                let (pairs, wall, locks) =
                    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                run.pairs += pairs;
                run.wall = run.wall.max(wall);
                seen(&locks);
            }
            helper.thread().unpark();
            seen(&helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            run.drained = subject.drained();
            run.own_locks = subject.own_locks();
            run
        })
    }
}

impl Crowd<'_> {
    /// Runs the work of one thread; returns its pairs, its time, and its lock statistics.
    fn work<S: Subject>(
        &self,
        subject: &S,
        number: u32,
        ready: &Barrier,
        stop: &AtomicBool,
    ) -> (u64, Duration, LockStats) {
        if let Some(core) = self.cores.get(number as usize % self.cores.len().max(1)) {
            core_affinity::set_for_current(*core);
        }
        let workload = patterns::shared(u64::from(number))[self.pattern].make(1);
        let mut runner = Work::new(Stream::new(subject, number), &workload);
        runner.setup(&workload, Instant::now() + Duration::from_secs(60));
        let mut chunks = workload.rounds[0].chunks(2 * PAIRS).cycle();
        let mut some = |runner: &mut Work<Stream<'_, S>>| {
            if let Some(chunk) = chunks.next() {
                runner.round(&workload, chunk);
            }
        };
        // Threads warm up together, so a few rounds of each suffice.
        (0..4).for_each(|_| some(&mut runner));
        take_lock_stats();
        ready.wait();
        let begun = Instant::now();
        let mut pairs = 0;
        // Relaxed: a hint from the first thread whose time is over.
        while !stop.load(Ordering::Relaxed) {
            some(&mut runner);
            pairs += PAIRS as u64;
            if begun.elapsed() >= self.time {
                stop.store(true, Ordering::Relaxed);
            }
        }
        (pairs, begun.elapsed(), take_lock_stats())
    }
}

impl Run {
    /// Returns the acquisitions of shared locks for each pair; `None` if they were not counted.
    pub(super) fn locks_a_pair(&self) -> Option<f64> {
        let takings = match &self.own_locks {
            Some(own) => own.iter().map(|lock| lock.acquisitions).sum::<Option<u64>>()?,
            None => self.locks.iter().map(|lock| lock.acquisitions).sum(),
        };
        Some(takings as f64 / self.pairs.max(1) as f64)
    }
}
