//! A space: areas that are freed lazily, and a purge.

use crate::Row;
use crate::arena::Arena;
use crate::input;
use crate::lock::Spin;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, Machine, Meta, PAGE_SIZE, Platform, Record, Request, Table, Va, VaRange};
use va_space::{EarlySpace, Purge};

/// A machine with four CPUs, whose flush ends at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;

static FLUSHES: AtomicU64 = AtomicU64::new(0);
static SPACE: EarlySpace<Kernel> = EarlySpace::new();

/// Makes a space, allocates, frees and purges.
pub const ROWS: &[Row] = &[("init", init), ("alloc", alloc), ("free", free), ("purge", purge)];

impl Platform for Kernel {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Arena.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        Arena.free_meta(slab);
    }
}

impl Machine for Kernel {
    type Lock = Spin;
    type PurgeLock = Spin;
    type OwnerLock = Spin;

    fn cpus_possible(&self) -> u32 {
        4
    }

    fn cpus_online(&self) -> u32 {
        4
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        Arena::table()
    }

    fn free_table<T: Table>(&self, _table: Meta<&'static T>) {}

    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(FLUSHES.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

fn init() {
    let window = VaRange::from_pages(black_box(1 << 10), black_box(1 << 16)).unwrap_or_default();
    let _ = black_box(SPACE.init(window, window, Kernel, &[]).is_ok());
}

fn alloc() {
    let align = if input::random(4) == 0 { PAGE_SIZE << input::random(10) } else { PAGE_SIZE };
    // At times so large that the space is full before there are as many areas as can be.
    let most = if input::random(8) == 0 { 300 } else { 12 };
    let Ok(request) = Request::new((1 + input::random(most)) * PAGE_SIZE, align) else { return };
    if !input::grows() {
        return;
    }
    if let Ok(space) = SPACE.get()
        && let Ok(area) = space.alloc(black_box(0), &request)
    {
        // It is freed by its address.
        input::add((area.start().get(), 0));
    }
}

fn free() {
    if let Some((start, _)) = input::take()
        && let Ok(space) = SPACE.get()
    {
        let _ = black_box(space.free_at(Va::new(start)));
    }
}

fn purge() {
    // Rarely, so that a free has to purge as well.
    if let Ok(space) = SPACE.get()
        && input::random(2000) == 0
    {
        let _ = black_box(space.purge(Purge::Full));
    }
}
