//! Tests of mappings against the system's own list, and with a failure of each system call.

use super::machine::MapMachine;
use super::os::{MapOs, VmapCall};
use super::shim::Shim;
use super::state::{Core, LADDER, List, NUMBERS};
use super::table::Table;
use super::{Frame, MappingStats, Mappings, PAGE_BYTES, Protection, VmapError};
use core::panic::Location;
use core::ptr::with_exposed_provenance;
use std::collections::BTreeMap;
use va_base::{Meta, Pages, VaRange};
use va_map::MapSpace;
use va_space::VmapSpace;
use va_tree::FreeIndex;
use vmalloc_os::os::Errno;

const RANGE: usize = 256 << 20;

fn core(shim: &Shim) -> Core<Shim> {
    Core::new(shim.clone(), RANGE).unwrap()
}

fn list(frames: &[u64]) -> List<impl Fn(usize) -> u64 + '_> {
    List { count: frames.len(), number: |place: usize| frames[place] }
}

/// Returns the number of the system's mappings in a range.
fn system_count(range: VaRange) -> u64 {
    vmalloc_os::os::shim::mappings_in(range.start().get() as usize, range.end().get() as usize) as u64
}

fn check(core: &Core<Shim>) {
    core.map.validate().unwrap();
    assert_eq!(core.table().check(), Ok(()));
    assert_eq!(core.table().counts().count, system_count(core.map.extent()));
}

fn bytes_at(at: usize, place: usize) -> u8 {
    // SAFETY: mapped by the calling test.
    unsafe { with_exposed_provenance::<u8>(at + place).read_volatile() }
}

#[test]
fn vw1_vw2_views_show_their_frames_and_the_system_counts_as_we_do() {
    let shim = Shim::default();
    let core = core(&shim);
    let first = core.take_frames(40).unwrap();
    for frame in 0..40 {
        let byte = [frame as u8 + 1];
        core.table().os.write(core.table().file, (first + frame) * PAGE_BYTES as u64 + 9, &byte).unwrap();
    }
    let mut seed = 5u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut views: BTreeMap<usize, (Vec<u64>, bool)> = BTreeMap::new();
    for round in 0..600 {
        if views.len() > 12 || (next(3) == 0 && !views.is_empty()) {
            let nth = next(views.len() as u64) as usize;
            let (&at, _) = views.iter().nth(nth).unwrap();
            let (frames, small) = views.remove(&at).unwrap();
            core.unmap(at, frames.len(), small);
        } else {
            // Runs of frames, and repeated frames.
            let mut frames = Vec::new();
            for _ in 0..1 + next(4) {
                let (from, len) = (next(36), 1 + next(4));
                frames.extend((from..from + len).map(|frame| first + frame));
            }
            let small = next(2) == 0;
            let access = if next(2) == 0 { Protection::Read } else { Protection::ReadWrite };
            let at = match small {
                true => core.vm_map_ram(&list(&frames), access),
                false => core.vmap(&list(&frames), access, Location::caller()),
            };
            views.insert(at.unwrap(), (frames, small));
        }
        if next(25) == 0 {
            core.map.purge();
        }
        for (&at, (frames, _)) in &views {
            let all = frames.iter().enumerate();
            for (page, frame) in all {
                assert_eq!(bytes_at(at, page * PAGE_BYTES + 9), (frame - first) as u8 + 1, "round {round}");
            }
        }
        check(&core);
    }
    for (at, (frames, small)) in views {
        core.unmap(at, frames.len(), small);
    }
    core.map.purge();
    check(&core);
    assert_eq!((core.table().counts().count, core.table().counts().stale_pages), (1, 0));
    core.free_frames(first, 40);
    assert_eq!(core.numbers.lock().free.free_pages().get(), NUMBERS);
}

#[test]
fn sp2_what_was_unmapped_is_reused_after_a_call_that_covers_it() {
    let shim = Shim::default();
    let core = core(&shim);
    let first = core.take_frames(1).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..63 {
        let at = core.vmap(&list(&[first]), Protection::Read, Location::caller()).unwrap();
        assert!(seen.insert(at), "{at:#x} came again, and nothing was flushed");
        core.unmap(at, 1, false);
    }
    assert_eq!(shim.calls(VmapCall::Unmap), 0);
    core.map.purge();
    // All of them, with the guard pages between them: one call.
    assert_eq!((shim.calls(VmapCall::Unmap), core.table().counts().flush_calls), (1, 1));
    let again = core.vmap(&list(&[first]), Protection::Read, Location::caller()).unwrap();
    assert!(seen.contains(&again));
    // After a failed flush no address is reused.
    core.unmap(again, 1, false);
    shim.fail(VmapCall::Unmap, 0);
    core.map.purge();
    for _ in 0..100 {
        let at = core.vmap(&list(&[first]), Protection::Read, Location::caller()).unwrap();
        assert_ne!(at, again);
        core.unmap(at, 1, false);
    }
    check(&core);
    shim.fail(VmapCall::Unmap, u64::MAX);
    core.map.purge();
    core.map.purge();
    check(&core);
    assert_eq!(core.table().counts().stale_pages, 0);
    // Flushes also happen without a purge, at a limit of stale runs.
    let calls = shim.calls(VmapCall::Unmap);
    for _ in 0..200 {
        let at = core.vmap(&list(&[first]), Protection::Read, Location::caller()).unwrap();
        core.unmap(at, 1, false);
    }
    assert_eq!(shim.calls(VmapCall::Unmap) - calls, 3);
}

#[test]
fn sp4_each_call_that_fails_at_every_n_changes_nothing() {
    for call in [VmapCall::Reserve, VmapCall::Words, VmapCall::Create] {
        let shim = Shim::default();
        shim.fail(call, 0);
        for errno in [Errno(libc::EMFILE), Errno::NOMEM] {
            shim.fail_with(errno);
            let failed = Core::new(shim.clone(), RANGE).err();
            assert_eq!(failed, Some(VmapError::CallFailed { call, errno }));
        }
        shim.fail(call, u64::MAX);
        drop(super::tests::core(&shim));
    }
    let shim = Shim::default();
    let core = core(&shim);
    shim.fail(VmapCall::Size, 0);
    let failed = VmapError::CallFailed { call: VmapCall::Size, errno: Errno::NOMEM };
    assert_eq!(core.take_frames(3), Err(failed));
    shim.fail(VmapCall::Size, u64::MAX);
    assert_eq!(core.numbers.lock().free.free_pages().get(), NUMBERS);
    let first = core.take_frames(9).unwrap();
    let frames = [0, 3, 4, 8, 2].map(|frame| first + frame);
    for small in [false, true] {
        for n in 0.. {
            // Two failures each, since a failed call is tried again.
            shim.fail(VmapCall::Map, n);
            let got = match small {
                true => core.vm_map_ram(&list(&frames), Protection::Read),
                false => core.vmap(&list(&frames), Protection::Read, Location::caller()),
            };
            shim.fail(VmapCall::Map, u64::MAX);
            check(&core);
            match got {
                Ok(at) => {
                    core.unmap(at, 5, small);
                    assert_eq!(n, 4, "four runs are four calls");
                    break;
                }
                Err(error) => {
                    let errno = Errno::NOMEM;
                    assert_eq!(error, VmapError::CallFailed { call: VmapCall::Map, errno });
                    assert_eq!(core.map.stats().foreign_pages, Pages::new(0));
                }
            }
        }
    }
    // Frames whose memory cannot be released are not reused.
    shim.fail(VmapCall::Punch, 0);
    core.free_frames(first, 9);
    assert_eq!(core.numbers.lock().free.free_pages().get(), NUMBERS - 9);
    check(&core);
}

#[test]
fn the_budget_of_mappings_is_a_typed_error_after_stale_ones_are_released() {
    let shim = Shim::default();
    let mut core = core(&shim);
    // As if the process might have 400 mappings.
    let table = Table::new(shim.clone(), &LADDER, RANGE, 100).unwrap();
    let machine = core.base.0;
    let place = machine.host.alloc_place::<Table<Shim>>().unwrap();
    // SAFETY: allocated for a table.
    unsafe { place.write(table) };
    // SAFETY: written above; the host outlives this test's use.
    let table = Meta::new(unsafe { place.as_ref() });
    let space = VmapSpace::new(table.extent(), table.extent(), MapMachine { table, ..machine }).unwrap();
    *core.map = MapSpace::new(space, MapMachine { table, ..machine }, table).unwrap();
    core.table().os.size(table.file, 64 * PAGE_BYTES as u64).unwrap();
    let mut views = Vec::new();
    let error = loop {
        match core.vmap(&list(&[7]), Protection::Read, Location::caller()) {
            Ok(at) => views.push(at),
            Err(error) => break error,
        }
    };
    // A mapping and the guard page after it, each time.
    assert_eq!((views.len(), table.counts().count), (50, 100));
    assert!(matches!(error, VmapError::TooManyMappings { limit: 100, wanted } if wanted > 100), "{error}");
    assert_eq!(table.counts().count, system_count(table.extent()));
    views.drain(10..).for_each(|at| core.unmap(at, 1, false));
    assert_eq!(table.counts().count, 100, "they wait");
    for _ in 0..40 {
        views.push(core.vmap(&list(&[7]), Protection::Read, Location::caller()).unwrap());
    }
    // A mapping of any number of consecutive frames counts once.
    views.drain(..30).for_each(|at| core.unmap(at, 1, false));
    let long: Vec<u64> = (0..60).collect();
    views.push(core.vmap(&list(&long), Protection::Read, Location::caller()).unwrap());
    assert_eq!(table.counts().count, system_count(table.extent()));
}

#[test]
fn views_alias_and_copies_are_exact_to_the_byte() {
    let mappings = Mappings::new(RANGE).unwrap();
    let frames = mappings.frames(2).unwrap();
    let ring = frames.vmap(&[0, 1, 0, 1], Protection::ReadWrite).unwrap();
    let half = ring.len() / 2;
    let mut model = vec![0u8; half];
    for (round, (offset, len)) in
        [(0, 8192), (1, 1), (7, 2), (8, 8), (3, 21), (8190, 5), (8185, 7), (100, 0)].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + round + 1) as u8).collect();
        ring.write(offset, &bytes).unwrap();
        (0..len).for_each(|n| model[(offset + n) % half] = bytes[n]);
        for start in [0, half, 3] {
            let mut seen = vec![0u8; half];
            ring.read(start, &mut seen).unwrap();
            assert!((0..half).all(|n| seen[n] == model[(start + n) % half]), "round {round}, from {start}");
        }
        let mut file = vec![0u8; half];
        frames.read(0, &mut file).unwrap();
        assert!(file == model);
    }
    assert_eq!(ring.words().unwrap().len(), half / 4);
    let len = ring.len();
    assert_eq!(ring.write(len - 1, &[1, 2]), Err(VmapError::OutOfBounds { offset: len - 1, bytes: 2, len }));
    assert!(ring.read(usize::MAX, &mut [0]).is_err() && frames.read(half, &mut [0]).is_err());
    let view = mappings.vmap(&[frames.frame(1).unwrap()], Protection::Read).unwrap();
    assert_eq!(
        (view.write(0, &[1]), view.words().err()),
        (Err(VmapError::ReadOnly), Some(VmapError::ReadOnly))
    );
    let other = Mappings::new(RANGE).unwrap();
    assert_eq!(
        other.vmap(&[frames.frame(1).unwrap()], Protection::Read).err(),
        Some(VmapError::OtherMappings)
    );
    assert_eq!(frames.vmap(&[2], Protection::Read).err(), Some(VmapError::BadFrame { frame: 2, frames: 2 }));
    assert_eq!(frames.vmap(&[], Protection::Read).err(), Some(VmapError::Nothing));
    assert_eq!((mappings.frames(0).err(), frames.frame(2).is_some()), (Some(VmapError::Nothing), false));
    frames.populate().unwrap();
    // Freed frames release their memory: the next frames are zeros.
    drop((ring, view));
    drop(frames);
    let next = mappings.frames(2).unwrap();
    let mut zeros = vec![1; half];
    next.read(0, &mut zeros).unwrap();
    assert!(zeros.iter().all(|&byte| byte == 0));
}

#[test]
fn reading_by_address_is_zeros_in_holes_and_in_what_was_dropped() {
    let mappings = Mappings::new(RANGE).unwrap();
    let frames = mappings.frames(3).unwrap();
    frames.write(0, &[5; 3 * PAGE_BYTES]).unwrap();
    let all: Vec<Frame<'_>> = (0..3).map(|nth| frames.frame(nth).unwrap()).collect();
    let view = mappings.vmap(&all, Protection::Read).unwrap();
    let at = view.as_ptr().as_ptr().cast_const();
    let mut to = vec![1; 4 * PAGE_BYTES];
    // From inside the second page, across the guard page.
    let from = at.wrapping_add(PAGE_BYTES + 10);
    assert_eq!(mappings.vread(from, &mut to), 2 * PAGE_BYTES - 10);
    let (seen, zeros) = to.split_at(2 * PAGE_BYTES - 10);
    assert!(seen.iter().all(|&byte| byte == 5) && zeros.iter().all(|&byte| byte == 0));
    let small = mappings.vm_map_ram(&all[..1], Protection::Read).unwrap();
    assert_eq!(mappings.vread(small.as_ptr().as_ptr(), &mut to[..9]), 9);
    let info = mappings.vmallocinfo().to_string();
    assert!(info.contains(&format!(" {}:", file!())) && info.contains(" pages=3 vmap\n"), "{info}");
    assert!(info.contains(" vm_map_ram\n"), "{info}");
    // A dropped view is still mapped, but not readable here.
    drop((view, small));
    assert_eq!(mappings.vread(at, &mut to), 0);
    assert!(mappings.stats().stale_bytes > 0 && to.iter().all(|&byte| byte == 0));
    assert_eq!(mappings.vread(core::ptr::null(), &mut to), 0);
    assert_eq!(mappings.vread(usize::MAX as *const u8, &mut to), 0);
    mappings.flush();
    assert_eq!((mappings.stats().stale_bytes, mappings.stats().system_mappings), (0, 1));
}

#[test]
fn a_child_sees_what_was_mapped_and_changes_nothing() {
    let mappings = Mappings::new(RANGE).unwrap();
    let frames = mappings.frames(1).unwrap();
    let view = frames.vmap(&[0], Protection::ReadWrite).unwrap();
    view.write(0, b"parent").unwrap();
    // SAFETY: the child calls the functions under test and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut seen = [0; 6];
        let read = view.read(0, &mut seen).is_ok() && &seen == b"parent";
        let failed = frames.vmap(&[0], Protection::Read).err() == Some(VmapError::OtherProcess);
        let none = mappings.frames(1).err() == Some(VmapError::OtherProcess);
        let empty = is_empty_in_a_child(&mappings, view.as_ptr().as_ptr());
        drop(view);
        drop(frames);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(read && failed && none && empty))) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    let mut seen = [0; 6];
    view.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"parent", "the child's drop punched no hole");
}

/// Returns true if a child reads nothing of its parent's mapping at an address. It takes no lock.
fn is_empty_in_a_child(mappings: &Mappings, at: *const u8) -> bool {
    let mut to = [7; 6];
    let read = mappings.vread(at, &mut to);
    (read, to) == (0, [0; 6])
        && mappings.stats() == MappingStats::default()
        && mappings.vmallocinfo().to_string().is_empty()
}

/// Forks while other threads hold every lock.
#[test]
fn a_child_waits_for_no_lock_of_its_parent() {
    let mappings = Mappings::new(RANGE).unwrap();
    let frames = mappings.frames(3).unwrap();
    let view = frames.vmap(&[0], Protection::ReadWrite).unwrap();
    let numbers = mappings.0.numbers.lock();
    let table = mappings.0.table().hold();
    // SAFETY: the child calls the functions under test and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A signal ends a child that waits forever.
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(120) };
        let empty = is_empty_in_a_child(&mappings, view.as_ptr().as_ptr());
        mappings.flush();
        let none = mappings.frames(1).err() == Some(VmapError::OtherProcess);
        drop(view);
        drop(frames);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(empty && none))) };
    }
    drop((numbers, table));
    let mut status = 0;
    // SAFETY: waits for the child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert_eq!(mappings.stats().frames, 3);
}

/// Forks while other threads create the global mappings of the process.
#[test]
fn a_child_has_mappings_of_the_process_whichever_thread_was_making_them() {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..3).map(|_| scope.spawn(|| core::ptr::from_ref(Mappings::global().unwrap()).addr())).collect();
        // SAFETY: the child calls the functions under test and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: sets a timer of this process.
            unsafe { libc::alarm(120) };
            let there = Mappings::global().is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!there)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        let global = core::ptr::from_ref(Mappings::global().unwrap()).addr();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), global, "there is one");
        }
    });
}

#[test]
fn many_threads_map_and_drop() {
    let mappings = Mappings::new(RANGE).unwrap();
    let frames = mappings.frames(16).unwrap();
    for frame in 0..16 {
        frames.write(frame * PAGE_BYTES, &[frame as u8]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (frames, mappings) = (&frames, &mappings);
            scope.spawn(move || {
                for round in 0..300usize {
                    let wanted: Vec<usize> =
                        (0..1 + round % 5).map(|n| (thread + n * 3 + round) % 16).collect();
                    let view = match round % 2 {
                        0 => frames.vmap(&wanted, Protection::Read).unwrap(),
                        _ => {
                            let list: Vec<_> = wanted.iter().map(|&n| frames.frame(n).unwrap()).collect();
                            mappings.vm_map_ram(&list, Protection::Read).unwrap()
                        }
                    };
                    for (page, frame) in wanted.iter().enumerate() {
                        let mut byte = [99];
                        view.read(page * PAGE_BYTES, &mut byte).unwrap();
                        assert_eq!(usize::from(byte[0]), *frame);
                    }
                }
            });
        }
    });
    assert_eq!(mappings.stats().mapped_bytes, 0);
    mappings.0.map.validate().unwrap();
    assert_eq!(mappings.0.table().check(), Ok(()));
}
