//! Random operations on blocks and lanes while memory fails for a time and flushes end later. Only the right errors
//! occur, no page is lost, and all memory is returned at the end. The driver is `va_sim::soak`.

use va_base::{AllocError, Context, InvariantViolation, PAGE_SIZE, Request, Va, VaRange};
use va_block::{BlockError, Blocks, Config, Lane, UnmapError};
use va_sim::block_run::{Sliced, TinyLinux, TinyOneMap};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::op::Rng;
use va_sim::soak::{self, Soak, Tally};
use va_space::{Purge, SpaceError, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
/// Pages of the space: 64 blocks.
const PAGES: u64 = 1 << 13;
/// Possible CPUs, of which one is online when the blocks are made.
const CPUS: u32 = 5;
/// Counts of the errors of one run, and the largest number of live mappings.
#[derive(Default, Debug)]
struct Met {
    no_memory: u64,
    would_block: u64,
    no_space: u64,
    out: u64,
}

struct Run<'b, 'm, C: Config> {
    machine: &'m SimMachine,
    blocks: &'b Blocks<&'m SimMachine, C>,
    lanes: [Option<Lane<'b, &'m SimMachine, C>>; 2],
    /// Mappings that are allocated: address and pages.
    out: Vec<(Va, u64)>,
    met: Met,
}

fn range(at: Va, pages: u64) -> VaRange {
    VaRange::from_size(at, pages * PAGE_SIZE).unwrap()
}

fn any_context(rng: &mut Rng) -> Context {
    if rng.below(3) == 0 { Context::Atomic } else { Context::Sleeping }
}

fn any_cpu(rng: &mut Rng) -> u32 {
    rng.below(u64::from(CPUS)) as u32
}

impl<C: Config> Run<'_, '_, C> {
    fn no_memory(&mut self, fails: bool) {
        assert!(fails, "memory is there");
        self.met.no_memory += 1;
    }

    fn got(&mut self, context: Context, pages: u64, got: Result<Va, BlockError>, fails: bool) {
        match got {
            Ok(at) => {
                self.machine.map(range(at, pages)).unwrap();
                self.out.push((at, pages));
            }
            Err(
                BlockError::NoTable
                | BlockError::Space(SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. })),
            ) => self.no_memory(fails),
            Err(BlockError::WouldBlock) => {
                assert_eq!(context, Context::Atomic, "a caller that may sleep waits");
                self.met.would_block += 1;
            }
            Err(BlockError::Space(SpaceError::NoSpace { .. })) => {
                assert_eq!(context, Context::Sleeping, "one that may sleep would get it");
                self.met.no_space += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn alloc(&mut self, rng: &mut Rng, fails: bool) {
        let pages = match rng.below(40) {
            0 => 65 + rng.below(300),
            1 => 64,
            _ => 1 + rng.below(20),
        };
        let (context, cpu) = (any_context(rng), any_cpu(rng));
        let lane = rng.below(4) as usize;
        let got = match self.lanes.get_mut(lane) {
            Some(Some(lane)) => lane.alloc_in(context, pages),
            Some(None) | None => self.blocks.alloc_in(context, cpu, pages),
        };
        self.got(context, pages, got, fails);
    }

    /// Unmaps a random mapping and returns it, to be freed.
    fn take(&mut self, rng: &mut Rng) -> Option<(Va, u64)> {
        let at = rng.below(self.out.len().max(1) as u64) as usize;
        let (at, pages) = (!self.out.is_empty()).then(|| self.out.swap_remove(at))?;
        self.machine.unmap(range(at, pages));
        Some((at, pages))
    }

    fn free(&mut self, rng: &mut Rng) -> bool {
        let Some((at, pages)) = self.take(rng) else { return false };
        let (context, cpu, lane) = (any_context(rng), any_cpu(rng), rng.below(4) as usize);
        // A first free succeeds even if memory fails (SP3); a second free is an error.
        for is_first in [true, false] {
            let got = match self.lanes.get_mut(lane) {
                Some(Some(lane)) => lane.free_in(context, at, pages),
                Some(None) | None => self.blocks.free_in(context, cpu, at, pages),
            };
            match got {
                Ok(()) => assert!(is_first),
                Err(UnmapError::Twice { .. } | UnmapError::NotMapped { .. }) => assert!(!is_first, "{at}"),
                Err(other) => panic!("{other}"),
            }
        }
        true
    }

    fn lane(&mut self, rng: &mut Rng, fails: bool) {
        let (at, cpu) = (rng.below(2) as usize, any_cpu(rng));
        if self.lanes[at].take().is_some() {
            return;
        }
        match self.blocks.lane(cpu) {
            Ok(lane) => self.lanes[at] = Some(lane),
            Err(BlockError::NoTable) => self.no_memory(fails),
            Err(other) => panic!("{other}"),
        }
    }

    /// Returns the weight of allocs against frees: more until many mappings are live, then less.
    fn wave(&self) -> u64 {
        if self.out.len() < 600 { 4 } else { 0 }
    }
}

impl<C: Config> Soak for Run<'_, '_, C> {
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        self.met.out = self.met.out.max(self.out.len() as u64);
        match rng.below(200) {
            2 => {
                let late = rng.below(2) == 0;
                self.machine.set_flushing(if late { Flushing::OnRequest } else { Flushing::AtOnce });
                return false;
            }
            3..=6 => {
                self.machine.complete_flushes();
                return false;
            }
            7 => _ = self.blocks.tick(),
            8 => _ = self.blocks.shrink(),
            9 => _ = self.blocks.unmap_aliases(),
            10 => _ = self.blocks.space().purge(Purge::Full),
            11 => {
                let cpu = any_cpu(rng);
                let which = (rng.below(2) == 0).then_some(cpu);
                self.blocks.drain_lanes(which);
            }
            12 => self.lane(rng, fails),
            // The number of mappings rises and falls in turns.
            way if way % 100 < 50 + self.wave() => self.alloc(rng, fails),
            _ => return self.free(rng),
        }
        true
    }

    fn failures(&self) -> u64 {
        self.met.no_memory
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        self.blocks.validate()
    }
}

fn run<C: Config>(seed: u64, elsewhere: bool) -> (Met, Tally) {
    let machine = SimMachine::new(CPUS);
    machine.drain_elsewhere(elsewhere);
    machine.set_online(1);
    let extent = VaRange::from_pages(FIRST, FIRST + PAGES).unwrap();
    let space = VmapSpace::new(extent, extent, &machine).unwrap();
    let blocks = Blocks::<_, C>::new(space, &machine).unwrap();
    machine.set_online(CPUS);
    let ended = {
        let (machine, blocks) = (&machine, &blocks);
        let mut run = Run { machine, blocks, lanes: [None, None], out: Vec::new(), met: Met::default() };
        let tally = soak::run(&mut run, machine, seed);
        while !run.out.is_empty() {
            run.free(&mut Rng::new(seed));
        }
        run.lanes = [None, None];
        blocks.shrink();
        assert_eq!((blocks.stats().blocks, blocks.present(), blocks.validate()), (0, 0, Ok(())));
        let all = blocks.space().alloc(0, &Request::pages(PAGES).unwrap()).unwrap();
        assert_eq!((all.range(), machine.map(extent)), (extent, Ok(())));
        (run.met, tally)
    };
    drop(blocks);
    assert_eq!(machine.allocated(), 0, "memory is lost");
    ended
}

fn runs<C: Config>(name: &str, first: u64) {
    let mut met = Met::default();
    // A part of a seed does not meet a full space.
    soak::all(name, 10, |seed| {
        let (one, tally) = run::<C>(first + 3 * seed, seed % 2 == 1);
        met.no_memory += one.no_memory;
        met.would_block += one.would_block;
        met.no_space += one.no_space;
        met.out = met.out.max(one.out);
        tally
    });
    println!("{met:?}");
    assert!(met.no_memory.min(met.would_block).min(met.no_space) > 0, "{met:?}");
}

#[test]
fn memory_that_fails_for_a_while_leaves_reused_blocks_whole() {
    runs::<Sliced>("blocks, Standard", 1);
}

#[test]
fn memory_that_fails_for_a_while_leaves_dying_blocks_whole() {
    runs::<TinyLinux>("blocks, Linux64", 2);
}

#[test]
fn memory_that_fails_for_a_while_leaves_blocks_of_one_map_whole() {
    runs::<TinyOneMap>("blocks, Linux64 with one map", 3);
}
