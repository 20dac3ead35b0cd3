//! The ports to three kernels.

use crate::Row;
use crate::input;
use core::sync::atomic::{AtomicBool, Ordering};
use ports::asterinas::RangeAllocator;
use ports::hermit::PageAlloc;
use ports::stand_in::hermit::{PAGE_SIZE, PageLayout, PageRange, PageRangeAllocator};
use ports::stand_in::svsm::{VirtAddr, this_cpu};

/// The functions of Hermit's `PageAlloc`.
pub const HERMIT: &[Row] = &[
    ("init", hermit_init),
    ("allocate", hermit_allocate),
    ("allocate_at", hermit_allocate_at),
    ("deallocate", hermit_deallocate),
];
/// Those of Asterinas' `RangeAllocator`.
pub const ASTERINAS: &[Row] =
    &[("alloc", asterinas_alloc), ("alloc_specific", asterinas_alloc_specific), ("free", asterinas_free)];
/// Those of COCONUT-SVSM's `VirtualRange`.
pub const SVSM: &[Row] = &[("init", svsm_init), ("alloc", svsm_alloc), ("free", svsm_free)];

/// Returns true once.
fn is_first() -> bool {
    static CALLED: AtomicBool = AtomicBool::new(false);
    !CALLED.swap(true, Ordering::Relaxed)
}

fn hermit_init() {
    if is_first() {
        // SAFETY: once, as the condition says.
        unsafe { PageAlloc::init() };
    }
}

fn keep(range: PageRange) {
    input::add((range.start() as u64, range.end() as u64));
}

fn hermit_allocate() {
    if input::grows()
        && let Ok(layout) = PageLayout::from_size_align(
            (1 + input::random(40) as usize) * PAGE_SIZE,
            PAGE_SIZE << input::random(9),
        )
        && let Ok(range) = PageAlloc::allocate(layout)
    {
        keep(range);
    }
}

fn hermit_allocate_at() {
    let start = (1 << 46) + input::random(1 << 16) as usize * PAGE_SIZE;
    if input::grows()
        && let Ok(range) = PageRange::new(start, start + PAGE_SIZE)
        && PageAlloc::allocate_at(range).is_ok()
    {
        keep(range);
    }
}

fn hermit_deallocate() {
    if let Some((start, end)) = input::take()
        && let Ok(range) = PageRange::new(start as usize, end as usize)
    {
        // SAFETY: allocated above, and nothing is there.
        unsafe { PageAlloc::deallocate(range) };
    }
}

static RANGES: RangeAllocator = RangeAllocator::new(1 << 40..1 << 41);

fn asterinas_alloc() {
    if input::grows()
        && let Ok(range) = RANGES.alloc((1 + input::random(1 << 16)) as usize)
    {
        input::add((range.start as u64, range.end as u64));
    }
}

fn asterinas_alloc_specific() {
    let start = (1 << 40) + input::random(1 << 30) as usize;
    if input::grows() && RANGES.alloc_specific(&(start..start + 4096)).is_ok() {
        input::add((start as u64, start as u64 + 4096));
    }
}

fn asterinas_free() {
    if let Some((start, end)) = input::take() {
        RANGES.free(start as usize..end as usize);
    }
}

fn svsm_init() {
    if is_first() {
        this_cpu().initialize_vm_ranges();
    }
}

fn svsm_alloc() {
    let pages = 1 + input::random(3);
    if input::grows()
        && let Ok(at) = this_cpu().vrange_4k_mut().alloc(pages as usize, input::random(5) as usize)
    {
        input::add((at.bits() as u64, pages));
    }
}

fn svsm_free() {
    if let Some((start, pages)) = input::take() {
        this_cpu().vrange_4k_mut().free(VirtAddr::new(start as usize), pages as usize);
    }
}
