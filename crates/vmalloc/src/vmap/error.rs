//! Refusals of mappings, with their numbers. Nothing has changed for whoever gets one.

use super::os::VmapCall;
use crate::os::Errno;
use core::fmt;
use va_base::AllocError;
use va_block::BlockError;
use va_map::{MapError, PageTableError};
use va_space::SpaceError;

/// The reason why there is no mapping, or no frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmapError {
    /// No frames were asked for, or none to be mapped.
    Nothing,
    /// A frame that there is not.
    BadFrame {
        /// Its number.
        frame: usize,
        /// The number of frames that there are.
        frames: usize,
    },
    /// A frame of other [`Mappings`](super::Mappings).
    OtherMappings,
    /// Bytes past the end.
    OutOfBounds {
        /// The offset of the first.
        offset: usize,
        /// The number of bytes.
        bytes: usize,
        /// The bytes that there are.
        len: usize,
    },
    /// It may only be read.
    ReadOnly,
    /// No mapping of that kind and size begins at an address.
    NotMapped {
        /// The address.
        address: usize,
    },
    /// No address range, or no numbers of frames, for so many pages.
    NoSpace {
        /// Pages.
        pages: u64,
    },
    /// The process would have too many mappings.
    TooManyMappings {
        /// The mappings that there would be here.
        wanted: u64,
        /// The mappings that there may be here: a quarter of `vm.max_map_count`.
        limit: u64,
    },
    /// No memory for records.
    NoRecords,
    /// The system refused a call.
    Refused {
        /// Which.
        call: VmapCall,
        /// The reason.
        errno: Errno,
    },
    /// They belong to the process that this one was forked from.
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
            Self::Refused { call, errno } => write!(f, "the system refused {call:?}: {errno}"),
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
                Self::Refused { call: VmapCall::Map, errno: Errno(number) }
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
