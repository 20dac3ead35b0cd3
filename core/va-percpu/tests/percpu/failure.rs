//! Random operations on per-CPU memory while memory fails for a time: nothing is lost, all requests succeed again, and
//! all memory is returned at the end. The driver is `va_sim::soak`.

use va_base::InvariantViolation;
use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_percpu::{AllocError, Config, Request, Sizes};
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::percpu::{Harness, Op, SIZES};
use va_sim::soak::{self, Soak, Tally};

fn op(rng: &mut Rng) -> Op {
    let (word, shifts) = (rng.below(1 << 32) as u32, if rng.below(4) == 0 { 13 } else { 6 });
    match rng.below(100) {
        0..48 => Op::Alloc {
            size: match rng.below(20) {
                0 => 1 + word % 32_768,
                1..4 => 1 + word % 3000,
                _ => 1 + word % 80,
            },
            align: 1 << rng.below(shifts),
            atomic: rng.below(4) == 0,
            reserved: rng.below(60) == 0,
        },
        48..86 => Op::Free(word),
        86..89 => Op::Wrong(word, rng.below(80) as u32),
        89..92 => Op::Place { which: word, behind: 4 * rng.below(40) as u32, size: 1 + word % 200 },
        92..98 => Op::Tick,
        _ => Op::Balance,
    }
}

/// The smallest unit: no record of a chunk is longer than a page.
const SMALL: Sizes = Sizes { unit: 32 << 10, atom: 32 << 10, alloc: 64 << 10, ..SIZES };
/// Objects above which allocs give way to frees.
const LIVE_MAX: usize = 600;

struct Run<C: Config> {
    harness: Harness<C, &'static SimMachine>,
    /// Requests that failed for lack of memory.
    failed: u64,
}

impl<C: Config> Soak for Run<C> {
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        let next = match op(rng) {
            Op::Alloc { .. } if self.harness.live().len() > LIVE_MAX => Op::Free(rng.below(1 << 32) as u32),
            Op::Free(_) if self.harness.live().len() == 0 => return false,
            next => next,
        };
        match self.harness.apply(next) {
            Some(
                error @ (AllocError::NoMeta { .. }
                | AllocError::NoChunk { .. }
                | AllocError::NotPopulated { .. }),
            ) => {
                assert!(fails, "memory is there: {next:?}: {error}");
                self.failed += 1;
            }
            Some(AllocError::NoneInReach { .. }) => {
                assert!(matches!(next, Op::Alloc { atomic: true, .. }), "{next:?} may wait");
            }
            Some(AllocError::ReservedFull { .. }) => {
                assert!(matches!(next, Op::Alloc { reserved: true, .. }), "{next:?}");
            }
            Some(error) => panic!("{next:?}: {error}"),
            None => {}
        }
        // These sometimes have no address to call with, so they are not counted.
        !matches!(next, Op::Wrong(..) | Op::Place { .. })
    }

    fn failures(&self) -> u64 {
        self.failed
    }

    fn set_fails(&mut self, rng: &mut Rng, fails: bool) {
        self.harness.space.backend().fail_after(if fails { rng.below(6) } else { u64::MAX });
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        self.harness.space.validate()
    }
}

fn live<C: Config>(seed: u64) -> Tally {
    let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(2)));
    let mut run: Run<C> = Run { harness: Harness::on(machine, SMALL), failed: 0 };
    let fresh = run.harness.space.stats();
    let tally = soak::run(&mut run, machine, seed);
    let mut harness = run.harness;
    // All requests succeed again, from new chunks if need be.
    for _ in 0..40 {
        harness.alloc(&Request::new(32_768, 4096)).unwrap();
    }
    while harness.live().next().is_some() {
        harness.apply(Op::Free(0));
    }
    harness.apply(Op::Balance);
    harness.space.validate().unwrap();
    let stats = harness.space.stats();
    assert!(stats.chunks <= 3 && stats.slabs == 0, "{stats:?}");
    // Each chunk is wholly free.
    let chunks = u64::from(stats.chunks - fresh.chunks) * u64::from(SMALL.unit);
    assert_eq!(stats.free_bytes, fresh.free_bytes + chunks, "{stats:?}");
    drop(harness);
    assert_eq!(machine.allocated(), 0, "memory is lost");
    tally
}

fn lives<C: Config>(name: &str) {
    soak::all(name, 1, live::<C>);
}

#[test]
fn ours_serves_afterwards_what_failed_for_a_while() {
    lives::<Standard>("per-CPU memory, Standard");
}

#[test]
fn runs_serve_afterwards_what_failed_for_a_while() {
    lives::<Runs>("per-CPU memory, Runs");
}

#[test]
fn a_scan_serves_afterwards_what_failed_for_a_while() {
    lives::<Scan>("per-CPU memory, Scan");
}

#[test]
fn linux_serves_afterwards_what_failed_for_a_while() {
    lives::<Linux612>("per-CPU memory, Linux612");
}

/// Runs one script, in which the calls to the backend or to the platform fail from call `nth` on, for ten operations.
/// Returns whether there were so many calls.
fn fail_nth<C: Config>(nth: u64, platform: bool) -> bool {
    let mut rng = Rng::new(5);
    let mut harness: Harness<C> = Harness::new();
    if platform {
        harness.space.machine().fail_after(nth, u64::MAX);
    } else {
        harness.space.backend().fail_after(nth);
    }
    let mut left = 10;
    for _ in 0..1200 {
        harness.apply(op(&mut rng));
        let reached = match platform {
            true => harness.space.machine().slabs_left() == 0,
            false => harness.space.backend().asked() > nth,
        };
        left -= u32::from(reached && left > 0);
        if reached && left > 0 {
            harness.space.validate().unwrap();
        } else if left == 0 {
            harness.space.machine().fail_after(u64::MAX, u64::MAX);
            harness.space.backend().fail_after(u64::MAX);
        }
    }
    harness.space.validate().unwrap();
    left == 0
}

#[test]
fn calls_may_fail_from_any_on() {
    fn check<C: Config>() {
        for platform in [false, true] {
            let calls = (0..).find(|&nth| !fail_nth::<C>(nth, platform)).unwrap();
            assert!(calls > if platform { 3 } else { 12 }, "{calls}");
        }
    }
    check::<Standard>();
    check::<Runs>();
    check::<Linux612>();
}
