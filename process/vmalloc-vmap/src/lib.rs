//! Contiguous mappings of chosen page frames, for a process.
//!
//! # Theory
//! [`Frames`] are pages of a memory file, without an address. A [`Mapping`] maps some of them contiguously, in any
//! order, a frame any number of times, in the address range of [`Mappings`]. Examples are a ring buffer mapped twice in
//! a row, and a view of scattered pages as one range.
//!
//! ```
//! use vmalloc_vmap::{Mappings, Protection};
//!
//! let mappings = Mappings::global()?;
//! let frames = mappings.frames(2)?;
//! let ring = frames.vmap(&[0, 1, 0, 1], Protection::ReadWrite)?;
//! // One write across the end of the ring.
//! ring.write(2 * 4096 - 3, b"around")?;
//! let mut start = [0; 3];
//! ring.read(0, &mut start)?;
//! assert_eq!(&start, b"und");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No mapping outlives its frames:
//!
//! ```compile_fail
//! let frames = vmalloc_vmap::Mappings::global().unwrap().frames(1).unwrap();
//! let view = frames.vmap(&[0], vmalloc_vmap::Protection::Read);
//! drop(frames);
//! drop(view);
//! ```
//!
//! | what | where |
//! |---|---|
//! | the address range, and the source of frames | [`Mappings`], [`Mappings::global`] |
//! | frames, and a frame for a list | [`Frames`], [`Frame`] |
//! | a mapping | [`Frames::vmap`], [`Mappings::vmap`], [`Mappings::vm_map_ram`], [`Mapping`] |
//! | reads of mappings that may be dropped meanwhile | [`Mappings::vread`] |
//! | counts and mappings, in text | [`Mappings::stats`], [`Mappings::vmallocinfo`] |
//! | gauges and a counter of the crate `metrics` | [`Mappings`]'s `publish_metrics`, feature `metrics` |
//!
//! The crate `vmalloc` exports all of it.
//!
//! Addresses come from a space of their own ([`va_map::MapSpace`]), reserved once. A dropped mapping stays mapped, but
//! unreachable, until one system call unmaps many of them; only then are its addresses reused (SP2).
//! [`Mappings::vm_map_ram`] allocates small ranges from blocks of the CPU, without the space.
//!
//! All frames are of one file, so frames of different [`Frames`] may be in one view, and the number of the system's
//! mappings is known exactly. The limit is a quarter of the process's mappings (`vm.max_map_count`); one more is a
//! typed error.
//!
//! **fork**: frames are shared memory. A child sees the existing mappings, which it shares with the parent, and must
//! not make or drop any. A call that tries fails with [`VmapError::OtherProcess`], and a drop in the child has no
//! effect. The child gets no reports either: all counts are 0, no mapping is listed, and [`Mappings::vread`] reads
//! nothing. So it takes no lock, which another thread may have held at the fork. A child makes mappings of its own by
//! [`Mappings::new`].
//!
//! The descriptor of the memory file, a high number, stays open, and the program must not close it. After a close no
//! frames can be mapped, and the error is `EBADF`. Another file that gets its number is detected by device and inode
//! before each call, and left alone. A close by another thread between the two is not.
//!
//! # Locking
//! ```text
//!   the locks of a space  >  mappings of the table        numbers of frames: under no other
//! ```
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vmap`, `vm_map_ram`); costs and limits of `mmap` for this:
//! `docs/decisions/0016-vmap.md`.

// A shared library of C is smaller without the standard library.
#![cfg_attr(not(any(test, feature = "metrics", miri)), no_std)]
#![warn(missing_debug_implementations, clippy::return_self_not_must_use)]

mod error;
mod frames;
#[cfg_attr(miri, path = "sim.rs")]
mod linux;
mod machine;
mod mapping;
mod mappings;
#[cfg(feature = "metrics")]
mod metrics;
mod os;
mod raw;
#[cfg(test)]
mod shim;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use error::VmapError;
pub use frames::{Frame, Frames};
pub use mapping::Mapping;
pub use mappings::{MappingStats, Mappings};
pub use os::VmapCall;
pub use state::Protection;
#[doc(inline)]
pub use vmalloc_os::os::Errno;

use vmalloc_os::PAGE_BYTES;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
