//! The types of numbers of allocations.

use nonmax::{NonMaxU16, NonMaxU32};
use std::fmt::{Debug, Display};

/// An integer type for the numbers of allocations: `u32`, or `u16` for less than 65,534 allocations.
pub trait NodeIndex: Clone + Copy + Default {
    /// The same type without its largest value.
    type NonMax: NodeIndexNonMax + TryFrom<Self> + Into<Self>;

    /// The largest value.
    const MAX: u32;

    /// Converts a number; higher bits are dropped.
    fn from_u32(val: u32) -> Self;

    /// Converts to a number.
    fn to_usize(self) -> usize;
}

/// An integer type without its largest value.
pub trait NodeIndexNonMax: Clone + Copy + PartialEq + Default + Debug + Display {
    /// Converts to a number.
    fn to_usize(self) -> usize;
}

macro_rules! node_index {
    ($($int:ty, $non_max:ty);*) => {$(
        impl NodeIndex for $int {
            type NonMax = $non_max;
            const MAX: u32 = <$int>::MAX as u32;

            fn from_u32(val: u32) -> Self {
                val as Self
            }

            fn to_usize(self) -> usize {
                self as usize
            }
        }

        impl NodeIndexNonMax for $non_max {
            fn to_usize(self) -> usize {
                self.get() as usize
            }
        }
    )*};
}

node_index!(u32, NonMaxU32; u16, NonMaxU16);
