//! Threads that wait for a lock of this crate, and the features of the system as an allocator finds them.
//!
//! `cargo run -p vmalloc-os --example system`

use vmalloc_os::lock::Mutex;
use vmalloc_os::os::{self, Linux, Os};

/// The rounds of each thread, by thread.
static ROUNDS: Mutex<[u32; 4]> = Mutex::new([0; 4]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    ROUNDS.lock()[thread] += 1;
                }
            });
        }
    });
    let rounds = *ROUNDS.lock();
    if rounds != [10_000; 4] {
        return Err(format!("rounds are lost: {rounds:?}").into());
    }
    let linux = Linux::new();
    println!("{rounds:?} rounds under one lock");
    println!("CPUs: {}, mappings at most: {}", linux.cpus(), linux.mappings_max());
    println!("pages move: {}, guards are no mappings: {}", linux.can_move(), linux.can_guard());
    println!("sections: {}, of concurrency ids: {}", os::has_sections(), os::has_concurrency_ids());
    Ok(())
}
