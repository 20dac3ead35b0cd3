//! Large memory without unsafe code: a buffer of zeros that grows, and the memory that the allocator cached for the
//! next one.
//!
//! `cargo run -p vmalloc --example buffer`

use vmalloc::Vmalloc;

/// Returns the checksum, which must be the same in every round.
fn work(memory: &Vmalloc, round: u8) -> Result<u64, Box<dyn std::error::Error>> {
    let mut buffer = memory.buffer(8 << 20)?;
    if buffer.iter().any(|&byte| byte != 0) {
        return Err("new memory is not zeros".into());
    }
    buffer.fill(round);
    buffer.resize(32 << 20)?;
    Ok(buffer.iter().map(|&byte| u64::from(byte)).sum())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Vmalloc::global()?;
    for round in 1..=8 {
        let sum = work(memory, round)?;
        if sum != u64::from(round) << 23 {
            return Err(format!("round {round} comes to {sum}").into());
        }
    }
    let stats = memory.stats();
    println!("8 buffers of 8 MiB that grew to 32, {} of them in place", stats.grown_in_place);
    println!(
        "{} MiB cached for the next one, {} MiB released on request",
        stats.cached_bytes >> 20,
        memory.trim() >> 20
    );
    match memory.buffer(usize::MAX / 2) {
        Err(why) => println!("half of all addresses: {why}"),
        Ok(_) => return Err("half of all addresses were allocated".into()),
    }
    Ok(())
}
