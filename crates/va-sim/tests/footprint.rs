//! Measures the stack of the core's calls, and checks that an empty table is all zeros.
//!
//! A kernel has 16 KiB of stack, of which a call of the core may be the deepest part. So each entry
//! point is run on a thread whose stack is memory of ours, painted before. The lowest byte that is
//! painted no more says how deep the call went, and an empty call says what the thread itself
//! takes. Only optimised code is held to the bound.

use std::alloc::{Layout, alloc_zeroed};
use std::any::type_name;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use va_base::{Align, Epoch, Machine, Pages, Platform, Record, Request, Table, Va, VaRange};
use va_block::{Blocks, EarlyBlocks};
use va_map::{
    AreaRequest, DirectMap, EarlyMap, Entries, Fill, Leaf, Leaves, MapSpace, PageRequest, PageSource,
    PageTable, Protection, Run, Stopped,
};
use va_percpu::config::Standard as SmallFirst;
use va_percpu::{EarlyPercpu, Geometry, PercpuSpace, Request as PercpuRequest};
use va_sim::percpu::SimChunks;
use va_space::config::{Linux69, OneLock52, Standard, WithTrees};
use va_space::{Area, Config, EarlySpace, Magazine, Purge, VmapSpace};
use va_tree::Congruent;

/// Stack of an entry point in optimised code, in bytes.
const STACK_MAX: usize = 4096;
/// Memory of the machine.
const ARENA_BYTES: usize = 256 << 20;

/// Supplies memory from one piece and takes none back; knows which tables are not zeros.
struct Arena {
    base: usize,
    used: AtomicUsize,
    flushes: AtomicU64,
    not_zero: Mutex<Vec<&'static str>>,
}

impl Arena {
    fn leaked() -> &'static Self {
        let Ok(layout) = Layout::from_size_align(ARENA_BYTES, 4096) else { panic!("layout") };
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null());
        Box::leak(Box::new(Self {
            base: base.expose_provenance(),
            used: AtomicUsize::new(0),
            flushes: AtomicU64::new(0),
            not_zero: Mutex::new(Vec::new()),
        }))
    }

    /// Memory for `layout` that is nobody's, all zeros.
    fn piece(&self, layout: Layout) -> Option<*mut u8> {
        let size = layout.size().next_multiple_of(4096);
        let at = self.used.fetch_add(size, Ordering::Relaxed);
        assert!(layout.align() <= 4096);
        (at + size <= ARENA_BYTES).then(|| std::ptr::with_exposed_provenance_mut(self.base + at))
    }
}

impl Platform for Arena {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let at = self.piece(Layout::array::<T>(min).ok()?)?.cast::<T>();
        for n in 0..min {
            // SAFETY: inside the piece, which has room for `min` records.
            let place = unsafe { at.add(n) };
            // SAFETY: as above; aligned, since a piece begins at a page.
            unsafe { place.write(T::EMPTY) };
        }
        // SAFETY: written a moment ago, never freed, and nobody else has the piece.
        Some(unsafe { std::slice::from_raw_parts_mut(at, min) })
    }

    fn free_meta<T: Record>(&self, _slab: &'static mut [T]) {}
}

impl Machine for Arena {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        4
    }

    fn cpus_online(&self) -> u32 {
        4
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let at = self.piece(Layout::new::<T>())?.cast::<T>();
        // SAFETY: a piece of that size and alignment, which nobody else has.
        unsafe { at.write(T::EMPTY) };
        let bytes = at.cast::<u8>();
        // SAFETY: the piece was zeros before, so even what a write leaves out is there to be read.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size_of::<T>()) };
        if bytes.iter().any(|&byte| byte != 0) {
            self.not_zero.lock().unwrap_or_else(PoisonError::into_inner).push(type_name::<T>());
        }
        // SAFETY: written above, never freed.
        Some(unsafe { &*at })
    }

    fn free_table<T: Table>(&self, _table: &'static T) {}

    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(self.flushes.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

fn fine<T, E: std::fmt::Display>(got: Result<T, E>) -> T {
    got.unwrap_or_else(|error| panic!("{error}"))
}

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap_or_default()
}

fn ask(count: u64) -> Request {
    fine(Request::pages(count))
}

/// Tables that are not zeros, in a space with areas far apart, in magazines and in blocks.
fn used<C: Config>() -> Vec<&'static str> {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 45);
    let space = fine(VmapSpace::<_, C>::new(all, all, arena));
    for at in [16, 1 << 20, 1 << 34, 1 << 44] {
        let _area = fine(space.alloc_at(pages(at, at + 3)));
    }
    for cpu in 0..4 {
        let area = fine(space.alloc(cpu, &ask(7)));
        fine(space.free(area));
        let mut magazine = fine(space.magazine(cpu));
        let area = fine(magazine.alloc(&ask(2)));
        fine(magazine.free(area));
    }
    let seen = arena.not_zero.lock().unwrap_or_else(PoisonError::into_inner);
    seen.clone()
}

/// Tables that are not zeros, of blocks and lanes.
fn used_by_blocks<C: va_block::Config>() -> Vec<&'static str> {
    let arena = Arena::leaked();
    let mut blocks = Blocks::<_, C>::empty();
    fine(blocks.init(pages(16, 1 << 40), arena, &[]));
    for cpu in [0, 1, 3] {
        let mapped: Vec<_> = (1..64).map(|count| (fine(blocks.alloc(cpu, count)), count)).collect();
        let mut lane = fine(blocks.lane(cpu));
        let at = fine(lane.alloc(2));
        fine(lane.free(at, 2));
        mapped.into_iter().for_each(|(at, count)| fine(blocks.free(cpu, at, count)));
    }
    let _ = blocks.unmap_aliases();
    let seen = arena.not_zero.lock().unwrap_or_else(PoisonError::into_inner);
    seen.clone()
}

#[test]
fn an_empty_table_is_all_zeros() {
    assert_eq!(used::<Standard>(), [""; 0]);
    assert_eq!(used::<WithTrees<Standard>>(), [""; 0]);
    assert_eq!(used::<Linux69>(), [""; 0]);
    assert_eq!(used::<OneLock52>(), [""; 0]);
    assert_eq!(used_by_blocks::<va_block::config::Standard>(), [""; 0]);
    assert_eq!(used_by_blocks::<va_block::config::Linux64>(), [""; 0]);
}

#[test]
fn a_place_for_a_space_is_all_zeros() {
    static PLACE: EarlySpace<&Arena, Standard> = EarlySpace::new();
    let at = (&raw const PLACE).cast::<u8>();
    // SAFETY: a static, which nobody writes to; it is read byte by byte.
    let bytes = unsafe { std::slice::from_raw_parts(at, size_of_val(&PLACE)) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(PLACE.get().is_err());
}

#[test]
fn a_place_for_blocks_is_all_zeros() {
    static PLACE: EarlyBlocks<&Arena, va_block::config::Standard> = EarlyBlocks::new();
    let at = (&raw const PLACE).cast::<u8>();
    // SAFETY: a static, which nobody writes to; it is read byte by byte.
    let bytes = unsafe { std::slice::from_raw_parts(at, size_of_val(&PLACE)) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(PLACE.get().is_err());
}

const PAINT: u8 = 0xa5;
const STACK_BYTES: usize = 512 << 10;

extern "C" fn trampoline(call: *mut c_void) -> *mut c_void {
    // SAFETY: `depth` passes it and waits for the thread.
    let call = unsafe { &mut *call.cast::<&mut dyn FnMut()>() };
    call();
    null_mut()
}

/// Bytes of stack down to the lowest that `call` and its thread wrote.
fn raw_depth(call: &mut dyn FnMut()) -> usize {
    let Ok(layout) = Layout::from_size_align(STACK_BYTES, 4096) else { panic!("layout") };
    // SAFETY: the size is not 0.
    let stack = unsafe { std::alloc::alloc(layout) };
    assert!(!stack.is_null());
    // SAFETY: the memory is of that size.
    unsafe { stack.write_bytes(PAINT, STACK_BYTES) };
    let mut call = call;
    let argument = (&raw mut call).cast::<c_void>();
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: a place for attributes.
    assert_eq!(unsafe { libc::pthread_attr_init(attributes) }, 0);
    // SAFETY: initialised above; the stack is ours until the thread has ended.
    assert_eq!(unsafe { libc::pthread_attr_setstack(attributes, stack.cast(), STACK_BYTES) }, 0);
    let mut thread = 0;
    // SAFETY: the attributes are initialised, and the argument outlives the thread, which is joined below.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, attributes, trampoline, argument) }, 0);
    // SAFETY: made above, and joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
    // SAFETY: initialised above, and used no more.
    assert_eq!(unsafe { libc::pthread_attr_destroy(attributes) }, 0);
    // SAFETY: the thread has ended; every byte was painted.
    let bytes = unsafe { std::slice::from_raw_parts(stack, STACK_BYTES) };
    let lowest = bytes.iter().position(|&byte| byte != PAINT).unwrap_or(STACK_BYTES);
    // SAFETY: allocated above with that layout, and used no more.
    unsafe { std::alloc::dealloc(stack, layout) };
    STACK_BYTES - lowest
}

/// The stack of each entry point.
struct Depths {
    empty: usize,
    rows: Vec<(&'static str, usize, usize)>,
}

impl Depths {
    fn row(&mut self, name: &'static str, call: impl FnMut()) {
        self.row_within(name, STACK_MAX, call);
    }

    /// A row with a bound of its own: a constructor that returns its value.
    fn row_within(&mut self, name: &'static str, most: usize, mut call: impl FnMut()) {
        let depth = raw_depth(&mut call).saturating_sub(self.empty);
        self.rows.push((name, depth, most));
    }
}

type Space = VmapSpace<&'static Arena, Standard>;

fn space(arena: &'static Arena, extent: VaRange) -> &'static Space {
    Box::leak(Box::new(fine(Space::new(extent, extent, arena))))
}

/// Takes an area out of where it was put for a call.
fn taken(areas: &mut Vec<Area>) -> Area {
    areas.pop().unwrap_or_else(|| panic!("no area"))
}

fn space_rows(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 30);
    let place: &'static EarlySpace<&'static Arena, Standard> = Box::leak(Box::new(EarlySpace::new()));
    table.row("EarlySpace::init", || assert!(place.init(all, all, arena, &[]).is_ok()));
    let mut made = None;
    // By value.
    table.row_within("VmapSpace::new", 24 << 10, || made = Space::new(all, all, arena).ok());
    assert!(made.is_some());
    let mut empty = Space::empty();
    table.row("VmapSpace::init", || fine(empty.init(all, all, arena)));
    let space = space(arena, all);
    let mut areas = Vec::with_capacity(64);
    table.row("alloc, first", || areas.push(fine(space.alloc(0, &ask(3)))));
    table.row("alloc", || areas.push(fine(space.alloc(0, &ask(3)))));
    let aligned = ask(5).aligned(Align::from_log2(24).unwrap_or_default());
    table.row("alloc, aligned", || areas.push(fine(space.alloc(1, &aligned))));
    let far = 1 << 29;
    table.row("alloc_at", || _ = fine(space.alloc_at(pages(far, far + 6))));
    let sets = [(0, 8 << 12), (1 << 24, 8 << 12)];
    let congruent = fine(Congruent::new(&sets, 4096));
    table.row("alloc_congruent", || _ = fine(space.alloc_congruent(&congruent)));
    table.row("find", || assert!(space.find(Va::from_page(far)).is_some()));
    table.row("find_enclosing", || assert!(space.find_enclosing(Va::from_page(far + 1)).is_some()));
    table.row("find_above", || assert!(space.find_above(Va::from_page(far - 1000)).is_some()));
    table.row("areas", || assert!(space.areas().count() > 4));
    table.row("split", || _ = space.split(Va::from_page(far + 3)));
    table.row("join", || _ = space.join(Va::from_page(far + 3)));
    table.row("resize_at", || _ = space.resize_at(Va::from_page(far), Pages::new(9)));
    table.row("free_at", || _ = space.free_at(Va::from_page(far)));
    table.row("free", || fine(space.free(taken(&mut areas))));
    table.row("free", || fine(space.free(taken(&mut areas))));
    for how in [Purge::Drain, Purge::Full, Purge::Aliases] {
        for cpu in 0..4 {
            for count in [1, 3, 300] {
                let area = fine(space.alloc(cpu, &ask(count)));
                fine(space.free(area));
            }
        }
        table.row("purge", || _ = space.purge(how));
    }
    table.row("tick", || _ = space.tick());
    table.row("drain", || _ = space.drain());
    table.row("shrink", || _ = space.shrink());
    table.row("stats", || _ = space.stats());
    table.row("validate", || assert!(space.validate().is_ok()));
    let small = self::space(arena, pages(16, 80));
    table.row("alloc, no room", || assert!((0..65).any(|_| small.alloc(0, &ask(1)).is_err())));
    magazine_rows(table, space);
}

fn magazine_rows(table: &mut Depths, space: &'static Space) {
    let mut made: Option<Magazine<'static, &'static Arena, Standard>> = None;
    table.row("magazine", || made = space.magazine(2).ok());
    let Some(magazine) = &mut made else { panic!("no magazine") };
    let mut area = None;
    table.row("Magazine::alloc", || area = magazine.alloc(&ask(4)).ok());
    table.row("Magazine::free", || fine(magazine.free(area.take().unwrap_or_else(|| panic!("none")))));
    table.row("Magazine::drain", || magazine.drain());
    table.row("Magazine::drop", || drop(made.take()));
    table.row("drain_magazines", || _ = space.drain_magazines());
}

fn block_rows(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 28);
    let mut space = Space::new(all, all, arena).ok();
    let mut made = None;
    let place: &'static EarlyBlocks<&'static Arena, va_block::config::Standard> =
        Box::leak(Box::new(EarlyBlocks::new()));
    table.row("EarlyBlocks::init", || assert!(place.init(all, arena, &[]).is_ok()));
    let mut empty = Blocks::<_, va_block::config::Standard>::empty();
    table.row("Blocks::init", || fine(empty.init(all, arena, &[])));
    // By value.
    table.row_within("Blocks::new", 32 << 10, || {
        let space = space.take().unwrap_or_else(|| panic!("no space"));
        made = Blocks::<_, va_block::config::Standard>::new(space, arena).ok();
    });
    let Some(blocks) = &made else { panic!("no blocks") };
    let mut at = Va::ZERO;
    table.row("Blocks::alloc, first", || at = fine(blocks.alloc(0, 3)));
    table.row("Blocks::free", || fine(blocks.free(0, at, 3)));
    table.row("Blocks::alloc", || at = fine(blocks.alloc(0, 3)));
}

/// A page table that maps nothing: its own stack is the machine's business.
struct Nothing;

impl PageTable for Nothing {
    const LEAF_SIZES: &'static [u32] = &[0, 4, 9, 18];

    fn map(&self, _at: Va, _entries: Entries) -> Result<(), Stopped> {
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        (first..end).for_each(|page| gone(Leaf { first: page, pages_log2: 0 }));
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        Some(Leaf { first: at.page_floor(), pages_log2: 0 })
    }
}

impl PageSource for Nothing {
    const RESETS: bool = true;

    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        frames.fill(1);
        frames.len()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, _run: Run) {}

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
}

type Map = MapSpace<&'static Arena, va_block::config::Standard, Nothing>;

#[test]
fn a_place_for_a_map_is_all_zeros() {
    static PLACE: EarlyMap<&Arena, va_block::config::Standard, Nothing> = EarlyMap::new();
    let at = (&raw const PLACE).cast::<u8>();
    // SAFETY: a static, which nobody writes to; it is read byte by byte.
    let bytes = unsafe { std::slice::from_raw_parts(at, size_of_val(&PLACE)) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(PLACE.get().is_err());
}

fn map_rows(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 28);
    let place: &'static EarlyMap<&'static Arena, va_block::config::Standard, Nothing> =
        Box::leak(Box::new(EarlyMap::new()));
    table.row("EarlyMap::init", || assert!(place.init(all, arena, Nothing, &[]).is_ok()));
    let mut empty = Map::empty();
    table.row("MapSpace::init", || fine(empty.init(all, arena, Nothing, &[])));
    let mut space = Space::new(all, all, arena).ok();
    let mut made = None;
    // By value.
    table.row_within("MapSpace::new", 64 << 10, || {
        let space = space.take().unwrap_or_else(|| panic!("no space"));
        made = Map::new(space, arena, Nothing).ok();
    });
    assert!(made.is_some());
    let map: &'static Map = fine(place.get());
    let large = AreaRequest { leaves: Leaves::LargeWherePossible, ..AreaRequest::new(700 << 12) };
    let reset = AreaRequest { direct_map: DirectMap::ResetOnFree, ..large };
    let mut at = [Va::ZERO; 3];
    table.row("vmalloc", || at[0] = fine(map.vmalloc(0, &large)));
    table.row("vrealloc, grows", || at[0] = fine(map.vrealloc(0, at[0], 900 << 12, Fill::Zeros)));
    let _above = fine(map.vmap(0, [7].as_slice(), Protection(0), 0));
    table.row("vrealloc, moves", || at[0] = fine(map.vrealloc(0, at[0], 1900 << 12, Fill::Zeros)));
    table.row("vrealloc, shrinks", || at[0] = fine(map.vrealloc(0, at[0], 9 << 12, Fill::Any)));
    table.row("vmap", || at[1] = fine(map.vmap(0, [1, 2, 3].as_slice(), Protection(0), 0)));
    table.row("vm_map_ram", || at[2] = fine(map.vm_map_ram(0, [1, 2, 3].as_slice(), Protection(0))));
    table.row("info", || assert!(map.info(at[1]).is_some()));
    table.row("areas", || assert!(map.areas().count() > 2));
    table.row("read", || assert!(map.read(pages(16, 4000), |_| ()) > 0));
    table.row("vm_unmap_ram", || fine(map.vm_unmap_ram(0, at[2], 3)));
    table.row("vunmap", || fine(map.vunmap(at[1])));
    table.row("vfree", || fine(map.vfree(at[0])));
    at = [0, 1, 2].map(|_| fine(map.vmalloc(0, &reset)));
    table.row("vfree, reset", || fine(map.vfree(at[0])));
    table.row("vfree_atomic", || _ = fine(map.vfree_atomic(at[1])));
    table.row("run_deferred", || assert_eq!(map.run_deferred(), 1));
    table.row("unmap_aliases", || _ = map.unmap_aliases());
    table.row("purge", || _ = map.purge());
    table.row("shrink", || _ = map.shrink());
}

fn percpu_rows(table: &mut Depths) {
    let arena = Arena::leaked();
    let geometry = fine(Geometry::new(va_sim::percpu::SIZES, Va::new(1 << 36)));
    let place: &'static EarlyPercpu<&'static Arena, SimChunks, SmallFirst> =
        Box::leak(Box::new(EarlyPercpu::new()));
    table.row("EarlyPercpu::init", || assert!(place.init(geometry, arena, SimChunks::default()).is_ok()));
    let mut made = None;
    // By value: two kilobytes, where they are made and where they go.
    table.row_within("PercpuSpace::new", 12 << 10, || {
        made = PercpuSpace::<_, _, SmallFirst>::new(geometry, arena, SimChunks::default()).ok();
    });
    let Some(space) = &made else { panic!("no space") };
    let mut objects = Vec::with_capacity(4096);
    let shapes = || (0..2000).map(|nth| (1 + nth % 70 + nth % 7 * 1000, 1 << (nth % 11)));
    table.row("PercpuSpace::alloc", || {
        objects.extend(shapes().map(|(size, align)| fine(space.alloc(&PercpuRequest::new(size, align)))));
    });
    table.row("PercpuSpace::free", || objects.drain(1000..).for_each(|object| fine(space.free(object))));
    table.row("PercpuSpace::alloc_at", || _ = space.alloc_at(objects[7], 64));
    table.row("PercpuSpace::free", || objects.drain(..).for_each(|object| fine(space.free(object))));
    table.row("PercpuSpace::balance", || _ = space.balance());
    table.row("PercpuSpace::stats", || _ = space.stats());
    table.row("PercpuSpace::validate", || assert!(space.validate().is_ok()));
}

#[test]
fn every_entry_point_fits_in_a_page_of_stack() {
    let mut empty = || ();
    let mut table = Depths { empty: raw_depth(&mut empty), rows: Vec::new() };
    space_rows(&mut table);
    block_rows(&mut table);
    map_rows(&mut table);
    percpu_rows(&mut table);
    println!("{:>8} bytes for the thread itself", table.empty);
    for (name, depth, most) in &table.rows {
        println!("{depth:>8} of {most:>6}  {name}");
    }
    if !cfg!(debug_assertions) {
        let over: Vec<_> = table.rows.iter().filter(|(_, depth, most)| depth > most).collect();
        assert!(over.is_empty(), "{over:?}");
    }
}

/// Runs `call` on a thread with so much stack, and no more.
fn on_stack_of(bytes: usize, mut call: impl FnMut()) {
    let mut call: &mut dyn FnMut() = &mut call;
    let argument = (&raw mut call).cast::<c_void>();
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: a place for attributes.
    assert_eq!(unsafe { libc::pthread_attr_init(attributes) }, 0);
    // SAFETY: initialised above.
    assert_eq!(unsafe { libc::pthread_attr_setstacksize(attributes, bytes) }, 0);
    let mut thread = 0;
    // SAFETY: the attributes are initialised, and the argument outlives the thread, which is joined below.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, attributes, trampoline, argument) }, 0);
    // SAFETY: made above, and joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
    // SAFETY: initialised above, and used no more.
    assert_eq!(unsafe { libc::pthread_attr_destroy(attributes) }, 0);
}

/// The stack of a kernel's thread; glibc's `PTHREAD_STACK_MIN`, in which the thread's own records lie, too.
const KERNEL_STACK: usize = 16 << 10;

static SPACE: EarlySpace<&'static Arena, Standard> = EarlySpace::new();
static BLOCKS: EarlyBlocks<&'static Arena, va_block::config::Standard> = EarlyBlocks::new();
static MAP: EarlyMap<&'static Arena, va_block::config::Standard, Nothing> = EarlyMap::new();
static PERCPU: EarlyPercpu<&'static Arena, SimChunks, SmallFirst> = EarlyPercpu::new();

#[test]
fn a_16_kib_stack_makes_and_uses_each_in_a_static() {
    assert!(SPACE.get().is_err() && BLOCKS.get().is_err() && MAP.get().is_err() && PERCPU.get().is_err());
    if cfg!(debug_assertions) {
        // Code that is not optimised takes as much stack as it likes.
        return;
    }
    let all = pages(16, 1 << 28);
    let boot = [pages(16, 20)];
    let arena = Arena::leaked();
    let geometry = fine(Geometry::new(va_sim::percpu::SIZES, Va::new(1 << 36)));
    on_stack_of(KERNEL_STACK, || {
        let space = fine(SPACE.init(all, all, arena, &boot));
        let area = fine(space.alloc(0, &ask(3)));
        assert_eq!(area.start().page_floor(), 20);
        fine(space.free(area));
        let mut magazine = fine(space.magazine(0));
        let area = fine(magazine.alloc(&ask(4)));
        fine(magazine.free(area));
        drop(magazine);
        assert!(space.purge(Purge::Full).left.get() == 0 && space.validate().is_ok());
    });
    on_stack_of(KERNEL_STACK, || {
        let blocks = fine(BLOCKS.init(all, arena, &boot));
        let at = fine(blocks.alloc(0, 3));
        fine(blocks.free(0, at, 3));
        let _ = blocks.unmap_aliases();
    });
    on_stack_of(KERNEL_STACK, || {
        let map = fine(MAP.init(all, arena, Nothing, &boot));
        let at = fine(map.vmalloc(0, &AreaRequest::new(700 << 12)));
        fine(map.vfree(at));
        let _ = map.purge();
    });
    let chunks = Mutex::new(Some(SimChunks::default()));
    on_stack_of(KERNEL_STACK, || {
        let chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner).take();
        let space = fine(PERCPU.init(geometry, arena, chunks.unwrap_or_else(|| panic!("taken"))));
        let at = fine(space.alloc(&PercpuRequest::new(24, 8)));
        fine(space.free(at));
        let _ = space.balance();
    });
}

#[test]
fn a_place_for_percpu_memory_is_all_zeros() {
    static PLACE: EarlyPercpu<&Arena, SimChunks, SmallFirst> = EarlyPercpu::new();
    let at = (&raw const PLACE).cast::<u8>();
    // SAFETY: a static, which nobody writes to; it is read byte by byte.
    let bytes = unsafe { std::slice::from_raw_parts(at, size_of_val(&PLACE)) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(PLACE.get().is_err());
}
