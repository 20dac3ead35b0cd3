//! A space beside its reference model on random calls: the same addresses and the same counts. The machine reports any
//! address that is used again too early.

use crate::{Linux69, OneLock52, Standard, Whole, lazy};
use proptest::prelude::*;
use va_base::{Align, PAGE_SIZE, Pages, Platform, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_sim::model::ModelIndex;
use va_sim::platform::HeapPlatform;
use va_sim::space_model::SpaceModel;
use va_space::config::{self, WithAmple, WithTrees};
use va_space::decay::{Decay, QuarterOfIdle};
use va_space::lookup::Upward;
use va_space::node::{HashedZones, Zone};
use va_space::{Config, Purge, State, VmapSpace};
use va_tree::FreeIndex;

/// With a tree in each node.
type Trees = WithTrees<Whole>;
type TreesUp = WithTrees<Whole, Upward>;

/// A few dozen pages reach every limit.
const LAZY: u32 = lazy(60);

/// A call that a test can make on a space. Numbers are taken modulo the number of choices.
#[derive(Clone, Debug)]
enum Call {
    Alloc { cpu: u32, size: u64, align: u32, window: Option<(u64, u64)> },
    Free(usize),
    FreeAt(u64),
    Find(u64),
    Purge(Purge),
    Shrink,
}

fn call(pages: u64) -> impl Strategy<Value = Call> {
    let size = prop_oneof![16 => 1..4u64, 4 => 1..60u64, 1 => 1..2 * pages, 1 => 250..270u64];
    let align = prop_oneof![6 => Just(0u32), 3 => 0..5u32, 1 => 0..12u32];
    let window =
        prop_oneof![6 => Just(None), 1 => (0..pages, 0..pages).prop_map(|(a, b)| Some((a.min(b), a.max(b))))];
    let purge = prop_oneof![Just(Purge::Drain), Just(Purge::Full), Just(Purge::Aliases)];
    prop_oneof![
        10 => (0..5u32, size, align, window).prop_map(|(cpu, size, align, window)| Call::Alloc { cpu, size, align, window }),
        8 => any::<usize>().prop_map(Call::Free),
        1 => (0..pages * PAGE_SIZE).prop_map(Call::FreeAt),
        2 => (0..pages * PAGE_SIZE).prop_map(Call::Find),
        1 => purge.prop_map(Call::Purge),
        1 => Just(Call::Shrink),
    ]
}

const FIRST: u64 = 0xffff_c900_0000_0000 >> va_base::PAGE_SHIFT;

fn extent(pages: u64) -> VaRange {
    VaRange::from_pages(FIRST, FIRST + pages).unwrap()
}

fn request(size: u64, align: u32, window: Option<(u64, u64)>) -> Request {
    let request = Request::pages(size).unwrap().aligned(Align::from_log2(12 + align).unwrap());
    match window {
        Some((low, high)) => request.within(VaRange::from_pages(FIRST + low, FIRST + high).unwrap()),
        None => request,
    }
}

/// Runs `calls` on both and compares all observable state.
fn compare<C: Config, I: FreeIndex>(
    pages: u64,
    cpus: u32,
    index: I,
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let machine = SimMachine::new(cpus);
    machine.set_online(LAZY);
    let space = VmapSpace::<_, C>::new(extent(pages), extent(pages), &machine).unwrap();
    let mut model = SpaceModel::<C, I>::new(index, cpus);
    model.set_online(LAZY);
    let mut out = Vec::new();
    for call in calls {
        match call {
            &Call::Alloc { cpu, size, align, window } => {
                let request = request(size, align, window);
                let got = space.alloc(cpu, &request);
                let want = model.alloc(cpu, &request);
                prop_assert_eq!(got.as_ref().ok().map(va_space::Area::start), want, "{:?}", call);
                if let Ok(area) = got {
                    prop_assert_eq!(machine.map(area.range()), Ok(()));
                    out.push(area);
                }
            }
            &Call::Free(n) if !out.is_empty() => {
                let area = out.swap_remove(n % out.len());
                let range = area.range();
                machine.unmap(range);
                prop_assert_eq!(space.free(area), Ok(()));
                prop_assert_eq!(model.free_at(range.start()), Some(range));
            }
            Call::Free(_) => {}
            &Call::FreeAt(offset) => {
                let at = Va::new(extent(pages).start().get() + offset / 3 * 3);
                if let Some(area) = out.iter().position(|area| area.start() == at) {
                    machine.unmap(out.swap_remove(area).range());
                }
                prop_assert_eq!(space.free_at(at).ok(), model.free_at(at));
            }
            &Call::Find(offset) => {
                let at = Va::new(extent(pages).start().get() + offset);
                let want = model.find_above(at);
                prop_assert_eq!(space.find_above(at).map(|seen| seen.range), want);
                let want = want.filter(|range| range.contains(at));
                prop_assert_eq!(space.find_enclosing(at).map(|seen| seen.range), want);
                prop_assert_eq!(
                    space.find(at).map(|seen| seen.range),
                    want.filter(|range| range.start() == at)
                );
            }
            &Call::Purge(how) => {
                prop_assert!(!space.purge(how).waiting);
                model.purge(how);
            }
            Call::Shrink => prop_assert_eq!(space.shrink(), model.shrink()),
        }
        prop_assert_eq!(space.validate(), Ok(()), "{:?}", call);
        prop_assert_eq!(model.validate(), Ok(()), "{:?}", call);
        let stats = space.stats();
        prop_assert_eq!(stats.lazy_pages.get(), model.lazy_pages());
        prop_assert_eq!(stats.pooled_areas, model.pooled_areas());
        prop_assert_eq!(stats.free_pages, model.index().free_pages());
        prop_assert_eq!(stats.holes, model.index().hole_count());
        let busy: Vec<_> =
            space.areas().filter(|seen| seen.state == State::Busy).map(|seen| seen.range).collect();
        prop_assert_eq!(busy, model.busy().collect::<Vec<_>>());
    }
    drop(space);
    prop_assert_eq!(machine.tables(), 0, "every table was freed");
    Ok(())
}

fn exact(pages: u64) -> ModelIndex {
    ModelIndex::new(extent(pages), extent(pages)).unwrap()
}

fn calls() -> impl Strategy<Value = (u64, Vec<Call>)> {
    prop_oneof![Just(100u64), Just(700), Just(3000)]
        .prop_flat_map(|pages| (Just(pages), prop::collection::vec(call(pages), 1..150)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(96), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_default_space_answers_as_its_model((pages, calls) in calls(), cpus in 1..5u32) {
        compare::<Whole, _>(pages, cpus, exact(pages), &calls)?;
    }

    #[test]
    fn a_space_with_ample_holes_answers_as_its_model((pages, calls) in calls(), cpus in 1..5u32) {
        compare::<WithAmple<Whole>, _>(pages, cpus, exact(pages), &calls)?;
    }

    #[test]
    fn lk1_lk2_a_space_with_trees_answers_as_its_model((pages, calls) in calls(), cpus in 1..5u32) {
        compare::<Trees, _>(pages, cpus, exact(pages), &calls)?;
        compare::<TreesUp, _>(pages, cpus, exact(pages), &calls)?;
    }

    #[test]
    fn the_linux_space_answers_as_its_model((pages, calls) in calls(), cpus in 1..5u32) {
        let index = Linux69::index(extent(pages), extent(pages), HeapPlatform::default()).unwrap();
        compare::<Linux69, _>(pages, cpus, index, &calls)?;
    }

    #[test]
    fn the_one_lock_space_answers_as_its_model((pages, calls) in calls(), cpus in 1..5u32) {
        let index = OneLock52::index(extent(pages), extent(pages), HeapPlatform::default()).unwrap();
        compare::<OneLock52, _>(pages, cpus, index, &calls)?;
    }

    /// In slices the addresses may differ from the model's. All else must hold, and a request succeeds whenever the
    /// pages that are not busy hold a fit.
    #[test]
    fn a_sliced_space_allocates_whatever_is_not_busy((pages, calls) in calls(), cpus in 1..5u32, magazines: bool) {
        let machine = SimMachine::new(cpus);
        // Several slices for each pass.
        machine.set_online(lazy(140));
        let space = VmapSpace::<_, Standard>::new(extent(pages), extent(pages), &machine).unwrap();
        // Even CPUs call for themselves, odd ones through the one magazine.
        let mut magazine = space.magazine(cpus / 2).unwrap();
        let mut out: Vec<va_space::Area> = Vec::new();
        for call in &calls {
            match call {
                &Call::Alloc { cpu, size, align, window } => {
                    let request = request(size, align, window);
                    let mut model = exact(pages);
                    for area in &out {
                        model.take(area.range()).unwrap();
                    }
                    let got = if cpu % 2 == 0 && magazines { magazine.drain(); space.alloc(cpu, &request) } else { magazine.alloc(&request) };
                    // A pool may have had a better address for another area: then the busy areas are not those that the
                    // model would have chosen, but the model records them.
                    prop_assert_eq!(got.is_ok(), model.would_fit(&request).is_ok(), "{:?}", call);
                    if let Ok(area) = got {
                        prop_assert_eq!(machine.map(area.range()), Ok(()));
                        prop_assert!(area.start().is_aligned(request.align()));
                        prop_assert!(request.window().unwrap_or(extent(pages)).encloses(area.range()));
                        prop_assert_eq!(area.size(), request.size());
                        out.push(area);
                    }
                }
                &Call::Free(n) if !out.is_empty() => {
                    let area = out.swap_remove(n % out.len());
                    machine.unmap(area.range());
                    prop_assert_eq!(if n % 3 == 0 { space.free(area) } else { magazine.free(area) }, Ok(()));
                }
                &Call::Purge(how) => {
                    prop_assert!(!space.purge(how).waiting);
                    if how == Purge::Aliases {
                        let mapped: u64 = out.iter().map(|area| area.size().get()).sum();
                        prop_assert_eq!(machine.unclean(extent(pages)), mapped);
                    }
                }
                Call::Shrink => { space.shrink(); }
                Call::Free(_) | Call::FreeAt(_) | Call::Find(_) => { space.tick(); }
            }
            prop_assert_eq!(space.validate(), Ok(()), "{:?}", call);
        }
        let mut want: Vec<_> = out.iter().map(va_space::Area::range).collect();
        want.sort_unstable();
        let busy: Vec<_> = space.areas().filter(|seen| seen.state == State::Busy).map(|seen| seen.range).collect();
        prop_assert_eq!(busy, want);
    }
}

#[test]
fn a_model_with_another_decay_differs() {
    // The comparison above can fail: a wrong rule in the model shows within a few calls.
    struct Wrong;
    impl Decay for Wrong {
        fn quota(len: u64, idle: u64) -> u64 {
            QuarterOfIdle::quota(len, idle) + u64::from(len > 0)
        }
    }
    struct Other;
    impl Config for Other {
        type Base = config::Standard;
        type Index<P: Platform + Clone + Send> = <config::Standard as Config>::Index<P>;
        type Zone = HashedZones;
        type Decay = Wrong;
        type Lookup<P: va_base::Machine> = va_space::lookup::MapLookup;
        const NODES_MAX: u32 = 128;
        const POOL_PAGES_MAX: u64 = 256;
        const SLICE_AREAS: u64 = u64::MAX;
    }
    assert_eq!(HashedZones::node_of(&va_space::node::NodeMap::new(1, Pages::new(16)).unwrap(), Va::ZERO), 0);
    let machine = SimMachine::new(1);
    let space = VmapSpace::<_, Standard>::new(extent(100), extent(100), &machine).unwrap();
    let mut model = SpaceModel::<Other, _>::new(exact(100), 1);
    let area = space.alloc(0, &Request::pages(3).unwrap()).unwrap();
    assert_eq!(model.alloc(0, &Request::pages(3).unwrap()), Some(area.start()));
    model.free_at(area.start());
    space.free(area).unwrap();
    for _ in 0..2 {
        space.purge(Purge::Drain);
        model.purge(Purge::Drain);
    }
    assert_ne!(space.stats().pooled_areas, model.pooled_areas());
}
