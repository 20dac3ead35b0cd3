//! Tests of addresses that are released.

use super::tests::{MIB, alloc, bytes, end, free, is_readable, layout, make, plan};
use super::*;
use vmalloc_os::os::shim::Shim;

/// Maps a page at an address, which must be free; the address.
fn map(at: usize) {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let place = core::ptr::with_exposed_provenance_mut(at);
    // SAFETY: where nothing is mapped.
    let mapped = unsafe { libc::mmap(place, PAGE_BYTES, access, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    assert_eq!(mapped, place, "{}", std::io::Error::last_os_error());
}

#[test]
fn hd1_hd3_hg2_what_is_released_is_others_and_areas_stay_as_they_are() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let hard = make(&shim, plan(wall));
        let sizes = [100, 5000, 40_000, MIB, 3 * MIB];
        let mut live: Vec<_> = sizes.map(|size| (alloc(&hard, size), size)).to_vec();
        let gone: Vec<_> = sizes.map(|size| alloc(&hard, size)).to_vec();
        for &(at, size) in &live {
            bytes(at, size).fill(7);
        }
        for &at in &gone {
            free(&hard, at).unwrap();
        }
        let before = shim.mapped();
        // 64 MiB stay cached, and the quarantine.
        shim.limit_addresses(Some(1 << 30));
        assert!(hard.release_addresses());
        assert!(before > 1 << 34 && shim.mapped() < 128 * MIB, "{} of {before}", shim.mapped());
        assert_eq!(hard.validate(), Ok(()));
        for &at in &gone {
            assert!(hard.contains(at) && !is_readable(at), "in quarantine");
        }
        let mut list = String::new();
        hard.write_info(&mut list).unwrap();
        let lines = |end: &str| list.lines().filter(|line| line.ends_with(end)).count();
        assert_eq!((lines(" vmalloc"), lines(" quarantined vm_area"), list.lines().count()), (5, 5, 10));
        // Other mappings in released ranges are not the allocator's, and do not change.
        let window = hard.arena().start().get() as usize;
        let others: Vec<_> =
            (0..1 << 14).map(|at| window + at * MIB).filter(|&at| !hard.contains(at)).collect();
        assert!(others.len() > 15_000);
        others.iter().step_by(50).for_each(|&at| map(at));
        for step in 0..100 {
            let (size, nth) = (1 + step * 7919 % 300_000, step % live.len());
            let (at, filled) = core::mem::replace(&mut live[nth], (alloc(&hard, size), size));
            assert!(bytes(at, filled).iter().all(|&byte| byte == 7));
            bytes(live[nth].0, size).fill(7);
            free(&hard, at).unwrap();
            assert!(hard.contains(live[nth].0) && !is_readable(at));
        }
        assert_eq!(hard.validate(), Ok(()));
        // The range that stayed goes with the quarantine, and then there is nothing more.
        let before = shim.mapped();
        assert!(hard.release_addresses());
        assert!(shim.mapped() + 48 * MIB < before, "{} of {before}", shim.mapped());
        assert!(hard.stats().quarantined_areas == 0 && !hard.release_addresses());
        assert!(hard.alloc(layout(64 * MIB, 1)).is_err());
        for (at, size) in live {
            assert!(bytes(at, size).iter().all(|&byte| byte == 7));
            free(&hard, at).unwrap();
        }
        assert!(others.iter().step_by(50).all(|&at| bytes(at, PAGE_BYTES).iter().all(|&byte| byte == 0)));
        end(hard, &shim);
        assert!(others.iter().step_by(50).all(|&at| is_readable(at)), "unmapped with the allocator");
    }
}

#[test]
fn no_thread_unmaps_the_tag_of_an_address_that_is_no_area_while_another_reads_it() {
    use vmalloc_os::lock::Fork;
    let hard: &Owned<Shim> = Box::leak(Box::new(make(&Shim::default(), plan(None))));
    let at = alloc(hard, 5000);
    free(hard, at).unwrap();
    let calls: [fn(&Owned<Shim>, usize); 5] = [
        |hard, at| assert!(free(hard, at).is_err()),
        |hard, at| assert!(hard.live(at).is_err()),
        |hard, at| assert_ne!(hard.diagnosis(at), Diagnosis::Never),
        |hard, _| hard.write_info(&mut String::new()).unwrap(),
        |hard, at| hard.renew_at_free(at, 1),
    ];
    for call in calls {
        let seen = std::rc::Rc::new(core::cell::Cell::new(0));
        let count = seen.clone();
        window::AT_TAG.set(Some(Box::new(move || {
            assert!(hard.state.is_mine(), "a release of addresses waits for this lock");
            count.set(count.get() + 1);
        })));
        call(hard, at);
        window::AT_TAG.set(None);
        assert!(seen.get() > 0);
    }
}

#[test]
fn hw1_a_quarter_of_what_the_system_has_may_be_warm_and_nothing_where_it_is_short() {
    let shim = Shim::default();
    let hard = make(&shim, Plan { cache_bytes_max: 256 * MIB, quarantine_areas_max: 0, ..plan(None) });
    if hard.window.wall() != Wall::Markers || !shim.can_move() {
        return eprintln!("NOT RUN: pages do not stay cached here");
    }
    let burst = || {
        let areas: Vec<_> = (0..40).map(|_| alloc(&hard, 4 * MIB)).collect();
        for at in areas {
            bytes(at, 4 * MIB).fill(7);
            free(&hard, at).unwrap();
        }
        hard.stats().cached_bytes
    };
    assert_eq!(burst(), 160 * MIB, "a system that does not report it");
    shim.set_available(200 << 20);
    assert!((64 * MIB..=124 * MIB).contains(&burst()), "{}", hard.stats().cached_bytes);
    shim.set_short(true);
    assert_eq!(burst(), 0);
    // The available memory is read again.
    shim.set_short(false);
    shim.set_available(4 << 30);
    assert!(burst() >= 96 * MIB, "{}", hard.stats().cached_bytes);
    end(hard, &shim);
}
