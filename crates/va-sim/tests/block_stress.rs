//! Many threads on one set of blocks, on a machine that remembers stale translations and now and then lends nothing.
//!
//! Each thread maps and unmaps pages, through a lane or by CPU, hands some of its mappings to others to unmap, calls wrongly
//! where that must be refused, looks its own up, and now and then collects, shrinks, ticks or purges. What goes wrong is
//! printed with the seed; `VA_STRESS_SEED` runs that seed again.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Pages, Va, VaRange};
use va_block::config::{Default as Ours, Hashed, Linux64, OneMap63};
use va_block::{BlockError, Blocks, Config, Lane, UnmapError};
use va_sim::machine::{Flushing, SimMachine};
use va_space::{Purge, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
const PAGES: u64 = 60_000;

/// Ours, with small blocks that are collected often and in slices.
struct Small;

impl Config for Small {
    type Space = <Ours as Config>::Space;
    type Spread = Hashed;
    const REUSE: bool = true;
    const ROUND_UP: bool = false;
    const FIRST_FIT: bool = false;
    const SLICE_BLOCKS: u32 = 2;
    const TELL_PAGES: u64 = 8;
    fn block_pages(_cpus: u32) -> u64 {
        128
    }
    fn dead_max(_cpus: u32) -> Pages {
        Pages::new(300)
    }
}

fn window() -> VaRange {
    VaRange::from_pages(FIRST, FIRST + PAGES).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

type Shared<'m, C> = Blocks<&'m SimMachine, C>;
/// A mapping: where, and how many pages.
type Mapping = (Va, u64);

/// What all threads have.
struct World<'m, C: Config> {
    machine: &'m SimMachine,
    blocks: Shared<'m, C>,
    /// Mapped by one, to be unmapped by another.
    handed: Mutex<Vec<Mapping>>,
    mapped: AtomicU64,
    refused: AtomicU64,
    running: AtomicU64,
}

/// One thread.
struct Life<'w, 'm, C: Config> {
    world: &'w World<'m, C>,
    cpu: u32,
    lane: Option<Lane<'w, &'m SimMachine, C>>,
    random: Random,
    own: Vec<Mapping>,
}

fn range((at, pages): Mapping) -> VaRange {
    VaRange::from_size(at, pages * PAGE_SIZE).unwrap()
}

impl<'w, 'm, C: Config> Life<'w, 'm, C> {
    fn map(&mut self) {
        let pages = match self.random.below(40) {
            0 => 65 + self.random.below(200),
            1..=9 => 1 + self.random.below(64),
            _ => 1 + self.random.below(5),
        };
        let got = match &mut self.lane {
            Some(lane) => lane.alloc(pages),
            None => self.world.blocks.alloc(self.cpu, pages),
        };
        match got {
            Ok(at) => {
                self.world.machine.map(range((at, pages))).unwrap_or_else(|broken| panic!("{broken}"));
                self.world.mapped.fetch_add(1, Ordering::Relaxed);
                self.own.push((at, pages));
            }
            Err(BlockError::NoTable | BlockError::Space(_)) => {
                self.world.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, (at, pages): Mapping) -> Result<(), UnmapError> {
        match &mut self.lane {
            Some(lane) => lane.free(at, pages),
            None => self.world.blocks.free(self.cpu, at, pages),
        }
    }

    fn unmap(&mut self, mapping: Mapping) {
        self.world.machine.unmap(range(mapping));
        assert_eq!(self.free(mapping), Ok(()), "{mapping:?}");
    }

    fn take(&mut self) -> Option<Mapping> {
        let at = self.random.below(self.own.len().max(1) as u64) as usize;
        (at < self.own.len()).then(|| self.own.swap_remove(at))
    }

    /// One that lives, given back in every wrong way: all refused, and it lives on.
    fn misuse(&mut self) {
        let Some(&(at, pages)) = self.own.last() else { return };
        for wrong in [0, pages - 1, pages + 1, u64::MAX] {
            assert!(self.free((at, wrong)).is_err(), "{at} of {pages} as {wrong}");
        }
        if pages > 1 {
            let inside = Va::new(at.get() + PAGE_SIZE);
            assert!(self.free((inside, pages - 1)).is_err());
        }
        assert!(self.free((Va::new(at.get() + 1), pages)).is_err());
        if pages <= 64 {
            let last = Va::new(at.get() + (pages - 1) * PAGE_SIZE);
            assert_eq!(self.world.blocks.find_enclosing(last), Some(range((at, pages))));
        }
    }

    fn step(&mut self) {
        let World { machine, blocks, handed, .. } = self.world;
        match self.random.below(1000) {
            0..430 if self.own.len() < 60 => self.map(),
            0..800 => {
                if let Some(mapping) = self.take() {
                    self.unmap(mapping);
                }
            }
            800..860 => handed.lock().extend(self.take()),
            860..940 => {
                let theirs = handed.lock().pop();
                if let Some(mapping) = theirs {
                    self.unmap(mapping);
                }
            }
            940..980 => self.misuse(),
            980..985 => drop(blocks.unmap_aliases()),
            985..988 => drop(blocks.shrink()),
            988..991 => drop(blocks.tick()),
            991..994 => drop(blocks.space().purge(Purge::Drain)),
            994..997 => self.lane.iter_mut().for_each(Lane::park),
            // The machine lends a few more and then nothing, for a while.
            997 => machine.refuse_after(self.random.below(3), self.random.below(3)),
            _ => machine.refuse_after(u64::MAX, u64::MAX),
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("VA_STRESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = given.unwrap_or_else(now);
    // Shown by the test harness only on failure.
    println!("VA_STRESS_SEED={seed}");
    seed
}

fn stress<C: Config>(threads: u64, calls: u64, flushing: Flushing)
where
    for<'m> Shared<'m, C>: Sync,
{
    let seed = seed();
    let machine = SimMachine::new(threads.min(8) as u32);
    // A low threshold, so that there are many collections and purges.
    machine.set_online(1);
    machine.set_flushing(flushing);
    let space = VmapSpace::new(window(), window(), &machine).unwrap();
    let world = World {
        machine: &machine,
        blocks: Shared::<C>::new(space, &machine).unwrap(),
        handed: Mutex::default(),
        mapped: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        running: AtomicU64::new(threads),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let world = &world;
            scope.spawn(move || {
                let cpu = thread as u32;
                let random = Random(seed.wrapping_add(thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                // Three of four have a lane.
                let lane = (cpu % 4 != 3).then(|| world.blocks.lane(cpu));
                let mut life = Life { world, cpu, lane, random, own: Vec::new() };
                let stop = Stop(&world.running);
                (0..calls).for_each(|_| life.step());
                std::mem::take(&mut life.own).into_iter().for_each(|mapping| life.unmap(mapping));
                drop(stop);
            });
        }
        // Flushes that end later end here.
        while world.running.load(Ordering::Relaxed) > 0 {
            machine.complete_flushes();
            std::thread::yield_now();
        }
    });
    machine.refuse_after(u64::MAX, u64::MAX);
    machine.set_flushing(Flushing::AtOnce);
    machine.complete_flushes();
    let World { blocks, handed, mapped, .. } = &world;
    assert_eq!(blocks.validate(), Ok(()));
    for (at, pages) in handed.lock().drain(..) {
        machine.unmap(range((at, pages)));
        assert_eq!(blocks.free(0, at, pages), Ok(()));
    }
    assert!(!blocks.unmap_aliases().waiting);
    assert_eq!(machine.unclean(window()), 0, "something stale is left");
    let stats = blocks.stats();
    assert_eq!((stats.live_pages, stats.laned), (Pages::new(0), 0), "{stats:?}");
    blocks.shrink();
    assert_eq!(blocks.stats().blocks, 0);
    blocks.space().purge(Purge::Full);
    assert_eq!(blocks.space().stats().free_pages, Pages::new(PAGES), "SP1");
    assert_eq!(blocks.validate(), Ok(()));
    assert!(mapped.load(Ordering::Relaxed) > threads * calls / 8, "hardly anything was tried");
    assert!(stats.collections > 0 && stats.flushes > 0, "{stats:?}");
}

/// Counts a thread down however it ends.
struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_2_threads() {
    stress::<Small>(2, 60_000, Flushing::AtOnce);
    stress::<Ours>(2, 40_000, Flushing::AtOnce);
    stress::<Linux64>(2, 10_000, Flushing::AtOnce);
    stress::<OneMap63>(2, 5000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_16_threads() {
    stress::<Small>(16, 10_000, Flushing::AtOnce);
    stress::<Ours>(16, 2000, Flushing::AtOnce);
    stress::<Linux64>(16, 2000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_64_threads() {
    stress::<Small>(64, 2500, Flushing::AtOnce);
    stress::<Linux64>(64, 500, Flushing::AtOnce);
}

#[test]
fn sp2_holds_in_blocks_while_flushes_end_late() {
    stress::<Small>(4, 20_000, Flushing::WhenTold);
    stress::<Linux64>(4, 4000, Flushing::WhenTold);
}
