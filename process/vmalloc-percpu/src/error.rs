//! The errors of per-CPU memory, with their numbers. A call that fails leaves the space unchanged (SP4).

use core::fmt;
use vmalloc_os::os::{Call, Errno};

/// The reason why no space was created, or no object allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The number of units is not from 1 to 8192, without the strangers'.
    BadUnits {
        /// The requested units.
        units: u32,
    },
    /// The size of the object is not from 1 byte to 32 KiB.
    BadSize {
        /// The requested bytes.
        bytes: usize,
    },
    /// The alignment is above a page.
    BadAlign {
        /// The requested alignment.
        align: usize,
    },
    /// A system call for the records or the first chunk failed.
    CallFailed {
        /// The call that failed.
        call: Call,
        /// Its error number.
        errno: Errno,
        /// The requested bytes.
        bytes: usize,
    },
    /// All chunks are full, and another one could not be mapped, or the system has no memory for its records.
    NoChunk {
        /// The number of existing chunks.
        chunks: u32,
    },
    /// The system has no memory for records.
    NoRecords,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUnits { units } => write!(f, "{units} units are not from 1 to 8192"),
            Self::BadSize { bytes } => write!(f, "{bytes} bytes are not from 1 to 32768"),
            Self::BadAlign { align } => write!(f, "align {align} is above a page"),
            Self::CallFailed { call, errno, bytes } => write!(f, "{call:?} of {bytes} bytes failed: {errno}"),
            Self::NoChunk { chunks } => {
                write!(f, "no room in {chunks} chunks, and no further one was granted")
            }
            Self::NoRecords => f.write_str("the system gave no memory for records"),
        }
    }
}

impl core::error::Error for Error {}
