//! The interface of [vm-allocator 0.1.4](https://docs.rs/vm-allocator/0.1.4), over the index of holes.
//!
//! [`AddressAllocator`] finds the first, the last or an exact range in O(log n), where the original visits each node of
//! its tree. [`IdAllocator`] has the freed ids as holes. Paths, names, errors and the form of snapshots are those of the
//! original. The differences are in `docs/book/src/faces.md`.
//!
//! ```
//! use vm_allocator::{AddressAllocator, AllocPolicy, Error, IdAllocator};
//! let mut mmio = AddressAllocator::new(0xd000_0000, 0x1000_0000)?;
//! let bar = mmio.allocate(0x4000, 0x4000, AllocPolicy::LastMatch)?;
//! assert_eq!((bar.start(), bar.len()), (0xdfff_c000, 0x4000));
//! mmio.free(&bar)?;
//! let mut ids = IdAllocator::new(5, 23)?;
//! assert_eq!(ids.allocate_id()?, 5);
//! # Ok::<(), Error>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address_allocator;
mod constraint;
mod error;
mod id_allocator;
mod range;
#[cfg(feature = "serde")]
mod saved;

pub use address_allocator::AddressAllocator;
pub use constraint::{AllocPolicy, Constraint, DEFAULT_CONSTRAINT_ALIGN};
pub use error::{Error, Result};
pub use id_allocator::IdAllocator;
pub use range::RangeInclusive;
