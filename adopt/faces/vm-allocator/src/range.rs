//! A range of addresses with both ends.

use crate::{Error, Result};

/// The addresses from a start to an end, both included.
///
/// ```
/// use vm_allocator::RangeInclusive;
/// let range = RangeInclusive::new(0x10, 0x1f).unwrap();
/// assert_eq!(range.len(), 0x10);
/// assert!(range.contains(&RangeInclusive::new(0x1f, 0x1f).unwrap()));
/// assert!(!range.overlaps(&RangeInclusive::new(0x20, 0x20).unwrap()));
/// assert!(RangeInclusive::new(2, 1).is_err() && RangeInclusive::new(0, u64::MAX).is_err());
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Hash, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "crate::saved::Ends"))]
pub struct RangeInclusive {
    start: u64,
    end: u64,
}

#[expect(clippy::len_without_is_empty, reason = "no range is empty; the original has no such method")]
impl RangeInclusive {
    /// Returns the range from `start` to `end`.
    ///
    /// # Errors
    /// [`Error::InvalidRange`] if `end` is below `start`, or if the length does not fit 64 bits.
    pub fn new(start: u64, end: u64) -> Result<Self> {
        match end.checked_sub(start) {
            Some(distance) if distance < u64::MAX => Ok(Self { start, end }),
            _ => Err(Error::InvalidRange(start, end)),
        }
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> u64 {
        self.end - self.start + 1
    }

    /// Returns true if the two have an address in common.
    pub fn overlaps(&self, other: &RangeInclusive) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Returns true if all of `other` is inside.
    pub fn contains(&self, other: &RangeInclusive) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the last address.
    pub fn end(&self) -> u64 {
        self.end
    }
}
