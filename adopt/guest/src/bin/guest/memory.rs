//! The two windows of the guest, over the same page tables: areas with pages, and per-CPU memory.

use crate::cpus::{CPUS, CpuData, Pc, SHOOTDOWN};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_block::config::Standard;
use va_map::{EarlyMap, MapSpace};
use va_percpu::vm::{Groups, VmChunks};
use va_percpu::{Backend, EarlyPercpu, Geometry, PercpuSpace, Sizes, config, geometry::DYNAMIC_BYTES_MIN};
use va_space::{EarlySpace, VmapSpace};
use vmalloc_guest::frames::Frames;
use vmalloc_guest::port::{Port, Units};
use vmalloc_guest::tables::Tables;

/// Areas: 128 MiB, where Linux has its vmalloc space.
const AREAS: (u64, u64) = (0xffff_c900_0000_0000, 128 << 20);
/// Per-CPU chunks: 16 MiB elsewhere. The first chunk is at the beginning.
const CHUNKS: (u64, u64) = (0xffff_e800_0000_0000, 16 << 20);
const UNIT: u64 = 64 << 10;
const CHUNK: u64 = UNIT * CPUS as u64;
/// The units of a chunk side by side: one group.
const GROUPS: Groups<'static> = Groups { areas: &[(0, CHUNK)], units: &[0, UNIT, 2 * UNIT, 3 * UNIT] };

type Space = VmapSpace<Port<Pc>, va_space::config::Standard>;
type Chunks = VmChunks<'static, Port<Pc>, va_space::config::Standard, Units<Pc>>;

/// All memory above the image.
pub(crate) static FRAMES: Frames<Pc> = Frames::new();
static MAP: EarlyMap<Port<Pc>, Standard, Tables<Pc>> = EarlyMap::new();
static SPACE: EarlySpace<Port<Pc>, va_space::config::Standard> = EarlySpace::new();
static PERCPU: EarlyPercpu<Port<Pc>, Chunks, config::Standard> = EarlyPercpu::new();

/// All that the tests use.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) map: &'static MapSpace<Port<Pc>, Standard, Tables<Pc>>,
    pub(crate) percpu: &'static PercpuSpace<Port<Pc>, Chunks, config::Standard>,
    /// The addresses of per-CPU chunks.
    pub(crate) space: &'static Space,
    pub(crate) tables: Tables<Pc>,
}

/// Returns the address of the unit of a CPU in the first chunk.
pub(crate) fn unit(cpu: usize) -> Va {
    Va::new(CHUNKS.0 + cpu as u64 * UNIT)
}

/// Creates both. The first CPU calls it, while no other is online.
pub(crate) fn init(tables: Tables<Pc>) -> Memory {
    let port = Port { frames: &FRAMES, shootdown: &SHOOTDOWN };
    let range = |start, bytes| VaRange::from_size(Va::new(start), bytes).unwrap_or_default();
    let map = MAP.init(range(AREAS.0, AREAS.1), port, tables, &[]).expect("the map");
    // The first chunk is there before the space of chunks is: static data of each CPU, and room for the first objects.
    let (window, first) = (range(CHUNKS.0, CHUNKS.1), range(CHUNKS.0, CHUNK));
    let space = SPACE.init(window, window, port, &[first]).expect("the space of chunks");
    let sizes = Sizes {
        unit: UNIT as u32,
        fixed: size_of::<CpuData>() as u32,
        reserved: 0,
        dynamic: DYNAMIC_BYTES_MIN,
        atom: PAGE_SIZE as u32,
        alloc: CHUNK as u32,
        units: CPUS as u32,
    };
    let geometry = Geometry::new(sizes, unit(0)).expect("the sizes of units");
    let chunks = VmChunks::new(space, GROUPS, sizes.atom, Units(port, tables)).expect("the groups");
    let pages = (sizes.fixed + sizes.dynamic).div_ceil(sizes.atom);
    chunks.populate(&geometry, unit(0), 0..pages).expect("the first chunk");
    let percpu = PERCPU.init(geometry, port, chunks).expect("per-CPU memory");
    Memory { map, percpu, space, tables }
}
