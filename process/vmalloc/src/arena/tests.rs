//! Tests of the frontier, and of the ladder of reservations.

use super::*;
use vmalloc_os::os::shim::Shim;

fn arena(shim: &Shim, bytes_max: usize) -> Result<Arena<Shim>, CreateError> {
    let most = room(shim, bytes_max)?;
    Arena::reserve(Host::open(shim.clone()).unwrap(), most, HugePages::Auto)
}

/// Returns a range of `count` pages from page `first`.
fn pages(first: u64, count: u64) -> VaRange {
    VaRange::from_pages(first, first + count).unwrap()
}

#[test]
fn the_ladder_respects_the_limit_and_goes_down_after_a_failure() {
    let shim = Shim::default();
    let bytes = |arena: &Arena<Shim>| arena.whole().len_bytes();
    assert_eq!(bytes(&arena(&shim, usize::MAX).unwrap()), 1 << 40);
    shim.limit_addresses(Some(3 << 30));
    assert_eq!(bytes(&arena(&shim, usize::MAX).unwrap()), 3 << 29);
    shim.limit_addresses(Some(1 << 20));
    let small = arena(&shim, usize::MAX).err();
    assert_eq!(small, Some(CreateError::TooSmall { bytes: 1 << 19, least_bytes: 1 << 25 }));
    shim.limit_addresses(None);
    shim.fail_above(Some(1 << 34));
    assert_eq!(bytes(&arena(&shim, usize::MAX).unwrap()), 1 << 32);
    shim.fail_above(Some(0));
    let failed = arena(&shim, usize::MAX).err();
    let want = CreateError::CallFailed { call: Call::Reserve, errno: Errno::NOMEM, bytes: 1 << 25 };
    assert_eq!(failed, Some(want));
}

#[test]
fn ar1_words_and_pages_below_the_frontier_can_be_written_and_no_others_are_reported() {
    let shim = Shim::default();
    let arena = arena(&shim, 1 << 30).unwrap();
    for zone in [HUGE, SMALL] {
        let (first, last) = arena.extent(zone).whole_pages();
        assert!(arena.word(first).is_none());
        for end in [1, 3, 512, 513, 5000, 5001, last - first] {
            arena.commit(pages(first, end)).unwrap();
            let committed = arena.committed_pages(zone);
            assert!(committed >= end);
            for page in [0, end - 1, committed - 1] {
                assert_eq!(arena.zone_of(first + page), zone);
                arena.put(first + page, Word::live(page + 1, 1));
                assert_eq!(arena.get(first + page), Word::live(page + 1, 1));
                // SAFETY: below the frontier, and used by no other thread.
                unsafe { pointer(first + page).write(7) };
            }
            assert!(committed == last - first || arena.word(first + committed).is_none());
        }
    }
    assert!(arena.word(arena.first() - 1).is_none() && arena.word(arena.first() + (1 << 18)).is_none());
    let calls = shim.calls(Call::Commit);
    arena.commit(pages(arena.first(), 1 << 18)).unwrap();
    assert_eq!(shim.calls(Call::Commit), calls);
    // SAFETY: the arena is not used from here on.
    unsafe { arena.unmap() };
}

#[test]
fn a_frontier_that_fails_to_move_stays_and_takes_less_where_less_is_granted() {
    let shim = Shim::default();
    let arena = arena(&shim, 1 << 30).unwrap();
    shim.fail(Call::Commit, 0);
    assert_eq!(arena.commit(pages(arena.first(), 3)), Err((Errno::NOMEM, 3 * PAGE_BYTES)));
    assert_eq!(arena.committed_pages(SMALL), 0);
    shim.allow();
    // The whole step fails, and the needed pages are committed.
    shim.fail_commit_above(Some(8 * PAGE_BYTES));
    assert_eq!(arena.commit(pages(arena.first(), 3)), Ok(()));
    assert_eq!(arena.committed_pages(SMALL), 3);
}

/// Returns the flags of the mapping at an address (`man 5 proc_pid_smaps`).
fn flags_at(at: usize) -> String {
    let mut inside = false;
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
        if let Some([start, end]) =
            bounds.map(|(start, end)| [start, end].map(|at| usize::from_str_radix(at, 16)))
        {
            inside = start.is_ok_and(|start| start <= at) && end.is_ok_and(|end| at < end);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.to_owned();
        }
    }
    panic!("nothing is mapped at {at:#x}");
}

#[test]
fn huge_pages_are_advised_for_the_large_areas_of_all_nodes_and_no_others() {
    let arena = arena(&Shim::default(), 64 << 30).unwrap();
    let has = |zone: usize, flag: &str| {
        let (first, last) = arena.extent(zone).whole_pages();
        [first, last - 1].map(|page| flags_at(address(page)).split(' ').any(|other| other == flag))
    };
    // A system without huge pages takes no advice.
    let advised = has(HUGE, "hg") == [true; 2];
    for zone in 0..ZONES {
        let huge = zone % KINDS == HUGE;
        assert_eq!(arena.has_huge_pages(zone), huge);
        if advised {
            assert_eq!((has(zone, "hg"), has(zone, "nh")), ([huge; 2], [!huge; 2]), "{zone}");
        }
    }
    // SAFETY: the arena is not used from here on.
    unsafe { arena.unmap() };
}
