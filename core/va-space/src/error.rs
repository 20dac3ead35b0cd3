//! The errors of a space, with their numbers. A call that fails leaves the space as it was (SP4), except that caches
//! may be empty.

use core::fmt;
use va_base::{Align, AllocError, Pages, Va, VaRange};

/// The reason why no area was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// Nothing fits, although all lazy areas were purged.
    NoSpace {
        /// Pages requested.
        requested: Pages,
        /// Alignment requested.
        align: Align,
        /// Window of the request.
        window: VaRange,
        /// Largest hole anywhere, in pages.
        largest: Pages,
        /// Pages that were freed and whose flush has not ended. They become usable without another free.
        lazy: Pages,
        /// Pages in magazines, flushed or not, that were not drained. Their owners were in a call, or
        /// the failing call drains none.
        cached: Pages,
    },
    /// No ready area fits, and the caller may not wait ([`Context::Atomic`](va_base::Context::Atomic)). Lazy or cached
    /// pages would have to be purged first. A caller that may sleep succeeds, or gets another error.
    WouldBlock {
        /// Pages requested.
        requested: Pages,
        /// Pages that were freed and whose flush has not begun or not ended.
        lazy: Pages,
    },
    /// The request would not fit even if the whole extent were free. Nothing was purged or drained for it, except that
    /// an alloc of a magazine may have run some slices of a purge that was due.
    Impossible {
        /// Pages requested.
        requested: Pages,
        /// Alignment requested.
        align: Align,
        /// Window of the request.
        window: VaRange,
    },
    /// The index failed for another reason.
    Index(AllocError),
    /// The machine has no memory for a table of the page map, for a node or for a magazine.
    NoTable,
    /// More pages than the space can describe: the extent ends above what the page map covers.
    TooHigh {
        /// The extent.
        extent: VaRange,
    },
    /// There is no space yet: neither [`EarlySpace::init`](crate::EarlySpace::init) nor
    /// [`EarlySpace::ready`](crate::EarlySpace::ready) was called.
    NotReady,
    /// There is a space already.
    AlreadyReady,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace { requested, align, window, largest, lazy, cached } => write!(
                f,
                "no room for {requested} aligned to {align:?} bytes in {window}: the largest hole is {largest}, \
                 {lazy} wait for a flush, {cached} are in magazines"
            ),
            Self::WouldBlock { requested, lazy } => write!(
                f,
                "no room for {requested} at hand, {lazy} wait for a flush, and the caller may not wait"
            ),
            Self::Impossible { requested, align, window } => {
                write!(f, "{requested} aligned to {align:?} bytes can never fit in {window}")
            }
            Self::Index(error) => fmt::Display::fmt(error, f),
            Self::NoTable => f.write_str("the machine allocated no table"),
            Self::TooHigh { extent } => write!(f, "extent {extent} ends above what the page map covers"),
            Self::NotReady => f.write_str("there is no space yet"),
            Self::AlreadyReady => f.write_str("there is a space already"),
        }
    }
}

impl core::error::Error for SpaceError {}

impl From<AllocError> for SpaceError {
    fn from(error: AllocError) -> Self {
        Self::Index(error)
    }
}

/// The reason why nothing was freed: always a caller's mistake. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// No busy area starts there, or another call changes it at this moment, as one that writes its note.
    NoArea {
        /// The address.
        at: Va,
        /// The busy area that the address is inside, if it is.
        inside: Option<VaRange>,
    },
    /// The area of the handle was freed by its address before, and another area starts there now.
    Reused {
        /// The range that the handle names.
        handle: VaRange,
    },
    /// The area that starts there has another size than the caller named.
    WrongSize {
        /// The area.
        area: VaRange,
        /// The size that the caller named.
        requested: Pages,
    },
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea { at, inside: None } => write!(f, "no area starts at {at}"),
            Self::NoArea { at, inside: Some(range) } => {
                write!(f, "no area starts at {at}, which is inside the area {range}")
            }
            Self::Reused { handle } => {
                write!(f, "the area {handle} was freed before, and another starts there now")
            }
            Self::WrongSize { area, requested } => write!(f, "the area {area} does not have {requested}"),
        }
    }
}

impl core::error::Error for ReleaseError {}
