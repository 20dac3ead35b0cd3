//! Diagnoses of bad addresses, and the messages about them.

use core::fmt;

/// The state of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Diagnosis {
    /// The address is outside the arena.
    Outside,
    /// The address is inside a live area, not at its start.
    Live {
        /// The start of the area.
        start: usize,
        /// The requested bytes.
        bytes: usize,
    },
    /// The address is in a freed area in quarantine.
    Quarantined {
        /// The address of its first page.
        pages_at: usize,
        /// Bytes of its pages.
        bytes: usize,
        /// Frees since then.
        frees: u64,
    },
    /// An area began there and was freed, and its addresses may be reused.
    Released {
        /// Bytes of its pages.
        bytes: usize,
        /// Frees since then.
        frees: u64,
    },
    /// No area ever began there.
    Never,
}

/// A mistake that ends the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// An address was freed at which no area begins.
    BadFree {
        /// The address.
        address: usize,
        /// Its state.
        known: Diagnosis,
    },
    /// An inaccessible address was accessed.
    Touched {
        /// The address.
        address: usize,
        /// Its state.
        known: Diagnosis,
    },
    /// Bytes beside an area were written to.
    Spoiled {
        /// The address at which the area begins.
        address: usize,
        /// The requested bytes.
        bytes: usize,
        /// The first such byte, from the start of the area.
        offset: isize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, known) = match *self {
            Self::Spoiled { address, bytes, offset } => {
                let (far, side) = match usize::try_from(offset) {
                    Ok(offset) => (offset - bytes, "behind its end"),
                    Err(_) => (offset.unsigned_abs(), "before its start"),
                };
                return write!(
                    f,
                    "bad write: the area of {bytes} bytes at {address:#x} was written to {far} bytes {side}, \
                     the first bad byte is at offset {offset}"
                );
            }
            Self::BadFree { address, known } => {
                write!(f, "bad free: {address:#x} ")?;
                (address, known)
            }
            Self::Touched { address, known } => {
                write!(f, "bad access: {address:#x} ")?;
                if known == Diagnosis::Never {
                    return f.write_str("is in no area: beside one, behind its end or before its start");
                }
                (address, known)
            }
        };
        match known {
            Diagnosis::Outside => f.write_str("is outside the arena"),
            Diagnosis::Live { start, bytes } => {
                let (far, side) = if address < start {
                    (start - address, "before")
                } else if address - start < bytes {
                    (address - start, "inside")
                } else {
                    (address - start - bytes, "behind the end of")
                };
                write!(f, "is {far} bytes {side} the live area of {bytes} bytes at {start:#x}")
            }
            Diagnosis::Quarantined { pages_at, bytes, frees } => write!(
                f,
                "was freed before: it is in the {bytes} bytes at {pages_at:#x}, in quarantine, {frees} frees ago"
            ),
            Diagnosis::Released { bytes, frees } => write!(
                f,
                "was freed before: an area of {bytes} bytes began there, {frees} frees ago, and has left the quarantine"
            ),
            Diagnosis::Never => f.write_str("was never the start of an area"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_mistake_and_what_is_known() {
        let live = Diagnosis::Live { start: 0x1000, bytes: 100 };
        let cases = [
            (0x1010, live, "0x1010 is 16 bytes inside the live area of 100 bytes at 0x1000"),
            (0x0ff0, live, "0xff0 is 16 bytes before the live area"),
            (0x1066, live, "0x1066 is 2 bytes behind the end of the live area"),
            (
                0x1010,
                Diagnosis::Quarantined { pages_at: 0x1000, bytes: 4096, frees: 3 },
                "was freed before: it is in the 4096 bytes at 0x1000, in quarantine, 3 frees ago",
            ),
            (
                0x1000,
                Diagnosis::Released { bytes: 4096, frees: 9 },
                "9 frees ago, and has left the quarantine",
            ),
            (0x1000, Diagnosis::Never, "never the start of an area"),
            (0x1000, Diagnosis::Outside, "outside the arena"),
        ];
        for (address, known, want) in cases {
            let text = Fault::BadFree { address, known }.to_string();
            assert!(text.starts_with("bad free: ") && text.contains(want), "{text}");
        }
        for (known, want) in [
            (Diagnosis::Never, "bad access: 0x1010 is in no area: beside one"),
            (
                Diagnosis::Quarantined { pages_at: 0x1000, bytes: 4096, frees: 1 },
                "bad access: 0x1010 was freed before",
            ),
        ] {
            let text = Fault::Touched { address: 0x1010, known }.to_string();
            assert!(text.starts_with(want), "{text}");
        }
        for (offset, want) in [(105, "5 bytes behind its end"), (-3, "3 bytes before its start")] {
            let text = Fault::Spoiled { address: 0x1000, bytes: 100, offset }.to_string();
            assert!(text.contains(want) && text.ends_with(&format!("offset {offset}")), "{text}");
        }
    }
}
