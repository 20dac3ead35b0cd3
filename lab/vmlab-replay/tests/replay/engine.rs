//! The loop of all replays, with a target that records its calls.

use vmlab_replay::diff::recording::Recording;
use vmlab_replay::engine::{Attempt, Step, Target, What, replay, steps};
use vmlab_trace::Mark;
use vmlab_trace::Trace;

const TEXT: &str = "\
    x-1 [001] 1.000001: alloc_vmap_area: va_start: 4096 size=8192 align=1 vstart=0x1000 vend=0xffff000 failed=0\n\
    x-1 [000] 1.000002: tracing_mark_write: vmlab pools drained\n\
    x-1 [000] 1.000003: free_vmap_area_noflush: va_start=0x1000 nr_lazy=2 nr_lazy_max=9\n\
    x-1 [002] 1.000004: purge_vmap_area_lazy: start=0x0 end=0x0 num_purged=3\n\
    x-1 [000] 1.000005: percpu_create_chunk: base_addr=200000\n\
    x-1 [000] 1.000006: percpu_destroy_chunk: base_addr=200000\n\
    x-1 [003] 1.000007: alloc_vmap_area: va_start: 9 size=1 align=1 vstart=0x1000 vend=0xffff000 failed=1\n";

#[derive(Default)]
struct Calls(Vec<String>);

impl Target for Calls {
    fn begin_step(&mut self, at: usize) {
        self.0.push(format!("step {at}"));
    }

    fn alloc(&mut self, attempt: &Attempt) {
        let &Attempt { number, at, line, cpu, size, kernel, request, .. } = attempt;
        let possible = request.is_some();
        self.0.push(format!("alloc {number} {at} {line} {cpu} {size} {kernel:?} {possible}"));
    }

    fn free(&mut self, start: u64) {
        self.0.push(format!("free {start:#x}"));
    }

    fn purge(&mut self, cpu: u16, purged: u64) {
        self.0.push(format!("purge {cpu} {purged}"));
    }

    fn chunk(&mut self, base: u64) {
        self.0.push(format!("chunk {base:#x}"));
    }

    fn mark(&mut self, at: usize, mark: Mark) {
        self.0.push(format!("mark {at} {mark:?}"));
    }

    fn end(&mut self) {
        self.0.push("end".into());
    }
}

#[test]
fn each_step_is_one_call_and_its_observer_sees_the_target_after_it() {
    let mut calls = Calls::default();
    let recording = Recording::read(TEXT.as_bytes());
    let mut seen = Vec::new();
    replay(&mut calls, recording.steps.iter().copied().enumerate(), |at, calls| {
        seen.push((at, calls.0.last().cloned().unwrap_or_default()));
    });
    let last = [
        "alloc 1 0 1 1 8192 Some(4096) true",
        "free 0x1000",
        "purge 2 3",
        "chunk 0x200000",
        "step 5",
        "alloc 2 6 7 3 1 None false",
    ];
    // No observer is called for the mark, the second step.
    let last = [0, 2, 3, 4, 5, 6].into_iter().zip(last.map(String::from));
    let last: Vec<_> = last.collect();
    assert!(calls.0.contains(&"mark 1 Drained".to_string()), "{:?}", calls.0);
    assert_eq!(seen, last);
    // Six of the steps are also calls, and the end is one.
    assert_eq!((calls.0.len(), calls.0.last().map(String::as_str)), (7 + 6 + 1, Some("end")));
}

#[test]
fn a_trace_and_a_recording_of_one_text_have_the_same_steps() {
    let trace = Trace::read(TEXT.as_bytes());
    // A trace has the lines of allocations alone, and of a mark its place.
    let of_trace: Vec<_> = steps(&trace).map(|(_, step)| step).collect();
    let of_recording = Recording::read(TEXT.as_bytes()).steps.into_iter();
    let of_recording = of_recording.map(|step| match step.what {
        What::Mark(_) => Step { line: 0, ns: 0, cpu: 0, ..step },
        _ => Step { line: if [1, 7].contains(&step.line) { step.line } else { 0 }, ..step },
    });
    assert_eq!(of_trace, of_recording.collect::<Vec<_>>());
}
