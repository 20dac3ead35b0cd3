//! The errors of blocks, with their numbers. A call that fails leaves the blocks as they were (SP4), except that caches
//! may be empty.

use core::fmt;
use va_base::{Pages, RequestError, Va, VaRange};
use va_space::SpaceError;

/// The reason why no addresses were allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BlockError {
    /// The request makes no sense in any space.
    BadRequest(RequestError),
    /// No block has room, and the space below has none for another (or for a request too large for a block).
    Space(SpaceError),
    /// No room is available without waiting. A caller that may sleep succeeds, or gets another error.
    WouldBlock,
    /// As many blocks are present as may be, and none of them can be released. While this call tried, no other began or
    /// released one: a thread stands between two steps of its call. Try again after that thread has run.
    Bound {
        /// Blocks present.
        present: u64,
        /// A block begins only while fewer are present.
        most: u64,
    },
    /// The machine allocated no table for a block's record or for the lookup.
    NoTable,
    /// The default window of the space has more blocks than the lookup covers.
    TooWide {
        /// The window.
        window: VaRange,
        /// Blocks that the lookup covers.
        limit: u64,
    },
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(error) => fmt::Display::fmt(error, f),
            Self::Space(error) => fmt::Display::fmt(error, f),
            Self::WouldBlock => f.write_str("the caller may not sleep, and nothing is at hand"),
            Self::Bound { present, most } => {
                write!(
                    f,
                    "{present} blocks are present where {most} may be, and another call is to go on first"
                )
            }
            Self::NoTable => f.write_str("the machine allocated no table"),
            Self::TooWide { window, limit } => write!(f, "window {window} has more than {limit} blocks"),
        }
    }
}

impl core::error::Error for BlockError {}

impl From<SpaceError> for BlockError {
    fn from(error: SpaceError) -> Self {
        Self::Space(error)
    }
}

impl From<RequestError> for BlockError {
    fn from(error: RequestError) -> Self {
        Self::BadRequest(error)
    }
}

/// The reason why nothing was freed: always a caller's mistake. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnmapError {
    /// The count is 0 or does not fit an address space.
    BadCount {
        /// Pages.
        pages: u64,
    },
    /// Nothing that blocks allocated starts there.
    NotMapped {
        /// The address.
        at: Va,
        /// The range that the address is inside, if any: a mapping of a block, or an area of the space. The area may
        /// start there, if another caller of the space allocated it.
        inside: Option<VaRange>,
    },
    /// Something starts there, and it has another size.
    WrongCount {
        /// The range that starts there.
        range: VaRange,
        /// Pages that the caller frees.
        pages: Pages,
    },
    /// It was freed before, and nothing has been allocated there since.
    Twice {
        /// The range that started there.
        range: VaRange,
    },
}

impl fmt::Display for UnmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCount { pages } => write!(f, "{pages} pages is no size of a mapping"),
            Self::NotMapped { at, inside: None } => write!(f, "no mapping starts at {at}"),
            Self::NotMapped { at, inside: Some(range) } => {
                write!(f, "no mapping starts at {at}, which is inside {range}")
            }
            Self::WrongCount { range, pages } => write!(f, "what starts there is {range}, not {pages}"),
            Self::Twice { range } => write!(f, "{range} was freed before"),
        }
    }
}

impl core::error::Error for UnmapError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_say_their_numbers() {
        let range = VaRange::from_pages(1, 4).unwrap();
        let error = UnmapError::WrongCount { range, pages: Pages::new(4) };
        assert_eq!(error.to_string(), "what starts there is [0x1000, 0x4000), not 4 pages");
        let error = UnmapError::NotMapped { at: Va::new(0x2000), inside: Some(range) };
        assert_eq!(error.to_string(), "no mapping starts at 0x2000, which is inside [0x1000, 0x4000)");
        let error = BlockError::Bound { present: 4, most: 4 };
        let words = "4 blocks are present where 4 may be, and another call is to go on first";
        assert_eq!(error.to_string(), words);
        let error = BlockError::TooWide { window: range, limit: 9 };
        assert_eq!(error.to_string(), "window [0x1000, 0x4000) has more than 9 blocks");
    }
}
