//! The width of a number inside a node, and the unit that it counts.

use crate::Unit;
use core::fmt::Debug;
use core::ops::{BitAnd, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for super::Byte {}
}

/// The number of a unit relative to the base of the tree. Of a page: `u64` for any space, `u32` for spaces up to 16
/// TiB. Of a byte: [`Byte`].
pub trait Key:
    sealed::Sealed + Copy + Ord + Debug + Send + Sync + Sub<Output = Self> + BitAnd<Output = Self> + 'static
{
    /// The unit that is numbered.
    const UNIT: Unit;
    /// Zero.
    const ZERO: Self;
    /// The largest value, which marks what is not in use.
    const MAX: Self;
    /// Narrows `value`, which fits.
    fn of(value: u64) -> Self;
    /// Widens.
    fn get(self) -> u64;
    /// Two's complement negation: `x.wrapping_neg() & mask` is how far `x` lies below a multiple of `mask + 1`.
    #[must_use]
    fn wrapping_neg(self) -> Self;
    /// Subtracts, stopping at zero.
    #[must_use]
    fn saturating_sub(self, other: Self) -> Self;
}

/// Adds, up to the largest number. The sums of page numbers stay below `2^54`, so there it is an addition.
#[inline(always)]
pub(super) fn plus<K: Key>(number: u64, more: u64) -> u64 {
    if K::UNIT.log2() < 2 { number.saturating_add(more) } else { number + more }
}

/// Returns true if `size` from `at` on end at or below `end`. The size is not zero.
#[inline(always)]
pub(super) fn fits<K: Key>(at: u64, size: u64, end: u64) -> bool {
    if K::UNIT.log2() < 2 { end.saturating_sub(at) >= size } else { at + size <= end }
}

macro_rules! key {
    ($int:ty) => {
        impl Key for $int {
            const UNIT: Unit = Unit::PAGE;
            const ZERO: Self = 0;
            const MAX: Self = <$int>::MAX;
            #[inline(always)]
            fn of(value: u64) -> Self {
                debug_assert!(value <= Self::MAX as u64);
                value as Self
            }
            #[inline(always)]
            fn get(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn wrapping_neg(self) -> Self {
                <$int>::wrapping_neg(self)
            }
            #[inline(always)]
            fn saturating_sub(self, other: Self) -> Self {
                <$int>::saturating_sub(self, other)
            }
        }
    };
}
key!(u32);
key!(u64);

/// The number of a byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct Byte(u64);

impl Key for Byte {
    const UNIT: Unit = Unit::BYTE;
    const ZERO: Self = Self(0);
    const MAX: Self = Self(u64::MAX);
    #[inline(always)]
    fn of(value: u64) -> Self {
        Self(value)
    }
    #[inline(always)]
    fn get(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn wrapping_neg(self) -> Self {
        Self(self.0.wrapping_neg())
    }
    #[inline(always)]
    fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sub for Byte {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl BitAnd for Byte {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}
