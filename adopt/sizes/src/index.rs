//! An index of holes alone.

use crate::Row;
use crate::arena::Arena;
use crate::input;
use crate::lock::Spin;
use core::hint::black_box;
use lock_api::Mutex;
use va_base::{PAGE_SIZE, Request, Va, VaRange};
use va_tree::rb::Exact;
use va_tree::{BTree, BTreeIndex, BTreeIndex32, FlatIndex, FreeIndex, RbIndex};

type Locked<I> = Mutex<Spin, I>;

static WIDE: Locked<BTreeIndex<Arena>> = Mutex::new(BTree::empty(Arena));
static NARROW: Locked<BTreeIndex32<Arena>> = Mutex::new(BTree::empty(Arena));
static FLAT: Locked<FlatIndex<24>> = Mutex::new(FlatIndex::EMPTY);
static BINARY: Locked<RbIndex<Exact, Arena>> = Mutex::new(RbIndex::empty(Arena));

/// An alloc and a free: what every user has.
pub const PAIR: &[Row] = &[("init", wide_init), ("alloc", || alloc(&WIDE)), ("free", || free(&WIDE))];
/// The same with 32-bit keys.
pub const PAIR_32: &[Row] =
    &[("init", narrow_init), ("alloc", || alloc(&NARROW)), ("free", || free(&NARROW))];
/// The same of a red-black tree.
pub const PAIR_RB: &[Row] =
    &[("init", binary_init), ("alloc", || alloc(&BINARY)), ("free", || free(&BINARY))];
/// The same of a sorted array.
pub const PAIR_FLAT: &[Row] = &[("init", flat_init), ("alloc", || alloc(&FLAT)), ("free", || free(&FLAT))];
/// Every change of an index.
pub const ALL: &[Row] = &[
    ("init", wide_init),
    ("alloc", || alloc(&WIDE)),
    ("alloc, aligned", || aligned(&WIDE)),
    ("alloc_highest", || highest(&WIDE)),
    ("take", || take(&WIDE)),
    ("free", || free(&WIDE)),
];

fn space() -> VaRange {
    VaRange::from_pages(black_box(1 << 10), black_box(1 << 20)).unwrap_or_default()
}

fn wide_init() {
    let _ = black_box(WIDE.lock().init(space(), VaRange::ALL));
}

fn narrow_init() {
    let _ = black_box(NARROW.lock().init(space(), VaRange::ALL));
}

fn flat_init() {
    let _ = black_box(FLAT.lock().init(space(), VaRange::ALL));
}

fn binary_init() {
    let _ = black_box(BINARY.lock().init(space(), VaRange::ALL));
}

fn alloc<I: FreeIndex>(index: &Locked<I>) {
    if let Ok(request) = Request::pages(1 + input::random(40)) {
        keep(index, &request, I::alloc);
    }
}

fn aligned<I: FreeIndex>(index: &Locked<I>) {
    if let Ok(request) = Request::new(PAGE_SIZE, PAGE_SIZE << input::random(12)) {
        keep(index, &request, I::alloc);
    }
}

fn highest<I: FreeIndex>(index: &Locked<I>) {
    if let Ok(request) = Request::new(PAGE_SIZE, PAGE_SIZE << input::random(12)) {
        keep(index, &request, I::alloc_highest);
    }
}

#[inline(always)]
fn keep<I: FreeIndex>(
    index: &Locked<I>,
    request: &Request,
    alloc: impl Fn(&mut I, &Request) -> Result<Va, va_base::AllocError>,
) {
    if !input::grows() {
        return;
    }
    if let Ok(at) = black_box(alloc(&mut index.lock(), request)) {
        input::add((at.get(), request.size().get()));
    }
}

fn take<I: FreeIndex>(index: &Locked<I>) {
    let page = (1 << 10) + input::random(1_000_000);
    let range = VaRange::from_pages(page, page + 1).unwrap_or_default();
    if input::grows() && black_box(index.lock().take(range)).is_ok() {
        input::add((range.start().get(), 1));
    }
}

fn free<I: FreeIndex>(index: &Locked<I>) {
    if let Some((start, pages)) = input::take() {
        let range = VaRange::from_size(Va::new(start), pages * PAGE_SIZE).unwrap_or_default();
        let _ = black_box(index.lock().free(range));
    }
}
