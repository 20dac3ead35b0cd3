//! Measures the stack of the core's calls, and checks that an empty table is all zeros.
//!
//! A kernel has 16 KiB of stack, and a call of the core may be its deepest. So each entry point is run on a thread
//! whose stack is memory of the test, filled with a pattern. The lowest byte that no longer has the pattern is the
//! depth of the call. An empty call gives the depth of the thread itself. The bound applies to optimised code only.

mod arena;
mod block;
mod complete;
mod depths;
mod map;
mod percpu;
mod space;
mod stack;
mod zeros;

use arena::{Arena, ask, fine, pages};
use depths::{Depths, Row};
use map::Nothing;
use stack::on_stack_of;
use std::sync::{Mutex, PoisonError};
use va_base::Va;
use va_block::EarlyBlocks;
use va_map::{AreaRequest, EarlyMap};
use va_percpu::config::Standard as SmallFirst;
use va_percpu::{EarlyPercpu, Geometry, Request as PercpuRequest};
use va_sim::percpu::SimChunks;
use va_space::config::{Linux69, OneLock52, Standard, WithTrees};
use va_space::{EarlySpace, Purge};

/// Runs all rows, each under every policy.
fn rows() -> Depths {
    let mut table = Depths::new();
    let mut under = |policy, rows: fn(&mut Depths)| {
        table.policy = policy;
        rows(&mut table);
    };
    under("Standard", space::rows::<Standard>);
    under("WithTrees", space::rows::<WithTrees<Standard>>);
    under("Linux69", space::rows::<Linux69>);
    under("OneLock52", space::rows::<OneLock52>);
    under("Standard", block::rows::<va_block::config::Standard>);
    under("Linux64", block::rows::<va_block::config::Linux64>);
    under("OneMap63", block::rows::<va_block::config::OneMap63>);
    under("Standard", map::rows::<va_block::config::Standard>);
    under("Standard", percpu::rows::<SmallFirst>);
    under("Runs", percpu::rows::<va_percpu::config::Runs>);
    under("Linux612", percpu::rows::<va_percpu::config::Linux612>);
    under("areas", percpu::rows_of_areas::<SmallFirst>);
    table
}

#[test]
fn every_entry_point_fits_in_a_page_of_stack() {
    if cfg!(debug_assertions) {
        // Code that is not optimised has no bound on its stack, and code that walks its invariants takes minutes.
        return;
    }
    let table = rows();
    println!("{:>8} bytes for the thread itself", table.empty);
    let line =
        |Row { policy, name, depth, most }: &Row| format!("{depth:>8} of {most:>6}  {policy:<9}  {name}");
    table.rows.iter().for_each(|row| println!("{}", line(row)));
    let over: Vec<_> = table.rows.iter().filter(|row| row.depth > row.most).map(line).collect();
    assert!(over.is_empty(), "{over:#?}");
    assert_eq!(complete::missing(&table.rows), [""; 0], "without a row, or no entry point");
}

/// The stack of a kernel's thread; glibc's `PTHREAD_STACK_MIN`, which also holds the thread's own records.
const KERNEL_STACK: usize = 16 << 10;

static SPACE: EarlySpace<&'static Arena, Standard> = EarlySpace::new();
static BLOCKS: EarlyBlocks<&'static Arena> = EarlyBlocks::new();
static MAP: EarlyMap<&'static Arena, Nothing> = EarlyMap::new();
static PERCPU: EarlyPercpu<&'static Arena, SimChunks, SmallFirst> = EarlyPercpu::new();

#[test]
fn a_16_kib_stack_makes_and_uses_each_in_a_static() {
    assert!(SPACE.get().is_err() && BLOCKS.get().is_err() && MAP.get().is_err() && PERCPU.get().is_err());
    if cfg!(debug_assertions) {
        // Code that is not optimised has no bound on its stack.
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
