//! Many threads on one space: SP1 to SP4 hold throughout, on a machine that records stale translations.
//!
//! Each thread allocates, maps, looks up, unmaps and frees areas of its own, and sometimes purges, ticks or shrinks.
//! Meanwhile the machine repeatedly fails requests for slabs and tables for a while.
//!
//! A failure is printed with the seed; `VA_STRESS_SEED` makes every thread repeat its calls. The scheduler decides
//! which of them are concurrent. A failure that can be reproduced exactly comes from the scripts of `space_script`.
//! They run the same kind of calls, magazines, failures and late flushes on one thread.

use crate::{FIRST, Linux69, OneLock52, Standard};
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{Align, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::machine::{Flushing, SimMachine};
use va_space::config::WithTrees;
use va_space::{Area, Config, Purge, VmapSpace};

const PAGES: u64 = 40_000;

fn extent() -> VaRange {
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

type Shared<'a, C> = VmapSpace<&'a SimMachine, C>;

/// Runs one thread; returns how many requests failed.
fn live<C: Config>(space: &Shared<'_, C>, machine: &SimMachine, cpu: u32, seed: u64, calls: u64) -> u64 {
    let mut random = Random(seed | 1);
    let mut own: Vec<Area> = Vec::new();
    let mut failed = 0;
    // Three of four have a magazine.
    let mut magazine = (cpu % 4 != 3).then(|| space.magazine(cpu).unwrap());
    for call in 0..some(calls) {
        let what = random.below(100);
        // The machine runs out of memory, for all threads and not for long.
        match random.below(200) {
            0 => machine.fail_after(random.below(2), random.below(3)),
            1..20 => machine.fail_after(u64::MAX, u64::MAX),
            _ => {}
        }
        if what < 48 && own.len() < 40 {
            let size = if random.below(8) == 0 { 1 + random.below(300) } else { 1 + random.below(6) };
            let align = if random.below(6) == 0 { random.below(5) as u32 } else { 0 };
            let mut request = Request::pages(size).unwrap().aligned(Align::from_log2(12 + align).unwrap());
            if random.below(20) == 0 {
                let low = FIRST + random.below(PAGES / 2);
                request = request.within(VaRange::from_pages(low, low + 2000).unwrap());
            }
            let got = match &mut magazine {
                Some(magazine) => magazine.alloc(&request),
                None => space.alloc(cpu, &request),
            };
            match got {
                Ok(area) => {
                    machine.map(area.range()).unwrap_or_else(|broken| panic!("call {call}: {broken}"));
                    assert!(area.start().is_aligned(request.align()));
                    own.push(area);
                }
                // Full, or the machine allocates nothing: SP4, all other areas are still found (below), and the space
                // is valid at the end.
                Err(_) => failed += 1,
            }
        } else if what < 90 && !own.is_empty() {
            let area = own.swap_remove(random.below(own.len() as u64) as usize);
            machine.unmap(area.range());
            // By another CPU, and by address, as often as not.
            if let Some(magazine) = &mut magazine {
                magazine.free(area).unwrap();
            } else if random.below(2) == 0 {
                space.free(area).unwrap();
            } else {
                assert_eq!(space.free_at(area.start()), Ok(area.range()));
            }
        } else if what < 97 {
            for area in own.iter().take(4) {
                let inside = Va::new(area.start().get() + random.below(area.range().len_bytes()));
                let seen = space.find_enclosing(inside).map(|seen| seen.range);
                assert_eq!(seen, Some(area.range()), "call {call}: a live area was not found");
            }
            let wild = Va::from_page(FIRST + random.below(PAGES));
            if let Some(seen) = space.find_above(wild) {
                assert!(seen.range.end() > wild);
            }
        } else {
            match random.below(6) {
                0 => drop(space.purge(Purge::Full)),
                1 => drop(space.purge(Purge::Drain)),
                2 => drop(space.shrink()),
                3 => {
                    let mut last = Va::ZERO;
                    for seen in space.areas() {
                        assert!(seen.range.start() >= last, "call {call}: out of order");
                        last = seen.range.start();
                    }
                }
                _ => drop(space.tick()),
            }
        }
    }
    for area in own {
        machine.unmap(area.range());
        space.free(area).unwrap();
    }
    failed
}

/// Counts a thread as ended, also after a panic, so that the others and the test end.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn stress<C: Config>(threads: u64, calls: u64, flushing: Flushing) {
    let seed = std::env::var("VA_STRESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 =
        seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64));
    // Shown by the test harness only on failure.
    println!("VA_STRESS_SEED={seed}");
    let machine = SimMachine::new(threads.min(16) as u32);
    // A low threshold, so that there are many purges.
    machine.set_online(1);
    machine.set_flushing(flushing);
    let space = Shared::<C>::new(extent(), extent(), &machine).unwrap();
    // The memory of all magazines: later ones need none.
    let magazines: Vec<_> = (0..threads).map(|cpu| space.magazine(cpu as u32).unwrap()).collect();
    drop(magazines);
    let failed = AtomicU64::new(0);
    let running = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        for cpu in 0..threads {
            let (space, machine, failed, running) = (&space, &machine, &failed, &running);
            scope.spawn(move || {
                let _ends = Ends(running);
                let seed = seed.wrapping_add(cpu).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                failed.fetch_add(live(space, machine, cpu as u32, seed, calls), Ordering::Relaxed);
            });
        }
        // Flushes that end later end here.
        while running.load(Ordering::Relaxed) > 0 {
            machine.complete_flushes();
            std::thread::yield_now();
            assert!(!std::thread::panicking());
        }
    });
    machine.fail_after(u64::MAX, u64::MAX);
    machine.complete_flushes();
    assert_eq!(space.validate(), Ok(()));
    while space.purge(Purge::Full).waiting {
        machine.complete_flushes();
    }
    assert_eq!(space.validate(), Ok(()));
    let stats = space.stats();
    assert_eq!((stats.areas, stats.holes, stats.free_pages.get()), (0, 1, PAGES), "{stats:?}");
    assert_eq!(machine.unclean(extent()), 0);
    let failed = failed.into_inner();
    assert!(stats.flushes > 0 && stats.purged_areas > calls / 8, "{failed} failed, {stats:?}");
}

#[test]
fn sp1_to_sp4_hold_with_2_threads() {
    stress::<Standard>(2, 20_000, Flushing::AtOnce);
    stress::<Linux69>(2, 10_000, Flushing::AtOnce);
    stress::<OneLock52>(2, 10_000, Flushing::AtOnce);
    stress::<WithTrees<Standard>>(2, 10_000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_with_16_threads() {
    stress::<Standard>(16, 4000, Flushing::AtOnce);
    stress::<Linux69>(16, 2000, Flushing::AtOnce);
    stress::<WithTrees<Standard>>(16, 2000, Flushing::AtOnce);
}

#[test]
fn sp1_to_sp4_hold_with_64_threads() {
    stress::<Standard>(64, 500, Flushing::AtOnce);
    stress::<Linux69>(64, 300, Flushing::AtOnce);
}

#[test]
fn sp2_holds_while_flushes_end_late() {
    stress::<Standard>(4, 6000, Flushing::OnRequest);
    stress::<Linux69>(4, 3000, Flushing::OnRequest);
}
