//! Objects with one offset and a copy on each CPU, in memory that is divided among the CPUs.
//!
//! `cargo run -p va-percpu --example counters` adds to a few counters on all CPUs, and sums them up.

use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{HeapMachine, Va};
use va_percpu::geometry::DYNAMIC_BYTES_MIN;
use va_percpu::km::{Blocks, KmChunks};
use va_percpu::{BackendError, Geometry, Offset, PercpuSpace, Request, Sizes};

const CPUS: u32 = 4;
const UNIT_BYTES: u32 = 64 << 10;
/// Chunks that fit in the memory of the example, the first one included.
const CHUNKS: u64 = 8;
const CHUNK_BYTES: u64 = UNIT_BYTES as u64 * CPUS as u64;
/// The address at which it begins for the space: addresses are numbers.
const BASE: u64 = 0x4000_0000;

/// Records and tables from the heap, and locks of a library. No page is ever unmapped, so there is no flush.
type Machine = HeapMachine<parking_lot::RawMutex>;

/// Contiguous memory for chunks, one after the other. A freed chunk is not allocated again: this is an example.
#[derive(Default)]
struct Line {
    allocated: AtomicU64,
    back: AtomicU64,
}

impl Blocks for &Line {
    fn alloc(&self, bytes: u64) -> Result<Va, BackendError> {
        // The first chunk is below them.
        let number = 1 + self.allocated.fetch_add(1, Ordering::Relaxed);
        if bytes != CHUNK_BYTES || number >= CHUNKS {
            return Err(BackendError);
        }
        Ok(Va::new(BASE + number * CHUNK_BYTES))
    }

    fn free(&self, _at: Va, _bytes: u64) {
        self.back.fetch_add(1, Ordering::Relaxed);
    }
}

/// The words at the addresses.
struct Words(Vec<AtomicU64>);

impl Words {
    /// Returns `cpu`'s copy of an object.
    fn of(&self, offset: Offset, cpu: u32) -> Option<&AtomicU64> {
        let unit = Va::new(BASE + u64::from(cpu) * u64::from(UNIT_BYTES));
        self.0.get(offset.at(unit).get().checked_sub(BASE)? as usize / 8)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes = Sizes {
        unit: UNIT_BYTES,
        fixed: 0,
        reserved: 0,
        dynamic: DYNAMIC_BYTES_MIN,
        atom: 4096,
        alloc: CHUNK_BYTES as u32,
        units: CPUS,
    };
    let line = Line::default();
    let geometry = Geometry::new(sizes, Va::new(BASE))?;
    let space = PercpuSpace::<_, _>::new(geometry, Machine::new(CPUS), KmChunks(&line))?;
    let words = Words((0..CHUNKS * CHUNK_BYTES / 8).map(|_| AtomicU64::new(0)).collect());

    let counters: Vec<Offset> =
        (0..30_000).map(|_| space.alloc(&Request::new(8, 8))).collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (words, counters) = (&words, &counters);
            scope.spawn(move || {
                for word in counters.iter().filter_map(|&counter| words.of(counter, cpu)) {
                    // No other thread writes here, so no cache line is contended.
                    word.fetch_add(u64::from(cpu) + 1, Ordering::Relaxed);
                }
            });
        }
    });
    for &counter in &counters {
        let copies =
            (0..CPUS).filter_map(|cpu| words.of(counter, cpu)).map(|word| word.load(Ordering::Relaxed));
        let copies: Vec<u64> = copies.collect();
        if copies != [1, 2, 3, 4] {
            return Err(format!("the copies at {counter} are {copies:?}").into());
        }
    }
    println!(
        "{} counters in {} chunks, each 1 + 2 + 3 + 4 on {CPUS} CPUs",
        counters.len(),
        1 + line.allocated.load(Ordering::Relaxed)
    );
    for &counter in &counters {
        space.free(counter)?;
    }
    match space.free(counters[0]) {
        Err(why) => println!("once more: {why}"),
        Ok(()) => return Err("an object was freed twice".into()),
    }
    space.balance();
    println!("{} chunks went back", line.back.load(Ordering::Relaxed));
    space.validate()?;
    Ok(())
}
