//! Objects with one offset and a copy on each CPU, in memory that is divided among the CPUs.
//!
//! `cargo run -p va-percpu --example counters` adds to a few counters on all CPUs, and sums them up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
struct Line {
    words: Vec<AtomicU32>,
    allocated: AtomicU64,
    back: AtomicU64,
}

impl Line {
    /// Returns the words from an address on.
    fn words(&self, at: Va, bytes: u64) -> &[AtomicU32] {
        let first = (at.get() - BASE) as usize / 4;
        self.words.get(first..first + bytes as usize / 4).unwrap_or_default()
    }

    /// Returns `cpu`'s copy of a counter.
    fn copy(&self, offset: Offset, cpu: u32) -> Option<&AtomicU32> {
        let unit = Va::new(BASE + u64::from(cpu) * u64::from(UNIT_BYTES));
        self.words(offset.at(unit), 4).first()
    }
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

    fn zero(&self, at: Va, bytes: u64) {
        self.words(at, bytes).iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn is_zero(&self, at: Va, bytes: u64) -> Option<bool> {
        Some(self.words(at, bytes).iter().all(|word| word.load(Ordering::Relaxed) == 0))
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
    // The memory of a machine is not zero.
    let words = (0..CHUNKS * CHUNK_BYTES / 4).map(|_| AtomicU32::new(u32::MAX)).collect();
    let line = Line { words, allocated: AtomicU64::new(0), back: AtomicU64::new(0) };
    let geometry = Geometry::new(sizes, Va::new(BASE))?;
    let space = PercpuSpace::<_, _>::new(geometry, Machine::new(CPUS), KmChunks(&line))?;

    let mut counters = Vec::new();
    // The second time the memory has what the counters of the first time left.
    for _ in 0..2 {
        counters = (0..30_000).map(|_| space.alloc(&Request::new(8, 8))).collect::<Result<Vec<_>, _>>()?;
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                let (line, counters) = (&line, &counters);
                scope.spawn(move || {
                    for word in counters.iter().filter_map(|&counter| line.copy(counter, cpu)) {
                        // No other thread writes here, so no cache line is contended.
                        word.fetch_add(cpu + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        for &counter in &counters {
            let copies = (0..CPUS).filter_map(|cpu| line.copy(counter, cpu));
            let copies: Vec<u32> = copies.map(|word| word.load(Ordering::Relaxed)).collect();
            if copies != [1, 2, 3, 4] {
                return Err(format!("the copies at {counter} are {copies:?}").into());
            }
        }
        for &counter in &counters {
            space.free(counter)?;
        }
    }
    println!(
        "{} counters in {} chunks, each 1 + 2 + 3 + 4 on {CPUS} CPUs, twice",
        counters.len(),
        1 + line.allocated.load(Ordering::Relaxed)
    );
    match space.free(counters[0]) {
        Err(why) => println!("once more: {why}"),
        Ok(()) => return Err("an object was freed twice".into()),
    }
    space.balance();
    println!("{} chunks went back", line.back.load(Ordering::Relaxed));
    space.validate()?;
    Ok(())
}
