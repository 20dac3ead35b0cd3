//! The common parts of the packages in `adopt/faces`: sets of units over the index of holes.
//!
//! # Theory
//! The index counts pages, and a page is a number for it. So a unit can be anything that is numbered: a byte of a
//! buffer, a page, a handle. A unit has a number below [`LIMIT`].
//!
//! | type | contents | for callers that |
//! |---|---|---|
//! | [`InlineUnits`], [`Ids`] | the free units alone | free any part of what they allocated, or several at once |
//! | [`BestFitUnits`] | the same, also in order of size | want the smallest hole that fits as well |
//! | [`TrackedUnits`] | the free units, and each area | free whole areas, and want an error for anything else |
//! | [`Unit`] | integers as distances from a start | are generic over the type of a position |
//!
//! A set with few holes is a list, and becomes an index when there are many ([`StagedUnits`]).
//!
//! Memory comes from the global allocator, and is freed with the value. A failure of that allocator is an error.
//!
//! # Source
//! Our own.
#![no_std]
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod free_units;
mod heap;
mod hole_list;
mod staged_units;
mod tracked_units;
mod unit;

pub use free_units::{AddError, FreeUnits};
pub use staged_units::{BestFitUnits, Ids, InlineUnits, StagedUnits};
pub use tracked_units::{NotAnArea, Side, TrackedUnits};
pub use unit::Unit;

use va_base::PAGE_SHIFT;

/// The lowest number that no unit has: 2^52 - 1 with pages of 4 KiB, since the index stores the address of a page.
pub const LIMIT: u64 = (1 << (u64::BITS - PAGE_SHIFT)) - 1;
