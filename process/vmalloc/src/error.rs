//! The errors of an allocator, with their numbers. A call that fails leaves the allocator unchanged (SP4), except that
//! caches may be empty.

use core::fmt;
use vmalloc_os::os::{Call, Errno};

/// The reason why an allocator could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CreateError {
    /// The process, or the caller, allows less address space than the smallest arena takes.
    TooSmall {
        /// The allowed bytes.
        bytes: usize,
        /// Bytes of the smallest arena.
        least_bytes: usize,
    },
    /// A system call failed.
    CallFailed {
        /// The call that failed.
        call: Call,
        /// Its error number.
        errno: Errno,
        /// The requested bytes.
        bytes: usize,
    },
    /// The system has no memory for records.
    NoRecords,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { bytes, least_bytes } => {
                write!(f, "an arena may have {bytes} bytes here and needs {least_bytes} at least")
            }
            Self::CallFailed { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
            Self::NoRecords => f.write_str("the system gave no memory for records"),
        }
    }
}

impl core::error::Error for CreateError {}

/// The reason why no area was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// A size of 0: an area has at least one byte.
    ZeroSize,
    /// Nothing fits, although all cached memory was released.
    NoSpace {
        /// The requested bytes.
        requested_bytes: usize,
        /// The requested alignment.
        align_bytes: usize,
        /// The largest free range of the arena.
        largest_bytes: usize,
    },
    /// A system call failed.
    CallFailed {
        /// The call that failed.
        call: Call,
        /// Its error number.
        errno: Errno,
        /// The requested bytes.
        bytes: usize,
    },
    /// The most areas already have a guard. Only where each guard splits a mapping (Linux before 6.13).
    TooManyGuards {
        /// The most areas that may have a guard at a time.
        guards_max: usize,
    },
    /// The system has no memory for records.
    NoRecords,
    /// The default allocator could not be created.
    NoAllocator(CreateError),
}

impl AllocError {
    /// Returns the more useful of two zones' errors: the larger free range.
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
            Self::CallFailed { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
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

/// The reason why nothing was freed: always a caller's mistake. The allocator is unchanged.
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

/// The reason why an area was not resized. The area is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResizeError {
    /// The address is not that of a live area.
    Free(FreeError),
    /// No memory could be allocated for the new size.
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
