//! The C functions, declared in `va_linux.h`.

use crate::machine::Linux;
use crate::os;
use core::cell::UnsafeCell;
use va_base::sync::OnceRef;
use va_base::{AllocError, Context, PAGE_SIZE, Request, Va, VaRange};
use va_block::config::WithSpace;
use va_block::{BlockError, Blocks, Lane};
use va_space::config::WithAmple;
use va_space::{Magazine, Purge, SpaceError, VmapSpace};
use va_tree::Congruent;

/// Aligned areas come from ample holes, as in Linux: `docs/decisions/0116-ample-holes-inside-linux.md`.
type AreaPolicies = WithAmple<va_space::config::Standard>;
type Policies = WithSpace<va_block::config::Standard, AreaPolicies>;
type Space = VmapSpace<Linux, AreaPolicies>;

/// The memory of the space and its blocks. It is initialised without a lock: the locks of the space are taken
/// meanwhile, and to lockdep they are of the same class.
struct Storage(UnsafeCell<Blocks<Linux, Policies>>);

// SAFETY: one thread accesses it, in `va_init`, until it is shared by `BLOCKS`.
unsafe impl Sync for Storage {}

static STORAGE: Storage = Storage(UnsafeCell::new(Blocks::empty()));
static BLOCKS: OnceRef<'static, Blocks<Linux, Policies>> = OnceRef::new();

#[inline(always)]
fn space() -> Option<&'static Space> {
    Some(BLOCKS.get()?.space())
}

/// Most CPUs that have caches. Those above use the pools of the nodes.
const CPUS_MAX: usize = 512;

/// The areas that a CPU has at hand, and the block that it cuts small mappings from. The thread that runs there with
/// preemption off has it alone.
pub struct Caches {
    magazine: Magazine<'static, Linux, AreaPolicies>,
    lane: Lane<'static, Linux, Policies>,
}

/// The caches of a CPU, for the thread that runs there with preemption off. In cache lines of its own: each free of a
/// small mapping writes there.
#[repr(align(128))]
struct OfCpu(UnsafeCell<Option<Caches>>);

// SAFETY: one thread at a time has a CPU with preemption off, and every function that uses it demands that.
unsafe impl Sync for OfCpu {}

static CACHES: [OfCpu; CPUS_MAX] = [const { OfCpu(UnsafeCell::new(None)) }; CPUS_MAX];

/// A range of addresses.
#[repr(C)]
pub struct Range {
    start: u64,
    end: u64,
}

/// The head of a record: the addresses of its area.
#[repr(C)]
pub struct Record {
    start: u64,
    end: u64,
}

/// Writes the addresses of an area into its record, and returns the note.
///
/// # Safety
/// `record` is valid for writes, and no other thread accesses it.
#[inline(always)]
unsafe fn recorded(record: *mut Record, range: VaRange) -> u64 {
    // SAFETY: by this function's contract.
    unsafe { record.write(Record { start: range.start().get(), end: range.end().get() }) };
    record.expose_provenance() as u64
}

/// Notes an area with its record, after an alloc that did not. Returns the area's address.
///
/// # Safety
/// `record` is valid for writes, and no other thread accesses it.
unsafe fn noted(space: &Space, range: VaRange, record: *mut Record) -> u64 {
    // SAFETY: by this function's contract.
    let note = unsafe { recorded(record, range) };
    if space.note(range.start(), note).is_ok() { range.start().get() } else { BAD_REQUEST }
}

/// Results of an alloc that are no address.
const NO_SPACE: u64 = 0;
const NO_MEMORY: u64 = 1;
const BAD_REQUEST: u64 = 2;
const TRY_AGAIN: u64 = 3;

/// The result of `va_find_above` for a block of small mappings, which has no record.
const A_BLOCK: u64 = 1;

#[inline(always)]
fn request(size: u64, align: u64, start: u64, end: u64) -> Option<Request> {
    let request = Request::new(size, align).ok()?;
    Some(request.within(VaRange::new(Va::new(start), Va::new(end))?))
}

fn failure(error: SpaceError) -> u64 {
    match error {
        SpaceError::NoSpace { .. } | SpaceError::Impossible { .. } => NO_SPACE,
        SpaceError::WouldBlock { .. } => TRY_AGAIN,
        SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }) => NO_MEMORY,
        _ => BAD_REQUEST,
    }
}

/// Creates the space. No area lies below `lowest`, nor at address 0; `start` and `end` are the default window; `busy` are
/// areas that exist. Returns 0; or -1, as for a busy area below `lowest`.
///
/// # Safety
/// Called once, by one CPU. `busy` is valid for `count` reads.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_init(lowest: u64, start: u64, end: u64, busy: *const Range, count: usize) -> i32 {
    let Some(window) = VaRange::new(Va::new(start), Va::new(end)) else { return -1 };
    let Some(extent) = VaRange::new(Va::new(lowest.max(1)), Va::MAX) else { return -1 };
    let mut ranges = [VaRange::default(); 32];
    let Some(ranges) = ranges.get_mut(..count) else { return -1 };
    for (nth, range) in ranges.iter_mut().enumerate() {
        // SAFETY: `nth` is below `count`, so it is in the array.
        let at = unsafe { busy.add(nth) };
        // SAFETY: valid for reads by this function's contract.
        let from = unsafe { &*at };
        let Some(range_of) = VaRange::new(Va::new(from.start), Va::new(from.end)) else { return -1 };
        *range = range_of;
    }
    if BLOCKS.get().is_some() {
        return -1;
    }
    // SAFETY: it is not shared yet, and one CPU calls this function, once.
    let made = unsafe { &mut *STORAGE.0.get() }.init_once(extent, window, Linux, ranges);
    // SAFETY: that reference is gone, and there is no other mutable one from here on.
    let blocks = unsafe { &*STORAGE.0.get() };
    if made.is_ok() && BLOCKS.set(blocks).is_ok() { 0 } else { -1 }
}

/// Creates the caches of a CPU. Returns them, or null if there is no memory for them.
///
/// # Safety
/// Called once for each CPU, before anything runs there.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_cpu_init(cpu: u32) -> Option<&'static mut Caches> {
    let (blocks, of_cpu) = (BLOCKS.get()?, CACHES.get(cpu as usize)?);
    let (Ok(magazine), Ok(lane)) = (blocks.space().magazine(cpu), blocks.lane(cpu)) else { return None };
    // SAFETY: nothing runs on that CPU yet, so there is no other reference.
    let place = unsafe { &mut *of_cpu.0.get() };
    // There is no earlier value, and a kernel has no use for the code that drops one.
    core::mem::forget(place.replace(Caches { magazine, lane }));
    place.as_mut()
}

/// Allocates an area that the CPU has at hand, and writes its addresses into `record`. From then on the area is found by
/// them, with the address of the record. Returns the area's address, or one of `enum va_failure`. It has no slow path,
/// which would cost it registers: then the caller calls `va_try_alloc`.
///
/// # Safety
/// The caller runs with preemption off on the CPU of `caches`, or on one that has none: null. `record` is valid for
/// writes, and no other thread accesses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_take(
    caches: Option<&mut Caches>,
    size: u64,
    align: u64,
    start: u64,
    end: u64,
    record: *mut Record,
) -> u64 {
    let (Some(caches), Some(request)) = (caches, request(size, align, start, end)) else { return TRY_AGAIN };
    // SAFETY: by this function's contract.
    let area = caches.magazine.take_noted(&request, |range| unsafe { recorded(record, range) });
    area.map_or(TRY_AGAIN, |area| area.start().get())
}

/// Allocates an area from what is available without sleeping, and writes its addresses into `record`. A moment later the
/// area is found by them, with the address of the record. Returns what `va_take` does.
///
/// # Safety
/// The caller runs with preemption off on the CPU of `caches`, or on one that has none: null. `record` is valid for
/// writes, and no other thread accesses it.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_try_alloc(
    caches: Option<&mut Caches>,
    size: u64,
    align: u64,
    start: u64,
    end: u64,
    record: *mut Record,
) -> u64 {
    let (Some(space), Some(request)) = (space(), request(size, align, start, end)) else {
        return BAD_REQUEST;
    };
    let Some(caches) = caches else { return TRY_AGAIN };
    let Ok(area) = caches.magazine.try_alloc(&request) else { return TRY_AGAIN };
    // SAFETY: by this function's contract.
    unsafe { noted(space, area.range(), record) }
}

/// Allocates an area, and purges, reclaims and waits where that is needed. Returns what `va_try_alloc` does.
///
/// # Safety
/// `record` is valid for writes, and no other thread accesses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_alloc(
    cpu: u32,
    size: u64,
    align: u64,
    start: u64,
    end: u64,
    record: *mut Record,
) -> u64 {
    let Some(space) = space() else { return BAD_REQUEST };
    let Some(request) = request(size, align, start, end) else { return BAD_REQUEST };
    match space.alloc(cpu, &request) {
        // SAFETY: by this function's contract.
        Ok(area) => unsafe { noted(space, area.range(), record) },
        Err(error) => failure(error),
    }
}

/// Stores the address of a record with the area that starts at `at`. Returns 0, or -1 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn va_note(at: u64, record: u64) -> i32 {
    let noted = space().map(|space| space.note(Va::new(at), record));
    if matches!(noted, Some(Ok(()))) { 0 } else { -1 }
}

/// Returns the record of the area that `at` is in, or 0. The caller is in a section of RCU.
#[unsafe(no_mangle)]
pub extern "C" fn va_find(at: u64) -> u64 {
    space().and_then(|space| space.find_enclosing(Va::new(at))?.note).unwrap_or(0)
}

/// Returns the record of the lowest area that ends above `at` and has one, or is a block: 1. Else 0. Writes the
/// addresses of the area into `range`. The caller is in a section of RCU.
///
/// # Safety
/// `range` is valid for a write.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_find_above(at: u64, range: *mut Range) -> u64 {
    let Some(blocks) = BLOCKS.get() else { return 0 };
    let bytes = blocks.block_pages().get() * PAGE_SIZE;
    let mut at = Va::new(at);
    while let Some(view) = blocks.space().find_above(at) {
        let (start, end) = (view.range.start().get(), view.range.end().get());
        // Nothing else is as large and as aligned, but an area whose alloc is about to note it.
        let is_block = start.is_multiple_of(bytes) && end - start == bytes;
        if let Some(found) = view.note.or(is_block.then_some(A_BLOCK)) {
            // SAFETY: by this function's contract.
            unsafe { range.write(Range { start, end }) };
            return found;
        }
        at = view.range.end();
    }
    0
}

/// Detaches the area that `at` is in: no other caller finds it any more. Returns its record, or 0. A block has none, and
/// stays: a driver frees its parts. The caller is in a section of RCU.
#[unsafe(no_mangle)]
pub extern "C" fn va_detach(at: u64) -> u64 {
    space().and_then(|space| space.try_detach_noted(Va::new(at))?.note()).unwrap_or(0)
}

/// Frees a detached area by its start. Returns false if none is detached there. Never sleeps.
///
/// The start is enough: the caller detached the area, so no other call has it, and none is detached there again before
/// this one is free.
///
/// # Safety
/// The caller runs with preemption off on the CPU of `caches`, or on one that has none: null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_release(caches: Option<&mut Caches>, at: u64) -> bool {
    match caches {
        Some(caches) => caches.magazine.release_at(Va::new(at)).is_ok(),
        None => release_to_node(at),
    }
}

/// Frees a detached area on a CPU that has no magazine.
#[cold]
extern "C" fn release_to_node(at: u64) -> bool {
    space().is_some_and(|space| space.release_at(Context::Atomic, Va::new(at)).is_ok())
}

/// Allocates areas at fixed distances from one base, as high as possible. `pairs` are offset and size, and are sorted.
/// Returns the base, or one of `enum va_failure`.
///
/// # Safety
/// `pairs` is valid for `count` reads.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_congruent(pairs: *const Range, count: usize, align: u64) -> u64 {
    let Some(space) = space() else { return BAD_REQUEST };
    let mut areas = [(0, 0); 64];
    let Some(areas) = areas.get_mut(..count) else { return BAD_REQUEST };
    for (nth, area) in areas.iter_mut().enumerate() {
        // SAFETY: `nth` is below `count`, so it is in the array.
        let at = unsafe { pairs.add(nth) };
        // SAFETY: valid for reads by this function's contract.
        let from = unsafe { &*at };
        *area = (from.start, from.end);
    }
    // A call of the library's sort is four kilobytes, and these are at most a few.
    for end in 1..areas.len() {
        let mut at = end;
        while at > 0 && areas[at] < areas[at - 1] {
            areas.swap(at - 1, at);
            at -= 1;
        }
    }
    let Ok(areas) = Congruent::new(areas, align) else { return BAD_REQUEST };
    space.alloc_congruent(&areas).map_or_else(failure, Va::get)
}

/// Allocates pages for a small mapping, from the block that the CPU has at hand. Returns their address, or one of
/// `enum va_failure`. Never sleeps.
///
/// # Safety
/// The caller runs with preemption off on the CPU of `caches`, or on one that has none: null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_try_alloc_small(caches: Option<&mut Caches>, pages: u64) -> u64 {
    let Some(caches) = caches else { return TRY_AGAIN };
    match caches.lane.take(pages) {
        Some(at) => at.get(),
        None => alloc_small_further(caches, pages),
    }
}

/// Allocates pages for a small mapping from a block that the CPU has not at hand: a call, without which
/// `va_try_alloc_small` needs no register that it would save.
#[cold]
extern "C" fn alloc_small_further(caches: &mut Caches, pages: u64) -> u64 {
    caches.lane.alloc_in(Context::Atomic, pages).map_or(TRY_AGAIN, Va::get)
}

/// Allocates pages for a small mapping, and purges, reclaims and waits where that is needed. Returns what
/// `va_try_alloc_small` does.
#[unsafe(no_mangle)]
pub extern "C" fn va_alloc_small(cpu: u32, pages: u64) -> u64 {
    let Some(blocks) = BLOCKS.get() else { return BAD_REQUEST };
    match blocks.alloc(cpu, pages) {
        Ok(at) => at.get(),
        Err(BlockError::Space(error)) => failure(error),
        Err(BlockError::NoTable) => NO_MEMORY,
        Err(BlockError::Bound { .. }) => TRY_AGAIN,
        Err(_) => BAD_REQUEST,
    }
}

/// Frees the pages of a small mapping, which are unmapped. Returns false if no such mapping is there. Never sleeps.
///
/// # Safety
/// The caller runs with preemption off on the CPU of `caches`, or on one that has none: null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_free_small(mut caches: Option<&mut Caches>, at: u64, pages: u64) -> bool {
    if let Some(caches) = &mut caches
        && caches.lane.free_own(Va::new(at), pages)
    {
        return true;
    }
    free_small_further(caches, at, pages)
}

/// Frees the pages of a small mapping of another block, or on a CPU that has no lane.
#[cold]
extern "C" fn free_small_further(caches: Option<&mut Caches>, at: u64, pages: u64) -> bool {
    let (context, at) = (Context::Atomic, Va::new(at));
    match caches {
        Some(caches) => caches.lane.free_in(context, at, pages).is_ok(),
        None => {
            BLOCKS.get().is_some_and(|blocks| blocks.free_in(context, os::va_os_cpu(), at, pages).is_ok())
        }
    }
}

/// Frees blocks without mappings to the space, since a request is about to fail. Returns their pages.
pub(crate) fn reclaim_blocks() -> u64 {
    BLOCKS.get().map_or(0, |blocks| blocks.shrink().blocks * blocks.block_pages().get())
}

/// Purges until no more is lazy than may be. For the worker that `va_os_wake` wakes. Returns areas that were purged.
#[unsafe(no_mangle)]
pub extern "C" fn va_drain() -> u64 {
    let Some(blocks) = BLOCKS.get() else { return 0 };
    blocks.tick();
    blocks.space().drain().areas
}

/// Purges so that no CPU translates an address of a freed area or small mapping, or one in `[start, end)`, any more.
#[unsafe(no_mangle)]
pub extern "C" fn va_unmap_aliases(start: u64, end: u64) {
    if let Some(blocks) = BLOCKS.get() {
        blocks.unmap_aliases_and(VaRange::new(Va::new(start), Va::new(end)).unwrap_or_default());
    }
}

/// Moves all blocks without mappings and all areas that were freed into the index, and frees memory of the index and of
/// the page map. Flushes if areas are lazy, since a page of leaves returns only without any area. Returns the number of
/// areas of pools.
#[cold]
#[unsafe(no_mangle)]
pub extern "C" fn va_shrink() -> u64 {
    let Some(blocks) = BLOCKS.get() else { return 0 };
    blocks.shrink();
    blocks.space().drain_magazines();
    if blocks.space().lazy_pages().get() > 0 {
        blocks.space().purge(Purge::Drain);
    }
    blocks.space().shrink()
}

/// Moves what the caches of a CPU have to its node: that CPU is offline. Waits for others that take from them.
#[cold]
#[unsafe(no_mangle)]
pub extern "C" fn va_drain_cpu(cpu: u32) {
    if let Some(blocks) = BLOCKS.get() {
        blocks.drain_lanes(Some(cpu));
        while blocks.space().drain_cpu(cpu).busy > 0 {}
    }
}

/// Returns pages that were freed and not yet flushed, those in magazines left out.
#[unsafe(no_mangle)]
pub extern "C" fn va_lazy_pages() -> u64 {
    space().map_or(0, |space| space.lazy_pages().get())
}

/// Returns the pages that may be lazy before a purge is due.
#[unsafe(no_mangle)]
pub extern "C" fn va_lazy_max() -> u64 {
    space().map_or(0, |space| space.lazy_max().get())
}

/// Returns pages that `va_shrink` would move into the index. Never sleeps.
#[cold]
#[unsafe(no_mangle)]
pub extern "C" fn va_idle_pages() -> u64 {
    space().map_or(0, |space| space.idle_pages().get())
}

/// Calls `each` with every area that was freed and is not flushed, except those in magazines. It must not sleep.
///
/// # Safety
/// `each` may be called with `with` and two addresses.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_each_lazy(each: unsafe extern "C" fn(*mut u8, u64, u64), with: *mut u8) {
    let Some(space) = space() else { return };
    // SAFETY: by this function's contract.
    space.for_each_lazy(|range| unsafe { each(with, range.start().get(), range.end().get()) });
}

/// Counts of the space.
#[repr(C)]
pub struct Counts {
    areas: u64,
    holes: u64,
    pooled_areas: u64,
    cached_areas: u64,
    lazy_pages: u64,
    purges: u64,
    purged_areas: u64,
}

/// Writes the counts of the space.
///
/// # Safety
/// `out` is valid for a write.
#[cold]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_counts(out: *mut Counts) {
    let Some(space) = space() else { return };
    let stats = space.stats();
    let counts = Counts {
        areas: stats.areas,
        holes: stats.holes,
        pooled_areas: stats.pooled_areas,
        cached_areas: stats.cached_areas,
        lazy_pages: space.lazy_pages().get(),
        purges: stats.purges,
        purged_areas: stats.purged_areas,
    };
    // SAFETY: by this function's contract.
    unsafe { out.write(counts) }
}

/// Walks every invariant of the space and its blocks. Returns 0 if all hold, and 1 without the feature `validate`,
/// which has the walk; exact while no other call runs.
#[cold]
#[unsafe(no_mangle)]
pub extern "C" fn va_validate() -> i32 {
    if cfg!(not(feature = "validate")) {
        return 1;
    }
    let holds = |blocks: &Blocks<_, _>| blocks.space().validate().and_then(|_| blocks.validate());
    BLOCKS.get().map_or(-1, |blocks| if holds(blocks).is_ok() { 0 } else { -1 })
}

/// Moves everything into the index, for a test that looks at the whole.
#[cold]
#[unsafe(no_mangle)]
pub extern "C" fn va_purge_all() -> u64 {
    let Some(space) = space() else { return 0 };
    space.drain_magazines();
    space.purge(Purge::Full).areas
}

/// Writes a byte where a test of KASAN says, to show that this object's accesses are checked.
///
/// # Safety
/// None: KASAN reports the write, and it may corrupt memory of the kernel. No kernel that is used has it.
#[cfg(feature = "kasan")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn va_plant(at: *mut u8) {
    // SAFETY: there is none, by intent.
    unsafe { at.write_volatile(1) }
}
