//! Random operations on the original and on this crate. Offsets differ by policy. What the original promises holds for
//! both: allocations are disjoint and inside, and free space is counted. This crate succeeds whenever the original with
//! the same areas would.
#![expect(clippy::unwrap_used, reason = "a test that finds no value fails")]

#[path = "../../draws.rs"]
mod draws;

use draws::Draws;
use offset_allocator as ours;
use original as theirs;

/// A model: which units are taken.
struct Units(Vec<bool>);

impl Units {
    fn set(&mut self, offset: u32, size: u32, taken: bool) {
        for unit in &mut self.0[offset as usize..(offset + size) as usize] {
            assert_ne!(*unit, taken, "a unit is allocated or freed twice");
            *unit = taken;
        }
    }

    /// Returns the offset of the smallest run of at least `size` free units; for size 0, of the lowest run.
    fn best(&self, size: u32) -> Option<u32> {
        let mut at = 0;
        let mut runs = Vec::new();
        for run in self.0.split(|&taken| taken) {
            if !run.is_empty() && run.len() >= size as usize {
                runs.push((if size == 0 { 0 } else { run.len() }, at));
            }
            at += run.len() as u32 + 1;
        }
        runs.into_iter().min().map(|(_, at)| at)
    }

    fn holes(&self) -> Vec<u32> {
        self.0.split(|&taken| taken).map(|run| run.len() as u32).filter(|&len| len > 0).collect()
    }
}

/// Returns the bin of a free region, from the report of the original with that region alone.
fn bin(size: u32) -> usize {
    let full = theirs::Allocator::<u32>::with_max_allocs(size, 16).storage_report_full();
    full.free_regions.iter().position(|region| region.count == 1).unwrap()
}

fn compare(seed: u64, size: u32, max_allocs: u32, steps: u32) {
    let mut draws = Draws::new(seed);
    let mut our: ours::Allocator = ours::Allocator::with_max_allocs(size, max_allocs);
    let mut units = Units(vec![false; size as usize]);
    let mut live: Vec<(ours::Allocation, u32)> = Vec::new();
    let mut failed = 0;
    for step in 0..steps {
        if !live.is_empty() && draws.below(100) < 45 {
            let (area, len) = live.swap_remove(draws.below(live.len() as u64) as usize);
            units.set(area.offset, len, false);
            assert_eq!(our.allocation_size(area), len);
            our.free(area);
            // A second free changes nothing.
            our.free(area);
        } else {
            let len = draws.below(u64::from(size / 20 + 2)) as u32;
            let numbers = live.len() + units.holes().len() + 2 <= max_allocs as usize;
            let expected = units.best(len).filter(|_| numbers);
            let got = our.allocate(len);
            assert_eq!(got.map(|area| area.offset), expected, "{step}: {len}");
            match got {
                Some(area) => {
                    units.set(area.offset, len, true);
                    live.push((area, len));
                }
                None => failed += 1,
            }
        }
        let (holes, report) = (units.holes(), our.storage_report());
        if live.len() + holes.len() + 2 <= max_allocs as usize {
            assert_eq!(report.total_free_space, holes.iter().sum());
            assert_eq!(report.largest_free_region, holes.iter().copied().max().unwrap_or(0));
        } else {
            assert_eq!((report.total_free_space, report.largest_free_region), (0, 0));
        }
        if step.is_multiple_of(50) {
            let mut counts = [0; 256];
            holes.iter().for_each(|&hole| counts[bin(hole)] += 1);
            assert_eq!(our.storage_report_full().free_regions.map(|region| region.count), counts);
        }
    }
    assert!(failed > steps / 100, "{failed}: too one-sided");
    live.into_iter().for_each(|(area, _)| our.free(area));
    assert_eq!(our.allocate(size).map(|area| area.offset), Some(0));
}

#[test]
fn the_smallest_region_that_fits_is_used() {
    for seed in 0..4 {
        compare(seed, 1000, 4096, 2000);
        compare(seed, 333, 12, 2000);
        compare(seed, 40, 100, 2000);
    }
}

/// With the same operations, and areas that both can place, both have the same free space in total, and ours never
/// fails alone. For sizes that fill their bin, such as powers of two, a free region of a size always has room for it.
#[test]
fn with_sizes_of_bins_both_succeed_alike() {
    let mut draws = Draws::new(3);
    let mut our: ours::Allocator = ours::Allocator::new(1 << 16);
    let mut their: theirs::Allocator = theirs::Allocator::new(1 << 16);
    let mut live = Vec::new();
    let mut failed = 0;
    for _ in 0..20_000 {
        if !live.is_empty() && draws.below(100) < 49 {
            let (ours, theirs) = live.swap_remove(draws.below(live.len() as u64) as usize);
            our.free(ours);
            their.free(theirs);
        } else {
            // One size: no fragmentation, so both succeed until all is allocated.
            match (our.allocate(256), their.allocate(256)) {
                (Some(ours), Some(theirs)) => {
                    assert_eq!(our.allocation_size(ours), their.allocation_size(theirs));
                    live.push((ours, theirs));
                }
                (None, None) => failed += 1,
                (ours, theirs) => panic!("{} {}", ours.is_some(), theirs.is_some()),
            }
        }
        let (ours, theirs) = (our.storage_report(), their.storage_report());
        assert_eq!(ours.total_free_space, theirs.total_free_space);
    }
    assert!(failed > 10);
}

/// The original with one free region fails for sizes between two bins. Ours takes exactly the region.
#[test]
fn a_region_is_used_to_its_last_unit() {
    for size in 1..2000 {
        let mut our: ours::Allocator = ours::Allocator::new(size);
        let mut their: theirs::Allocator = theirs::Allocator::with_max_allocs(size, 16);
        let report = (our.storage_report(), their.storage_report());
        assert!(report.0.largest_free_region >= report.1.largest_free_region);
        assert_eq!(report.0.largest_free_region, size);
        let theirs = their.allocate(size).is_some();
        assert_eq!(theirs, report.1.largest_free_region == size);
        assert!(our.allocate(size).is_some());
    }
    let sizes = [0, 1, 7, 8, 9, 15, 16, 17, 100, 1000, 65_535, 1 << 30, u32::MAX / 2];
    assert_eq!(sizes.map(ours::ext::min_allocator_size), sizes.map(theirs::ext::min_allocator_size));
}

#[test]
fn the_numbers_of_allocations_end_at_the_same_one() {
    for max_allocs in 2..40 {
        let mut our: ours::Allocator<u16> = ours::Allocator::with_max_allocs(1 << 20, max_allocs);
        let mut their: theirs::Allocator<u16> = theirs::Allocator::with_max_allocs(1 << 20, max_allocs);
        let count = |mut allocate: Box<dyn FnMut() -> bool>| (0..100).take_while(|_| allocate()).count();
        let ours = count(Box::new(move || our.allocate(3).is_some()));
        assert_eq!(ours, count(Box::new(move || their.allocate(3).is_some())), "{max_allocs}");
    }
}

#[test]
fn sizes_at_the_limits_work() {
    let mut empty: ours::Allocator = ours::Allocator::new(0);
    assert!(empty.allocate(0).is_some() && empty.allocate(1).is_none());
    assert_eq!(empty.storage_report().total_free_space, 0);
    let mut full: ours::Allocator = ours::Allocator::new(u32::MAX);
    assert_eq!(full.allocate(u32::MAX).unwrap().offset, 0);
    full.reset();
    let nothing = full.allocate(0).unwrap();
    assert_eq!((full.allocate(5).unwrap().offset, full.allocation_size(nothing)), (0, 0));
    full.free(nothing);
    // The original panics here.
    let mut small = ours::Allocator::<u16>::new(1000);
    assert_eq!(small.allocate(10).unwrap().offset, 0);
    assert!(std::panic::catch_unwind(|| theirs::Allocator::<u16>::new(1000)).is_err());
}
