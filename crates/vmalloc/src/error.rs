//! The errors of an allocator, with their numbers. A call that fails leaves the allocator as it was (SP4), except that
//! caches may be empty.

use crate::os::{Call, Errno};
use core::fmt;

/// The reason why there is no allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The process, or the caller, allows less address space than the smallest arena takes.
    TooSmall {
        /// Bytes that there could be.
        bytes: usize,
        /// Bytes of the smallest arena.
        least_bytes: usize,
    },
    /// The system refused.
    Refused {
        /// The call that failed.
        call: Call,
        /// Its answer.
        errno: Errno,
        /// For how much.
        bytes: usize,
    },
    /// The system gave no memory for records.
    NoRecords,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { bytes, least_bytes } => {
                write!(f, "an arena may have {bytes} bytes here and needs {least_bytes} at least")
            }
            Self::Refused { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
            Self::NoRecords => f.write_str("the system gave no memory for records"),
        }
    }
}

impl core::error::Error for CreateError {}

/// The reason why no area was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// A size of 0: there is nothing to point to.
    ZeroSize,
    /// Nothing fits, although all cached memory was released.
    NoSpace {
        /// Bytes asked for.
        requested_bytes: usize,
        /// Alignment asked for.
        align_bytes: usize,
        /// The largest free range of the arena.
        largest_bytes: usize,
    },
    /// The system refused.
    Refused {
        /// The call that failed.
        call: Call,
        /// Its answer.
        errno: Errno,
        /// For how much.
        bytes: usize,
    },
    /// As many areas have a guard as there may be where each splits a mapping (Linux before 6.13).
    TooManyGuards {
        /// Areas that may have one at a time.
        guards_max: usize,
    },
    /// The system gave no memory for records.
    NoRecords,
    /// There is no default allocator, since it could not be created.
    NoAllocator(CreateError),
}

impl AllocError {
    /// Of two zones' refusals the one that tells more.
    pub(crate) fn larger(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoSpace { largest_bytes: one, .. }, Self::NoSpace { largest_bytes: two, .. })
                if one >= two =>
            {
                self
            }
            _ => other,
        }
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("a size of 0"),
            Self::NoSpace { requested_bytes, align_bytes, largest_bytes } => write!(
                f,
                "no room for {requested_bytes} bytes aligned to {align_bytes}, the largest free range is {largest_bytes}"
            ),
            Self::Refused { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
            Self::TooManyGuards { guards_max } => {
                write!(
                    f,
                    "{guards_max} areas have a guard, each of which splits a mapping: there may be no more"
                )
            }
            Self::NoRecords => f.write_str("the system gave no memory for records"),
            Self::NoAllocator(error) => write!(f, "there is no default allocator: {error}"),
        }
    }
}

impl core::error::Error for AllocError {}

/// The reason why nothing was freed: always a caller's mistake. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// The address is outside the arena.
    NotOurs {
        /// The address.
        address: usize,
    },
    /// The address is in the arena, and no live area begins there.
    NoArea {
        /// The address.
        address: usize,
    },
    /// An area that began there was freed before.
    AlreadyFree {
        /// The address.
        address: usize,
        /// The bytes of its pages.
        bytes: usize,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs { address } => write!(f, "{address:#x} is outside the arena"),
            Self::NoArea { address } => write!(f, "no area begins at {address:#x}"),
            Self::AlreadyFree { address, bytes } => {
                write!(f, "the area of {bytes} bytes at {address:#x} was freed before")
            }
        }
    }
}

impl core::error::Error for FreeError {}

/// The reason why an area keeps its size. It is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResizeError {
    /// It is no area.
    Free(FreeError),
    /// There is nothing to be had for it.
    Alloc(AllocError),
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free(error) => fmt::Display::fmt(error, f),
            Self::Alloc(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for ResizeError {}

impl From<FreeError> for ResizeError {
    fn from(error: FreeError) -> Self {
        Self::Free(error)
    }
}

impl From<AllocError> for ResizeError {
    fn from(error: AllocError) -> Self {
        Self::Alloc(error)
    }
}
