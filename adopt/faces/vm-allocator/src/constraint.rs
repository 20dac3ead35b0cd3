//! The conditions of an allocation.

use crate::{Error, Result};

/// An alignment for callers that have no other: 4.
pub const DEFAULT_CONSTRAINT_ALIGN: u64 = 4;

/// The range to choose, of those that fit.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Default)]
pub enum AllocPolicy {
    /// The lowest.
    #[default]
    FirstMatch,
    /// The highest.
    LastMatch,
    /// The one that begins at this address.
    ExactMatch(u64),
}

/// A size, an alignment and a policy that go together.
///
/// ```
/// use vm_allocator::{AllocPolicy, Constraint, Error};
/// assert_eq!(Constraint::new(8, 4, AllocPolicy::FirstMatch).unwrap().size(), 8);
/// assert_eq!(Constraint::new(8, 4, AllocPolicy::ExactMatch(2)), Err(Error::UnalignedAddress));
/// ```
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Constraint {
    size: u64,
    align: u64,
    pub(crate) policy: AllocPolicy,
}

impl Constraint {
    /// Returns the constraint.
    ///
    /// # Errors
    /// [`Error::InvalidSize`] for size 0. [`Error::InvalidAlignment`] unless `align` is a power of two.
    /// [`Error::UnalignedAddress`] if the policy names an address that is no multiple of it.
    pub fn new(size: u64, align: u64, policy: AllocPolicy) -> Result<Self> {
        match policy {
            _ if size == 0 => Err(Error::InvalidSize(size)),
            _ if !align.is_power_of_two() => Err(Error::InvalidAlignment),
            AllocPolicy::ExactMatch(at) if !at.is_multiple_of(align) => Err(Error::UnalignedAddress),
            _ => Ok(Self { size, align, policy }),
        }
    }

    /// Returns the alignment.
    pub fn align(self) -> u64 {
        self.align
    }

    /// Returns the size.
    pub fn size(self) -> u64 {
        self.size
    }
}
