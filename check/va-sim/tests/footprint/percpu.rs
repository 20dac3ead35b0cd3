//! The calls of per-CPU memory.

use crate::arena::{Arena, fine, pages};
use crate::depths::Depths;
use std::fmt::Write;
use va_base::{Va, VaRange};
use va_percpu::vm::{Groups, Mapper, VmChunks};
use va_percpu::{
    Backend, BackendError, Config, Context, EarlyPercpu, Geometry, Offset, PercpuSpace, Place, Progress,
    Request, Sizes,
};
use va_sim::percpu::SimChunks;
use va_space::VmapSpace;

/// Maps nothing: its own stack is not the core's.
struct Nothing;

impl Mapper for Nothing {
    fn map(&self, _cpu: u32, _range: VaRange) -> Result<(), BackendError> {
        Ok(())
    }

    fn unmap(&self, _cpu: u32, _range: VaRange) {}

    fn flush(&self, _range: VaRange) {}

    /// Does nothing: there is no memory.
    fn zero(&self, _range: VaRange) {}
}

/// Discards its input.
struct Sink;

impl Write for Sink {
    fn write_str(&mut self, _text: &str) -> std::fmt::Result {
        Ok(())
    }
}

fn geometry() -> Geometry {
    fine(Geometry::new(va_sim::percpu::SIZES, Va::new(1 << 36)))
}

pub(crate) fn rows<C: Config>(table: &mut Depths) {
    let (arena, geometry) = (Arena::leaked(), geometry());
    let place: &'static EarlyPercpu<&'static Arena, SimChunks, C> = Box::leak(Box::new(EarlyPercpu::new()));
    table.row("EarlyPercpu::init", || assert!(place.init(geometry, arena, SimChunks::default()).is_ok()));
    table.row("EarlyPercpu::get", || assert!(place.get().is_ok()));
    let mut made = None;
    // By value: two kilobytes, where it is created and where it is moved.
    table.row_within("PercpuSpace::new", 12 << 10, || {
        made = PercpuSpace::<_, _, C>::new(geometry, arena, SimChunks::default()).ok();
    });
    let Some(space) = &made else { panic!("no space") };
    call_rows(table, space);
    let mut made = made.map(Box::new);
    table.row("PercpuSpace::drop", || drop(made.take()));
}

/// The calls that may call a backend, where chunks are areas of a space.
pub(crate) fn rows_of_areas<C: Config>(table: &mut Depths) {
    type Space = VmapSpace<&'static Arena>;
    let arena = Arena::leaked();
    let sizes = Sizes { units: 4, ..va_sim::percpu::SIZES };
    let geometry = fine(Geometry::new(sizes, Va::new(1 << 36)));
    let all = pages(16, 1 << 30);
    let space: &'static Space = Box::leak(Box::new(fine(Space::new(all, all, arena))));
    let unit = u64::from(geometry.unit_bytes());
    let (areas, units) = ([(0, 2 * unit), (1 << 24, 2 * unit)], [0, unit, 1 << 24, (1 << 24) + unit]);
    let groups = Groups { areas: &areas, units: &units };
    let chunks = fine(VmChunks::new(space, groups, geometry.sizes().atom, Nothing));
    call_rows(table, &fine(PercpuSpace::<_, _, C>::new(geometry, arena, chunks)));
}

fn call_rows<B: Backend, C: Config>(table: &mut Depths, space: &PercpuSpace<&'static Arena, B, C>) {
    let mut objects: Vec<Offset> = Vec::with_capacity(4096);
    let shapes = || (0..2000).map(|nth| (1 + nth % 70 + nth % 7 * 1000, 1 << (nth % 11)));
    table.row("PercpuSpace::alloc", || {
        objects.extend(shapes().map(|(size, align)| fine(space.alloc(&Request::new(size, align)))));
    });
    table.row("PercpuSpace::alloc, atomic", || {
        let atomic = |(size, align)| space.alloc(&Request::new(size, align).context(Context::Atomic)).ok();
        objects.extend(shapes().filter_map(atomic));
    });
    table.row("PercpuSpace::alloc, reserved", || {
        objects.extend(space.alloc(&Request::new(8, 8).place(Place::Reserved)).ok());
    });
    table.row("PercpuSpace::free", || objects.drain(1000..).for_each(|object| fine(space.free(object))));
    table.row("PercpuSpace::find", || assert!(space.find(objects[7]).is_some()));
    table.row("PercpuSpace::alloc_at", || _ = space.alloc_at(objects[7], 64));
    table.row("PercpuSpace::free, all", || objects.drain(..).for_each(|object| fine(space.free(object))));
    table.row("PercpuSpace::is_balance_due", || assert!(space.is_balance_due()));
    table.row("PercpuSpace::tick", || {
        assert_eq!(space.tick(), Progress::More);
        while space.tick() == Progress::More {}
    });
    objects.extend(shapes().map(|(size, align)| fine(space.alloc(&Request::new(size, align)))));
    objects.drain(..).for_each(|object| fine(space.free(object)));
    table.row("PercpuSpace::balance", || assert!(space.balance() > 1));
    table.row("PercpuSpace::magazine_bytes", || assert!(C::CACHE_BYTES == 0 || space.magazine_bytes() > 0));
    let mut magazine = None;
    table.row("PercpuSpace::magazine", || magazine = Some(fine(space.magazine(0))));
    let Some(mut magazine) = magazine else { panic!("no magazine") };
    table.row("Magazine::alloc", || {
        objects.extend(shapes().map(|(size, align)| fine(magazine.alloc(&Request::new(size, align)))));
    });
    table.row("Magazine::alloc, atomic", || {
        let atomic = |(size, align)| magazine.alloc(&Request::new(size, align).context(Context::Atomic)).ok();
        objects.extend(shapes().filter_map(atomic));
    });
    table.row("Magazine::free", || objects.drain(..).for_each(|object| fine(magazine.free(object))));
    table.row("PercpuSpace::each_magazine", || {
        let mut magazines = 0;
        space.each_magazine(&mut |_| magazines += 1);
        assert_eq!(magazines, 1);
    });
    table.row("PercpuSpace::drain_cpu", || {
        assert_eq!(space.drain_cpu(0).objects > 0, C::CACHE_BYTES > 0);
    });
    for (size, align) in shapes() {
        objects.push(fine(magazine.alloc(&Request::new(size, align))));
    }
    objects.drain(..).for_each(|object| fine(magazine.free(object)));
    table.row("PercpuSpace::drain_magazines", || {
        assert_eq!(space.drain_magazines().objects > 0, C::CACHE_BYTES > 0);
    });
    objects.extend((0..100).map(|_| fine(magazine.alloc(&Request::new(16, 8)))));
    objects.drain(..).for_each(|object| fine(magazine.free(object)));
    let mut magazine = Some(magazine);
    table.row("Magazine::drop", || drop(magazine.take()));
    table.row("PercpuSpace::shared_locks", || assert!(space.shared_locks() > 0));
    table.row("PercpuSpace::stats", || _ = space.stats());
    table.row("PercpuSpace::each_chunk", || {
        let mut chunks = 0;
        space.each_chunk(&mut |_| chunks += 1);
        assert!(chunks > 0);
    });
    table.row("PercpuSpace::stats_text", || fine(write!(Sink, "{}", space.stats_text())));
    table.row("PercpuSpace::populated_bytes", || assert!(space.populated_bytes() > 0));
    table.row("PercpuSpace::validate", || assert!(space.validate().is_ok()));
}
