//! An area with pages behind it.
//!
//! The space says *where* an area is; a [`PageTable`] of the machine puts pages there, which a [`PageSource`] lends
//! ([`MapSpace::vmalloc`]) or a caller brings ([`MapSpace::vmap`], [`MapSpace::vm_map_ram`]). No memory is read here and none is
//! allocated: a page is a number, and which pages lie behind an area is known by the page table alone.
//!
//! | module | what it is |
//! |---|---|
//! | [`MapSpace`] | vmalloc, vfree, vrealloc, vmap, vm_map_ram, read; the life of an area and the lock order |
//! | [`PageTable`], [`PageSource`] | what a machine supplies beyond [`va_base::Machine`] |
//! | [`AreaRequest`] | what is asked for: three sizes, alignment, guard, huge pages, contents |
//! | [`AreaInfo`], [`Kind`] | what is known of an area, for `vmallocinfo` |
//! | `record` | one record an area, found by its first page |

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod error;
mod machine;
mod record;
mod request;
mod space;

pub use error::{FreeError, MapError};
pub use machine::{Leaf, PageSource, PageTable, Protection, Refusal, Run, Stopped};
pub use record::Kind;
pub use request::{AreaRequest, Fill, Guard, Leaves, PageList};
pub use space::{AreaInfo, MapSpace, Piece, RAM_PAGES_MAX, Stats};
