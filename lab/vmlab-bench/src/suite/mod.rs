//! The kernel's test suite of vmalloc, on any allocator.
//!
//! | module | content |
//! |---|---|
//! | [`case`] | the tests: bits, names, versions of the suite |
//! | [`params`] | the parameters, under the kernel's names |
//! | [`driver`] | workers, orders, counts, times |
//! | [`rcu`] | frees that wait for a grace period |
//! | [`mod@print`] | the kernel's lines, and a table |
//! | [`target`] | the list of all targets; `vmlab_targets` has most of them |

mod body;
pub mod cold;
pub mod driver;
mod linux;
pub mod params;
pub mod print;
#[doc(hidden)]
pub mod process;
pub mod rcu;
pub mod target;

pub use vmlab_targets::case;
