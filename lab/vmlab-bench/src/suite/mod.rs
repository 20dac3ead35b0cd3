//! The kernel's test suite of vmalloc, on any allocator.
//!
//! | module | content |
//! |---|---|
//! | [`case`] | the tests: bits, names, versions of the suite |
//! | [`history`] | earlier versions of Linux, as targets |
//! | [`params`] | the parameters, under the kernel's names |
//! | [`driver`] | workers, orders, counts, times |
//! | [`rcu`] | frees that wait for a grace period |
//! | [`mod@print`] | the kernel's lines, and a table |
//! | [`target`] | the interface of a target, and the list of all targets |

mod body;
pub mod case;
pub mod cold;
pub mod driver;
pub mod history;
mod linux;
pub mod params;
pub mod print;
mod process;
pub mod rcu;
mod space;
pub mod target;
