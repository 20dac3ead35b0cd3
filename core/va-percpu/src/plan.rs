//! Groups of CPUs, and the number of units in an allocation of address space.
//!
//! # Theory
//! CPUs that are local to each other in both directions form a group, whose units are in one range of addresses (a
//! memory node). Address space is allocated in multiples of an atom, which may hold several units; a group that does
//! not fill its last atom wastes the rest. As many units as possible are put in one, as long as the waste is at most a
//! third of the number of CPUs. Fewer are put in one only while that does not take more atoms. At least three quarters
//! of the units are used then.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_build_alloc_info`).

use crate::geometry::{DYNAMIC_BYTES_MIN, GeometryError, Sizes, UNIT_BYTES_MAX, UNIT_BYTES_MIN};
use core::fmt;
use va_base::PAGE_SIZE;

/// The sizes that the first chunk must hold, and the unit of allocation for address space, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Static data.
    pub fixed: u32,
    /// The reserved section, a multiple of 4.
    pub reserved: u32,
    /// The least dynamic bytes; the rest of the last page is added.
    pub dynamic: u32,
    /// A power of two of at least a page.
    pub atom: u32,
}

/// The reason why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlanError {
    /// The sizes are inconsistent.
    Geometry(GeometryError),
    /// There are no CPUs, or the slices for groups and units do not have one entry for each.
    BadCpus {
        /// Entries for groups.
        groups: usize,
        /// Entries for units.
        units: usize,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => fmt::Display::fmt(error, f),
            Self::BadCpus { groups, units } => {
                write!(f, "{groups} places for groups and {units} for units are not one for each CPU")
            }
        }
    }
}

impl core::error::Error for PlanError {}

/// The sizes of units and sections, and the number of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Sizes; the units are those of all groups, including padding.
    pub sizes: Sizes,
    /// Groups.
    pub groups: u32,
    /// Units that an allocation of address space holds.
    pub units_per_alloc: u32,
}

/// Assigns each CPU a group and a unit, both counted from 0. There are as many CPUs as entries of the slices.
///
/// Groups are adjacent here: group `g` begins with the lowest unit of its CPUs and holds its CPUs in ascending order,
/// padded to whole allocations. `local` returns whether one CPU is as near to another as to itself.
///
/// # Errors
/// [`PlanError`]; the values of the slices are unspecified then.
/// Cost: CPUs squared.
pub fn plan(
    wish: &Wish,
    local: impl Fn(u32, u32) -> bool,
    groups: &mut [u32],
    units: &mut [u32],
) -> Result<Plan, PlanError> {
    let cpus = groups.len() as u32;
    if groups.is_empty() || groups.len() != units.len() || u32::try_from(groups.len()).is_err() {
        return Err(PlanError::BadCpus { groups: groups.len(), units: units.len() });
    }
    let page = PAGE_SIZE as u32;
    if !wish.atom.is_power_of_two() || wish.atom < page {
        return Err(PlanError::Geometry(GeometryError::BadAtom { atom: wish.atom }));
    }
    if !wish.reserved.is_multiple_of(crate::BIT_BYTES) {
        return Err(PlanError::Geometry(GeometryError::BadReserved { reserved: wish.reserved }));
    }
    let parts =
        u64::from(wish.fixed) + u64::from(wish.reserved) + u64::from(wish.dynamic.max(DYNAMIC_BYTES_MIN));
    let too_large = PlanError::Geometry(GeometryError::TooLarge { parts, unit: UNIT_BYTES_MAX });
    let sum = u32::try_from(parts.next_multiple_of(PAGE_SIZE)).map_err(|_| too_large)?;
    let least = sum.max(UNIT_BYTES_MIN);
    let alloc = least
        .checked_next_multiple_of(wish.atom)
        .filter(|alloc| *alloc <= UNIT_BYTES_MAX)
        .ok_or(too_large)?;

    let count = group_cpus(local, groups);
    // The members of each group, where the units are written later.
    units.fill(0);
    groups.iter().for_each(|&group| units[group as usize] += 1);
    let members = units.get(..count as usize).unwrap_or_default();
    let fits = |per: u32| alloc.is_multiple_of(per) && (alloc / per).is_multiple_of(page);
    let (mut best, mut fewest) = (1, u64::MAX);
    for per in (1..=alloc / least).rev().filter(|&per| fits(per)) {
        let allocs: u64 = members.iter().map(|&members| u64::from(members.div_ceil(per))).sum();
        if allocs * u64::from(per) - u64::from(cpus) > u64::from(cpus / 3) {
            continue;
        }
        if allocs > fewest {
            break;
        }
        (best, fewest) = (per, allocs);
    }
    let mut first = 0;
    for group in 0..count {
        let mut next = first;
        for (unit, _) in units.iter_mut().zip(groups.iter()).filter(|(_, of)| **of == group) {
            *unit = next;
            next += 1;
        }
        first += (next - first).next_multiple_of(best);
    }
    let Wish { fixed, reserved, atom, .. } = *wish;
    let dynamic = sum - fixed - reserved;
    let sizes = Sizes { unit: alloc / best, fixed, reserved, dynamic, atom, alloc, units: first };
    Ok(Plan { sizes, groups: count, units_per_alloc: best })
}

/// Puts CPUs into groups, each with the lowest CPU that it is local to; returns the number of groups.
fn group_cpus(local: impl Fn(u32, u32) -> bool, groups: &mut [u32]) -> u32 {
    const NONE: u32 = u32::MAX;
    groups.fill(NONE);
    let mut count = 0;
    for first in 0..groups.len() {
        if groups[first] != NONE {
            continue;
        }
        groups[first] = count;
        for (other, group) in groups.iter_mut().enumerate().skip(first + 1) {
            let (a, b) = (first as u32, other as u32);
            if *group == NONE && local(a, b) && local(b, a) {
                *group = count;
            }
        }
        count += 1;
    }
    count
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const X86: Wish = Wish { fixed: 221_184, reserved: 8192, dynamic: 28 << 10, atom: 2 << 20 };

    fn of(wish: &Wish, cpus: usize, local: impl Fn(u32, u32) -> bool) -> (Plan, Vec<u32>, Vec<u32>) {
        let (mut groups, mut units) = (vec![0; cpus], vec![0; cpus]);
        match plan(wish, local, &mut groups, &mut units) {
            Ok(plan) => (plan, groups, units),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_usual_machine_has_the_units_that_linux_prints() {
        let (plan, groups, units) = of(&X86, 8, |_, _| true);
        assert_eq!((plan.sizes.unit, plan.sizes.alloc, plan.units_per_alloc), (262_144, 2 << 20, 8));
        assert_eq!((plan.groups, plan.sizes.units, groups), (1, 8, vec![0; 8]));
        assert_eq!(units, (0..8).collect::<Vec<u32>>());
        // Four CPUs: eight units would waste four, more than a third.
        let (plan, ..) = of(&X86, 4, |_, _| true);
        assert_eq!((plan.sizes.unit, plan.units_per_alloc, plan.sizes.units), (524_288, 4, 4));
        // Six: eight units waste two, which is a third and no more.
        let (plan, ..) = of(&X86, 6, |_, _| true);
        assert_eq!((plan.sizes.unit, plan.units_per_alloc, plan.sizes.units), (262_144, 8, 8));
    }

    #[test]
    fn cpus_that_are_local_to_each_other_are_grouped() {
        let (plan, groups, units) = of(&X86, 8, |a, b| a % 2 == b % 2);
        assert_eq!((plan.groups, plan.units_per_alloc, plan.sizes.units), (2, 4, 8));
        assert_eq!((groups, units), (vec![0, 1, 0, 1, 0, 1, 0, 1], vec![0, 4, 1, 5, 2, 6, 3, 7]));
        let (plan, groups, _) = of(&X86, 3, |a, b| a <= b);
        assert_eq!((plan.groups, groups), (3, vec![0, 1, 2]));
    }

    #[test]
    fn three_quarters_of_the_units_are_used_by_cpus() {
        for cpus in 1..40usize {
            for nodes in 1..5u32 {
                for fixed in [0, 5000, 100_000, 300_000, 1_000_000] {
                    for atom in [4096, 64 << 10, 2 << 20] {
                        let wish = Wish { fixed, atom, ..X86 };
                        let (plan, _, mut units) = of(&wish, cpus, |a, b| a % nodes == b % nodes);
                        units.sort_unstable();
                        units.dedup();
                        assert_eq!(units.len(), cpus);
                        assert!(units.iter().all(|&unit| unit < plan.sizes.units));
                        assert!(cpus as u32 * 4 >= plan.sizes.units * 3, "{cpus} of {}", plan.sizes.units);
                        crate::Geometry::new(plan.sizes, va_base::Va::new(1 << 30)).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_planned_is_an_error() {
        let plan_of = |wish: Wish| plan(&wish, |_, _| true, &mut [0; 2], &mut [0; 2]);
        assert!(matches!(plan_of(Wish { atom: 5000, ..X86 }), Err(PlanError::Geometry(_))));
        assert!(matches!(plan_of(Wish { reserved: 3, ..X86 }), Err(PlanError::Geometry(_))));
        assert!(matches!(plan_of(Wish { fixed: u32::MAX, ..X86 }), Err(PlanError::Geometry(_))));
        let error = plan(&X86, |_, _| true, &mut [], &mut []).unwrap_err();
        assert_eq!(error, PlanError::BadCpus { groups: 0, units: 0 });
    }
}
