//! Threads that count requests and their bytes, each in the copy of its CPU, and a reader that sums the copies.
//!
//! `cargo run -p vmalloc-percpu --example requests`

use vmalloc_percpu::{PerCpuCounter, Space, Word, per_cpu, restarts};

const THREADS: u64 = 4;
const REQUESTS: u64 = 100_000;

per_cpu! {
    /// Requests served.
    static SERVED: Word;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = Space::global()?;
    let bytes = PerCpuCounter::new(space, 0);
    let served = SERVED.view()?.word();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for request in 0..REQUESTS {
                    served.add(1);
                    bytes.add((request % 1000) as i64);
                }
            });
        }
    });
    if served.sum() != THREADS * REQUESTS {
        return Err(format!("{} requests are counted", served.sum()).into());
    }
    println!("{} requests, {} bytes", served.sum(), bytes.sum());
    println!(
        "{} of {} units used, by {:?}; sections: {}, restarted: {}",
        space.units_used(),
        space.units(),
        space.index(),
        space.is_restartable(),
        restarts()
    );
    Ok(())
}
