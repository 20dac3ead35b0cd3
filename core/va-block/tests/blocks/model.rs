//! Blocks beside their reference model on random calls: the same addresses, errors and counts. The machine reports any
//! address that is used again too early.

use proptest::prelude::*;
use va_base::PAGE_SIZE;
use va_block::config::{Hashed, OneMap, Spread};
use va_sim::block_run::{self, Call, Conditions, PAGES_MAX};
use va_sim::effort::some;
use va_space::Purge;

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..6u64, 4 => 6..65u64, 1 => 65..140u64, 1 => Just(0), 1 => Just(1 << 52)]
}

fn call() -> impl Strategy<Value = Call> {
    let cpu = 0..4u32;
    let page = 0..PAGES_MAX;
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

fn calls() -> impl Strategy<Value = (u64, Vec<Call>)> {
    (300..PAGES_MAX, prop::collection::vec(call(), 1..160))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(160), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Under our policies, Linux's, and Linux's with one map.
    #[test]
    fn vb1_to_vb7_blocks_answer_as_their_model((pages, calls) in calls(), cpus in 1..4u32) {
        block_run::ours_beside_model(pages, cpus, &calls);
        block_run::linux_beside_model(pages, cpus, &calls);
        block_run::one_map_beside_model(pages, cpus, &calls);
    }

    /// Two lanes beside calls by CPU, in slices, with flushes that end late and a machine that fails.
    #[test]
    fn sp2_to_sp4_hold_with_lanes_and_late_flushes_and_failures(
        (pages, calls) in calls(),
        late in any::<bool>(),
        allocates in prop_oneof![3 => Just(u64::MAX), 1 => 0..12u64],
    ) {
        block_run::with_lanes(Conditions { pages, late, allocates }, &calls);
    }
}

#[test]
fn any_bytes_are_calls_and_all_calls_have_bytes() {
    let calls: Vec<Call> = (0..=255u8).map(|what| Call::decode([what, 3, what, what, 7, 1])).collect();
    let of = |is: fn(&Call) -> bool| calls.iter().filter(|call| is(call)).count();
    assert!(
        of(|call| matches!(call, Call::Alloc { .. })) > 80
            && of(|call| matches!(call, Call::Free { .. })) > 60
    );
    assert!(of(|call| matches!(call, Call::Wild { byte, .. } if byte % PAGE_SIZE != 0)) > 0);
    let rest = [
        Call::Again { cpu: 3 },
        Call::Find { page: 263 },
        Call::Aliases,
        Call::Shrink,
        Call::Purge(Purge::Full),
    ];
    assert!(rest.iter().all(|call| calls.contains(call)));
    assert_eq!(Call::decode_all(&[0; 13]).count(), 2);
    assert_eq!(Call::decode_all(&[0; 13]).next().unwrap(), Call::Alloc { cpu: 0, pages: 1 });
}

#[test]
fn hashing_spreads_neighbours_and_one_map_does_not() {
    let buckets: Vec<u32> = (0..6).map(|index| Hashed::bucket(index, 4)).collect();
    assert_eq!(buckets, [0, 1, 2, 3, 0, 1]);
    assert!((0..100).all(|index| OneMap::bucket(index, 4) == 0 && Hashed::bucket(index, 3) < 3));
}
