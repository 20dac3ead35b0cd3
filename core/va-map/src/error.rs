//! The errors of a map, with their numbers. A call that fails leaves the map as it was (SP4), except that caches may be
//! empty.

use crate::machine::PageTableError;
use crate::record::Kind;
use core::fmt;
use va_base::{Pages, RequestError, Va, VaRange};
use va_block::{BlockError, UnmapError};
use va_space::SpaceError;

/// The reason why nothing was mapped, or why an area was not resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapError {
    /// The request makes no sense in any space.
    BadRequest(RequestError),
    /// No address range.
    Space(SpaceError),
    /// No address range for a small mapping.
    Block(BlockError),
    /// The source allocated fewer pages than are needed.
    NoPages {
        /// Pages needed.
        wanted: Pages,
        /// Pages allocated, and freed again.
        got: Pages,
    },
    /// The page table failed to map the pages.
    PageTable {
        /// Pages to be mapped.
        wanted: Pages,
        /// Pages that were mapped by then, and were unmapped.
        mapped: Pages,
        /// The reason.
        why: PageTableError,
    },
    /// The machine allocated no memory for this many records.
    NoRecords {
        /// Records needed.
        records: usize,
    },
    /// The source cannot reset the permissions of pages ([`PageSource::RESETS`](crate::PageSource::RESETS)).
    NoReset,
    /// There is no such area to resize.
    NoArea(FreeError),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(error) => fmt::Display::fmt(error, f),
            Self::Space(error) => fmt::Display::fmt(error, f),
            Self::Block(error) => fmt::Display::fmt(error, f),
            Self::NoPages { wanted, got } => write!(f, "of {wanted} the source has {got}"),
            Self::PageTable { wanted, mapped, why } => {
                write!(f, "of {wanted} to be mapped {mapped} were, then: {why}")
            }
            Self::NoRecords { records } => {
                write!(f, "the machine allocated no memory for {records} records of areas")
            }
            Self::NoReset => f.write_str("the machine does not reset the permissions of pages"),
            Self::NoArea(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for MapError {}

impl From<RequestError> for MapError {
    fn from(error: RequestError) -> Self {
        Self::BadRequest(error)
    }
}

impl From<SpaceError> for MapError {
    fn from(error: SpaceError) -> Self {
        Self::Space(error)
    }
}

impl From<BlockError> for MapError {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

impl From<FreeError> for MapError {
    fn from(error: FreeError) -> Self {
        Self::NoArea(error)
    }
}

/// The reason why nothing was freed: always a caller's mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// No area starts there.
    NoArea {
        /// The address.
        at: Va,
        /// The area that the address is inside, if it is.
        inside: Option<VaRange>,
    },
    /// The area is of another kind, and is freed by another call.
    WrongKind {
        /// The area.
        area: VaRange,
        /// The kind of the area.
        kind: Kind,
    },
    /// The area was freed already, by a call that left the work to [`run_deferred`](crate::MapSpace::run_deferred).
    Deferred {
        /// The area.
        area: VaRange,
    },
    /// The mapping has another size.
    WrongCount {
        /// The address.
        at: Va,
        /// Pages that the caller frees.
        pages: Pages,
        /// Pages of the mapping.
        mapped: Pages,
    },
    /// A small mapping was not freed.
    Block(UnmapError),
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea { at, inside: None } => write!(f, "no area starts at {at}"),
            Self::NoArea { at, inside: Some(area) } => {
                write!(f, "no area starts at {at}, which is inside {area}")
            }
            Self::WrongKind { area, kind } => write!(f, "the area {area} is of {kind}"),
            Self::Deferred { area } => write!(f, "the free of the area {area} is deferred"),
            Self::WrongCount { at, pages, mapped } => {
                write!(f, "the mapping at {at} has {mapped}, not {pages}")
            }
            Self::Block(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for FreeError {}

impl From<UnmapError> for FreeError {
    fn from(error: UnmapError) -> Self {
        Self::Block(error)
    }
}
