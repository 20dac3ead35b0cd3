//! The calls of a space and of a magazine.

use crate::arena::{Arena, ask, fine, pages};
use crate::depths::Depths;
use va_base::{Align, Context, Pages, Request, Va, VaRange};
use va_space::{Area, Config, EarlySpace, Magazine, Purge, VmapSpace};
use va_tree::Congruent;

pub(crate) type Space<C> = VmapSpace<&'static Arena, C>;

fn space<C: Config>(arena: &'static Arena, extent: VaRange) -> &'static Space<C> {
    Box::leak(Box::new(fine(Space::new(extent, extent, arena))))
}

/// Takes a value out of its storage for a call.
fn taken<T>(held: &mut Vec<T>) -> T {
    held.pop().unwrap_or_else(|| panic!("nothing there"))
}

fn atomic(count: u64) -> Request {
    ask(count).context(Context::Atomic)
}

/// Allocates areas of all CPUs, of sizes that pools take and of one that they do not, and one between each two.
fn some<C: Config>(space: &Space<C>, times: u64) -> Vec<Area> {
    let (mut areas, mut between) = (Vec::new(), Vec::new());
    for nth in 0..times {
        for (count, cpu) in [(1, 0), (3, 1), (300, 2), (17, 3)] {
            areas.push(fine(space.alloc(cpu, &ask(count + nth % 3))));
            between.push(fine(space.alloc(cpu, &ask(1))));
        }
    }
    areas.append(&mut between);
    areas
}

fn free_some<C: Config>(space: &Space<C>, times: u64) {
    some(space, times).into_iter().for_each(|area| fine(space.free(area)));
}

pub(crate) fn rows<C: Config>(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 30);
    let place: &'static EarlySpace<&'static Arena, C> = Box::leak(Box::new(EarlySpace::new()));
    table.row("EarlySpace::init", || assert!(place.init(all, all, arena, &[pages(20, 24)]).is_ok()));
    table.row("EarlySpace::get", || assert!(place.get().is_ok()));
    let mut made = None;
    // By value.
    table.row_within("VmapSpace::new", 24 << 10, || made = Space::<C>::new(all, all, arena).ok());
    table.row_within("VmapSpace::with_busy", 24 << 10, || {
        made = Space::<C>::with_busy(all, all, arena, &[pages(20, 24)]).ok();
    });
    assert!(made.is_some());
    let mut empty = Space::<C>::empty();
    table.row("VmapSpace::init", || fine(empty.init(all, all, arena)));
    let mut empty = Space::<C>::empty();
    table.row("VmapSpace::init_with_busy", || {
        // First with an error, so that all is undone; then successfully.
        let twice = [pages(20, 24), pages(20, 24)];
        assert!(empty.init_with_busy(all, all, arena, &twice).is_err());
        fine(empty.init_with_busy(all, all, arena, &twice[1..]));
    });
    let mut empty = Space::<C>::empty();
    table.row("VmapSpace::init_once", || fine(empty.init_once(all, all, arena, &[pages(20, 24)])));
    let space = space::<C>(arena, all);
    let other: &'static EarlySpace<&'static Arena, C> = Box::leak(Box::new(EarlySpace::new()));
    table.row("EarlySpace::ready", || fine(other.ready(space)));
    area_rows(table, space);
    free_rows(table, space);
    purge_rows(table, arena, space);
    magazine_rows(table, space);
    holes_rows(table, space);
    table.row("VmapSpace::stats", || _ = space.stats());
    table.row("VmapSpace::validate", || assert!(space.validate().is_ok()));
    let mut gone = vec![Box::new(fine(Space::<C>::new(all, all, arena)))];
    let _busy = fine(gone[0].alloc_at(pages(1 << 20, 1 << 21)));
    table.row("VmapSpace::drop", || drop(taken(&mut gone)));
    let small = self::space::<C>(arena, pages(16, 80));
    table.row("VmapSpace::alloc, no room", || assert!((0..65).any(|_| small.alloc(0, &ask(1)).is_err())));
    table.row("VmapSpace::alloc, atomic, no room", || assert!(small.alloc(0, &atomic(1)).is_err()));
    let mut magazine = fine(small.magazine(1));
    table.row("Magazine::alloc, no room", || assert!(magazine.alloc(&ask(1)).is_err()));
    table.row("Magazine::try_alloc, no room", || assert!(magazine.try_alloc(&ask(1)).is_err()));
}

fn area_rows<C: Config>(table: &mut Depths, space: &'static Space<C>) {
    let mut areas: Vec<Area> = Vec::with_capacity(64);
    table.row("VmapSpace::supply", || fine(space.supply(1000)));
    table.row("VmapSpace::alloc, first", || areas.push(fine(space.alloc(0, &ask(3)))));
    table.row("VmapSpace::alloc", || areas.push(fine(space.alloc(0, &ask(3)))));
    table.row("VmapSpace::alloc, atomic", || areas.extend(space.alloc(0, &atomic(3)).ok()));
    let aligned = ask(5).aligned(Align::from_log2(24).unwrap_or_default());
    table.row("VmapSpace::alloc, aligned", || areas.push(fine(space.alloc(1, &aligned))));
    let far = 1 << 29;
    table.row("VmapSpace::alloc_at", || _ = fine(space.alloc_at(pages(far, far + 6))));
    let sets = [(0, 8 << 12), (1 << 24, 8 << 12)];
    let congruent = fine(Congruent::new(&sets, 4096));
    table.row("VmapSpace::alloc_highest", || areas.push(fine(space.alloc_highest(&ask(2)))));
    table.row("VmapSpace::alloc_best", || areas.push(fine(space.alloc_best(&ask(2)))));
    table.row("VmapSpace::alloc_owned", || drop(fine(space.alloc_owned(0, &ask(2)))));
    table.row("VmapSpace::alloc_congruent", || _ = fine(space.alloc_congruent(&congruent)));
    table.row("VmapSpace::note", || fine(space.note(Va::from_page(far), 77)));
    table.row("VmapSpace::find", || assert!(space.find(Va::from_page(far)).is_some()));
    let inside = Va::from_page(far + 1);
    table.row("VmapSpace::find_enclosing", || assert!(space.find_enclosing(inside).is_some()));
    table.row("VmapSpace::find_above", || assert!(space.find_above(Va::from_page(far - 1000)).is_some()));
    table.row("VmapSpace::areas", || assert!(space.areas().count() > 4));
    table.row("VmapSpace::areas_from", || assert!(space.areas_from(Va::from_page(far)).count() > 0));
    table.row("VmapSpace::split", || _ = space.split(Va::from_page(far + 3)));
    table.row("VmapSpace::join", || _ = space.join(Va::from_page(far + 3)));
    table.row("VmapSpace::grow_at", || _ = space.grow_at(Va::from_page(far), Pages::new(11)));
    table.row("VmapSpace::resize_at", || _ = space.resize_at(Va::from_page(far), Pages::new(9)));
    table.row("VmapSpace::free_at", || _ = space.free_at(Va::from_page(far)));
    let saved = [(pages(far, far + 6), Some(9)), (pages(far + 9, far + 10), None)];
    table.row("VmapSpace::restore", || fine(space.restore(&saved)));
    saved.iter().for_each(|(range, _)| _ = fine(space.free_at(range.start())));
    areas.into_iter().for_each(|area| fine(space.free(area)));
}

fn free_rows<C: Config>(table: &mut Depths, space: &'static Space<C>) {
    let mut areas: Vec<Area> = (0..6).map(|nth| fine(space.alloc(nth % 4, &ask(3)))).collect();
    table.row("VmapSpace::free", || fine(space.free(taken(&mut areas))));
    table.row("VmapSpace::free_in", || fine(space.free_in(Context::Sleeping, taken(&mut areas))));
    table.row("VmapSpace::free_in, atomic", || fine(space.free_in(Context::Atomic, taken(&mut areas))));
    let mut unused = vec![fine(space.alloc(0, &ask(3)))];
    table.row("VmapSpace::free_unused", || fine(space.free_unused(taken(&mut unused))));
    let mut starts: Vec<Va> = areas.iter().map(Area::start).collect();
    table.row("VmapSpace::free_at_in", || _ = fine(space.free_at_in(Context::Sleeping, taken(&mut starts))));
    table.row("VmapSpace::free_at_in, atomic", || {
        _ = fine(space.free_at_in(Context::Atomic, taken(&mut starts)));
    });
    let mut detached = Vec::new();
    table.row("VmapSpace::detach", || detached.push(fine(space.detach(taken(&mut starts)))));
    table.row("VmapSpace::release", || fine(space.release(Context::Sleeping, taken(&mut detached))));
    let at = fine(space.alloc(0, &ask(3))).start();
    let mut detached = vec![fine(space.detach(at))];
    table.row("VmapSpace::release, atomic", || fine(space.release(Context::Atomic, taken(&mut detached))));
    let at = fine(space.alloc(0, &ask(3))).start();
    let _detached = fine(space.detach(at));
    table.row("VmapSpace::release_at", || _ = fine(space.release_at(Context::Sleeping, at)));
    // Enough that frees purge, slice by slice.
    let mut areas = some(space, 400);
    table.row("VmapSpace::free, many", || areas.drain(..).for_each(|area| fine(space.free(area))));
    assert!(space.stats().purges > 0, "no free purged");
}

fn purge_rows<C: Config>(table: &mut Depths, arena: &'static Arena, space: &'static Space<C>) {
    for how in [Purge::Drain, Purge::Full, Purge::Aliases] {
        free_some(space, 4);
        table.row("VmapSpace::purge", || _ = space.purge(how));
        free_some(space, 4);
        let before = arena.waits();
        table.row("VmapSpace::purge_and_wait", || {
            arena.flush_late();
            _ = space.purge_and_wait(how);
        });
        assert_eq!(arena.waits(), before + 1);
    }
    free_some(space, 4);
    table.row("VmapSpace::purge_aliases", || _ = space.purge_aliases(&[pages(77, 99), pages(777, 999)]));
    free_some(space, 4);
    table.row("VmapSpace::for_each_lazy", || {
        let mut lazy = 0;
        space.for_each_lazy(|range| lazy += range.len_bytes());
        assert!(lazy > 0);
    });
    arena.drain_elsewhere(true);
    for name in ["VmapSpace::tick", "VmapSpace::drain"] {
        free_some(space, 400);
        let before = space.stats().purges;
        table.row(name, || (0..1000).for_each(|_| _ = space.tick()));
        table.row(name, || _ = space.drain());
        assert!(space.stats().purges > before, "nothing was due");
    }
    arena.drain_elsewhere(false);
    space.purge(Purge::Drain);
    table.row("VmapSpace::shrink_index", || _ = space.shrink_index(10_000));
    table.row("VmapSpace::shrink_map", || _ = space.shrink_map(10_000));
    free_some(space, 40);
    space.purge(Purge::Drain);
    table.row("VmapSpace::shrink", || assert!(C::POOL_PAGES_MAX == 0 || space.shrink() > 0));
}

/// A purge that makes so many holes that nodes above nodes of the index split, and one that joins them again.
fn holes_rows<C: Config>(table: &mut Depths, space: &'static Space<C>) {
    let (mut out, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..50_000 {
        out.push(fine(space.alloc(0, &ask(2))));
        kept.push(fine(space.alloc(0, &ask(1))));
    }
    out.into_iter().for_each(|area| fine(space.free(area)));
    table.row("VmapSpace::purge, many holes", || _ = space.purge(Purge::Full));
    // Builds the rows of all alignments, so that the rows of each node's entries are moved, too.
    table.row("VmapSpace::alloc, aligned, many holes", || {
        for log2 in 13..31 {
            let aligned = ask(1).aligned(Align::from_log2(log2).unwrap_or_default());
            fine(space.alloc(0, &aligned).map(|area| kept.push(area)));
        }
    });
    kept.into_iter().for_each(|area| fine(space.free(area)));
    table.row("VmapSpace::purge, fewer holes", || _ = space.purge(Purge::Full));
}

fn detached_rows<C: Config>(
    table: &mut Depths,
    space: &'static Space<C>,
    magazine: &mut Magazine<'static, &'static Arena, C>,
    [first, second]: [Va; 2],
) {
    let mut detached = vec![fine(space.detach(first))];
    table.row("Magazine::release", || fine(magazine.release(taken(&mut detached))));
    let _detached = fine(space.detach(second));
    table.row("Magazine::release_at", || _ = fine(magazine.release_at(second)));
    let third = fine(magazine.alloc(&ask(3))).start();
    table.row("VmapSpace::try_detach_noted", || _ = space.try_detach_noted(third));
    table.row("VmapSpace::idle_pages", || _ = space.idle_pages());
}

fn magazine_rows<C: Config>(table: &mut Depths, space: &'static Space<C>) {
    let mut made: Option<Magazine<'static, &'static Arena, C>> = None;
    table.row("VmapSpace::magazine", || made = space.magazine(2).ok());
    let Some(magazine) = &mut made else { panic!("no magazine") };
    let mut areas = Vec::with_capacity(4000);
    table.row("Magazine::alloc", || areas.extend(magazine.alloc(&ask(4)).ok()));
    table.row("Magazine::alloc, atomic", || areas.extend(magazine.alloc(&atomic(5)).ok()));
    table.row("Magazine::try_alloc", || areas.push(fine(magazine.try_alloc(&ask(7)))));
    // The first brings a row.
    areas.extend([(); 2].map(|()| fine(magazine.try_alloc(&ask(7)))));
    table.row("Magazine::take_noted", || {
        areas.extend(magazine.take_noted(&ask(7), |range| range.start().get()));
    });
    let aligned = ask(5).aligned(Align::from_log2(16).unwrap_or_default());
    table.row("Magazine::try_alloc, aligned", || areas.push(fine(magazine.try_alloc(&aligned))));
    // All sizes, so that lists make room for others and rounds are sealed.
    table.row("Magazine::alloc, many", || {
        areas.extend((0..3000).map(|nth| fine(magazine.alloc(&ask(1 + nth % 70)))));
    });
    table.row("Magazine::free", || fine(magazine.free(taken(&mut areas))));
    table.row("Magazine::free_in", || fine(magazine.free_in(Context::Sleeping, taken(&mut areas))));
    table.row("Magazine::free_in, atomic", || fine(magazine.free_in(Context::Atomic, taken(&mut areas))));
    table.row("Magazine::free_at", || _ = fine(magazine.free_at(taken(&mut areas).start())));
    let mut free_at_in = |context| _ = fine(magazine.free_at_in(context, taken(&mut areas).start()));
    table.row("Magazine::free_at_in", || free_at_in(Context::Sleeping));
    table.row("Magazine::free_at_in, atomic", || free_at_in(Context::Atomic));
    detached_rows(table, space, magazine, [taken(&mut areas).start(), taken(&mut areas).start()]);
    table.row("Magazine::free, many", || areas.drain(..).for_each(|area| fine(magazine.free(area))));
    table.row("Magazine::alloc, again", || {
        areas.extend((0..3000).map(|nth| fine(magazine.alloc(&ask(1 + nth * 7 % 70)))));
    });
    areas.drain(..).for_each(|area| fine(magazine.free(area)));
    table.row("VmapSpace::drain_cpu", || assert!(space.drain_cpu(2).magazines <= 1));
    let area = fine(magazine.alloc(&ask(4)));
    fine(magazine.free(area));
    table.row("Magazine::drain", || magazine.drain());
    let area = fine(magazine.alloc(&ask(4)));
    fine(magazine.free(area));
    table.row("VmapSpace::drain_magazines", || _ = space.drain_magazines());
    let area = fine(magazine.alloc(&ask(4)));
    fine(magazine.free(area));
    table.row("Magazine::drop", || drop(made.take()));
}
