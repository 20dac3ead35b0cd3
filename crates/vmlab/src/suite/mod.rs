//! The kernel's test suite of vmalloc, on any allocator.
//!
//! | module | what it is |
//! |---|---|
//! | [`case`] | the tests: bits, names, versions of the suite |
//! | [`history`] | Linux of other times, as targets |
//! | [`target`] | what the tests run on, and the list of all targets |

pub mod case;
pub mod history;
mod linux;
mod process;
mod space;
pub mod target;
