//! Short-lived small mappings, cut from the blocks of the CPU that allocates them.
//!
//! `cargo run -p va-block --example small` prints how often the space allocated a block, and how often CPUs were
//! flushed.

use va_base::{HeapMachine, VaRange};
use va_block::Blocks;
use va_space::VmapSpace;

const CPUS: u32 = 2;
const PAIRS: u64 = 50_000;

/// Records and tables from the heap, locks of a library, and a flush that ends at once, where a kernel interrupts CPUs.
type Machine = HeapMachine<parking_lot::RawMutex>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (window, machine) = (VaRange::from_pages(0x1000, 0x10_0000).ok_or("no range")?, Machine::new(CPUS));
    let space = VmapSpace::<_>::new(window, window, &machine)?;
    let blocks = Blocks::<_>::new(space, &machine)?;
    let mut most = 0;
    for number in 0..PAIRS {
        let (cpu, pages) = ((number % u64::from(CPUS)) as u32, 1 + number * 5 % 16);
        // The caller maps pages there, and unmaps them before it frees the addresses.
        let (a, b) = (blocks.alloc(cpu, pages)?, blocks.alloc(cpu, 1)?);
        if a == b || !window.contains(a) || !window.contains(b) {
            return Err(format!("{a} and {b} are no two places of {window}").into());
        }
        // Counting looks at each block.
        if number % 1000 == 0 {
            most = most.max(blocks.stats().blocks);
        }
        // From any CPU, by address and count.
        blocks.free(CPUS - 1 - cpu, a, pages)?;
        blocks.free(cpu, b, 1)?;
    }
    println!("{} mappings, {most} blocks at most when counted, {} flushes", 2 * PAIRS, machine.flushes());
    // A caller's mistake is an error that changes nothing.
    let at = blocks.alloc(0, 4)?;
    match blocks.free(0, at, 3) {
        Err(why) => println!("four pages, three freed: {why}"),
        Ok(()) => return Err("three of four pages were taken for all".into()),
    }
    blocks.free(0, at, 4)?;
    blocks.unmap_aliases();
    blocks.validate()?;
    Ok(())
}
