//! Random operations on per-CPU memory under each engine, everything checked after each.
use proptest::prelude::*;
use va_percpu::Config;
use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_sim::effort::some;
use va_sim::percpu::{Harness, Op};

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 1..=64u32,
        3 => 65..=1024u32,
        2 => 1025..=8192u32,
        1 => 8193..=32_768u32,
        1 => prop::sample::select(&[0, 4096, 4100, 32_769, 65_536][..]),
    ]
}

fn align() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => Just(4),
        4 => (0..=12u32).prop_map(|shift| 1 << shift),
        1 => prop::sample::select(&[0, 3, 24, 8192][..]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (size(), align(), prop::bool::weighted(0.2), prop::bool::weighted(0.05))
            .prop_map(|(size, align, atomic, reserved)| Op::Alloc { size, align, atomic, reserved }),
        10 => any::<u32>().prop_map(Op::Free),
        2 => (any::<u32>(), prop_oneof![0..=40u32, 0..=70_000u32]).prop_map(|(which, behind)| Op::Wrong(which, behind)),
        2 => (any::<u32>(), prop_oneof![Just(0), 0..=40u32, 0..=70_000u32], size())
            .prop_map(|(which, behind, size)| Op::Place { which, behind, size }),
        3 => Just(Op::Tick),
        1 => Just(Op::Balance),
        1 => prop_oneof![0..=6u8, Just(255)].prop_map(Op::FailAfter),
    ]
}

/// Objects that come from slabs, and sometimes one that takes the rest.
fn small() -> impl Strategy<Value = Op> {
    let alloc = |size, align, atomic| Op::Alloc { size, align, atomic, reserved: false };
    prop_oneof![
        12 => (1..=70u32, (0..=6u32).prop_map(|shift| 1 << shift), prop::bool::weighted(0.2))
            .prop_map(move |(size, align, atomic)| alloc(size, align, atomic)),
        1 => (1..=32_768u32).prop_map(move |size| alloc(size, 4, false)),
        12 => any::<u32>().prop_map(Op::Free),
        4 => (any::<u32>(), 0..=80u32).prop_map(|(which, behind)| Op::Wrong(which, behind)),
        1 => Just(Op::Balance),
        1 => prop_oneof![0..=6u8, Just(255)].prop_map(Op::FailAfter),
    ]
}

fn holds<C: Config>(ops: &[Op]) {
    let mut harness: Harness<C> = Harness::new();
    for &op in ops {
        harness.apply(op);
        harness.space.validate().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(40), ..ProptestConfig::default() })]

    /// PH1 to PH4 and PC1 to PC6 hold after every operation.
    #[test]
    fn corrected_hints_hold(ops in prop::collection::vec(op(), 1..300)) {
        holds::<Scan>(&ops);
    }

    /// PR1 to PR3 and PF1 hold too.
    #[test]
    fn exact_runs_hold(ops in prop::collection::vec(op(), 1..300)) {
        holds::<Runs>(&ops);
    }

    /// CC1 to CC4 hold too.
    #[test]
    fn slabs_hold(ops in prop::collection::vec(op(), 1..300)) {
        holds::<Standard>(&ops);
    }

    /// The same holds where nearly all objects are small.
    #[test]
    fn small_objects_hold(ops in prop::collection::vec(small(), 1..600)) {
        holds::<Standard>(&ops);
    }

    #[test]
    fn linux_hints_hold(ops in prop::collection::vec(op(), 1..300)) {
        holds::<Linux612>(&ops);
    }
}
