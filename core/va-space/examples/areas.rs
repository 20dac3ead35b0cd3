//! Areas that threads allocate and free, on a machine over the heap.
//!
//! `cargo run -p va-space --example areas` prints the number of pairs, and for how many of them CPUs had to be flushed.

use va_base::{HeapMachine, Request, Va, VaRange};
use va_space::{Purge, SpaceError, VmapSpace};

const CPUS: u32 = 4;
const PAIRS: u64 = 20_000;

/// Records and tables from the heap, locks of a library, and a flush that ends at once, where a kernel interrupts CPUs.
type Machine = HeapMachine<parking_lot::RawMutex>;

type Space<'p> = VmapSpace<&'p Machine>;

/// Runs one CPU's work: allocates areas of one to eight pages and holds a few of them at a time.
fn work(space: &Space<'_>, cpu: u32) -> Result<(), String> {
    let mut out = std::collections::VecDeque::new();
    for number in 0..PAIRS {
        let request = Request::pages(1 + number * 7 % 8).map_err(|why| why.to_string())?;
        let area = space.alloc(cpu, &request).map_err(|why| why.to_string())?;
        // Any address inside leads to the area, without a lock.
        let inside = Va::new(area.range().end().get() - 1);
        if space.find_enclosing(inside).map(|seen| seen.range) != Some(area.range()) {
            return Err(format!("{inside} does not lead to {}", area.range()));
        }
        out.push_back(area);
        if out.len() > 16 {
            out.pop_front().map_or(Ok(()), |area| space.free(area)).map_err(|why| format!("{why:?}"))?;
        }
    }
    out.into_iter().try_for_each(|area| space.free(area)).map_err(|why| format!("{why:?}"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (window, machine) = (VaRange::from_pages(0x1000, 0x10_0000).ok_or("no range")?, Machine::new(CPUS));
    let space = Space::new(window, window, &machine)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CPUS)
            .map(|cpu| {
                scope.spawn({
                    let space = &space;
                    move || work(space, cpu)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_string())?)
    })?;
    space.purge(Purge::Full);
    println!("{} pairs on {CPUS} CPUs, {} flushes", u64::from(CPUS) * PAIRS, machine.flushes());
    // All areas are freed: the whole window is one hole again.
    let most = window.len_bytes() / va_base::PAGE_SIZE - 1;
    space.free(space.alloc(0, &Request::pages(most)?)?).map_err(|why| format!("{why:?}"))?;
    match space.alloc(0, &Request::pages(most + 2)?) {
        Err(why @ SpaceError::Impossible { .. }) => println!("more than there is: {why}"),
        other => return Err(format!("more than there is: {other:?}").into()),
    }
    space.validate()?;
    Ok(())
}
