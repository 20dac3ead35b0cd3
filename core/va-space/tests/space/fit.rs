//! A request succeeds in its first call whenever free, pooled, lazy and cached pages together hold a fit, even if their
//! owner sleeps.

use crate::{Standard, lazy};
use proptest::prelude::*;
use va_base::{Align, Request, VaRange};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_sim::model::ModelIndex;
use va_space::config::{WithAmple, WithBestFit, WithTrees};
use va_space::{Area, Config, Magazine, Purge, SpaceError, VmapSpace};
use va_tree::FreeIndex;

const FIRST: u64 = 0xffff_c900_0000_0000 >> va_base::PAGE_SHIFT;

fn extent(pages: u64) -> VaRange {
    VaRange::from_pages(FIRST, FIRST + pages).unwrap()
}

#[derive(Clone, Debug)]
enum Call {
    Alloc { caller: usize, size: u64, align: u32, window: Option<(u64, u64)> },
    Free { caller: usize, which: usize },
    Purge(Purge),
    Shrink,
    Tick,
}

fn call(pages: u64) -> impl Strategy<Value = Call> {
    let size = prop_oneof![12 => 1..4u64, 6 => 1..40u64, 2 => 1..=pages, 1 => 250..270u64];
    let align = prop_oneof![6 => Just(0u32), 3 => 0..5u32, 1 => 0..10u32];
    let window =
        prop_oneof![6 => Just(None), 1 => (0..pages, 0..pages).prop_map(|(a, b)| Some((a.min(b), a.max(b))))];
    let purge = prop_oneof![Just(Purge::Drain), Just(Purge::Full), Just(Purge::Aliases)];
    prop_oneof![
        12 => (0..=BEST, size, align, window)
            .prop_map(|(caller, size, align, window)| Call::Alloc { caller, size, align, window }),
        10 => (0..5usize, any::<usize>()).prop_map(|(caller, which)| Call::Free { caller, which }),
        1 => purge.prop_map(Call::Purge),
        1 => Just(Call::Shrink),
        1 => Just(Call::Tick),
    ]
}

fn calls() -> impl Strategy<Value = (u64, Vec<Call>)> {
    prop_oneof![Just(60u64), Just(300), Just(1500)]
        .prop_flat_map(|pages| (Just(pages), prop::collection::vec(call(pages), 1..200)))
}

fn request(size: u64, align: u32, window: Option<(u64, u64)>) -> Request {
    let request = Request::pages(size).unwrap().aligned(Align::from_log2(12 + align).unwrap());
    match window {
        Some((low, high)) => request.within(VaRange::from_pages(FIRST + low, FIRST + high).unwrap()),
        None => request,
    }
}

/// The caller that requests the highest address.
const HIGHEST: usize = 5;
/// The caller that requests the best fit.
const BEST: usize = 6;

/// Callers 0 to `magazines.len() - 1` have a magazine, the others call the space itself.
struct Callers<'s, 'm, C: Config> {
    space: &'s VmapSpace<&'m SimMachine, C>,
    magazines: Vec<Magazine<'s, &'m SimMachine, C>>,
}

impl<C: Config> Callers<'_, '_, C> {
    fn alloc(&mut self, caller: usize, request: &Request) -> Result<Area, SpaceError> {
        match self.magazines.get_mut(caller) {
            Some(magazine) => magazine.alloc(request),
            None if caller == HIGHEST => self.space.alloc_highest(request),
            None if caller == BEST => self.space.alloc_best(request),
            None => self.space.alloc(caller as u32, request),
        }
    }
}

/// Checks that each request succeeds in its first call exactly if it fits beside the allocated areas, whatever idle
/// callers hold.
fn met<C: Config>(pages: u64, cpus: u32, magazines: usize, calls: &[Call]) -> Result<(), TestCaseError> {
    let machine = SimMachine::new(cpus);
    // Several slices for each pass.
    machine.set_online(lazy(140));
    let space = VmapSpace::<_, C>::new(extent(pages), extent(pages), &machine).unwrap();
    let created = (0..magazines).map(|cpu| space.magazine(cpu as u32).unwrap()).collect();
    let mut callers = Callers { space: &space, magazines: created };
    let mut out: Vec<Area> = Vec::new();
    for call in calls {
        match call {
            &Call::Alloc { caller, size, align, window } => {
                let request = request(size, align, window);
                let mut model = ModelIndex::new(extent(pages), extent(pages)).unwrap();
                for area in &out {
                    model.take(area.range()).unwrap();
                }
                let fits = model.would_fit(&request).is_ok();
                let got = callers.alloc(caller, &request);
                prop_assert_eq!(got.is_ok(), fits, "{:?}: {:?}", call, got);
                if let Ok(area) = got {
                    prop_assert_eq!(machine.map(area.range()), Ok(()));
                    prop_assert!(area.start().is_aligned(request.align()));
                    prop_assert!(request.window().unwrap_or(extent(pages)).encloses(area.range()));
                    prop_assert_eq!(area.size(), request.size());
                    out.push(area);
                }
            }
            &Call::Free { caller, which } if !out.is_empty() => {
                let area = out.swap_remove(which % out.len());
                machine.unmap(area.range());
                let done = match callers.magazines.get_mut(caller) {
                    Some(magazine) => magazine.free(area),
                    None => space.free(area),
                };
                prop_assert_eq!(done, Ok(()));
            }
            Call::Free { .. } => {}
            &Call::Purge(how) => prop_assert!(!space.purge(how).waiting),
            Call::Shrink => _ = space.shrink(),
            Call::Tick => _ = space.tick(),
        }
        prop_assert_eq!(space.validate(), Ok(()), "{:?}", call);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(96), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_request_succeeds_whenever_all_that_is_not_busy_holds_a_fit(
        (pages, calls) in calls(), cpus in 1..5u32, magazines in 0..4usize,
    ) {
        met::<Standard>(pages, cpus, magazines, &calls)?;
        met::<WithTrees<Standard>>(pages, cpus, magazines, &calls)?;
        met::<WithBestFit<Standard>>(pages, cpus, magazines, &calls)?;
        met::<WithAmple<Standard>>(pages, cpus, magazines, &calls)?;
    }
}

#[test]
fn what_an_idle_magazine_holds_is_drained_by_the_request_that_needs_it() {
    // Caller 0 fills the space and frees it into its magazine: all is cached there, and caller 1 needs it.
    let one = |caller, size| Call::Alloc { caller, size, align: 0, window: None };
    for freed in [1, 10, 30] {
        let mut calls = vec![one(0, 60 / freed); freed as usize];
        calls.extend((0..freed).map(|_| Call::Free { caller: 0, which: 0 }));
        calls.push(one(1, 60));
        met::<Standard>(60, 2, 2, &calls).unwrap();
    }
    // The same request failed before, and since then areas were freed only into a magazine.
    let calls = [one(0, 40), one(5, 30), Call::Free { caller: 0, which: 0 }, one(5, 30)];
    met::<Standard>(60, 2, 2, &calls).unwrap();
}
