//! Reports on the free space.

use crate::small_float;
use va_compat::BestFitUnits;

/// The number of bins in a full report.
const BINS: usize = 256;

/// The free space, and the largest part of it in one piece.
#[derive(Debug)]
pub struct StorageReport {
    /// The free units; 0 if no number of an allocation is left.
    pub total_free_space: u32,
    /// The largest size that can be allocated now, exactly; the original rounds it down to the size of a bin.
    pub largest_free_region: u32,
}

/// The free regions by size.
#[derive(Debug)]
pub struct StorageReportFull {
    /// The bins, from the smallest size on.
    pub free_regions: [StorageReportFullRegion; BINS],
}

/// The free regions of one bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct StorageReportFullRegion {
    /// The smallest size in this bin, in units.
    pub size: u32,
    /// The number of free regions.
    pub count: u32,
}

impl Default for StorageReportFull {
    fn default() -> Self {
        Self { free_regions: [StorageReportFullRegion::default(); BINS] }
    }
}

impl StorageReportFull {
    /// Counts the holes by size, O(n log n).
    pub(crate) fn new(free: &BestFitUnits) -> Self {
        let mut report = Self::default();
        for (bin, region) in (0..).zip(&mut report.free_regions) {
            region.size = small_float::float_to_uint(bin);
        }
        for (start, end) in free.iter() {
            let bin = small_float::uint_to_float_round_down((end - start) as u32);
            report.free_regions[bin as usize].count += 1;
        }
        report
    }
}
