//! Blocks and their obvious twin, side by side on random calls: the same addresses, refusals and counts, and a machine that
//! sees any address that comes back too early.

#![expect(clippy::unwrap_used, reason = "a test may")]

use proptest::prelude::*;
use va_base::{AllocError, PAGE_SIZE, Pages, Platform, Va, VaRange};
use va_block::config::{Default as Ours, Hashed, Linux64, OneMap, Spread};
use va_block::{Blocks, Config, Lane, UnmapError};
use va_sim::block_model::{BlockModel, Shares};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::model::ModelIndex;
use va_sim::platform::HeapPlatform;
use va_sim::space_model::SpaceModel;
use va_space::config::{self as spaces, Order};
use va_space::{Purge, VmapSpace};
use va_tree::FreeIndex;

/// Wraps the policies of a space so that a purge is one slice and comes often.
macro_rules! tiny_space {
    ($name:ident, $of:ty) => {
        struct $name;
        impl va_space::Config for $name {
            type Index<P: Platform> = <$of as va_space::Config>::Index<P>;
            type Zone = <$of as va_space::Config>::Zone;
            type Decay = <$of as va_space::Config>::Decay;
            type Lookup<P: va_base::Machine> = <$of as va_space::Config>::Lookup<P>;
            const NODES_MAX: u32 = <$of as va_space::Config>::NODES_MAX;
            const POOL_ON_ONE_NODE: bool = <$of as va_space::Config>::POOL_ON_ONE_NODE;
            const POOL_PAGES_MAX: u64 = <$of as va_space::Config>::POOL_PAGES_MAX;
            const POOL_TRIES: u32 = <$of as va_space::Config>::POOL_TRIES;
            const STEAL: bool = <$of as va_space::Config>::STEAL;
            const ORDER: Order = <$of as va_space::Config>::ORDER;
            const SLICE_AREAS: u64 = u64::MAX;
            const FAIL_FAST: bool = <$of as va_space::Config>::FAIL_FAST;
            fn lazy_max(_cpus: u32) -> Pages {
                Pages::new(300)
            }
            fn index<P: Platform>(e: VaRange, w: VaRange, p: P) -> Result<Self::Index<P>, AllocError> {
                <$of as va_space::Config>::index(e, w, p)
            }
        }
    };
}

tiny_space!(TinySpace, spaces::Default);
tiny_space!(TinySpaceLinux, spaces::Linux69);
tiny_space!(TinySpaceOneLock, spaces::OneLock52);

/// Wraps the policies of blocks so that a few dozen calls reach every limit.
macro_rules! tiny {
    ($name:ident, $of:ty, $space:ty, $spread:ty, $slice:expr) => {
        struct $name;
        impl Config for $name {
            type Space = $space;
            type Spread = $spread;
            const REUSE: bool = <$of as Config>::REUSE;
            const ROUND_UP: bool = <$of as Config>::ROUND_UP;
            const FIRST_FIT: bool = <$of as Config>::FIRST_FIT;
            const SLICE_BLOCKS: u32 = $slice;
            const TELL_PAGES: u64 = 5;
            fn block_pages(_cpus: u32) -> u64 {
                128
            }
            fn dead_max(_cpus: u32) -> Pages {
                Pages::new(100)
            }
        }
    };
}

tiny!(Tiny, Ours, TinySpace, Hashed, u32::MAX);
tiny!(TinyLinux, Linux64, TinySpaceLinux, Hashed, u32::MAX);
tiny!(TinyOneMap, Linux64, TinySpaceOneLock, OneMap, u32::MAX);
tiny!(Sliced, Ours, TinySpace, Hashed, 1);

const FIRST: u64 = 0xf_ffc9_0000_0000;

fn window(pages: u64) -> VaRange {
    // Not aligned to a block, on purpose.
    VaRange::from_pages(FIRST + 3, FIRST + 3 + pages).unwrap()
}

#[derive(Clone, Debug)]
enum Call {
    Alloc {
        cpu: u32,
        pages: u64,
    },
    /// Which of the live ones, by which CPU.
    Free {
        cpu: u32,
        n: usize,
    },
    /// What was freed last, again.
    Again {
        cpu: u32,
    },
    /// A live one with another count.
    Miscount {
        n: usize,
        pages: u64,
    },
    /// Anywhere, in bytes from the first page.
    Wild {
        byte: u64,
        pages: u64,
    },
    Find {
        page: u64,
    },
    Aliases,
    Shrink,
    Purge(Purge),
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..6u64, 4 => 6..65u64, 1 => 65..140u64, 1 => Just(0), 1 => Just(1 << 52)]
}

fn call() -> impl Strategy<Value = Call> {
    let cpu = 0..4u32;
    let page = 0..1500u64;
    prop_oneof![
        45 => (cpu.clone(), size()).prop_map(|(cpu, pages)| Call::Alloc { cpu, pages }),
        35 => (cpu.clone(), any::<usize>()).prop_map(|(cpu, n)| Call::Free { cpu, n }),
        2 => cpu.prop_map(|cpu| Call::Again { cpu }),
        3 => (any::<usize>(), size()).prop_map(|(n, pages)| Call::Miscount { n, pages }),
        4 => (page.clone(), prop_oneof![4 => Just(0), 1 => 1..PAGE_SIZE], size())
            .prop_map(|(page, odd, pages)| Call::Wild { byte: page * PAGE_SIZE + odd, pages }),
        4 => page.prop_map(|page| Call::Find { page }),
        2 => Just(Call::Aliases),
        1 => Just(Call::Shrink),
        1 => prop_oneof![Just(Purge::Full), Just(Purge::Drain)].prop_map(Call::Purge),
    ]
}

/// Live mappings: address and count.
type Out = Vec<(Va, u64)>;

fn range(at: Va, pages: u64) -> VaRange {
    VaRange::from_size(at, pages * PAGE_SIZE).unwrap()
}

fn compare<C: Config, I: FreeIndex>(
    pages: u64,
    cpus: u32,
    index: I,
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let machine = SimMachine::new(cpus);
    let space = VmapSpace::new(window(pages), window(pages), &machine).unwrap();
    let blocks = Blocks::<_, C>::new(space, &machine).unwrap();
    let mut model = BlockModel::<C, _>::new(SpaceModel::new(index, cpus), cpus);
    let mut out = Out::new();
    let mut last = (Va::ZERO, 1);
    for call in calls {
        match *call {
            Call::Alloc { cpu, pages } => {
                let got = blocks.alloc(cpu, pages);
                prop_assert_eq!(got.ok(), model.alloc(cpu, pages), "{:?}: {:?}", call, got);
                if let Ok(at) = got {
                    prop_assert_eq!(machine.map(range(at, pages)), Ok(()));
                    out.push((at, pages));
                }
            }
            Call::Free { cpu, n } if !out.is_empty() => {
                let (at, pages) = out.swap_remove(n % out.len());
                machine.unmap(range(at, pages));
                prop_assert_eq!(blocks.free(cpu, at, pages), Ok(()));
                prop_assert_eq!(model.free(cpu, at, pages), Ok(()));
                last = (at, pages);
            }
            Call::Again { cpu } if !out.iter().any(|&(at, _)| at == last.0) => {
                let got = blocks.free(cpu, last.0, last.1);
                prop_assert_eq!(got, model.free(cpu, last.0, last.1));
                prop_assert!(got.is_err());
            }
            Call::Miscount { n, pages } if !out.is_empty() => {
                let (at, right) = out[n % out.len()];
                if pages != right {
                    let got = blocks.free(0, at, pages);
                    prop_assert_eq!(got, model.free(0, at, pages), "{:?} of {}", call, right);
                    prop_assert!(got.is_err());
                }
            }
            Call::Wild { byte, pages } => {
                let at = Va::new(FIRST * PAGE_SIZE + byte);
                if !out.contains(&(at, pages)) {
                    let got = blocks.free(0, at, pages);
                    prop_assert_eq!(got, model.free(0, at, pages), "{:?}", call);
                    prop_assert!(got.is_err());
                }
            }
            Call::Find { page } => {
                let at = Va::from_page(FIRST + page);
                prop_assert_eq!(blocks.find_enclosing(at), model.find_enclosing(at));
            }
            Call::Aliases => {
                prop_assert!(!blocks.unmap_aliases().waiting);
                model.unmap_aliases();
                let mapped: u64 = out.iter().map(|(_, pages)| pages).sum();
                prop_assert_eq!(machine.unclean(window(pages)), mapped, "something stale is left");
            }
            Call::Shrink => {
                prop_assert!(!blocks.shrink().waiting);
                model.shrink();
            }
            Call::Purge(how) => {
                blocks.space().purge(how);
                model.purge(how);
            }
            Call::Free { .. } | Call::Again { .. } | Call::Miscount { .. } => {}
        }
        let stats = blocks.stats();
        let shares = Shares {
            blocks: stats.blocks,
            free: stats.free_pages.get(),
            live: stats.live_pages.get(),
            dead: stats.dead_pages.get(),
        };
        prop_assert_eq!(shares, model.shares(), "{:?}", call);
        prop_assert_eq!(blocks.space().lazy_pages().get(), model.space().lazy_pages());
        prop_assert_eq!(blocks.validate(), Ok(()), "{:?}", call);
    }
    Ok(())
}

fn calls() -> impl Strategy<Value = (u64, Vec<Call>)> {
    (300..1500u64, prop::collection::vec(call(), 1..160))
}

fn index<C: va_space::Config>(pages: u64) -> C::Index<HeapPlatform> {
    C::index(window(pages), window(pages), HeapPlatform::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn vb1_to_vb7_our_blocks_answer_as_their_twin((pages, calls) in calls(), cpus in 1..4u32) {
        compare::<Tiny, _>(pages, cpus, ModelIndex::new(window(pages), window(pages)).unwrap(), &calls)?;
    }

    #[test]
    fn vb1_to_vb7_linux_blocks_answer_as_their_twin((pages, calls) in calls(), cpus in 1..4u32) {
        compare::<TinyLinux, _>(pages, cpus, index::<TinySpaceLinux>(pages), &calls)?;
    }

    #[test]
    fn vb1_to_vb7_blocks_with_one_map_answer_as_their_twin((pages, calls) in calls(), cpus in 1..4u32) {
        compare::<TinyOneMap, _>(pages, cpus, index::<TinySpaceOneLock>(pages), &calls)?;
    }

    /// Two lanes beside calls by CPU, in slices, flushes that end late: no twin, but nothing is given out twice or too
    /// early, nothing is lost, and every wrong call is refused.
    #[test]
    fn sp2_lanes_and_late_flushes_give_out_nothing_too_early((pages, calls) in calls(), late in any::<bool>()) {
        let machine = SimMachine::new(3);
        machine.set_flushing(if late { Flushing::WhenTold } else { Flushing::AtOnce });
        let space = VmapSpace::new(window(pages), window(pages), &machine).unwrap();
        let blocks = Blocks::<_, Sliced>::new(space, &machine).unwrap();
        let mut lanes = [Some(blocks.lane(0)), Some(blocks.lane(1))];
        let mut out = Out::new();
        for call in &calls {
            let laned = |cpu: u32, lanes: &mut [Option<Lane<'_, _, Sliced>>; 2], go: &mut dyn FnMut(Option<&mut Lane<'_, _, Sliced>>)| {
                go(lanes.get_mut(cpu as usize).and_then(Option::as_mut));
            };
            match *call {
                Call::Alloc { cpu, pages } => {
                    let mut got = None;
                    laned(cpu, &mut lanes, &mut |lane| got = match lane {
                        Some(lane) => lane.alloc(pages).ok(),
                        None => blocks.alloc(cpu, pages).ok(),
                    });
                    if let Some(at) = got {
                        prop_assert_eq!(machine.map(range(at, pages)), Ok(()), "{:?}", call);
                        out.push((at, pages));
                    }
                }
                Call::Free { cpu, n } if !out.is_empty() => {
                    let (at, pages) = out.swap_remove(n % out.len());
                    machine.unmap(range(at, pages));
                    laned(cpu, &mut lanes, &mut |lane| assert_eq!(match lane {
                        Some(lane) => lane.free(at, pages),
                        None => blocks.free(cpu, at, pages),
                    }, Ok(())));
                    let again = blocks.free(cpu, at, pages);
                    let refused = matches!(again, Err(UnmapError::Twice { .. } | UnmapError::NotMapped { .. }));
                    prop_assert!(refused, "{:?}", again);
                }
                Call::Miscount { n, pages } if !out.is_empty() => {
                    let (at, right) = out[n % out.len()];
                    laned(0, &mut lanes, &mut |lane| if let Some(lane) = lane && pages != right {
                        assert!(lane.free(at, pages).is_err());
                    });
                }
                Call::Wild { byte, pages } => {
                    let at = Va::new(FIRST * PAGE_SIZE + byte);
                    laned(1, &mut lanes, &mut |lane| if let Some(lane) = lane && !out.contains(&(at, pages)) {
                        assert!(lane.free(at, pages).is_err());
                    });
                }
                // A lane comes, goes or hands back.
                Call::Find { page } if page % 3 == 0 => lanes[0] = lanes[0].take().is_none().then(|| blocks.lane(0)),
                Call::Find { .. } => lanes[1].iter_mut().for_each(Lane::park),
                Call::Aliases => {
                    let first = blocks.unmap_aliases();
                    machine.complete_flushes();
                    if first.waiting {
                        // Of the second call, all flushes end at once.
                        machine.set_flushing(Flushing::AtOnce);
                        prop_assert!(!blocks.unmap_aliases().waiting);
                        machine.set_flushing(Flushing::WhenTold);
                    }
                    let mapped: u64 = out.iter().map(|(_, pages)| pages).sum();
                    prop_assert_eq!(machine.unclean(window(pages)), mapped, "something stale is left");
                }
                Call::Shrink => { blocks.shrink(); }
                Call::Purge(how) => { machine.complete_flushes(); blocks.tick(); blocks.space().purge(how); }
                Call::Free { .. } | Call::Again { .. } | Call::Miscount { .. } => { machine.complete_flushes(); }
            }
            prop_assert_eq!(blocks.validate(), Ok(()), "{:?}", call);
            let small: u64 = out.iter().map(|&(_, pages)| if pages <= 64 { pages } else { 0 }).sum();
            prop_assert_eq!(blocks.stats().live_pages.get(), small);
            for &(at, pages) in out.iter().filter(|&&(_, pages)| pages <= 64).take(5) {
                prop_assert_eq!(blocks.find_enclosing(range(at, pages).end().align_down(va_base::Align::PAGE)).filter(|seen| seen.start() == at), None);
                prop_assert_eq!(blocks.find_enclosing(Va::new(at.get() + pages * PAGE_SIZE - 1)), Some(range(at, pages)));
            }
        }
        // All of it comes back, and the space is whole.
        drop(lanes);
        machine.set_flushing(Flushing::AtOnce);
        machine.complete_flushes();
        for (at, pages) in out {
            machine.unmap(range(at, pages));
            prop_assert_eq!(blocks.free(2, at, pages), Ok(()));
        }
        blocks.shrink();
        prop_assert_eq!(blocks.stats().blocks, 0);
        blocks.space().purge(Purge::Full);
        prop_assert_eq!(blocks.space().stats().holes, 1);
        prop_assert_eq!(machine.unclean(window(pages)), 0);
        prop_assert_eq!(blocks.validate(), Ok(()));
    }
}

#[test]
fn hashing_spreads_neighbours_and_one_map_does_not() {
    let buckets: Vec<u32> = (0..6).map(|index| Hashed::bucket(index, 4)).collect();
    assert_eq!(buckets, [0, 1, 2, 3, 0, 1]);
    assert!((0..100).all(|index| OneMap::bucket(index, 4) == 0 && Hashed::bucket(index, 3) < 3));
}
