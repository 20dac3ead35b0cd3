//! Per-CPU memory on the chunks that the guest has, for one CPU.
//!
//! The numbers of checks go on from those of [`mapped`](crate::mapped).

use crate::machine::{self, FRAMES, One, PORT};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::PageTable;
use va_percpu::geometry::{DYNAMIC_BYTES_MIN, UNIT_BYTES_MIN};
use va_percpu::vm::{Groups, VmChunks};
use va_percpu::{Backend, EarlyPercpu, Geometry, Request, Sizes};
use va_space::{EarlySpace, Purge};
use vmalloc_guest::port::{Port, Units};

/// The number of a check that does not hold.
type Failed = i32;

/// Objects of a page: more than the first chunk and another one have.
const OBJECTS: usize = 20;
const UNIT_BYTES: u64 = UNIT_BYTES_MIN as u64;
const GROUPS: Groups<'static> = Groups { areas: &[(0, UNIT_BYTES)], units: &[0] };

static CHUNKS: EarlySpace<Port<One>> = EarlySpace::new();
type Chunks = VmChunks<'static, Port<One>, Units<One>>;

static PERCPU: EarlyPercpu<Port<One>, Chunks> = EarlyPercpu::new();

/// Allocates objects in chunks from `start` on, which are zero, and frees them.
pub(crate) fn run(start: Va) -> Result<(), Failed> {
    let tables = machine::tables().ok_or(1)?;
    let window = VaRange::from_size(start, 64 * UNIT_BYTES).ok_or(3)?;
    let first = VaRange::from_size(start, UNIT_BYTES).ok_or(3)?;
    let chunks = CHUNKS.init(window, window, PORT, &[first]).map_err(|_| 3)?;
    let sizes = Sizes {
        unit: UNIT_BYTES_MIN,
        fixed: 0,
        reserved: 0,
        dynamic: DYNAMIC_BYTES_MIN,
        atom: PAGE_SIZE as u32,
        alloc: UNIT_BYTES_MIN,
        units: 1,
    };
    let geometry = Geometry::new(sizes, start).map_err(|_| 4)?;
    let units = VmChunks::new(chunks, GROUPS, sizes.atom, Units(PORT, tables)).map_err(|_| 4)?;
    units.populate(&geometry, start, 0..DYNAMIC_BYTES_MIN / sizes.atom).map_err(|_| 2)?;
    let percpu = PERCPU.init(geometry, PORT, units).map_err(|_| 4)?;
    let before = FRAMES.free_count();
    let mut objects = [None; OBJECTS];
    for object in &mut objects {
        let offset = percpu.alloc(&Request::new(PAGE_SIZE as usize, PAGE_SIZE as usize)).map_err(|_| 5)?;
        let frame = tables.leaf(offset.at(start)).ok_or(6)?.first;
        // SAFETY: the page of this object, which nothing else uses.
        let word = unsafe { vmalloc_guest::frames::word(frame, 511) };
        if word.swap(1, core::sync::atomic::Ordering::Relaxed) != 0 {
            return Err(7);
        }
        *object = Some(offset);
    }
    for offset in objects.into_iter().flatten() {
        percpu.free(offset).map_err(|_| 8)?;
    }
    percpu.balance();
    chunks.purge(Purge::Full);
    // What stays: a chunk that is spared, tables and records.
    if percpu.validate().is_err() || chunks.validate().is_err() || before - FRAMES.free_count() > 16 {
        return Err(9);
    }
    Ok(())
}
