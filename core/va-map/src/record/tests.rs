use super::*;
use std::collections::BTreeMap;
use std::vec::Vec;
use va_base::LimitedHeap;

/// Allocates slabs of at most a page.
fn heap() -> LimitedHeap {
    let heap = LimitedHeap::new();
    heap.limit(PIECE_BYTES);
    heap
}

fn entry(page: u64) -> Entry {
    Entry { page, pages: page + 1, ..Entry::EMPTY }
}

fn reserve(records: &mut Records, heap: &LimitedHeap) -> Result<(), ()> {
    while let Err(missing) = records.reserve() {
        let memory = missing.alloc(heap).ok_or(())?;
        assert_eq!(records.supply(memory).free(heap), 0);
    }
    Ok(())
}

fn add(records: &mut Records, heap: &LimitedHeap, page: u64) {
    assert_eq!(reserve(records, heap), Ok(()));
    records.add(entry(page));
}

#[test]
fn rd1_records_are_found_after_every_add_and_removal() {
    let (heap, mut records, mut model) = (heap(), Records::new(), BTreeMap::new());
    let mut seed = 7u64;
    for round in 0..6000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Few pages at first and at last, so that pages are repeated and buckets are split and merged; page 0 is one of
        // them.
        let page = (seed >> 40) % (40 + round.min(6000 - round) / 4);
        if model.remove(&page).is_some() {
            assert_eq!(records.take(page, Kind::Vmalloc, false), Ok(entry(page)));
        } else {
            assert_eq!(records.take(page, Kind::Vmalloc, false), Err(NotTaken::None));
            add(&mut records, &heap, page);
            model.insert(page, ());
        }
        records.excess(true).free(&heap);
        if round % 16 == 0 {
            records.validate().unwrap();
        }
        assert_eq!(records.live(), model.len());
    }
    assert!(model.keys().all(|&page| records.get(page) == Some(entry(page))));
    assert!(records.take(*model.keys().next().unwrap(), Kind::Ram, false).is_err());
    records.end(&heap);
    assert_eq!(heap.slabs(), 0);
}

#[test]
fn rd2_a_reservation_has_room_and_a_failure_changes_nothing() {
    let (heap, mut records) = (heap(), Records::new());
    heap.fail_after(0);
    assert_eq!(reserve(&mut records, &heap), Err(()));
    assert_eq!((records.get(3), records.reserved()), (None, 0));
    heap.fail_after(u64::MAX);
    reserve(&mut records, &heap).unwrap();
    assert_eq!(records.reserved(), 1);
    heap.fail_after(0);
    let room = records.slots.piece_len();
    (1..room).for_each(|_| reserve(&mut records, &heap).unwrap());
    assert_eq!(reserve(&mut records, &heap), Err(()));
    records.cancel();
    reserve(&mut records, &heap).unwrap();
    (0..room as u64).for_each(|page| records.add(entry(page)));
    records.validate().unwrap();
    // Removed for a while, a record retains its room, and no memory is freed.
    let taken = records.take(5, Kind::Vmalloc, true).unwrap();
    assert_eq!(reserve(&mut records, &heap), Err(()));
    assert_eq!(records.excess(false).free(&heap), 0);
    records.add(taken);
    records.validate().unwrap();
    records.reserved += 1;
    assert_eq!(records.validate().unwrap_err().rule, "RD2");
    records.reserved -= 1;
    let (one, other) = (records.bucket(7), records.bucket(8));
    assert_ne!(one, other);
    let (first, second) = (records.head(one), records.head(other));
    records.set_head(one, second);
    records.set_head(other, first);
    assert_eq!(records.validate().unwrap_err().rule, "RD1");
}

#[test]
fn rd2_memory_goes_back_as_areas_go_and_all_of_it_when_asked() {
    let (heap, mut records) = (heap(), Records::new());
    (0..5000).for_each(|page| add(&mut records, &heap, page * 7));
    let most = heap.slabs();
    for page in 0..4990 {
        records.take(page * 7, Kind::Vmalloc, false).unwrap();
        records.excess(true).free(&heap);
    }
    records.validate().unwrap();
    assert!(heap.slabs() * 20 < most, "{} of {most} pieces are left", heap.slabs());
    while records.compact() {}
    while records.excess(false).free(&heap) > 0 {}
    records.validate().unwrap();
    assert!((4990..5000).all(|page| records.get(page * 7).is_some()));
    for page in 4990..5000 {
        records.take(page * 7, Kind::Vmalloc, false).unwrap();
    }
    while records.compact() {}
    while records.excess(false).free(&heap) > 0 {}
    assert_eq!(heap.slabs(), 0);
    add(&mut records, &heap, 3);
    records.validate().unwrap();
    records.end(&heap);
}

#[test]
fn rd2_a_full_page_of_buckets_has_no_bucket_outside() {
    let (heap, mut records) = (heap(), Records::new());
    // A bucket remains of a record that went, so the next needs none.
    add(&mut records, &heap, 0);
    records.take(0, Kind::Vmalloc, false).unwrap();
    for page in 0.. {
        add(&mut records, &heap, page);
        if records.live() == records.heads.piece_len() {
            break;
        }
    }
    assert_eq!((records.heads.len(), records.validate()), (records.live(), Ok(())));
    assert!((0..records.live() as u64).all(|page| records.get(page) == Some(entry(page))));
    records.end(&heap);
}

#[test]
fn rd2_buckets_go_back_as_fast_as_areas() {
    let (heap, mut records) = (heap(), Records::new());
    (0..5000).for_each(|page| add(&mut records, &heap, page));
    for page in 0..5000 {
        records.take(page, Kind::Vmalloc, false).unwrap();
        records.excess(true).free(&heap);
        if page % 100 == 0 {
            records.validate().unwrap();
        }
    }
    // A page of each array, so that the next area needs no memory.
    assert_eq!((heap.slabs(), records.validate()), (2, Ok(())));
    records.end(&heap);
}

#[test]
fn rd3_deferred_frees_come_out_once_each() {
    let (heap, mut records) = (heap(), Records::new());
    (0..100).for_each(|page| add(&mut records, &heap, page));
    records.change(9, |entry| entry.kind = Kind::Vmap);
    for page in (0..100).step_by(3) {
        let wrong = NotTaken::Other(Entry { kind: Kind::Vmap, ..entry(9) });
        assert_eq!(records.defer(page), if page == 9 { Err(wrong) } else { Ok(()) });
    }
    assert_eq!(records.defer(6), Err(NotTaken::Deferred(entry(6))));
    assert_eq!(records.take(6, Kind::Vmalloc, false), Err(NotTaken::Deferred(entry(6))));
    assert_eq!(records.defer(200), Err(NotTaken::None));
    assert_eq!((records.get(6), records.deferred()), (Some(entry(6)), 33));
    // Records move while the list exists.
    (0..100).filter(|page| page % 3 == 1).for_each(|page| {
        records.take(page, Kind::Vmalloc, false).unwrap();
    });
    records.validate().unwrap();
    let mut taken: Vec<u64> =
        core::iter::from_fn(|| records.take_deferred()).map(|entry| entry.page).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..100).step_by(3).filter(|&page| page != 9).collect::<Vec<u64>>());
    records.validate().unwrap();
    records.defer(2).unwrap();
    records.deferred = None;
    assert_eq!(records.validate().unwrap_err().rule, "RD3");
    (records.deferred, records.deferred_count) = (Some(2), 2);
    assert_eq!(records.validate().unwrap_err().rule, "RD3");
}

#[test]
fn rd1_no_call_moves_more_than_a_few_records() {
    for step in [1, 7, 512, 1 << 18] {
        let (heap, mut records) = (heap(), Records::new());
        let mut longest = 0;
        for page in 0..20_000 {
            add(&mut records, &heap, page * step);
            let mut number = records.head(records.bucket(page * step));
            let mut length = 0;
            while number != NO_NUMBER {
                (number, length) = (records.next(number), length + 1);
            }
            longest = longest.max(length);
        }
        assert!(longest <= 12, "a chain of {longest} records with pages {step} apart");
        records.end(&heap);
    }
}

#[test]
fn no_call_takes_more_than_a_few_steps_at_a_million_and_a_half_areas() {
    const AREAS: u64 = 1_500_000;
    // A step is some ten instructions, an allocation some thousand: far below the 200,000 that a call may take.
    const STEPS_MAX: u64 = 64;
    const PIECES_MAX: u64 = 8;
    let (heap, mut records) = (heap(), Records::new());
    let (mut steps, mut pieces) = (0, 0);
    let mut most = |records: &Records| {
        let now = (records.steps.get(), heap.slabs());
        assert!(now.0 - steps <= STEPS_MAX, "{} steps with {} areas", now.0 - steps, records.live());
        assert!(now.1.abs_diff(pieces) <= PIECES_MAX, "{} pieces", now.1.abs_diff(pieces));
        (steps, pieces) = now;
    };
    // Adjacent areas of different sizes, as a space allocates them.
    let page = |nth: u64| 16 + nth * 2 + nth % 7 * (AREAS * 2);
    for nth in 0..AREAS {
        add(&mut records, &heap, page(nth));
        most(&records);
    }
    for nth in 0..AREAS {
        assert!(records.take(page(nth), Kind::Vmalloc, false).is_ok());
        records.excess(true).free(&heap);
        most(&records);
    }
    records.end(&heap);
    assert_eq!((records.live(), heap.slabs()), (0, 0));
}

#[test]
fn rd1_a_chain_with_a_loop_or_a_record_that_is_gone_is_found() {
    let heap = heap();
    let broken = |spoil: fn(&mut Records)| {
        let mut records = Records::new();
        (0..20).for_each(|page| add(&mut records, &heap, page));
        records.validate().unwrap();
        spoil(&mut records);
        let found = records.validate().unwrap_err();
        records.end(&heap);
        (found.rule, found.expected, found.actual)
    };
    fn filled(records: &Records) -> u32 {
        (0..).find(|&bucket| records.head(bucket) != NO_NUMBER).unwrap()
    }
    let looped =
        broken(|records| records.set_next(records.head(filled(records)), records.head(filled(records))));
    assert_eq!(looped.0, "RD1");
    // The last record is not counted, and still in its chain.
    assert_eq!(broken(|records| records.live -= 1).0, "RD1");
    // One that is in no chain.
    let lost =
        broken(|records| records.set_head(filled(records), records.next(records.head(filled(records)))));
    assert_eq!(lost, ("RD1", 20, 19));
    // More buckets than twice the records, with no record in a wrong one.
    assert_eq!(broken(|records| (0..22).for_each(|_| records.split())).0, "RD2");
}
