//! Tests of the heap on a system with fault injection.

mod budget;
mod changed;
mod cpus;
mod growth;
mod guarded;
mod locks;
mod nodes;
mod released;
mod shared;
mod soak;
mod system;

use super::*;
use crate::arena::{HUGE, SMALL};
use crate::error::{CreateError, ResizeError};
use crate::magazine::BIG_PAGES;
use crate::options::HugePages;
use std::collections::BTreeMap;
use vmalloc_os::os::shim::{Shim, mappings_in};
use vmalloc_os::os::{Call, Errno};

pub(super) const MIB: usize = 1 << 20;

/// The plan from which tests derive theirs.
pub(super) const PLAN: Plan = Plan {
    arena_bytes_max: 1 << 34,
    cache_bytes_max: 64 * MIB,
    guards: false,
    huge_pages: HugePages::Never,
    decay: None,
    background_thread: true,
    zero_on_free: false,
};

pub(super) fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

pub(super) fn heap(shim: &Shim, arena_bytes_max: usize, cache_bytes_max: usize) -> Owned<Shim> {
    heap_on(HugePages::Auto, shim, arena_bytes_max, cache_bytes_max)
}

pub(super) fn heap_on(
    huge_pages: HugePages,
    shim: &Shim,
    arena_bytes_max: usize,
    cache_bytes_max: usize,
) -> Owned<Shim> {
    let plan = Plan { arena_bytes_max, cache_bytes_max, huge_pages, ..PLAN };
    Owned::new(shim.clone(), plan).unwrap()
}

/// Returns the number of mappings of the arena. Other tests map elsewhere at the same time.
fn mappings(heap: &Owned<Shim>) -> usize {
    let whole = heap.arena.whole();
    mappings_in(whole.start().get() as usize, whole.end().get() as usize)
}

/// A reference model of a heap: address to bytes, alignment and the byte that fills the area.
pub(super) struct Model {
    pub(super) heap: Owned<Shim>,
    pub(super) areas: BTreeMap<usize, (usize, usize, u8)>,
    state: u64,
    /// The CPUs that call.
    pub(super) cpus: usize,
}

impl Model {
    pub(super) fn new(heap: Owned<Shim>) -> Self {
        Self { heap, areas: BTreeMap::new(), state: 0x5eed, cpus: 4 }
    }

    pub(super) fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % below
    }

    pub(super) fn bytes(at: usize, bytes: usize) -> &'static mut [u8] {
        // SAFETY: only tests use their heaps, and they pass the addresses of live areas.
        unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(at), bytes) }
    }

    /// Writes the first and last bytes, and some in between.
    pub(super) fn mark(at: usize, bytes: usize, byte: u8) {
        let area = Self::bytes(at, bytes);
        area.iter_mut().step_by(1021).for_each(|place| *place = byte);
        area[bytes - 1] = byte;
    }

    pub(super) fn is_marked(at: usize, bytes: usize, byte: u8) -> bool {
        Self::bytes(at, bytes).iter().step_by(1021).all(|&place| place == byte)
    }

    pub(super) fn is_zero(at: usize, bytes: usize) -> bool {
        // Without an end at the first other byte, a block is a few instructions.
        Self::bytes(at, bytes).chunks(1024).all(|block| block.iter().fold(0, |all, &byte| all | byte) == 0)
    }

    fn enter(&mut self, at: usize, bytes: usize, align: usize) {
        assert!(at.is_multiple_of(align.max(PAGE_BYTES)));
        let word = self.heap.live(at).unwrap();
        assert_eq!(word.requested_bytes(), bytes);
        let end = at + word.usable_bytes();
        let below = self.areas.range(..end).next_back();
        assert!(below.is_none_or(|(&other, &(size, ..))| other + size.next_multiple_of(PAGE_BYTES) <= at));
        let byte = 1 + self.random(255) as u8;
        Self::mark(at, bytes, byte);
        self.areas.insert(at, (bytes, align, byte));
    }

    pub(super) fn alloc(&mut self, bytes: usize, align: usize, fill: Fill) -> Result<usize, AllocError> {
        let at = self.heap.alloc(layout(bytes, align), fill)?.addr().get();
        assert!(fill == Fill::Any || Self::is_zero(at, bytes));
        self.enter(at, bytes, align);
        Ok(at)
    }

    pub(super) fn nth(&mut self) -> Option<usize> {
        let count = self.areas.len();
        let n = (count > 0).then(|| self.random(count))?;
        let mut keys = self.areas.keys();
        // From the nearer end, since it steps over every area between.
        if n < count / 2 { keys.nth(n) } else { keys.nth_back(count - 1 - n) }.copied()
    }

    pub(super) fn free(&mut self, at: usize) {
        let (bytes, _, byte) = self.areas.remove(&at).unwrap();
        assert!(Self::is_marked(at, bytes, byte), "another writer changed the area");
        // SAFETY: the model recorded it as live, and has no reference to it.
        unsafe { self.heap.free(at) }.unwrap();
        // SAFETY: nothing is freed by this.
        let again = unsafe { self.heap.free(at) };
        assert!(matches!(again, Err(FreeError::AlreadyFree { .. })), "{again:?}");
    }

    pub(super) fn resize(&mut self, at: usize, bytes: usize, fill: Fill) -> Result<usize, ResizeError> {
        let (before, align, byte) = self.areas[&at];
        // SAFETY: the model recorded it as live, and has no reference to it.
        let to = unsafe { self.heap.resize(at, layout(bytes, align), fill) }?.addr().get();
        self.areas.remove(&at);
        assert!(Self::is_marked(to, before.min(bytes), byte));
        assert!(fill == Fill::Any || bytes <= before || Self::is_zero(to + before, bytes - before));
        self.enter(to, bytes, align);
        Ok(to)
    }

    /// Performs a random operation, and returns its error.
    pub(super) fn step(&mut self, largest: usize) -> Result<(), ResizeError> {
        let bytes = match self.random(8) {
            0..4 => 1 + self.random(20 * PAGE_BYTES),
            4..7 => 1 + self.random(largest / 8),
            _ => 1 + self.random(largest),
        };
        let align = 1 << [0, 3, 12, 12, 13, 16, 21][self.random(7)];
        let fill = if self.random(3) == 0 { Fill::Zero } else { Fill::Any };
        let cpu = self.random(self.cpus);
        self.heap.host.os().on_cpu(cpu);
        match self.random(10) {
            0..4 => self.alloc(bytes, align, fill).map(|_| ()).map_err(ResizeError::Alloc),
            4..7 => {
                if let Some(at) = self.nth() {
                    self.free(at);
                }
                Ok(())
            }
            _ => match self.nth() {
                Some(at) => self.resize(at, bytes, fill).map(|_| ()),
                None => Ok(()),
            },
        }
    }

    pub(super) fn check(&self) {
        // The background thread may be moving runs between lists, and then they are in none.
        let _settled = self.heap.hold_settled();
        assert_eq!(self.heap.validate(), Ok(()));
        let pages: u64 = self.areas.values().map(|&(bytes, ..)| self.heap.run_pages(bytes)).sum();
        assert_eq!(self.heap.stats().live_bytes, crate::arena::address(pages));
    }

    pub(super) fn end(mut self) {
        for at in self.areas.keys().copied().collect::<Vec<_>>() {
            self.free(at);
        }
        self.check();
        self.heap.release_all();
        self.check();
        let stats = self.heap.stats();
        // Beside retired ranges, a part of a block may stay dirty.
        assert!(stats.dirty_bytes == 0 || stats.retired_bytes > 0, "{stats:?}");
        assert_eq!((stats.live_bytes, stats.cached_bytes, stats.moved_areas), (0, 0, 0));
        // No run is cached with its guard any more, so no guard is left.
        assert_eq!(stats.guards, 0);
        let shim = self.heap.host.os().clone();
        let others = self.heap.arena.torn_pages() as usize * PAGE_BYTES;
        drop(self.heap);
        assert_eq!(shim.mapped(), others, "all that was mapped was unmapped");
    }
}

#[test]
fn vm1_vm2_ar2_random_calls_lose_nothing_and_give_nothing_out_twice() {
    let shim = Shim::default();
    let (mut grown, mut hits) = ((0, 0), 0);
    // Budgets from 0 to plenty, so that purges, magazines and moves all occur.
    for (huge_pages, cached, steps, moves) in [
        (HugePages::Auto, 0, 400, false),
        (HugePages::Auto, 0, 400, true),
        (HugePages::Auto, 2 * MIB, 1500, false),
        (HugePages::Auto, 64 * MIB, 1500, true),
        (HugePages::System, 0, 400, false),
        (HugePages::System, 64 * MIB, 1500, true),
    ] {
        shim.allow();
        if !moves {
            shim.fail(Call::Move, 0);
        }
        let mut model = Model::new(heap_on(huge_pages, &shim, 1 << 32, cached));
        for step in 0..steps {
            model.step(16 * MIB).unwrap();
            if step % 16 == 0 {
                model.check();
            }
        }
        let stats = model.heap.stats();
        assert!(stats.purged_bytes > 0, "{stats:?}");
        hits += stats.cache_hits;
        grown = (grown.0 + stats.grown_by_move, grown.1 + stats.grown_in_place);
        model.end();
    }
    assert!(grown.0 > 0 && grown.1 > 0 && hits > 0, "{grown:?}, {hits}");
    assert!(shim.calls(Call::Move) > 0);
}

/// Uses large sizes and a few slots: each step purges, and leaves clean gaps between dirty runs.
#[test]
fn vm3_a_concurrent_purge_leaves_records_reserved() {
    let shim = Shim::default();
    for cached in [8 * MIB, 32 * MIB, 128 * MIB] {
        let mut model = Model::new(heap(&shim, 1 << 36, cached));
        for step in 0..300 {
            let cpu = model.random(2);
            shim.on_cpu(cpu);
            if model.areas.len() >= 16 {
                let at = model.nth().unwrap();
                model.free(at);
            }
            let bytes = (64 << 10) << model.random(if step % 3 == 0 { 10 } else { 6 });
            let bytes = bytes + model.random(bytes);
            model.alloc(bytes, 1, Fill::Any).unwrap();
            if step % 4 == 0 {
                model.check();
            }
        }
        assert!(model.heap.stats().purged_bytes > 0);
        model.end();
    }
}

/// The nth call of each kind fails, for every n: nothing is lost, and later operations succeed.
#[test]
fn sp4_nothing_is_lost_whichever_call_fails() {
    // Moves are rarer than the other calls.
    let plan = [
        (Call::Map, 16, 150),
        (Call::Commit, 16, 120),
        (Call::Discard, 20, 120),
        (Call::Move, 6, 300),
        (Call::Remap, 4, 300),
        (Call::Renew, 6, 300),
    ];
    for (call, most, steps) in plan {
        let (mut injected, mut failures) = (0, 0);
        for granted in 0..most {
            let shim = Shim::default();
            let huge_pages = if granted % 4 == 3 { HugePages::System } else { HugePages::Auto };
            let mut model = Model::new(heap_on(huge_pages, &shim, 1 << 30, 4 * MIB));
            // A mapping moves only where pages do not.
            if matches!(call, Call::Remap | Call::Renew) {
                shim.fail(Call::Move, 0);
            }
            // Every other time, a failing call does half of its work.
            shim.halve(granted % 2 == 1);
            shim.fail_some(call, granted, 1 + granted % 3);
            let before = shim.calls(call);
            let largest = if steps == 300 { 24 * MIB } else { 4 * MIB };
            for _ in 0..steps {
                let areas = model.areas.clone();
                if let Err(error) = model.step(largest) {
                    failures += 1;
                    let failed = match error {
                        ResizeError::Alloc(AllocError::CallFailed { call, errno, bytes }) => {
                            (call, errno) == (Call::Commit, Errno::NOMEM) && bytes > 0
                        }
                        ResizeError::Alloc(AllocError::NoRecords) => call == Call::Map,
                        _ => false,
                    };
                    assert!(failed, "{call:?}: {error}");
                    assert_eq!(model.areas, areas);
                    model.check();
                }
            }
            let ran = shim.calls(call) - before;
            injected += u64::from(ran > granted);
            shim.allow();
            for _ in 0..40 {
                model.step(4 * MIB).unwrap();
            }
            model.check();
            if call != Call::Renew {
                model.end();
            }
        }
        assert!(injected > 0, "{call:?} never failed");
        // A failure of an optional call is not reported; that of another one is.
        assert!(failures > 0 || !matches!(call, Call::Commit), "{call:?}");
    }
}

#[test]
fn sp3_everything_can_be_freed_when_the_system_gives_nothing_any_more() {
    let shim = Shim::default();
    let mut model = Model::new(heap(&shim, 1 << 32, 1 << 30));
    while model.areas.len() < 3000 {
        let bytes = 1 + model.random(9 * PAGE_BYTES);
        model.alloc(bytes, 1, Fill::Any).unwrap();
    }
    for call in [Call::Map, Call::Commit, Call::Discard, Call::Move, Call::Remap, Call::Renew] {
        shim.fail(call, 0);
    }
    // Every other area first, so that no two merge; then the rest.
    let (odd, even): (Vec<_>, Vec<_>) =
        model.areas.keys().copied().enumerate().partition(|(n, _)| n % 2 == 1);
    for (_, at) in odd.into_iter().chain(even) {
        model.free(at);
    }
    model.check();
    shim.allow();
    model.end();
}

#[test]
fn a_full_arena_is_an_error_and_serves_again_after_a_free() {
    let shim = Shim::default();
    let mut model = Model::new(heap(&shim, 64 * MIB, 1 << 30));
    let zones = [SMALL, HUGE].map(|zone| model.heap.arena.extent(zone).len_bytes() as usize);
    let mut last = Ok(0);
    while last.is_ok() {
        last = model.alloc(3 * MIB, 1, Fill::Any);
    }
    // The zone of small areas served as well, except for its short rest; the error has the larger rest.
    assert!(
        matches!(last, Err(AllocError::NoSpace { requested_bytes, align_bytes: 1, largest_bytes })
        if requested_bytes == 3 * MIB && largest_bytes < 3 * MIB),
        "{last:?}"
    );
    let most = zones[0] / (3 * MIB) + zones[1] / (3 * MIB);
    assert!((most - 1..=most).contains(&model.areas.len()), "{} of {most}", model.areas.len());
    model.check();
    let whole = model.alloc(2 * zones[1], 1, Fill::Any);
    assert!(matches!(whole, Err(AllocError::NoSpace { .. })), "{whole:?}");
    // All memory is cached in fragments of another size, in magazines of other CPUs: it merges when needed.
    for (cpu, at) in model.areas.keys().copied().collect::<Vec<_>>().into_iter().enumerate() {
        shim.on_cpu(cpu % 4);
        model.free(at);
    }
    let all = [zones[1], zones[0]].map(|bytes| model.alloc(bytes, 1, Fill::Zero).unwrap());
    assert!(model.alloc(1, 1, Fill::Any).is_err());
    all.into_iter().for_each(|at| model.free(at));
    model.end();
}

#[test]
fn a_request_above_the_small_zone_lacks_space_and_not_records() {
    let mut model = Model::new(heap(&Shim::default(), 32 * MIB, 0));
    assert!((model.heap.arena.extent(SMALL).len_bytes() as usize) < 3 * MIB);
    let full = (0..32).find_map(|_| model.alloc(3 * MIB, 1, Fill::Any).err());
    assert!(
        matches!(full, Some(AllocError::NoSpace { requested_bytes, largest_bytes, .. })
        if requested_bytes == 3 * MIB && largest_bytes < 3 * MIB),
        "{full:?}"
    );
    model.areas.keys().copied().collect::<Vec<_>>().into_iter().for_each(|at| model.free(at));
    model.end();
}

#[test]
fn a_free_of_what_is_no_area_is_an_error_and_changes_nothing() {
    let shim = Shim::default();
    let mut model = Model::new(heap(&shim, 1 << 30, 64 * MIB));
    let at = model.alloc(10 * PAGE_BYTES, 1, Fill::Any).unwrap();
    let first = address(&model);
    // SAFETY: no area begins at any of these but the last, which the model removes.
    let free = |at: usize| unsafe { model.heap.free(at) };
    assert_eq!(free(0), Err(FreeError::NotOurs { address: 0 }));
    assert_eq!(free(first - 1), Err(FreeError::NotOurs { address: first - 1 }));
    for inside in [at + 1, at + PAGE_BYTES, at + 9 * PAGE_BYTES, first + 512 * MIB, first + (1 << 30) - 1] {
        assert_eq!(free(inside), Err(FreeError::NoArea { address: inside }));
    }
    assert_eq!(model.heap.validate(), Ok(()));
    assert_eq!(free(at), Ok(()));
    let again = FreeError::AlreadyFree { address: at, bytes: 10 * PAGE_BYTES };
    assert_eq!(free(at), Err(again));
    // Also after it has left the magazine, and after its pages were released.
    model.heap.release_all();
    // SAFETY: it is freed, so nothing is freed by this.
    let gone = unsafe { model.heap.free(at) };
    assert!(matches!(gone, Err(FreeError::AlreadyFree { address, .. }) if address == at), "{gone:?}");
    // SAFETY: as before.
    let resized = unsafe { model.heap.resize(at, layout(1, 1), Fill::Any) };
    assert_eq!(resized, Err(ResizeError::Free(gone.unwrap_err())));
    model.areas.clear();
    model.end();
}

fn address(model: &Model) -> usize {
    model.heap.arena.whole().start().get() as usize
}

#[test]
fn what_two_threads_free_at_a_time_one_frees() {
    let shim = Shim::default();
    let heap = heap(&shim, 1 << 30, 64 * MIB);
    for round in 0..200 {
        shim.on_cpu(round % 4);
        let at = heap.alloc(layout(70_000, 1), Fill::Any).unwrap().addr().get();
        let won = std::thread::scope(|scope| {
            // SAFETY: no reference to the area exists.
            let frees: Vec<_> = (0..2).map(|_| scope.spawn(|| unsafe { heap.free(at) }.is_ok())).collect();
            frees.into_iter().map(|free| u32::from(free.join().unwrap())).sum::<u32>()
        });
        assert_eq!(won, 1);
    }
    assert_eq!(heap.validate(), Ok(()));
}

/// Threads take areas from each other, resize them, and free all in between; each area records its owner.
#[test]
fn vm1_threads_that_free_each_others_areas_lose_nothing() {
    let shim = Shim::default();
    let heap = heap(&shim, 1 << 32, 16 * MIB);
    let shared: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];
    let free = |at: u64| {
        if at != 0 {
            let at = at as usize;
            let bytes = heap.live(at).unwrap().requested_bytes();
            assert!(Model::is_marked(at, bytes, (at >> 12) as u8 | 1));
            // SAFETY: removed from the shared slots, so no other thread has it.
            unsafe { heap.free(at) }.unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (heap, shared, free) = (&heap, &shared, &free);
            scope.spawn(move || {
                let mut state = thread + 1;
                for step in 0..1500 {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let place = &shared[(state >> 40) as usize % shared.len()];
                    let bytes =
                        1 + (state >> 33) as usize % (if step % 9 == 0 { 4 * MIB } else { 40 * PAGE_BYTES });
                    let mut at = heap.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get();
                    if step % 5 == 0 {
                        // SAFETY: no other thread has it.
                        let to = unsafe { heap.resize(at, layout(1 + bytes * 3 / 2, 1), Fill::Any) };
                        at = to.unwrap().addr().get();
                    }
                    let bytes = heap.live(at).unwrap().requested_bytes();
                    Model::mark(at, bytes, (at >> 12) as u8 | 1);
                    free(place.swap(at as u64, Ordering::AcqRel));
                    match step % 256 {
                        100 => _ = heap.release_all(),
                        200 => heap.write_info(&mut String::new()).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    assert_eq!(heap.validate(), Ok(()));
    shared.iter().for_each(|place| free(place.swap(0, Ordering::AcqRel)));
    heap.release_all();
    assert_eq!(heap.validate(), Ok(()));
    assert_eq!((heap.stats().live_bytes, heap.stats().dirty_bytes, heap.stats().cached_bytes), (0, 0, 0));
}

#[test]
fn a_cached_pair_makes_no_system_call() {
    let shim = Shim::default();
    let heap = heap(&shim, 1 << 34, 128 * MIB);
    shim.on_cpu(0);
    let calls = || {
        [Call::Map, Call::Commit, Call::Discard, Call::Move, Call::Remap, Call::Renew]
            .map(|call| shim.calls(call))
    };
    for bytes in [65_536, MIB, 16 * MIB, 64 * MIB] {
        let pair = || {
            let at = heap.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get();
            // SAFETY: no reference to it exists.
            unsafe { heap.free(at) }.unwrap();
            at
        };
        let first = pair();
        let (before, hits) = (calls(), heap.stats().cache_hits);
        assert!((0..100).all(|_| pair() == first));
        assert_eq!((calls(), heap.stats().cache_hits), (before, hits + 100), "{bytes}");
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn memory_unused_for_long_is_released_and_what_is_used_stays() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let budget = 64 * MIB;
    let mut model = Model::new(heap(&shim, 1 << 34, budget));
    // A burst: below the budget, dirty, never used again.
    let burst: Vec<_> = (0..28).map(|_| model.alloc(MIB + PAGE_BYTES, 1, Fill::Any).unwrap()).collect();
    burst.into_iter().for_each(|at| model.free(at));
    let after_burst = model.heap.stats();
    assert_eq!(after_burst.purged_bytes, 0);
    // Then traffic that no magazine serves, since no size recurs while the magazines have it.
    for bytes in (0..12_000).map(|n| (17 + n % 300) * PAGE_BYTES) {
        let at = model.alloc(bytes, 1, Fill::Any).unwrap();
        model.free(at);
    }
    let stats = model.heap.stats();
    assert!(stats.purged_bytes > 0, "{stats:?}");
    assert!(stats.dirty_bytes < after_burst.dirty_bytes / 2, "{stats:?}");
    // Far beyond the budget: no more than the budget stays cached.
    let many: Vec<_> = (0..100).map(|_| model.alloc(3 * MIB, 1, Fill::Any).unwrap()).collect();
    many.into_iter().for_each(|at| model.free(at));
    let stats = model.heap.stats();
    let bound = budget + 4 * BIG_PAGES as usize * PAGE_BYTES;
    assert!(stats.dirty_bytes + stats.cached_bytes <= bound, "{stats:?}");
    model.end();
}

#[test]
fn an_allocator_that_cannot_be_made_leaves_nothing() {
    let shim = Shim::default();
    // So many magazines that they do not fit in the first chunk.
    shim.set_cpus(1000);
    for granted in 0.. {
        shim.fail(Call::Map, granted);
        let made = Owned::new(
            shim.clone(),
            Plan { arena_bytes_max: usize::MAX, cache_bytes_max: 0, huge_pages: HugePages::Auto, ..PLAN },
        );
        shim.allow();
        match made {
            Ok(_) => {
                assert!(granted > 1);
                break;
            }
            Err(error) => {
                let failed = matches!(error, CreateError::CallFailed { call: Call::Map, .. });
                assert!(failed || error == CreateError::NoRecords, "{error}");
                assert_eq!(shim.mapped(), 0);
            }
        }
    }
    shim.fail(Call::Reserve, 0);
    let made = Owned::new(
        shim.clone(),
        Plan { arena_bytes_max: usize::MAX, cache_bytes_max: 0, huge_pages: HugePages::Auto, ..PLAN },
    );
    assert!(matches!(made, Err(CreateError::CallFailed { call: Call::Reserve, .. })));
    assert_eq!(shim.mapped(), 0);
}

#[test]
fn the_list_of_areas_is_that_of_the_kernel() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 30, 64 * MIB));
    let areas: Vec<_> = (0..200).map(|n| model.alloc((n + 1) * 1000, 1, Fill::Any).unwrap()).collect();
    areas.iter().step_by(2).for_each(|&at| model.free(at));
    let mut text = String::new();
    model.heap.write_info(&mut text).unwrap();
    let live: Vec<_> = text.lines().filter(|line| line.ends_with(" vmalloc")).collect();
    assert_eq!(live.len(), 100);
    assert!(text.lines().any(|line| line.ends_with(" unpurged vm_area")));
    let (at, &(bytes, ..)) = model.areas.iter().next().unwrap();
    let pages = bytes.div_ceil(PAGE_BYTES);
    let want = format!(
        "{at:#018x}-{:#018x} {:>7} pages={pages} vmalloc",
        at + pages * PAGE_BYTES,
        pages * PAGE_BYTES
    );
    assert!(live.contains(&want.as_str()), "{want}\n{text}");
    model.end();
}
