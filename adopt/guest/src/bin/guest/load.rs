//! Areas, blocks and per-CPU objects on all CPUs at once, with real contents; guard pages, large pages, counters.

use crate::cpus::{self, CPUS};
use crate::memory::{self, FRAMES, Memory};
use crate::{hw, traps};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{AreaRequest, Fill, Leaves, PageTable, Run};
use va_percpu::{Offset, Request};
use va_space::Purge;
use vmalloc_guest::frames;
use vmalloc_guest::tables::READ_WRITE;

/// Steps of each CPU, and after how many it purges.
const STEPS: u64 = 1000;
const STEPS_TO_PURGE: u64 = 125;
/// Areas that wait for the CPU that checks and frees them.
static HANDED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Areas, those among them that another CPU freed, small mappings, per-CPU objects.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Runs all of it. A difference ends the machine.
pub(crate) fn run(memory: &Memory) {
    guards(memory);
    large(memory);
    counters(memory);
    cpus::each(&|cpu| random(memory, cpu));
    HANDED.iter().for_each(|handed| take(memory, 0, handed.swap(0, Relaxed)));
    let [areas, crossed, mappings, objects] = COUNTS.each_ref().map(|count| count.load(Relaxed));
    hw::print(format_args!(
        "{CPUS} CPUs at once: {areas} areas, {crossed} of them checked and freed by another CPU than the one that \
         wrote them; {mappings} small mappings; {objects} per-CPU objects"
    ));
    // All of it was freed, and no rule of the core is broken.
    let Memory { map, percpu, space, .. } = memory;
    map.purge();
    percpu.balance();
    space.purge(Purge::Full);
    let stats = map.stats();
    let left = [stats.allocated_pages, stats.foreign_pages, stats.busy_pages, stats.lazy_pages];
    assert_eq!(left.map(|pages| pages.get()), [0; 4], "pages that are left");
    map.validate().expect("the rules of the map");
    percpu.validate().expect("the rules of per-CPU memory");
    space.validate().expect("the rules of the space of chunks");
}

/// Returns the word of a page of an area at a place.
fn word(at: Va, page: u64, place: u64) -> &'static AtomicU64 {
    let at = with_exposed_provenance::<AtomicU64>((at.get() + page * PAGE_SIZE + 8 * place) as usize);
    // SAFETY: a word of an area, a mapping or an object of the caller, which it has not freed.
    unsafe { &*at }
}

/// The page after an area faults, and so does a freed area after a purge: on every CPU, at the right address.
fn guards(Memory { map, .. }: &Memory) {
    let request = AreaRequest { fill: Fill::Zeros, ..AreaRequest::new(PAGE_SIZE) };
    let at = map.vmalloc(0, &request).expect("an area");
    let guard = Va::new(at.get() + PAGE_SIZE);
    cpus::each(&|_| assert_eq!((traps::read(at), traps::read(guard)), (Ok(0), Err(guard))));
    map.vfree(at).expect("its end");
    map.purge();
    cpus::each(&|_| assert_eq!(traps::read(at), Err(at)));
    hw::print(format_args!("a guard page and a freed area fault on all CPUs, at the address that was read"));
}

/// An area of 2 MiB is one entry, where no table was before.
fn large(Memory { map, tables, .. }: &Memory) {
    let extent = map.extent();
    let window = VaRange::new(Va::new(extent.start().get() + extent.len_bytes() / 2), extent.end());
    let request = AreaRequest { leaves: Leaves::LargeWherePossible, window, ..AreaRequest::new(2 << 20) };
    let at = map.vmalloc(0, &request).expect("a large area");
    assert_eq!(tables.leaf(at).map(|leaf| leaf.pages_log2), Some(9));
    word(at, 511, 0).store(at.get(), Relaxed);
    cpus::each(&|_| assert_eq!(word(at, 511, 0).load(Relaxed), at.get()));
    map.vfree(at).expect("its end");
    map.purge();
}

/// Counters: each CPU adds to its own copies, by an ordinary addition.
fn counters(Memory { percpu, .. }: &Memory) {
    static OFFSETS: [AtomicU64; 3000] = [const { AtomicU64::new(0) }; 3000];
    let offset = |place: usize| Offset::new(OFFSETS[place].load(Relaxed));
    let copy = |place, cpu| word(offset(place).at(memory::unit(cpu)), 0, 0);
    for place in &OFFSETS {
        place.store(percpu.alloc(&Request::new(8, 8)).expect("a counter").get(), Relaxed);
    }
    cpus::each(&|cpu| {
        for counter in (0..OFFSETS.len()).map(|place| copy(place, cpu)) {
            counter.store(counter.load(Relaxed) + cpu as u64 + 1, Relaxed);
        }
    });
    for place in 0..OFFSETS.len() {
        assert_eq!((0..CPUS).map(|cpu| copy(place, cpu).load(Relaxed)).sum::<u64>(), 1 + 2 + 3 + 4);
        percpu.free(offset(place)).expect("the end of a counter");
    }
    percpu.balance();
    hw::print(format_args!("{} per-CPU counters: the sum over all CPUs is right", OFFSETS.len()));
}

/// The steps of one CPU, drawn by numbers that are the same in each run.
fn random(memory: &Memory, cpu: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15 + cpu as u64;
    let mut below = |end: u64| {
        state = (state ^ state << 13) ^ (state ^ state << 13) >> 7;
        state ^= state << 17;
        (state >> 16) % end
    };
    for step in 1..=STEPS {
        match below(8) {
            0..4 => {
                let at = fill(memory, cpu, 1 + below(8), step);
                take(
                    memory,
                    cpu,
                    HANDED[below(64) as usize].swap(at.get(), core::sync::atomic::Ordering::AcqRel),
                );
            }
            4..7 => mapping(memory, cpu, 1 + below(6) as usize, step),
            _ => object(memory, cpu, 1 << below(6), step),
        }
        if step % STEPS_TO_PURGE == 0 {
            memory.map.purge();
        }
    }
}

/// The contents of a page of an area: different for each address, page, CPU and step.
fn contents(at: Va, page: u64, seed: u64) -> u64 {
    (at.get() ^ seed.rotate_left(32)).wrapping_add(page).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Creates an area. Its first page has the numbers by which another CPU checks all of it.
fn fill(Memory { map, .. }: &Memory, cpu: usize, pages: u64, step: u64) -> Va {
    let at = map.vmalloc(cpu as u32, &AreaRequest::new(pages * PAGE_SIZE)).expect("an area");
    let seed = (cpu as u64) << 32 | step;
    word(at, 0, 1).store(pages, Relaxed);
    word(at, 0, 2).store(seed, Relaxed);
    for (page, place) in (0..pages).flat_map(|page| [(page, 0), (page, 511)]) {
        word(at, page, place).store(contents(at, page, seed + place), Relaxed);
    }
    COUNTS[0].fetch_add(1, Relaxed);
    at
}

/// Checks and frees an area that any CPU created; 0 is none.
fn take(Memory { map, .. }: &Memory, cpu: usize, at: u64) {
    if at == 0 {
        return;
    }
    let at = Va::new(at);
    let (pages, seed) = (word(at, 0, 1).load(Relaxed), word(at, 0, 2).load(Relaxed));
    assert!((1..=8).contains(&pages), "CPU {cpu} at {at}: {pages:#x} pages");
    for (page, place) in (0..pages).flat_map(|page| [(page, 0), (page, 511)]) {
        let (got, want) = (word(at, page, place).load(Relaxed), contents(at, page, seed + place));
        assert_eq!(got, want, "CPU {cpu} at {at}, page {page}, word {place}");
    }
    map.vfree(at).expect("the end of an area");
    COUNTS[1].fetch_add(u64::from(seed >> 32 != cpu as u64), Relaxed);
}

/// A small mapping of own frames: written through the window, read at the frames.
fn mapping(Memory { map, .. }: &Memory, cpu: usize, pages: usize, step: u64) {
    let mut list = [0; 6];
    list[..pages].fill_with(|| FRAMES.alloc(0).expect("a frame"));
    let at = map.vm_map_ram(cpu as u32, &list[..pages], READ_WRITE).expect("a small mapping");
    (0..pages as u64).for_each(|page| word(at, page, 0).store(contents(at, page, step), Relaxed));
    for (&frame, page) in list[..pages].iter().zip(0..) {
        // SAFETY: the frame is this function's, and its words are used atomically.
        let got = unsafe { frames::word(frame, 0) }.load(Relaxed);
        assert_eq!(got, contents(at, page, step), "CPU {cpu} writes elsewhere than to {at}");
    }
    map.vm_unmap_ram(cpu as u32, at, pages as u64).expect("the end of a small mapping");
    list[..pages].iter().for_each(|&first| FRAMES.free(Run { first, pages: 1 }));
    COUNTS[2].fetch_add(1, Relaxed);
}

/// A per-CPU object: zero at first on every CPU, then written on this one.
fn object(Memory { percpu, .. }: &Memory, cpu: usize, words: u64, step: u64) {
    let offset = percpu.alloc(&Request::new(8 * words as usize, 8)).expect("an object");
    let copy = |cpu| offset.at(memory::unit(cpu));
    for (cpu, place) in (0..CPUS).flat_map(|cpu| (0..words).map(move |place| (cpu, place))) {
        assert_eq!(word(copy(cpu), 0, place).load(Relaxed), 0, "a new object is zero");
    }
    (0..words).for_each(|place| word(copy(cpu), 0, place).store(contents(copy(cpu), place, step), Relaxed));
    for place in 0..words {
        assert_eq!(word(copy(cpu), 0, place).load(Relaxed), contents(copy(cpu), place, step));
    }
    percpu.free(offset).expect("its end");
    if percpu.is_balance_due() {
        percpu.balance();
    }
    COUNTS[3].fetch_add(1, Relaxed);
}
