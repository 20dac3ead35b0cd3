//! Small traces, event by event.

use va_space::NODES_LIMIT;
use vmlab_replay::run_space::{Policy, SpaceRow, fuzz, nodes_of, run};
use vmlab_replay::space::Reasons;
use vmlab_trace::Trace;
use vmlab_trace::vmallocinfo::Table;

fn alloc(cpu: u16, addr: u64, size: u64, align: u64, failed: u8) -> String {
    format!(
        "x-1 [{cpu:03}] ..... 1.0: alloc_vmap_area: va_start: {addr} size={size} align={align} vstart=0x100000 vend=0x200fff failed={failed}\n"
    )
}

fn free(cpu: u16, addr: u64) -> String {
    format!("x-1 [{cpu:03}] ..... 1.0: free_vmap_area_noflush: va_start={addr:#x} nr_lazy=2 nr_lazy_max=9\n")
}

fn purge(cpu: u16, purged: u64) -> String {
    format!(
        "x-1 [{cpu:03}] ..... 1.0: purge_vmap_area_lazy: start=0x100000 end=0x102000 num_purged={purged}\n"
    )
}

fn replayed(text: &str, policy: Policy, nodes: u32) -> SpaceRow {
    run("t", &Trace::read(text.as_bytes()), &Table::default(), policy, nodes).unwrap().row
}

#[test]
fn what_a_purge_left_in_the_pool_of_a_cpu_comes_back_to_that_cpu_only() {
    // After a purge, the first area is in the pool of CPU 1; CPU 0 gets the lowest hole, CPU 1 gets the area again.
    let text = [
        alloc(1, 0x10_0000, 0x2000, 1, 0),
        alloc(0, 0x10_2000, 0x2000, 1, 0),
        free(0, 0x10_0000),
        alloc(1, 0x10_4000, 0x2000, 1, 0),
        purge(0, 1),
        alloc(0, 0x10_6000, 0x2000, 1, 0),
        alloc(1, 0x10_0000, 0x2000, 1, 0),
    ]
    .concat();
    let row = replayed(&text, Policy::Linux69, 2);
    assert_eq!((row.columns.equal, row.allocs, row.why), (5, 5, Reasons::default()));
    // Without pools the area is the lowest hole for the first request of any CPU, so the second request differs.
    let row = replayed(&text, Policy::OneLock52, 2);
    assert_eq!((row.columns.equal, row.columns.lower, row.columns.higher), (3, 1, 1));
    assert_eq!(row.why, Reasons { pool: 1, earlier: 1, ..Reasons::default() });
}

#[test]
fn rp2_each_difference_has_its_reason() {
    let first = [alloc(0, 0x10_0000, 0x2000, 1, 0), alloc(1, 0x10_2000, 0x2000, 1, 0)].concat();
    // Not purged by the events, but the kernel has already allocated it.
    let lazy = [first.as_str(), &free(0, 0x10_0000), &alloc(0, 0x10_0000, 0x1000, 1, 0)].concat();
    let row = replayed(&lazy, Policy::Linux69, 2);
    assert_eq!((row.columns.higher, row.why.purge_time), (1, 1));
    // From the pool of another CPU.
    let pooled = [first.as_str(), &free(0, 0x10_0000), &purge(0, 1), &alloc(1, 0x10_0000, 0x2000, 1, 0)];
    let row = replayed(&pooled.concat(), Policy::Linux69, 2);
    assert_eq!((row.columns.higher, row.why.other_cpu), (1, 1));
    let above = alloc(0, 0x10_8000, 0x2000, 0x8000, 0);
    let row = replayed(
        &[first.as_str(), &alloc(0, 0x11_0000, 0x2000, 0x8000, 0), &above].concat(),
        Policy::Standard,
        2,
    );
    assert_eq!((row.columns.equal, row.columns.lower, row.columns.higher), (2, 1, 1));
    assert_eq!((row.why.aligned, row.why.earlier), (1, 1));
    let row = replayed(&[first.as_str(), &alloc(0, 0x10_9000, 0x2000, 1, 0)].concat(), Policy::Linux69, 2);
    assert_eq!((row.columns.lower, row.why), (1, Reasons { holes: 1, ..Reasons::default() }));
}

#[test]
fn two_attempts_with_a_purge_between_are_one_request() {
    let all = 0x10_0000;
    let twice = |failed| {
        [
            alloc(0, 0x10_0000, all, 1, 0),
            free(0, 0x10_0000),
            alloc(0, 0x20_0fff, 0x2000, 4096, 1),
            purge(0, 1),
            alloc(0, 0x10_0000, 0x2000, 4096, failed),
        ]
        .concat()
    };
    for policy in [Policy::Linux69, Policy::OneLock52] {
        let row = replayed(&twice(0), policy, 2);
        assert_eq!((row.columns.equal, row.columns.failed_both, row.purges), (2, 1, 1), "{policy:?}");
        // The kernel failed where there is room: one answer differs, the other does not.
        let row = replayed(&twice(1), policy, 2);
        assert_eq!((row.columns.failed_both, row.columns.failed_differs), (1, 1));
    }
    // A request that never fits fails both times, and a trace may end after the first.
    let never = [
        alloc(0, 0x20_0fff, 2 * all, 1, 1),
        alloc(0, 0x20_0fff, 2 * all, 1, 1),
        alloc(1, 0x20_0fff, 2 * all, 1, 1),
    ];
    for policy in [Policy::Linux69, Policy::Standard] {
        assert_eq!(replayed(&never.concat(), policy, 2).columns.failed_both, 3, "{policy:?}");
    }
}

#[test]
fn an_area_that_went_without_an_event_went_at_the_purge_before_it_was_seen_again() {
    let text = [
        alloc(0, 0x10_0000, 0x2000, 1, 0),
        alloc(0, 0x10_2000, 0x2000, 1, 0),
        free(0, 0x10_2000),
        purge(0, 2),
        alloc(0, 0x10_0000, 0x4000, 1, 0),
    ]
    .concat();
    let row = replayed(&text, Policy::OneLock52, 1);
    assert_eq!((row.columns.equal, row.inferred), (3, 1));
}

#[test]
fn numbers_that_no_allocator_accepts_change_nothing() {
    let text = [
        alloc(0, 0x10_0000, 0x2000, 1, 0),
        alloc(0, 0x10_0000, 0, 1, 0),
        alloc(0, 0x10_0000, 0x1800, 3, 1),
        alloc(0, u64::MAX - 0xfff, 0x2000, 1, 0),
        free(0, 0x77_0000),
        alloc(0, 0x10_2000, 0x2000, 1, 0),
    ]
    .concat();
    for policy in [Policy::Linux69, Policy::Standard, Policy::OneLock52] {
        let outcome = run("t", &Trace::read(text.as_bytes()), &Table::default(), policy, 2).unwrap();
        assert_eq!(outcome.tally.malformed, 3, "{policy:?}");
        fuzz(&Trace::read(text.as_bytes()), &Table::default());
    }
}

#[test]
fn a_node_for_each_cpu_that_there_can_be_with_or_without_an_event() {
    let event = r#"{"event":"free_vmap_area_noflush","cpu":0,"va_start":"0x1000"}"#;
    let trace = |cpus: u64| {
        let head = format!("{{\"vmlab\":{{\"version\":1,\"cpus\":{cpus}}}}}");
        Trace::read(format!("{head}\n{event}\n").as_bytes())
    };
    assert_eq!(trace(4).cpus, [0]);
    let nodes = [0, 1, 4, 1 << 40].map(|cpus| nodes_of(&trace(cpus)));
    assert_eq!(nodes, [1, 1, 4, NODES_LIMIT]);
    let last = Trace::read(event.replace(":0,", ":5,").as_bytes());
    assert_eq!(nodes_of(&last), 6);
}
