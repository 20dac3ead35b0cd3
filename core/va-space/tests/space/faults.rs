//! Random operations on a space and its magazines while memory fails for a time and flushes end later. Only the right
//! errors occur, no area is lost, and all memory is freed at the end. The driver is `va_sim::soak`.

use crate::{FIRST, Linux69, OneLock52, Standard, lazy};
use va_base::{Align, AllocError, Context, InvariantViolation, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::model::ModelIndex;
use va_sim::op::Rng;
use va_sim::soak::{self, Soak, Tally};
use va_space::config::WithTrees;
use va_space::{Area, Config, Magazine, Purge, ReshapeError, SpaceError, State, VmapSpace};
use va_tree::{Congruent, FreeIndex};

/// Pages of the space: five tables of the page map and more, so that tables fail, too.
const PAGES: u64 = 1 << 13;
const CPUS: u32 = 3;
/// Two areas at a fixed distance: offsets and bytes.
const PARTS: [(u64, u64); 2] = [(0, 8 * PAGE_SIZE), (64 * PAGE_SIZE, 4 * PAGE_SIZE)];

/// The errors of one run.
#[derive(Default, Debug)]
struct Met {
    no_memory: u64,
    would_block: u64,
    no_space: u64,
    occupied: u64,
}

struct Run<'s, 'm, C: Config> {
    machine: &'m SimMachine,
    space: &'s VmapSpace<&'m SimMachine, C>,
    magazines: [Option<Magazine<'s, &'m SimMachine, C>>; 3],
    /// Each area that is allocated, with its handle if that is valid.
    areas: Vec<(VaRange, Option<Area>)>,
    /// There are more allocs than frees at the moment.
    grows: bool,
    met: Met,
}

fn context(rng: &mut Rng) -> Context {
    if rng.below(3) == 0 { Context::Atomic } else { Context::Sleeping }
}

fn request(rng: &mut Rng) -> Request {
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
    request.context(context(rng))
}

impl<C: Config> Run<'_, '_, C> {
    fn add(&mut self, range: VaRange, handle: Option<Area>) {
        self.machine.map(range).unwrap();
        self.areas.push((range, handle));
    }

    fn failed(&mut self, error: SpaceError, waits: bool, fails: bool) {
        match error {
            SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }) => {
                assert!(fails, "memory is there");
                self.met.no_memory += 1;
            }
            SpaceError::WouldBlock { .. } => {
                assert!(!waits, "a caller that may sleep waits");
                self.met.would_block += 1;
            }
            SpaceError::NoSpace { .. } => self.met.no_space += 1,
            SpaceError::Index(AllocError::Occupied { .. }) => self.met.occupied += 1,
            other => panic!("{other}"),
        }
    }

    fn alloc(&mut self, rng: &mut Rng, fails: bool) {
        let (request, cpu) = (request(rng), rng.below(6));
        let only_try = rng.below(8) == 0;
        let got = match self.magazines.get_mut(cpu as usize) {
            Some(Some(magazine)) if only_try => magazine.try_alloc(&request),
            Some(Some(magazine)) => magazine.alloc(&request),
            Some(None) | None => self.space.alloc(cpu as u32 % CPUS, &request),
        };
        match got {
            Ok(area) => self.add(area.range(), Some(area)),
            Err(error) => {
                // Linux's search may miss a hole for an aligned request, or one with a window.
                let plain = request.align() == Align::PAGE && request.window().is_none();
                let is_exact = (C::FAIL_FAST || plain) && request.waits() && !only_try;
                let full = is_exact && matches!(error, SpaceError::NoSpace { .. });
                assert!(!full || !self.fits(&request), "{request:?} fits");
                self.failed(error, request.waits(), fails);
            }
        }
    }

    /// Returns what is allocated, in address order.
    fn busy(&self) -> Vec<VaRange> {
        let mut busy: Vec<_> = self.areas.iter().map(|(range, _)| *range).collect();
        busy.sort_unstable_by_key(|range| range.start());
        busy
    }

    /// Returns whether a request fits beside what is allocated.
    fn fits(&self, request: &Request) -> bool {
        let extent = self.space.extent();
        let mut model = ModelIndex::new(extent, extent).unwrap();
        for range in self.busy() {
            let _fit = model.take(range).unwrap();
        }
        model.would_fit(request).is_ok()
    }

    fn alloc_at(&mut self, rng: &mut Rng, fails: bool) {
        let first = FIRST + rng.below(PAGES - 40);
        let wanted = VaRange::from_pages(first, first + 1 + rng.below(40)).unwrap();
        match self.space.alloc_at(wanted) {
            Ok(area) => self.add(wanted, Some(area)),
            Err(error) => {
                let meets = |range: &VaRange| range.start() < wanted.end() && wanted.start() < range.end();
                let occupied = matches!(error, SpaceError::Index(AllocError::Occupied { .. }));
                assert!(!occupied || self.areas.iter().any(|(range, _)| meets(range)), "{wanted} is free");
                self.failed(error, true, fails);
            }
        }
    }

    fn alloc_congruent(&mut self, fails: bool) {
        match self.space.alloc_congruent(&Congruent::new(&PARTS, 4 * PAGE_SIZE).unwrap()) {
            Ok(base) => PARTS.iter().for_each(|&(offset, bytes)| {
                self.add(VaRange::from_size(base.checked_add(offset).unwrap(), bytes).unwrap(), None);
            }),
            Err(error) => self.failed(error, true, fails),
        }
    }

    fn pick(&self, rng: &mut Rng) -> Option<usize> {
        (!self.areas.is_empty()).then(|| rng.below(self.areas.len() as u64) as usize)
    }

    fn reshape(&mut self, rng: &mut Rng, fails: bool) -> bool {
        let Some(at) = self.pick(rng) else { return false };
        let range = self.areas[at].0;
        let (first, end) = range.whole_pages();
        let done = match rng.below(3) {
            0 if end - first > 1 => {
                let cut = Va::from_page(first + 1 + rng.below(end - first - 1));
                self.space.split(cut).map(|(low, high)| {
                    self.areas[at] = (low, None);
                    self.areas.push((high, None));
                })
            }
            0 | 1 => self.space.join(range.start()).map(|joined| {
                self.areas.retain(|(part, _)| !joined.encloses(*part));
                self.areas.push((joined, None));
            }),
            _ => {
                let grown = end - first + 1 + rng.below(9);
                self.space.resize_at(range.start(), Pages::new(grown)).map(|grown| {
                    self.machine.map(VaRange::new(range.end(), grown.end()).unwrap()).unwrap();
                    self.areas[at] = (grown, None);
                })
            }
        };
        match done {
            Ok(()) | Err(ReshapeError::Blocked { .. } | ReshapeError::BadSize { .. }) => {}
            Err(ReshapeError::NoNeighbour { .. }) => {
                assert!(self.areas.iter().all(|(below, _)| below.end() != range.start()), "{range}");
            }
            Err(ReshapeError::NoMeta(error)) => self.failed(error, true, fails),
            Err(other) => panic!("{other}"),
        }
        true
    }

    /// Frees an area, which succeeds even if memory fails (SP3).
    fn free(&mut self, rng: &mut Rng) -> bool {
        let Some(at) = self.pick(rng) else { return false };
        let (range, handle) = self.areas.swap_remove(at);
        let (context, cpu) = (context(rng), rng.below(6) as usize);
        if rng.below(16) == 0 {
            let detached = self.space.detach(range.start()).unwrap();
            self.machine.unmap(range);
            self.space.release(context, detached).unwrap();
            return true;
        }
        self.machine.unmap(range);
        match (self.magazines.get_mut(cpu), handle.filter(|_| rng.below(2) == 0)) {
            (Some(Some(magazine)), Some(area)) => magazine.free_in(context, area).unwrap(),
            (Some(Some(magazine)), None) => {
                assert_eq!(magazine.free_at_in(context, range.start()), Ok(range));
            }
            (_, Some(area)) => self.space.free_in(context, area).unwrap(),
            (_, None) => assert_eq!(self.space.free_at_in(context, range.start()), Ok(range)),
        }
        true
    }

    fn magazine(&mut self, rng: &mut Rng, fails: bool) {
        let cpu = rng.below(u64::from(CPUS));
        let magazine = &mut self.magazines[cpu as usize];
        if magazine.take().is_none() {
            match self.space.magazine(cpu as u32) {
                Ok(made) => *magazine = Some(made),
                Err(error) => self.failed(error, true, fails),
            }
        }
    }
}

impl<C: Config> Soak for Run<'_, '_, C> {
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        match rng.below(200) {
            0 | 1 => {
                let late = rng.below(2) == 0;
                self.machine.set_flushing(if late { Flushing::OnRequest } else { Flushing::AtOnce });
                return false;
            }
            2..=7 => {
                self.machine.complete_flushes();
                return false;
            }
            8 | 9 => _ = self.space.tick(),
            10 | 11 => _ = self.space.drain(),
            12 | 13 => {
                let how = [Purge::Drain, Purge::Full, Purge::Aliases];
                let _purged = self.space.purge(how[rng.below(3) as usize]);
            }
            14 => _ = self.space.shrink(),
            15 => {
                self.space.shrink_index(rng.below(100) as usize);
                self.space.shrink_map(rng.below(9) as usize);
            }
            16 => {
                if let Err(error) = self.space.supply(rng.below(200)) {
                    self.failed(error, true, fails);
                }
            }
            17 => _ = self.space.drain_cpu(rng.below(u64::from(CPUS)) as u32),
            18 | 19 => self.magazine(rng, fails),
            20 | 21 => self.alloc_at(rng, fails),
            22 => self.alloc_congruent(fails),
            23..=28 => return self.reshape(rng, fails),
            29 if rng.below(8) == 0 => {
                self.grows = !self.grows;
                return false;
            }
            way if way < if self.grows { 130 } else { 100 } => self.alloc(rng, fails),
            _ => return self.free(rng),
        }
        true
    }

    fn failures(&self) -> u64 {
        self.met.no_memory
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        let busy = self.space.areas().filter(|seen| seen.state == State::Busy).map(|seen| seen.range);
        assert!(busy.eq(self.busy()), "other areas are busy than were allocated");
        self.space.validate()
    }
}

fn run<C: Config>(seed: u64, elsewhere: bool) -> (Met, Tally) {
    let machine = SimMachine::new(CPUS);
    // A few dozen pages reach every limit.
    machine.set_online(lazy(if C::SLICE_AREAS == u64::MAX { 60 } else { 140 }));
    machine.drain_elsewhere(elsewhere);
    let extent = VaRange::from_pages(FIRST, FIRST + PAGES).unwrap();
    let space = VmapSpace::<_, C>::new(extent, extent, &machine).unwrap();
    let ended = {
        let (magazines, areas) = ([const { None }; 3], Vec::new());
        let (machine, space, met) = (&machine, &space, Met::default());
        let mut run = Run { machine, space, magazines, areas, grows: true, met };
        let tally = soak::run(&mut run, machine, seed);
        while !run.areas.is_empty() {
            run.free(&mut Rng::new(seed));
        }
        let all = space.alloc(0, &Request::pages(PAGES).unwrap()).unwrap();
        assert_eq!((all.range(), machine.map(extent)), (extent, Ok(())));
        assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(0)));
        (run.met, tally)
    };
    drop(space);
    assert_eq!(machine.allocated(), 0, "memory is lost");
    ended
}

fn runs<C: Config>(name: &str, first: u64) {
    let mut met = Met::default();
    soak::all(name, 1, |seed| {
        let (one, tally) = run::<C>(first + 4 * seed, seed % 2 == 1);
        met.no_memory += one.no_memory;
        met.would_block += one.would_block;
        met.no_space += one.no_space;
        met.occupied += one.occupied;
        tally
    });
    println!("{met:?}");
    assert!(met.no_memory.min(met.would_block).min(met.no_space).min(met.occupied) > 0, "{met:?}");
}

#[test]
fn memory_that_fails_for_a_while_leaves_ours_whole() {
    runs::<Standard>("space, Standard", 1);
}

#[test]
fn memory_that_fails_for_a_while_leaves_ours_with_trees_whole() {
    runs::<WithTrees<Standard>>("space, Standard with trees", 2);
}

#[test]
fn memory_that_fails_for_a_while_leaves_nodes_whole() {
    runs::<Linux69>("space, Linux69", 3);
}

#[test]
fn memory_that_fails_for_a_while_leaves_one_lock_whole() {
    runs::<OneLock52>("space, OneLock52", 4);
}
