//! Measures whole spaces: ours under three policies, and C libraries of a kernel's.

#[cfg(feature = "all")]
#[doc(hidden)]
pub mod cases;
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod contenders;
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod kernel_lib;
pub(crate) mod ours;
#[doc(hidden)]
pub mod patterns;
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod print;
#[cfg(feature = "all")]
mod run;
#[doc(hidden)]
pub mod subject;
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod threads;

pub(super) use ours::window;
#[cfg(feature = "all")]
pub use run::{NODES, Options, THREADS, THREADS_MAX, run};
