//! Per-CPU memory, one test for each guarantee: failures, spare pages, unused pages.
use va_base::Va;
use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_percpu::{
    AllocError, ChunkKind, Config, Context, FreeError, Geometry, NewError, Offset, PercpuSpace, Progress,
    Request, Sizes,
};
use va_sim::machine::{SimMachine, lockings};
use va_sim::percpu::{Harness, Op, SIZES, SimChunks};

fn kinds(harness: &Harness<Scan>) -> Vec<ChunkKind> {
    let mut kinds = Vec::new();
    harness.space.each_chunk(&mut |chunk| kinds.push(chunk.kind));
    kinds
}

/// Fills the first chunk, so that the next request needs another.
fn beyond_the_first() -> Harness<Scan> {
    filled()
}

fn filled<C: Config>() -> Harness<C> {
    let mut harness = Harness::new();
    harness.alloc(&Request::new(20_480, 4)).unwrap();
    harness
}

/// Fails each chunk and each population of a script in turn.
fn fail_each<C: Config>() {
    // Three objects over unpopulated pages, each with a hole before it: several populations, one after the other.
    let script = |harness: &mut Harness<C>| {
        let mut failed = 0;
        for (size, align) in
            [(9000, 4), (32_768, 4096), (30_000, 4), (100, 4), (32_768, 4), (8, 8), (64, 64), (20, 4)]
        {
            match harness.alloc(&Request::new(size, align)) {
                Ok(_) => {}
                Err(AllocError::NotPopulated { pages, .. }) => failed += u32::from(pages > 0),
                Err(AllocError::NoChunk { chunks }) => failed += u32::from(chunks > 0),
                Err(error) => panic!("{error}"),
            }
            harness.space.validate().unwrap();
            harness.apply(Op::Balance);
            harness.space.validate().unwrap();
        }
        failed
    };
    let mut harness = filled::<C>();
    assert_eq!(script(&mut harness), 0);
    let asked = harness.space.backend().asked();
    assert!(asked > 6, "{asked}");
    for after in 0..asked {
        let mut harness = filled::<C>();
        harness.space.backend().fail_after(after);
        let failed = script(&mut harness);
        // The failed call may be of the balance.
        assert!(failed > 0 || after + 3 > asked, "{after} of {asked}");
        harness.space.backend().fail_after(u64::MAX);
        harness.alloc(&Request::new(32_768, 4096)).unwrap();
        harness.space.validate().unwrap();
    }
}

#[test]
fn a_failed_call_of_the_backend_changes_nothing() {
    fail_each::<Scan>();
    fail_each::<Runs>();
    fail_each::<Standard>();
    fail_each::<Linux612>();
}

/// Fails each slab in turn; the first chunk needs so many.
fn fail_slabs<C: Config>(first: u64) {
    let geometry = Geometry::new(SIZES, Va::new(1 << 36)).unwrap();
    for slabs in 0..40 {
        let machine = SimMachine::new(2);
        machine.fail_after(slabs, 0);
        let space: Result<PercpuSpace<_, _, C>, _> =
            PercpuSpace::new(geometry, &machine, SimChunks::default());
        let space = match space {
            Ok(space) => space,
            Err(NewError::NoMeta) if slabs < first => continue,
            Err(error) => panic!("{error}"),
        };
        // Every chunk holds one of these.
        let mut count = 0;
        let error = loop {
            if count == 64 {
                break None;
            }
            match space.alloc(&Request::new(32_768, 4096)) {
                Ok(_) => count += 1,
                Err(error) => break Some(error),
            }
        };
        space.validate().unwrap();
        match error {
            Some(AllocError::NoMeta { chunks }) => {
                assert_eq!(space.backend().chunks() + 1, chunks as usize);
                // A request that needs no chunk still succeeds.
                space.alloc(&Request::new(16, 4)).unwrap();
                machine.fail_after(u64::MAX, 0);
                space.alloc(&Request::new(32_768, 4096)).unwrap();
            }
            None => assert!(slabs >= 20, "{slabs}"),
            other => panic!("{other:?}"),
        }
        space.validate().unwrap();
    }
}

#[test]
fn a_failed_call_of_the_platform_changes_nothing() {
    fail_slabs::<Scan>(8);
    // Three tables, the lookup, two rows of two kinds; a tree over chunks; rows of slabs and their table.
    fail_slabs::<Runs>(9);
    fail_slabs::<Standard>(12);
}

#[test]
fn an_object_is_put_where_it_must_be_or_nothing_changes() {
    fn check<C: Config>() {
        let mut harness: Harness<C> = filled();
        let object = harness.alloc(&Request::new(4096, 4096)).unwrap();
        let behind = Offset::new(object.get().wrapping_add(4096 * 3 + 8));
        harness.space.alloc_at(behind, 5000).unwrap();
        harness.space.validate().unwrap();
        let before = harness.space.stats();
        let error = harness.space.alloc_at(Offset::new(behind.get().wrapping_add(4)), 4).unwrap_err();
        assert!(matches!(error, AllocError::NotFree { bytes: 4, .. }), "{error}");
        // Past its end, in no chunk, not at a word.
        for (offset, size) in
            [(behind.get().wrapping_sub(8), 12), (1 << 50, 4), (behind.get().wrapping_sub(2), 2)]
        {
            assert!(harness.space.alloc_at(Offset::new(offset), size).is_err());
        }
        harness.space.backend().fail_after(0);
        let far = Offset::new(behind.get().wrapping_add(3 * 4096));
        let error = harness.space.alloc_at(far, 4).unwrap_err();
        assert!(matches!(error, AllocError::NotPopulated { pages: 1, .. }), "{error}");
        assert_eq!(before, harness.space.stats());
        harness.space.free(behind).unwrap();
        harness.space.validate().unwrap();
    }
    check::<Scan>();
    check::<Runs>();
    check::<Standard>();
}

#[test]
fn an_object_is_put_into_bytes_of_slabs_that_no_object_has() {
    let harness: Harness<Standard> = filled();
    let alloc = |size| harness.space.alloc(&Request::new(size, 8)).unwrap();
    // A slab that stays without an object.
    let idle = alloc(24);
    harness.space.free(idle).unwrap();
    harness.space.alloc_at(idle, 24).unwrap();
    // A slot between two in use.
    let [first, second, third] = [(); 3].map(|()| alloc(8));
    harness.space.free(second).unwrap();
    assert!(matches!(harness.space.alloc_at(second, 12), Err(AllocError::NotFree { bytes: 12, .. })));
    harness.space.validate().unwrap();
    harness.space.alloc_at(second, 8).unwrap();
    harness.space.validate().unwrap();
    [idle, first, second, third].iter().for_each(|&object| harness.space.free(object).unwrap());
    harness.space.validate().unwrap();
}

/// Creates wholly free chunks, and one with too many spare pages; an object is placed after so many steps of the
/// balance.
fn place_after<C: Config>(steps: u32) -> bool {
    let harness: Harness<C> = filled();
    let page = Request::new(4096, 4096);
    let objects: Vec<Offset> = (0..64).map(|_| harness.space.alloc(&page).unwrap()).collect();
    for &object in objects[17..].iter().chain(&objects[1..8]) {
        harness.space.free(object).unwrap();
    }
    for _ in 0..steps {
        let _more = harness.space.tick();
    }
    let (mut placed, ended) = (Vec::new(), harness.space.tick() == va_percpu::Progress::Done);
    for &object in objects[17..].iter().step_by(5).chain(&objects[2..4]) {
        let chunk = harness.space.find(object);
        match harness.space.alloc_at(object, 64) {
            Ok(()) => {
                let found = harness.space.find(object).unwrap();
                let there = harness.space.backend().is_populated(found.base, found.off..found.off + 64);
                assert_eq!(there, Some(true), "{object} after {steps} steps");
                placed.push(object);
            }
            Err(error) => {
                assert!(matches!(error, AllocError::NotFree { .. }) && chunk.is_none(), "{error}");
                assert!(matches!(harness.space.free(object), Err(FreeError::NoChunk { .. })));
            }
        }
        harness.space.validate().unwrap();
    }
    harness.space.balance();
    harness.space.validate().unwrap();
    assert_eq!(harness.space.stats().populated_pages, 6 + harness.space.backend().populated() as u64);
    assert_eq!(harness.space.backend().stale(), 0);
    placed.iter().for_each(|&object| harness.space.free(object).unwrap());
    harness.space.balance();
    harness.space.validate().unwrap();
    assert_eq!(harness.space.stats().live, 11);
    ended
}

#[test]
fn pc7_an_object_is_placed_between_any_two_steps_of_the_balance_or_not_at_all() {
    fn check<C: Config>() {
        let steps = (0..60).find(|&steps| place_after::<C>(steps)).unwrap();
        assert!(steps > 10, "{steps}");
    }
    check::<Runs>();
    check::<Standard>();
    check::<Scan>();
    check::<Linux612>();
}

#[test]
fn a_chunk_in_which_an_object_is_placed_is_depopulated_no_further() {
    fn check<C: Config>() {
        let harness: Harness<C> = filled();
        let page = Request::new(4096, 4096);
        let objects: Vec<Offset> = (0..32).map(|_| harness.space.alloc(&page).unwrap()).collect();
        // One chunk is wholly free, and every other page of the one before it.
        let odd: Vec<Offset> = objects[..16].iter().copied().skip(1).step_by(2).collect();
        objects[16..].iter().chain(&odd).for_each(|&object| harness.space.free(object).unwrap());
        let is_populated = |&object: &Offset| {
            let found = harness.space.find(object).unwrap();
            harness.space.backend().is_populated(found.base, found.off..found.off + 4096) == Some(true)
        };
        assert_eq!(odd.iter().filter(|&object| is_populated(object)).count(), 8);
        while odd.iter().all(is_populated) {
            assert_eq!(harness.space.tick(), va_percpu::Progress::More);
        }
        let rest: Vec<Offset> = odd.into_iter().filter(is_populated).collect();
        assert_eq!(rest.len(), 7);
        harness.space.alloc_at(rest[0], 64).unwrap();
        harness.space.balance();
        assert!(rest.iter().all(is_populated));
        harness.space.validate().unwrap();
    }
    check::<Runs>();
    check::<Standard>();
    check::<Scan>();
    check::<Linux612>();
}

#[test]
fn cc3_empty_slabs_release_their_chunks() {
    let mut harness: Harness<Standard> = filled();
    let objects: Vec<Offset> =
        (0..40_000).map(|nth| harness.space.alloc(&Request::new(4 + nth % 61, 4)).unwrap()).collect();
    harness.space.validate().unwrap();
    let stats = harness.space.stats();
    assert!(stats.slabs > 400 && stats.chunks > 20, "{stats:?}");
    // All free bytes of slabs are in the last ones.
    assert!(stats.slab_free_bytes < 64 * 4 * 17 * 9, "{stats:?}");
    objects.iter().for_each(|&object| harness.space.free(object).unwrap());
    harness.space.validate().unwrap();
    assert!((1..=16).contains(&harness.space.stats().slabs), "{:?}", harness.space.stats());
    harness.space.balance();
    let stats = harness.space.stats();
    assert_eq!(stats.slabs, 0);
    // The first, one wholly free, and one that became so while others were depopulated.
    assert!(stats.chunks <= 3, "{stats:?}");
    // A repeated pair creates and destroys none.
    let _object = harness.alloc(&Request::new(4096, 4096));
    let asked = harness.space.backend().asked();
    for _ in 0..1000 {
        let object = harness.space.alloc(&Request::new(16, 16)).unwrap();
        harness.space.free(object).unwrap();
    }
    assert!(harness.space.backend().asked() <= asked + 2);
    harness.space.validate().unwrap();
}

#[test]
fn a_request_that_fails_after_pages_were_taken_for_it_calls_for_the_balance() {
    let mut harness: Harness<Runs> = filled();
    harness.apply(Op::Balance);
    assert!(!harness.space.is_balance_due());
    harness.space.backend().fail_after(0);
    let error = harness.alloc(&Request::new(32_768, 4096)).unwrap_err();
    assert_eq!(error, AllocError::NotPopulated { page: 4, pages: 4 });
    assert!(harness.space.is_balance_due());
}

#[test]
fn an_idle_slab_that_a_request_frees_calls_for_the_balance() {
    let harness: Harness<Standard> = filled();
    let page = Request::new(4096, 4096);
    let objects: Vec<Offset> = (0..5 * 16).map(|_| harness.space.alloc(&page).unwrap()).collect();
    let pages = |chunk: usize, pages: &[usize]| {
        pages.iter().for_each(|&at| harness.space.free(objects[chunk * 16 + at]).unwrap());
    };
    pages(0, &[0, 2, 4, 6]);
    (1..4).for_each(|chunk| pages(chunk, &[2, 4, 6]));
    harness.space.balance();
    // In the first hole is a slab, which is all that its chunk lacks to be depopulated.
    let small = harness.space.alloc(&Request::new(64, 64)).unwrap();
    assert_eq!(small, objects[0]);
    harness.space.free(small).unwrap();
    assert!(!harness.space.is_balance_due());
    let woken = harness.space.backend().woken();
    // Longer than any hole.
    harness.space.alloc(&Request::new(32_768, 4096)).unwrap();
    let mut waits = false;
    harness.space.each_chunk(&mut |chunk| waits |= chunk.kind == ChunkKind::ToDepopulate);
    assert!(waits && harness.space.is_balance_due());
    assert_eq!(harness.space.backend().woken(), woken + 1);
}

#[test]
fn cc2_what_is_freed_inside_a_slab_is_reported() {
    let harness: Harness<Standard> = filled();
    let [first, second] = [(); 2].map(|()| harness.space.alloc(&Request::new(24, 8)).unwrap());
    assert_eq!(second.get().wrapping_sub(first.get()), 24);
    let inside = Offset::new(first.get().wrapping_add(8));
    assert_eq!(harness.space.free(inside), Err(FreeError::NoObject { offset: inside, inside: Some(first) }));
    harness.space.free(first).unwrap();
    assert_eq!(harness.space.free(first), Err(FreeError::NoObject { offset: first, inside: None }));
    assert_eq!(harness.space.free(inside), Err(FreeError::NoObject { offset: inside, inside: None }));
    harness.space.free(second).unwrap();
    harness.space.validate().unwrap();
}

#[test]
fn an_atomic_request_uses_the_spare_pages() {
    let mut harness = beyond_the_first();
    let atomic = Request::new(4096, 4096).context(Context::Atomic);
    // Only pages in use are populated.
    assert!(matches!(harness.alloc(&atomic), Err(AllocError::NoneInReach { bytes: 4096, .. })));
    assert!(harness.space.is_balance_due());
    for round in 0..100 {
        harness.apply(Op::Balance);
        let spare = harness.space.stats().spare_pages;
        assert!((4..=7).contains(&spare), "{spare} in round {round}");
        for _ in 0..4 {
            harness.alloc(&atomic).unwrap();
        }
        harness.space.validate().unwrap();
    }
    let asked = harness.space.backend().asked();
    // Fewer than two spare pages: the balance was called for each time.
    assert!(asked >= 100, "{asked}");
    assert!(harness.space.backend().woken() >= 100);
}

#[test]
fn a_chunk_with_too_much_to_spare_is_depopulated_put_aside_and_used_again() {
    let mut harness = beyond_the_first();
    // Two chunks of sixteen pages.
    let objects: Vec<Offset> = (0..32).map(|_| harness.alloc(&Request::new(4096, 4096)).unwrap()).collect();
    assert_eq!(harness.space.stats().chunks, 3);
    harness.apply(Op::Balance);
    for &object in objects[1..16].iter().chain(&objects[17..32]) {
        harness.space.free(object).unwrap();
    }
    assert!(kinds(&harness).contains(&ChunkKind::ToDepopulate));
    let before = harness.space.backend().populated();
    harness.space.balance();
    harness.space.validate().unwrap();
    assert!(kinds(&harness).contains(&ChunkKind::Sidelined));
    let spare = harness.space.stats().spare_pages;
    assert!(spare >= 4 && harness.space.backend().populated() + 8 < before, "{spare}");
    assert_eq!(harness.space.backend().stale(), 0);

    // Once the others are used up, it is removed from its list before a chunk is created.
    let made = harness.space.stats().chunks_made;
    while kinds(&harness).contains(&ChunkKind::Sidelined) {
        harness.space.alloc(&Request::new(4096, 4096)).unwrap();
    }
    assert_eq!((harness.space.stats().chunks_made, harness.space.stats().isolated), (made, 0));
    harness.space.validate().unwrap();
}

#[test]
fn a_step_of_the_balance_asks_for_one_thing_at_a_time() {
    let harness = beyond_the_first();
    let objects: Vec<Offset> =
        (0..160).map(|_| harness.space.alloc(&Request::new(4096, 4096)).unwrap()).collect();
    objects.iter().for_each(|&object| harness.space.free(object).unwrap());
    let backend = harness.space.backend();
    let (mut steps, mut chunks) = (0, backend.chunks());
    assert!(chunks > 9);
    while harness.space.is_balance_due() || steps > 0 {
        let (asked, populated) = (backend.asked(), backend.populated());
        let progress = harness.space.tick();
        harness.space.validate().unwrap();
        assert!(backend.asked() <= asked + 1 && backend.chunks() + 1 >= chunks);
        assert!(backend.populated() + 16 >= populated);
        chunks = backend.chunks();
        steps += 1;
        if progress == va_percpu::Progress::Done {
            break;
        }
    }
    assert!(steps > 20 && chunks <= 2, "{steps} steps leave {chunks}");
}

#[test]
fn the_balance_leaves_a_free_chunk_without_pages_only_if_no_other_is_free() {
    fn populated_of_free<C: Config>() -> Vec<u32> {
        let harness: Harness<C> = filled();
        let page = Request::new(4096, 4096);
        let objects: Vec<Offset> = (0..32).map(|_| harness.space.alloc(&page).unwrap()).collect();
        objects.iter().for_each(|&object| harness.space.free(object).unwrap());
        harness.space.balance();
        harness.space.validate().unwrap();
        let mut populated = Vec::new();
        harness.space.each_chunk(&mut |chunk| {
            if chunk.free_bytes == SIZES.unit {
                populated.push(chunk.populated_pages);
            }
        });
        populated.sort_unstable();
        populated
    }
    assert_eq!([populated_of_free::<Standard>(), populated_of_free::<Runs>()], [[16], [16]]);
    // As in Linux.
    assert_eq!(populated_of_free::<Linux612>(), [0, 16]);
}

#[test]
fn creating_a_space_or_dropping_it_takes_no_lock() {
    let before = lockings();
    let harness = Harness::<Standard>::new();
    assert_eq!(lockings(), before);
    harness.space.alloc(&Request::new(30_000, 8)).unwrap();
    let before = lockings();
    drop(harness);
    assert_eq!(lockings(), before);
}

#[test]
fn what_is_freed_wrongly_is_an_error_with_numbers() {
    let harness = beyond_the_first();
    let object = harness.space.alloc(&Request::new(64, 64)).unwrap();
    let inside = Offset::new(object.get().wrapping_add(12));
    let error = harness.space.free(inside).unwrap_err();
    assert_eq!(error, FreeError::NoObject { offset: inside, inside: Some(object) });
    let behind = Offset::new(object.get().wrapping_add(64));
    assert_eq!(harness.space.free(behind), Err(FreeError::NoObject { offset: behind, inside: None }));
    // The static part, where no bitmap is; and no chunk at all.
    assert_eq!(harness.space.free(Offset::new(16)), Err(FreeError::NoChunk { offset: Offset::new(16) }));
    let nowhere = Offset::new(1 << 50);
    assert_eq!(harness.space.free(nowhere), Err(FreeError::NoChunk { offset: nowhere }));
    harness.space.free(object).unwrap();
    assert_eq!(harness.space.free(object), Err(FreeError::NoObject { offset: object, inside: None }));
}

#[test]
fn every_object_of_the_first_chunk_is_freed_wherever_it_begins() {
    let sizes = Sizes { fixed: 0, reserved: 0, dynamic: 60 << 10, ..SIZES };
    // At a page, which need not be a multiple of the atom.
    for page in 0..17 {
        let geometry = Geometry::new(sizes, Va::new((1 << 36) + page * 4096)).unwrap();
        let space: PercpuSpace<_, _, Runs> =
            PercpuSpace::new(geometry, SimMachine::new(2), SimChunks::default()).unwrap();
        space.validate().unwrap();
        let objects = [(); 20].map(|()| space.alloc(&Request::new(4096, 4096)).unwrap());
        objects.into_iter().for_each(|object| space.free(object).unwrap());
        space.validate().unwrap();
    }
}

#[test]
fn counts_are_shown_as_linux_shows_them() {
    let sizes = Sizes { fixed: 4096, reserved: 0, ..SIZES };
    let mut harness: Harness<Scan> = Harness::of(sizes);
    let objects: Vec<Offset> =
        [12, 20, 64, 16].map(|size| harness.alloc(&Request::new(size, 4)).unwrap()).to_vec();
    harness.space.free(objects[1]).unwrap();
    let text = harness.space.stats_text().to_string();
    let expected = "Percpu Memory Statistics\nAllocation Info:\n\
        ----------------------------------------\n\
        \u{20} unit_size           :        65536\n\
        \u{20} static_size         :         4096\n\
        \u{20} reserved_size       :            0\n\
        \u{20} dyn_size            :        20484\n\
        \u{20} atom_size           :        65536\n\
        \u{20} alloc_size          :       131072\n\
        \nGlobal Stats:\n\
        ----------------------------------------\n\
        \u{20} nr_alloc            :            4\n\
        \u{20} nr_dealloc          :            1\n\
        \u{20} nr_cur_alloc        :            3\n\
        \u{20} nr_max_alloc        :            4\n\
        \u{20} nr_chunks           :            1\n\
        \u{20} nr_max_chunks       :            1\n\
        \u{20} min_alloc_size      :           12\n\
        \u{20} max_alloc_size      :           64\n\
        \u{20} empty_pop_pages     :            4\n\
        \nPer Chunk Stats:\n\
        ----------------------------------------\n\
        Chunk: <- First Chunk\n\
        \u{20} nr_alloc            :            3\n\
        \u{20} max_alloc_size      :           64\n\
        \u{20} empty_pop_pages     :            4\n\
        \u{20} first_bit           :            3\n\
        \u{20} free_bytes          :        20392\n\
        \u{20} contig_bytes        :        20372\n\
        \u{20} sum_frag            :           20\n\
        \u{20} max_frag            :           20\n\
        \u{20} cur_min_alloc       :           12\n\
        \u{20} cur_med_alloc       :           16\n\
        \u{20} cur_max_alloc       :           64\n\n";
    assert_eq!(text, expected);
}

#[test]
fn the_first_chunk_stays_though_all_of_its_unit_is_free() {
    fn check<C: Config>(object: u32, backwards: bool) {
        const UNIT: u32 = 32 << 10;
        // Nothing is before or after the dynamic section.
        let sizes = Sizes { unit: UNIT, fixed: 0, reserved: 0, dynamic: UNIT, atom: UNIT, ..SIZES };
        let harness: Harness<C> = Harness::of(sizes);
        let request = Request::new(object as usize, 4096);
        let count = 3 * UNIT / object;
        let mut objects: Vec<Offset> = (0..count).map(|_| harness.space.alloc(&request).unwrap()).collect();
        assert_eq!((harness.space.stats().chunks, objects[0]), (3, Offset::new(0)));
        if backwards {
            objects.reverse();
        }
        // The chunk that is emptied last is at the front of the wholly free ones.
        objects.iter().for_each(|&object| harness.space.free(object).unwrap());
        harness.space.balance();
        harness.space.validate().unwrap();
        assert_eq!(harness.space.find(Offset::new(0)).map(|found| found.chunk), Some(0));
        // One more chunk, whose pages are the spare ones.
        assert!(harness.space.backend().chunks() <= 1, "{:?}", harness.space.stats());
        harness.space.alloc_at(Offset::new(0), 4096).unwrap();
        harness.space.free(Offset::new(0)).unwrap();
        harness.space.validate().unwrap();
    }
    for (object, backwards) in [(4096, false), (4096, true), (32 << 10, false), (32 << 10, true)] {
        check::<Standard>(object, backwards);
        check::<Runs>(object, backwards);
        check::<Scan>(object, backwards);
        check::<Linux612>(object, backwards);
    }
}

/// While the balance destroys chunks step by step, the counts of one call go together.
#[test]
fn counts_agree_while_chunks_are_destroyed() {
    let space = Harness::<Runs>::new().space;
    let own = space.stats();
    let whole = Request::new(32 << 10, 4096);
    let objects: Vec<_> = (0..12).map(|_| space.alloc(&whole).unwrap()).collect();
    objects[2..].iter().for_each(|&object| space.free(object).unwrap());
    let (unit, first) = (u64::from(SIZES.unit), own.free_bytes);
    let mut leaving = 0;
    loop {
        let stats = space.stats();
        let others = stats.populated_pages - stats.chunk_pages;
        assert_eq!(others, own.populated_pages - own.chunk_pages, "{stats:?}");
        let live = 2 * whole.parts().0 as u64;
        assert_eq!(stats.free_bytes + live, first + u64::from(stats.chunks - 1) * unit, "{stats:?}");
        let mut listed = 0;
        space.each_chunk(&mut |chunk| listed += u32::from(chunk.kind != ChunkKind::Reserved));
        assert_eq!(listed + stats.leaving, stats.chunks, "{stats:?}");
        leaving = leaving.max(stats.leaving);
        if space.tick() == Progress::Done {
            break;
        }
    }
    assert_eq!((leaving, space.stats().leaving), (1, 0));
}
