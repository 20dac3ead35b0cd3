//! The width of a page number inside a node.

use core::fmt::Debug;
use core::ops::{Add, BitAnd, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A page number relative to the base of the tree: `u64` for any space, `u32` for spaces up to 16 TiB.
pub trait Key:
    sealed::Sealed
    + Copy
    + Ord
    + Debug
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + 'static
{
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

macro_rules! key {
    ($int:ty) => {
        impl Key for $int {
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
