//! Integers as positions: a position is a start and a distance in units.

use core::fmt::Debug;

/// An integer type whose values are positions of units.
///
/// It is implemented for all integer types of the language. A distance that does not fit 64 bits is `None`.
///
/// ```
/// use va_compat::Unit;
/// assert_eq!(5u8.since(3), Some(2));
/// assert_eq!((-3i32).since(-5), Some(2));
/// assert_eq!(3u8.since(5), None);
/// assert_eq!(i128::MAX.since(i128::MIN), None);
/// assert_eq!((-100i8).after(200), 100);
/// assert_eq!(i16::count(300), 300);
/// assert_eq!((-3i32).padding(4), Some(3));
/// assert_eq!(7u64.padding(0), None);
/// ```
pub trait Unit: Copy + PartialOrd + Debug {
    /// Returns the units from `start` to this position, or `None` if it is lower, or 2^64 units away or more.
    fn since(self, start: Self) -> Option<u64>;

    /// Returns the position `units` above this one, which must be a value of the type: higher bits are dropped.
    fn after(self, units: u64) -> Self;

    /// Returns a number of units as a value of the type: higher bits are dropped.
    fn count(units: u64) -> Self;

    /// Returns the units from this position to the lowest multiple of `align` that is not below it. `None` if `align` is
    /// not positive.
    fn padding(self, align: Self) -> Option<u64>;
}

macro_rules! unit {
    ($($int:ty => $unsigned:ty),*) => {$(
        impl Unit for $int {
            #[inline]
            fn since(self, start: Self) -> Option<u64> {
                if self < start {
                    return None;
                }
                // The distance of two signed values always fits the unsigned type of their width.
                u64::try_from(self.wrapping_sub(start) as $unsigned).ok()
            }

            #[inline]
            fn after(self, units: u64) -> Self {
                self.wrapping_add(units as Self)
            }

            #[inline]
            fn count(units: u64) -> Self {
                units as Self
            }

            #[inline]
            fn padding(self, align: Self) -> Option<u64> {
                if align <= 0 {
                    return None;
                }
                let above = self.rem_euclid(align);
                u64::try_from(if above == 0 { 0 } else { align - above }).ok()
            }
        }
    )*};
}

unit!(u8 => u8, u16 => u16, u32 => u32, u64 => u64, u128 => u128, usize => usize,
      i8 => u8, i16 => u16, i32 => u32, i64 => u64, i128 => u128, isize => usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with sums of wider integers, for all values of a type.
    #[test]
    fn every_distance_and_padding_of_a_byte_is_that_of_wide_integers() {
        for a in i8::MIN..=i8::MAX {
            for b in i8::MIN..=i8::MAX {
                let wide = i64::from(a) - i64::from(b);
                assert_eq!(a.since(b), u64::try_from(wide).ok());
                if let Some(units) = a.since(b) {
                    assert_eq!(b.after(units), a);
                }
                let padding =
                    (0..128).find(|add| b > 0 && (i64::from(a) + add).rem_euclid(i64::from(b)) == 0);
                assert_eq!(a.padding(b), padding.map(|add| add as u64), "{a} to {b}");
            }
        }
    }
}
