//! Areas, blocks and per-CPU objects on all CPUs at once, with real contents; guard pages, large pages, counters.

use crate::{Kernel, first_word, frame, free, table, word};
use core::sync::atomic::{AtomicU64, Ordering::*};
use va_base::{PAGE_SIZE, Pages, Va, VaRange};
use va_map::{AreaRequest, Fill, Leaves, PageTable, Protection};
use va_percpu::{Offset, Request};
use va_space::Purge;

/// Steps of each CPU, and after how many it purges.
const STEPS: u64 = 1000;
const STEPS_TO_PURGE: u64 = 125;
/// Areas that wait for the CPU that checks and frees them.
static HANDED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Areas, those among them that another CPU freed, small mappings, per-CPU objects.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Checks contents: guard pages, large pages, counters, and a load on all CPUs at once. Everything is freed at the end,
/// and the rules of the core are checked. Called once.
///
/// # Panics
/// At the first difference.
pub fn load<K: Kernel>(kernel: &K) {
    guards(kernel);
    large(kernel);
    counters(kernel);
    kernel.each(&|cpu| random(kernel, cpu));
    HANDED.iter().for_each(|handed| take(kernel, 0, handed.swap(0, Acquire)));
    let [areas, crossed, mappings, objects] = COUNTS.each_ref().map(|count| count.load(Relaxed));
    kernel.print(format_args!(
        "{} CPUs at once: {areas} areas, {crossed} of them checked and freed by another CPU than the one that wrote \
         them; {mappings} small mappings; {objects} per-CPU objects",
        K::CPUS
    ));
    // All of it was freed, and no rule of the core is broken.
    let (map, percpu, space) = (kernel.map(), kernel.percpu(), kernel.space());
    map.purge();
    percpu.balance();
    space.purge(Purge::Full);
    let stats = map.stats();
    let left = [stats.allocated_pages, stats.foreign_pages, stats.busy_pages, stats.lazy_pages];
    assert_eq!(left.map(Pages::get), [0; 4], "pages that are left");
    map.validate().expect("the rules of the map");
    percpu.validate().expect("the rules of per-CPU memory");
    space.validate().expect("the rules of the space of chunks");
}

/// The page after an area faults, and so does a freed area after a purge: on every CPU, at the right address.
fn guards(kernel: &impl Kernel) {
    let map = kernel.map();
    let request = AreaRequest::new(PAGE_SIZE).fill(Fill::Zeros);
    let at = map.vmalloc(0, &request).expect("an area");
    let guard = Va::new(at.get() + PAGE_SIZE);
    kernel.each(&|_| assert_eq!((kernel.read(at), kernel.read(guard)), (Ok(0), Err(guard))));
    map.vfree(at).expect("its end");
    map.purge();
    kernel.each(&|_| assert_eq!(kernel.read(at), Err(at)));
    kernel
        .print(format_args!("a guard page and a freed area fault on all CPUs, at the address that was read"));
}

/// An area of 2 MiB is one entry, where no table was before.
fn large(kernel: &impl Kernel) {
    let map = kernel.map();
    let extent = map.extent();
    let window = VaRange::new(Va::new(extent.start().get() + extent.len_bytes() / 2), extent.end());
    let window = window.expect("half of the extent");
    let request = AreaRequest::new(2 << 20).leaves(Leaves::LargeWherePossible).window(window);
    let at = map.vmalloc(0, &request).expect("a large area");
    assert_eq!(table(kernel).leaf(at).map(|leaf| leaf.pages_log2), Some(9));
    word(at, 511, 0).store(at.get(), Relaxed);
    kernel.each(&|_| assert_eq!(word(at, 511, 0).load(Relaxed), at.get()));
    map.vfree(at).expect("its end");
    map.purge();
}

/// Counters: each CPU adds to its own copies, by an ordinary addition.
fn counters<K: Kernel>(kernel: &K) {
    let percpu = kernel.percpu();
    static OFFSETS: [AtomicU64; 3000] = [const { AtomicU64::new(0) }; 3000];
    let offset = |place: usize| Offset::new(OFFSETS[place].load(Relaxed));
    let copy = |place, cpu| word(offset(place).at(kernel.unit(cpu)), 0, 0);
    for place in &OFFSETS {
        place.store(percpu.alloc(&Request::new(8, 8)).expect("a counter").get(), Relaxed);
    }
    kernel.each(&|cpu| {
        for counter in (0..OFFSETS.len()).map(|place| copy(place, cpu)) {
            counter.store(counter.load(Relaxed) + cpu as u64 + 1, Relaxed);
        }
    });
    for place in 0..OFFSETS.len() {
        let sum: u64 = (0..K::CPUS).map(|cpu| copy(place, cpu).load(Relaxed)).sum();
        assert_eq!(sum, (1..=K::CPUS as u64).sum(), "a counter");
        percpu.free(offset(place)).expect("the end of a counter");
    }
    percpu.balance();
    kernel.print(format_args!("{} per-CPU counters: the sum over all CPUs is right", OFFSETS.len()));
}

/// The steps of one CPU, drawn by numbers that are the same in each run.
fn random(kernel: &impl Kernel, cpu: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15 + cpu as u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % end
    };
    for step in 1..=STEPS {
        match below(8) {
            0..4 => {
                let at = fill(kernel, cpu, 1 + below(8), step);
                take(kernel, cpu, HANDED[below(64) as usize].swap(at.get(), AcqRel));
            }
            4..7 => mapping(kernel, cpu, 1 + below(6) as usize, step),
            _ => object(kernel, cpu, 1 << below(6), step),
        }
        if step % STEPS_TO_PURGE == 0 {
            kernel.map().purge();
        }
    }
}

/// The contents of a page of an area: different for each address, page, CPU and step.
fn contents(at: Va, page: u64, seed: u64) -> u64 {
    (at.get() ^ seed.rotate_left(32)).wrapping_add(page).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Creates an area. Its first page has the numbers by which another CPU checks all of it.
fn fill(kernel: &impl Kernel, cpu: usize, pages: u64, step: u64) -> Va {
    let at = kernel.map().vmalloc(cpu as u32, &AreaRequest::new(pages * PAGE_SIZE)).expect("an area");
    let seed = ((cpu as u64) << 32) | step;
    word(at, 0, 1).store(pages, Relaxed);
    word(at, 0, 2).store(seed, Relaxed);
    for (page, place) in (0..pages).flat_map(|page| [(page, 0), (page, 511)]) {
        word(at, page, place).store(contents(at, page, seed + place), Relaxed);
    }
    COUNTS[0].fetch_add(1, Relaxed);
    at
}

/// Checks and frees an area that any CPU created; 0 is none.
fn take(kernel: &impl Kernel, cpu: usize, at: u64) {
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
    kernel.map().vfree(at).expect("the end of an area");
    COUNTS[1].fetch_add(u64::from(seed >> 32 != cpu as u64), Relaxed);
}

/// A small mapping of own frames: written through the window, read at the frames.
fn mapping(kernel: &impl Kernel, cpu: usize, pages: usize, step: u64) {
    let map = kernel.map();
    let mut list = [0; 6];
    let list = &mut list[..pages];
    list.fill_with(|| frame(kernel));
    let at = map.vm_map_ram(cpu as u32, &*list, Protection::default()).expect("a small mapping");
    (0..pages as u64).for_each(|page| word(at, page, 0).store(contents(at, page, step), Relaxed));
    for (&frame, page) in list.iter().zip(0..) {
        let got = first_word(kernel, frame).load(Relaxed);
        assert_eq!(got, contents(at, page, step), "CPU {cpu} writes elsewhere than to {at}");
    }
    map.vm_unmap_ram(cpu as u32, at, pages as u64).expect("the end of a small mapping");
    free(kernel, list);
    COUNTS[2].fetch_add(1, Relaxed);
}

/// A per-CPU object: zero at first on every CPU, then written on this one.
fn object<K: Kernel>(kernel: &K, cpu: usize, words: u64, step: u64) {
    let percpu = kernel.percpu();
    let offset = percpu.alloc(&Request::new(8 * words as usize, 8)).expect("an object");
    let copy = |cpu| offset.at(kernel.unit(cpu));
    for (cpu, place) in (0..K::CPUS).flat_map(|cpu| (0..words).map(move |place| (cpu, place))) {
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
