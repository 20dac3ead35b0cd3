//! The errors of mappings, with their numbers. A call that fails changes nothing.

use super::os::VmapCall;
use core::fmt;
use va_base::AllocError;
use va_block::BlockError;
use va_map::{MapError, PageTableError};
use va_space::SpaceError;
use vmalloc_os::os::Errno;

/// The reason why no mapping was made, or no frames allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmapError {
    /// No frames were requested, or the list of frames to map is empty.
    Nothing,
    /// A frame does not exist.
    BadFrame {
        /// Its number.
        frame: usize,
        /// The number of existing frames.
        frames: usize,
    },
    /// A frame is of other [`Mappings`](super::Mappings).
    OtherMappings,
    /// The bytes are past the end.
    OutOfBounds {
        /// The offset of the first byte.
        offset: usize,
        /// The number of bytes.
        bytes: usize,
        /// The number of existing bytes.
        len: usize,
    },
    /// The mapping may only be read.
    ReadOnly,
    /// No mapping of that kind and size begins at an address.
    NotMapped {
        /// The address.
        address: usize,
    },
    /// No address range, or no range of frame numbers, has room for that many pages.
    NoSpace {
        /// The requested pages.
        pages: u64,
    },
    /// The process would have too many mappings.
    TooManyMappings {
        /// The mappings that would exist here.
        wanted: u64,
        /// The limit here: a quarter of `vm.max_map_count`.
        limit: u64,
    },
    /// The system has no memory for records.
    NoRecords,
    /// A system call failed.
    CallFailed {
        /// The call that failed.
        call: VmapCall,
        /// Its error number.
        errno: Errno,
    },
    /// The mappings belong to the process that this one was forked from.
    OtherProcess,
}

impl fmt::Display for VmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no frame is no mapping"),
            Self::BadFrame { frame, frames } => write!(f, "there is no frame {frame} among {frames}"),
            Self::OtherMappings => f.write_str("a frame is of other mappings"),
            Self::OutOfBounds { offset, bytes, len } => {
                write!(f, "{bytes} bytes from {offset} on are not among {len}")
            }
            Self::NotMapped { address } => write!(f, "no such mapping begins at {address:#x}"),
            Self::ReadOnly => f.write_str("the mapping may only be read"),
            Self::NoSpace { pages } => write!(f, "no address range for {pages} pages"),
            Self::TooManyMappings { wanted, limit } => {
                write!(f, "{wanted} mappings of the system are more than {limit}")
            }
            Self::NoRecords => f.write_str("no memory for records"),
            Self::CallFailed { call, errno } => write!(f, "the system call {call:?}: {errno}"),
            Self::OtherProcess => {
                f.write_str("the mappings belong to the process that this one was forked from")
            }
        }
    }
}

impl core::error::Error for VmapError {}

impl VmapError {
    /// Converts an error of the map, for a request for `pages` pages.
    pub(super) fn of(error: MapError, pages: u64) -> Self {
        match error {
            MapError::BadRequest(_) if pages == 0 => Self::Nothing,
            MapError::PageTable { why: PageTableError::Limit { wanted, limit }, .. } => {
                Self::TooManyMappings { wanted, limit }
            }
            MapError::PageTable { why: PageTableError::Other(number), .. } => {
                Self::CallFailed { call: VmapCall::Map, errno: Errno(number) }
            }
            MapError::NoRecords { .. }
            | MapError::Block(BlockError::NoTable)
            | MapError::Space(SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }))
            | MapError::Block(BlockError::Space(
                SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }),
            )) => Self::NoRecords,
            _ => Self::NoSpace { pages },
        }
    }
}
