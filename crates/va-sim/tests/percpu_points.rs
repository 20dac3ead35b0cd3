//! Per-CPU memory, point by point: refusals, spare pages, what becomes of pages that nobody needs.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::Va;
use va_percpu::config::Scan;
use va_percpu::{
    AllocError, ChunkKind, Context, FreeError, Geometry, NewError, Offset, PercpuSpace, Request, Sizes,
};
use va_sim::machine::SimMachine;
use va_sim::percpu::{Op, Rig, SIZES, SimChunks};

fn kinds(rig: &Rig<Scan>) -> Vec<ChunkKind> {
    let mut kinds = Vec::new();
    rig.space.each_chunk(&mut |chunk| kinds.push(chunk.kind));
    kinds
}

/// Fills the first chunk, so that what comes next needs another.
fn beyond_the_first() -> Rig<Scan> {
    let mut rig = Rig::new();
    rig.alloc(&Request::new(20_480, 4)).unwrap();
    rig
}

#[test]
fn whatever_the_backend_refuses_changes_nothing() {
    // Three objects over pages that are not there, each with a hole before it: several populations, one after the other.
    let script = |rig: &mut Rig<Scan>| {
        let mut refused = 0;
        for (size, align) in [(9000, 4), (32_768, 4096), (30_000, 4), (100, 4), (32_768, 4), (8, 8)] {
            match rig.alloc(&Request::new(size, align)) {
                Ok(_) => {}
                Err(AllocError::NotPopulated { pages, .. }) => refused += u32::from(pages > 0),
                Err(AllocError::NoChunk { chunks }) => refused += u32::from(chunks > 0),
                Err(error) => panic!("{error}"),
            }
            rig.space.validate().unwrap();
            rig.apply(Op::Balance);
            rig.space.validate().unwrap();
        }
        refused
    };
    let mut rig = beyond_the_first();
    assert_eq!(script(&mut rig), 0);
    let asked = rig.space.backend().asked();
    assert!(asked > 6, "{asked}");
    for after in 0..asked {
        let mut rig = beyond_the_first();
        rig.space.backend().refuse_after(after);
        let refused = script(&mut rig);
        // The balance may be what is refused.
        assert!(refused > 0 || after + 3 > asked, "{after} of {asked}");
        rig.space.backend().refuse_after(u64::MAX);
        rig.alloc(&Request::new(32_768, 4096)).unwrap();
        rig.space.validate().unwrap();
    }
}

#[test]
fn whatever_the_platform_refuses_changes_nothing() {
    let geometry = Geometry::new(SIZES, Va::new(1 << 36)).unwrap();
    for slabs in 0..40 {
        let machine = SimMachine::new(2);
        machine.refuse_after(slabs, 0);
        let space: Result<PercpuSpace<_, _, Scan>, _> =
            PercpuSpace::new(geometry, &machine, SimChunks::default());
        let space = match space {
            Ok(space) => space,
            Err(NewError::NoMeta) if slabs < 4 => continue,
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
                // What needs no chunk is served still.
                space.alloc(&Request::new(16, 4)).unwrap();
                machine.refuse_after(u64::MAX, 0);
                space.alloc(&Request::new(32_768, 4096)).unwrap();
            }
            None => assert!(slabs >= 20, "{slabs}"),
            other => panic!("{other:?}"),
        }
        space.validate().unwrap();
    }
}

#[test]
fn who_cannot_wait_is_served_from_pages_kept_to_spare() {
    let mut rig = beyond_the_first();
    let atomic = Request::new(4096, 4096).context(Context::Atomic);
    // Nothing is populated but what is used.
    assert!(matches!(rig.alloc(&atomic), Err(AllocError::NoneInReach { bytes: 4096, .. })));
    assert!(rig.space.is_balance_due());
    for round in 0..100 {
        rig.apply(Op::Balance);
        let spare = rig.space.stats().spare_pages;
        assert!((4..=7).contains(&spare), "{spare} in round {round}");
        for _ in 0..4 {
            rig.alloc(&atomic).unwrap();
        }
        rig.space.validate().unwrap();
    }
    let asked = rig.space.backend().asked();
    // Fewer than two to spare: it was called for each time.
    assert!(asked >= 100, "{asked}");
    assert!(rig.space.backend().woken() >= 100);
}

#[test]
fn a_chunk_with_too_much_to_spare_is_depopulated_put_aside_and_used_again() {
    let mut rig = beyond_the_first();
    // Two chunks of sixteen pages.
    let objects: Vec<Offset> = (0..32).map(|_| rig.alloc(&Request::new(4096, 4096)).unwrap()).collect();
    assert_eq!(rig.space.stats().chunks, 3);
    rig.apply(Op::Balance);
    for &object in objects[1..16].iter().chain(&objects[17..32]) {
        rig.space.free(object).unwrap();
    }
    assert!(kinds(&rig).contains(&ChunkKind::ToDepopulate));
    let before = rig.space.backend().populated();
    rig.space.balance();
    rig.space.validate().unwrap();
    assert!(kinds(&rig).contains(&ChunkKind::Sidelined));
    let spare = rig.space.stats().spare_pages;
    assert!(spare >= 4 && rig.space.backend().populated() + 8 < before, "{spare}");
    assert_eq!(rig.space.backend().stale(), 0);

    // Once the others are used up, it is taken from its list before a chunk is made.
    let made = rig.space.stats().chunks_made;
    while kinds(&rig).contains(&ChunkKind::Sidelined) {
        rig.space.alloc(&Request::new(4096, 4096)).unwrap();
    }
    assert_eq!((rig.space.stats().chunks_made, rig.space.stats().isolated), (made, 0));
    rig.space.validate().unwrap();
}

#[test]
fn a_step_of_the_balance_asks_for_one_thing_at_a_time() {
    let mut rig = beyond_the_first();
    let objects: Vec<Offset> =
        (0..160).map(|_| rig.space.alloc(&Request::new(4096, 4096)).unwrap()).collect();
    objects.iter().for_each(|&object| rig.space.free(object).unwrap());
    let backend = rig.space.backend();
    let (mut steps, mut chunks) = (0, backend.chunks());
    assert!(chunks > 9);
    while rig.space.is_balance_due() || steps > 0 {
        let (asked, populated) = (backend.asked(), backend.populated());
        let progress = rig.space.tick();
        rig.space.validate().unwrap();
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
fn what_is_freed_wrongly_is_refused_in_numbers() {
    let rig = beyond_the_first();
    let object = rig.space.alloc(&Request::new(64, 64)).unwrap();
    let inside = Offset::new(object.get().wrapping_add(12));
    let error = rig.space.free(inside).unwrap_err();
    assert_eq!(error, FreeError::NoObject { offset: inside, inside: Some(object) });
    let behind = Offset::new(object.get().wrapping_add(64));
    assert_eq!(rig.space.free(behind), Err(FreeError::NoObject { offset: behind, inside: None }));
    // The static part, where no bitmap is; and no chunk at all.
    assert_eq!(rig.space.free(Offset::new(16)), Err(FreeError::NoChunk { offset: Offset::new(16) }));
    let nowhere = Offset::new(1 << 50);
    assert_eq!(rig.space.free(nowhere), Err(FreeError::NoChunk { offset: nowhere }));
    rig.space.free(object).unwrap();
    assert_eq!(rig.space.free(object), Err(FreeError::NoObject { offset: object, inside: None }));
}

#[test]
fn counts_are_shown_as_linux_shows_them() {
    let sizes = Sizes { fixed: 4096, reserved: 0, ..SIZES };
    let mut rig: Rig<Scan> = Rig::of(sizes);
    let objects: Vec<Offset> =
        [16, 20, 64, 16].map(|size| rig.alloc(&Request::new(size, 4)).unwrap()).to_vec();
    rig.space.free(objects[1]).unwrap();
    let text = rig.space.stats_text().to_string();
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
        \u{20} min_alloc_size      :           16\n\
        \u{20} max_alloc_size      :           64\n\
        \u{20} empty_pop_pages     :            4\n\
        \nPer Chunk Stats:\n\
        ----------------------------------------\n\
        Chunk: <- First Chunk\n\
        \u{20} nr_alloc            :            3\n\
        \u{20} max_alloc_size      :           64\n\
        \u{20} empty_pop_pages     :            4\n\
        \u{20} first_bit           :            4\n\
        \u{20} free_bytes          :        20388\n\
        \u{20} contig_bytes        :        20368\n\
        \u{20} sum_frag            :           20\n\
        \u{20} max_frag            :           20\n\
        \u{20} cur_min_alloc       :           16\n\
        \u{20} cur_med_alloc       :           16\n\
        \u{20} cur_max_alloc       :           64\n\n";
    assert_eq!(text, expected);
}
