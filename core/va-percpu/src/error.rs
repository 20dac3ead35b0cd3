//! Errors, with their numbers. A call that fails leaves the space as it was (SP4).

use crate::geometry::{GeometryError, UNIT_BYTES_MIN};
use crate::offset::Offset;
use core::fmt;
use va_base::PAGE_SIZE;

/// The reason why no offset was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// The size is 0 or, in whole words of 4 bytes, above 32 KiB.
    BadSize {
        /// Bytes requested.
        bytes: usize,
    },
    /// The alignment is no power of two, or above a page.
    BadAlign {
        /// Bytes requested.
        align: usize,
    },
    /// The reserved section has no room.
    ReservedFull {
        /// Bytes requested.
        bytes: u32,
        /// Bytes free in the reserved section.
        free: u32,
    },
    /// No populated page has room, and the caller cannot wait for others.
    NoneInReach {
        /// Bytes requested.
        bytes: u32,
        /// Populated pages that are wholly free.
        spare_pages: i64,
    },
    /// The bytes requested at an offset are not free, or in no chunk.
    NotFree {
        /// The offset of the first of them.
        offset: Offset,
        /// Bytes requested.
        bytes: u32,
    },
    /// No chunk has room, and the backend created no further chunk.
    NoChunk {
        /// The number of chunks.
        chunks: u32,
    },
    /// No chunk has room, and the platform allocated no records for another.
    NoMeta {
        /// The number of chunks.
        chunks: u32,
    },
    /// The platform allocated no records for the list of a reserve.
    NoList {
        /// Objects requested.
        count: u32,
    },
    /// A chunk has room, and the backend did not populate it.
    NotPopulated {
        /// The first page of the chunk that was not populated.
        page: u32,
        /// Pages.
        pages: u32,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize { bytes } => write!(f, "{bytes} bytes are not from 1 to {UNIT_BYTES_MIN}"),
            Self::BadAlign { align } => write!(f, "align {align} is no power of two up to {PAGE_SIZE}"),
            Self::ReservedFull { bytes, free } => {
                write!(f, "no room for {bytes} bytes in the reserved part, of which {free} are free")
            }
            Self::NoneInReach { bytes, spare_pages } => write!(
                f,
                "no room for {bytes} bytes in populated pages, of which {spare_pages} are wholly free"
            ),
            Self::NotFree { offset, bytes } => write!(f, "the {bytes} bytes at offset {offset} are not free"),
            Self::NoChunk { chunks } => {
                write!(f, "no room in {chunks} chunks, and no further chunk was made")
            }
            Self::NoMeta { chunks } => {
                write!(f, "no room in {chunks} chunks, and no records were allocated for a further one")
            }
            Self::NoList { count } => write!(f, "no records were allocated for a list of {count} objects"),
            Self::NotPopulated { page, pages } => {
                write!(f, "{pages} pages from page {page} on were not populated")
            }
        }
    }
}

impl core::error::Error for AllocError {}

/// The reason why an offset was not freed: always a caller's mistake. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// The offset is in no chunk.
    NoChunk {
        /// The offset that the caller frees.
        offset: Offset,
    },
    /// The offset is in a chunk and no object starts there.
    NoObject {
        /// The offset that the caller frees.
        offset: Offset,
        /// The offset of the object that it is inside, if it is inside one.
        inside: Option<Offset>,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChunk { offset } => write!(f, "offset {offset} is in no chunk"),
            Self::NoObject { offset, inside: None } => write!(f, "no object starts at offset {offset}"),
            Self::NoObject { offset, inside: Some(start) } => {
                write!(f, "offset {offset} is inside the object at {start}")
            }
        }
    }
}

impl core::error::Error for FreeError {}

/// The reason why the units of a backend are not those of a geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlacementError {
    /// There are fewer units than possible CPUs, or more than a chunk has.
    BadCount {
        /// Units.
        units: usize,
        /// Possible CPUs.
        cpus: u32,
        /// Units of a chunk, including padding.
        most: u32,
    },
    /// A unit does not begin at a page, or none of the groups' areas holds all of it.
    OutsideAreas {
        /// Its CPU.
        cpu: u32,
        /// Its distance from the beginning of the chunk, in bytes.
        offset: u64,
        /// Its bytes.
        unit: u32,
    },
    /// Two units overlap.
    Overlap {
        /// The lower CPU.
        first: u32,
        /// The other one.
        second: u32,
        /// The distance of the second one's unit from the beginning of the chunk, in bytes.
        offset: u64,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCount { units, cpus, most } => {
                write!(f, "{units} units are given, for {cpus} possible CPUs and chunks of {most} units")
            }
            Self::OutsideAreas { cpu, offset, unit } => write!(
                f,
                "the unit of CPU {cpu}, {unit} bytes at {offset:#x}, is not whole pages in an area of the groups"
            ),
            Self::Overlap { first, second, offset } => {
                write!(f, "the unit of CPU {second} at {offset:#x} overlaps that of CPU {first}")
            }
        }
    }
}

impl core::error::Error for PlacementError {}

/// The reason why no space was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NewError {
    /// The sizes are inconsistent.
    Geometry(GeometryError),
    /// The units of the backend are not those of the geometry.
    Placement(PlacementError),
    /// The platform allocated no records for the first chunk.
    NoMeta,
    /// There is no space yet.
    NotReady,
    /// There is a space already, or another thread creates one.
    AlreadyReady,
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => fmt::Display::fmt(error, f),
            Self::Placement(error) => fmt::Display::fmt(error, f),
            Self::NoMeta => f.write_str("no records were allocated for the first chunk"),
            Self::NotReady => f.write_str("per-CPU memory is used before it is ready"),
            Self::AlreadyReady => f.write_str("there is per-CPU memory already"),
        }
    }
}

impl core::error::Error for NewError {}

impl From<GeometryError> for NewError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

impl From<PlacementError> for NewError {
    fn from(error: PlacementError) -> Self {
        Self::Placement(error)
    }
}
