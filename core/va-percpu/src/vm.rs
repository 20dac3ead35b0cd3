//! Chunks in address space, populated page by page: Linux's backend `percpu-vm`.
//!
//! A chunk is one area for each group of CPUs, at distances that are the same for all chunks. So a CPU's unit is as far
//! from the chunk's beginning as in the first one. A [`VmapSpace`] allocates the addresses; a [`Mapper`] maps pages
//! there.
//!
//! # Source
//! Linux `mm/percpu-vm.c` (6.12: `pcpu_populate_chunk`, `pcpu_create_chunk`).

use crate::backend::{Backend, BackendError, all_zero};
use crate::error::PlacementError;
use crate::geometry::Geometry;
use core::ops::Range;
use va_base::{Machine, PAGE_SIZE, RequestError, Va, VaRange};
use va_space::VmapSpace;
use va_space::config::{Config, Standard};
use va_tree::Congruent;

/// Maps pages of memory at addresses.
pub trait Mapper {
    /// Allocates pages near a CPU and maps them, all or none.
    ///
    /// # Errors
    /// [`BackendError`], and nothing has changed.
    fn map(&self, cpu: u32, range: VaRange) -> Result<(), BackendError>;

    /// Unmaps and frees pages that were mapped. CPUs may still translate them until [`flush`](Self::flush).
    fn unmap(&self, cpu: u32, range: VaRange);

    /// Flushes the translations of a range on every CPU.
    fn flush(&self, range: VaRange);

    /// Zeroes the bytes of a range, whose pages are mapped: those of one CPU's copy of an object, or of several adjacent
    /// ones, before they are allocated. Pages of the first chunk are among them. Called under no lock.
    fn zero(&self, range: VaRange);

    /// Returns whether the bytes of a range are zero; `None` if there is no memory behind the addresses, or it cannot be
    /// read. Only `validate` and debug assertions call it, to check [`zero`](Self::zero).
    fn is_zero(&self, range: VaRange) -> Option<bool> {
        let _ = range;
        None
    }
}

/// The placement of the units of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// Each group's distance from the first, and its size: ascending, in bytes, multiples of the atom.
    pub areas: &'a [(u64, u64)],
    /// For each possible CPU, the distance of its unit from the beginning of the first group, in bytes: whole pages inside
    /// one of the areas, which no other unit has. Units of padding have no entry.
    pub units: &'a [u64],
}

/// The backend.
pub struct VmChunks<'a, P: Machine + Clone, M, C: Config = Standard> {
    space: &'a VmapSpace<P, C>,
    areas: Congruent<'a>,
    units: &'a [u64],
    mapper: M,
}

impl<'a, P: Machine + Clone, M: Mapper, C: Config> VmChunks<'a, P, M, C> {
    /// Creates a backend that allocates chunks from `space`, at multiples of `atom`.
    ///
    /// The size of a unit is known once there is a geometry, so the units are checked when a space is created
    /// ([`PercpuSpace::new`](crate::PercpuSpace::new)). A caller that populates pages before that calls
    /// [`Backend::check`] first.
    ///
    /// # Errors
    /// The groups are not in order, or not multiples of the atom.
    pub fn new(
        space: &'a VmapSpace<P, C>,
        groups: Groups<'a>,
        atom: u32,
        mapper: M,
    ) -> Result<Self, RequestError> {
        let areas = Congruent::new(groups.areas, atom.into())?;
        Ok(Self { space, areas, units: groups.units, mapper })
    }

    /// Returns the mapper.
    pub fn mapper(&self) -> &M {
        &self.mapper
    }

    /// Returns the bytes of an object on each CPU.
    #[inline(always)]
    fn copies(&self, base: Va, off: u32, bytes: u32) -> impl Iterator<Item = VaRange> {
        let first = base.get() + u64::from(off);
        self.units
            .iter()
            .map(move |unit| VaRange::from_size(Va::new(first + unit), bytes.into()).unwrap_or_default())
    }

    fn of_unit(&self, base: Va, cpu: usize, pages: &Range<u32>) -> VaRange {
        let unit = base.get() + self.units[cpu];
        let at = |page: u32| Va::new(unit + u64::from(page) * PAGE_SIZE);
        VaRange::new(at(pages.start), at(pages.end)).unwrap_or_default()
    }
}

impl<P: Machine + Clone, M: Mapper, C: Config> Backend for VmChunks<'_, P, M, C> {
    const BY_PAGE: bool = true;

    /// O(CPUs squared), once.
    fn check(&self, geometry: &Geometry, cpus: u32) -> Result<(), PlacementError> {
        let (unit, most) = (geometry.unit_bytes(), geometry.sizes().units);
        let (units, bytes) = (self.units.len(), u64::from(unit));
        if units < cpus as usize || units > most as usize {
            return Err(PlacementError::BadCount { units, cpus, most });
        }
        for (cpu, &offset) in (0u32..).zip(self.units) {
            let area = self.areas.areas().iter().rev().find(|&&(start, _)| start <= offset);
            let fits = |&(start, size): &(u64, u64)| {
                size.checked_sub(bytes).is_some_and(|last| offset - start <= last)
            };
            if !offset.is_multiple_of(PAGE_SIZE) || !area.is_some_and(fits) {
                return Err(PlacementError::OutsideAreas { cpu, offset, unit });
            }
            let overlaps = |&(_, &other): &(u32, &u64)| offset.abs_diff(other) < bytes;
            if let Some((first, _)) = (0..cpu).zip(self.units).find(overlaps) {
                return Err(PlacementError::Overlap { first, second: cpu, offset });
            }
        }
        Ok(())
    }

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        self.space.alloc_congruent(&self.areas).map_err(|_| BackendError)
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        for &(offset, _) in self.areas.areas() {
            let freed = self.space.free_at(Va::new(base.get() + offset));
            // The areas are this chunk's; if one is not, its addresses stay out of use.
            debug_assert!(freed.is_ok(), "freeing a chunk at {base}: {freed:?}");
        }
    }

    fn populate(&self, geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), BackendError> {
        for cpu in 0..self.units.len() {
            if self.mapper.map(cpu as u32, self.of_unit(base, cpu, &pages)).is_err() {
                for done in 0..cpu {
                    self.mapper.unmap(done as u32, self.of_unit(base, done, &pages));
                }
                if cpu > 0 {
                    // They may be mapped again before the chunk is destroyed.
                    self.flush(geometry, base, pages);
                }
                return Err(BackendError);
            }
        }
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        for cpu in 0..self.units.len() {
            self.mapper.unmap(cpu as u32, self.of_unit(base, cpu, &pages));
        }
    }

    fn flush(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        // One range from the lowest unit to the highest, as Linux has it: it may be long, and it is one call.
        let of = |cpu| self.of_unit(base, cpu, &pages);
        let low = (0..self.units.len()).map(|cpu| of(cpu).start()).min();
        let high = (0..self.units.len()).map(|cpu| of(cpu).end()).max();
        if let Some(range) = low.zip(high).and_then(|(low, high)| VaRange::new(low, high)) {
            self.mapper.flush(range);
        }
    }

    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) {
        self.copies(base, off, bytes).for_each(|copy| self.mapper.zero(copy));
    }

    fn is_zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        all_zero(self.copies(base, off, bytes).map(|copy| self.mapper.is_zero(copy)))
    }
}

impl<P: Machine + Clone, M, C: Config> core::fmt::Debug for VmChunks<'_, P, M, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("VmChunks").field("areas", &self.areas).finish_non_exhaustive()
    }
}
