//! Random operations on a space while memory fails for a while, then not, and flushes end later: no error but the right
//! ones, no area lost, and everything works again as soon as memory is there.
//!
//! `cargo xtask soak` runs it with more seeds (`VMALLOC_SOAK_SEEDS`): two hundred are ten million operations.

use va_base::{Align, AllocError, Context, PAGE_SIZE, Pages, Request, VaRange};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::op::Rng;
use va_sim::small::Small;
use va_space::config::{Default as Standard, Linux69, OneLock52, WithTrees};
use va_space::{Area, Config, Purge, SpaceError, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
/// Pages of the space: five tables of the page map and more, so that tables fail, too.
const PAGES: u64 = 1 << 13;
/// Operations of one seed.
const OPS: u64 = 50_000;

fn seeds() -> u64 {
    std::env::var("VMALLOC_SOAK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4)
}

/// What one run met.
#[derive(Default)]
struct Met {
    no_memory: u64,
    would_block: u64,
    no_space: u64,
    occupied: u64,
}

struct Run<'a, C: Config> {
    machine: &'a SimMachine,
    space: VmapSpace<&'a SimMachine, C>,
    rng: Rng,
    areas: Vec<Area>,
    /// Memory fails at the moment.
    fails: bool,
    met: Met,
}

impl<C: Config> Run<'_, C> {
    fn request(&mut self) -> Request {
        let rng = &mut self.rng;
        let size = match rng.below(20) {
            0 => 200 + rng.below(400),
            _ => 1 + rng.below(30),
        };
        let mut request = Request::pages(size).unwrap();
        if rng.below(8) == 0 {
            request = request.aligned(Align::new(PAGE_SIZE << rng.below(6)).unwrap());
        }
        if rng.below(8) == 0 {
            let low = FIRST + rng.below(PAGES / 2);
            request = request.within(VaRange::from_pages(low, low + PAGES / 2).unwrap());
        }
        if rng.below(3) == 0 { request.context(Context::Atomic) } else { request }
    }

    fn got(&mut self, got: Result<Area, SpaceError>, waits: bool) {
        match got {
            Ok(area) => {
                self.machine.map(area.range()).unwrap();
                self.areas.push(area);
            }
            Err(SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. })) => {
                assert!(self.fails, "memory is there");
                self.met.no_memory += 1;
            }
            Err(SpaceError::WouldBlock { .. }) => {
                assert!(!waits, "a caller that may sleep waits");
                self.met.would_block += 1;
            }
            Err(SpaceError::NoSpace { .. }) => self.met.no_space += 1,
            Err(SpaceError::Index(AllocError::Occupied { .. })) => self.met.occupied += 1,
            Err(other) => panic!("{other}"),
        }
    }

    /// Unmaps an area that is out, and hands it over to be freed.
    fn take(&mut self) -> Option<Area> {
        let at = self.rng.below(self.areas.len().max(1) as u64) as usize;
        let area = (!self.areas.is_empty()).then(|| self.areas.swap_remove(at))?;
        self.machine.unmap(area.range());
        Some(area)
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0 => {
                // Memory fails after a few more slabs and tables, or is there again.
                self.fails = !self.fails;
                let (slabs, tables) =
                    if self.fails { (self.rng.below(3), self.rng.below(3)) } else { (u64::MAX, u64::MAX) };
                self.machine.refuse_after(slabs, tables);
            }
            1 => {
                let late = self.rng.below(2) == 0;
                self.machine.set_flushing(if late { Flushing::WhenTold } else { Flushing::AtOnce });
            }
            2..=4 => self.machine.complete_flushes(),
            5 => _ = self.space.tick(),
            6 => _ = self.space.drain(),
            7 => {
                let how = [Purge::Drain, Purge::Full, Purge::Aliases];
                let how = how[self.rng.below(3) as usize];
                let _purged = self.space.purge(how);
            }
            8 => _ = self.space.shrink(),
            9 => {
                let first = FIRST + self.rng.below(PAGES - 40);
                let range = VaRange::from_pages(first, first + 1 + self.rng.below(40)).unwrap();
                let got = self.space.alloc_at(range);
                self.got(got, true);
            }
            10..=54 => {
                let request = self.request();
                let cpu = self.rng.below(3) as u32;
                let got = self.space.alloc(cpu, &request);
                self.got(got, request.waits());
            }
            way => {
                let Some(area) = self.take() else { return };
                let range = area.range();
                // A free succeeds whatever memory does (SP3).
                match way % 4 {
                    0 => self.space.free(area).unwrap(),
                    1 => self.space.free_in(Context::Atomic, area).unwrap(),
                    2 => assert_eq!(self.space.free_at(range.start()), Ok(range)),
                    _ => assert_eq!(self.space.free_at_in(Context::Atomic, range.start()), Ok(range)),
                }
            }
        }
    }
}

fn run<C: Config>(seed: u64, ops: u64, elsewhere: bool) -> Met {
    let machine = SimMachine::new(3);
    machine.drain_elsewhere(elsewhere);
    let extent = VaRange::from_pages(FIRST, FIRST + PAGES).unwrap();
    let space = VmapSpace::new(extent, extent, &machine).unwrap();
    let (areas, met) = (Vec::new(), Met::default());
    let mut run = Run::<C> { machine: &machine, space, rng: Rng::new(seed), areas, fails: false, met };
    for op in 0..ops {
        run.step();
        if op % 997 == 0 {
            assert_eq!(run.space.validate(), Ok(()), "seed {seed}, operation {op}");
        }
    }
    // Memory is there again, and nothing remembers that it was not.
    machine.refuse_after(u64::MAX, u64::MAX);
    while let Some(area) = run.take() {
        run.space.free(area).unwrap();
    }
    let all = run.space.alloc(0, &Request::pages(PAGES).unwrap()).unwrap();
    assert_eq!((all.range(), machine.map(all.range())), (extent, Ok(())));
    assert_eq!((run.space.validate(), run.space.lazy_pages()), (Ok(()), Pages::new(0)));
    run.met
}

fn runs<C: Config>(first: u64) {
    let mut met = Met::default();
    for seed in 0..seeds().div_ceil(4) {
        let one = run::<C>(first + 4 * seed, OPS, seed % 2 == 1);
        met.no_memory += one.no_memory;
        met.would_block += one.would_block;
        met.no_space += one.no_space;
        met.occupied += one.occupied;
    }
    let least = met.no_memory.min(met.would_block).min(met.no_space).min(met.occupied);
    assert!(least > 0, "{} {} {} {}", met.no_memory, met.would_block, met.no_space, met.occupied);
}

#[test]
fn memory_that_fails_for_a_while_leaves_ours_whole() {
    runs::<Small<Standard, 300, 3>>(1);
}

#[test]
fn memory_that_fails_for_a_while_leaves_ours_with_trees_whole() {
    runs::<Small<WithTrees<Standard>, 1000, 1>>(2);
}

#[test]
fn memory_that_fails_for_a_while_leaves_nodes_whole() {
    runs::<Small<Linux69, 300, { u64::MAX }>>(3);
}

#[test]
fn memory_that_fails_for_a_while_leaves_one_lock_whole() {
    runs::<Small<OneLock52, 300, { u64::MAX }>>(4);
}
