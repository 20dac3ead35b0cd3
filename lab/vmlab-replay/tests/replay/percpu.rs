//! Small traces inside percpu chunks.

use va_percpu::config::{Linux612, Runs};
use vmlab_replay::percpu::{fuzz, replay};
use vmlab_trace::percpu::{PercpuEvent, PercpuTrace};
use vmlab_trace::vmallocinfo::Table;

fn alloc(off: u64, size: u64, align: u64) -> PercpuEvent {
    PercpuEvent::Alloc {
        base: 0x10_3b000,
        off,
        ptr: 0x3b000 + off,
        size,
        align,
        reserved: false,
        atomic: false,
    }
}

fn trace(events: &[PercpuEvent]) -> PercpuTrace {
    PercpuTrace { events: events.to_vec(), cpus: 1, ..PercpuTrace::default() }
}

#[test]
fn rp3_every_allocation_is_in_one_column() {
    let free = |off| PercpuEvent::Free { base: 0x10_3b000, off };
    let events = [
        alloc(64, 8, 8),
        // An object from before the trace is in between.
        alloc(80, 8, 8),
        // The hole was filled by the kernel, though not by us.
        alloc(72, 4, 4),
        alloc(88, 16, 24),
        alloc(96, 70_000, 4),
        free(64),
        free(4),
        alloc(64, 4, 4),
    ];
    let tally = replay::<Linux612>(&trace(&events), &Table::default()).unwrap();
    assert_eq!((tally.allocs, tally.equal, tally.lower, tally.failed), (6, 3, 1, 2));
    assert_eq!((tally.first, tally.frees_unknown, tally.assumed_bytes), (6, 1, 64));
    assert_eq!(tally.not_placed, 1, "{tally:?}");
    let sum = tally.equal + tally.lower + tally.higher + tally.elsewhere + tally.failed;
    assert_eq!(sum, tally.allocs);
    fuzz(&trace(&events), &Table::default());
}

#[test]
fn a_trace_without_an_allocation_shows_nothing() {
    assert!(replay::<Runs>(&trace(&[]), &Table::default()).is_err());
    let far = PercpuEvent::Alloc {
        base: 1,
        off: u64::MAX,
        ptr: 7,
        size: 1,
        align: 1,
        reserved: true,
        atomic: true,
    };
    assert!(replay::<Runs>(&trace(&[far]), &Table::default()).is_err());
}
