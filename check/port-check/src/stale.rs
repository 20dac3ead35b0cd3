//! Reads through translations that must be gone: each CPU reads an address, which then gets other frames.
//!
//! Nothing here depends on chance. Each CPU translates an address before it is freed, and reads it again when other
//! frames are there. Their contents are written through the mapping of all memory, never through the window: a CPU that
//! writes through an old translation would hide it. QEMU's emulated CPUs keep translations until a flush; some may be
//! evicted before, those that were used first. So each case has several pages, and the last that were read with the old
//! contents are read first with the new.

use crate::{Kernel, first_word, frame, free, table};
use core::array;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va};
use va_map::{PageTable, Protection};
use va_percpu::Request;
use va_space::Purge;

/// Pages of a mapping, and per-CPU objects of a page each: more than a chunk that the balance spares.
const PAGES: usize = 8;
const OBJECTS: usize = 40;
/// The numbers in pages: of the test, of the old contents or the new, and of the page.
const AREA: u64 = 0xa000;
const BLOCK: u64 = 0xb000;
const OBJECT: u64 = 0xc000;
const OLD: u64 = 0x100;
const NEW: u64 = 0x200;

/// Checks reuse: the addresses of an area, of a small mapping and of per-CPU pages are read by every CPU, freed, and used
/// again with other pages. Returns the number of reads that did not return what is there now, each CPU's first of which
/// it prints. With a flush of all CPUs that is 0.
///
/// # Panics
/// If the kernel has too little memory, or if an address is not used again.
pub fn stale(kernel: &impl Kernel) -> u64 {
    let stale = area(kernel) + block(kernel) + objects(kernel);
    match stale {
        0 => kernel.print(format_args!(
            "reused addresses of an area, a block, per-CPU pages: no CPU reads old pages"
        )),
        _ => kernel.print(format_args!("STALE {stale} reads: a flush does not reach every CPU")),
    }
    stale
}

/// The address of a word and its number, by place.
type Words<'a> = &'a (dyn Fn(usize) -> (Va, u64) + Sync);

/// Reads words on every CPU and counts those that are not the expected ones. Reports the first on each CPU.
fn compare(kernel: &impl Kernel, what: &str, count: usize, words: Words<'_>) -> u64 {
    let stale = AtomicU64::new(0);
    kernel.each(&|cpu| {
        let mut wrong = 0;
        for (at, expected) in (0..count).map(words) {
            let read = kernel.read(at);
            if read == Ok(expected) {
                continue;
            }
            if wrong == 0 {
                let read = Read(read);
                kernel.print(format_args!(
                    "STALE read in {what}: CPU {cpu} at {at}: {read}, expected {expected:#x}"
                ));
            }
            wrong += 1;
        }
        stale.fetch_add(wrong, Ordering::Relaxed);
    });
    stale.into_inner()
}

/// A word that was read, or a fault.
struct Read(Result<u64, Va>);

impl core::fmt::Display for Read {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Ok(word) => write!(f, "{word:#x}"),
            Err(_) => f.write_str("a fault"),
        }
    }
}

/// Allocates frames with numbers from `from` on.
fn pages(kernel: &impl Kernel, from: u64) -> [u64; PAGES] {
    let list = array::from_fn(|_| frame(kernel));
    for (&frame, number) in list.iter().zip(from..) {
        first_word(kernel, frame).store(number, Ordering::Relaxed);
    }
    list
}

/// Compares a mapping of [`pages`].
fn compare_pages(kernel: &impl Kernel, what: &str, at: Va, from: u64) -> u64 {
    compare(kernel, what, PAGES, &|place| {
        (Va::from_page(at.page_floor() + place as u64), from + place as u64)
    })
}

/// An area is unmapped, the space purged, and another area gets its address.
fn area(kernel: &impl Kernel) -> u64 {
    let (map, mut stale) = (kernel.map(), 0);
    let [first, second] = [OLD, NEW].map(|from| {
        let list = pages(kernel, AREA + from);
        let at = map.vmap(0, &list[..], Protection::default(), 0).expect("an area");
        stale += compare_pages(kernel, "an area", at, AREA + from);
        map.vunmap(at).expect("its end");
        map.purge();
        (at, list)
    });
    assert_eq!(first.0, second.0, "the lowest hole is the same");
    free(kernel, &first.1);
    free(kernel, &second.1);
    stale
}

/// A small mapping ends, the dead pages of its block are flushed, and another mapping gets them.
fn block(kernel: &impl Kernel) -> u64 {
    let map = kernel.map();
    let (old, new) = (pages(kernel, BLOCK + OLD), pages(kernel, BLOCK + NEW));
    let at = map.vm_map_ram(0, &old[..], Protection::default()).expect("a small mapping");
    let mut stale = compare_pages(kernel, "a block", at, BLOCK + OLD);
    map.vm_unmap_ram(0, at, PAGES as u64).expect("its end");
    map.unmap_aliases();
    // The block goes on with its next pages, and comes back to the first.
    let mut others = [None; 1024 / PAGES];
    for other in &mut others {
        let again = map.vm_map_ram(0, &new[..], Protection::default()).expect("another small mapping");
        *other = Some(again);
        if again == at {
            break;
        }
    }
    assert!(others.contains(&Some(at)), "no mapping came back to {at}");
    stale += compare_pages(kernel, "a block", at, BLOCK + NEW);
    for at in others.into_iter().flatten() {
        map.vm_unmap_ram(0, at, PAGES as u64).expect("its end");
    }
    map.purge();
    free(kernel, &old);
    free(kernel, &new);
    stale
}

/// Per-CPU objects are freed and their chunks destroyed; then other objects get other pages at the same addresses.
fn objects<K: Kernel>(kernel: &K) -> u64 {
    let (percpu, cpus, mut stale) = (kernel.percpu(), K::CPUS, 0);
    let request = Request::new(PAGE_SIZE as usize, PAGE_SIZE as usize);
    let [old, new] = [OLD, NEW].map(|from| {
        let list: [_; OBJECTS] = array::from_fn(|_| percpu.alloc(&request).expect("an object"));
        let copy = |copy: usize| list[copy / cpus].at(kernel.unit(copy % cpus));
        let frame = |at| table(kernel).leaf(at).expect("the page of a copy").first;
        for place in 0..OBJECTS * cpus {
            let number = OBJECT + from + place as u64;
            first_word(kernel, frame(copy(place))).store(number, Ordering::Relaxed);
        }
        stale += compare(kernel, "per-CPU memory", OBJECTS * cpus, &|nth| {
            let place = if from == NEW { OBJECTS * cpus - 1 - nth } else { nth };
            (copy(place), OBJECT + from + place as u64)
        });
        let pages: [_; OBJECTS] = array::from_fn(|place| (copy(place * cpus), frame(copy(place * cpus))));
        list.into_iter().for_each(|offset| percpu.free(offset).expect("its end"));
        percpu.balance();
        kernel.space().purge(Purge::Full);
        pages
    });
    let moved = |&(at, frame): &(Va, u64)| new.iter().any(|&(again, other)| again == at && other != frame);
    assert!(old.iter().any(moved), "no address of a copy got another page");
    stale
}
