//! Addresses, pages, alignments and ranges as numbers, for states that are saved (feature `serde`).
//!
//! An address and a count are a number each, an alignment its bytes, and a range the pair of its ends. What is read is
//! checked: a range whose end is below its start is an error (VR1), and so is an alignment that is no power of two (AL1).

use crate::{Align, Pages, Va, VaRange};
use serde_core::de::{Deserialize, Deserializer, Error};
use serde_core::ser::{Serialize, Serializer};

/// Implements both directions by a conversion to `$number`, and one back that may fail.
macro_rules! as_number {
    ($type:ty, $number:ty, $get:expr, $of:expr, $expected:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let get: fn($type) -> $number = $get;
                get(*self).serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let of: fn($number) -> Option<$type> = $of;
                let number = <$number>::deserialize(from)?;
                of(number).ok_or_else(|| D::Error::custom(format_args!("{number:?} is {}", $expected)))
            }
        }
    };
}

as_number!(Va, u64, Self::get, |at| Some(Self::new(at)), "no address");
as_number!(Pages, u64, Self::get, |count| Some(Self::new(count)), "no count of pages");
as_number!(Align, u64, Self::bytes, Self::new, "no power of two");
as_number!(
    VaRange,
    (u64, u64),
    |range| (range.start().get(), range.end().get()),
    |(start, end)| Self::new(Va::new(start), Va::new(end)),
    "a range whose end is below its start"
);
