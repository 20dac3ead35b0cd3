//! The name of an object, the same on every CPU.

use core::fmt;
use va_base::Va;

/// The result of one allocation: the distance of an object from the beginning of the first chunk,
/// the same on every CPU.
///
/// The object of a CPU is at the beginning of its unit of the first chunk, plus this. The sum may wrap, since other
/// chunks may be lower. While a caller holds one, no other caller has the bytes, and their pages are populated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Offset(u64);

impl Offset {
    /// Creates an offset from a number.
    #[must_use]
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// Returns the number, in bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address of the object of a CPU whose unit of the first chunk begins at `unit`.
    #[must_use]
    pub const fn at(self, unit: Va) -> Va {
        Va::new(unit.get().wrapping_add(self.0))
    }

    /// Returns the offset of the object at `at`, from the beginning of the first chunk.
    pub(crate) const fn between(first: Va, at: u64) -> Self {
        Self(at.wrapping_sub(first.get()))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn an_offset_leads_below_the_first_chunk_too() {
        let first = Va::new(0x10_000);
        let offset = Offset::between(first, 0x4010);
        assert_eq!(offset.at(first), Va::new(0x4010));
        assert_eq!(offset.at(Va::new(0x30_000)), Va::new(0x2_4010));
    }
}
