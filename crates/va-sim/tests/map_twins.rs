//! The map and its twin, side by side through random calls: areas, mappings, sizes, wrong calls, refusals.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::prelude::*;
use va_base::{Align, VaRange};
use va_map::{AreaRequest, Fill, Guard, Kind, Leaves, MapSpace};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::map_model::MapModel;
use va_sim::pages::{Ask, FOREIGN, SimPages};
use va_space::VmapSpace;

#[derive(Clone, Debug)]
enum Op {
    Vmalloc { bytes: u64, more: u64, align_log2: u32, huge: bool, zeroed: bool },
    Vfree { nth: usize },
    Vrealloc { nth: usize, bytes: u64, zeroed: bool },
    Map { kind: Kind, frames: Vec<u64> },
    Unmap { kind: Kind, nth: usize, wrong: u64 },
    Write { nth: usize, place: u64, byte: u8 },
    Stray { page: u64 },
    Flush { full: bool },
    Refuse { what: u8, after: u64 },
    Flushing { when_told: bool },
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
        2 => (0..4u8, 0..6u64).prop_map(|(what, after)| Op::Refuse { what, after }),
        1 => any::<bool>().prop_map(|when_told| Op::Flushing { when_told }),
    ]
}

fn pick<T: Copy>(list: &[T], nth: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[nth % list.len()])
}

fn fill(zeroed: bool) -> Fill {
    if zeroed { Fill::Zeros } else { Fill::Any }
}

type Map<'a, 'm, C> = MapSpace<&'a SimMachine, C, &'a SimPages<'m>>;

struct Rig<'a, 'm, C: va_block::Config> {
    machine: &'a SimMachine,
    pages: &'a SimPages<'m>,
    map: Map<'a, 'm, C>,
    model: MapModel,
    /// Something may be refused.
    refusing: bool,
}

impl<C: va_block::Config> Rig<'_, '_, C> {
    /// What the machine refuses is refused; anything else fits in this window.
    fn excused(&mut self, error: &dyn std::fmt::Display) -> Result<(), String> {
        if self.refusing { Ok(()) } else { Err(format!("refused without a reason: {error}")) }
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Vmalloc { bytes, more, align_log2, huge, zeroed } => {
                let request = AreaRequest {
                    range_bytes: bytes + more,
                    align: Align::from_log2(*align_log2).unwrap(),
                    leaves: if *huge { Leaves::HugeWherePossible } else { Leaves::Small },
                    fill: fill(*zeroed),
                    guard: Guard::Page,
                    ..AreaRequest::new(*bytes)
                };
                match self.map.vmalloc(1, &request) {
                    Ok(at) => self.model.vmalloc(at, &request),
                    Err(_) if *bytes == 0 => Ok(()),
                    Err(error) => self.excused(&error),
                }
            }
            Op::Vfree { nth } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
                self.map.vfree(at).map_err(|error| error.to_string())?;
                self.model.free(at);
                if self.map.vfree(at).is_ok() { Err("freed twice".to_owned()) } else { Ok(()) }
            }
            Op::Vrealloc { nth, bytes, zeroed } => {
                let Some(at) = pick(&self.model.starts(Kind::Vmalloc), *nth) else { return Ok(()) };
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
            Op::Refuse { what, after } => {
                let what = [Ask::Pages, Ask::HugePage, Ask::TablePage, Ask::HugeLeaf][usize::from(*what)];
                let after = if *after == 5 { u64::MAX } else { *after };
                self.pages.refuse_after(what, after);
                // Huge pages can be done without.
                self.refusing |= matches!(what, Ask::Pages | Ask::TablePage);
                Ok(())
            }
            Op::Flushing { when_told } => {
                self.machine.complete_flushes();
                self.machine.set_flushing(if *when_told { Flushing::WhenTold } else { Flushing::AtOnce });
                // What waits for a flush may be missing.
                self.refusing |= *when_told;
                Ok(())
            }
        }
    }
}

fn run<C: va_block::Config>(ops: &[Op]) -> Result<(), String> {
    let machine = SimMachine::new(2);
    let pages = SimPages::new(&machine, 4000);
    let window = VaRange::from_pages(0x10, 0x4010).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map = MapSpace::<_, C, _>::new(space, &machine, &pages).unwrap();
    let mut rig = Rig { machine: &machine, pages: &pages, map, model: MapModel::default(), refusing: false };
    for (at, op) in ops.iter().enumerate() {
        let done = rig.step(op).and_then(|()| rig.model.compare(&rig.map, rig.pages));
        done.map_err(|error| format!("{error}, at {at}: {op:?}"))?;
    }
    // All of it goes back.
    for at in rig.model.starts(Kind::Vmalloc) {
        rig.map.vfree(at).unwrap();
    }
    assert_eq!(rig.pages.lent(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mp1_mp3_mp6_the_map_is_what_its_twin_says(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(run::<va_block::config::Default>(&ops), Ok(()));
    }

    #[test]
    fn mp1_mp3_mp6_the_map_is_what_its_twin_says_under_policies_of_linux(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(run::<va_block::config::Linux64>(&ops), Ok(()));
    }
}
