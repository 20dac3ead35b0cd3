//! Many threads on one set of blocks. The machine records stale translations and sometimes fails to allocate.
//!
//! Each thread maps and unmaps pages, through a lane or by CPU, and passes some of its mappings to others to unmap. It
//! makes wrong calls that must fail, and looks its own mappings up. Sometimes it collects, shrinks, ticks or purges. A
//! failure is printed with the seed; `VA_STRESS_SEED` runs that seed again.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{Context, PAGE_SIZE, Pages, Va, VaRange};
use va_block::config::{Hashed, Linux64, OneMap63, Standard};
use va_block::{BlockError, Blocks, Config, Lane, UnmapError};
use va_sim::machine::{Flushing, SimMachine};
use va_space::{Purge, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
const PAGES: u64 = 60_000;

/// Standard, with small blocks that are collected often and in slices.
struct Small;

impl Config for Small {
    type Base = Standard;
    type Space = <Standard as Config>::Space;
    type Spread = Hashed;
    const SLICE_BLOCKS: u32 = 2;
    const REPORT_PAGES: u64 = 8;
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
/// A mapping: its address and its pages.
type Mapping = (Va, u64);

/// The state that all threads share.
struct World<'m, C: Config> {
    machine: &'m SimMachine,
    blocks: Shared<'m, C>,
    /// Mapped by one, to be unmapped by another.
    handed: Mutex<Vec<Mapping>>,
    mapped: AtomicU64,
    unmapped: AtomicU64,
    /// The largest number of live mappings.
    blocks_live_max: AtomicU64,
    threads: u64,
    failed: AtomicU64,
    running: AtomicU64,
}

impl<C: Config> World<'_, C> {
    /// Returns the number of live mappings.
    fn live(&self) -> u64 {
        let unmapped = self.unmapped.load(Ordering::Relaxed);
        self.mapped.load(Ordering::Relaxed).saturating_sub(unmapped)
    }
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
        // One of eight is an interrupt.
        let context = if self.random.below(8) == 0 { Context::Atomic } else { Context::Sleeping };
        self.world.blocks_live_max.fetch_max(self.world.live(), Ordering::Relaxed);
        let got = match &mut self.lane {
            Some(lane) => lane.alloc_in(context, pages),
            None => self.world.blocks.alloc_in(context, self.cpu, pages),
        };
        match got {
            Ok(at) => {
                self.check_bound();
                self.world.machine.map(range((at, pages))).unwrap_or_else(|broken| panic!("{broken}"));
                self.world.mapped.fetch_add(1, Ordering::Relaxed);
                self.own.push((at, pages));
            }
            Err(BlockError::NoTable | BlockError::WouldBlock | BlockError::Space(_)) => {
                self.world.failed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks VB8 as far as other threads allow. Each block began below the bound, and at no time did more blocks hold
    /// a live page than mappings were live.
    fn check_bound(&self) {
        let World { blocks, threads, .. } = self.world;
        if C::REUSE {
            let live = self.world.blocks_live_max.load(Ordering::Relaxed) + 2 * threads;
            // Each thread has a lane at most.
            let most = 2 * (live + threads.min(&8) + threads);
            assert!(blocks.present() <= most, "VB8: {} blocks of {most}", blocks.present());
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
        self.world.unmapped.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&mut self) -> Option<Mapping> {
        let at = self.random.below(self.own.len().max(1) as u64) as usize;
        (at < self.own.len()).then(|| self.own.swap_remove(at))
    }

    /// Frees a live mapping with wrong addresses and counts: all are rejected, and it stays live.
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
            // For a while the machine allocates a few more tables and then none.
            997 => machine.fail_after(self.random.below(3), self.random.below(3)),
            _ => machine.fail_after(u64::MAX, u64::MAX),
        }
    }
}

fn seed() -> u64 {
    let fixed_seed = std::env::var("VA_STRESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = fixed_seed.unwrap_or_else(now);
    // Shown by the test harness only on failure.
    println!("VA_STRESS_SEED={seed}");
    seed
}

fn stress<C: Config>(threads: u64, calls: u64, flushing: Flushing) {
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
        unmapped: AtomicU64::new(0),
        blocks_live_max: AtomicU64::new(0),
        threads,
        failed: AtomicU64::new(0),
        running: AtomicU64::new(threads),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let world = &world;
            scope.spawn(move || {
                let stop = Stop(&world.running);
                let cpu = thread as u32;
                let random = Random(seed.wrapping_add(thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                // Three of four have a lane.
                let lane = (cpu % 4 != 3).then(|| world.blocks.lane(cpu).ok()).flatten();
                let mut life = Life { world, cpu, lane, random, own: Vec::new() };
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
    machine.fail_after(u64::MAX, u64::MAX);
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
    assert_eq!(blocks.present(), 0);
    blocks.space().purge(Purge::Full);
    assert_eq!(blocks.space().stats().free_pages, Pages::new(PAGES), "SP1");
    assert_eq!(blocks.validate(), Ok(()));
    assert!(mapped.load(Ordering::Relaxed) > threads * calls / 8, "hardly anything was tried");
    assert!(stats.collections > 0 && stats.flushes > 0, "{stats:?}");
}

/// Counts a thread down, however it ends.
struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_2_threads() {
    stress::<Small>(2, 60_000, Flushing::AtOnce);
    stress::<Standard>(2, 40_000, Flushing::AtOnce);
    stress::<Linux64>(2, 10_000, Flushing::AtOnce);
    stress::<OneMap63>(2, 5000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_16_threads() {
    stress::<Small>(16, 10_000, Flushing::AtOnce);
    stress::<Standard>(16, 2000, Flushing::AtOnce);
    stress::<Linux64>(16, 2000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_in_blocks_with_64_threads() {
    stress::<Small>(64, 2500, Flushing::AtOnce);
    stress::<Linux64>(64, 500, Flushing::AtOnce);
}

#[test]
fn sp2_holds_in_blocks_while_flushes_end_late() {
    stress::<Small>(4, 20_000, Flushing::OnRequest);
    stress::<Linux64>(4, 4000, Flushing::OnRequest);
}

/// Threads that each have at most one page allocated; each with a CPU id of its own, or all with one.
fn pairs(threads: u64, one_cpu: bool, window: u64, pairs: u64) {
    let machine = SimMachine::new(8);
    let range = VaRange::from_pages(FIRST, FIRST + window).unwrap();
    let space = VmapSpace::new(range, range, &machine).unwrap();
    let blocks = Shared::<Standard>::new(space, &machine).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads as u32 {
            let blocks = &blocks;
            scope.spawn(move || {
                let cpu = if one_cpu { 0 } else { thread };
                for _ in 0..pairs {
                    let at = blocks.alloc(cpu, 1).unwrap_or_else(|error| panic!("{error}"));
                    // VB8: each thread has at most one live page, and a block may be about to begin for each.
                    let (present, most) = (blocks.present(), 2 * threads + 2 * 8);
                    assert!(present <= most, "VB8: {present} blocks of {most}");
                    assert_eq!(blocks.free(cpu, at, 1), Ok(()));
                }
            });
        }
    });
    assert_eq!(blocks.validate(), Ok(()));
    blocks.unmap_aliases();
    assert!(blocks.present() <= 8, "{} blocks", blocks.present());
}

#[test]
fn vb8_blocks_stay_few_under_pairs_of_many_threads() {
    pairs(4, false, 1 << 24, 200_000);
    pairs(16, false, 1 << 24, 40_000);
}

#[test]
fn eight_threads_with_one_cpu_id_get_their_pages_in_a_small_window() {
    // 128 MiB.
    pairs(8, true, 32 * 1024, 100_000);
}
