//! Faults of the machine, at every point: an error with numbers, nothing changed, and the same call succeeds
//! afterwards.
use va_base::{Align, Va, VaRange};
use va_map::{AreaInfo, AreaRequest, Fill, Kind, Leaves, MapError, MapSpace, Piece, Protection};
use va_sim::machine::SimMachine;
use va_sim::pages::{Ask, FOREIGN, SimPages};
use va_space::VmapSpace;

type Map<'a, 'm> = MapSpace<&'a SimMachine, va_block::config::Standard, &'a SimPages<'m>>;

const PAGE: u64 = va_base::PAGE_SIZE;

/// Returns the state that callers can see, without blocks that have no live mapping.
fn look(map: &Map<'_, '_>, pages: &SimPages<'_>) -> (Vec<AreaInfo>, Vec<Piece>, u64) {
    map.validate().unwrap();
    assert_eq!(pages.faults(), Vec::<String>::new());
    let mut pieces = Vec::new();
    map.read(map.extent(), |piece| match (pieces.last_mut(), piece) {
        (Some(Piece::Hole { bytes }), Piece::Hole { bytes: more }) => *bytes += more,
        _ => pieces.push(piece),
    });
    (map.areas().filter(|area| area.kind != Kind::Block).collect(), pieces, pages.allocated())
}

fn fail_one(machine: &SimMachine, pages: &SimPages<'_>, what: usize, after: u64) {
    match what {
        0 => pages.fail_after(Ask::Pages, after),
        1 => pages.fail_after(Ask::TablePage, after),
        2 => machine.fail_after(after, u64::MAX),
        3 => machine.fail_after(u64::MAX, after),
        4 => pages.fail_after(Ask::HugePage, after),
        _ => pages.fail_after(Ask::HugeLeaf, after),
    }
}

/// Calls with the nth request for one resource failing, for every n, until a failure has no effect.
fn at_every_n(
    what: usize,
    setup: impl Fn(&Map<'_, '_>) -> Va,
    call: impl Fn(&Map<'_, '_>, Va) -> Result<Va, MapError>,
) -> u64 {
    for n in 0.. {
        let machine = SimMachine::new(2);
        let pages = SimPages::new(&machine, 300);
        let window = VaRange::from_pages(0x10, 0x1010).unwrap();
        let space = VmapSpace::new(window, window, &machine).unwrap();
        let map: Map<'_, '_> = MapSpace::new(space, &machine, &pages).unwrap();
        let at = setup(&map);
        pages.drop_tables();
        let before = look(&map, &pages);
        fail_one(&machine, &pages, what, n);
        let got = call(&map, at);
        fail_one(&machine, &pages, what, u64::MAX);
        let Err(error) = got else {
            look(&map, &pages);
            return n;
        };
        assert!(what < 4, "{error}");
        assert_eq!(look(&map, &pages), before, "{error}");
        call(&map, at).unwrap();
        look(&map, &pages);
    }
    unreachable!("some n is not missed")
}

fn big() -> AreaRequest {
    AreaRequest {
        align: Align::from_log2(15).unwrap(),
        leaves: Leaves::LargeWherePossible,
        ..AreaRequest::new(37 * PAGE - 5)
    }
}

#[test]
fn sp4_a_failed_vmalloc_changes_nothing_at_every_n() {
    let call = |map: &Map<'_, '_>, _: Va| map.vmalloc(0, &big());
    // 37 pages: four entries of eight, two of two, and one; three pages of page tables at most.
    let small = |map: &Map<'_, '_>, _: Va| map.vmalloc(0, &AreaRequest::new(70 * PAGE));
    assert_eq!(at_every_n(0, |_| Va::ZERO, call), 1);
    assert_eq!(at_every_n(0, |_| Va::ZERO, small), 70);
    assert!(at_every_n(1, |_| Va::ZERO, call) >= 3);
    assert!(at_every_n(1, |_| Va::ZERO, small) >= 5);
    for what in 2..4 {
        assert!(at_every_n(what, |_| Va::ZERO, call) >= 1, "slabs and tables");
    }
    for what in 4..6 {
        at_every_n(what, |_| Va::ZERO, call);
    }
}

#[test]
fn sp4_a_failed_vmap_changes_nothing_at_every_n() {
    let scattered: Vec<u64> = (0..40).map(|n| FOREIGN + n * 3 % 7).collect();
    let together: Vec<u64> = (0..70).map(|n| FOREIGN + n).collect();
    for list in [&scattered, &together] {
        let vmap = |map: &Map<'_, '_>, _: Va| map.vmap(0, list.as_slice(), Protection(1), 0);
        let ram = |map: &Map<'_, '_>, _: Va| map.vm_map_ram(0, list.as_slice(), Protection(1));
        for what in 1..4 {
            assert!(at_every_n(what, |_| Va::ZERO, vmap) >= 1);
        }
        assert!(at_every_n(1, |_| Va::ZERO, ram) >= 3);
        assert!(at_every_n(3, |_| Va::ZERO, ram) >= 1);
    }
}

#[test]
fn sp4_a_failed_vrealloc_changes_nothing_at_every_n() {
    let grow = |map: &Map<'_, '_>, at: Va| map.vrealloc(0, at, 60 * PAGE, Fill::Zeros);
    let roomy = |map: &Map<'_, '_>| {
        map.vmalloc(0, &AreaRequest { range_bytes: 80 * PAGE, ..AreaRequest::new(9 * PAGE) }).unwrap()
    };
    let alone = |map: &Map<'_, '_>| map.vmalloc(0, &AreaRequest::new(9 * PAGE)).unwrap();
    let stuck = |map: &Map<'_, '_>| {
        let at = map
            .vmalloc(0, &AreaRequest { leaves: Leaves::LargeWherePossible, ..AreaRequest::new(9 * PAGE) })
            .unwrap();
        map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
        at
    };
    let shrunk = |map: &Map<'_, '_>| {
        let at = map.vmalloc(0, &AreaRequest::new(70 * PAGE)).unwrap();
        map.vrealloc(0, at, 9 * PAGE, Fill::Any).unwrap()
    };
    let setups: [&dyn Fn(&Map<'_, '_>) -> Va; 4] = [&roomy, &alone, &stuck, &shrunk];
    for (nth, setup) in setups.into_iter().enumerate() {
        // Of large entries, runs supply all but one page.
        let least = if nth == 2 { 1 } else { 3 };
        assert!(at_every_n(0, setup, grow) >= least, "setup {nth}");
        assert!(at_every_n(1, setup, grow) >= 1, "setup {nth}");
    }
    for what in 2..6 {
        assert!(at_every_n(what, stuck, grow) < 20);
    }
}
