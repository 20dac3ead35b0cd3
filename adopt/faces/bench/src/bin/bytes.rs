//! Bytes of the heap for a number of live areas. Prints tab-separated rows: interface, live areas, bytes of ours, bytes
//! of the original. With 0 live areas they are the bytes of the value itself.

use faces_bench::{Contender, LIVE, Load, for_each_face};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The allocator of the system, with a count.
struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

// SAFETY: it is the allocator of the system.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn main() {
    for live in std::iter::once(0).chain(LIVE) {
        for_each_face!(measure, live);
    }
}

fn measure<Ours: Contender, Theirs: Contender>(name: &str, live: usize) {
    let (ours, theirs) = match live {
        0 => (Some(size_of::<Ours>()), Some(size_of::<Theirs>())),
        _ => (bytes::<Ours>(live), bytes::<Theirs>(live)),
    };
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => println!("{name}\t{live}\t{ours}\t{theirs}"),
        _ => println!("{name}\t{live}\tfails"),
    }
}

/// Returns the bytes of the heap after so many pairs as there are areas, without the list of areas.
fn bytes<C: Contender>(live: usize) -> Option<usize> {
    let before = BYTES.load(Ordering::Relaxed);
    let mut load = Load::<C>::new(live)?;
    let list = 2 * live * size_of::<C::Area>();
    // A few: the original may take long for each.
    load.pairs(live.min(500)).then_some(())?;
    Some(BYTES.load(Ordering::Relaxed) - before - list)
}
