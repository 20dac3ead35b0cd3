//! The map beside its reference model on random calls: areas, mappings, sizes, wrong calls, failures.
use proptest::prelude::*;
use va_base::{Align, InvariantViolation, Va, VaRange};
use va_map::{AreaRequest, Fill, FreeError, Guard, Kind, Leaves, MapSpace, Piece};
use va_sim::effort::some;
use va_sim::machine::{Flushing, SimMachine};
use va_sim::map_model::MapModel;
use va_sim::op::Rng;
use va_sim::pages::{Arm, Ask, FOREIGN, Ladder, One, Short, SimPages};
use va_sim::soak::{self, Soak, Tally};
use va_space::VmapSpace;

#[derive(Clone, Debug)]
enum Op {
    Vmalloc { bytes: u64, more: u64, align_log2: u32, huge: bool, zeroed: bool },
    Vfree { nth: usize },
    VfreeAtomic { nth: usize },
    RunDeferred,
    Protect { nth: usize },
    Vrealloc { nth: usize, bytes: u64, zeroed: bool },
    Map { kind: Kind, frames: Vec<u64> },
    Unmap { kind: Kind, nth: usize, wrong: u64 },
    Write { nth: usize, place: u64, byte: u8 },
    Stray { page: u64 },
    Flush { full: bool },
    FailAfter { what: u8, after: u64 },
    Flushing { on_request: bool },
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..40_000u64, 2 => 30_000..90_000u64, 1 => Just(0)]
}

fn op() -> impl Strategy<Value = Op> {
    let frames = || prop::collection::vec(prop_oneof![0..6u64, Just(3), Just(4)], 0..9);
    prop_oneof![
        5 => (sizes(), 0..60_000u64, 10..16u32, any::<bool>(), any::<bool>())
            .prop_map(|(bytes, more, align_log2, huge, zeroed)| Op::Vmalloc { bytes, more, align_log2, huge, zeroed }),
        4 => (0..9usize).prop_map(|nth| Op::Vfree { nth }),
        2 => (0..9usize).prop_map(|nth| Op::VfreeAtomic { nth }),
        1 => Just(Op::RunDeferred),
        1 => (0..9usize).prop_map(|nth| Op::Protect { nth }),
        6 => (0..9usize, sizes(), any::<bool>()).prop_map(|(nth, bytes, zeroed)| Op::Vrealloc { nth, bytes, zeroed }),
        3 => frames().prop_map(|frames| Op::Map { kind: Kind::Vmap, frames }),
        3 => frames().prop_map(|frames| Op::Map { kind: Kind::Block, frames }),
        1 => (65..70u64).prop_map(|count| Op::Map { kind: Kind::Ram, frames: (0..count).collect() }),
        4 => (0..3u8, 0..9usize, 0..5u64).prop_map(|(kind, nth, wrong)| Op::Unmap {
            kind: [Kind::Vmap, Kind::Block, Kind::Ram][usize::from(kind)], nth, wrong: wrong.saturating_sub(2)
        }),
        5 => (0..9usize, any::<u64>(), any::<u8>()).prop_map(|(nth, place, byte)| Op::Write { nth, place, byte }),
        2 => (0..520u64).prop_map(|page| Op::Stray { page }),
        1 => any::<bool>().prop_map(|full| Op::Flush { full }),
        2 => (0..4u8, 0..6u64).prop_map(|(what, after)| Op::FailAfter { what, after }),
        1 => any::<bool>().prop_map(|on_request| Op::Flushing { on_request }),
    ]
}

fn pick<T: Copy>(list: &[T], nth: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[nth % list.len()])
}

fn fill(zeroed: bool) -> Fill {
    if zeroed { Fill::Zeros } else { Fill::Any }
}

type Map<'a, 'm, C, L> = MapSpace<&'a SimMachine, &'a SimPages<'m, L>, C>;

struct Harness<'a, 'm, C: va_block::Config, L: Ladder> {
    machine: &'a SimMachine,
    pages: &'a SimPages<'m, L>,
    map: Map<'a, 'm, C, L>,
    model: MapModel,
    /// Areas whose free is deferred.
    deferred: Vec<Va>,
    /// True if a call may fail.
    may_fail: bool,
    /// Requests that failed.
    failures: u64,
}

impl<C: va_block::Config, L: Ladder> Harness<'_, '_, C, L> {
    /// Accepts an error if the machine may fail: otherwise every request fits in this window.
    fn excused(&mut self, error: &dyn std::fmt::Display) -> Result<(), String> {
        self.failures += 1;
        if self.may_fail { Ok(()) } else { Err(format!("failed without a reason: {error}")) }
    }

    /// Frees everything, and checks that all pages were freed to the source.
    fn free_all(&mut self) -> Result<(), String> {
        self.call(&Op::RunDeferred)?;
        for kind in [Kind::Vmalloc, Kind::Vmap, Kind::Block, Kind::Ram] {
            while !self.model.starts(kind).is_empty() {
                let freed = Op::Unmap { kind, nth: 0, wrong: 0 };
                self.call(if kind == Kind::Vmalloc { &Op::Vfree { nth: 0 } } else { &freed })?;
            }
        }
        if self.pages.allocated() == 0 {
            Ok(())
        } else {
            Err(format!("{} pages are allocated", self.pages.allocated()))
        }
    }

    fn call(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Vmalloc { bytes, more, align_log2, huge, zeroed } => {
                let request = AreaRequest::new(*bytes)
                    .range_bytes(bytes + more)
                    .align(Align::from_log2(*align_log2).unwrap())
                    .leaves(if *huge { Leaves::LargeWherePossible } else { Leaves::Small })
                    .fill(fill(*zeroed))
                    .guard(Guard::Page);
                match self.map.vmalloc(1, &request) {
                    Ok(at) => self.model.vmalloc(at, &request),
                    Err(_) if *bytes == 0 => Ok(()),
                    Err(error) => self.excused(&error),
                }
            }
            Op::Vfree { nth } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                if self.deferred.contains(&at) {
                    let freed = [self.map.vfree(at), self.map.vfree_atomic(at).map(|_| ())];
                    let deferred =
                        |freed: &Result<(), FreeError>| matches!(freed, Err(FreeError::Deferred { .. }));
                    return if freed.iter().all(deferred) { Ok(()) } else { Err(format!("{freed:?}")) };
                }
                self.map.vfree(at).map_err(|error| error.to_string())?;
                self.model.free(at);
                if self.map.vfree(at).is_ok() { Err("freed twice".to_owned()) } else { Ok(()) }
            }
            Op::VfreeAtomic { nth } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                let twice = self.deferred.contains(&at);
                let done = self.map.vfree_atomic(at);
                if !twice {
                    self.deferred.push(at);
                }
                let want = self.deferred.len() as u64;
                if done == Ok(want) && !twice || matches!(done, Err(FreeError::Deferred { .. })) && twice {
                    Ok(())
                } else {
                    Err(format!("{done:?} of {want}, twice: {twice}"))
                }
            }
            Op::RunDeferred => {
                let (ended, want) = (self.map.run_deferred(), self.deferred.len() as u64);
                self.deferred.drain(..).for_each(|at| {
                    self.model.free(at);
                });
                if ended == want { Ok(()) } else { Err(format!("{ended} of {want} were ended")) }
            }
            Op::Protect { nth } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                self.map.reset_on_free(at).map_err(|error| error.to_string())?;
                let bytes = self.model.get(at).unwrap().bytes.len() as u64;
                self.map.read(VaRange::from_size(at, bytes).unwrap(), |piece| {
                    if let Piece::Page { frame, .. } = piece {
                        self.pages.protect(frame);
                    }
                });
                Ok(())
            }
            Op::Vrealloc { nth, bytes, zeroed } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                if self.deferred.contains(&at) {
                    let done = self.map.vrealloc(0, at, *bytes, fill(*zeroed));
                    return if done.is_err() { Ok(()) } else { Err(format!("{done:?}, and freed")) };
                }
                match self.map.vrealloc(0, at, *bytes, fill(*zeroed)) {
                    Ok(to) => {
                        let usable = self.map.info(to).unwrap().usable_bytes;
                        self.model.vrealloc(at, to, *bytes, fill(*zeroed), usable)
                    }
                    Err(_) if *bytes == 0 => Ok(()),
                    Err(error) => self.excused(&error),
                }
            }
            Op::Map { kind, frames } => {
                let frames: Vec<u64> = frames.iter().map(|frame| FOREIGN + frame).collect();
                let mapped = match kind {
                    Kind::Vmap => self.map.vmap(2, frames.as_slice(), va_map::Protection(3), 7),
                    _ => self.map.vm_map_ram(2, frames.as_slice(), va_map::Protection(3)),
                };
                match mapped {
                    Ok(at) => self.model.vmap(at, *kind, &frames),
                    Err(_) if frames.is_empty() => Ok(()),
                    Err(error) => self.excused(&error),
                }
            }
            Op::Unmap { kind, nth, wrong } => {
                let Some(at) = pick(&self.model.starts(*kind), *nth) else { return Ok(()) };
                let count = self.model.get(at).unwrap().frames.len() as u64;
                let gone = match kind {
                    Kind::Vmap if *wrong > 0 => self.map.vfree(at),
                    Kind::Vmap => self.map.vunmap(at),
                    _ => self.map.vm_unmap_ram(3, at, count + wrong),
                };
                if gone.is_ok() != (*wrong == 0) {
                    return Err(format!("{gone:?} of {count} pages, and {wrong} more"));
                }
                if gone.is_ok() {
                    self.model.free(at);
                }
                Ok(())
            }
            Op::Write { nth, place, byte } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                let offset = place % self.model.get(at).unwrap().bytes.len() as u64;
                self.pages
                    .write(at.checked_add(offset).unwrap(), *byte)
                    .map_err(|at| format!("no page at {at}"))?;
                self.model.write(at, offset, *byte);
                Ok(())
            }
            Op::Stray { page } => {
                let at = self.map.extent().start().checked_add(page * 4096 + page % 2 * 16).unwrap();
                if self.model.get(at).is_some() {
                    return Ok(());
                }
                let tried = [
                    self.map.vfree(at).is_err(),
                    self.map.vunmap(at).is_err(),
                    self.map.vm_unmap_ram(0, at, 1).is_err(),
                    self.map.vm_unmap_ram(0, at, 65).is_err(),
                    self.map.vrealloc(0, at, 1, Fill::Any).is_err(),
                ];
                if tried == [true; 5] { Ok(()) } else { Err(format!("a stray {at}: {tried:?}")) }
            }
            Op::Flush { full } => {
                self.machine.complete_flushes();
                if *full {
                    _ = self.map.purge();
                } else {
                    _ = self.map.unmap_aliases();
                }
                Ok(())
            }
            Op::FailAfter { what, after } => {
                let what = [Ask::Pages, Ask::HugePage, Ask::TablePage, Ask::HugeLeaf][usize::from(*what)];
                let after = if *after == 5 { u64::MAX } else { *after };
                self.pages.fail_after(what, after);
                // Huge pages are optional.
                self.may_fail |= matches!(what, Ask::Pages | Ask::TablePage);
                Ok(())
            }
            Op::Flushing { on_request } => {
                self.machine.complete_flushes();
                self.machine.set_flushing(if *on_request { Flushing::OnRequest } else { Flushing::AtOnce });
                // Pages that wait for a flush may be missing.
                self.may_fail |= *on_request;
                Ok(())
            }
        }
    }
}

fn run<C: va_block::Config, L: Ladder>(ops: &[Op]) -> Result<(), String> {
    let machine = SimMachine::new(2);
    let pages = SimPages::<L>::with_ladder(&machine, 4000);
    let window = VaRange::from_pages(0x10, 0x4010).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map = MapSpace::<_, _, C>::new(space, &machine, &pages).unwrap();
    let (model, deferred) = (MapModel::default(), Vec::new());
    let mut harness =
        Harness { machine: &machine, pages: &pages, map, model, deferred, may_fail: false, failures: 0 };
    for (at, op) in ops.iter().enumerate() {
        let done = harness.call(op).and_then(|()| harness.model.compare(&harness.map, harness.pages));
        done.map_err(|error| format!("{error}, at {at}: {op:?}"))?;
    }
    harness.free_all()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(300), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mp1_mp3_mp6_the_map_equals_its_model(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(run::<va_block::config::Standard, Short>(&ops), Ok(()));
    }

    #[test]
    fn mp1_mp3_mp6_the_map_equals_its_model_under_policies_of_linux(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(run::<va_block::config::Linux64, Short>(&ops), Ok(()));
    }

    #[test]
    fn mp4_the_map_equals_its_model_on_other_ladders(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(run::<va_block::config::Standard, One>(&ops), Ok(()));
        prop_assert_eq!(run::<va_block::config::Standard, Arm>(&ops), Ok(()));
    }
}

fn random_op(rng: &mut Rng) -> Op {
    let (nth, zeroed) = (rng.below(1 << 30) as usize, rng.below(2) == 0);
    let most = if rng.below(8) == 0 { 100_000 } else { 12_000 };
    let bytes = 1 + rng.below(most);
    let frames = |rng: &mut Rng, count: u64| (0..count).map(|_| rng.below(6)).collect();
    match rng.below(24) {
        0..7 => Op::Vmalloc {
            bytes,
            more: rng.below(2) * rng.below(30_000),
            align_log2: 10 + rng.below(6) as u32,
            huge: rng.below(2) == 0,
            zeroed,
        },
        7..11 => Op::Vfree { nth },
        11..13 => Op::VfreeAtomic { nth },
        13 => Op::RunDeferred,
        14 => Op::Protect { nth },
        15..18 => Op::Vrealloc { nth, bytes, zeroed },
        18 | 19 => {
            let (kind, count) = ([Kind::Vmap, Kind::Block][rng.below(2) as usize], 1 + rng.below(9));
            Op::Map { kind, frames: frames(rng, count) }
        }
        20 => Op::Unmap { kind: Kind::Vmap, nth, wrong: 0 },
        21 => Op::Unmap { kind: Kind::Block, nth, wrong: 0 },
        22 => Op::Write { nth, place: rng.below(1 << 20), byte: 1 },
        _ => Op::Flush { full: rng.below(50) == 0 },
    }
}

impl<C: va_block::Config, L: Ladder> Soak for Harness<'_, '_, C, L> {
    /// Runs a random call, with at most one area for each ten of the source's pages.
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        self.may_fail = fails;
        let [own, foreign, block] =
            [Kind::Vmalloc, Kind::Vmap, Kind::Block].map(|kind| self.model.starts(kind).len());
        let op = match random_op(rng) {
            Op::Vmalloc { .. } | Op::Map { .. } | Op::Vrealloc { .. }
                if own + foreign > 60 || self.pages.allocated() > 700 =>
            {
                Op::Vfree { nth: rng.below(1 << 30) as usize }
            }
            op => op,
        };
        let called = match &op {
            Op::Vmalloc { .. } | Op::Map { .. } | Op::RunDeferred | Op::Flush { .. } => true,
            Op::Vfree { .. } | Op::VfreeAtomic { .. } | Op::Protect { .. } | Op::Vrealloc { .. } => own > 0,
            Op::Unmap { kind: Kind::Vmap, .. } => foreign > 0,
            Op::Unmap { .. } => block > 0,
            Op::Write { .. } | Op::Stray { .. } | Op::FailAfter { .. } | Op::Flushing { .. } => false,
        };
        if let Err(wrong) = self.call(&op) {
            panic!("{wrong}: {op:?}");
        }
        if rng.below(1000) == 0 {
            self.map.shrink();
        }
        called
    }

    fn failures(&self) -> u64 {
        self.failures
    }

    fn set_fails(&mut self, rng: &mut Rng, fails: bool) {
        for what in [Ask::Pages, Ask::HugePage, Ask::TablePage, Ask::HugeLeaf] {
            self.pages.fail_after(what, if fails { rng.below(40) } else { u64::MAX });
        }
        if fails {
            self.pages.drop_tables();
        }
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        assert_eq!(self.model.compare(&self.map, self.pages), Ok(()));
        self.map.validate()
    }
}

/// Random calls while memory, pages and page tables fail for a time.
fn long_run<C: va_block::Config, L: Ladder>(seed: u64) -> Tally {
    let machine = SimMachine::new(2);
    let pages = SimPages::<L>::with_ladder(&machine, 2000);
    let window = VaRange::from_pages(0x10, 0x2010).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map = MapSpace::<_, _, C>::new(space, &machine, &pages).unwrap();
    let (model, deferred) = (MapModel::default(), Vec::new());
    let mut harness =
        Harness { machine: &machine, pages: &pages, map, model, deferred, may_fail: false, failures: 0 };
    let tally = soak::run(&mut harness, &machine, seed);
    harness.free_all().unwrap();
    drop(harness.map);
    assert_eq!(machine.allocated(), 0, "memory is lost");
    tally
}

#[test]
fn sp4_random_calls_while_memory_fails_for_a_while() {
    soak::all("map, Standard", 1, long_run::<va_block::config::Standard, Short>);
}

#[test]
fn sp4_random_calls_while_memory_fails_for_a_while_under_policies_of_linux() {
    soak::all("map, Linux64", 1, long_run::<va_block::config::Linux64, Arm>);
}
