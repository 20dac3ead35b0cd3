//! Small recordings of percpu chunks.

use std::collections::BTreeMap;
use vmlab_replay::diff::offsets::before::free_before;
use vmlab_replay::diff::offsets::{CHUNKS_MAX, OFF_MAX, OffsetCause, Offsets, Touch, Touched, run};
use vmlab_replay::diff::recording::Recording;
use vmlab_replay::engine::{Step, What};
use vmlab_trace::Event;
use vmlab_trace::percpu::PercpuEvent;

const BASE: u64 = 0xffff_e8ff_ffc0_0000;

fn step(line: usize, cpu: u16, what: What) -> Step {
    Step { line: line as u64 + 1, ns: 0, cpu, what, counted: true }
}

fn alloc(off: u64, size: u64) -> What {
    let (align, reserved, atomic) = (4, false, false);
    What::Percpu(PercpuEvent::Alloc { base: BASE, off, ptr: off, size, align, reserved, atomic })
}

fn free(off: u64) -> What {
    What::Percpu(PercpuEvent::Free { base: BASE, off })
}

const CREATE: What = What::Vm(Event::ChunkCreate { base: BASE });
const DESTROY: What = What::Vm(Event::ChunkDestroy { base: BASE });

fn of(steps: impl IntoIterator<Item = (u16, What)>) -> Recording {
    let steps = steps.into_iter().enumerate().map(|(line, (cpu, what))| step(line, cpu, what)).collect();
    Recording { steps, cpus: 2, ..Recording::default() }
}

fn linux(steps: &[What]) -> Offsets {
    run(&of(steps.iter().map(|&what| (0, what))), true, 8).unwrap()
}

#[test]
fn df3_in_a_chunk_made_in_the_recording_everything_is_known() {
    let report =
        linux(&[CREATE, alloc(0, 64), alloc(64, 32), free(0), alloc(0, 16), alloc(16, 48), alloc(128, 4)]);
    assert_eq!((report.chunks, report.chunks_new, report.new_allocs), (1, 1, 5));
    assert_eq!((report.allocs, report.equal, report.alone, report.lower), (5, 4, 0, 1));
    let [difference] = &report.divergences[..] else { panic!("{report:?}") };
    assert_eq!((difference.line, difference.kernel, difference.policy), (7, 128, Some(96)));
    assert_eq!(difference.cause, OffsetCause::Unexplained);
    assert_eq!(report.unknowable(), 0);
}

#[test]
fn in_an_old_chunk_only_what_the_events_prove_is_free() {
    // Only the two allocated offsets are known to be free: the first answer has a choice, the last has none.
    let report = linux(&[alloc(400, 8), alloc(800, 8)]);
    assert_eq!((report.allocs, report.equal, report.alone), (2, 1, 1));
    // The kernel did not take the lower of two offsets that its own events prove to be free.
    let report = linux(&[alloc(800, 8), alloc(400, 8)]);
    assert_eq!((report.lower, report.alone, report.unknowable()), (1, 1, 1));
    assert_eq!(report.divergences[0].policy, Some(400));
    // The same, except that an object freed below may have reached that far.
    let report = linux(&[free(200), alloc(800, 8), alloc(400, 8)]);
    assert_eq!((report.lower, report.alone, report.frees_before), (0, 2, 1));
}

#[test]
fn a_place_that_is_freed_is_free_from_then_on() {
    let report = linux(&[alloc(400, 8), free(400), alloc(800, 8)]);
    assert_eq!((report.equal, report.lower), (1, 1));
    let report = linux(&[alloc(400, 8), alloc(800, 8), free(400), alloc(400, 8)]);
    assert_eq!((report.equal, report.alone, report.lower), (1, 2, 0));
    // Without an event: the object that was there must have been freed.
    let report = linux(&[alloc(400, 8), alloc(404, 8), free(400)]);
    assert_eq!((report.allocs, report.taken_twice, report.frees_unseen), (2, 1, 1));
}

#[test]
fn another_cpus_event_near_by_explains_a_place_left() {
    let steps = [(0, CREATE), (0, alloc(0, 8)), (0, alloc(16, 8)), (1, alloc(8, 8))];
    let report = run(&of(steps), true, 8).unwrap();
    assert_eq!((report.equal, report.lower), (2, 1));
    assert_eq!(report.causes, BTreeMap::from([(OffsetCause::Order, 1)]));
    assert_eq!(report.unknowable(), 1);
    // The same from one CPU: it was free, and the kernel did not take it.
    let report = run(&of(steps.map(|(_, what)| (0, what))), true, 8).unwrap();
    assert_eq!(report.causes, BTreeMap::from([(OffsetCause::Left, 1)]));
}

#[test]
fn a_caller_that_cannot_wait_takes_populated_pages_only() {
    let atomic = PercpuEvent::Alloc {
        base: BASE,
        off: 8192,
        ptr: 0,
        size: 8,
        align: 8,
        reserved: false,
        atomic: true,
    };
    let report = linux(&[CREATE, alloc(0, 8), What::Percpu(atomic)]);
    assert_eq!(report.causes, BTreeMap::from([(OffsetCause::Populated, 1)]));
}

#[test]
fn a_chunk_that_went_and_came_back_is_another() {
    let report = linux(&[alloc(400, 8), DESTROY, CREATE, alloc(0, 8), DESTROY, alloc(400, 8)]);
    assert_eq!((report.chunks, report.chunks_new, report.new_allocs), (3, 1, 1));
    assert_eq!((report.equal, report.alone), (1, 2));
}

#[test]
fn numbers_that_no_chunk_has_are_counted_and_change_nothing() {
    let odd = |off, size, align| {
        What::Percpu(PercpuEvent::Alloc {
            base: BASE,
            off,
            ptr: 0,
            size,
            align,
            reserved: false,
            atomic: false,
        })
    };
    let bad = [
        odd(2, 4, 1),
        odd(u64::MAX - 3, 8, 4),
        odd(0, 0, 4),
        odd(0, u64::MAX, 4),
        odd(OFF_MAX - 4, 8, 4),
        odd(4, 8, 8),
        odd(0, 8, 0),
        odd(0, 8, 3),
        free(OFF_MAX),
    ];
    let report = linux(&bad);
    assert_eq!((report.allocs, report.malformed, report.chunks), (0, bad.len() as u64, 0));
    let many = (0..2000).map(|nth| (0, What::Vm(Event::ChunkCreate { base: nth << 20 })));
    let report = run(&of(many), true, 8).unwrap();
    assert_eq!((report.chunks, report.malformed), (CHUNKS_MAX as u64, 2000 - CHUNKS_MAX as u64));
}

#[test]
fn df3_holds_for_any_recording() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for _ in 0..20 {
        let steps: Vec<(u16, What)> = (0..300)
            .map(|_| {
                let what = match next(16) {
                    0 => CREATE,
                    1 => DESTROY,
                    2..9 => free(next(300) * 4),
                    _ => alloc(next(300) * 4, 1 + next(200)),
                };
                (next(2) as u16, what)
            })
            .collect();
        for by_linux in [true, false] {
            let report = run(&of(steps.iter().copied()), by_linux, 0).unwrap();
            assert_eq!(report.equal + report.alone + report.differ(), report.allocs, "DF3");
            assert_eq!(
                (report.higher, report.failed),
                if by_linux { (report.higher, report.failed) } else { (0, 0) }
            );
        }
    }
}

#[test]
fn what_is_freed_and_was_not_seen_allocated_was_in_use() {
    // 400 is freed twice: another object was allocated there in between, so the kernel rightly did not take it.
    let steps = [alloc(400, 8), alloc(800, 8), free(400), alloc(900, 8), free(400), alloc(400, 8)];
    let report = linux(&steps);
    assert_eq!(report.causes, BTreeMap::from([(OffsetCause::Unseen, 1)]));
    assert_eq!((report.frees_unseen, report.frees_before), (1, 0));
    assert_eq!(report.unknowable(), report.alone + 1);
    // Without the second free there is no evidence of that.
    let report = linux(&steps[..4]);
    assert_eq!(report.causes, BTreeMap::from([(OffsetCause::Unexplained, 1)]));
}

#[test]
fn a_place_that_the_kernel_leaves_shows_once() {
    let report = linux(&[CREATE, alloc(0, 8), alloc(64, 8), alloc(72, 8), alloc(80, 8)]);
    // 8 and the offsets after it, one after the other.
    assert_eq!((report.lower, report.equal), (3, 1));
    assert_eq!(report.divergences.iter().map(|one| one.policy).collect::<Vec<_>>(), [8, 16, 24].map(Some));
    let report = linux(&[alloc(400, 8), free(400), alloc(800, 8), alloc(808, 8), alloc(816, 8)]);
    assert_eq!((report.lower, report.equal + report.alone), (1, 3));
    // It counts as free again after an event frees it.
    let report = linux(&[alloc(400, 8), free(400), alloc(800, 8), alloc(400, 4), free(400), alloc(808, 4)]);
    assert_eq!(report.lower, 2);
}

fn allocated(at: u32, bits: u32) -> Touched {
    let touch = Touch::Alloc { at, end: at + bits, align: 1, atomic: false };
    Touched { line: 0, cpu: 0, touch, counted: true }
}

fn freed(at: u32) -> Touched {
    Touched { line: 0, cpu: 0, touch: Touch::Free { at }, counted: true }
}

fn drawn(touches: &[Touched]) -> String {
    free_before(touches, 12).into_iter().map(|free| if free { '.' } else { 'X' }).collect()
}

#[test]
fn what_is_allocated_first_was_free_and_the_rest_is_taken_to_be_in_use() {
    assert_eq!(drawn(&[allocated(2, 3), freed(2), allocated(8, 1)]), "XX...XXX.XXX");
    assert_eq!(drawn(&[freed(2), allocated(2, 1)]), "XXXXXXXXXXXX");
}

#[test]
fn an_object_of_unknown_length_hides_what_it_may_have_held_and_no_more() {
    // While it lived, 6 was allocated, so it ended before 6.
    assert_eq!(drawn(&[allocated(6, 2), freed(2), allocated(3, 2), allocated(9, 2)]), "XXXXXX..X..X");
    // Nothing limits its length.
    assert_eq!(drawn(&[freed(2), allocated(3, 2), allocated(9, 2)]), "XXXXXXXXXXXX");
    // The bits below it are not affected.
    assert_eq!(drawn(&[freed(5), allocated(1, 2)]), "X..XXXXXXXXX");
}
