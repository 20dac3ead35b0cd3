//! The errors of both allocators.

use crate::RangeInclusive;
use core::fmt;

/// The result of a call.
pub type Result<T> = core::result::Result<T, Error>;

/// The state of a range, in [`Error::InvalidStateTransition`].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Eq, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NodeState {
    /// It is free.
    Free,
    /// It is allocated.
    Allocated,
}

/// The reason why a call changed nothing.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Error {
    /// A sum is larger than the largest number.
    Overflow,
    /// The id is outside the range of the allocator.
    OutOfRange(u32),
    /// The id is free already.
    AlreadyReleased(u32),
    /// The id was never allocated.
    NeverAllocated(u32),
    /// No range fits, no id is free, the range of a free is no area, or the global allocator fails.
    ResourceNotAvailable,
    /// The range is empty, or too long for an allocator.
    InvalidRange(u64, u64),
    /// The alignment is not a power of two.
    InvalidAlignment,
    /// Two ranges overlap. No call of this crate returns it.
    Overlap(RangeInclusive, RangeInclusive),
    /// An exact range is allocated already.
    InvalidStateTransition(RangeInclusive, NodeState),
    /// The exact address is no multiple of the alignment.
    UnalignedAddress,
    /// A difference is below zero.
    Underflow,
    /// The size is zero.
    InvalidSize(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow => f.write_str("the sum of two numbers of the request is too large"),
            Self::OutOfRange(id) => write!(f, "id {id} is outside the range of the allocator"),
            Self::AlreadyReleased(id) => write!(f, "id {id} is free already"),
            Self::NeverAllocated(id) => write!(f, "id {id} was never allocated"),
            Self::ResourceNotAvailable => f.write_str("the requested resource is not available"),
            Self::InvalidRange(start, end) => write!(f, "{start}-{end} is no valid range"),
            Self::InvalidAlignment => f.write_str("the alignment is not a power of two"),
            Self::Overlap(range, other) => write!(f, "{range:?} overlaps {other:?}"),
            Self::InvalidStateTransition(range, state) => {
                write!(f, "{range:?} is in state {state:?} already")
            }
            Self::UnalignedAddress => f.write_str("the address is not aligned"),
            Self::Underflow => f.write_str("the difference of two numbers of the request is below zero"),
            Self::InvalidSize(size) => write!(f, "{size} is no valid size"),
        }
    }
}

impl core::error::Error for Error {}
