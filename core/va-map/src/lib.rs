//! Areas with pages.
//!
//! The space allocates the addresses of an area. A [`PageTable`] of the machine maps pages there, which a
//! [`PageSource`] allocates ([`MapSpace::vmalloc`]) or a caller supplies ([`MapSpace::vmap`],
//! [`MapSpace::vm_map_ram`]). No memory is read here and none is allocated: a page is a number, and only the page table
//! stores the pages of an area.
//!
//! | module | what it is |
//! |---|---|
//! | [`MapSpace`] | vmalloc, vfree, vrealloc, vmap, vm_map_ram, read; the life of an area and the lock order |
//! | [`EarlyMap`] | storage for a map, for a static |
//! | [`PageTable`], [`PageSource`] | the interfaces that a machine implements beyond [`va_base::Machine`] |
//! | [`AreaRequest`] | a request: three sizes, alignment, guard, large entries, contents, node, permissions |
//! | [`AreaInfo`], [`Kind`] | the state of an area, for `vmallocinfo` |
//! | `ladder` | the size of each entry, and the alignment that a list of pages allows |
//! | `record` | one record an area, found by its first page |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

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
    DirectAccess, Entries, Fill, LEAF_SIZES_MAX, Leaf, PageRequest, PageSource, PageTable, PageTableError,
    Protection, Run, Stopped,
};
pub use record::Kind;
pub use request::{AreaRequest, DirectMap, Guard, Leaves, PageList};
pub use space::{AreaInfo, MapSpace, Piece, RAM_PAGES_MAX, Stats};

// The crates of the types in this interface: one dependency is enough.
pub use va_base;
pub use va_block;
pub use va_space;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
