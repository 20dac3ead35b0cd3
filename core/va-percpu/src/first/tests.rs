//! The first chunk of ten machines, beside a slow model and beside constants that were computed by hand.

use super::*;
use crate::geometry::{DYNAMIC_BYTES, DYNAMIC_BYTES_MIN, RESERVED_BYTES, UNIT_BYTES_MIN};
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

/// A machine: its possible CPUs by number with their nodes, and the sizes that it wishes.
struct Board {
    name: &'static str,
    nodes: Vec<(u32, u32)>,
    wish: Wish,
}

const X86: Wish = Wish { fixed: 221_184, reserved: RESERVED_BYTES, dynamic: DYNAMIC_BYTES, atom: 2 << 20 };

/// Returns CPUs `0..count`, of which each node has so many in turn.
fn cpus(per_node: &[u32]) -> Vec<(u32, u32)> {
    let nodes = per_node.iter().enumerate();
    let of = nodes.flat_map(|(node, &count)| core::iter::repeat_n(node as u32, count as usize));
    (0..).zip(of).collect()
}

fn boards() -> Vec<Board> {
    let board = |name, nodes, wish| Board { name, nodes, wish };
    let in_turn = |count: u32, nodes: u32| (0..count).map(|cpu| (cpu, cpu % nodes)).collect();
    vec![
        board("one CPU", cpus(&[1]), X86),
        board("two CPUs", cpus(&[2]), X86),
        board("four CPUs", cpus(&[4]), X86),
        board("six CPUs", cpus(&[6]), X86),
        board("two equal nodes", cpus(&[4, 4]), X86),
        board("two unequal nodes", cpus(&[6, 2]), X86),
        board("four nodes, CPUs in turn", in_turn(16, 4), X86),
        board(
            "sparse numbers",
            vec![(0, 0), (1, 0), (4, 1), (5, 1), (64, 0), (65, 0), (200, 1), (511, 1)],
            X86,
        ),
        board("48 CPUs, three in a group", cpus(&[3; 16]), X86),
        board("512 possible", cpus(&[64; 8]), X86),
        board("a large static section", cpus(&[8]), Wish { fixed: 3 << 20, ..X86 }),
        board("atoms of 64 KiB", cpus(&[5, 2]), Wish { fixed: 9001, atom: 64 << 10, ..X86 }),
        board("atoms of a page", cpus(&[7]), Wish { dynamic: 0, atom: PAGE_SIZE as u32, ..X86 }),
        board("a small unit in a large atom", cpus(&[40, 40, 3]), Wish { fixed: 100, reserved: 0, ..X86 }),
    ]
}

/// A group as in Linux: where it begins, and the CPU of each unit.
struct SlowGroup {
    base_offset: u64,
    cpu_map: Vec<Option<u32>>,
}

/// The results of the specification, with a list of units for each group.
struct Slow {
    unit_size: u64,
    alloc_size: u64,
    dyn_size: u64,
    upa: u64,
    groups: Vec<SlowGroup>,
}

/// `build_alloc_info` as the specification states it, in wide numbers and with sets.
fn slow(board: &Board) -> Slow {
    let wide = u64::from;
    let up = |bytes: u64, to: u64| bytes.div_ceil(to) * to;
    let wish = &board.wish;
    let dynamic = wide(wish.dynamic).max(wide(DYNAMIC_BYTES_MIN));
    let sum = up(wide(wish.fixed) + wide(wish.reserved) + dynamic, PAGE_SIZE);
    let dyn_size = sum - wide(wish.fixed) - wide(wish.reserved);
    let min_unit = sum.max(up(wide(UNIT_BYTES_MIN), PAGE_SIZE));
    let alloc_size = up(min_unit, wide(wish.atom));
    let is_even = |upa: u64| alloc_size.is_multiple_of(upa) && (alloc_size / upa).is_multiple_of(PAGE_SIZE);
    // Groups of CPUs at the local distance in both directions, from the lowest CPU that has none.
    let mut left: BTreeMap<u32, u32> = board.nodes.iter().copied().collect();
    let mut members: Vec<BTreeSet<u32>> = Vec::new();
    while let Some((_, node)) = left.first_key_value() {
        let node = *node;
        let (here, others) = left.into_iter().partition(|(_, of)| *of == node);
        left = others;
        let here: BTreeMap<u32, u32> = here;
        members.push(here.into_keys().collect());
    }
    // From the most units in an allocation downwards.
    let possible = board.nodes.len() as u64;
    let (mut upa, mut last_allocs) = (0, u64::MAX);
    for candidate in (1..=alloc_size / min_unit).rev().filter(|&upa| is_even(upa)) {
        let allocs: u64 = members.iter().map(|group| (group.len() as u64).div_ceil(candidate)).sum();
        let wasted: u64 =
            members.iter().map(|group| up(group.len() as u64, candidate) - group.len() as u64).sum();
        if wasted > possible / 3 {
            continue;
        }
        if allocs > last_allocs {
            break;
        }
        (upa, last_allocs) = (candidate, allocs);
    }
    let unit_size = alloc_size / upa;
    let mut units = 0;
    let mut groups = Vec::new();
    for group in members {
        let mut cpu_map: Vec<_> = group.into_iter().map(Some).collect();
        cpu_map.resize(up(cpu_map.len() as u64, upa) as usize, None);
        let count = cpu_map.len() as u64;
        groups.push(SlowGroup { base_offset: units * unit_size, cpu_map });
        units += count;
    }
    Slow { unit_size, alloc_size, dyn_size, upa, groups }
}

/// A placed first chunk of ours.
struct Placed {
    plan: Plan,
    of_cpus: Vec<u32>,
    units: Vec<u32>,
    groups: Vec<Group>,
}

fn place(board: &Board) -> Placed {
    let count = board.nodes.len();
    let (mut of_cpus, mut units) = (vec![0; count], vec![0; count]);
    let local = |a: u32, b: u32| board.nodes[a as usize].1 == board.nodes[b as usize].1;
    let plan = plan(&board.wish, local, &mut of_cpus, &mut units).unwrap();
    let mut groups_of = vec![Group::default(); plan.groups as usize];
    groups(&plan, &of_cpus, &mut groups_of).unwrap();
    Placed { plan, of_cpus, units, groups: groups_of }
}

/// Checks that units, offsets and ends are the slow model's, whose groups begin at the offsets of `placed`.
fn check_units(board: &Board, placed: &Placed, slow: &Slow) {
    let mut want = BTreeMap::new();
    let mut unit = 0u32;
    for group in &slow.groups {
        for (nth, cpu) in group.cpu_map.iter().enumerate() {
            if let Some(cpu) = cpu {
                want.insert(*cpu, (unit + nth as u32, group.base_offset + nth as u64 * slow.unit_size));
            }
        }
        unit += group.cpu_map.len() as u32;
    }
    let mut offsets = vec![0; board.nodes.len()];
    let ends =
        unit_offsets(&placed.plan, &placed.groups, &placed.of_cpus, &placed.units, &mut offsets).unwrap();
    for (at, (cpu, _)) in board.nodes.iter().enumerate() {
        assert_eq!((placed.units[at], offsets[at]), want[cpu], "{}: CPU {cpu}", board.name);
    }
    let number = |at: usize| board.nodes[at].0;
    let by_offset = || want.iter().map(|(cpu, (_, offset))| (*offset, *cpu));
    assert_eq!(number(ends.low), by_offset().min().unwrap().1, "{}", board.name);
    assert_eq!(number(ends.high), by_offset().max().unwrap().1, "{}", board.name);
}

#[test]
fn the_plans_of_these_machines_are_those_of_the_specification() {
    for board in boards() {
        let (placed, slow) = (place(&board), slow(&board));
        let Placed { plan, groups, .. } = &placed;
        let sizes = &plan.sizes;
        let name = board.name;
        assert_eq!(u64::from(sizes.unit), slow.unit_size, "{name}");
        assert_eq!(u64::from(sizes.alloc), slow.alloc_size, "{name}");
        assert_eq!(u64::from(sizes.dynamic), slow.dyn_size, "{name}");
        assert_eq!(u64::from(plan.units_per_alloc), slow.upa, "{name}");
        assert_eq!((sizes.fixed, sizes.reserved), (board.wish.fixed, board.wish.reserved), "{name}");
        assert_eq!(groups.len(), slow.groups.len(), "{name}");
        for (group, want) in groups.iter().zip(&slow.groups) {
            assert_eq!(group.offset, want.base_offset, "{name}");
            assert_eq!(group.units as usize, want.cpu_map.len(), "{name}");
            assert_eq!(group.cpus as usize, want.cpu_map.iter().flatten().count(), "{name}");
        }
        assert_eq!(sizes.units as usize, slow.groups.iter().map(|group| group.cpu_map.len()).sum(), "{name}");
        check_units(&board, &placed, &slow);
    }
}

/// The numbers of these machines with pages of 4 KiB, by hand. The sections of x86 are 63 pages, so that eight units
/// fit 2 MiB.
#[test]
fn the_numbers_of_these_machines_were_computed_by_hand() {
    // Unit in KiB, units of an allocation, units, groups, and the offset of the last group in KiB.
    let by_hand: [(&str, u32, u32, u32, u32, u64); 14] = [
        // 8, 4 and 2 units would waste 7, 3 and 1 of one CPU.
        ("one CPU", 2048, 1, 1, 1, 0),
        ("two CPUs", 1024, 2, 2, 1, 0),
        // Eight waste 4, and a third is 1.
        ("four CPUs", 512, 4, 4, 1, 0),
        // Eight waste 2, which is a third.
        ("six CPUs", 256, 8, 8, 1, 0),
        ("two equal nodes", 512, 4, 8, 2, 2048),
        // Four would waste 2 + 2.
        ("two unequal nodes", 1024, 2, 8, 2, 6144),
        ("four nodes, CPUs in turn", 512, 4, 16, 4, 6144),
        ("sparse numbers", 512, 4, 8, 2, 2048),
        // Four waste 16, a third of 48.
        ("48 CPUs, three in a group", 512, 4, 64, 16, 30_720),
        ("512 possible", 256, 8, 512, 8, 114_688),
        // 777 pages: two atoms for each unit.
        ("a large static section", 4096, 1, 8, 1, 0),
        // 45,865 bytes are 12 pages, which one atom holds once.
        ("atoms of 64 KiB", 64, 1, 7, 2, 320),
        // 249,856 bytes are 61 pages.
        ("atoms of a page", 244, 1, 7, 1, 0),
        // 8 pages; 64 units fit and waste 24 + 24 + 61, 32 waste 77, 16 waste 29, 8 waste 5.
        ("a small unit in a large atom", 256, 8, 88, 3, 20_480),
    ];
    if PAGE_SIZE != 4096 {
        return;
    }
    for (board, want) in boards().iter().zip(by_hand) {
        let placed = place(board);
        let sizes = &placed.plan.sizes;
        let last = placed.groups.last().unwrap().offset >> 10;
        let found = (
            board.name,
            sizes.unit >> 10,
            placed.plan.units_per_alloc,
            sizes.units,
            placed.plan.groups,
            last,
        );
        assert_eq!(found, want);
    }
}

/// The numbers with pages of 64 KiB, by hand: the sections of x86 are four pages, so that eight units fit 2 MiB, and
/// the smallest unit is one page.
#[test]
fn the_numbers_with_pages_of_64_kib_were_computed_by_hand() {
    if PAGE_SIZE != 64 << 10 {
        return;
    }
    let board = |wish| Board { name: "64 KiB", nodes: cpus(&[6]), wish };
    let sizes = |wish| place(&board(wish)).plan.sizes;
    let x86 = sizes(X86);
    assert_eq!((x86.unit, x86.units, x86.dynamic), (256 << 10, 8, (256 << 10) - 221_184 - 8192));
    let page = sizes(Wish { fixed: 100, reserved: 0, dynamic: 0, atom: 64 << 10 });
    assert_eq!((page.unit, page.units, page.dynamic), (64 << 10, 6, (64 << 10) - 100));
}

/// Returns areas for the groups, from high addresses to low ones, with a hole of an atom between two.
fn scattered(placed: &Placed, top: u64) -> Vec<Va> {
    let mut at = top;
    let atom = u64::from(placed.plan.sizes.atom);
    let below = |group: &Group| {
        at -= group.bytes(&placed.plan) + atom;
        Va::new(at)
    };
    placed.groups.iter().map(below).collect()
}

#[test]
fn embedded_groups_have_the_distances_of_their_areas() {
    for board in boards() {
        let (mut placed, mut slow) = (place(&board), slow(&board));
        let areas_at = scattered(&placed, 1 << 45);
        let all: u64 = placed.groups.iter().map(|group| group.bytes(&placed.plan)).sum();
        let holes = (placed.groups.len() as u64 - 1) * u64::from(board.wish.atom);
        let embedded = embed(&placed.plan, &mut placed.groups, &areas_at, 1 << 40).unwrap();
        // The last group is the lowest.
        assert_eq!(embedded.base, *areas_at.last().unwrap(), "{}", board.name);
        assert_eq!(embedded.distance, all + holes, "{}", board.name);
        for (group, at) in slow.groups.iter_mut().zip(&areas_at) {
            group.base_offset = at.get() - embedded.base.get();
        }
        check_units(&board, &placed, &slow);
        let mut ascending = vec![(0, 0); placed.groups.len()];
        areas(&placed.plan, &placed.groups, &mut ascending).unwrap();
        assert_eq!(ascending[0].0, 0);
        assert!(ascending.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0));

        // What is freed: whole units without a CPU, and what is behind the sections of the others.
        let sum = u64::from(board.wish.fixed) + u64::from(board.wish.reserved) + slow.dyn_size;
        let mut want = Vec::new();
        for (group, at) in slow.groups.iter().zip(&areas_at) {
            for (nth, cpu) in group.cpu_map.iter().enumerate() {
                let unit = at.get() + nth as u64 * slow.unit_size;
                let from = if cpu.is_some() { sum } else { 0 };
                if from < slow.unit_size {
                    want.push((unit + from, unit + slow.unit_size));
                }
            }
        }
        let freed = unused(&placed.plan, &placed.groups, embedded.base);
        let freed: Vec<_> = freed.map(|range| (range.start().get(), range.end().get())).collect();
        assert_eq!(freed, want, "{}", board.name);
    }
}

#[test]
fn groups_within_three_quarters_of_the_address_space_are_near_enough() {
    let board = &boards()[4];
    let mut placed = place(board);
    let areas_at = [Va::new(1 << 30), Va::new(1 << 31)];
    // From 1 GiB to 2 GiB + 2 MiB.
    let distance = (1 << 30) + (2 << 20);
    let least = distance / 3 * 4 + 2;
    let before = placed.groups.clone();
    let limit = (u128::from(least - 8) * 3 / 4) as u64;
    let error = embed(&placed.plan, &mut placed.groups, &areas_at, least - 8).unwrap_err();
    assert_eq!(error, FirstError::TooFar { distance, limit });
    assert_eq!(placed.groups, before, "nothing has changed");
    let embedded = embed(&placed.plan, &mut placed.groups, &areas_at, least).unwrap();
    assert_eq!(embedded, Embedded { base: Va::new(1 << 30), distance });
    assert_eq!(embed(&placed.plan, &mut placed.groups, &areas_at, u64::MAX).unwrap(), embedded);
    assert_eq!(placed.groups[1].offset, 1 << 30);
}

#[test]
fn a_first_chunk_by_page_has_a_unit_of_its_pages_for_each_cpu() {
    for board in boards() {
        let count = board.nodes.len();
        let (mut of_cpus, mut units) = (vec![0; count], vec![0; count]);
        let plan = plan_by_page(board.wish.fixed, board.wish.reserved, &mut of_cpus, &mut units).unwrap();
        let parts = u64::from(board.wish.fixed + board.wish.reserved + DYNAMIC_BYTES_MIN);
        let unit = parts.max(UNIT_BYTES_MIN.into()).next_multiple_of(PAGE_SIZE);
        assert_eq!(u64::from(plan.sizes.unit), unit, "{}", board.name);
        assert_eq!((plan.groups, plan.units_per_alloc, plan.sizes.units as usize), (1, 1, count));
        assert_eq!(units, (0..count as u32).collect::<Vec<_>>());
        let mut one = [Group::default()];
        groups(&plan, &of_cpus, &mut one).unwrap();
        assert_eq!(one[0].bytes(&plan), unit * count as u64, "as many bytes as units of CPUs");
        assert!(plan.geometry(Va::new(1 << 40)).is_ok());
    }
}

#[test]
fn slices_and_areas_that_do_not_go_together_are_errors() {
    let board = &boards()[5];
    let mut placed = place(board);
    let Placed { plan, of_cpus, units, groups: known } = &mut placed;
    let mut out = [0u64; 8];
    let short = FirstError::BadSlice { required: 2, found: 1 };
    assert_eq!(groups(plan, of_cpus, &mut [Group::default()]), Err(short));
    assert_eq!(areas(plan, known, &mut [(0, 0)]), Err(short));
    assert_eq!(embed(plan, &mut known[..1], &[Va::ZERO], 1 << 40), Err(short));
    assert_eq!(embed(plan, known, &[Va::ZERO], 1 << 40), Err(short));
    assert_eq!(
        unit_offsets(plan, known, of_cpus, &units[..7], &mut out),
        Err(FirstError::BadSlice { required: 8, found: 7 })
    );
    assert_eq!(
        unit_offsets(plan, known, of_cpus, units, &mut out[..7]),
        Err(FirstError::BadSlice { required: 8, found: 7 })
    );
    // A CPU with a group that does not exist, and with a unit of padding or of another group.
    let wrong = [0, 0, 0, 0, 0, 0, 1, 2];
    let error = FirstError::BadCpu { cpu: 7, group: 2, unit: None };
    assert_eq!(groups(plan, &wrong, &mut known.clone()), Err(error));
    assert_eq!(unit_offsets(plan, known, &wrong, units, &mut out), Err(error));
    let swapped = [0, 1, 2, 3, 4, 6, 5, 7];
    let error = FirstError::BadCpu { cpu: 5, group: 0, unit: Some(6) };
    assert_eq!(unit_offsets(plan, known, of_cpus, &swapped, &mut out), Err(error));
    assert_eq!(out, [0; 8], "nothing has changed");
    // Areas that are not at an atom, that overlap, and that pass the last address.
    let (low, high) = (Va::new(1 << 30), Va::new(u64::MAX - (2 << 20) + 1));
    for (second, group) in [(Va::new((1 << 30) + 4096), 1), (Va::new((1 << 30) + (4 << 20)), 1), (high, 1)] {
        let error = FirstError::BadArea { group, at: second };
        assert_eq!(embed(plan, known, &[low, second], u64::MAX), Err(error));
        assert!(!std::format!("{error}").is_empty());
    }
    assert!(embed(plan, known, &[low, Va::new((1 << 30) + (6 << 20))], u64::MAX).is_ok());
}
