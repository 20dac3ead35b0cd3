//! Counts the events of each trace that is in the crate.

use vmlab_trace::shipped::TRACES;
use vmlab_trace::{Trace, decompress};

fn main() -> std::io::Result<()> {
    for shipped in &TRACES {
        let trace = Trace::read(decompress(shipped.trace)?);
        let (lines, events, allocs) = (trace.lines, trace.events.len(), trace.allocs());
        println!("{}: {lines} lines, {events} events, {allocs} allocations", shipped.name);
    }
    Ok(())
}
