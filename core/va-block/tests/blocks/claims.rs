//! Late second frees of mappings that are larger than a block's share: each takes what it found, or nothing.

use va_base::{Context, LockClass, Pages, Request, Va, VaRange};
use va_block::{Blocks, UnmapError};
use va_sim::pause::{Pause, PausingMachine, Stop};
use va_space::{Purge, VmapSpace};

fn blocks(machine: &PausingMachine) -> Blocks<&PausingMachine> {
    let window = VaRange::from_pages(1024, 1 << 16).unwrap();
    Blocks::new(VmapSpace::new(window, window, machine).unwrap(), machine).unwrap()
}

#[test]
fn a_late_free_of_a_large_mapping_takes_no_area_of_a_block_that_begins() {
    let machine = Pause::machine(1);
    for context in [Context::Sleeping, Context::Atomic] {
        for (class, stops) in [(LockClass::Lookup, 0), (LockClass::Queue, 1), (LockClass::Queue, 2)] {
            let blocks = blocks(&machine);
            let pages = blocks.block_pages().get();
            let large = blocks.alloc(0, pages).unwrap();
            blocks.free(0, large, pages).unwrap();
            blocks.space().purge(Purge::Full);
            let begins = || blocks.alloc(0, 1).unwrap();
            let late = || (blocks.free_in(context, 0, large, pages), blocks.space().free_at(large));
            let (small, late) = machine.watcher.beside(class, stops, begins, late);
            assert!(late.0.is_err() && late.1.is_err(), "{class:?} {stops}: {late:?}");
            assert_eq!((small, blocks.validate()), (large, Ok(())));
            blocks.space().purge(Purge::Full);
            let other = blocks.space().alloc(0, &Request::pages(8).unwrap()).unwrap();
            assert!(!other.range().contains(small), "{class:?} {stops}");
            // The block ends as others do.
            blocks.free(0, small, 1).unwrap();
            blocks.shrink();
            assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
        }
    }
}

#[test]
fn a_late_call_before_a_block_holds_its_area_costs_the_block_another() {
    let machine = Pause::machine(1);
    for resizes in [false, true] {
        let (blocks, mut taken) = (blocks(&machine), 0);
        let pages = blocks.block_pages().get();
        let large = blocks.alloc(0, pages).unwrap();
        blocks.free(0, large, pages).unwrap();
        blocks.space().purge(Purge::Full);
        // Between the area and its hold the tables of the block's record are allocated.
        let late = || match resizes {
            false => blocks.free(0, large, pages).is_ok(),
            true => blocks.space().grow_at(large, Pages::new(pages + 5)).is_ok(),
        };
        for stops in 0..4 {
            let (small, late) =
                machine.watcher.beside(Stop::Table, stops, || blocks.alloc(0, 64).unwrap(), late);
            taken += u64::from(late);
            assert_eq!((small == large, blocks.validate()), (!late && taken == 0, Ok(())), "{stops}");
        }
        assert!(taken > 0, "no late call came between the two");
        // No area is left behind.
        blocks.shrink();
        blocks.space().purge(Purge::Full);
        let held = blocks.present() * pages;
        assert_eq!(blocks.space().stats().busy_pages, Pages::new(held));
    }
}

#[test]
fn a_free_of_another_size_says_what_is_there() {
    let machine = Pause::machine(1);
    let blocks = blocks(&machine);
    let at = blocks.alloc(0, 120).unwrap();
    let range = VaRange::from_size(at, 120 << 12).unwrap();
    for pages in [100, 119, 121] {
        let wrong = UnmapError::WrongCount { range, pages: Pages::new(pages) };
        assert_eq!(blocks.free(0, at, pages), Err(wrong));
    }
    let inside = blocks.free(0, Va::from_page(at.page_floor() + 1), 119);
    assert!(matches!(inside, Err(UnmapError::NotMapped { inside: Some(_), .. })), "{inside:?}");
    assert_eq!((blocks.free(0, at, 120), blocks.validate()), (Ok(()), Ok(())));
}
