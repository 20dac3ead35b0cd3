//! The unit in which an index counts: a page, or one byte.
//!
//! # Theory
//! An index divides the numbers from 0 to `2^64 - 1` into units of `2^log2` and counts those. Every conversion between
//! an address and the number of a unit is here. The logarithm is a constant of each structure, so it costs nothing.

use va_base::{Align, PAGE_SHIFT, Pages, Va, VaRange};

/// Binary logarithm of the bytes in a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit(u32);

impl Unit {
    /// A page.
    pub const PAGE: Self = Self(PAGE_SHIFT);
    /// A byte: or a handle, or what else is numbered one by one.
    pub const BYTE: Self = Self(0);

    /// Returns the binary logarithm of its bytes.
    #[inline(always)]
    #[must_use]
    pub const fn log2(self) -> u32 {
        self.0
    }

    /// Returns the number of the unit that contains an address.
    #[inline(always)]
    pub(crate) const fn floor(self, at: Va) -> u64 {
        at.get() >> self.0
    }

    /// Returns the first address of a unit.
    #[inline(always)]
    pub(crate) const fn address(self, number: u64) -> Va {
        Va::new(number << self.0)
    }

    /// Returns the whole units inside, `[first, end)`; `first >= end` if there is none.
    #[inline(always)]
    pub(crate) const fn whole(self, range: VaRange) -> (u64, u64) {
        let below_first = range.start().get() & ((1 << self.0) - 1) != 0;
        (self.floor(range.start()) + below_first as u64, self.floor(range.end()))
    }

    /// Returns the range of units `[first, end)`, or `None` if they are out of order or end past `2^64 - 1`.
    #[inline(always)]
    pub(crate) const fn range(self, first: u64, end: u64) -> Option<VaRange> {
        if end <= u64::MAX >> self.0 { VaRange::new(self.address(first), self.address(end)) } else { None }
    }

    /// Returns true if both ends are boundaries of units.
    #[inline(always)]
    pub(crate) const fn is_whole(self, range: VaRange) -> bool {
        (range.start().get() | range.end().get()) & ((1 << self.0) - 1) == 0
    }

    /// Returns the bytes of so many units.
    #[inline(always)]
    pub(crate) const fn bytes(self, count: Pages) -> Option<u64> {
        count.get().checked_mul(1 << self.0)
    }

    /// Returns how many units a range has, which begins and ends at boundaries.
    #[inline(always)]
    pub(crate) const fn count(self, range: VaRange) -> u64 {
        range.len_bytes() >> self.0
    }

    /// Returns the binary logarithm of an alignment in units: 0 for everything up to a unit.
    #[inline(always)]
    pub(crate) const fn align_log2(self, align: Align) -> u32 {
        align.log2().saturating_sub(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_a_page_is_a_page() {
        for at in [0, 1, 4095, 4096, 4097, u64::MAX - 4096, u64::MAX] {
            let (page, at) = (Unit::PAGE, Va::new(at));
            assert_eq!((page.floor(at), page.floor(at)), (at.page_floor(), at.page_floor()));
            for end in [at, Va::MAX] {
                let range = VaRange::new(at, end).unwrap();
                assert_eq!(page.whole(range), range.whole_pages());
                assert_eq!(page.is_whole(range), range.is_page_aligned());
            }
            for first in [0, 5, 1 << 51] {
                let end = page.floor(at);
                assert_eq!(page.range(first, end), VaRange::from_pages(first, end));
                assert_eq!(page.range(first, 1 << 52), None);
            }
        }
    }

    #[test]
    fn a_unit_of_a_byte_reaches_the_last_number_but_one() {
        assert_eq!(Unit::BYTE.whole(VaRange::ALL), (0, u64::MAX));
        assert_eq!(Unit::BYTE.range(0, u64::MAX), Some(VaRange::ALL));
        assert_eq!(Unit::BYTE.range(2, 1), None);
        assert_eq!(Unit::BYTE.bytes(Pages::new(u64::MAX)), Some(u64::MAX));
        assert_eq!(Unit::BYTE.align_log2(Align::from_log2(63).unwrap()), 63);
    }
}
