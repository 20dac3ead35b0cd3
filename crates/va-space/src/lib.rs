//! Policies of a virtual address space, begun: the arithmetic that later floors stand on.
//!
//! [`lazy`] says how many pages may wait for one flush, [`node`] which node an address belongs to and how an area is
//! tagged with its owner. Both are pure functions of numbers; the spaces and pools that use them come on top.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod lazy;
pub mod node;
