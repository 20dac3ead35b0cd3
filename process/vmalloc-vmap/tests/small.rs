//! Every way through mappings with few pages, and with threads: for Miri, which executes a million instructions in
//! seconds, and for the sanitizers. The other tests do more of each.
//!
//! Under Miri a write is seen through another address after the next call that concerns its frame. So no thread makes such
//! a call for a frame that another writes to.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use core::sync::atomic::Ordering;
use vmalloc_vmap::{Frame, Mappings, Protection, VmapError};

const PAGE: usize = 4096;
const THREADS: usize = 2;
const ROUNDS: usize = if cfg!(miri) { 3 } else { 200 };

fn mappings() -> Mappings {
    Mappings::new(256 << 20).unwrap()
}

#[test]
fn a_ring_shows_what_was_written_through_its_other_half_and_through_the_file() {
    let mappings = mappings();
    let frames = mappings.frames(2).unwrap();
    let ring = frames.vmap(&[0, 1, 0, 1], Protection::ReadWrite).unwrap();
    ring.write(2 * PAGE - 3, b"around").unwrap();
    frames.write(100, b"file").unwrap();
    frames.populate().unwrap();
    let (mut start, mut file, mut end) = ([0; 3], [0; 4], [0; 3]);
    ring.read(0, &mut start).unwrap();
    ring.read(2 * PAGE + 100, &mut file).unwrap();
    frames.read(2 * PAGE - 3, &mut end).unwrap();
    assert_eq!((&start, &file, &end), (b"und", b"file", b"aro"));
    // Bytes, whole words, and both around a word's end.
    ring.write(5, &[9; 13]).unwrap();
    let words = ring.words().unwrap();
    words[3].fetch_add(7, Ordering::Relaxed);
    let view = mappings.vm_map_ram(&[frames.frame(0).unwrap()], Protection::Read).unwrap();
    let mut seen = [0; 32];
    view.read(0, &mut seen).unwrap();
    assert_eq!((seen[4], &seen[5..18], seen[18]), (0, &[9; 13][..], 0));
    assert_eq!(u64::from_ne_bytes(seen[24..].try_into().unwrap()), 7);
    assert_eq!(view.write(0, &[1]), Err(VmapError::ReadOnly));
    assert!(matches!(ring.write(4 * PAGE - 1, &[1, 2]), Err(VmapError::OutOfBounds { .. })));
    let other = Mappings::new(256 << 20).unwrap();
    assert_eq!(
        other.vmap(&[frames.frame(1).unwrap()], Protection::Read).err(),
        Some(VmapError::OtherMappings)
    );
    // A dropped view is not read by its address, and what was freed is zeros when it is allocated again.
    let at = ring.as_ptr().as_ptr().cast_const();
    let mut read = [1; 8];
    assert_eq!(mappings.vread(at.wrapping_add(5), &mut read), 8);
    assert_eq!(read, [9; 8]);
    drop((ring, view));
    assert_eq!(mappings.vread(at, &mut read), 0);
    drop(frames);
    let next = mappings.frames(2).unwrap();
    let view = next.vmap(&[0, 1], Protection::Read).unwrap();
    let mut zeros = [1; 40];
    view.read(0, &mut zeros).unwrap();
    assert!(zeros.iter().all(|&byte| byte == 0));
    assert!(mappings.vmallocinfo().to_string().contains("small.rs"));
}

#[test]
fn addresses_are_reused_after_a_flush_with_the_frames_of_the_next_mapping() {
    let mappings = mappings();
    let frames = mappings.frames(4).unwrap();
    (0..4).for_each(|frame| frames.write(frame * PAGE, &[frame as u8 + 1]).unwrap());
    let mut places = [std::collections::BTreeSet::new(), std::collections::BTreeSet::new()];
    for round in 0..ROUNDS {
        let wanted = [round % 4, (round + 2) % 4, round % 4];
        let list = wanted.map(|nth| frames.frame(nth).unwrap());
        let large = mappings.vmap(&list, Protection::ReadWrite).unwrap();
        let small = mappings.vm_map_ram(&list, Protection::Read).unwrap();
        for (view, places) in [&large, &small].into_iter().zip(&mut places) {
            places.insert(view.as_ptr());
            for (page, nth) in wanted.into_iter().enumerate() {
                let mut byte = [0];
                view.read(page * PAGE, &mut byte).unwrap();
                assert_eq!(usize::from(byte[0]), nth + 1);
            }
        }
        mappings.vm_unmap_ram(small);
        drop(large);
        mappings.flush();
    }
    assert!(places[0].len() < ROUNDS, "no address came again");
    let stats = mappings.stats();
    assert_eq!((stats.mapped_bytes, stats.stale_bytes, stats.frames), (0, 0, 4));
    drop(frames);
    // Mappings that are an argument when their records are freed.
    drop(mappings);
}

#[test]
fn threads_map_write_and_drop_beside_each_other() {
    let mappings = mappings();
    let shared = mappings.frames(1).unwrap();
    let counter = shared.vmap(&[0], Protection::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mappings, counter) = (&mappings, &counter);
            scope.spawn(move || {
                let frames = mappings.frames(2).unwrap();
                for round in 0..ROUNDS {
                    let list = [round % 2, 1 - round % 2, 0].map(|nth| frames.frame(nth).unwrap());
                    let view = match round % 2 {
                        0 => mappings.vmap(&list, Protection::ReadWrite).unwrap(),
                        _ => mappings.vm_map_ram(&list[..2], Protection::ReadWrite).unwrap(),
                    };
                    let value = (thread * ROUNDS + round) as u64 + 1;
                    view.write(8, &value.to_ne_bytes()).unwrap();
                    let mut seen = [0; 8];
                    frames.read((round % 2) * PAGE + 8, &mut seen).unwrap();
                    assert_eq!(u64::from_ne_bytes(seen), value);
                    counter.words().unwrap()[1].fetch_add(1, Ordering::Relaxed);
                    drop(view);
                    if round == 1 {
                        mappings.flush();
                    }
                }
            });
        }
    });
    assert_eq!(counter.words().unwrap()[1].load(Ordering::Relaxed), (THREADS * ROUNDS) as u64);
}

#[test]
fn frames_by_numbers_are_mapped_unmapped_and_freed_once() {
    let mappings = mappings();
    let numbers = mappings.frames(3).unwrap().into_numbers();
    let list = [numbers.start + 2, numbers.start, numbers.start + 2];
    // SAFETY: our own frames, which stay allocated.
    let view = unsafe { mappings.vmap_numbers(&list, Protection::ReadWrite) }.unwrap();
    // SAFETY: our own three pages.
    unsafe { view.write(7) };
    // SAFETY: our own frames.
    let small = unsafe { mappings.vm_map_ram_numbers(&list[..2], Protection::Read) }.unwrap();
    // SAFETY: our own two pages.
    assert_eq!(unsafe { small.read() }, 7);
    // SAFETY: the call fails, since the file has no such frame.
    assert!(unsafe { mappings.vmap_numbers(&[numbers.end + 1000], Protection::Read) }.is_err());
    // SAFETY: the call fails, since no mapping has that kind and address.
    assert!(unsafe { mappings.vunmap_at(small) }.is_err());
    // SAFETY: our own mapping, and no reference to it remains.
    unsafe { mappings.vm_unmap_ram_at(small, 2) }.unwrap();
    // SAFETY: as before.
    unsafe { mappings.vunmap_at(view) }.unwrap();
    // SAFETY: these numbers, and no mapping remains.
    unsafe { mappings.free_frames(numbers.clone()) }.unwrap();
    // SAFETY: the call fails, since they were freed above.
    assert!(matches!(unsafe { mappings.free_frames(numbers) }, Err(VmapError::BadFrame { .. })));
}

#[test]
fn two_threads_that_make_the_mappings_of_the_process_find_one() {
    let made = || core::ptr::from_ref(Mappings::global().unwrap()).addr();
    let both = std::thread::scope(|scope| {
        [scope.spawn(made), scope.spawn(made)].map(|thread| thread.join().unwrap())
    });
    assert_eq!(both[0], both[1]);
    let mappings = Mappings::global().unwrap();
    let frames = mappings.frames(1).unwrap();
    let list: [Frame<'_>; 1] = [frames.frame(0).unwrap()];
    assert_eq!(mappings.vmap(&list, Protection::Read).unwrap().len(), PAGE);
}
