//! Ranges of addresses.

use crate::error::NodeState;
use crate::{AllocPolicy, Constraint, Error, RangeInclusive, Result};
use alloc::boxed::Box;
use core::cmp::Ordering;
use va_compat::{Side, TrackedUnits};

/// An allocator of the addresses of one range.
///
/// Every call takes O(log n) for n areas.
///
/// ```
/// use vm_allocator::{AddressAllocator, AllocPolicy, Error, RangeInclusive};
/// let mut space = AddressAllocator::new(0x1000, 0x1000)?;
/// let first = space.allocate(0x110, 0x100, AllocPolicy::FirstMatch)?;
/// assert_eq!(first, RangeInclusive::new(0x1000, 0x110f)?);
/// assert_eq!(space.allocate(0x10, 0x10, AllocPolicy::LastMatch)?.start(), 0x1ff0);
/// assert_eq!(space.allocate(8, 8, AllocPolicy::ExactMatch(0x1100)), Err(Error::ResourceNotAvailable));
/// space.free(&first)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "crate::saved::Allocator", try_from = "crate::saved::Allocator"))]
pub struct AddressAllocator {
    pub(crate) address_space: RangeInclusive,
    pub(crate) units: Box<TrackedUnits>,
}

impl AddressAllocator {
    /// Creates an allocator of the `size` addresses from `base` on.
    ///
    /// # Errors
    /// [`Error::Underflow`] for size 0, [`Error::Overflow`] if the range ends past 2^64 - 1. [`Error::InvalidRange`] for
    /// all 2^64 addresses, and if more than 2^51 addresses do not end below 2^52 - 1.
    pub fn new(base: u64, size: u64) -> Result<Self> {
        let last = base.checked_add(size.checked_sub(1).ok_or(Error::Underflow)?).ok_or(Error::Overflow)?;
        let address_space = RangeInclusive::new(base, last)?;
        let units = TrackedUnits::new(base, last).ok_or(Error::InvalidRange(base, last))?;
        Ok(Self { address_space, units: Box::new(units) })
    }

    /// Allocates a range of `size` addresses whose first is a multiple of `alignment`, chosen by `policy`.
    ///
    /// # Errors
    /// Those of [`Constraint::new`]. [`Error::ResourceNotAvailable`] if no such range is free.
    /// [`Error::InvalidStateTransition`] if an exact range is an area already. [`Error::Overflow`] if an exact range ends
    /// past 2^64 - 1, and for the exact address 2^64 - 1.
    pub fn allocate(&mut self, size: u64, alignment: u64, policy: AllocPolicy) -> Result<RangeInclusive> {
        let constraint = Constraint::new(size, alignment, policy)?;
        let align_log2 = alignment.trailing_zeros();
        let start = match constraint.policy {
            AllocPolicy::FirstMatch => self.units.alloc(size, align_log2, Side::Lowest),
            AllocPolicy::LastMatch => self.units.alloc(size, align_log2, Side::Highest),
            AllocPolicy::ExactMatch(start) => return self.allocate_exactly(start, size),
        };
        let start = start.ok_or(Error::ResourceNotAvailable)?;
        RangeInclusive::new(start, start + (size - 1))
    }

    fn allocate_exactly(&mut self, start: u64, size: u64) -> Result<RangeInclusive> {
        if start == u64::MAX {
            return Err(Error::Overflow);
        }
        if start < self.base() || start > self.end() {
            return Err(Error::ResourceNotAvailable);
        }
        let range = RangeInclusive::new(start, start.checked_add(size - 1).ok_or(Error::Overflow)?)?;
        if self.units.take(start, size) {
            Ok(range)
        } else if self.units.is_area(start, size) {
            Err(Error::InvalidStateTransition(range, NodeState::Allocated))
        } else {
            Err(Error::ResourceNotAvailable)
        }
    }

    /// Frees a range that was allocated. Like the original, it accepts a range that is free, if no address beside it is.
    ///
    /// # Errors
    /// [`Error::ResourceNotAvailable`] for every other range.
    pub fn free(&mut self, key: &RangeInclusive) -> Result<()> {
        match self.units.free(key.start(), key.len()) {
            Err(_) if !self.units.is_hole(key.start(), key.len()) => Err(Error::ResourceNotAvailable),
            _ => Ok(()),
        }
    }

    /// Returns the first address.
    pub fn base(&self) -> u64 {
        self.address_space.start()
    }

    /// Returns the last address.
    pub fn end(&self) -> u64 {
        self.address_space.end()
    }
}

/// By the addresses, then by the areas. The original compares the shapes of its trees.
impl Ord for AddressAllocator {
    fn cmp(&self, other: &Self) -> Ordering {
        self.address_space.cmp(&other.address_space).then_with(|| self.units.areas().cmp(other.units.areas()))
    }
}

impl PartialOrd for AddressAllocator {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for AddressAllocator {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for AddressAllocator {}
