//! Numbers instead of pages: handles in a static index, and ranges of bytes in a buffer.
//!
//! `cargo run -p va-tree --example handles`

use std::sync::Mutex;
use va_base::{Heap, Request, VaRange};
use va_tree::{BTree, BestFitIndex, ByteIndex, FreeIndex, TrackedIndex};

/// Handles: the free ones as ranges, the lowest first. The handle 0 means none.
static HANDLES: Mutex<ByteIndex<Heap>> = Mutex::new(BTree::empty(Heap));

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = VaRange::try_from(1..u64::MAX)?;
    let mut handles = HANDLES.lock().map_err(|_| "a thread panicked")?;
    handles.init(all, all)?;
    let one = Request::units(1, 1)?;
    let first = handles.alloc(&one)?.get();
    let batch = handles.alloc(&Request::units(64, 64)?)?.get();
    let last = handles.alloc_highest(&one)?.get();
    println!("handles {first}, {batch} to {}, {last:#x}", batch + 63);
    handles.free(VaRange::try_from(batch..batch + 64)?)?;

    // A buffer of 1 MiB: any size, any alignment, the smallest hole that fits. A wrong free is an error.
    let buffer = VaRange::try_from(0..1 << 20)?;
    let holes = BestFitIndex::new(ByteIndex::new(buffer, buffer, Heap)?, Heap)?;
    let mut buffer = TrackedIndex::new(holes, Heap);
    let header = buffer.alloc_best(&Request::units(13, 1)?)?;
    let table = buffer.alloc_best(&Request::units(100, 256)?)?;
    let name = buffer.alloc_best(&Request::units(7, 2)?)?;
    println!("header {header}, table {table}, name {name}");
    if buffer.free_range(VaRange::try_from(0..7)?).is_ok() {
        return Err("a part of the header was freed".into());
    }
    buffer.free_range(header)?;
    println!("{} bytes are free in {} holes", buffer.index().free_pages().get(), buffer.index().hole_count());
    Ok(())
}
