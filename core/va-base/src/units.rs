//! Units of measure: addresses, pages, alignments and half-open ranges.
//!
//! # Theory
//! Bytes and pages mix silently when both are `u64`, which is the classic bug of this field. So each has a type, and
//! every conversion is a named method. A range is half-open, `[start, end)`. Its largest end is `2^64 - 1`, so no range
//! can contain the very last byte of a 64-bit space, and with it the last page. Linux leaves the same byte out: its
//! free space ends at `ULONG_MAX`.
//!
//! # Invariants
//! - **VR1 ordered** `start <= end` in every [`VaRange`].
//! - **AL1 power** every [`Align`] is a power of two (only its logarithm is stored).

use core::fmt;
use core::ops::Range;

/// Binary logarithm of [`PAGE_SIZE`]: 12, or the value of the environment variable `VA_PAGE_SHIFT` (12 to 16) when this
/// crate was built. A machine states its own ([`Platform::PAGE_SHIFT`](crate::Platform::PAGE_SHIFT)). The compiler
/// checks that the two agree, for every index and space on that machine (`docs/decisions/0012-page-size.md`).
pub const PAGE_SHIFT: u32 = match option_env!("VA_PAGE_SHIFT") {
    None => 12,
    Some(text) => match u32::from_str_radix(text, 10) {
        Ok(shift) => shift,
        Err(_) => panic!("VA_PAGE_SHIFT is no number"),
    },
};
const _: () = assert!(12 <= PAGE_SHIFT && PAGE_SHIFT <= 16, "VA_PAGE_SHIFT is 12 to 16");
/// Bytes in a page: the unit in which address space is allocated.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

/// A virtual address, in bytes. A number: it proves nothing about the memory at it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Va(u64);

impl Va {
    /// Address zero.
    pub const ZERO: Self = Self(0);
    /// The highest address, which no half-open range can contain.
    pub const MAX: Self = Self(u64::MAX);

    /// Wraps a byte address.
    #[inline]
    #[must_use]
    pub const fn new(addr: u64) -> Self {
        Self(addr)
    }

    /// Returns the byte address.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` higher, or `None` past `2^64 - 1`.
    #[inline]
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(addr) => Some(Self(addr)),
            None => None,
        }
    }

    /// Returns the lowest multiple of `align` that is not below this address, or `None` if it is past `2^64 - 1`.
    #[inline]
    #[must_use]
    pub const fn align_up(self, align: Align) -> Option<Self> {
        let mask = align.bytes() - 1;
        match self.0.checked_add(mask) {
            Some(addr) => Some(Self(addr & !mask)),
            None => None,
        }
    }

    /// Returns the highest multiple of `align` that is not above this address.
    #[inline]
    #[must_use]
    pub const fn align_down(self, align: Align) -> Self {
        Self(self.0 & !(align.bytes() - 1))
    }

    /// Returns true if the address is a multiple of `align`.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self, align: Align) -> bool {
        self.0 & (align.bytes() - 1) == 0
    }

    /// Returns the number of the page that contains this address.
    #[inline]
    #[must_use]
    pub const fn page_floor(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Returns the number of the first page that starts at or above this address (at most `2^52`).
    #[inline]
    #[must_use]
    pub const fn page_ceil(self) -> u64 {
        (self.0 >> PAGE_SHIFT) + (self.0 & (PAGE_SIZE - 1) != 0) as u64
    }

    /// Returns the first address of page `number`.
    ///
    /// `number` must be below `2^52`; higher bits are shifted out, as in any address arithmetic on the machine.
    #[inline]
    #[must_use]
    pub const fn from_page(number: u64) -> Self {
        Self(number << PAGE_SHIFT)
    }
}

impl fmt::Debug for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl From<u64> for Va {
    #[inline]
    fn from(addr: u64) -> Self {
        Self(addr)
    }
}

impl From<Va> for u64 {
    #[inline]
    fn from(addr: Va) -> Self {
        addr.0
    }
}

/// A count of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pages(u64);

impl Pages {
    /// Wraps a count.
    #[inline]
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Returns the count.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the count in bytes, or `None` past `2^64 - 1`.
    #[inline]
    #[must_use]
    pub const fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(PAGE_SIZE)
    }

    /// Returns the pages of exactly `size_bytes`, or `None` if that is not a whole number of pages.
    #[inline]
    #[must_use]
    pub const fn from_bytes(size_bytes: u64) -> Option<Self> {
        if size_bytes & (PAGE_SIZE - 1) == 0 { Some(Self(size_bytes >> PAGE_SHIFT)) } else { None }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}p", self.0)
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// An alignment: a power of two from 1 byte to `2^63` bytes (AL1). Any value up to a page means page alignment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Align(u8);

impl Align {
    /// One page: the least alignment of an address that an index of pages allocates.
    pub const PAGE: Self = Self(PAGE_SHIFT as u8);

    /// Returns the alignment of `align_bytes`, or `None` if that is not a power of two.
    #[inline]
    #[must_use]
    pub const fn new(align_bytes: u64) -> Option<Self> {
        // Checks AL1.
        if align_bytes.is_power_of_two() { Some(Self(align_bytes.trailing_zeros() as u8)) } else { None }
    }

    /// Returns the alignment `2^log2` bytes, or `None` from 64 up.
    #[inline]
    #[must_use]
    pub const fn from_log2(log2: u32) -> Option<Self> {
        if log2 < u64::BITS { Some(Self(log2 as u8)) } else { None }
    }

    /// Returns the alignment in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// Returns the binary logarithm of the alignment in bytes.
    #[inline]
    #[must_use]
    pub const fn log2(self) -> u32 {
        self.0 as u32
    }

    /// Returns the binary logarithm of the alignment in pages: 0 for everything up to a page.
    #[inline]
    #[must_use]
    pub const fn page_log2(self) -> u32 {
        (self.0 as u32).saturating_sub(PAGE_SHIFT)
    }
}

impl Default for Align {
    fn default() -> Self {
        Self::PAGE
    }
}

impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2^{} bytes", self.0)
    }
}

impl fmt::Debug for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2^{}", self.0)
    }
}

/// A half-open range of addresses, `[start, end)`, with `start <= end` (VR1); `[0, 2^64 - 1)` is the largest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VaRange {
    start: Va,
    end: Va,
}

impl VaRange {
    /// The range of no addresses, `[0, 0)`.
    pub const EMPTY: Self = Self { start: Va::ZERO, end: Va::ZERO };

    /// The largest range, `[0, 2^64 - 1)`.
    pub const ALL: Self = Self { start: Va::ZERO, end: Va::MAX };

    /// Returns `[start, end)`, or `None` if `end` is below `start`.
    #[inline]
    #[must_use]
    pub const fn new(start: Va, end: Va) -> Option<Self> {
        // Checks VR1; the other constructors add what is not negative, or compare as well.
        if start.0 <= end.0 { Some(Self { start, end }) } else { None }
    }

    /// Returns the `size_bytes` bytes from `start` on, or `None` if they do not end by `2^64 - 1`.
    #[inline]
    #[must_use]
    pub const fn from_size(start: Va, size_bytes: u64) -> Option<Self> {
        match start.checked_add(size_bytes) {
            Some(end) => Some(Self { start, end }),
            None => None,
        }
    }

    /// Returns the range of the pages `[first, end)`, or `None` if they are out of order or end past `2^64 - 1`.
    #[inline]
    #[must_use]
    pub const fn from_pages(first: u64, end: u64) -> Option<Self> {
        if first <= end && end < 1 << (u64::BITS - PAGE_SHIFT) {
            Some(Self { start: Va::from_page(first), end: Va::from_page(end) })
        } else {
            None
        }
    }

    /// Returns the first address.
    #[inline]
    #[must_use]
    pub const fn start(self) -> Va {
        self.start
    }

    /// Returns the address after the last.
    #[inline]
    #[must_use]
    pub const fn end(self) -> Va {
        self.end
    }

    /// Returns the bytes in the range.
    #[inline]
    #[must_use]
    pub const fn len_bytes(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Returns true if the range has no byte.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Returns true if both ends are on page boundaries.
    #[inline]
    #[must_use]
    pub const fn is_page_aligned(self) -> bool {
        (self.start.0 | self.end.0) & (PAGE_SIZE - 1) == 0
    }

    /// Returns the page numbers `[first, end)` of the whole pages inside; `first >= end` if there is none.
    #[inline]
    #[must_use]
    pub const fn whole_pages(self) -> (u64, u64) {
        (self.start.page_ceil(), self.end.page_floor())
    }

    /// Returns true if `addr` is inside.
    #[inline]
    #[must_use]
    pub const fn contains(self, addr: Va) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }

    /// Returns true if all of `other` is inside.
    #[inline]
    #[must_use]
    pub const fn encloses(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Returns true if the two have a byte in common.
    #[inline]
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start.0 < other.end.0 && other.start.0 < self.end.0
    }
}

/// A range of addresses whose end is below its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnorderedRange {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl fmt::Display for UnorderedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a range ends at {:#x}, below its start {:#x}", self.end, self.start)
    }
}

impl core::error::Error for UnorderedRange {}

/// ```
/// use va_base::VaRange;
/// let range = VaRange::try_from(0x1000..0x3000)?;
/// assert_eq!(std::ops::Range::from(range), 0x1000..0x3000);
/// assert!(VaRange::try_from(2..1).is_err());
/// # Ok::<(), va_base::UnorderedRange>(())
/// ```
impl TryFrom<Range<u64>> for VaRange {
    type Error = UnorderedRange;

    #[inline]
    fn try_from(Range { start, end }: Range<u64>) -> Result<Self, UnorderedRange> {
        Self::new(Va(start), Va(end)).ok_or(UnorderedRange { start, end })
    }
}

impl From<VaRange> for Range<u64> {
    #[inline]
    fn from(range: VaRange) -> Self {
        range.start.0..range.end.0
    }
}

impl fmt::Debug for VaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.start.0, self.end.0)
    }
}

impl fmt::Display for VaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vr1_a_range_is_ordered_and_reaches_the_last_byte_but_one() {
        assert_eq!(VaRange::new(Va::new(2), Va::new(1)), None);
        assert_eq!(VaRange::ALL.len_bytes(), u64::MAX);
        assert_eq!(VaRange::from_size(Va::new(1), u64::MAX), None);
        assert_eq!(VaRange::from_size(Va::new(1), u64::MAX - 1).map(VaRange::end), Some(Va::MAX));
    }

    #[test]
    fn one_page_is_singular() {
        use std::string::ToString;
        assert_eq!([0, 1, 2].map(|count| Pages::new(count).to_string()), ["0 pages", "1 page", "2 pages"]);
    }

    #[test]
    fn whole_pages_round_inward_and_never_wrap() {
        assert_eq!(VaRange::ALL.whole_pages(), (0, (1 << 52) - 1));
        let odd = VaRange::new(Va::new(1), Va::new(3 * PAGE_SIZE - 1)).unwrap();
        assert_eq!(odd.whole_pages(), (1, 2));
        let last = VaRange::new(Va::new(u64::MAX - 5), Va::MAX).unwrap();
        assert_eq!(last.whole_pages(), (1 << 52, (1 << 52) - 1));
    }

    #[test]
    fn from_pages_rejects_what_bytes_cannot_express() {
        assert_eq!(VaRange::from_pages(0, 1 << 52), None);
        assert_eq!(VaRange::from_pages(2, 1), None);
        let top = VaRange::from_pages(5, (1 << 52) - 1).unwrap();
        assert_eq!(top.whole_pages(), (5, (1 << 52) - 1));
        assert!(top.is_page_aligned());
    }

    #[test]
    fn al1_an_alignment_is_a_power_of_two() {
        for bad in [0, 3, 6, u64::MAX] {
            assert_eq!(Align::new(bad), None);
        }
        for log2 in 0..64 {
            assert_eq!(Align::new(1 << log2).map(Align::log2), Some(log2));
        }
        assert_eq!(Align::from_log2(64), None);
        assert_eq!(Align::new(1).map(Align::page_log2), Some(0));
        assert_eq!(Align::new(1 << 21).map(Align::page_log2), Some(9));
    }

    #[test]
    fn align_up_stops_at_the_top_of_the_space() {
        let huge = Align::from_log2(63).unwrap();
        assert_eq!(Va::new(1).align_up(huge), Some(Va::new(1 << 63)));
        assert_eq!(Va::new((1 << 63) + 1).align_up(huge), None);
        assert_eq!(Va::new(u64::MAX).align_down(huge), Va::new(1 << 63));
        assert!(Va::new(1 << 63).is_aligned(huge));
        assert!(!Va::new(1 << 62).is_aligned(huge));
    }

    #[test]
    fn ranges_overlap_only_where_they_share_a_byte() {
        let of = |a, b| VaRange::new(Va::new(a), Va::new(b)).unwrap();
        assert!(of(0, 10).overlaps(of(9, 20)));
        assert!(!of(0, 10).overlaps(of(10, 20)));
        assert!(!of(0, 10).overlaps(of(5, 5)));
        assert!(of(0, 10).encloses(of(3, 10)));
        assert!(!of(0, 10).encloses(of(3, 11)));
        assert!(of(0, 10).contains(Va::new(0)) && !of(0, 10).contains(Va::new(10)));
    }

    #[test]
    fn pages_convert_only_when_whole() {
        assert_eq!(Pages::from_bytes(4095), None);
        assert_eq!(Pages::from_bytes(8192), Some(Pages::new(2)));
        assert_eq!(Pages::new(1 << 52).checked_bytes(), None);
        assert_eq!(Pages::new(3).checked_bytes(), Some(3 * PAGE_SIZE));
    }
}
