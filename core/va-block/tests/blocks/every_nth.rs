//! Every n-th request for memory fails, in every call that makes some: `va_sim::every_nth` has the rules.

use va_base::{AllocError, Context, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_block::{BlockError, Blocks, Config, Stats};
use va_sim::block_run::{Sliced, TinyLinux, TinyOneMap};
use va_sim::every_nth::{Subject, every_nth};
use va_sim::machine::SimMachine;
use va_space::{Purge, SpaceError, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
/// Pages of the space: 512 blocks.
const PAGES: u64 = 1 << 16;
/// Possible CPUs, of which one is online when the blocks are made.
const CPUS: u32 = 3;
/// Pages of the largest mapping in a block, half of one.
const HALF: u64 = 64;

struct Run<'m, C: Config> {
    machine: &'m SimMachine,
    blocks: Blocks<&'m SimMachine, C>,
    /// Mappings that are allocated: address and pages.
    out: Vec<(Va, u64)>,
    /// Areas of the space, with holes between them.
    others: Vec<Va>,
}

fn range(at: Va, pages: u64) -> VaRange {
    VaRange::from_size(at, pages * PAGE_SIZE).unwrap()
}

fn extent() -> VaRange {
    VaRange::from_pages(FIRST, FIRST + PAGES).unwrap()
}

fn new<C: Config>(machine: &SimMachine) -> Result<Blocks<&SimMachine, C>, BlockError> {
    machine.set_online(1);
    let space = VmapSpace::new(extent(), extent(), machine).map_err(BlockError::Space)?;
    let blocks = Blocks::new(space, machine);
    machine.set_online(CPUS);
    blocks
}

/// Creates blocks of which three are full on CPU 0, so that the next mapping begins another. The index of the space has
/// as many areas as it has memory for, so that the next area needs more.
fn fresh<C: Config>(machine: &SimMachine) -> Run<'_, C> {
    machine.fail_after(u64::MAX, u64::MAX);
    let mut run = Run { machine, blocks: new(machine).unwrap(), out: Vec::new(), others: Vec::new() };
    for _ in 0..6 {
        let at = run.blocks.alloc(0, HALF);
        run.add(at, HALF).unwrap();
    }
    machine.fail_after(0, u64::MAX);
    for page in (FIRST + PAGES / 2..).step_by(2) {
        match run.blocks.space().alloc_at(VaRange::from_pages(page, page + 1).unwrap()) {
            Ok(area) => run.others.push(area.start()),
            Err(_) => break,
        }
    }
    machine.fail_after(u64::MAX, u64::MAX);
    run
}

impl<C: Config> Run<'_, C> {
    /// Maps what was allocated, which SP2 allows. The address may be another if a call failed before.
    fn add(&mut self, got: Result<Va, BlockError>, pages: u64) -> Result<(), BlockError> {
        let at = got?;
        self.machine.map(range(at, pages)).unwrap();
        self.out.push((at, pages));
        Ok(())
    }

    fn free(&mut self, nth: usize) {
        let (at, pages) = self.out.remove(nth);
        self.machine.unmap(range(at, pages));
        self.blocks.free(1, at, pages).unwrap();
        assert!(self.blocks.free(1, at, pages).is_err());
    }
}

impl<C: Config> Subject for Run<'_, C> {
    type Seen = (Vec<VaRange>, Stats, Pages);
    type Error = BlockError;
    const KINDS: &'static [&'static str] = &SimMachine::KINDS;

    fn seen(&self) -> Self::Seen {
        assert_eq!(self.blocks.validate(), Ok(()));
        let all = self.out.iter().map(|&(at, pages)| {
            let large = || self.blocks.space().find(at).map(|area| area.range);
            let found = self.blocks.find_enclosing(at).or_else(large).unwrap();
            assert_eq!(found.start(), at);
            assert!(found.encloses(range(at, pages)));
            found
        });
        (all.collect(), self.blocks.stats(), self.blocks.space().stats().busy_pages)
    }

    fn is_of_memory(error: &BlockError) -> bool {
        matches!(
            error,
            BlockError::NoTable
                | BlockError::Space(SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }))
        )
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn end(mut self) {
        while !self.out.is_empty() {
            self.free(0);
        }
        self.others.iter().for_each(|&at| _ = self.blocks.space().free_at(at).unwrap());
        self.blocks.drain_lanes(None);
        self.blocks.shrink();
        assert_eq!((self.blocks.present(), self.blocks.validate()), (0, Ok(())));
        self.blocks.space().purge(Purge::Full);
        self.machine.fail_after(u64::MAX, u64::MAX);
        let all = self.blocks.space().alloc(0, &Request::pages(PAGES).unwrap()).unwrap();
        assert_eq!((all.range(), self.machine.unclean(extent())), (extent(), 0), "pages are lost");
        drop(self.blocks);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

/// Makes all calls. Returns how many failed.
fn all<C: Config>() -> u64 {
    let machine = SimMachine::new(CPUS);
    let mut errors = 0;
    let mut try_call = |name: &str, call: &dyn Fn(&mut Run<'_, C>) -> Result<(), BlockError>| {
        errors += every_nth(name, || fresh::<C>(&machine), call).iter().sum::<u64>();
    };
    try_call("new", &|run| {
        let other = new::<C>(run.machine)?;
        assert_eq!((other.present(), other.validate()), (0, Ok(())));
        Ok(())
    });
    try_call("alloc, a block", &|run| run.add(run.blocks.alloc(0, 5), 5));
    try_call("alloc, a CPU", &|run| run.add(run.blocks.alloc(2, 5), 5));
    try_call("alloc, large", &|run| run.add(run.blocks.alloc(0, 300), 300));
    try_call("alloc, atomic", &|run| match run.blocks.alloc_in(Context::Atomic, 0, 5) {
        Err(BlockError::WouldBlock) => Ok(()),
        got => run.add(got, 5),
    });
    try_call("lane", &|run| {
        let mut lane = run.blocks.lane(1)?;
        let at = lane.alloc(7)?;
        lane.free(at, 7).unwrap();
        Ok(())
    });
    try_call("free, tick, unmap_aliases, shrink", &|run| {
        (0..3).for_each(|_| run.free(0));
        run.blocks.tick();
        run.blocks.unmap_aliases();
        run.blocks.shrink();
        Ok(())
    });
    errors
}

#[test]
fn sp3_sp4_every_nth_request_for_memory_may_fail() {
    let errors = [all::<Sliced>(), all::<TinyLinux>(), all::<TinyOneMap>()];
    assert!(errors.iter().all(|&errors| errors > 20), "too few calls failed: {errors:?}");
}

#[test]
fn sp4_blocks_that_cannot_begin_are_empty_again_and_begin_later() {
    let mut failures = 0;
    for tables in 0.. {
        let machine = SimMachine::new(CPUS);
        let mut blocks = Blocks::<_, Sliced>::empty();
        machine.fail_after(u64::MAX, tables);
        let made = blocks.init_within(extent(), extent(), &machine, &[]);
        machine.fail_after(u64::MAX, u64::MAX);
        if made.is_ok() {
            break;
        }
        failures += 1;
        assert_eq!(machine.tables(), 0, "after {tables} tables");
        assert!(blocks.alloc(0, 1).is_err());
        blocks.init_within(extent(), extent(), &machine, &[]).unwrap();
        let at = blocks.alloc(0, 1).unwrap();
        blocks.free(0, at, 1).unwrap();
        let again = blocks.init_within(extent(), extent(), &machine, &[]);
        assert_eq!(again, Err(BlockError::Space(SpaceError::AlreadyReady)));
        drop(blocks);
        // One that stops after an error frees all when it is dropped.
        machine.fail_after(u64::MAX, tables);
        let mut once = Blocks::<_, Sliced>::empty();
        assert!(once.init_once(extent(), extent(), &machine, &[]).is_err());
        drop(once);
        assert_eq!(machine.tables(), 0);
    }
    assert!(failures > 6, "tables of the space and of the blocks: {failures}");
}
