//! Faults of the machine, at every point: an error with numbers, nothing changed, and the same call succeeds
//! afterwards. `va_sim::every_nth` has the rules.
use va_base::{Align, AllocError, Va, VaRange};
use va_block::BlockError;
use va_map::{AreaInfo, AreaRequest, Fill, Kind, Leaves, MapError, MapSpace, Piece, Protection};
use va_sim::every_nth::{Subject, every_nth};
use va_sim::machine::SimMachine;
use va_sim::pages::{Ask, FOREIGN, SimPages};
use va_space::{SpaceError, VmapSpace};

type Map<'a, 'm> = MapSpace<&'m SimMachine, &'a SimPages<'m>>;

const PAGE: u64 = va_base::PAGE_SIZE;

/// Fills a map, and returns the area that calls resize.
type Prepare<'p> = &'p dyn Fn(&Map<'_, '_>) -> Va;

/// A map, and the small mappings that calls made in it: address and pages.
struct Run<'a, 'm> {
    machine: &'m SimMachine,
    pages: &'a SimPages<'m>,
    map: Map<'a, 'm>,
    small: Vec<(Va, u64)>,
    /// The area that calls resize.
    own: Va,
}

/// Creates a map, and prepares it. Every address needs a page of the page table then.
fn fresh<'a, 'm>(machine: &'m SimMachine, pages: &'a SimPages<'m>, prepare: Prepare<'_>) -> Run<'a, 'm> {
    machine.fail_after(u64::MAX, u64::MAX);
    Ask::ALL.iter().for_each(|&what| pages.fail_after(what, u64::MAX));
    let map = new(machine, pages).unwrap();
    let own = prepare(&map);
    pages.drop_tables();
    Run { machine, pages, map, small: Vec::new(), own }
}

fn new<'a, 'm>(machine: &'m SimMachine, pages: &'a SimPages<'m>) -> Result<Map<'a, 'm>, MapError> {
    let window = VaRange::from_pages(0x10, 0x1010).unwrap();
    let space = VmapSpace::new(window, window, machine).map_err(MapError::Space)?;
    MapSpace::new(space, machine, pages).map_err(MapError::Block)
}

impl Subject for Run<'_, '_> {
    /// Without blocks that have no live mapping.
    type Seen = (Vec<AreaInfo>, Vec<Piece>, u64);
    type Error = MapError;
    const KINDS: &'static [&'static str] =
        &["page", "page for a large entry", "table page", "large entry", "slab", "table"];

    fn seen(&self) -> Self::Seen {
        self.map.validate().unwrap();
        assert_eq!(self.pages.faults(), Vec::<String>::new());
        let mut pieces = Vec::new();
        self.map.read(self.map.extent(), |piece| match (pieces.last_mut(), piece) {
            (Some(Piece::Hole { bytes }), Piece::Hole { bytes: more }) => *bytes += more,
            _ => pieces.push(piece),
        });
        let areas = self.map.areas().filter(|area| area.kind != Kind::Block).collect();
        (areas, pieces, self.pages.allocated())
    }

    fn is_of_memory(error: &MapError) -> bool {
        let of_space = |error: &SpaceError| {
            matches!(error, SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }))
        };
        match error {
            MapError::NoPages { wanted, got } => got < wanted,
            MapError::PageTable { wanted, mapped, .. } => mapped < wanted,
            MapError::NoRecords { .. } | MapError::Block(BlockError::NoTable) => true,
            MapError::Space(error) | MapError::Block(BlockError::Space(error)) => of_space(error),
            _ => false,
        }
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn fail(&self, kind: usize, granted: u64, count: u64) {
        match Ask::ALL.get(kind) {
            Some(&what) => self.pages.fail_some(what, granted, count),
            None => self.machine.fail_kind(kind - Ask::ALL.len(), granted, count),
        }
    }

    fn fail_all(&self) {
        self.machine.fail_after(0, 0);
        Ask::ALL.iter().for_each(|&what| self.pages.fail_after(what, 0));
    }

    fn denials(&self) -> u64 {
        self.machine.denials() + self.pages.denials()
    }

    fn end(self) {
        for &(at, pages) in &self.small {
            self.map.vm_unmap_ram(0, at, pages).unwrap();
        }
        for area in self.seen().0 {
            let at = area.range.start();
            if area.kind == Kind::Vmalloc { self.map.vfree(at) } else { self.map.vunmap(at) }.unwrap();
        }
        self.map.unmap_aliases();
        self.map.purge();
        let (areas, pieces, allocated) = self.seen();
        assert!(
            areas.is_empty() && pieces.len() == 1 && allocated == 0,
            "{areas:?}, {pieces:?}, {allocated}"
        );
        assert_eq!(self.pages.mapped(), 0);
        drop(self.map);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

/// Makes a call in a map that was prepared. Returns how many failed for lack of each kind of [`Ask`], and of records.
fn errors(
    name: &str,
    prepare: Prepare<'_>,
    call: &dyn Fn(&mut Run<'_, '_>) -> Result<Va, MapError>,
) -> [u64; 3] {
    let machine = SimMachine::new(2);
    let pages = SimPages::new(&machine, 300);
    // The addresses of an area that failed wait for a flush, so the next one has others.
    let failed = every_nth(name, || fresh(&machine, &pages, prepare), |run| call(run).map(|_| ()));
    // Small entries do as well.
    assert_eq!((failed[1], failed[3]), (0, 0), "{name}");
    [failed[0], failed[2], failed[4] + failed[5]]
}

fn nothing(_: &Map<'_, '_>) -> Va {
    Va::ZERO
}

#[test]
fn sp4_a_map_that_is_not_created_leaves_no_memory() {
    let made = errors("new", &nothing, &|run| new(run.machine, run.pages).map(|map| map.extent().start()));
    assert!(made[2] > 3, "{made:?}");
}

#[test]
fn sp4_a_failed_vmalloc_changes_nothing_at_every_n() {
    let align = Align::from_log2(15).unwrap();
    let large = AreaRequest::new(37 * PAGE - 5).align(align).leaves(Leaves::LargeWherePossible);
    // 37 pages: four entries of eight, two of two, and one; three pages of page tables at most.
    let [pages, tables, records] = errors("vmalloc, large", &nothing, &|run| run.map.vmalloc(0, &large));
    assert!(pages >= 3 && tables >= 6 && records >= 3, "{pages} {tables} {records}");
    let small = AreaRequest::new(70 * PAGE);
    let [pages, tables, records] = errors("vmalloc", &nothing, &|run| run.map.vmalloc(0, &small));
    assert!(pages >= 70 && tables >= 15 && records >= 3, "{pages} {tables} {records}");
}

#[test]
fn sp4_a_failed_vmap_changes_nothing_at_every_n() {
    let scattered: Vec<u64> = (0..40).map(|n| FOREIGN + n * 3 % 7).collect();
    let together: Vec<u64> = (0..70).map(|n| FOREIGN + n).collect();
    for list in [&scattered, &together] {
        let failed = errors("vmap", &nothing, &|run| run.map.vmap(0, list.as_slice(), Protection(1), 0));
        assert!(failed[1] >= 3 && failed[2] >= 3, "{failed:?}");
        let failed = errors("vm_map_ram", &nothing, &|run| {
            let at = run.map.vm_map_ram(0, list.as_slice(), Protection(1))?;
            run.small.push((at, list.len() as u64));
            Ok(at)
        });
        assert!(failed[1] >= 9 && failed[2] >= 3, "{failed:?}");
    }
}

#[test]
fn sp4_a_failed_vrealloc_changes_nothing_at_every_n() {
    let roomy =
        |map: &Map<'_, '_>| map.vmalloc(0, &AreaRequest::new(9 * PAGE).range_bytes(80 * PAGE)).unwrap();
    let alone = |map: &Map<'_, '_>| map.vmalloc(0, &AreaRequest::new(9 * PAGE)).unwrap();
    let stuck = |map: &Map<'_, '_>| {
        let large = AreaRequest::new(9 * PAGE).leaves(Leaves::LargeWherePossible);
        let at = map.vmalloc(0, &large).unwrap();
        map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
        at
    };
    let shrunk = |map: &Map<'_, '_>| {
        let at = map.vmalloc(0, &AreaRequest::new(70 * PAGE)).unwrap();
        map.vrealloc(0, at, 9 * PAGE, Fill::Any).unwrap()
    };
    // Its pages need several pages of the page table when it moves.
    let long = |map: &Map<'_, '_>| {
        let at = map.vmalloc(0, &AreaRequest::new(40 * PAGE)).unwrap();
        map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
        at
    };
    let setups: [(&str, Prepare<'_>); 5] =
        [("roomy", &roomy), ("alone", &alone), ("stuck", &stuck), ("shrunk", &shrunk), ("long", &long)];
    for (name, prepare) in setups {
        let failed = errors(&format!("vrealloc, {name}"), prepare, &|run| {
            run.map.vrealloc(0, run.own, 60 * PAGE, Fill::Zeros)
        });
        // Of large entries, runs supply all but one page.
        let least = if name == "stuck" { 1 } else { 9 };
        assert!(failed[0] >= least && failed[1] >= 3, "{name}: {failed:?}");
        let shrink = errors(&format!("vrealloc, smaller, {name}"), prepare, &|run| {
            run.map.vrealloc(0, run.own, 2 * PAGE, Fill::Zeros)
        });
        assert_eq!(shrink[..2], [0, 0], "{name}");
    }
}

#[test]
fn a_free_that_is_deferred_and_a_purge_need_no_memory() {
    let area = |map: &Map<'_, '_>| map.vmalloc(0, &AreaRequest::new(9 * PAGE)).unwrap();
    let failed = errors("vfree_atomic, run_deferred, purge, shrink", &area, &|run| {
        run.map.vfree_atomic(run.own).unwrap();
        run.map.run_deferred();
        run.map.purge();
        run.map.shrink();
        Ok(run.own)
    });
    assert_eq!(failed, [0; 3]);
}
