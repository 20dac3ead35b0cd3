//! The interface of [offset-allocator 0.2.0](https://docs.rs/offset-allocator/0.2.0), over the index of holes.
//!
//! [`Allocator`] allocates in the smallest free region that fits, where the original takes one of a bin of sizes in O(1).
//! An allocation succeeds whenever enough contiguous space is free; the original rounds sizes up, and may fail
//! then. Paths and names are those of the original. The differences are in `docs/book/src/faces.md`.
//!
//! ```
//! use offset_allocator::Allocator;
//! let mut allocator: Allocator = Allocator::new(1000);
//! let (a, b) = (allocator.allocate(600).unwrap(), allocator.allocate(400).unwrap());
//! assert_eq!((a.offset, b.offset), (0, 600));
//! allocator.free(a);
//! assert_eq!(allocator.storage_report().largest_free_region, 600);
//! assert!(allocator.allocate(600).is_some());
//! ```
#![forbid(unsafe_code)]

mod allocator;
pub mod ext;
mod node_index;
mod report;
mod slots;
mod small_float;

pub use allocator::{Allocation, Allocator};
pub use node_index::{NodeIndex, NodeIndexNonMax};
pub use report::{StorageReport, StorageReportFull, StorageReportFullRegion};
