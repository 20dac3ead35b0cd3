//! Objects that are set aside for callers that cannot wait.
use std::collections::BTreeMap;
use va_base::Va;
use va_percpu::config::{Linux612, Runs, Standard};
use va_percpu::{AllocError, Backend, Config, Context, Geometry, Offset, PercpuSpace, Request};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::percpu::{SIZES, SimChunks};

const BASE: Va = Va::new(1 << 36);

type Space<C> = PercpuSpace<SimMachine, SimChunks, C>;

fn space<C: Config>() -> Space<C> {
    let geometry = Geometry::new(SIZES, BASE).unwrap();
    PercpuSpace::new(geometry, SimMachine::new(2), SimChunks::with_contents()).unwrap()
}

/// Allocates objects of a whole page until no populated page is left.
fn use_up<C: Config>(space: &Space<C>) -> Vec<Offset> {
    let page = Request::new(4096, 4096).context(Context::Atomic);
    let word = Request::new(4, 4).context(Context::Atomic);
    let all = core::iter::from_fn(|| space.alloc(&page).ok()).collect::<Vec<_>>();
    all.into_iter().chain(core::iter::from_fn(|| space.alloc(&word).ok())).collect()
}

fn serves_when_no_page_is_left<C: Config>() {
    let space = space::<C>();
    let request = Request::new(1000, 8);
    let reserve = space.reserve(&request, 10).unwrap();
    assert_eq!((reserve.held(), space.stats().live), (10, 10));
    let others = use_up(&space);
    space.backend().fail_after(0);
    let mut objects = Vec::new();
    for left in (0..10).rev() {
        objects.push(reserve.alloc().unwrap());
        assert_eq!(reserve.held(), left);
    }
    assert!(matches!(reserve.alloc(), Err(AllocError::NoneInReach { bytes: 1000, .. })));
    assert!(space.is_balance_due());
    // Filled again, as soon as there is memory; nothing changes before.
    assert!(reserve.refill().is_err());
    assert_eq!(reserve.held(), 0);
    space.backend().fail_after(u64::MAX);
    reserve.refill().unwrap();
    assert_eq!(reserve.held(), 10);
    space.validate().unwrap();
    objects.iter().chain(&others).for_each(|&object| space.free(object).unwrap());
    assert_eq!(space.stats().live, 10);
    drop(reserve);
    assert_eq!(space.stats().live, 0);
    space.validate().unwrap();
}

#[test]
fn a_reserve_serves_when_no_populated_page_is_left() {
    serves_when_no_page_is_left::<Standard>();
    serves_when_no_page_is_left::<Runs>();
    serves_when_no_page_is_left::<Linux612>();
}

#[test]
fn a_reserve_that_cannot_be_had_sets_nothing_aside() {
    let space = space::<Standard>();
    space.backend().fail_after(1);
    let error = space.reserve(&Request::new(20_000, 8), 8).unwrap_err();
    assert!(matches!(error, AllocError::NotPopulated { .. } | AllocError::NoChunk { .. }), "{error}");
    space.machine().fail_after(0, u64::MAX);
    let error = space.reserve(&Request::new(8, 8), 1 << 20).unwrap_err();
    assert_eq!(error, AllocError::NoList { count: 1 << 20 });
    assert_eq!(error.to_string(), "no records were allocated for a list of 1048576 objects");
    assert_eq!(space.reserve(&Request::new(0, 8), 3).unwrap_err(), AllocError::BadSize { bytes: 0 });
    assert_eq!(space.stats().live, 0);
    let none = space.reserve(&Request::new(8, 8), 0).unwrap();
    assert_eq!(none.held(), 0);
    none.refill().unwrap();
    space.validate().unwrap();
}

/// Random calls beside a model: the objects that callers have, and the number that is set aside.
fn beside_a_model<C: Config>(seed: u64) {
    let space = space::<C>();
    let mut rng = Rng::new(seed);
    let requests = [(8, 8, 20), (200, 8, 6), (4096, 64, 3)];
    let reserves =
        requests.map(|(size, align, count)| space.reserve(&Request::new(size, align), count).unwrap());
    let mut live: BTreeMap<u64, (Offset, u64)> = BTreeMap::new();
    for _ in 0..some(2000) {
        let nth = rng.below(3) as usize;
        let ((size, _, count), reserve) = (requests[nth], &reserves[nth]);
        match rng.below(8) {
            0 => space.backend().fail_after(rng.below(3)),
            1 => space.backend().fail_after(u64::MAX),
            2 => {
                let held = reserve.held();
                match reserve.refill() {
                    Ok(()) => assert_eq!(reserve.held(), count),
                    Err(_) => assert!(reserve.held() >= held),
                }
            }
            3 => {
                let _more = space.tick();
            }
            4 | 5 if !live.is_empty() => {
                let key = live.keys().nth(rng.below(live.len() as u64) as usize).copied().unwrap();
                space.free(live.remove(&key).unwrap().0).unwrap();
            }
            _ => {
                let held = reserve.held();
                let Ok(object) = reserve.alloc() else {
                    assert_eq!(held, 0, "a request failed beside {held} objects");
                    continue;
                };
                assert!(reserve.held() == held || reserve.held() == held - 1);
                let (at, bytes) = (object.at(BASE), size as u64);
                let before = live.range(..at.get() + bytes).next_back();
                assert!(before.is_none_or(|(start, (_, bytes))| start + bytes <= at.get()), "{object}");
                let found = space.find(object).unwrap();
                let zero = space.backend().is_zero(space.geometry(), found.base, found.off, size as u32);
                assert_eq!(zero, Some(true), "{object}");
                space.backend().write(at, size as u32);
                live.insert(at.get(), (object, bytes));
            }
        }
        let held: u64 = reserves.iter().map(|reserve| u64::from(reserve.held())).sum();
        assert_eq!(space.stats().live, live.len() as u64 + held);
    }
    space.validate().unwrap();
    drop(reserves);
    assert_eq!(space.stats().live, live.len() as u64);
    live.into_values().for_each(|(object, _)| space.free(object).unwrap());
    space.validate().unwrap();
}

#[test]
fn reserves_beside_a_model_of_them() {
    for seed in 1..4 {
        beside_a_model::<Standard>(seed);
        beside_a_model::<Runs>(seed);
        beside_a_model::<Linux612>(seed);
    }
}
