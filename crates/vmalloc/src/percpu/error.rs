//! Refusals, with their numbers. Whoever gets one finds the space as it was (SP4).

use crate::os::{Call, Errno};
use core::fmt;

/// The reason why there is no space, or no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A space has from 1 to 8192 units, without the strangers'.
    BadUnits {
        /// Units asked for.
        units: u32,
    },
    /// An object has from 1 byte to 32 KiB.
    BadSize {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The alignment is above a page.
    BadAlign {
        /// Bytes asked for.
        align: usize,
    },
    /// The system refused memory for the records, or the first chunk.
    Refused {
        /// The call that failed.
        call: Call,
        /// Its answer.
        errno: Errno,
        /// For how much.
        bytes: usize,
    },
    /// All chunks are full, and the system refused another one, or records for it.
    NoChunk {
        /// Chunks that there are.
        chunks: u32,
    },
    /// The system gave no memory for records.
    NoRecords,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUnits { units } => write!(f, "{units} units are not from 1 to 8192"),
            Self::BadSize { bytes } => write!(f, "{bytes} bytes are not from 1 to 32768"),
            Self::BadAlign { align } => write!(f, "align {align} is above a page"),
            Self::Refused { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
            Self::NoChunk { chunks } => {
                write!(f, "no room in {chunks} chunks, and no further one was granted")
            }
            Self::NoRecords => f.write_str("the system gave no memory for records"),
        }
    }
}

impl core::error::Error for Error {}
