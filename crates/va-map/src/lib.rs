//! An area with pages behind it.
//!
//! The space says *where* an area is; a [`PageTable`] of the machine puts pages there, which a [`PageSource`] allocates
//! ([`MapSpace::vmalloc`]) or a caller brings ([`MapSpace::vmap`], [`MapSpace::vm_map_ram`]). No memory is read here
//! and none is allocated: a page is a number, and which pages lie behind an area is known by the page table alone.
//!
//! | module | what it is |
//! |---|---|
//! | [`MapSpace`] | vmalloc, vfree, vrealloc, vmap, vm_map_ram, read; the life of an area and the lock order |
//! | [`EarlyMap`] | a place for a map, for a static |
//! | [`PageTable`], [`PageSource`] | what a machine supplies beyond [`va_base::Machine`] |
//! | [`AreaRequest`] | what is asked for: three sizes, alignment, guard, large entries, contents, node, permissions |
//! | [`AreaInfo`], [`Kind`] | what is known of an area, for `vmallocinfo` |
//! | `ladder` | the size of each entry, and the alignment that a list of pages allows |
//! | `record` | one record an area, found by its first page |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod early;
mod error;
mod ladder;
#[cfg(all(test, loom))]
mod loom;
mod machine;
mod record;
mod request;
mod space;

pub use early::EarlyMap;
pub use error::{FreeError, MapError};
pub use machine::{
    DirectAccess, Entries, LEAF_SIZES_MAX, Leaf, PageRequest, PageSource, PageTable, PageTableError,
    Protection, Run, Stopped,
};
pub use record::Kind;
pub use request::{AreaRequest, DirectMap, Fill, Guard, Leaves, PageList};
pub use space::{AreaInfo, MapSpace, Piece, RAM_PAGES_MAX, Stats};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
