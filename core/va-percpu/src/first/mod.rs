//! The first chunk, as a machine places it at boot: where the units of each group of CPUs are.
//!
//! # Theory
//! [`plan`] groups CPUs and chooses the size of a unit. The static data of the program exists before
//! any allocator, so the machine supplies the memory of the first chunk, and there are two ways:
//!
//! - *Embedded*: one area for each group, in the memory of its node, wherever the early allocator had room. The areas
//!   have distances from the lowest one, and all later chunks are areas at the same distances. So the distances must be
//!   small compared with the address space of chunks. Units without a CPU, and the end of each unit, are freed.
//! - *By page*: pages of each CPU, mapped one after the other in one area. No memory is freed and no distance is too
//!   large. Each page of it needs its own translation.
//!
//! ```text
//!   embedded   base | u0 u1 u2 -- |        hole        | u3 u4 u5 -- |      (--: no CPU; freed)
//!              group 0, offset 0                         group 1, offset = its area - base
//!   unit       | static | reserved | dynamic | freed |
//! ```
//!
//! All functions work on slices of the caller, with an entry for each group or for each possible CPU. A machine whose
//! CPU numbers have gaps passes its CPUs in ascending order: here a CPU is its place in that order.
//!
//! The result is [`Geometry::new`] of the plan's sizes and the base, with which a space begins
//! ([`EarlyPercpu::init`](crate::EarlyPercpu::init)), and [`Groups`](crate::vm::Groups) for its backend: [`areas`] and
//! [`unit_offsets`].
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_build_alloc_info`, `pcpu_embed_first_chunk`, `pcpu_page_first_chunk`,
//! `pcpu_setup_first_chunk`). Decision 0069.

use crate::geometry::Geometry;
use crate::plan::{Plan, PlanError, Wish, plan};
use core::fmt;
use va_base::{PAGE_SIZE, Va, VaRange};

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

/// The units of a group of CPUs, which are in one area of each chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The distance of its area from the lowest one, in bytes.
    pub offset: u64,
    /// The number of its first unit; units are counted through all groups.
    pub first: u32,
    /// Its units, those without a CPU included.
    pub units: u32,
    /// Its CPUs, which have the first units.
    pub cpus: u32,
}

/// The reason why there is no first chunk. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FirstError {
    /// A slice does not have an entry for each group or CPU.
    BadSlice {
        /// The required entries.
        required: usize,
        /// The present ones.
        found: usize,
    },
    /// A CPU has a group or a unit that the plan does not have.
    BadCpu {
        /// The CPU's place.
        cpu: usize,
        /// Its group.
        group: u32,
        /// Its unit, if that is wrong.
        unit: Option<u32>,
    },
    /// An area is not at a multiple of the atom, extends past the last address, or overlaps another.
    BadArea {
        /// The group's number.
        group: usize,
        /// The address.
        at: Va,
    },
    /// The areas are too far from each other for the address space of chunks: place the first chunk by page.
    TooFar {
        /// Bytes from the beginning of the lowest to the end of the highest.
        distance: u64,
        /// Three quarters of the address space.
        limit: u64,
    },
}

impl fmt::Display for FirstError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSlice { required, found } => write!(f, "{found} entries where {required} are required"),
            Self::BadCpu { cpu, group, unit } => match unit {
                Some(unit) => write!(f, "CPU {cpu} has unit {unit}, which is not of its group {group}"),
                None => write!(f, "CPU {cpu} has group {group}, which is not in the plan"),
            },
            Self::BadArea { group, at } => write!(f, "group {group} cannot be at {at}"),
            Self::TooFar { distance, limit } => {
                write!(f, "the groups are within {distance} bytes, which is more than {limit}")
            }
        }
    }
}

impl core::error::Error for FirstError {}

/// The placement of an embedded first chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Embedded {
    /// The address of the lowest area, where the first chunk begins.
    pub base: Va,
    /// Bytes from there to the end of the highest area.
    pub distance: u64,
}

/// The CPUs whose units are the lowest and the highest, between which all others are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The place of the CPU with the lowest unit.
    pub low: usize,
    /// The place of the CPU with the highest unit.
    pub high: usize,
}

fn check_len(required: usize, found: usize) -> Result<(), FirstError> {
    if required == found { Ok(()) } else { Err(FirstError::BadSlice { required, found }) }
}

impl Group {
    /// Returns the bytes of its area.
    #[must_use]
    pub fn bytes(&self, plan: &Plan) -> u64 {
        u64::from(self.units) * u64::from(plan.sizes.unit)
    }
}

/// Describes the groups of a plan, adjacent to each other: those of a machine that reserves one area for all of them.
/// `of_cpus` has the group of each CPU, as [`plan`] wrote it.
///
/// # Errors
/// `out` does not have an entry for each group, or a CPU has another group.
/// Cost: O(CPUs + groups).
pub fn groups(plan: &Plan, of_cpus: &[u32], out: &mut [Group]) -> Result<(), FirstError> {
    check_len(plan.groups as usize, out.len())?;
    if let Some((cpu, &group)) = of_cpus.iter().enumerate().find(|(_, group)| **group >= plan.groups) {
        return Err(FirstError::BadCpu { cpu, group, unit: None });
    }
    out.fill(Group::default());
    for &group in of_cpus {
        out[group as usize].cpus += 1;
    }
    let mut first = 0;
    for group in out {
        group.first = first;
        group.offset = u64::from(first) * u64::from(plan.sizes.unit);
        group.units = group.cpus.next_multiple_of(plan.units_per_alloc);
        first += group.units;
    }
    Ok(())
}

/// Plans a first chunk by page: one group, and a unit of as few pages as hold it. Dynamic bytes are the least ones and
/// the rest of the last page. The area has a unit for each CPU.
///
/// # Errors
/// As [`plan`].
/// Cost: CPUs squared.
pub fn plan_by_page(
    fixed: u32,
    reserved: u32,
    groups: &mut [u32],
    units: &mut [u32],
) -> Result<Plan, PlanError> {
    plan(&Wish { fixed, reserved, dynamic: 0, atom: PAGE_SIZE as u32 }, |_, _| true, groups, units)
}

/// Places an embedded first chunk: `areas` has the address of each group's area, and the offsets of the groups become
/// the distances from the lowest one. `space_bytes` is the size of the address space of chunks (`VMALLOC_TOTAL`); a
/// machine that cannot place a first chunk by page passes [`u64::MAX`].
///
/// # Errors
/// The areas are wrong or too far from each other. The caller frees them.
/// Cost: groups squared.
pub fn embed(
    plan: &Plan,
    groups: &mut [Group],
    areas: &[Va],
    space_bytes: u64,
) -> Result<Embedded, FirstError> {
    check_len(plan.groups as usize, groups.len())?;
    check_len(groups.len(), areas.len())?;
    let range = |nth: usize| {
        let (at, group) = (*areas.get(nth)?, groups.get(nth)?);
        let aligned = at.get().is_multiple_of(plan.sizes.atom.into());
        VaRange::from_size(at, group.bytes(plan)).filter(|_| aligned)
    };
    let (mut base, mut end) = (Va::MAX, Va::ZERO);
    for (group, &at) in areas.iter().enumerate() {
        let bad = FirstError::BadArea { group, at };
        let here = range(group).ok_or(bad)?;
        if (0..group).filter_map(range).any(|other| other.overlaps(here)) {
            return Err(bad);
        }
        base = base.min(here.start());
        end = end.max(here.end());
    }
    // The highest area is the one that ends last, since no two overlap.
    let distance = end.get() - base.get();
    let limit = (u128::from(space_bytes) * 3 / 4) as u64;
    if distance > limit {
        return Err(FirstError::TooFar { distance, limit });
    }
    for (group, at) in groups.iter_mut().zip(areas) {
        group.offset = at.get() - base.get();
    }
    Ok(Embedded { base, distance })
}

/// Returns the memory of an embedded first chunk that no CPU uses: the units without one, and the end of each other
/// unit. Ranges of adjacent units are separate, since an early allocator frees any part.
pub fn unused<'a>(plan: &'a Plan, groups: &'a [Group], base: Va) -> impl Iterator<Item = VaRange> + use<'a> {
    let unit = u64::from(plan.sizes.unit);
    let used = u64::from(plan.sizes.fixed) + u64::from(plan.sizes.reserved) + u64::from(plan.sizes.dynamic);
    groups.iter().flat_map(move |group| {
        let start = base.get().wrapping_add(group.offset);
        (0..group.units).filter_map(move |nth| {
            let end = Va::new(start).checked_add(u64::from(nth + 1) * unit)?;
            let kept = if nth < group.cpus { used } else { 0 };
            // Empty if the sections fill the unit.
            let range = VaRange::from_size(Va::new(end.get() - (unit - kept)), unit - kept)?;
            (!range.is_empty()).then_some(range)
        })
    })
}

/// Writes the distance of each CPU's unit from the base of a chunk: [`Groups::units`](crate::vm::Groups::units).
/// `of_cpus` and `units` are as [`plan`] wrote them.
///
/// # Errors
/// The slices do not have an entry for each CPU, or a CPU has a unit outside its group.
/// Cost: O(CPUs).
pub fn unit_offsets(
    plan: &Plan,
    groups: &[Group],
    of_cpus: &[u32],
    units: &[u32],
    out: &mut [u64],
) -> Result<Ends, FirstError> {
    check_len(plan.groups as usize, groups.len())?;
    check_len(of_cpus.len(), units.len())?;
    check_len(of_cpus.len(), out.len())?;
    let offset_of = |cpu: usize| {
        let (group, unit) = (of_cpus[cpu], units[cpu]);
        let of = groups.get(group as usize).ok_or(FirstError::BadCpu { cpu, group, unit: None })?;
        let nth = unit.checked_sub(of.first).filter(|nth| *nth < of.cpus);
        let nth = nth.ok_or(FirstError::BadCpu { cpu, group, unit: Some(unit) })?;
        Ok(of.offset + u64::from(nth) * u64::from(plan.sizes.unit))
    };
    (0..out.len()).try_for_each(|cpu| offset_of(cpu).map(|_| ()))?;
    for (cpu, offset) in out.iter_mut().enumerate() {
        *offset = offset_of(cpu)?;
    }
    let offsets = || out.iter().enumerate();
    let low = offsets().min_by_key(|(_, offset)| **offset);
    let high = offsets().max_by_key(|(_, offset)| **offset);
    // A plan has a CPU.
    let (low, high) = low.zip(high).ok_or(FirstError::BadSlice { required: 1, found: 0 })?;
    Ok(Ends { low: low.0, high: high.0 })
}

/// Writes the areas of a chunk in ascending order: [`Groups::areas`](crate::vm::Groups::areas).
///
/// # Errors
/// `out` does not have an entry for each group.
/// Cost: groups times their logarithm.
pub fn areas(plan: &Plan, groups: &[Group], out: &mut [(u64, u64)]) -> Result<(), FirstError> {
    check_len(plan.groups as usize, groups.len())?;
    check_len(groups.len(), out.len())?;
    for (area, group) in out.iter_mut().zip(groups) {
        *area = (group.offset, group.bytes(plan));
    }
    out.sort_unstable();
    Ok(())
}

impl Plan {
    /// Returns the geometry of a space whose first chunk begins at `base`.
    ///
    /// # Errors
    /// The base is not at a page, or the unit extends past the last address.
    pub fn geometry(&self, base: Va) -> Result<Geometry, crate::GeometryError> {
        Geometry::new(self.sizes, base)
    }
}
