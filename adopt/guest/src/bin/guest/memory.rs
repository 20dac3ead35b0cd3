//! The two windows of the guest, over the same page tables: areas with pages, and per-CPU memory.

use crate::cpus::{self, CPUS, CpuData, Pc, SHOOTDOWN};
use crate::{hw, traps};
use port_check::{Kernel, Work};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{EarlyMap, MapSpace};
use va_percpu::vm::{Groups, VmChunks};
use va_percpu::{Backend, EarlyPercpu, Geometry, PercpuSpace, Sizes, geometry::DYNAMIC_BYTES_MIN};
use va_space::{EarlySpace, VmapSpace};
use vmalloc_guest::frames::{self, Frames};
use vmalloc_guest::{port::Port, port::Units, tables::Tables};

/// Areas: 128 MiB, where Linux has its vmalloc space.
const AREAS: (u64, u64) = (0xffff_c900_0000_0000, 128 << 20);
/// Per-CPU chunks: 16 MiB elsewhere. The first chunk is at the beginning.
const CHUNKS: (u64, u64) = (0xffff_e800_0000_0000, 16 << 20);
const UNIT: u64 = 64 << 10;
const CHUNK: u64 = UNIT * CPUS as u64;
/// The units of a chunk side by side: one group.
const GROUPS: Groups<'static> = Groups { areas: &[(0, CHUNK)], units: &[0, UNIT, 2 * UNIT, 3 * UNIT] };

type Map = MapSpace<Port<Pc>, Tables<Pc>>;
type Percpu = PercpuSpace<Port<Pc>, Chunks>;
type Space = VmapSpace<Port<Pc>>;
type Chunks = VmChunks<'static, Port<Pc>, Units<Pc>>;

/// All memory above the image.
pub(crate) static FRAMES: Frames<Pc> = Frames::new();
static MAP: EarlyMap<Port<Pc>, Tables<Pc>> = EarlyMap::new();
static SPACE: EarlySpace<Port<Pc>> = EarlySpace::new();
static PERCPU: EarlyPercpu<Port<Pc>, Chunks> = EarlyPercpu::new();

/// Both windows.
pub(crate) struct Memory {
    map: &'static Map,
    percpu: &'static Percpu,
    space: &'static Space,
}

// SAFETY: each is created over the page tables below, and a frame's memory is where `frames` says.
unsafe impl Kernel for Memory {
    type Machine = Port<Pc>;
    type Table = Tables<Pc>;
    type Chunks = Chunks;
    const CPUS: usize = CPUS;

    fn map(&self) -> &Map {
        self.map
    }
    fn percpu(&self) -> &Percpu {
        self.percpu
    }
    fn space(&self) -> &Space {
        self.space
    }
    fn unit(&self, cpu: usize) -> Va {
        unit(cpu)
    }
    fn direct(&self, frame: u64) -> *mut u8 {
        frames::direct(frame)
    }
    fn each(&self, work: Work<'_>) {
        cpus::each(work);
    }
    fn read(&self, at: Va) -> Result<u64, Va> {
        traps::read(at)
    }
    fn print(&self, line: core::fmt::Arguments<'_>) {
        hw::print(line);
    }
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
    Memory { map, percpu, space }
}
