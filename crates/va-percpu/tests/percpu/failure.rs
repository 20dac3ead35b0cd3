//! Random operations on per-CPU memory while memory fails for a time, and then does not: nothing is lost, and all is served again.
//!
//! `VMALLOC_SOAK_SEEDS` says how many seeds are run, each 20,000 operations on each of four policies: 128 are ten million.

use va_percpu::config::{Default as Ours, Linux612, Runs, Scan};
use va_percpu::{Config, Request};
use va_sim::op::Rng;
use va_sim::percpu::{Op, Rig};

/// Operations of a seed.
const OPS: u32 = 20_000;

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

fn live<C: Config>(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut rig: Rig<C> = Rig::new();
    for nth in 0..OPS {
        // Of every 1,000 operations some hundreds meet failures, of the backend or of the platform, after a few calls.
        match nth % 1000 {
            300 => rig.space.backend().refuse_after(rng.below(6)),
            500 => rig.space.machine().refuse_after(rng.below(4), rng.below(4)),
            700 => {
                rig.space.backend().refuse_after(u64::MAX);
                rig.space.machine().refuse_after(u64::MAX, u64::MAX);
            }
            _ => {}
        }
        rig.apply(op(&mut rng));
        if nth % 997 == 0 {
            rig.space.validate().unwrap();
        }
    }
    rig.space.backend().refuse_after(u64::MAX);
    rig.space.machine().refuse_after(u64::MAX, u64::MAX);
    // All is served again, from new chunks if need be.
    for _ in 0..40 {
        rig.alloc(&Request::new(32_768, 4096)).unwrap();
    }
    while rig.live().next().is_some() {
        rig.apply(Op::Free(0));
    }
    rig.apply(Op::Balance);
    rig.space.validate().unwrap();
    let stats = rig.space.stats();
    assert!(stats.chunks <= 3 && stats.slabs == 0, "{stats:?}");
}

#[test]
fn what_fails_for_a_while_is_served_afterwards() {
    let seeds = std::env::var("VMALLOC_SOAK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    for seed in 0..seeds {
        live::<Ours>(seed);
        live::<Runs>(seed);
        live::<Scan>(seed);
        live::<Linux612>(seed);
    }
}

/// One script, in which the calls to the backend or to the platform fail from that of a number on, for ten operations. Returns whether
/// there were so many calls.
fn fail_nth<C: Config>(nth: u64, platform: bool) -> bool {
    let mut rng = Rng::new(5);
    let mut rig: Rig<C> = Rig::new();
    if platform {
        rig.space.machine().refuse_after(nth, u64::MAX);
    } else {
        rig.space.backend().refuse_after(nth);
    }
    let mut left = 10;
    for _ in 0..1200 {
        rig.apply(op(&mut rng));
        let reached = match platform {
            true => rig.space.machine().slabs_left() == 0,
            false => rig.space.backend().asked() > nth,
        };
        left -= u32::from(reached && left > 0);
        if reached && left > 0 {
            rig.space.validate().unwrap();
        } else if left == 0 {
            rig.space.machine().refuse_after(u64::MAX, u64::MAX);
            rig.space.backend().refuse_after(u64::MAX);
        }
    }
    rig.space.validate().unwrap();
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
    check::<Ours>();
    check::<Runs>();
    check::<Linux612>();
}
