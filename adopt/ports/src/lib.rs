//! The address ranges of three kernels over the index of holes.
//!
//! | module | replaces | records come from |
//! |---|---|---|
//! | [`hermit`] | `mm/virtualmem.rs` of Hermit | the heap, under the lock |
//! | [`asterinas`] | `ostd/src/util/range_alloc.rs` of Asterinas | the heap, with no lock held |
//! | [`svsm`] | `kernel/src/mm/virtualrange.rs` of COCONUT-SVSM | the page allocator |
//!
//! Each module is the file that the kernel would have: its `use` lines name what the kernel has. Here these types are
//! in [`stand_in`], so that the files compile, and run in tests on any machine. [`heap`] is a second file of the first
//! two ports. The chapters of the book about the three kernels include the files.
#![no_std]
#![warn(missing_debug_implementations, clippy::return_self_not_must_use)]

extern crate alloc;

pub mod asterinas;
pub mod heap;
pub mod hermit;
pub mod stand_in;
pub mod svsm;
