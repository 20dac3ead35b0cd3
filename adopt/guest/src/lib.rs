//! A port of the core to a machine with page tables and CPUs: the parts that need no privileged instruction.
//!
//! `src/bin/guest` boots with it. `check/freestanding` runs it in a process, on memory of its own.
#![no_std]

pub mod cpus;
pub mod frames;
pub mod lock;
pub mod port;
pub mod shootdown;
pub mod tables;
