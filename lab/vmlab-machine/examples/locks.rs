//! Prints how often a space takes each of its locks for one pair.

use va_base::{LockClass, Request, VaRange};
use va_space::VmapSpace;
use va_space::config::Standard;
use vmlab_machine::{LabMachine, WatchedLock, Work, take_lock_stats};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let window = VaRange::from_pages(0x1000, 0x9000).ok_or("no range")?;
    let machine = LabMachine::<WatchedLock>::new(2, 2, Work::Here);
    let space = VmapSpace::<_, Standard>::new(window, window, machine)?;
    let request = Request::pages(3)?;
    // The first area allocates a table.
    space.free(space.alloc(0, &request)?)?;
    take_lock_stats();
    space.free(space.alloc(0, &request)?)?;
    let stats = take_lock_stats();
    for class in [LockClass::Pool, LockClass::Free, LockClass::Lazy, LockClass::Purge] {
        println!("{class:?}: {}", stats[class as usize].acquisitions);
    }
    Ok(())
}
