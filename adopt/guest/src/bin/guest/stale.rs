//! Reads through translations that must be gone: each CPU reads an address, which then gets other frames.
//!
//! Nothing here depends on chance. Each CPU translates an address before it is freed, and reads it again when other
//! frames are there. Their contents are written through the mapping of all memory, never through the window: a CPU that
//! writes through an old translation would hide it. QEMU's emulated CPUs keep translations until a flush.

use crate::cpus::{self, CPUS};
use crate::memory::{self, FRAMES, Memory};
use crate::{hw, traps};
use core::array;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va};
use va_map::{PageTable, Run};
use va_percpu::Request;
use va_space::Purge;
use vmalloc_guest::frames;
use vmalloc_guest::tables::READ_WRITE;

/// Pages of a mapping, and per-CPU objects of a page each: more than a chunk that the balance spares.
const PAGES: usize = 8;
const OBJECTS: usize = 40;
/// The numbers in pages: of the test, of the old contents or the new, and of the page.
const AREA: u64 = 0xa000;
const BLOCK: u64 = 0xb000;
const OBJECT: u64 = 0xc000;
const OLD: u64 = 0x100;
const NEW: u64 = 0x200;

/// Returns the number of reads that returned what was at an address before. With a flush of all CPUs that is 0.
pub(crate) fn run(memory: &Memory) -> u64 {
    let stale = area(memory) + block(memory) + objects(memory);
    if stale == 0 {
        hw::print(format_args!(
            "an area, a block, per-CPU pages: all CPUs read what is at a reused address now"
        ));
    }
    stale
}

/// Reads words on every CPU and counts those that are not the expected ones. Reports the first on each CPU.
fn compare(what: &str, words: &[(Va, u64)]) -> u64 {
    let stale = AtomicU64::new(0);
    cpus::each(&|cpu| {
        let wrong = || {
            words.iter().map(|&(at, want)| (at, want, traps::read(at))).filter(|read| read.2 != Ok(read.1))
        };
        if let Some((at, want, got)) = wrong().next() {
            let got = got.unwrap_or(0);
            hw::print(format_args!("STALE read in {what}: CPU {cpu} at {at}: {got:#x}, expected {want:#x}"));
        }
        stale.fetch_add(wrong().count() as u64, Ordering::Relaxed);
    });
    stale.into_inner()
}

fn mark(frame: u64, number: u64) {
    // SAFETY: the frame is allocated for this test, which uses its words atomically.
    unsafe { frames::word(frame, 0) }.store(number, Ordering::Relaxed);
}

/// Allocates frames with numbers from `from` on.
fn pages(from: u64) -> [u64; PAGES] {
    let list = array::from_fn(|_| FRAMES.alloc(0).expect("a frame"));
    list.iter().zip(from..).for_each(|(&frame, number)| mark(frame, number));
    list
}

/// Returns the addresses of a mapping of [`pages`], with the numbers there.
fn words(at: Va, from: u64) -> [(Va, u64); PAGES] {
    array::from_fn(|place| (Va::from_page(at.page_floor() + place as u64), from + place as u64))
}

/// An area is unmapped, the space purged, and another area gets its address.
fn area(Memory { map, .. }: &Memory) -> u64 {
    let mut stale = 0;
    let [first, second] = [OLD, NEW].map(|from| {
        let list = pages(AREA + from);
        let at = map.vmap(0, &list[..], READ_WRITE, 0).expect("an area");
        stale += compare("an area", &words(at, AREA + from));
        map.vunmap(at).expect("its end");
        map.purge();
        (at, list)
    });
    assert_eq!(first.0, second.0, "the lowest hole is the same");
    [first.1, second.1].into_iter().flatten().for_each(|first| FRAMES.free(Run { first, pages: 1 }));
    stale
}

/// A small mapping ends, the dead pages of its block are flushed, and another mapping gets them.
fn block(Memory { map, .. }: &Memory) -> u64 {
    let (old, new) = (pages(BLOCK + OLD), pages(BLOCK + NEW));
    let at = map.vm_map_ram(0, &old[..], READ_WRITE).expect("a small mapping");
    let mut stale = compare("a block", &words(at, BLOCK + OLD));
    map.vm_unmap_ram(0, at, PAGES as u64).expect("its end");
    map.unmap_aliases();
    // The block goes on with its next pages, and comes back to the first.
    let mut others = array::from_fn::<_, { 1024 / PAGES }, _>(|_| None);
    for other in &mut others {
        let again = map.vm_map_ram(0, &new[..], READ_WRITE).expect("another small mapping");
        *other = Some(again);
        if again == at {
            break;
        }
    }
    assert!(others.contains(&Some(at)), "no mapping came back to {at}");
    stale += compare("a block", &words(at, BLOCK + NEW));
    others.into_iter().flatten().for_each(|at| map.vm_unmap_ram(0, at, PAGES as u64).expect("its end"));
    map.purge();
    [old, new].into_iter().flatten().for_each(|first| FRAMES.free(Run { first, pages: 1 }));
    stale
}

/// Per-CPU objects are freed and their chunks destroyed; then other objects get other pages at the same addresses.
fn objects(Memory { percpu, space, tables, .. }: &Memory) -> u64 {
    let mut stale = 0;
    let request = Request::new(PAGE_SIZE as usize, PAGE_SIZE as usize);
    let [old, new] = [OLD, NEW].map(|from| {
        let list: [_; OBJECTS] = array::from_fn(|_| percpu.alloc(&request).expect("an object"));
        let copies: [_; OBJECTS * CPUS] = array::from_fn(|copy| {
            let at = list[copy / CPUS].at(memory::unit(copy % CPUS));
            let frame = tables.leaf(at).expect("the page of a copy").first;
            mark(frame, OBJECT + from + copy as u64);
            (at, frame)
        });
        let words: [_; OBJECTS * CPUS] = array::from_fn(|copy| (copies[copy].0, OBJECT + from + copy as u64));
        stale += compare("per-CPU memory", &words);
        list.into_iter().for_each(|offset| percpu.free(offset).expect("its end"));
        percpu.balance();
        space.purge(Purge::Full);
        copies
    });
    let moved = |&(at, frame): &(Va, u64)| new.iter().any(|&(again, other)| again == at && other != frame);
    assert!(old.iter().any(moved), "no address of a copy got another page");
    stale
}
