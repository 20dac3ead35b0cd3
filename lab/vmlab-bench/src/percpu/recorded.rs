//! A recording as a load: the requests for per-CPU memory of 15,000 `tc` flower filters, added and deleted.
//!
//! `data/README.md` describes the recording. Its frees of objects from before the first event are left out, and objects
//! that are left at the end are freed then.

use super::subject::Subject;
use std::collections::HashMap;
use std::sync::OnceLock;

/// A request, or the free of an object by the number of its request.
#[derive(Clone, Copy)]
enum Step {
    Alloc { size: u32, align: u32, atomic: bool },
    Free(usize),
}

/// The steps, and the requests among them.
static STEPS: OnceLock<(Vec<Step>, usize)> = OnceLock::new();

fn steps() -> &'static (Vec<Step>, usize) {
    STEPS.get_or_init(|| {
        let (mut steps, mut allocs, mut live) = (Vec::new(), 0, HashMap::new());
        for event in events() {
            match event {
                Event::Alloc { at, size, align, atomic } => {
                    live.insert(at, allocs);
                    allocs += 1;
                    steps.push(Step::Alloc { size, align, atomic });
                }
                Event::Free { at } => steps.extend(live.remove(&at).map(Step::Free)),
            }
        }
        (steps, allocs)
    })
}

/// An event with the address of its object.
enum Event {
    Alloc { at: u64, size: u32, align: u32, atomic: bool },
    Free { at: u64 },
}

#[cfg(feature = "all")]
fn events() -> Vec<Event> {
    use vmlab_trace::percpu::{PercpuEvent, PercpuTrace};
    let shipped = vmlab_trace::shipped::TRACES.iter().find(|of| of.name == "tc-flower-smp1");
    let text = shipped.and_then(|of| vmlab_trace::decompress(of.trace).ok());
    let trace = text.map(PercpuTrace::read).unwrap_or_default();
    let event = |event: PercpuEvent| match event {
        // Modules alone send requests to the reserved section.
        PercpuEvent::Alloc { reserved: true, .. } | PercpuEvent::Create { .. } => None,
        PercpuEvent::Alloc { base, off, size, align, atomic, .. } => {
            Some(Event::Alloc { at: base.wrapping_add(off), size: size as u32, align: align as u32, atomic })
        }
        PercpuEvent::Free { base, off } => Some(Event::Free { at: base.wrapping_add(off) }),
    };
    trace.events.into_iter().filter_map(event).collect()
}

#[cfg(not(feature = "all"))]
fn events() -> Vec<Event> {
    Vec::new()
}

/// Returns the requests of the recording.
pub(super) fn allocs() -> usize {
    steps().1
}

/// Runs the beginning of the recording, of so many requests, and frees what is left then. `objects` is for reuse.
pub(super) fn run<S: Subject>(subject: &S, allocs: usize, objects: &mut Vec<u64>) {
    objects.clear();
    for step in &steps().0 {
        match *step {
            Step::Alloc { size, align, atomic } => {
                if objects.len() == allocs {
                    break;
                }
                objects.push(match atomic {
                    true => subject.alloc_atomic(size, align),
                    false => subject.alloc(size, align),
                });
            }
            Step::Free(nth) => {
                // A request that failed has 0.
                let object = objects.get_mut(nth).map_or(0, std::mem::take);
                if object != 0 {
                    subject.free(object);
                }
            }
        }
    }
    for object in objects.drain(..).filter(|&object| object != 0) {
        subject.free(object);
    }
}
