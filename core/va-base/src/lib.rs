//! The types that every crate of the workspace shares: addresses, page counts, alignments, ranges, requests, errors.
//!
//! Nothing here allocates, locks or reads memory. An address is a number ([`Va`]) and is never dereferenced below
//! the machine layer, which is why every `va-*` crate can forbid `unsafe` and run on any machine.
//!
//! | word | meaning | unit |
//! |---|---|---|
//! | [`Va`] | a virtual address | bytes |
//! | [`Pages`] | a count of pages | pages of [`PAGE_SIZE`] |
//! | [`Align`] | a power of two | bytes |
//! | [`VaRange`] | `[start, end)` | bytes |
//! | [`Request`] | size, alignment and window of an allocation | - |
//! | [`AllocError`], [`FreeError`] | the reason of a failure, in numbers; nothing has changed | - |
//! | [`Platform`] | the porting contract of an index | - |
//! | [`Machine`] | the porting contract of a space: locks, tables, the flush | - |
//! | [`Meta`] | a reference to memory of either, which may be freed inside a call | - |
//!
//! On a processor that cannot exchange a word atomically, [`Machine`] and [`sync`] are absent: an index needs neither.
//!
//! With the feature `alloc` there is a platform over the global allocator, for tests and examples. Where the processor has
//! atomics of 64 bits there is a machine, too.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(loom), warn(missing_debug_implementations))]
#![warn(clippy::must_use_candidate)]
#![warn(clippy::return_self_not_must_use)]

#[cfg(any(test, loom))]
extern crate std;

mod error;
mod heap;
mod late;
#[cfg(target_has_atomic = "ptr")]
mod lock;
#[cfg(target_has_atomic = "ptr")]
mod machine;
mod meta;
mod paged;
mod place;
mod platform;
mod request;
#[cfg(feature = "serde")]
mod serde;
#[cfg(target_has_atomic = "ptr")]
pub mod sync;
mod units;

pub use error::{AllocError, FreeError, InvariantViolation};
#[cfg(any(feature = "alloc", test))]
pub use heap::Heap;
#[cfg(all(any(feature = "alloc", test), target_has_atomic = "64"))]
pub use heap::{HeapMachine, LimitedHeap, Watch};
pub use late::Late;
#[cfg(target_has_atomic = "ptr")]
pub use machine::{Drain, Epoch, LockClass, Machine, Table};
pub use meta::Meta;
pub use paged::{NO_ID, Next, PagedArray, Supply, alloc_exact};
pub use place::Place;
pub use platform::{NoSlabs, PIECE_BYTES, Platform, Record, assert_pages};
pub use request::{Context, Request, RequestError};
pub use units::{Align, PAGE_SHIFT, PAGE_SIZE, Pages, UnorderedRange, Va, VaRange};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
