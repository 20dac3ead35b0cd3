//! Per-CPU memory on a real space, and on contiguous blocks.
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use va_base::{Va, VaRange};
use va_percpu::config::Standard;
use va_percpu::km::{Blocks, KmChunks};
use va_percpu::plan::{Wish, plan};
use va_percpu::vm::{Groups, Mapper, VmChunks};
use va_percpu::{
    AllocError, BackendError, Context, Geometry, NewError, PercpuSpace, Place, PlacementError, Request,
    Sizes, first, geometry,
};
use va_sim::machine::SimMachine;
use va_space::VmapSpace;
use va_space::config::Standard as SpaceDefault;

const SIZES: Sizes = Sizes {
    unit: 64 << 10,
    fixed: 4096,
    reserved: 0,
    dynamic: 24 << 10,
    atom: 64 << 10,
    alloc: 64 << 10,
    units: 4,
};
/// Two groups of two units, a hole between them.
const AREAS: [(u64, u64); 2] = [(0, 128 << 10), (1 << 20, 128 << 10)];
const UNITS: [u64; 4] = [0, 64 << 10, 1 << 20, (1 << 20) + (64 << 10)];

/// Maps into the machine that records stale translations.
struct Pages<'a> {
    machine: &'a SimMachine,
    mapped: Mutex<BTreeMap<u64, u32>>,
    left: Cell<u64>,
    zeroed: Mutex<Vec<VaRange>>,
}

impl<'a> Pages<'a> {
    fn new(machine: &'a SimMachine) -> Self {
        let (mapped, zeroed) = (Mutex::default(), Mutex::default());
        Self { machine, mapped, left: Cell::new(u64::MAX), zeroed }
    }
}

impl Mapper for Pages<'_> {
    fn map(&self, cpu: u32, range: VaRange) -> Result<(), BackendError> {
        self.left.set(self.left.get().checked_sub(1).ok_or(BackendError)?);
        let (first, end) = range.whole_pages();
        assert!(first < end);
        self.machine.map(range).unwrap();
        for page in first..end {
            assert_eq!(self.mapped.lock().insert(page, cpu), None, "mapped twice");
        }
        Ok(())
    }

    fn unmap(&self, cpu: u32, range: VaRange) {
        self.machine.unmap(range);
        let (first, end) = range.whole_pages();
        for page in first..end {
            assert_eq!(self.mapped.lock().remove(&page), Some(cpu), "not mapped");
        }
    }

    fn flush(&self, range: VaRange) {
        let epoch = va_base::Machine::flush(self.machine, &[range]);
        assert!(va_base::Machine::completed(self.machine, epoch));
    }

    fn zero(&self, range: VaRange) {
        self.zeroed.lock().push(range);
    }

    /// Only ranges that were zeroed are noted: the list is read while it is short.
    fn is_zero(&self, range: VaRange) -> Option<bool> {
        let zeroed = self.zeroed.lock();
        (zeroed.len() < 100).then(|| zeroed.contains(&range))
    }
}

#[test]
fn chunks_of_congruent_areas_are_mapped_on_every_cpu_and_go_back() {
    let machine = SimMachine::new(4);
    let window = VaRange::from_pages(1 << 20, 1 << 21).unwrap();
    let space: VmapSpace<_, SpaceDefault> = VmapSpace::new(VaRange::ALL, window, &machine).unwrap();
    let holes = space.stats().holes;
    let mapper = Pages::new(&machine);
    let groups = Groups { areas: &AREAS, units: &UNITS };
    let backend = VmChunks::new(&space, groups, SIZES.atom, mapper).unwrap();
    let first = Va::new(1 << 30);
    let geometry = Geometry::new(SIZES, first).unwrap();
    let percpu: PercpuSpace<_, _, Standard> = PercpuSpace::new(geometry, &machine, backend).unwrap();

    let objects: Vec<_> = (0..60).map(|_| percpu.alloc(&Request::new(4096, 4096)).unwrap()).collect();
    for (nth, object) in objects.iter().enumerate().skip(6) {
        // The same distance on each CPU as between units of the first chunk.
        for (cpu, unit) in UNITS.iter().enumerate() {
            let at = object.at(Va::new(first.get() + unit)).page_floor();
            let mapped = percpu.backend().mapper().mapped.lock().get(&at).copied();
            assert_eq!(mapped, Some(cpu as u32), "object {nth}");
        }
    }
    percpu.validate().unwrap();

    // Failed on the third CPU: the first two are unmapped again.
    percpu.balance();
    let before = percpu.backend().mapper().mapped.lock().len();
    percpu.backend().mapper().left.set(2);
    let error = (0..20).find_map(|_| percpu.alloc(&Request::new(4096, 4096)).err()).unwrap();
    assert!(matches!(error, AllocError::NotPopulated { .. }), "{error}");
    assert_eq!(percpu.backend().mapper().mapped.lock().len(), before);
    percpu.backend().mapper().left.set(u64::MAX);
    percpu.validate().unwrap();

    objects.iter().for_each(|&object| percpu.free(object).unwrap());
    while percpu.is_balance_due() {
        percpu.balance();
    }
    percpu.validate().unwrap();
    let stats = percpu.stats();
    assert!(stats.chunks <= 3 && stats.spare_pages >= 2, "{stats:?}");
    // What remains busy is areas of the remaining chunks; the others' areas are lazy or free again.
    let expected = u64::from(stats.chunks - 1) * 2;
    let busy = space.areas().filter(|seen| seen.state == va_space::State::Busy).count() as u64;
    assert_eq!(busy, expected);
    assert!(space.stats().holes >= holes);
    space.validate().unwrap();
}

#[test]
fn units_that_are_not_those_of_the_geometry_are_an_error() {
    const UNIT: u64 = 64 << 10;
    let machine = SimMachine::new(4);
    let window = VaRange::from_pages(1 << 20, 1 << 21).unwrap();
    let space: VmapSpace<_, SpaceDefault> = VmapSpace::new(VaRange::ALL, window, &machine).unwrap();
    let made = |areas: &[(u64, u64)], units: &[u64]| {
        let backend =
            VmChunks::new(&space, Groups { areas, units }, SIZES.atom, Pages::new(&machine)).unwrap();
        let geometry = Geometry::new(SIZES, Va::new(1 << 30)).unwrap();
        PercpuSpace::<_, _, Standard>::new(geometry, &machine, &backend).err()
    };
    let placed = |units: &[u64]| match made(&AREAS, units) {
        Some(NewError::Placement(error)) => Some(error),
        other => panic!("{other:?}"),
    };
    let with = |cpu: usize, offset| {
        let mut units = UNITS;
        units[cpu] = offset;
        placed(&units)
    };
    let count = |units| Some(PlacementError::BadCount { units, cpus: 4, most: 4 });
    assert_eq!(placed(&[0, UNIT, 1 << 20]), count(3));
    assert_eq!(placed(&[0, UNIT, 1 << 20, (1 << 20) + UNIT, (1 << 20) + UNIT]), count(5));
    let outside = |cpu, offset| Some(PlacementError::OutsideAreas { cpu, offset, unit: SIZES.unit });
    // At the end of an area, over it, between areas, past the last address, and not at a page.
    for (cpu, offset) in
        [(1, 2 * UNIT), (1, UNIT + 4096), (2, 3 * UNIT), (3, u64::MAX - 4095), (3, (1 << 20) + 7)]
    {
        assert_eq!(with(cpu, offset), outside(cpu as u32, offset));
    }
    let short = made(&[(0, UNIT), (1 << 20, 128 << 10)], &UNITS);
    assert_eq!(short, outside(1, UNIT).map(NewError::Placement));
    assert_eq!(with(3, 1 << 20), Some(PlacementError::Overlap { first: 2, second: 3, offset: 1 << 20 }));
    assert_eq!(with(1, 4096), Some(PlacementError::Overlap { first: 0, second: 1, offset: 4096 }));
    // In any order they are right, and until then nothing was allocated.
    assert_eq!(space.areas().count(), 0);
    assert_eq!(made(&AREAS, &[(1 << 20) + UNIT, 0, 1 << 20, UNIT]), None);
}

#[test]
fn an_object_is_zeroed_on_every_cpu_before_it_is_allocated() {
    let machine = SimMachine::new(4);
    let window = VaRange::from_pages(1 << 20, 1 << 21).unwrap();
    let space: VmapSpace<_, SpaceDefault> = VmapSpace::new(VaRange::ALL, window, &machine).unwrap();
    let groups = Groups { areas: &AREAS, units: &UNITS };
    let backend = VmChunks::new(&space, groups, SIZES.atom, Pages::new(&machine)).unwrap();
    let first = Va::new(1 << 30);
    let percpu: PercpuSpace<_, _, Standard> =
        PercpuSpace::new(Geometry::new(SIZES, first).unwrap(), &machine, backend).unwrap();
    for bytes in [8, 100, 8192] {
        let object = percpu.alloc(&Request::new(bytes, 8)).unwrap();
        let zeroed = core::mem::take(&mut *percpu.backend().mapper().zeroed.lock());
        let copy = |unit| object.at(Va::new(first.get() + unit));
        let copies = UNITS.map(|unit| VaRange::from_size(copy(unit), bytes as u64).unwrap());
        assert_eq!(zeroed, copies, "{bytes} bytes");
    }
}

#[test]
fn units_of_4096_cpus_lie_in_areas_of_the_space() {
    const CPUS: u64 = 4096;
    const GROUP_UNITS: u64 = 64;
    let unit = u64::from(SIZES.unit);
    // Groups of 64 units, and between two of them a hole as large as one.
    let areas: Vec<_> =
        (0..CPUS / GROUP_UNITS).map(|nth| (nth * 2 * GROUP_UNITS * unit, GROUP_UNITS * unit)).collect();
    let unit_at = |cpu: u64| cpu / GROUP_UNITS * 2 * GROUP_UNITS * unit + cpu % GROUP_UNITS * unit;
    let units: Vec<_> = (0..CPUS).map(unit_at).collect();
    let machine = SimMachine::new(CPUS as u32);
    let window = VaRange::from_pages(1 << 22, 1 << 24).unwrap();
    let space: VmapSpace<_, SpaceDefault> = VmapSpace::new(VaRange::ALL, window, &machine).unwrap();
    let mapper = Pages::new(&machine);
    let backend = VmChunks::new(&space, Groups { areas: &areas, units: &units }, SIZES.atom, mapper).unwrap();
    let first = Va::new(1 << 30);
    let sizes = Sizes { units: CPUS as u32, alloc: SIZES.unit * GROUP_UNITS as u32, ..SIZES };
    let percpu: PercpuSpace<_, _, Standard> =
        PercpuSpace::new(Geometry::new(sizes, first).unwrap(), &machine, backend).unwrap();

    // More objects than the first chunk and another hold: whole pages, and objects that share one.
    let request =
        |nth: u64| if nth.is_multiple_of(3) { Request::new(256, 8) } else { Request::new(4096, 4096) };
    let objects: Vec<_> = (0..40).map(|nth| percpu.alloc(&request(nth)).unwrap()).collect();
    assert!(percpu.stats().chunks >= 3, "{:?}", percpu.stats());
    let mut copies = Vec::new();
    for (nth, &object) in (0u64..).zip(&objects) {
        let chunk = percpu.find(object).map(|found| found.chunk).unwrap();
        for cpu in 0..CPUS {
            let at = object.at(Va::new(first.get() + unit_at(cpu)));
            // Only the first chunk existed before the space: the pages of others are that CPU's.
            let mapped = percpu.backend().mapper().mapped.lock().get(&at.page_floor()).copied();
            assert_eq!(mapped, (chunk > 0).then_some(cpu as u32), "object {nth} of CPU {cpu}");
            copies.push((at.get(), if nth % 3 == 0 { 256 } else { 4096 }));
        }
    }
    // No two copies of any two objects share a byte.
    copies.sort_unstable();
    assert!(copies.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
    percpu.validate().unwrap();
    space.validate().unwrap();

    objects.iter().for_each(|&object| percpu.free(object).unwrap());
    percpu.balance();
    percpu.validate().unwrap();
    let (stats, mapped) = (percpu.stats(), percpu.backend().mapper().mapped.lock().len() as u64);
    assert!(stats.chunks <= 2 && mapped < 16 * CPUS, "{mapped} pages of {stats:?}");
    let busy = space.areas().filter(|seen| seen.state == va_space::State::Busy).count();
    assert_eq!(busy, (stats.chunks as usize - 1) * areas.len());
    space.validate().unwrap();
}

/// A machine with two nodes of unequal size and CPU numbers in turn, from the plan to objects in later chunks.
#[test]
fn a_space_begins_with_an_embedded_first_chunk() {
    const CPUS: usize = 7;
    let node = |cpu: u32| u32::from(cpu % 3 == 1);
    let (mut of_cpus, mut units) = ([0; CPUS], [0; CPUS]);
    let (fixed, reserved, dynamic) = (50_000, geometry::RESERVED_BYTES, geometry::DYNAMIC_BYTES);
    let wish = Wish { fixed, reserved, dynamic, atom: 1 << 20 };
    let plan = plan(&wish, |a, b| node(a) == node(b), &mut of_cpus, &mut units).unwrap();
    let mut groups = [first::Group::default(); 2];
    first::groups(&plan, &of_cpus, &mut groups).unwrap();
    // The second node's memory is lower.
    let areas_at = [Va::new(3 << 30), Va::new(1 << 30)];
    let embedded = first::embed(&plan, &mut groups, &areas_at, 1 << 40).unwrap();
    let (mut offsets, mut areas) = ([0; CPUS], [(0, 0); 2]);
    let ends = first::unit_offsets(&plan, &groups, &of_cpus, &units, &mut offsets).unwrap();
    first::areas(&plan, &groups, &mut areas).unwrap();
    assert_eq!((embedded.base, ends), (areas_at[1], first::Ends { low: 1, high: 6 }));

    let machine = SimMachine::new(CPUS as u32);
    let window = VaRange::from_pages(1 << 20, 1 << 23).unwrap();
    let space: VmapSpace<_, SpaceDefault> = VmapSpace::new(VaRange::ALL, window, &machine).unwrap();
    let placement = Groups { areas: &areas, units: &offsets };
    let backend = VmChunks::new(&space, placement, wish.atom, Pages::new(&machine)).unwrap();
    let percpu: PercpuSpace<_, _, Standard> =
        PercpuSpace::new(plan.geometry(embedded.base).unwrap(), &machine, backend).unwrap();

    // Objects of the reserved section, of the dynamic one, and of chunks that are made for them.
    let kept: Vec<_> = (0..8).map(|_| Request::new(1024, 8).place(Place::Reserved)).collect();
    let requests = kept.into_iter().chain((0..200).map(|nth| Request::new(4096 + nth * 4, 8)));
    let objects: Vec<_> =
        requests.map(|request| (percpu.alloc(&request).unwrap(), request.parts().0 as u64)).collect();
    assert!(percpu.alloc(&Request::new(4, 4).place(Place::Reserved)).is_err(), "the section is full");
    assert!(percpu.stats().chunks >= 3, "{:?}", percpu.stats());
    let sum = u64::from(plan.sizes.fixed + plan.sizes.reserved + plan.sizes.dynamic);
    let freed: Vec<_> = first::unused(&plan, &groups, embedded.base).collect();
    let mut copies = Vec::new();
    for &(object, bytes) in &objects {
        let chunk = percpu.find(object).unwrap().chunk;
        for (cpu, offset) in offsets.iter().enumerate() {
            let at = object.at(Va::new(embedded.base.get() + offset));
            let copy = VaRange::from_size(at, bytes).unwrap();
            if chunk <= 0 {
                // In the unit of this CPU, in the memory of its node, behind the static section, and not freed.
                let area = VaRange::from_size(areas_at[of_cpus[cpu] as usize], 1 << 30).unwrap();
                let unit = VaRange::from_size(Va::new(embedded.base.get() + offset), sum).unwrap();
                assert!(area.encloses(copy) && unit.encloses(copy), "{copy:?} of CPU {cpu}");
                assert!(at.get() - unit.start().get() >= u64::from(fixed));
                assert!(!freed.iter().any(|range| range.overlaps(copy)));
            } else {
                let page = percpu.backend().mapper().mapped.lock().get(&at.page_floor()).copied();
                assert_eq!(page, Some(cpu as u32), "{copy:?}");
            }
            copies.push((at.get(), bytes));
        }
    }
    copies.sort_unstable();
    assert!(copies.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "no two copies share a byte");
    objects.iter().for_each(|&(object, _)| percpu.free(object).unwrap());
    percpu.balance();
    percpu.validate().unwrap();
    space.validate().unwrap();
}

/// Blocks that are numbers, and the words there that are not zero.
#[derive(Default)]
struct Numbers {
    allocated: Mutex<BTreeMap<u64, u64>>,
    left: Cell<Option<u64>>,
    written: Mutex<BTreeSet<u64>>,
}

impl Numbers {
    /// Returns the words of bytes of the first chunk or of a block.
    fn words(&self, at: Va, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let inside = |start: u64, size: u64| at.get() >= start && at.get() + bytes <= start + size;
        let first = inside(1 << 30, u64::from(SIZES.unit * SIZES.units));
        assert!(first || self.allocated.lock().iter().any(|(&start, &size)| inside(start, size)), "{at}");
        (at.get()..at.get() + bytes).step_by(4)
    }
}

impl Blocks for &Numbers {
    fn alloc(&self, bytes: u64) -> Result<Va, BackendError> {
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.checked_sub(1).ok_or(BackendError)?));
        }
        assert!(bytes.is_power_of_two());
        let mut allocated = self.allocated.lock();
        let at = allocated.last_key_value().map_or(1 << 40, |(at, bytes)| at + bytes);
        allocated.insert(at, bytes);
        Ok(Va::new(at))
    }

    fn free(&self, at: Va, bytes: u64) {
        assert_eq!(self.allocated.lock().remove(&at.get()), Some(bytes));
    }

    fn zero(&self, at: Va, bytes: u64) {
        let mut written = self.written.lock();
        self.words(at, bytes).for_each(|word| {
            written.remove(&word);
        });
    }

    fn is_zero(&self, at: Va, bytes: u64) -> Option<bool> {
        Some(!self.words(at, bytes).any(|word| self.written.lock().contains(&word)))
    }
}

/// Objects of contiguous chunks are zero on every CPU, however often callers dirty and free them. They are of the space
/// and of a magazine, in the first chunk and in others.
#[test]
fn objects_of_contiguous_chunks_are_zero_each_time() {
    let machine = SimMachine::new(4);
    let numbers = Numbers::default();
    let geometry = Geometry::new(SIZES, Va::new(1 << 30)).unwrap();
    let percpu: PercpuSpace<_, _, Standard> =
        PercpuSpace::new(geometry, &machine, KmChunks(&numbers)).unwrap();
    let mut magazine = percpu.magazine(0).unwrap();
    let write = |object: va_percpu::Offset, bytes: u64| {
        for unit in 0..4 {
            let copy = object.at(Va::new((1 << 30) + unit * u64::from(SIZES.unit)));
            assert_eq!((&numbers).is_zero(copy, bytes), Some(true), "{object} in unit {unit}");
            numbers.written.lock().extend(numbers.words(copy, bytes));
        }
    };
    for _ in 0..3 {
        let mut objects = Vec::new();
        for nth in 0..2000 {
            let bytes = [8, 40, 200, 1000][nth % 4];
            let request = Request::new(bytes, 8);
            let object = if nth % 3 == 0 { percpu.alloc(&request) } else { magazine.alloc(&request) };
            write(object.unwrap(), bytes as u64);
            objects.push(object.unwrap());
        }
        assert!(percpu.stats().chunks > 2);
        percpu.validate().unwrap();
        for (nth, object) in objects.into_iter().enumerate() {
            if nth % 2 == 0 { percpu.free(object).unwrap() } else { magazine.free(object).unwrap() }
        }
        percpu.validate().unwrap();
    }
}

#[test]
fn contiguous_chunks_are_whole_from_the_first_moment() {
    let machine = SimMachine::new(4);
    let numbers = Numbers::default();
    let geometry = Geometry::new(SIZES, Va::new(1 << 30)).unwrap();
    let percpu: PercpuSpace<_, _, Standard> =
        PercpuSpace::new(geometry, &machine, KmChunks(&numbers)).unwrap();
    let first = percpu.alloc(&Request::new(32_768, 4096)).unwrap();
    // A chunk was created for it; the rest of it serves callers that cannot wait.
    let atomic = Request::new(4096, 4096).context(Context::Atomic);
    let mut objects = vec![first];
    while let Ok(object) = percpu.alloc(&atomic) {
        objects.push(object);
    }
    assert_eq!((objects.len(), percpu.stats().chunks), (1 + 8 + 6, 2));
    percpu.validate().unwrap();
    // A caller that could not be served called for the balance, which creates a chunk.
    percpu.balance();
    assert!(percpu.alloc(&atomic).is_ok());
    numbers.left.set(Some(0));
    let error = (0..20).find_map(|_| percpu.alloc(&Request::new(32_768, 4096)).err()).unwrap();
    assert_eq!(error, AllocError::NoChunk { chunks: 3 });
    objects.iter().for_each(|&object| percpu.free(object).unwrap());
    percpu.balance();
    percpu.validate().unwrap();
    assert!(numbers.allocated.lock().len() <= 2);
    assert_eq!(percpu.stats().isolated, 0);
}
