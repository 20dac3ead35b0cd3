use super::*;
use crate::jsonl::{LostLine, Number};
use crate::{Entry, Next, decompress, items};
use std::borrow::Cow;

const ROWS: &str = "0x1000-0x3000 8192 kernel_clone+0x1/0x2 pages=1 vmalloc\n\
    0x3000-0x5000 8192 unpurged vm_area\n\
    0x5000-0x6000 4096 unpurged vm_area\n\
    0x10000-0x18000 32768 pcpu_get_vm_areas+0x0/0x1 vmalloc\n";

fn table() -> Table {
    Table::read(ROWS.as_bytes())
}

/// Takes lines of text.
fn take(live: &mut Live, text: &str) {
    items(text.as_bytes(), |item| {
        live.take(&item);
        Ok(Next::Go)
    })
    .unwrap();
    assert_eq!(live.validate(), Ok(()));
}

fn alloc(addr: u64, size: u64) -> String {
    format!(
        "sh-7 [000] ..... 1.0: alloc_vmap_area: va_start: {addr} size={size} align=1 vstart=0x1000 vend=0xffff000 failed=0\n"
    )
}

fn free(addr: u64) -> String {
    format!("sh-7 [000] ..... 1.0: free_vmap_area_noflush: va_start={addr:#x} nr_lazy=9 nr_lazy_max=99\n")
}

fn purge(areas: u64) -> String {
    format!("kworker-8 [001] ..... 1.0: purge_vmap_area_lazy: start=0x1000 end=0x2000 num_purged={areas}\n")
}

fn mark(text: &str) -> String {
    format!("vmlab-9 [001] ..... 1.0: tracing_mark_write: vmlab vmallocinfo begin {text}\n")
}

const STACK: &str =
    "sh-7 [000] ..... 1.1: <stack trace>\n => alloc_vmap_area\n => vmalloc_noprof\n => mine\n";

/// Start, bytes, laziness and caller of each area.
fn shown(live: &Live) -> Vec<(u64, u64, bool, &str)> {
    let row = |(start, area): (u64, &Area)| {
        (start, area.bytes, area.lazy.is_some(), live.callers()[area.caller as usize].name.as_str())
    };
    live.areas().map(row).collect()
}

#[test]
fn a_purge_returns_the_oldest_lazy_areas() {
    let mut live = Live::new(false);
    live.stand_on(table());
    take(&mut live, &(alloc(0x6000, 0x1000) + &free(0x6000)));
    assert_eq!(live.nr_lazy(), Some((9, 99)));
    take(&mut live, &purge(2));
    assert_eq!(
        shown(&live),
        [
            (0x1000, 0x2000, false, "kernel_clone"),
            (0x6000, 0x1000, true, "task sh"),
            (0x10000, 0x8000, false, "pcpu_get_vm_areas")
        ]
    );
    let Totals { allocs, frees, purges, purged, inferred, .. } = live.totals();
    assert_eq!((allocs, frees, purges, purged, inferred), (1, 1, 1, 2, 0));
    assert_eq!(live.nr_lazy(), None);
    // More than there are.
    take(&mut live, &purge(u64::MAX));
    assert_eq!(live.areas().filter(|(_, area)| area.lazy.is_some()).count(), 0);
}

#[test]
fn lv1_an_area_replaces_what_it_overlaps() {
    let mut live = Live::new(false);
    live.stand_on(table());
    // The lazy areas were purged before the event, and a busy one was freed without an event.
    take(&mut live, &alloc(0x2000, 0x4000));
    assert_eq!(shown(&live)[0], (0x2000, 0x4000, false, "task sh"));
    assert_eq!((live.areas().count(), live.totals().inferred), (2, 1));
    // The purge counts these two, and no other area is lost by it.
    take(&mut live, &(free(0x2000) + &purge(2)));
    assert_eq!(shown(&live)[0], (0x2000, 0x4000, true, "task sh"));
    take(&mut live, &purge(1));
    assert_eq!(live.areas().count(), 1);
    // A free of what was not seen before is counted, and is one of the purged areas.
    take(&mut live, &(free(0x2000) + &alloc(0x4000, 0x1000) + &free(0x4000) + &purge(1)));
    assert_eq!(shown(&live)[0], (0x4000, 0x1000, true, "task sh"));
    take(&mut live, &purge(1));
    for (addr, size) in [(u64::MAX - 5, 9), (0x9000, 0), (0, u64::MAX)] {
        take(&mut live, &alloc(addr, size));
    }
    assert_eq!(live.areas().count(), 1);
    live.areas.insert(0x800, live.areas[&0]);
    assert!(live.validate().unwrap_err().starts_with("LV1"));
}

#[test]
fn lv2_callers_count_their_areas_and_objects() {
    let object = "sh-7 [000] ..... 1.0: percpu_alloc_percpu: call_site=mm_init+0x1/0x2 reserved=0 is_atomic=0 size=16 align=8 base_addr=ff00 off=8 ptr=000a bytes_alloc=64 gfp_flags=X\n";
    let mut live = Live::new(true);
    take(&mut live, &(alloc(0x6000, 0x1000) + STACK + &alloc(0x8000, 0x1000) + object + STACK));
    let of = |live: &Live, name: &str| {
        let caller = live.callers().iter().find(|caller| caller.name == name).unwrap();
        (caller.allocs, caller.frees, caller.alloc_bytes, caller.live, caller.live_bytes)
    };
    assert_eq!(of(&live, "mine"), (1, 0, 0x1000, 1, 0x1000));
    // The stack was that of the object.
    assert_eq!(of(&live, NO_STACK), (1, 0, 0x1000, 1, 0x1000));
    assert_eq!(of(&live, "mm_init"), (1, 0, 64, 1, 64));
    let freed = "sh-7 [000] ..... 1.0: percpu_free_percpu: base_addr=ff00 off=8 ptr=000a\n";
    take(&mut live, &(free(0x6000) + freed + freed));
    assert_eq!(of(&live, "mine"), (1, 1, 0x1000, 0, 0));
    assert_eq!(of(&live, "mm_init"), (1, 1, 64, 0, 0));
    live.callers[0].live = 7;
    assert!(live.validate().unwrap_err().starts_with("LV2"));
}

#[test]
fn a_stack_after_a_loss_is_of_no_event() {
    let mut live = Live::new(true);
    take(&mut live, &alloc(0x6000, 0x1000));
    live.take(&Item::Lost(LostLine { events: Number(3), cpu: Some(Number(0)) }));
    take(&mut live, STACK);
    assert_eq!((shown(&live)[0].3, live.totals().lost), (NO_STACK, 3));
}

#[test]
fn a_table_replaces_the_areas_at_its_mark_and_keeps_the_callers_of_events() {
    let mut live = Live::new(true);
    take(&mut live, &(alloc(0x1000, 0x2000) + STACK + &alloc(0x20000, 0x1000)));
    live.expect(table(), "vmallocinfo begin");
    assert!(live.is_reading());
    // Free of an area in the table, and an allocation that is not in it, while it is read.
    take(&mut live, &(mark("opens") + &free(0x10000) + &alloc(0x30000, 0x1000) + STACK));
    assert_eq!(live.areas().count(), 3, "not yet");
    take(&mut live, &mark("closes"));
    assert!(!live.is_reading());
    assert_eq!(
        shown(&live),
        [
            (0x1000, 0x2000, false, "mine"),
            (0x3000, 0x2000, true, "(lazy)"),
            (0x5000, 0x1000, true, "(lazy)"),
            (0x10000, 0x8000, true, "pcpu_get_vm_areas"),
            (0x30000, 0x1000, false, "mine")
        ]
    );
    assert_eq!((live.totals().allocs, live.totals().frees), (3, 1), "each once");
    // A chunk has the size of the table's.
    take(&mut live, "x-1 [000] ..... 2.0: percpu_create_chunk: base_addr=0000000000040000\n");
    assert_eq!(live.areas[&0x40000].bytes, 0x8000);
}

#[test]
fn there_are_not_too_many_callers() {
    let mut live = Live::new(false);
    for n in 0..CALLERS_MAX as u64 + 9 {
        let happening = Happening::AllocArea {
            va_start: n << 13,
            size: 0x1000,
            align: 1,
            vstart: 0,
            vend: u64::MAX,
            failed: 0,
        };
        let task = Some(Cow::Owned(format!("t{n}")));
        live.take(&Item::Event(Entry { task, pid: None, cpu: None, ns: None, happening }));
    }
    assert_eq!(live.callers().len(), CALLERS_MAX + 1);
    assert_eq!(live.callers().last().map(|caller| (caller.name.as_str(), caller.live)), Some((OTHERS, 9)));
    assert_eq!(live.validate(), Ok(()));
}

#[test]
fn the_kernels_count_of_lazy_pages_is_that_of_its_areas_in_every_shipped_trace() {
    for shipped in &crate::shipped::TRACES {
        let mut live = Live::new(false);
        let mut frees = 0u64;
        items(decompress(shipped.trace).unwrap(), |item| {
            live.take(&item);
            let Item::Event(Entry {
                happening: Happening::FreeArea { nr_lazy: Some(kernel), .. }, ns, ..
            }) = item
            else {
                return Ok(Next::Go);
            };
            frees += 1;
            // Each of the first; some of the many of the longest trace.
            if frees < 1000 || frees.is_multiple_of(97) {
                let lazy = live.areas().filter(|(_, area)| area.lazy.is_some());
                let pages = lazy.map(|(_, area)| area.bytes / 4096).sum::<u64>();
                assert_eq!(pages, kernel, "{} at {ns:?}, free {frees}", shipped.name);
            }
            Ok(Next::Go)
        })
        .unwrap();
        assert!(frees >= 30, "{}", shipped.name);
        assert_eq!(live.validate(), Ok(()));
    }
}

#[test]
fn frees_of_unknown_areas_have_a_limit() {
    let mut live = Live::new(false);
    for at in 0..AREAS_MAX as u64 + 9 {
        live.event(Event::Free { addr: at << 12 }, |_| 0);
    }
    assert_eq!((live.lazy.len(), live.totals().inferred), (AREAS_MAX, AREAS_MAX as u64 + 9));
}
