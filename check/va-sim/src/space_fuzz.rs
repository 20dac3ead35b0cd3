//! The body of the fuzz target of spaces: arbitrary calls, on a space and its reference model, or with faults and
//! magazines.
//!
//! The first byte chooses policies, CPUs and pages; four bytes more make a call: its kind, its caller, and two numbers.

use crate::machine::{Flushing, SimMachine};
use crate::model::ModelIndex;
use crate::platform::HeapPlatform;
use crate::small::{Small, lazy};
use crate::space_model::SpaceModel;
use va_base::{Align, AllocError, Pages, Request, Va, VaRange};
use va_space::config::{Linux69, OneLock52, Standard, WithAmple, WithTrees};
use va_space::{Area, Config, Magazine, Purge, ReleaseError, SpaceError, State, VmapSpace};
use va_tree::FreeIndex;

const FIRST: u64 = 0xffff_c900_0000_0000 >> va_base::PAGE_SHIFT;
/// CPUs online, with which a purge is due above 60 pages.
const LAZY: u32 = lazy(60);
/// Calls of one input at most.
const CALLS_MAX: usize = 300;

/// One purge is one slice, as the model has it.
type Whole<C> = Small<C, { u64::MAX }>;
type Sliced<C> = Small<C, 3>;

fn fine<T, E: std::fmt::Display>(got: Result<T, E>) -> T {
    got.unwrap_or_else(|error| panic!("{error}"))
}

fn pages_of(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap_or_default()
}

/// A decoded call.
struct Call {
    what: u8,
    caller: u32,
    low: u64,
    high: u64,
}

impl Call {
    fn all(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes.chunks_exact(4).take(CALLS_MAX).map(|bytes| Self {
            what: bytes[0],
            caller: u32::from(bytes[1]),
            low: u64::from(bytes[2]),
            high: u64::from(bytes[3]),
        })
    }

    fn request(&self, pages: u64) -> Option<Request> {
        let size = match self.low % 8 {
            0 => 1 + self.high % pages,
            1 => 250 + self.high % 20,
            _ => 1 + self.high % 7,
        };
        let align = Align::from_log2(12 + u32::from(self.what >> 6) * (self.caller >> 5))?;
        let request = Request::pages(size).ok()?.aligned(align);
        if !self.low.is_multiple_of(11) {
            return Some(request);
        }
        let low = FIRST + self.low * pages / 256;
        VaRange::from_pages(low, low + self.high + 1).map(|window| request.within(window))
    }
}

/// Decodes calls and makes them.
///
/// # Panics
/// At the first result that is not the model's, broken invariant, or address that is used again too early.
#[inline]
pub fn space_ops(data: &[u8]) {
    let Some((&selector, bytes)) = data.split_first() else { return };
    let (cpus, pages) =
        (1 + u32::from(selector >> 3 & 3), [90, 600, 3000, 5000][usize::from(selector >> 5 & 3)]);
    let extent = pages_of(FIRST, FIRST + pages);
    let exact = || fine(ModelIndex::new(extent, extent));
    match selector & 7 {
        0 if selector & 0x80 != 0 => {
            beside_model::<Whole<WithAmple<Standard>>, _>(extent, cpus, exact(), bytes);
        }
        0 => beside_model::<Whole<Standard>, _>(extent, cpus, exact(), bytes),
        1 => beside_model::<Whole<WithTrees<Standard>>, _>(extent, cpus, exact(), bytes),
        2 => beside_model::<Whole<Linux69>, _>(
            extent,
            cpus,
            fine(Linux69::index(extent, extent, HeapPlatform::default())),
            bytes,
        ),
        3 => beside_model::<Whole<OneLock52>, _>(
            extent,
            cpus,
            fine(OneLock52::index(extent, extent, HeapPlatform::default())),
            bytes,
        ),
        4 => Everything::<Sliced<Standard>>::run(extent, cpus, Flushing::AtOnce, bytes),
        5 => Everything::<Sliced<Standard>>::run(extent, cpus, Flushing::OnRequest, bytes),
        6 => Everything::<Sliced<WithTrees<Standard>>>::run(extent, cpus, Flushing::OnRequest, bytes),
        _ => Everything::<Whole<Linux69>>::run(extent, cpus, Flushing::OnRequest, bytes),
    }
}

/// A space beside its reference model: the same addresses, the same counts.
fn beside_model<C: Config, I: FreeIndex>(extent: VaRange, cpus: u32, index: I, bytes: &[u8]) {
    let machine = SimMachine::new(cpus);
    machine.set_online(LAZY);
    let space = fine(VmapSpace::<_, C>::new(extent, extent, &machine));
    let mut model = SpaceModel::<C, I>::new(index, cpus);
    model.set_online(LAZY);
    let mut out: Vec<Area> = Vec::new();
    let (first, end) = extent.whole_pages();
    for call in Call::all(bytes) {
        let at = Va::new(
            Va::from_page(first + (call.low << 8 | call.high) % (end - first)).get()
                + u64::from(call.caller / 86),
        );
        match call.what % 16 {
            0..8 => {
                let Some(request) = call.request(end - first) else { continue };
                let got = space.alloc(call.caller, &request);
                assert_eq!(
                    got.as_ref().ok().map(Area::start),
                    model.alloc(call.caller, &request),
                    "{request:?}"
                );
                if let Ok(area) = got {
                    fine(machine.map(area.range()));
                    out.push(area);
                }
            }
            8..13 if !out.is_empty() => {
                let area = out.swap_remove((call.low << 8 | call.high) as usize % out.len());
                let range = area.range();
                machine.unmap(range);
                fine(space.free(area));
                assert_eq!(model.free_at(range.start()), Some(range));
            }
            8..14 => {
                if let Some(held) = out.iter().position(|area| area.start() == at) {
                    machine.unmap(out.swap_remove(held).range());
                }
                assert_eq!(space.free_at(at).ok(), model.free_at(at));
            }
            14 => {
                let how = [Purge::Drain, Purge::Full, Purge::Aliases][call.caller as usize % 3];
                assert!(!space.purge(how).waiting);
                model.purge(how);
            }
            _ => assert_eq!(space.shrink(), model.shrink()),
        }
        fine(space.validate());
        fine(model.validate());
        let found = space.find_above(at).map(|seen| seen.range);
        assert_eq!(found, model.find_above(at));
        assert_eq!(space.find_enclosing(at).map(|seen| seen.range), found.filter(|range| range.contains(at)));
        let stats = space.stats();
        let counts = (stats.lazy_pages.get(), stats.pooled_areas, stats.free_pages, stats.holes);
        let want = (
            model.lazy_pages(),
            model.pooled_areas(),
            model.index().free_pages(),
            model.index().hole_count(),
        );
        assert_eq!(counts, want);
        let busy = space.areas().filter(|seen| seen.state == State::Busy).map(|seen| seen.range);
        assert!(busy.eq(model.busy()));
    }
}

/// Magazines, failures, flushes that end on request, wrong frees.
struct Everything<'s, 'm, C: Config> {
    machine: &'m SimMachine,
    space: &'s VmapSpace<&'m SimMachine, C>,
    magazines: Vec<Magazine<'s, &'m SimMachine, C>>,
    out: Vec<Area>,
    /// No request for memory failed, and flushes end at once: a request that fits must succeed.
    plentiful: bool,
}

impl<C: Config> Everything<'_, '_, C> {
    fn run(extent: VaRange, cpus: u32, flushing: Flushing, bytes: &[u8]) {
        let machine = SimMachine::new(cpus);
        machine.set_online(LAZY);
        machine.set_flushing(flushing);
        let space = fine(VmapSpace::<_, C>::new(extent, extent, &machine));
        let magazines = (0..3).map(|cpu| fine(space.magazine(cpu))).collect();
        let plentiful = flushing == Flushing::AtOnce;
        let mut all = Everything { machine: &machine, space: &space, magazines, out: Vec::new(), plentiful };
        for call in Call::all(bytes) {
            all.step(&call, extent);
            fine(space.validate());
        }
        all.magazines.clear();
        for area in all.out {
            machine.unmap(area.range());
            fine(space.free(area));
        }
        // SP3: the remaining frees need nothing from a machine that fails everything.
        machine.fail_after(0, 0);
        while space.purge(Purge::Full).waiting {
            machine.complete_flushes();
        }
        fine(space.validate());
        let stats = space.stats();
        let (first, end) = extent.whole_pages();
        assert_eq!((stats.areas, stats.holes, stats.free_pages), (0, 1, Pages::new(end - first)), "SP1");
    }

    fn step(&mut self, call: &Call, extent: VaRange) {
        let (first, end) = extent.whole_pages();
        let owner = call.caller as usize % 5;
        match call.what % 32 {
            0..14 => self.alloc(call, extent),
            14..25 if !self.out.is_empty() => {
                let area = self.out.swap_remove((call.low << 8 | call.high) as usize % self.out.len());
                self.machine.unmap(area.range());
                fine(match self.magazines.get_mut(owner) {
                    Some(magazine) => magazine.free(area),
                    None => self.space.free(area),
                });
            }
            14..27 => {
                let at = Va::new(
                    Va::from_page(first + (call.low << 8 | call.high) % (end - first)).get()
                        + u64::from(call.caller / 86),
                );
                if self.out.iter().any(|area| area.start() == at) {
                    return;
                }
                let inside = self.out.iter().map(Area::range).find(|range| range.contains(at));
                let before = self.space.stats();
                let got = match self.magazines.get_mut(owner) {
                    Some(magazine) => magazine.free_at(at),
                    None => self.space.free_at(at),
                };
                assert_eq!(got, Err(ReleaseError::NoArea { at, inside }));
                assert_eq!(self.space.stats(), before, "SP4: a wrong free changed something");
            }
            27 => {
                self.machine.fail_after(call.low % 3, call.high % 3);
                self.plentiful = false;
            }
            28 => self.machine.fail_after(u64::MAX, u64::MAX),
            29 => self.machine.complete_flushes(),
            30 => _ = self.space.purge([Purge::Drain, Purge::Full, Purge::Aliases][call.low as usize % 3]),
            _ if call.low.is_multiple_of(3) => _ = self.space.shrink(),
            _ => _ = self.space.tick(),
        }
    }

    fn alloc(&mut self, call: &Call, extent: VaRange) {
        let (first, end) = extent.whole_pages();
        let Some(request) = call.request(end - first) else { return };
        let owner = call.caller as usize % 5;
        let busy = self.space.stats().busy_pages;
        let got = match self.magazines.get_mut(owner) {
            Some(magazine) => magazine.alloc(&request),
            None => self.space.alloc(call.caller, &request),
        };
        match got {
            Ok(area) => {
                fine(self.machine.map(area.range()));
                assert!(area.start().is_aligned(request.align()) && area.size() == request.size());
                assert!(request.window().unwrap_or(extent).encloses(area.range()));
                self.out.push(area);
            }
            Err(SpaceError::Impossible { .. }) => {
                let model = fine(ModelIndex::new(extent, extent));
                assert!(model.would_fit(&request).is_err(), "{request:?} fits into the empty space");
                assert_eq!(self.space.stats().busy_pages, busy, "SP4");
            }
            Err(SpaceError::NoSpace { cached, .. }) if self.plentiful => {
                let mut model = fine(ModelIndex::new(extent, extent));
                for area in &self.out {
                    fine(model.take(area.range()));
                }
                let fits = model.would_fit(&request).is_ok();
                assert!(!fits || cached > Pages::new(0), "{request:?} fits, and no cache has it");
                assert_eq!(self.space.stats().busy_pages, busy, "SP4");
            }
            Err(
                SpaceError::NoSpace { .. }
                | SpaceError::NoTable
                | SpaceError::Index(AllocError::NoMeta { .. }),
            ) => {
                assert_eq!(self.space.stats().busy_pages, busy, "SP4");
            }
            Err(other) => panic!("{other}"),
        }
    }
}
